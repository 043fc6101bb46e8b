"""These tests run two tasks, or a task and a thread, in one branch. The second one is refused while the first is in a
statement, whichever way each of them uses; it never waits on the event loop, and the first goes on undisturbed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IllegalStateChangeError, InvalidRequestError, SAWarning, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rm_db import take_part
from tests.event_loop import in_loop
from tests.rm_db.sessions.shops import PATIENCE_S, WAYS, WAYS_OF_PSYCOPG, Gate, Order, PostgresShop, Shop, ways_of
from tm import ProtocolMisuse, ResourceConfig, RolledBack, Transaction, TransactionManager
from xa import XaMisuse

REFUSED = (XaMisuse, StatementError, IllegalStateChangeError, InvalidRequestError, SAWarning)
"""SQLAlchemy wraps what is refused when it makes a cursor; the others are its own words for two tasks in a session."""
FIRST_ROW = "INSERT INTO orders (id, words) VALUES (2, 'first')"


@dataclass(frozen=True)
class Here:
    """A transaction that two work in."""

    shop: Shop
    tx: Transaction

    def engine(self) -> AsyncEngine:
        """An engine of the application's that takes part."""
        engine = create_async_engine(self.shop.url)
        take_part(engine, self.shop.tm, "shop")
        return engine


@pytest.fixture
def shop(any_shop: Shop) -> Shop:
    """What is committed tells how it ended."""
    begin_with(any_shop)
    return any_shop


@pytest.fixture
def in_postgres(postgres_shop: PostgresShop) -> PostgresShop:
    """The same, in PostgreSQL."""
    begin_with(postgres_shop)
    return postgres_shop


def begin_with(shop: Shop) -> None:
    """The row that every transaction meets."""
    shop.empty()
    with shop.plain.begin() as connection:
        connection.execute(sa.insert(Order).values(id=1, words="one"))


# --- the first one: waits at the gate, and writes row 2 -----------------------------------------------------------
def first(way: Callable[[Any, str], Awaitable[object]]) -> Callable[[Here], Awaitable[None]]:
    """Who waits in that way."""

    async def work(here: Here) -> None:
        await way(here.tx["shop"], here.shop.wait)
        await here.tx["shop"].asyncio.execute(sa.text(FIRST_ROW))

    return work


async def _first_flush(here: Here) -> None:
    """Several statements, of which one in the middle waits."""
    orm = here.tx["shop"].asyncio.orm
    one = await orm.get_one(Order, 1)
    wait = here.shop.wait.replace("SELECT", "PERFORM")
    await orm.execute(
        sa.text(f"CREATE FUNCTION held() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {wait}; RETURN NEW; END $$")
    )
    await orm.execute(sa.text("CREATE TRIGGER held BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION held()"))
    orm.add(Order(id=2, words="first"))
    one.words = "one"
    await orm.flush()
    await orm.execute(sa.text("DROP TRIGGER held ON orders"))
    await orm.execute(sa.text("DROP FUNCTION held"))


async def _first_engine(here: Here) -> None:
    engine = here.engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text(here.shop.wait))
        await connection.execute(sa.text(FIRST_ROW))
    await engine.dispose()


FIRST_POSTGRES: dict[str, Callable[[Here], Awaitable[None]]] = {"orm flush": _first_flush, "engine": _first_engine}


# --- the second one ---------------------------------------------------------------------------------------------
async def entered(block: Any) -> None:
    async with block:
        raise AssertionError("not reached")


async def _second_psycopg_stream(here: Here) -> None:
    async for _ in here.tx["shop"].asyncio.psycopg.cursor().stream("SELECT 1"):
        raise AssertionError("not reached")


async def _second_pipeline(here: Here) -> None:
    async with here.tx["shop"].asyncio.psycopg.pipeline():
        await here.tx["shop"].asyncio.psycopg.execute("SELECT 1")


async def _second_flush(here: Here) -> None:
    orm = here.tx["shop"].asyncio.orm
    await _with_row(orm, orm.flush)


async def _second_autoflush(here: Here) -> None:
    orm = here.tx["shop"].asyncio.orm
    await _with_row(orm, lambda: orm.scalars(sa.select(Order)))


async def _with_row(orm: Any, flush: Callable[[], Awaitable[object]]) -> None:
    """What is to be flushed is taken back."""
    order = Order(id=3, words="second")
    orm.add(order)
    try:
        await flush()
    finally:
        orm.expunge(order)


async def _second_engine(here: Here) -> None:
    engine = here.engine()
    try:
        async with engine.connect() as connection:
            await connection.execute(sa.text("SELECT 1"))
    finally:
        await engine.dispose()


async def _without_await(use: Callable[[], object]) -> None:
    """On the thread of the event loop."""
    use()


async def _second_sync_flush(here: Here) -> None:
    orm = here.tx["shop"].orm
    await _with_row(orm, lambda: _without_await(orm.flush))


SECOND: dict[str, Callable[[Here], Awaitable[Any]]] = {
    "scalar": lambda here: here.tx["shop"].asyncio.scalar(sa.text("SELECT 1")),
    "the beginning of a stream": lambda here: entered(here.tx["shop"].asyncio.stream(sa.text("SELECT 1"))),
    "the beginning of a savepoint": lambda here: entered(here.tx["shop"].asyncio.begin_nested()),
    "orm get": lambda here: here.tx["shop"].asyncio.orm.get(Order, 1, populate_existing=True),
    "orm savepoint": lambda here: here.tx["shop"].asyncio.orm.begin_nested().start(),
    "orm flush": _second_flush,
    "orm autoflush": _second_autoflush,
    "orm run_sync": lambda here: here.tx["shop"].asyncio.orm.run_sync(lambda s: s.get(Order, 7)),
    "without await": lambda here: _without_await(lambda: here.tx["shop"].execute(sa.text("SELECT 1"))),
    "orm without await": lambda here: _without_await(lambda: here.tx["shop"].orm.get(Order, 1)),
    "orm flush without await": _second_sync_flush,
}
SECOND_MARIADB: dict[str, Callable[[Here], Awaitable[Any]]] = {
    "pymysql without await": lambda here: _without_await(lambda: here.tx["shop"].pymysql.cursor().execute("SELECT 1")),
}
SECOND_POSTGRES: dict[str, Callable[[Here], Awaitable[Any]]] = {
    "psycopg many": lambda here: here.tx["shop"].asyncio.psycopg.cursor().executemany("SELECT %s", [(1,), (2,)]),
    "psycopg savepoint": lambda here: entered(here.tx["shop"].asyncio.psycopg.transaction()),
    "psycopg stream": _second_psycopg_stream,
    "psycopg pipeline": _second_pipeline,
    "psycopg copy": lambda here: entered(here.tx["shop"].asyncio.psycopg.cursor().copy("COPY orders FROM STDIN")),
    "engine": _second_engine,
    "psycopg without await": lambda here: _without_await(lambda: here.tx["shop"].psycopg.execute("SELECT 1")),
}


async def _called(second: Callable[..., Awaitable[Any]], *arguments: object) -> None:
    await second(*arguments)


@in_loop
async def test_the_second_one_is_refused_and_the_first_goes_on(shop: Shop) -> None:
    """The whole matrix. A loop that stands still for good is ended by the test's own timeout."""
    in_postgres = isinstance(shop, PostgresShop)
    ways = ways_of(shop)
    firsts = {name: first(way) for name, way in ways.items()} | (FIRST_POSTGRES if in_postgres else {})
    seconds = SECOND | (SECOND_POSTGRES if in_postgres else SECOND_MARIADB)
    del ways["thread"]  # threads wait for each other

    async def refuse(second: Awaitable[Any], what: str) -> None:
        with pytest.raises(REFUSED) as refused:
            await second
            raise AssertionError(f"{what} was not refused")
        assert not isinstance(refused.value, DBAPIError), f"{what} came to the server"

    async def both(way: str) -> None:
        with Gate(shop) as gate:
            async with shop.tm.begin() as tx:
                await tx.aenlist("shop")
                going = asyncio.ensure_future(firsts[way](Here(shop, tx)))
                await gate.until_someone_waits()
                for other, second in seconds.items():
                    await refuse(_called(second, Here(shop, tx)), f"{other} behind {way}")
                for other, by in ways.items():
                    await refuse(_called(by, tx["shop"], "SELECT 1"), f"{other} behind {way}")
                assert not going.done()
                gate.open()
                await going
        assert shop.rows() == [(1, "one"), (2, "first")], way

    for way in firsts:
        begin_with(shop)
        async with asyncio.timeout(PATIENCE_S):
            await both(way)


def test_a_savepoint_whose_end_was_refused_rolls_everything_back(in_postgres: PostgresShop) -> None:
    """The second task's work was to be taken back, and could not be: it must not be committed."""
    shop = in_postgres
    taken_back = sa.text("INSERT INTO orders VALUES (3, 'taken back')")

    async def take_back(here: Here, way: str, ready: asyncio.Event, go_on: asyncio.Event) -> None:
        connection = here.tx["shop"].asyncio
        engine = here.engine()
        blocks: dict[str, Callable[[], Any]] = {
            "core": connection.begin_nested,
            "psycopg": connection.psycopg.transaction,
            "orm": connection.orm.begin_nested,
            "engine": engine.connect,
        }
        with suppress(LookupError, *REFUSED):
            async with blocks[way]() as block:
                await {"orm": connection.orm, "engine": block}.get(way, connection).execute(taken_back)
                ready.set()
                await go_on.wait()
                raise LookupError
        await engine.dispose()

    async def main(way: str) -> None:
        ready, go_on = asyncio.Event(), asyncio.Event()
        with Gate(shop) as gate, pytest.raises(RolledBack, match="the end of a savepoint was refused"):
            async with asyncio.timeout(PATIENCE_S), shop.tm.begin() as tx:
                await tx.aenlist("shop")
                taking_back = asyncio.create_task(take_back(Here(shop, tx), way, ready, go_on))
                await ready.wait()
                going = asyncio.ensure_future(first(WAYS_OF_PSYCOPG["psycopg"])(Here(shop, tx)))
                await gate.until_someone_waits()
                go_on.set()
                await taking_back
                gate.open()
                await going

    for way in ("core", "psycopg", "orm", "engine"):
        asyncio.run(main(way))
        assert shop.rows() == [(1, "one")], way


@in_loop
async def test_a_block_that_ends_while_a_task_is_in_a_statement_rolls_back(in_postgres: PostgresShop) -> None:
    """It does not wait for that task, also where something is still to be flushed."""
    shop = in_postgres

    async def ended(*, pending: bool) -> None:
        with Gate(shop) as gate:
            with pytest.raises(RolledBack, match="in a statement"):
                async with shop.tm.begin() as tx:
                    await tx.aenlist("shop")
                    if pending:
                        tx["shop"].asyncio.orm.add(Order(id=3, words="pending"))
                    going = asyncio.ensure_future(first(WAYS_OF_PSYCOPG["psycopg"])(Here(shop, tx)))
                    await gate.until_someone_waits()
            with suppress(psycopg.Error, XaMisuse):
                await going

    for pending in (False, True):
        async with asyncio.timeout(PATIENCE_S):
            await ended(pending=pending)
    assert shop.rows() == [(1, "one")]


def test_the_timeout_of_a_transaction_frees_a_task_that_hangs(in_postgres: PostgresShop, tmp_path: Path) -> None:
    """... whatever a second one tried meanwhile."""
    shop = in_postgres

    async def main(manager: TransactionManager) -> None:
        async with asyncio.timeout(PATIENCE_S):
            with Gate(shop) as gate, pytest.raises(RolledBack, match="longer than its"):
                async with manager.begin(timeout_s=1.0) as tx:
                    await tx.aenlist("shop")
                    going = asyncio.ensure_future(first(WAYS["core"])(Here(shop, tx)))
                    await gate.until_someone_waits()
                    with pytest.raises(XaMisuse):
                        await tx["shop"].asyncio.execute(sa.text("SELECT 1"))
                    with suppress(DBAPIError, XaMisuse):
                        await going

    resources = {"shop": ResourceConfig(shop.url.set(drivername="postgresql").render_as_string())}
    with TransactionManager("node-2", f"file://{tmp_path}/other", resources) as manager:
        asyncio.run(main(manager))


@in_loop
async def test_of_two_tasks_that_enlist_at_once_one_is_refused(shop: Shop) -> None:
    async with shop.tm.begin() as tx:
        answers = await asyncio.gather(*(tx.aenlist("shop") for _ in range(4)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert all(isinstance(answer, ProtocolMisuse) for answer in refused)
        assert len(refused) < len(answers)
        await tx["shop"].asyncio.execute(sa.insert(Order).values(id=2, words="first"))
    assert shop.rows() == [(1, "one"), (2, "first")]


def test_who_has_not_finished_a_stream_is_told_so(in_postgres: PostgresShop) -> None:
    """psycopg's own lock would wait for its own task, or thread, for good."""
    shop = in_postgres

    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = (await tx.aenlist("shop")).asyncio.psycopg
            async for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
                with pytest.raises(XaMisuse, match="has not been finished"):
                    await connection.execute("SELECT 1")
            await connection.execute("INSERT INTO orders VALUES (2, 'first')")

    asyncio.run(main())
    assert shop.rows() == [(1, "one"), (2, "first")]
    with shop.tm.begin() as tx:
        connection = tx["shop"].psycopg
        for _ in connection.cursor().stream("SELECT generate_series(1, 3)"):
            with pytest.raises(XaMisuse, match="has not been finished"):
                connection.execute("SELECT 1")
        connection.execute("INSERT INTO orders VALUES (3, 'second')")
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
        connection.execute(sa.text("UPDATE orders SET words = concat(words, '!')"))

    with shop.tm.begin() as tx:
        sa.event.listen(tx["shop"].orm, "before_flush", flushing)
        thread = threading.Thread(target=second, args=(tx["shop"],))
        thread.start()
        tx["shop"].orm.add_all([Order(id=2, words="two"), Order(id=3, words="three")])
        tx["shop"].orm.flush()
        thread.join()
    assert shop.rows() == [(1, "one!"), (2, "two!"), (3, "three!")]


def test_another_databases_statement_is_not_waited_for_on_the_event_loop(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE orders (id integer PRIMARY KEY, words text)")
    inside, go_on = threading.Event(), threading.Event()

    def held(number: int) -> int:
        inside.set()
        assert go_on.wait(PATIENCE_S)
        return number

    def first(connection: Any) -> None:
        connection.connection.driver_connection.create_function("held", 1, held)
        connection.execute(sa.text("INSERT INTO orders VALUES (held(2), 'first')"))

    async def main(manager: TransactionManager) -> None:
        async with manager.begin() as tx:
            connection = await tx.aenlist("shop")
            going = asyncio.create_task(asyncio.to_thread(first, connection))
            await asyncio.to_thread(inside.wait, PATIENCE_S)

            for second in (
                lambda: connection.execute(sa.text("SELECT 1")),
                lambda: connection.exec_driver_sql("SELECT 1"),
                lambda: connection.orm.get(Order, 1),
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
        assert file.execute("SELECT * FROM orders").fetchall() == [(2, "first")]
