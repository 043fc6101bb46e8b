"""These tests cover what an asyncio application gets inside a transaction (AsyncConnection, AsyncSession and
psycopg's), over PostgreSQL in two phases and deciding.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import String, insert, select, text
from sqlalchemy.exc import DBAPIError, MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tm import ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.postgres import Postgres
    from tm import Transaction

PATIENCE_S = 60


class Base(DeclarativeBase):
    """The tests' tables."""


class Order(Base):
    """A row."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(50))


class Shop:
    """A database in a transaction manager."""

    def __init__(self, url: str, tm: TransactionManager) -> None:
        self.url = url
        self.tm = tm

    def rows(self) -> list[tuple[int, str]]:
        """What is committed."""
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT id, words FROM orders ORDER BY id").fetchall()

    def left(self) -> list[Any]:
        """What should not be left: prepared transactions, and backends in one."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() UNION ALL"
                " SELECT query FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND state LIKE '%transaction%'"
            ).fetchall()


@pytest.fixture(params=["two-phase", "decider"])
def shop(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Any) -> Iterator[Shop]:
    """Two resources, so that a transaction goes the whole way."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, words text)")
    resources = {
        "shop": ResourceConfig(url, request.param),
        "other": ResourceConfig(postgres.create_database()),
    }
    log = None if request.param == "decider" else f"file://{tmp_path}/log"
    with TransactionManager("node-1", log, resources, background=False) as manager:
        shop = Shop(url, manager)
        yield shop
        assert shop.left() == []


async def _other(tx: Transaction) -> None:
    await tx["other"].asyncio.execute(text("CREATE TABLE IF NOT EXISTS made (a int)"))


def test_connection_session_and_psycopg_are_one_transaction(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = (await tx.aenlist("shop")).asyncio
            kinds = [connection, connection.orm, connection.psycopg]
            for one, kind in zip(kinds, [AsyncConnection, AsyncSession, psycopg.AsyncConnection], strict=True):
                assert isinstance(one, kind)
            await connection.execute(insert(Order).values(id=1, words="core"))
            await connection.psycopg.execute("INSERT INTO orders VALUES (%s, %s)", (2, "psycopg"))
            connection.orm.add(Order(id=3, words="orm"))
            found = await connection.orm.scalars(select(Order.words).order_by(Order.id))
            assert found.all() == ["core", "psycopg", "orm"]
            assert shop.rows() == []
            await _other(tx)

    asyncio.run(main())
    assert shop.rows() == [(1, "core"), (2, "psycopg"), (3, "orm")]


def test_what_the_orm_holds_back_is_flushed_at_the_end(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            tx["shop"].asyncio.orm.add(Order(id=1, words="late"))
            await _other(tx)

    asyncio.run(main())
    assert shop.rows() == [(1, "late")]


def test_a_block_that_raises_writes_nothing(shop: Shop) -> None:
    async def main() -> None:
        with pytest.raises(LookupError):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="gone"))
                await tx["shop"].asyncio.psycopg.execute("INSERT INTO orders VALUES (2, 'gone')")
                raise LookupError

    asyncio.run(main())
    assert shop.rows() == []


def test_a_statement_that_fails_says_no(shop: Shop) -> None:
    async def main() -> None:
        with pytest.raises(RolledBack, match="23505"):
            async with shop.tm.begin() as tx:
                connection = tx["shop"].asyncio
                await connection.execute(insert(Order).values(id=1, words="a"))
                with pytest.raises(DBAPIError):
                    await connection.execute(insert(Order).values(id=1, words="b"))

    asyncio.run(main())
    assert shop.rows() == []


def test_a_savepoint_and_a_stream(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            with pytest.raises(DBAPIError):
                async with connection.begin_nested():
                    await connection.execute(text("SELECT 1/0"))
            await connection.execute(insert(Order), [{"id": i, "words": "x"} for i in range(100)])
            async with connection.stream(select(Order.id).order_by(Order.id)) as rows:
                assert [row.id async for row in rows] == list(range(100))
            seen = [row async for row in connection.psycopg.cursor().stream("SELECT id FROM orders ORDER BY id")]
            assert len(seen) == 100
            async with connection.psycopg.cursor().copy("COPY orders FROM STDIN") as copy:
                await copy.write_row((100, "copied"))

    asyncio.run(main())
    assert len(shop.rows()) == 101


REFUSED: list[Callable[[Any], Awaitable[Any]]] = [
    lambda shop: shop.asyncio.commit(),
    lambda shop: shop.asyncio.rollback(),
    lambda shop: shop.asyncio.close(),
    lambda shop: shop.asyncio.begin().start(),
    lambda shop: shop.asyncio.execution_options(isolation_level="AUTOCOMMIT"),
    lambda shop: shop.asyncio.execute(text("COMMIT")),
    lambda shop: shop.asyncio.orm.commit(),
    lambda shop: shop.asyncio.orm.rollback(),
    lambda shop: shop.asyncio.orm.close(),
    lambda shop: shop.asyncio.psycopg.commit(),
    lambda shop: shop.asyncio.psycopg.rollback(),
    lambda shop: shop.asyncio.psycopg.close(),
    lambda shop: shop.asyncio.psycopg.set_autocommit(True),
    lambda shop: shop.asyncio.psycopg.execute("ROLLBACK"),
    lambda shop: shop.asyncio.psycopg.tpc_begin("x"),
    lambda shop: shop.asyncio.psycopg.tpc_prepare(),
    lambda shop: shop.asyncio.psycopg.tpc_commit(),
    lambda shop: shop.asyncio.psycopg.tpc_rollback(),
    lambda shop: shop.asyncio.psycopg.__aenter__(),
]


def test_the_end_of_the_transaction_is_the_managers(shop: Shop) -> None:
    async def main() -> None:
        for number, attempt in enumerate(REFUSED):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="kept"))
                with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                    await attempt(tx["shop"])
                await tx["shop"].asyncio.psycopg.execute("SELECT 1")

    asyncio.run(main())
    assert len(shop.rows()) == len(REFUSED)


def test_a_session_that_is_over_is_refused(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            view = connection.psycopg
            await connection.execute(text("SELECT 1"))
        with pytest.raises(XaMisuse, match="this session is over"):
            await connection.execute(text("SELECT 1"))
        with pytest.raises(XaMisuse, match="this session is over"):
            await view.execute("SELECT 1")

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_statement_waits(shop: Shop) -> None:
    """Two transactions in one thread: the one waits for a lock of the other's, which only the loop can free."""

    async def main() -> None:
        locked = asyncio.Event()
        let_go = asyncio.Event()

        async def first() -> None:
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="first"))
                locked.set()
                await let_go.wait()

        async def second(way: str) -> None:
            with pytest.raises(RolledBack):
                async with shop.tm.begin() as tx:
                    await locked.wait()
                    waiting = asyncio.create_task(_insert_again(tx["shop"], way))
                    await asyncio.to_thread(_until, _someone_waits, shop.url)
                    let_go.set()
                    await waiting

        for way in ("core", "psycopg"):
            locked.clear()
            let_go.clear()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(first(), second(way))
            with psycopg.connect(shop.url) as connection:
                connection.execute("DELETE FROM orders")

    asyncio.run(main())


async def _insert_again(shop: Any, way: str) -> None:
    with pytest.raises((DBAPIError, psycopg.errors.UniqueViolation)):
        if way == "core":
            await shop.asyncio.execute(insert(Order).values(id=1, words="again"))
        else:
            await shop.asyncio.psycopg.execute("INSERT INTO orders VALUES (1, 'again')")


def _until(happens: Callable[[str], bool], url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happens(url):
        assert time.monotonic() < deadline


def _someone_waits(url: str) -> bool:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()
    return bool(rows)


@pytest.mark.parametrize("way", ["core", "psycopg"])
def test_a_cancelled_task_cancels_its_statement(shop: Shop, way: str) -> None:
    async def work() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order).values(id=1, words="never"))
            if way == "core":
                await connection.execute(text("SELECT pg_sleep(600)"))
            else:
                await connection.psycopg.execute("SELECT pg_sleep(600)")

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.to_thread(_until, _someone_sleeps, shop.url)
        task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not _someone_sleeps(shop.url)

    asyncio.run(main())
    assert shop.rows() == []


def _someone_sleeps(url: str) -> bool:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%'"
        ).fetchall()
    return bool(rows)


def test_two_tasks_in_one_session_are_refused(shop: Shop) -> None:
    async def main() -> None:
        with pytest.raises(RolledBack):
            async with shop.tm.begin() as tx:
                connection = tx["shop"].asyncio
                sleeping = asyncio.create_task(connection.execute(text("SELECT pg_sleep(600)")))
                await asyncio.to_thread(_until, _someone_sleeps, shop.url)
                with pytest.raises(XaMisuse, match="another thread or task is in a statement"):
                    await connection.psycopg.execute("SELECT 1")
                sleeping.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sleeping

    asyncio.run(main())


def test_waiting_without_await_is_refused(shop: Shop) -> None:
    """SQLAlchemy's asyncio extension says so for every driver."""

    async def main() -> None:
        async with shop.tm.begin() as tx:
            with pytest.raises(MissingGreenlet):
                tx["shop"].asyncio.sync_connection.execute(text("SELECT 1"))

    asyncio.run(main())


def test_without_greenlet_everything_else_works() -> None:
    program = """
import sys
sys.modules["greenlet"] = None
import rm_db
from rm_db.sessions.postgres import PostgresSession
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "imported\n", done.stderr
