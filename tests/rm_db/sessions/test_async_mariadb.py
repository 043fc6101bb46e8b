"""These tests cover what `test_asyncio` does not say of MariaDB in two phases, where PyMySQL works in greenlets below
AsyncConnection and AsyncSession.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, InvalidRequestError, StatementError

from tests.rm_db.sessions.shops import Order, until
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.rm_db.sessions.shops import MariaDBShop
    from tm import Transaction

REFUSED = (XaMisuse, StatementError, IllegalStateChangeError, InvalidRequestError)
"""SQLAlchemy wraps what is refused when it makes a cursor; the others are its own words for two tasks in a session."""


@pytest.fixture
def shop(mariadb_shop: MariaDBShop) -> MariaDBShop:
    """One in MariaDB."""
    return mariadb_shop


def test_a_statement_that_fails_is_undone_alone(shop: MariaDBShop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order).values(id=1, words="a"))
            with pytest.raises(DBAPIError, match="1062"):
                await connection.execute(insert(Order).values(id=1, words="b"))
            await connection.execute(insert(Order).values(id=2, words="c"))

    asyncio.run(main())
    assert shop.rows() == [(1, "a"), (2, "c")]


def test_a_long_stream_and_much_in_one_statement(shop: MariaDBShop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order), [{"id": i, "words": "x" * 50} for i in range(20_000)])
            async with connection.stream(select(Order.id).order_by(Order.id)) as rows:
                assert [row.id async for row in rows] == list(range(20_000))
            rows = await connection.orm.stream(select(Order.id).order_by(Order.id))
            assert len(await rows.all()) == 20_000
            # more than any buffer between the two has room for
            assert await connection.scalar(text("SELECT length(:much)"), {"much": "x" * 8_000_000}) == 8_000_000

    asyncio.run(main())
    assert len(shop.rows()) == 20_000


def test_the_event_loop_goes_on_while_octets_are_sent_and_read(shop: MariaDBShop) -> None:
    """The server is stopped, so that it neither reads nor answers."""

    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order).values(id=1, words="a"))
            shop.server.freeze()
            try:
                going = asyncio.ensure_future(
                    connection.scalar(text("SELECT length(:much)"), {"much": "x" * 8_000_000})
                )
                for _ in range(100):
                    await asyncio.sleep(0)
                assert not going.done()
            finally:
                shop.server.thaw()
            assert await going == 8_000_000

    asyncio.run(main())


# --- two tasks in one branch ---------------------------------------------------------------------------------------
async def _second_savepoint(tx: Transaction) -> None:
    async with tx["shop"].asyncio.begin_nested():
        raise AssertionError("not reached")


async def _second_stream(tx: Transaction) -> None:
    async with tx["shop"].asyncio.stream(text("SELECT 1")):
        raise AssertionError("not reached")


async def _second_flush(tx: Transaction) -> None:
    orm = tx["shop"].asyncio.orm
    order = Order(id=3, words="second")
    orm.add(order)
    try:
        await orm.flush()
    finally:
        orm.expunge(order)


async def _second_without_await(tx: Transaction) -> None:
    tx["shop"].execute(text("SELECT 1"))


async def _second_pymysql(tx: Transaction) -> None:
    tx["shop"].pymysql.cursor().execute("SELECT 1")


SECOND: dict[str, Callable[[Transaction], Awaitable[Any]]] = {
    "core": lambda tx: tx["shop"].asyncio.execute(text("SELECT 1")),
    "scalar": lambda tx: tx["shop"].asyncio.scalar(text("SELECT 1")),
    "driver sql": lambda tx: tx["shop"].asyncio.exec_driver_sql("SELECT 1"),
    "stream": _second_stream,
    "savepoint": _second_savepoint,
    "orm": lambda tx: tx["shop"].asyncio.orm.execute(text("SELECT 1")),
    "orm flush": _second_flush,
    "without await": _second_without_await,
    "pymysql without await": _second_pymysql,
}


def test_a_second_task_is_refused_and_the_first_goes_on(shop: MariaDBShop) -> None:
    async def first(tx: Transaction) -> None:
        await tx["shop"].asyncio.execute(text("SELECT GET_LOCK('gate', 600)"))
        await tx["shop"].asyncio.execute(insert(Order).values(id=2, words="first"))

    async def main() -> None:
        with shop.server.connect() as gate:
            gate.cursor().execute("SELECT GET_LOCK('gate', 0)")
            async with shop.tm.begin() as tx:
                await tx.aenlist("shop")
                going = asyncio.create_task(first(tx))
                await until(lambda: shop.at_work("SELECT GET_LOCK"))
                for way, second in SECOND.items():
                    with pytest.raises(REFUSED) as refused:
                        await second(tx)
                    assert not isinstance(refused.value, DBAPIError), f"{way} came to the server"
                assert not going.done()
                gate.cursor().execute("SELECT RELEASE_LOCK('gate')")
                await going

    asyncio.run(main())
    assert shop.rows() == [(2, "first")]
