"""The contract of AsyncConnection and AsyncSession inside a transaction, over every kind of database that an asyncio
application may await; what else the drivers have; and SQLite, which works in a thread.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import DBAPIError, MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncSession

from rm_db.sessions.asyncio_connection import BranchAsyncConnection
from tests.event_loop import in_loop
from tests.programs import output_of
from tests.rm_db.sessions.shops import PATIENCE_S, MariaDBShop, Order, PostgresShop, Shop, insert_other, until, ways_of
from tm import ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse

POINTS = 100 if os.environ.get("XABRIDGE_POINTS") == "all" else 12
"""At so many moments a task is cancelled."""


@pytest.fixture
def shop(any_shop: Shop) -> Shop:
    """Each kind in turn."""
    return any_shop


@in_loop
async def test_connection_session_and_driver_are_one_transaction(shop: Shop) -> None:
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
    assert shop.rows() == [(1, "core"), (2, "driver"), (3, "orm")]
    assert shop.made() == [1]


@in_loop
async def test_a_savepoint_and_a_stream(shop: Shop) -> None:
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


@in_loop
async def test_the_end_of_the_transaction_is_the_managers(shop: Shop) -> None:
    attempts = [*ENDS, *shop.refused]
    for number, attempt in enumerate(attempts):
        with pytest.raises(RolledBack, match="was refused, which is the transaction manager's"):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="not kept"))
                with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                    await attempt(tx["shop"])
                await tx["shop"].asyncio.execute(text("SELECT 1"))
    assert shop.rows() == []


@in_loop
async def test_a_session_that_is_over_is_refused(shop: Shop) -> None:
    async with shop.tm.begin() as tx:
        connection = tx["shop"].asyncio
        views = [connection, connection.psycopg] if isinstance(shop, PostgresShop) else [connection]
        await connection.execute(text("SELECT 1"))
    for view in views:
        with pytest.raises(XaMisuse, match="this session is over"):
            await view.execute(text("SELECT 1"))


def test_the_event_loop_goes_on_while_a_statement_waits(shop: Shop) -> None:
    """Two transactions in one thread: the one waits for a lock of the other's, which only the loop can free."""

    async def main(ways: Ways) -> None:
        locked, let_go = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with shop.tm.begin() as tx:
                await ways(tx["shop"], "first")
                locked.set()
                await let_go.wait()

        async def second() -> None:
            with shop.after_a_failure():
                async with shop.tm.begin() as tx:
                    await locked.wait()
                    waiting = asyncio.ensure_future(ways(tx["shop"], "again"))
                    await until(lambda: shop.at_work("INSERT INTO orders"))
                    let_go.set()
                    with pytest.raises((DBAPIError, psycopg.Error), match=shop.duplicate):
                        await waiting

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(first(), second())

    def by_core(session: Any, words: str) -> Awaitable[object]:
        return session.asyncio.execute(insert(Order).values(id=1, words=words))  # type: ignore[no-any-return]

    def by_psycopg(session: Any, words: str) -> Awaitable[object]:
        return shop.insert_with_driver(session, 1, words)

    for way in (by_core, by_psycopg) if isinstance(shop, PostgresShop) else (by_core,):
        shop.empty()
        asyncio.run(main(way))
        assert shop.rows() == [(1, "first")]


Ways: TypeAlias = "Callable[[Any, str], Awaitable[object]]"


@pytest.mark.filterwarnings("ignore:<psycopg.ServerCursor:ResourceWarning")
def test_a_cancelled_task_ends_its_statement_and_everything_is_rolled_back(shop: Shop) -> None:
    async def work(sleep: Callable[[Any, str], Awaitable[object]]) -> None:
        async with shop.tm.begin() as tx:
            await insert_other(tx)
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
            await sleep(tx["shop"], shop.sleep)

    async def main() -> None:
        for way, sleep in ways_of(shop).items():
            if way == "thread":  # it can't be cancelled
                continue
            task = asyncio.create_task(work(sleep))
            await until(lambda: shop.at_work(*shop.asleep))
            task.cancel()
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert not shop.at_work(*shop.asleep), way
            assert (shop.rows(), shop.made()) == ([], []), way

    asyncio.run(main())
    gc.collect()  # psycopg warns now: SQLAlchemy does not close the cursor of a stream that is cancelled


@in_loop
async def test_a_timeout_that_the_block_survives_is_not_committed(shop: Shop) -> None:
    """Nobody knows how much of the statement was carried out."""
    with pytest.raises(RolledBack):
        async with shop.tm.begin() as tx:
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await tx["shop"].asyncio.execute(text(shop.sleep))
            await insert_other(tx)
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
    assert 5 < len(made) <= POINTS + 6
    assert POINTS + 5 in made


@in_loop
async def test_waiting_without_await_is_refused(shop: Shop) -> None:
    """SQLAlchemy's asyncio extension says so for every driver."""
    async with shop.tm.begin() as tx:
        with pytest.raises(MissingGreenlet):
            tx["shop"].asyncio.sync_connection.execute(text("SELECT 1"))
        await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="kept"))
    assert shop.rows() == [(1, "kept")]


# --- MariaDB: PyMySQL works in greenlets ----------------------------------------------------------------------------
@in_loop
async def test_a_long_stream_and_much_in_one_statement(mariadb_shop: MariaDBShop) -> None:
    shop = mariadb_shop
    async with shop.tm.begin() as tx:
        connection = tx["shop"].asyncio
        await connection.execute(insert(Order), [{"id": i, "words": "x" * 50} for i in range(3_000)])
        async with connection.stream(select(Order.id).order_by(Order.id)) as rows:
            assert [row.id async for row in rows] == list(range(3_000))
        rows = await connection.orm.stream(select(Order.id).order_by(Order.id))
        assert len(await rows.all()) == 3_000
        # more than any buffer between the two has room for
        assert await connection.scalar(text("SELECT length(:much)"), {"much": "x" * 8_000_000}) == 8_000_000
    assert len(shop.rows()) == 3_000


@in_loop
async def test_the_event_loop_goes_on_while_octets_are_sent_and_read(mariadb_shop: MariaDBShop) -> None:
    """The server is stopped, so that it neither reads nor answers."""
    shop = mariadb_shop
    async with shop.tm.begin() as tx:
        connection = tx["shop"].asyncio
        await connection.execute(insert(Order).values(id=1, words="a"))
        shop.server.freeze()
        try:
            going = asyncio.ensure_future(connection.scalar(text("SELECT length(:much)"), {"much": "x" * 8_000_000}))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not going.done()
        finally:
            shop.server.thaw()
        assert await going == 8_000_000


# --- PostgreSQL: psycopg's own connection ---------------------------------------------------------------------------
@in_loop
async def test_psycopgs_connection_streams_and_copies(postgres_shop: PostgresShop) -> None:
    shop = postgres_shop
    async with shop.tm.begin() as tx:
        connection = tx["shop"].asyncio
        assert isinstance(connection.psycopg, psycopg.AsyncConnection)
        await connection.execute(insert(Order), [{"id": i, "words": "x"} for i in range(100)])
        seen = [row async for row in connection.psycopg.cursor().stream("SELECT id FROM orders ORDER BY id")]
        assert len(seen) == 100
        async with connection.psycopg.cursor().copy("COPY orders (id, words) FROM STDIN") as copy:
            await copy.write_row((100, "copied"))
    assert len(shop.rows()) == 101


def test_without_greenlet_everything_else_works() -> None:
    program = """
import sys
sys.modules["greenlet"] = None
import rm_db
from rm_db.sessions.postgres import PostgresSession
print("imported")
"""
    assert output_of(program) == "imported\n"


# --- SQLite, whose driver can't be awaited --------------------------------------------------------------------------
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(told(i)) FROM n"


def place(ledger: Any, number: int) -> int:
    """Work that waits for itself."""
    return ledger.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number}).rowcount  # type: ignore[no-any-return]


def test_where_sessions_can_not_be_awaited_threads_work(tmp_path: Path) -> None:
    """Who asks for such a session is told so. A thread can't be cancelled with its task: its statement is interrupted,
    and what it did is rolled back."""
    running = threading.Event()

    def told(number: int) -> int:
        running.set()
        return number

    def count(ledger: Any) -> None:
        ledger.connection.driver_connection.create_function("told", 1, told)
        place(ledger, 2)
        ledger.execute(text(FOREVER)).all()

    async def cancelled(manager: TransactionManager) -> None:
        async with manager.begin() as tx:
            await asyncio.to_thread(count, await tx.aenlist("ledger"))

    async def main(manager: TransactionManager) -> list[int]:
        async with manager.begin() as tx:
            ledger = await tx.aenlist("ledger")
            ledger.execute(text("CREATE TABLE orders (id integer PRIMARY KEY)"))
            with pytest.raises(XaMisuse, match=r"sqlite has no asyncio session.*await asyncio.to_thread\(work"):
                _ = ledger.asyncio
            assert await asyncio.to_thread(place, ledger, 1) == 1

        task = asyncio.create_task(cancelled(manager))
        assert await asyncio.to_thread(running.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(LookupError):
            async with manager.begin() as tx:
                await asyncio.to_thread(place, await tx.aenlist("ledger"), 3)
                raise LookupError
        async with manager.begin() as tx:
            return list(tx["ledger"].scalars(text("SELECT id FROM orders")))

    resources = {"ledger": ResourceConfig(f"sqlite:///{tmp_path}/ledger.db", "decider")}
    with TransactionManager("node-1", resources=resources, background=False) as manager:
        assert asyncio.run(main(manager)) == [1]
