"""The contract of AsyncConnection and AsyncSession inside a transaction, over every kind of database that an asyncio
application may await.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncSession

from rm_db.sessions.asyncio_connection import BranchAsyncConnection
from tests.rm_db.sessions.shops import PATIENCE_S, Order, Shop, insert_other, until
from tm import RolledBack
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POINTS = 100 if os.environ.get("XABRIDGE_POINTS") == "all" else 30
"""At so many moments a task is cancelled."""


@pytest.fixture
def shop(any_shop: Shop) -> Shop:
    """Each kind in turn."""
    return any_shop


def test_connection_session_and_driver_are_one_transaction(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            session = await tx.aenlist("shop")
            connection = session.asyncio
            assert isinstance(connection, BranchAsyncConnection)
            assert isinstance(connection.orm, AsyncSession)
            await connection.execute(insert(Order).values(id=1, words="core"))
            await shop.insert_with_driver(session, 2, "driver")
            connection.orm.add(Order(id=3, words="orm"))
            found = await connection.orm.scalars(select(Order.words).order_by(Order.id))
            assert found.all() == ["core", "driver", "orm"]
            assert shop.rows() == []
            await insert_other(tx)

    asyncio.run(main())
    assert shop.rows() == [(1, "core"), (2, "driver"), (3, "orm")]
    assert shop.made() == [1]


def test_what_the_orm_holds_back_is_flushed_at_the_end(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            tx["shop"].asyncio.orm.add(Order(id=1, words="late"))
            await insert_other(tx)

    asyncio.run(main())
    assert shop.rows() == [(1, "late")]


def test_a_block_that_raises_writes_nothing(shop: Shop) -> None:
    async def main() -> None:
        with pytest.raises(LookupError):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="gone"))
                await shop.insert_with_driver(tx["shop"], 2, "gone")
                await insert_other(tx)
                raise LookupError

    asyncio.run(main())
    assert shop.rows() == []
    assert shop.made() == []


def test_a_savepoint_and_a_stream(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order), [{"id": i, "words": "x"} for i in range(100)])
            with pytest.raises(LookupError):
                async with connection.begin_nested():
                    await connection.execute(insert(Order).values(id=100, words="taken back"))
                    raise LookupError
            with pytest.raises(DBAPIError, match=shop.duplicate):
                async with connection.begin_nested():
                    await connection.execute(insert(Order).values(id=99, words="again"))
            async with connection.stream(select(Order.id).order_by(Order.id)) as rows:
                assert [row.id async for row in rows] == list(range(100))
            rows = await connection.orm.stream(select(Order.id).order_by(Order.id))
            assert len(await rows.all()) == 100

    asyncio.run(main())
    assert shop.rows() == [(i, "x") for i in range(100)]


ENDS: tuple[Callable[[Any], Awaitable[object]], ...] = (
    lambda shop: shop.asyncio.commit(),
    lambda shop: shop.asyncio.rollback(),
    lambda shop: shop.asyncio.close(),
    lambda shop: shop.asyncio.begin().start(),
    lambda shop: shop.asyncio.execution_options(isolation_level="AUTOCOMMIT"),
    lambda shop: shop.asyncio.execute(text("COMMIT")),
    lambda shop: shop.asyncio.orm.commit(),
    lambda shop: shop.asyncio.orm.rollback(),
    lambda shop: shop.asyncio.orm.close(),
)


def test_the_end_of_the_transaction_is_the_managers(shop: Shop) -> None:
    attempts = [*ENDS, *shop.refused]

    async def main() -> None:
        for number, attempt in enumerate(attempts):
            with pytest.raises(RolledBack, match="was refused, which is the transaction manager's"):
                async with shop.tm.begin() as tx:
                    await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="not kept"))
                    with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                        await attempt(tx["shop"])
                    await tx["shop"].asyncio.execute(text("SELECT 1"))

    asyncio.run(main())
    assert shop.rows() == []


def test_a_session_that_is_over_is_refused(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(text("SELECT 1"))
        with pytest.raises(XaMisuse, match="this session is over"):
            await connection.execute(text("SELECT 1"))

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_statement_waits(shop: Shop) -> None:
    """Two transactions in one thread: the one waits for a lock of the other's, which only the loop can free."""

    async def main() -> None:
        locked, let_go = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="first"))
                locked.set()
                await let_go.wait()

        async def second() -> None:
            with shop.after_a_failure():
                async with shop.tm.begin() as tx:
                    await locked.wait()
                    again = insert(Order).values(id=1, words="again")
                    waiting = asyncio.ensure_future(tx["shop"].asyncio.execute(again))
                    await until(lambda: shop.at_work("INSERT INTO orders"))
                    let_go.set()
                    with pytest.raises(DBAPIError, match=shop.duplicate):
                        await waiting

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(first(), second())

    asyncio.run(main())
    assert shop.rows() == [(1, "first")]


async def _sleep(shop: Shop, connection: Any) -> None:
    await connection.execute(shop.sleep)


async def _sleep_in_the_orm(shop: Shop, connection: Any) -> None:
    await connection.orm.execute(shop.sleep)


async def _sleep_in_a_stream(shop: Shop, connection: Any) -> None:
    async with connection.stream(shop.sleeping_rows) as rows:
        async for _ in rows:
            pass


async def _sleep_in_a_savepoint(shop: Shop, connection: Any) -> None:
    async with connection.begin_nested():
        await connection.execute(shop.sleep)


async def _sleep_in_run_sync(shop: Shop, connection: Any) -> None:
    await connection.run_sync(lambda sync: sync.execute(shop.sleep))


SLEEPS = (_sleep, _sleep_in_the_orm, _sleep_in_a_stream, _sleep_in_a_savepoint, _sleep_in_run_sync)


@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
def test_a_cancelled_task_ends_its_statement_and_everything_is_rolled_back(shop: Shop) -> None:
    async def work(sleep: Callable[[Shop, Any], Awaitable[None]]) -> None:
        async with shop.tm.begin() as tx:
            await insert_other(tx)
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
            await sleep(shop, tx["shop"].asyncio)

    async def main() -> None:
        for sleep in SLEEPS:
            task = asyncio.create_task(work(sleep))
            await until(lambda: shop.at_work(*shop.asleep))
            task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not shop.at_work(*shop.asleep), sleep.__name__
            assert (shop.rows(), shop.made()) == ([], []), sleep.__name__

    asyncio.run(main())
    gc.collect()  # psycopg warns now: SQLAlchemy does not close the cursor of a stream that is cancelled


def test_a_timeout_that_the_block_survives_is_not_committed(shop: Shop) -> None:
    """Nobody knows how much of the statement was carried out."""

    async def main() -> None:
        with pytest.raises(RolledBack):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await tx["shop"].asyncio.execute(shop.sleep)
                await insert_other(tx)

    asyncio.run(main())
    assert shop.rows() == []
    assert shop.made() == []


def test_cancelled_at_any_point_it_is_committed_everywhere_or_nowhere(shop: Shop) -> None:
    async def work(number: int) -> None:
        async with shop.tm.begin() as tx:
            await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="x"))
            tx["shop"].asyncio.orm.add(Order(id=number + 10_000, words="y"))
            await insert_other(tx, number)

    async def main() -> None:
        begun = time.monotonic()
        for number in range(POINTS, POINTS + 5):
            await work(number)
        took_s = (time.monotonic() - begun) / 5
        for number in range(POINTS):
            task = asyncio.create_task(work(number))
            await asyncio.sleep(took_s * 1.5 * number / POINTS)
            task.cancel()
            if number % 3 == 0:
                await asyncio.sleep(0)
                task.cancel()  # once more
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            await work(POINTS + 5)

    asyncio.run(main())
    shop.tm.wait_for_completions()
    assert shop.tm.recover().clean
    made = shop.made()
    assert [number for number, _ in shop.rows()] == made + [number + 10_000 for number in made]
    assert 5 < len(made) < POINTS + 6
    assert POINTS + 5 in made


def test_waiting_without_await_is_refused(shop: Shop) -> None:
    """SQLAlchemy's asyncio extension says so for every driver."""

    async def main() -> None:
        async with shop.tm.begin() as tx:
            with pytest.raises(MissingGreenlet):
                tx["shop"].asyncio.sync_connection.execute(text("SELECT 1"))
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="kept"))

    asyncio.run(main())
    assert shop.rows() == [(1, "kept")]
