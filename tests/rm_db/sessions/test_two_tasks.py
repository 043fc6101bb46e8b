"""These tests run two tasks, or a task and a thread, in one branch. The second one is refused while the first is in a
statement, whichever way each of them uses; it never waits on the event loop, and the first goes on undisturbed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, InvalidRequestError, SAWarning, StatementError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rm_db import take_part
from tm import ProtocolMisuse, ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.postgres import Postgres
    from tm import Transaction

PATIENCE_S = 60
GATE = 4711
WAIT = f"SELECT pg_advisory_xact_lock({GATE})"
REFUSED = (XaMisuse, StatementError, IllegalStateChangeError, InvalidRequestError, SAWarning)
"""SQLAlchemy wraps what is refused when it makes a cursor; the others are its own words for two tasks in a session."""


class Base(DeclarativeBase):
    """The tests' tables."""


class Item(Base):
    """A row."""

    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(sa.String(50))


class Shop:
    """A database in a transaction manager, and a gate: statements wait there until it is opened."""

    def __init__(self, url: str, tm: TransactionManager) -> None:
        self.url = url
        self.tm = tm
        self.engine: AsyncEngine | None = None

    async def with_engine(self) -> AsyncEngine:
        """An engine of the application's that takes part."""
        if self.engine is None:
            self.engine = create_async_engine(sa.make_url(self.url).set(drivername="postgresql+psycopg"))
            take_part(self.engine, self.tm, "shop")
        return self.engine

    def rows(self) -> list[tuple[int, str]]:
        """What is committed."""
        with psycopg.connect(self.url) as connection:
            return connection.execute("SELECT id, name FROM items ORDER BY id").fetchall()

    def empty(self) -> None:
        """Makes it what every transaction begins with."""
        with psycopg.connect(self.url) as connection:
            connection.execute("DELETE FROM items")
            connection.execute("INSERT INTO items VALUES (1, 'one')")

    def waiting(self) -> int:
        """How many stand before the gate."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).fetchone()
        return int(row[0]) if row is not None else 0


@pytest.fixture(params=["two-phase", "decider"])
def shop(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[Shop]:
    """Alone: what is committed tells how it ended."""
    url = postgres.create_database()
    log = None if request.param == "decider" else f"file://{tmp_path}/log"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    with TransactionManager("node-1", log, {"shop": ResourceConfig(url, request.param)}, background=False) as manager:
        yield Shop(url, manager)
        assert manager.recover().clean


class Gate:
    """Closed while the block lasts."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._connection = psycopg.connect(shop.url, autocommit=True)
        self._connection.execute(f"SELECT pg_advisory_lock({GATE})".encode())

    async def until_someone_waits(self) -> None:
        """... before it."""

        def wait() -> None:
            deadline = time.monotonic() + PATIENCE_S
            while not self._shop.waiting():
                assert time.monotonic() < deadline, "nobody came to the gate"

        await asyncio.to_thread(wait)

    def open(self) -> None:
        """For good."""
        self._connection.close()


@dataclass(frozen=True)
class Here:
    """A transaction that two work in."""

    shop: Shop
    tx: Transaction


# --- the first one: waits at the gate, and writes row 2 -----------------------------------------------------------
async def _first_core(here: Here) -> None:
    await here.tx["shop"].asyncio.execute(sa.text(WAIT))
    await here.tx["shop"].asyncio.execute(sa.insert(Item).values(id=2, name="first"))


async def _first_driver_sql(here: Here) -> None:
    await here.tx["shop"].asyncio.exec_driver_sql(WAIT)
    await here.tx["shop"].asyncio.exec_driver_sql("INSERT INTO items VALUES (2, 'first')")


async def _first_stream(here: Here) -> None:
    async with here.tx["shop"].asyncio.stream(sa.text(WAIT)) as rows:
        assert len([row async for row in rows]) == 1
    await here.tx["shop"].asyncio.execute(sa.insert(Item).values(id=2, name="first"))


async def _first_psycopg(here: Here) -> None:
    await here.tx["shop"].asyncio.psycopg.execute(WAIT)
    await here.tx["shop"].asyncio.psycopg.execute("INSERT INTO items VALUES (2, 'first')")


async def _first_psycopg_in_a_savepoint(here: Here) -> None:
    async with here.tx["shop"].asyncio.psycopg.transaction():
        await here.tx["shop"].asyncio.psycopg.execute(WAIT)
        await here.tx["shop"].asyncio.psycopg.execute("INSERT INTO items VALUES (2, 'first')")


async def _first_orm(here: Here) -> None:
    await here.tx["shop"].asyncio.orm.execute(sa.text(WAIT))
    here.tx["shop"].asyncio.orm.add(Item(id=2, name="first"))


async def _first_flush(here: Here) -> None:
    """Several statements, of which one in the middle waits."""
    orm = here.tx["shop"].asyncio.orm
    one = await orm.get_one(Item, 1)
    await orm.execute(
        sa.text(
            f"CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
            f"pg_advisory_xact_lock({GATE}); RETURN NEW; END $$"
        )
    )
    await orm.execute(sa.text("CREATE TRIGGER held BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION held()"))
    orm.add(Item(id=2, name="first"))
    one.name = "one"
    await orm.flush()
    await orm.execute(sa.text("DROP TRIGGER held ON items"))
    await orm.execute(sa.text("DROP FUNCTION held"))


async def _first_run_sync(here: Here) -> None:
    def work(connection: sa.Connection) -> None:
        connection.execute(sa.text(WAIT))
        connection.execute(sa.insert(Item).values(id=2, name="first"))

    await here.tx["shop"].asyncio.run_sync(work)


async def _first_engine(here: Here) -> None:
    async with (await here.shop.with_engine()).begin() as connection:
        await connection.execute(sa.text(WAIT))
        await connection.execute(sa.insert(Item).values(id=2, name="first"))


async def _first_thread(here: Here) -> None:
    session = here.tx["shop"]

    def work() -> None:
        session.execute(sa.text(WAIT))
        session.execute(sa.insert(Item).values(id=2, name="first"))

    await asyncio.to_thread(work)


FIRST: dict[str, Callable[[Here], Awaitable[None]]] = {
    "core": _first_core,
    "driver sql": _first_driver_sql,
    "stream": _first_stream,
    "psycopg": _first_psycopg,
    "psycopg in a savepoint": _first_psycopg_in_a_savepoint,
    "orm": _first_orm,
    "orm flush": _first_flush,
    "run_sync": _first_run_sync,
    "engine": _first_engine,
    "thread": _first_thread,
}


# --- the second one ---------------------------------------------------------------------------------------------
async def _second_savepoint(here: Here) -> None:
    async with here.tx["shop"].asyncio.begin_nested():
        raise AssertionError("not reached")


async def _second_psycopg_savepoint(here: Here) -> None:
    async with here.tx["shop"].asyncio.psycopg.transaction():
        raise AssertionError("not reached")


async def _second_psycopg_stream(here: Here) -> None:
    async for _ in here.tx["shop"].asyncio.psycopg.cursor().stream("SELECT 1"):
        raise AssertionError("not reached")


async def _second_pipeline(here: Here) -> None:
    async with here.tx["shop"].asyncio.psycopg.pipeline():
        await here.tx["shop"].asyncio.psycopg.execute("SELECT 1")


async def _second_copy(here: Here) -> None:
    async with here.tx["shop"].asyncio.psycopg.cursor().copy("COPY items FROM STDIN"):
        raise AssertionError("not reached")


async def _second_stream(here: Here) -> None:
    async with here.tx["shop"].asyncio.stream(sa.text("SELECT 1")):
        raise AssertionError("not reached")


async def _second_flush(here: Here) -> None:
    orm = here.tx["shop"].asyncio.orm
    item = Item(id=3, name="second")
    orm.add(item)
    try:
        await orm.flush()
    finally:
        orm.expunge(item)


async def _second_autoflush(here: Here) -> None:
    orm = here.tx["shop"].asyncio.orm
    item = Item(id=3, name="second")
    orm.add(item)
    try:
        await orm.scalars(sa.select(Item))
    finally:
        orm.expunge(item)


async def _second_engine(here: Here) -> None:
    async with (await here.shop.with_engine()).connect() as connection:
        await connection.execute(sa.text("SELECT 1"))


async def _second_sync(here: Here) -> None:
    """Without await, on the thread of the event loop."""
    here.tx["shop"].execute(sa.text("SELECT 1"))


async def _second_sync_psycopg(here: Here) -> None:
    here.tx["shop"].psycopg.execute("SELECT 1")


async def _second_sync_orm(here: Here) -> None:
    here.tx["shop"].orm.get(Item, 1)


async def _second_sync_flush(here: Here) -> None:
    orm = here.tx["shop"].orm
    item = Item(id=3, name="second")
    orm.add(item)
    try:
        orm.flush()
    finally:
        orm.expunge(item)


SECOND: dict[str, Callable[[Here], Awaitable[Any]]] = {
    "core": lambda here: here.tx["shop"].asyncio.execute(sa.text("SELECT 1")),
    "scalar": lambda here: here.tx["shop"].asyncio.scalar(sa.text("SELECT 1")),
    "driver sql": lambda here: here.tx["shop"].asyncio.exec_driver_sql("SELECT 1"),
    "stream": _second_stream,
    "run_sync": lambda here: here.tx["shop"].asyncio.run_sync(lambda c: c.execute(sa.text("SELECT 1"))),
    "savepoint": _second_savepoint,
    "psycopg": lambda here: here.tx["shop"].asyncio.psycopg.execute("SELECT 1"),
    "psycopg many": lambda here: here.tx["shop"].asyncio.psycopg.cursor().executemany("SELECT %s", [(1,), (2,)]),
    "psycopg savepoint": _second_psycopg_savepoint,
    "psycopg stream": _second_psycopg_stream,
    "psycopg pipeline": _second_pipeline,
    "psycopg copy": _second_copy,
    "orm": lambda here: here.tx["shop"].asyncio.orm.execute(sa.text("SELECT 1")),
    "orm get": lambda here: here.tx["shop"].asyncio.orm.get(Item, 1, populate_existing=True),
    "orm savepoint": lambda here: here.tx["shop"].asyncio.orm.begin_nested().start(),
    "orm flush": _second_flush,
    "orm autoflush": _second_autoflush,
    "orm run_sync": lambda here: here.tx["shop"].asyncio.orm.run_sync(lambda s: s.get(Item, 7)),
    "engine": _second_engine,
    "without await": _second_sync,
    "psycopg without await": _second_sync_psycopg,
    "orm without await": _second_sync_orm,
    "orm flush without await": _second_sync_flush,
}


def test_the_second_one_is_refused_and_the_first_goes_on(shop: Shop) -> None:
    """The whole matrix. A loop that stands still for good is ended by the test's own timeout."""

    async def both(way: str) -> None:
        gate = Gate(shop)
        try:
            async with shop.tm.begin() as tx:
                await tx.aenlist("shop")
                going = asyncio.ensure_future(FIRST[way](Here(shop, tx)))
                await gate.until_someone_waits()
                for other, second in SECOND.items():
                    with pytest.raises(REFUSED) as refused:
                        await second(Here(shop, tx))
                        raise AssertionError(f"{other} behind {way} was not refused")
                    assert not isinstance(refused.value, DBAPIError), f"{other} behind {way} came to the server"
                assert not going.done()
                gate.open()
                await going
        finally:
            gate.open()
        assert shop.rows() == [(1, "one"), (2, "first")], way

    async def main() -> None:
        for way in FIRST:
            shop.empty()
            async with asyncio.timeout(PATIENCE_S):
                await both(way)
        if shop.engine is not None:
            await shop.engine.dispose()

    asyncio.run(main())


@pytest.mark.parametrize("way", ["core", "psycopg", "orm", "engine"])
def test_a_savepoint_whose_end_was_refused_rolls_everything_back(shop: Shop, way: str) -> None:
    """The second task's work was to be taken back, and could not be: it must not be committed."""

    async def take_back(tx: Transaction, ready: asyncio.Event, go_on: asyncio.Event) -> None:
        connection = tx["shop"].asyncio
        blocks: dict[str, Callable[[], Any]] = {
            "core": connection.begin_nested,
            "psycopg": connection.psycopg.transaction,
            "orm": connection.orm.begin_nested,
            "engine": (await shop.with_engine()).connect,
        }
        with suppress(LookupError, *REFUSED):
            async with blocks[way]() as block:
                if way == "orm":
                    await connection.orm.execute(sa.text("INSERT INTO items VALUES (3, 'taken back')"))
                elif way == "engine":
                    await block.execute(sa.text("INSERT INTO items VALUES (3, 'taken back')"))
                else:
                    await connection.execute(sa.text("INSERT INTO items VALUES (3, 'taken back')"))
                ready.set()
                await go_on.wait()
                raise LookupError

    async def main() -> None:
        gate = Gate(shop)
        ready, go_on = asyncio.Event(), asyncio.Event()
        try:
            with pytest.raises(RolledBack, match="the end of a savepoint was refused"):
                async with asyncio.timeout(PATIENCE_S), shop.tm.begin() as tx:
                    await tx.aenlist("shop")
                    taking_back = asyncio.create_task(take_back(tx, ready, go_on))
                    await ready.wait()
                    going = asyncio.create_task(_first_psycopg(Here(shop, tx)))
                    await gate.until_someone_waits()
                    go_on.set()
                    await taking_back
                    gate.open()
                    await going
        finally:
            gate.open()
        if shop.engine is not None:
            await shop.engine.dispose()

    shop.empty()
    asyncio.run(main())
    assert shop.rows() == [(1, "one")]


def test_a_block_that_ends_while_a_task_is_in_a_statement_rolls_back(shop: Shop) -> None:
    """It does not wait for that task, also where something is still to be flushed."""

    async def ended(*, pending: bool) -> None:
        gate = Gate(shop)
        try:
            with pytest.raises(RolledBack, match="in a statement"):
                async with shop.tm.begin() as tx:
                    await tx.aenlist("shop")
                    if pending:
                        tx["shop"].asyncio.orm.add(Item(id=3, name="pending"))
                    going = asyncio.create_task(_first_psycopg(Here(shop, tx)))
                    await gate.until_someone_waits()
            with suppress(psycopg.Error, XaMisuse):
                await going
        finally:
            gate.open()

    async def main() -> None:
        for pending in (False, True):
            async with asyncio.timeout(PATIENCE_S):
                await ended(pending=pending)

    shop.empty()
    asyncio.run(main())
    assert shop.rows() == [(1, "one")]


def test_the_timeout_of_a_transaction_frees_a_task_that_hangs(shop: Shop, tmp_path: Path) -> None:
    """... whatever a second one tried meanwhile."""
    resources = {"shop": ResourceConfig(shop.url)}

    async def main(manager: TransactionManager) -> None:
        gate = Gate(shop)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(RolledBack, match="longer than its"):
                    async with manager.begin(timeout_s=1.0) as tx:
                        await tx.aenlist("shop")
                        going = asyncio.create_task(_first_core(Here(shop, tx)))
                        await gate.until_someone_waits()
                        with pytest.raises(XaMisuse):
                            await tx["shop"].asyncio.execute(sa.text("SELECT 1"))
                        with suppress(DBAPIError, XaMisuse):
                            await going
        finally:
            gate.open()

    with TransactionManager("node-2", f"file://{tmp_path}/other", resources) as manager:
        asyncio.run(main(manager))


def test_of_two_tasks_that_enlist_at_once_one_is_refused(shop: Shop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            answers = await asyncio.gather(*(tx.aenlist("shop") for _ in range(4)), return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, BaseException)]
            assert all(isinstance(answer, ProtocolMisuse) for answer in refused)
            assert len(refused) < len(answers)
            await tx["shop"].asyncio.execute(sa.insert(Item).values(id=2, name="first"))

    shop.empty()
    asyncio.run(main())
    assert shop.rows() == [(1, "one"), (2, "first")]


def test_who_has_not_finished_a_stream_is_told_so(shop: Shop) -> None:
    """psycopg's own lock would wait for its own task, or thread, for good."""

    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = (await tx.aenlist("shop")).asyncio.psycopg
            async for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
                with pytest.raises(XaMisuse, match="has not been finished"):
                    await connection.execute("SELECT 1")
            await connection.execute("INSERT INTO items VALUES (2, 'first')")

    shop.empty()
    asyncio.run(main())
    assert shop.rows() == [(1, "one"), (2, "first")]
    with shop.tm.begin() as tx:
        connection = tx["shop"].psycopg
        for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
            with pytest.raises(XaMisuse, match="has not been finished"):
                connection.execute("SELECT 1")
        connection.execute("INSERT INTO items VALUES (3, 'second')")
    assert shop.rows() == [(1, "one"), (2, "first"), (3, "second")]


def test_a_thread_waits_for_a_thread_in_the_middle_of_a_flush(shop: Shop) -> None:
    """Threads wait for each other, and a flush is one piece of work."""
    in_flush = threading.Event()
    began = threading.Event()

    def flushing(*_: object) -> None:
        in_flush.set()
        assert began.wait(PATIENCE_S)

    def second(connection: Any) -> None:
        assert in_flush.wait(PATIENCE_S)
        began.set()
        connection.execute(sa.text("UPDATE items SET name = name || '!'"))

    shop.empty()
    with shop.tm.begin() as tx:
        sa.event.listen(tx["shop"].orm, "before_flush", flushing)
        thread = threading.Thread(target=second, args=(tx["shop"],))
        thread.start()
        tx["shop"].orm.add_all([Item(id=2, name="two"), Item(id=3, name="three")])
        tx["shop"].orm.flush()
        thread.join()
    assert shop.rows() == [(1, "one!"), (2, "two!"), (3, "three!")]


def test_another_databases_statement_is_not_waited_for_on_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "items.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    inside, go_on = threading.Event(), threading.Event()

    def held(number: int) -> int:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return number

    def first(connection: Any) -> None:
        connection.connection.driver_connection.create_function("held", 1, held)
        connection.execute(sa.text("INSERT INTO items VALUES (held(2), 'first')"))

    async def main(manager: TransactionManager) -> None:
        async with manager.begin() as tx:
            connection = await tx.aenlist("shop")
            going = asyncio.create_task(asyncio.to_thread(first, connection))
            await asyncio.to_thread(inside.wait, PATIENCE_S)
            for second in (
                lambda: connection.execute(sa.text("SELECT 1")),
                lambda: connection.exec_driver_sql("SELECT 1"),
                lambda: connection.orm.get(Item, 1),
                connection.begin_nested,
                connection.orm.begin_nested,
                connection.orm.flush,
            ):
                with pytest.raises(XaMisuse, match="another thread or task is in a statement"):
                    second()
            go_on.set()
            await going

    resources = {"shop": ResourceConfig(f"sqlite:///{path}", "decider")}
    with TransactionManager("node-1", resources=resources, background=False) as manager:
        asyncio.run(main(manager))
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT * FROM items").fetchall() == [(2, "first")]
