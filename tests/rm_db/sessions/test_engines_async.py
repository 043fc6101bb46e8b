"""These tests run asyncio code that uses an engine of its own and does not know our transactions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, make_url, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from rm_db import take_part
from tm import ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tests.postgres import Postgres

METADATA = MetaData()
ORDERS = Table(
    "orders", METADATA, Column("id", Integer, primary_key=True), Column("words", String), Column("more", JSONB)
)


async def place(engine: AsyncEngine, number: int) -> None:
    """Existing code, Core."""
    async with engine.begin() as connection:
        await connection.execute(insert(ORDERS).values(id=number, words="core", more={"a": [number]}))


async def place_orm(engine: AsyncEngine, number: int) -> None:
    """Existing code, ORM."""
    async with AsyncSession(engine) as session:
        await session.execute(insert(ORDERS).values(id=number, words="orm"))
        await session.commit()


async def look(engine: AsyncEngine) -> list[int]:
    """Existing code that reads, and never ends its transaction."""
    async with engine.connect() as connection:
        return list(await connection.scalars(select(ORDERS.c.id).order_by(ORDERS.c.id)))


class Place:
    """A database, a manager, and where an engine is found."""

    def __init__(self, url: str, manager: TransactionManager) -> None:
        self.url = url
        self.manager = manager

    def run(self, work: Callable[[AsyncEngine], Awaitable[None]]) -> None:
        """`work` with an engine that takes part."""

        async def main() -> None:
            engine = create_async_engine(make_url(self.url).set(drivername="postgresql+psycopg"))
            take_part(engine, self.manager, "shop")
            try:
                await work(engine)
            finally:
                await engine.dispose()

        asyncio.run(main())

    def committed(self) -> list[int]:
        """The rows that everybody sees."""
        with psycopg.connect(self.url) as connection:
            return [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]


@pytest.fixture(params=["two-phase", "decider"])
def shop(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, words varchar, more jsonb)")
    resources = {"shop": ResourceConfig(url, request.param), "other": ResourceConfig(postgres.create_database())}
    log = None if request.param == "decider" else f"file://{tmp_path}/log"
    with TransactionManager("node-1", log, resources, background=False) as manager:
        yield Place(url, manager)
    with psycopg.connect(url) as connection:
        left = connection.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
        assert left.fetchone() == (0,)


def test_outside_of_any_transaction_it_is_the_engine_that_it_was(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        await place(engine, 1)
        assert shop.committed() == [1]
        assert await look(engine) == [1]

    shop.run(work)


def test_its_work_is_committed_with_everything_else(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with shop.manager.begin() as transaction:
            await place(engine, 1)
            await place_orm(engine, 2)
            await transaction["shop"].asyncio.execute(insert(ORDERS).values(id=3))
            await (await transaction.aenlist("other")).asyncio.psycopg.execute("CREATE TABLE made (a int)")
            assert await look(engine) == [1, 2, 3]
            assert shop.committed() == []
        assert shop.committed() == [1, 2, 3]
        assert await look(engine) == [1, 2, 3]

    shop.run(work)


def test_its_commit_is_not_the_last_word(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(LookupError):
            async with shop.manager.begin():
                await place(engine, 1)
                await place_orm(engine, 2)
                raise LookupError

    shop.run(work)
    assert shop.committed() == []


def test_its_rollback_takes_back_its_own_piece(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with shop.manager.begin():
            await place(engine, 1)
            with pytest.raises(IntegrityError):
                await place(engine, 1)
            with pytest.raises(IntegrityError):
                await place_orm(engine, 1)
            async with engine.connect() as connection:
                await connection.execute(insert(ORDERS).values(id=5))  # and never commits
            await place(engine, 2)

    shop.run(work)
    assert shop.committed() == [1, 2]


def test_many_small_transactions_in_one(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with shop.manager.begin():
            for number in range(20):  # more often than psycopg executes a statement before it prepares it
                async with engine.connect() as connection:
                    transaction = await connection.begin()
                    await connection.execute(insert(ORDERS).values(id=number))
                    await (transaction.commit if number % 2 else transaction.rollback)()

    shop.run(work)
    assert shop.committed() == list(range(1, 20, 2))


def test_while_it_waits_the_others_go_on(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        waiting = asyncio.Event()

        async def other() -> None:
            await waiting.wait()
            holder.execute("SELECT pg_advisory_unlock(1)")

        with psycopg.connect(shop.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(1)")
            task = asyncio.create_task(other())
            async with shop.manager.begin():
                async with engine.connect() as connection:
                    waiting.set()
                    await connection.execute(text("SELECT pg_advisory_xact_lock(1)"))
                await place(engine, 1)
            await task

    shop.run(work)
    assert shop.committed() == [1]


def test_a_cancelled_task_cancels_its_statement_and_rolls_back(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        waiting = asyncio.Event()

        async def one() -> None:
            async with shop.manager.begin():
                await place(engine, 1)
                async with engine.connect() as connection:
                    waiting.set()
                    await connection.execute(text("SELECT pg_advisory_xact_lock(1)"))

        with psycopg.connect(shop.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(1)")
            task = asyncio.create_task(one())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await place(engine, 2)

    shop.run(work)
    assert shop.committed() == [2]


def test_a_second_task_in_the_same_transaction_is_refused_and_not_kept_waiting(shop: Place) -> None:
    """The loop has to go on, or the statement that is waited for never ends."""

    async def work(engine: AsyncEngine) -> None:
        waiting = asyncio.Event()

        async def first() -> None:
            async with engine.connect() as connection:
                waiting.set()
                await connection.execute(text("SELECT pg_advisory_xact_lock(1)"))

        with psycopg.connect(shop.url, autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(1)")
            async with shop.manager.begin() as transaction:
                task = asyncio.create_task(first())
                await waiting.wait()
                with pytest.raises(XaMisuse, match="another thread or task is in a statement"):
                    await place(engine, 1)
                with pytest.raises(XaMisuse, match="another thread or task is in a statement"):
                    await transaction["shop"].asyncio.execute(insert(ORDERS).values(id=2))
                holder.execute("SELECT pg_advisory_unlock(1)")
                await task
                await place(engine, 3)

    shop.run(work)
    assert shop.committed() == [3]


def test_two_transactions_at_once(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        both = asyncio.Barrier(2)

        async def one(number: int) -> None:
            async with shop.manager.begin():
                await place(engine, number)
                await both.wait()
                await place_orm(engine, number + 10)

        await asyncio.gather(one(1), one(2))

    shop.run(work)
    assert shop.committed() == [1, 2, 11, 12]


def test_the_drivers_own_connection_is_the_asyncio_one(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        async with shop.manager.begin(), engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            assert isinstance(driver, psycopg.AsyncConnection)
            await driver.execute("INSERT INTO orders VALUES (1)")

    shop.run(work)
    assert shop.committed() == [1]


def test_the_end_of_the_transaction_stays_the_managers(shop: Place) -> None:
    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(RolledBack, match="'COMMIT' was refused"):
            async with shop.manager.begin(), engine.connect() as connection:
                with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
                    await connection.exec_driver_sql("COMMIT")

    shop.run(work)


wiring = SimpleNamespace(manager=None)
"""Where an application has its transaction manager."""


def test_an_engine_takes_part_by_its_url(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY, words varchar, more jsonb)")
    monkeypatch.setitem(__import__("sys").modules, "app_wiring", wiring)

    async def main(manager: TransactionManager) -> None:
        engine = create_async_engine(
            f"{make_url(url).set(drivername='postgresql+psycopg')}?plugin=xabridge"
            "&xabridge_manager=app_wiring:manager&xabridge_resource=shop"
        )
        with pytest.raises(LookupError):
            async with manager.begin():
                await place(engine, 1)
                raise LookupError
        async with manager.begin():
            await place(engine, 2)
        assert await look(engine) == [2]
        await engine.dispose()

    resources = {"shop": url, "other": postgres.create_database()}
    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, background=False) as manager:
        wiring.manager = manager
        asyncio.run(main(manager))
