"""These tests run code that uses an engine of its own and does not know our transactions: over each kind of database,
and over PostgreSQL with an engine of SQLAlchemy's asyncio extension as well.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import transaction  # type: ignore[import-untyped]
import zope.sqlalchemy as zope_sqlalchemy  # type: ignore[import-untyped]
from sqlalchemy import Engine, create_engine, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.util import await_only, greenlet_spawn

from rm_db import take_part
from tests.postgres import Postgres
from tests.rm_db.sessions.conftest import EVERYWHERE, IN_POSTGRES
from tests.rm_db.sessions.shops import Gate, Made, Order, PostgresShop, Shop, driver_url
from tm import ResourceConfig, RolledBack, Transaction, TransactionManager
from tm.zope import join
from xa import XaMisuse


class Site:
    """A shop, and an engine of the application's that takes part in its manager's transactions."""

    def __init__(self, shop: Shop, engine: Engine, *, awaited: bool) -> None:
        self.shop = shop
        self.engine = engine
        self._awaited = awaited

    def place(self, number: int) -> None:
        """Existing code, Core."""
        with self.engine.begin() as connection:
            connection.execute(insert(Order).values(id=number, words="core", more={"a": [number]}))

    def place_orm(self, number: int) -> None:
        """Existing code, ORM."""
        with Session(self.engine) as session:
            session.execute(insert(Order).values(id=number, words="orm"))
            session.commit()

    def look(self) -> list[int]:
        """Existing code that reads, and never ends its transaction."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(Order.id).order_by(Order.id)))

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One of the manager's."""
        if not self._awaited:
            with self.shop.tm.begin() as tx:
                yield tx
            return
        block = self.shop.tm.begin()
        tx = await_only(block.__aenter__())
        try:
            yield tx
        except BaseException as error:
            await_only(block.__aexit__(type(error), error, error.__traceback__))
            raise
        await_only(block.__aexit__(None, None, None))

    def execute(self, tx: Transaction, resource: str, statement: Any) -> None:
        """Work of code that knows the transaction."""
        if self._awaited:
            await_only(tx[resource].asyncio.execute(statement))
        else:
            tx[resource].execute(statement)


def for_engines(test: Callable[[Site], None]) -> Callable[[Shop, bool], None]:
    """The test with an engine; and below one of the asyncio extension, which runs in a greenlet what it is awaited
    for."""

    @pytest.mark.parametrize(
        ("any_shop", "awaited"),
        [*((kind, False) for kind in EVERYWHERE), *((kind, True) for kind in IN_POSTGRES)],
        indirect=["any_shop"],
    )
    def run(any_shop: Shop, awaited: bool) -> None:
        if awaited:

            async def main(engine: AsyncEngine) -> None:
                await greenlet_spawn(test, Site(any_shop, engine.sync_engine, awaited=True))

            run_with_engine(any_shop, main)
        else:
            engine = create_engine(any_shop.url)
            take_part(engine, any_shop.tm, "shop")
            test(Site(any_shop, engine, awaited=False))
            engine.dispose()

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def run_with_engine(shop: Shop, work: Callable[[AsyncEngine], Awaitable[None]]) -> None:
    """`work` with an engine of the asyncio extension that takes part."""

    async def main() -> None:
        engine = create_async_engine(shop.url)
        take_part(engine, shop.tm, "shop")
        try:
            await work(engine)
        finally:
            await engine.dispose()

    asyncio.run(main())


@for_engines
def test_outside_of_any_transaction_it_is_the_engine_that_it_was(site: Site) -> None:
    site.place(1)
    assert site.shop.ids() == [1]
    assert site.look() == [1]


@for_engines
def test_its_work_is_committed_with_everything_else(site: Site) -> None:
    with site.transaction() as tx:
        site.place(1)
        site.place_orm(2)
        site.execute(tx, "shop", insert(Order).values(id=3))
        site.execute(tx, "other", insert(Made).values(id=1))
        assert site.look() == [1, 2, 3]
        assert site.shop.ids() == []
    assert site.shop.ids() == site.look() == [1, 2, 3]
    assert site.shop.made() == [1]


@for_engines
def test_its_commit_is_not_the_last_word(site: Site) -> None:
    with pytest.raises(LookupError), site.transaction():
        site.place(1)
        site.place_orm(2)
        raise LookupError
    assert site.shop.ids() == []


@for_engines
def test_its_rollback_takes_back_its_own_piece(site: Site) -> None:
    with site.transaction():
        site.place(1)
        with pytest.raises(IntegrityError):
            site.place(1)
        with pytest.raises(IntegrityError):
            site.place_orm(1)

        with site.engine.connect() as connection:
            connection.execute(insert(Order).values(id=5))  # and never commits
        raw = site.engine.raw_connection()
        raw.cursor().execute("INSERT INTO orders (id) VALUES (6)")
        raw.rollback()
        raw.cursor().execute("INSERT INTO orders (id) VALUES (7)")
        raw.commit()
        raw.close()
        site.place(2)
    assert site.shop.ids() == [1, 2, 7]


@for_engines
def test_many_small_transactions_in_one(site: Site) -> None:
    with site.transaction():
        for number in range(20):  # more often than psycopg executes a statement before it prepares it
            with site.engine.connect() as connection:
                transaction = connection.begin()
                connection.execute(insert(Order).values(id=number))
                (transaction.commit if number % 2 else transaction.rollback)()
    assert site.shop.ids() == list(range(1, 20, 2))


@for_engines
def test_connections_that_nest_and_a_stream(site: Site) -> None:
    with site.transaction(), site.engine.begin() as outer:
        outer.execute(insert(Order).values(id=1))
        site.place(2)
        assert outer.scalar(select(func.count()).select_from(Order)) == 2
        streaming = outer.execution_options(stream_results=True)
        assert [row.id for row in streaming.execute(select(Order.id).order_by(Order.id))] == [1, 2]
    assert site.shop.ids() == [1, 2]


@for_engines
def test_overlapping_connections_that_do_not_nest_are_not_committed(site: Site) -> None:
    """Two connections are one here. What can't be taken back by itself is not kept either."""
    with pytest.raises(RolledBack), site.transaction():
        first, second = site.engine.connect(), site.engine.connect()
        first.execute(insert(Order).values(id=1))
        second.execute(insert(Order).values(id=2))
        first.commit()
        with pytest.raises(DBAPIError, match="does not exist"):
            second.rollback()
    assert site.shop.ids() == []


@for_engines
def test_the_end_of_the_transaction_stays_the_managers(site: Site) -> None:
    with pytest.raises(RolledBack, match="'COMMIT' was refused"), site.transaction():
        connection = site.engine.connect()
        for end in ("COMMIT", "TRUNCATE orders"):
            if end == "COMMIT" or site.shop.url.get_backend_name() != "postgresql":
                with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                    connection.exec_driver_sql(end)
        connection.close()
        with pytest.raises(XaMisuse, match="autocommit"):
            site.engine.connect().execution_options(isolation_level="AUTOCOMMIT")


@for_engines
def test_a_connection_that_is_kept_too_long_is_refused(site: Site) -> None:
    with site.transaction():
        connection = site.engine.connect()
        connection.execute(select(Order))
    with pytest.raises(XaMisuse, match="this session is over"):
        connection.execute(select(Order))
    connection.close()


@for_engines
def test_the_engine_stays_an_engine(site: Site) -> None:
    connected: list[object] = []
    event.listen(site.engine, "connect", lambda connection, _: connected.append(connection))
    site.engine.dispose()
    site.place(1)
    assert len(connected) == 1
    assert "Pool size" in site.engine.pool.status()
    with site.transaction():
        optioned = site.engine.execution_options(logging_token="x")  # noqa: S106 — no secret
        with optioned.begin() as connection:
            connection.execute(insert(Order).values(id=2))
    assert site.shop.ids() == [1, 2]


# --- what takes part, and how -------------------------------------------------------------------------------------
wiring = SimpleNamespace(manager=None)
"""Where an application has its transaction manager."""


def test_an_engine_takes_part_by_its_url(any_shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "app_wiring", wiring)
    wiring.manager = any_shop.tm
    query = {"plugin": "xabridge", "xabridge_manager": "app_wiring:manager", "xabridge_resource": "shop"}
    url = any_shop.url.update_query_dict(query)
    site = Site(any_shop, create_engine(url), awaited=False)
    with pytest.raises(LookupError), site.transaction():
        site.place(1)
        raise LookupError
    with site.transaction():
        site.place(2)
    assert site.look() == [2]
    site.engine.dispose()

    async def main() -> None:
        engine = create_async_engine(url)
        with pytest.raises(LookupError):
            async with any_shop.tm.begin():
                async with AsyncSession(engine) as session:
                    session.add(Order(id=3))
                    await session.commit()
                raise LookupError
        await engine.dispose()

    if any_shop.url.get_backend_name() == "postgresql":
        asyncio.run(main())
    assert any_shop.ids() == [2]


@pytest.mark.parametrize(
    "settings", ["", "&xabridge_manager=app:manager", "&xabridge_manager=app&xabridge_resource=shop"]
)
def test_a_url_that_says_too_little(settings: str) -> None:
    with pytest.raises(ValueError, match="plugin=xabridge needs xabridge_manager=module:name"):
        create_engine(f"postgresql+psycopg://localhost/shop?plugin=xabridge{settings}")


def test_an_engine_of_another_kind_is_refused(tmp_path: Path, mariadb_shop: Shop, postgres: Postgres) -> None:
    with pytest.raises(ValueError, match="can't take part: make the engine with"):
        take_part(create_engine(f"sqlite:///{tmp_path}/x"), mariadb_shop.tm, "shop")
    engine = create_engine(driver_url(postgres.url))
    ledger = ResourceConfig(f"sqlite:///{tmp_path}/ledger.db", "decider")
    with TransactionManager("node-1", resources={"ledger": ledger}, background=False) as manager:
        take_part(engine, manager, "ledger")
        with pytest.raises(TypeError, match="ledger is SqlBranchConnection"), manager.begin():
            engine.connect()
    theirs = create_engine(driver_url(postgres.url))
    take_part(theirs, mariadb_shop.tm, "shop")
    with pytest.raises(TypeError, match="pymysql"), mariadb_shop.tm.begin():
        theirs.connect()
    for one in (engine, theirs):
        one.dispose()


# --- zope ---------------------------------------------------------------------------------------------------------
def test_a_session_of_zope_sqlalchemy_takes_part(postgres_shop: PostgresShop) -> None:
    """Its commit when it votes is the release of a savepoint: a no of ours takes its work back."""
    engine = create_engine(postgres_shop.url)
    take_part(engine, postgres_shop.tm, "shop")

    with Session(engine) as session:
        zope_sqlalchemy.register(session, keep_session=True)
        for number, fails in ((1, False), (2, True)):
            transaction.begin()
            tx = join(postgres_shop.tm)
            session.execute(insert(Order).values(id=number, words="zope"))
            zope_sqlalchemy.mark_changed(session)
            tx["other"].execute(insert(Made).values(id=number))
            if fails:
                tx.set_rollback_only("the test")
                with pytest.raises(RolledBack):
                    transaction.commit()
                transaction.abort()
            else:
                transaction.commit()
    engine.dispose()
    assert (postgres_shop.ids(), postgres_shop.made()) == ([1], [1])


def test_attempts_try_a_serialization_failure_again_that_a_statement_raised(postgres_shop: PostgresShop) -> None:
    with postgres_shop.plain.begin() as somebody:
        somebody.execute(insert(Order).values(id=1, words="core"))
    for way in ("core", "psycopg", "orm"):
        tries = 0
        for attempt in transaction.manager.attempts(3):
            with attempt:
                tries += 1
                connection = join(postgres_shop.tm)["shop"].execution_options(isolation_level="SERIALIZABLE")
                connection.execute(select(Order)).all()
                if tries == 1:
                    with postgres_shop.plain.begin() as somebody:
                        somebody.execute(text("UPDATE orders SET words = words || '!'"))

                if way == "psycopg":
                    connection.psycopg.execute("UPDATE orders SET words = 'mine'")
                else:
                    (connection.orm if way == "orm" else connection).execute(update(Order).values(words="mine"))
        assert tries == 2, way
    assert postgres_shop.rows() == [(1, "mine")]


# --- asyncio ------------------------------------------------------------------------------------------------------
async def place(engine: AsyncEngine, number: int) -> None:
    """Existing code that is awaited."""
    async with engine.begin() as connection:
        await connection.execute(insert(Order).values(id=number))


async def wait_at_gate(engine: AsyncEngine, shop: Shop) -> None:
    async with engine.connect() as connection:
        await connection.execute(text(shop.wait))


def test_a_cancelled_task_cancels_its_statement_and_rolls_back(postgres_shop: PostgresShop) -> None:
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        async def one() -> None:
            async with shop.tm.begin():
                await place(engine, 1)
                await wait_at_gate(engine, shop)

        with Gate(shop) as gate:
            task = asyncio.create_task(one())
            await gate.until_someone_waits()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await place(engine, 2)

    run_with_engine(shop, work)
    assert shop.ids() == [2]


def test_two_transactions_at_once_on_the_drivers_own_connections(postgres_shop: PostgresShop) -> None:
    shop = postgres_shop

    async def work(engine: AsyncEngine) -> None:
        both = asyncio.Barrier(2)

        async def one(number: int) -> None:
            async with shop.tm.begin(), engine.connect() as connection:
                driver: Any = (await connection.get_raw_connection()).driver_connection
                assert isinstance(driver, psycopg.AsyncConnection)
                await driver.execute("INSERT INTO orders VALUES (%s)", [number])
                await both.wait()
                await place(engine, number + 10)

        await asyncio.gather(one(1), one(2))

    run_with_engine(shop, work)
    assert shop.ids() == [1, 2, 11, 12]
