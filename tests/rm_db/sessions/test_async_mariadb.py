"""These tests cover what an asyncio application gets inside a transaction over MariaDB in two phases:
AsyncConnection and AsyncSession, with PyMySQL in greenlets below them.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import String, insert, make_url, select, text
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, InvalidRequestError, MissingGreenlet, StatementError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rm_db.sessions.asyncio_connection import BranchAsyncConnection
from tm import ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tm import Transaction
    from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60
POINTS = 100
"""At so many moments a task is cancelled."""
FOREVER = text("SELECT SLEEP(600)")
REFUSED = (XaMisuse, StatementError, IllegalStateChangeError, InvalidRequestError)
"""SQLAlchemy wraps what is refused when it makes a cursor; the others are its own words for two tasks in a session."""


class Base(DeclarativeBase):
    """The tests' tables."""


class Order(Base):
    """A row."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(50))


class Shop:
    """A database in a transaction manager."""

    def __init__(self, server: MariaDB, urls: dict[str, str], tm: TransactionManager) -> None:
        self.server = server
        self.name = str(make_url(urls["shop"]).database)
        self.other = str(make_url(urls["other"]).database)
        self.tm = tm

    def rows(self) -> list[tuple[int, str]]:
        """What is committed."""
        return self.server.ask(f"SELECT id, words FROM {self.name}.orders ORDER BY id")  # noqa: S608 — a name of ours

    def made(self) -> list[int]:
        """What is committed in the other database."""
        rows = self.server.ask(f"SELECT id FROM {self.other}.made ORDER BY id")  # noqa: S608 — a name of ours
        return [number for (number,) in rows]

    def at_work(self, what: str) -> bool:
        """Whether a session carries out such a statement."""
        at_work = self.server.ask("SELECT info FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
        return any(str(info).startswith(what) for (info,) in at_work)

    def transactions(self) -> list[Any]:
        """What InnoDB has under way. Its table is made anew only if nobody has read it for a tenth of a second."""
        ask = "SELECT trx_mysql_thread_id, trx_query FROM information_schema.innodb_trx"
        if self.server.ask(ask):
            time.sleep(0.2)
        return self.server.ask(ask)


@pytest.fixture
def shop(mariadb: MariaDB, tmp_path: Path) -> Iterator[Shop]:
    """Two resources, so that a transaction goes the whole way."""
    urls = {"shop": mariadb.create_database("mariadb"), "other": mariadb.create_database("mysql")}
    with TransactionManager(
        "node-1", f"file://{tmp_path}/log", {name: ResourceConfig(url) for name, url in urls.items()}, background=False
    ) as manager:
        shop = Shop(mariadb, urls, manager)
        mariadb.admin(f"CREATE TABLE {shop.name}.orders (id integer PRIMARY KEY, words varchar(50)) ENGINE = InnoDB")
        mariadb.admin(f"CREATE TABLE {shop.other}.made (id integer PRIMARY KEY) ENGINE = InnoDB")
        yield shop
        assert manager.recover().clean
        assert mariadb.ask("XA RECOVER") == []
        assert shop.transactions() == []


async def _other(tx: Transaction, number: int = 1) -> None:
    await tx["other"].asyncio.execute(text("INSERT INTO made VALUES (:id)"), {"id": number})


async def _until(happens: Callable[[], bool]) -> None:
    def wait() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happens():
            assert time.monotonic() < deadline

    await asyncio.to_thread(wait)


def test_connection_session_and_what_threads_use_are_one_transaction(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            session = await tx.aenlist("shop")
            connection = session.asyncio
            assert isinstance(connection, BranchAsyncConnection)
            assert isinstance(connection.orm, AsyncSession)
            await connection.execute(insert(Order).values(id=1, words="core"))
            session.pymysql.cursor().execute("INSERT INTO orders VALUES (%s, %s)", (2, "pymysql"))
            connection.orm.add(Order(id=3, words="orm"))
            found = await connection.orm.scalars(select(Order.words).order_by(Order.id))
            assert found.all() == ["core", "pymysql", "orm"]
            assert shop.rows() == []
            await _other(tx)

    asyncio.run(main())
    assert shop.rows() == [(1, "core"), (2, "pymysql"), (3, "orm")]
    assert shop.made() == [1]


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
                await _other(tx)
                raise LookupError

    asyncio.run(main())
    assert shop.rows() == []
    assert shop.made() == []


def test_a_statement_that_fails_is_undone_alone(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            await connection.execute(insert(Order).values(id=1, words="a"))
            with pytest.raises(DBAPIError, match="1062"):
                await connection.execute(insert(Order).values(id=1, words="b"))
            await connection.execute(insert(Order).values(id=2, words="c"))

    asyncio.run(main())
    assert shop.rows() == [(1, "a"), (2, "c")]


def test_a_savepoint_a_stream_and_much_in_one_statement(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            with pytest.raises(LookupError):
                async with connection.begin_nested():
                    await connection.execute(insert(Order).values(id=1, words="taken back"))
                    raise LookupError
            await connection.execute(insert(Order), [{"id": i, "words": "x" * 50} for i in range(20_000)])
            async with connection.stream(select(Order.id).order_by(Order.id)) as rows:
                assert [row.id async for row in rows] == list(range(20_000))
            rows = await connection.orm.stream(select(Order.id).order_by(Order.id))
            assert len(await rows.all()) == 20_000
            # more than any buffer between the two has room for
            assert await connection.scalar(text("SELECT length(:much)"), {"much": "x" * 8_000_000}) == 8_000_000

    asyncio.run(main())
    assert len(shop.rows()) == 20_000


def test_the_event_loop_goes_on_while_octets_are_sent_and_read(shop: Shop) -> None:
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


REFUSED_WAYS: list[Callable[[Any], Awaitable[Any]]] = [
    lambda shop: shop.asyncio.commit(),
    lambda shop: shop.asyncio.rollback(),
    lambda shop: shop.asyncio.close(),
    lambda shop: shop.asyncio.begin().start(),
    lambda shop: shop.asyncio.execution_options(isolation_level="AUTOCOMMIT"),
    lambda shop: shop.asyncio.execute(text("COMMIT")),
    lambda shop: shop.asyncio.execute(text("/*!50000 COMMIT */")),
    lambda shop: shop.asyncio.execute(text("CREATE TABLE t (a int)")),
    lambda shop: shop.asyncio.execute(text("SET autocommit = 1")),
    lambda shop: shop.asyncio.execute(text("LOCK TABLES orders READ")),
    lambda shop: shop.asyncio.orm.commit(),
    lambda shop: shop.asyncio.orm.rollback(),
    lambda shop: shop.asyncio.orm.close(),
]


def test_the_end_of_the_transaction_is_the_managers(shop: Shop) -> None:
    async def main() -> None:
        for number, attempt in enumerate(REFUSED_WAYS):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="kept"))
                with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                    await attempt(tx["shop"])
                await tx["shop"].asyncio.execute(text("SELECT 1"))

    asyncio.run(main())
    assert len(shop.rows()) == len(REFUSED_WAYS)


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
            async with shop.tm.begin() as tx:
                await locked.wait()
                waiting = asyncio.ensure_future(tx["shop"].asyncio.execute(insert(Order).values(id=1, words="again")))
                await _until(lambda: shop.at_work("INSERT INTO orders"))
                let_go.set()
                with pytest.raises(DBAPIError, match="1062"):
                    await waiting

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(first(), second())

    asyncio.run(main())
    assert shop.rows() == [(1, "first")]


async def _sleep_in_the_orm(connection: Any) -> None:
    await connection.orm.execute(FOREVER)


async def _sleep_in_a_stream(connection: Any) -> None:
    async with connection.stream(text("SELECT SLEEP(600) FROM seq_1_to_10")) as rows:
        async for _ in rows:
            pass


async def _sleep_in_a_savepoint(connection: Any) -> None:
    async with connection.begin_nested():
        await connection.execute(FOREVER)


SLEEPING: dict[str, Callable[[Any], Awaitable[object]]] = {
    "core": lambda connection: connection.execute(FOREVER),
    "orm": _sleep_in_the_orm,
    "stream": _sleep_in_a_stream,
    "savepoint": _sleep_in_a_savepoint,
    "run_sync": lambda connection: connection.run_sync(lambda c: c.execute(FOREVER)),
}


@pytest.mark.parametrize("way", SLEEPING)
def test_a_cancelled_task_ends_its_statement_and_everything_is_rolled_back(shop: Shop, way: str) -> None:
    async def work() -> None:
        async with shop.tm.begin() as tx:
            await _other(tx)
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
            await SLEEPING[way](tx["shop"].asyncio)

    async def main() -> None:
        task = asyncio.create_task(work())
        await _until(lambda: shop.at_work("SELECT SLEEP"))
        task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not shop.at_work("SELECT SLEEP")

    asyncio.run(main())
    assert shop.rows() == []
    assert shop.made() == []


def test_a_timeout_that_the_block_survives_is_not_committed(shop: Shop) -> None:
    """Nobody knows how much of the statement was carried out."""

    async def main() -> None:
        with pytest.raises(RolledBack, match="interrupted"):
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="never"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await tx["shop"].asyncio.execute(FOREVER)
                await _other(tx)

    asyncio.run(main())
    assert shop.rows() == []
    assert shop.made() == []


def test_cancelled_at_any_point_it_is_committed_everywhere_or_nowhere(shop: Shop) -> None:
    async def work(number: int) -> None:
        async with shop.tm.begin() as tx:
            await tx["shop"].asyncio.execute(insert(Order).values(id=number, words="x"))
            tx["shop"].asyncio.orm.add(Order(id=number + 10_000, words="y"))
            await _other(tx, number)

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


def test_a_second_task_is_refused_and_the_first_goes_on(shop: Shop) -> None:
    async def first(tx: Transaction) -> None:
        await tx["shop"].asyncio.execute(text("SELECT GET_LOCK('gate', 600)"))
        await tx["shop"].asyncio.execute(insert(Order).values(id=2, words="first"))

    async def main() -> None:
        with shop.server.connect() as gate:
            gate.cursor().execute("SELECT GET_LOCK('gate', 0)")
            async with shop.tm.begin() as tx:
                await tx.aenlist("shop")
                going = asyncio.create_task(first(tx))
                await _until(lambda: shop.at_work("SELECT GET_LOCK"))
                for way, second in SECOND.items():
                    with pytest.raises(REFUSED) as refused:
                        await second(tx)
                    assert not isinstance(refused.value, DBAPIError), f"{way} came to the server"
                assert not going.done()
                gate.cursor().execute("SELECT RELEASE_LOCK('gate')")
                await going

    asyncio.run(main())
    assert shop.rows() == [(2, "first")]


def test_waiting_without_await_is_refused(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            with pytest.raises(MissingGreenlet):
                tx["shop"].asyncio.sync_connection.execute(text("SELECT 1"))
            await tx["shop"].asyncio.execute(insert(Order).values(id=1, words="kept"))

    asyncio.run(main())
    assert shop.rows() == [(1, "kept")]
