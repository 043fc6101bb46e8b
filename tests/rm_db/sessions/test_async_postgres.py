"""These tests cover what `test_asyncio` does not say of PostgreSQL, in two phases and deciding: psycopg's own asyncio
connection, and an installation without greenlet.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import insert, text

from tests.rm_db.sessions.shops import PATIENCE_S, Order, until
from tm import RolledBack
from xa import XaMisuse

if TYPE_CHECKING:
    from tests.rm_db.sessions.shops import PostgresShop


@pytest.fixture
def shop(postgres_shop: PostgresShop) -> PostgresShop:
    """One in PostgreSQL."""
    return postgres_shop


def test_psycopgs_connection_streams_and_copies(shop: PostgresShop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio
            assert isinstance(connection.psycopg, psycopg.AsyncConnection)
            await connection.execute(insert(Order), [{"id": i, "words": "x"} for i in range(100)])
            seen = [row async for row in connection.psycopg.cursor().stream("SELECT id FROM orders ORDER BY id")]
            assert len(seen) == 100
            async with connection.psycopg.cursor().copy("COPY orders FROM STDIN") as copy:
                await copy.write_row((100, "copied"))

    asyncio.run(main())
    assert len(shop.rows()) == 101


def test_psycopgs_connection_of_a_session_that_is_over_is_refused(shop: PostgresShop) -> None:
    async def main() -> None:
        async with shop.tm.begin() as tx:
            psycopgs = tx["shop"].asyncio.psycopg
            await psycopgs.execute("SELECT 1")
        with pytest.raises(XaMisuse, match="this session is over"):
            await psycopgs.execute("SELECT 1")

    asyncio.run(main())


def test_the_event_loop_goes_on_while_psycopg_waits(shop: PostgresShop) -> None:
    async def main() -> None:
        locked, let_go = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with shop.tm.begin() as tx:
                await tx["shop"].asyncio.psycopg.execute("INSERT INTO orders VALUES (1, 'first')")
                locked.set()
                await let_go.wait()

        async def second() -> None:
            with shop.after_a_failure():
                async with shop.tm.begin() as tx:
                    await locked.wait()
                    again = tx["shop"].asyncio.psycopg.execute("INSERT INTO orders VALUES (1, 'again')")
                    waiting = asyncio.create_task(again)
                    await until(lambda: shop.at_work("INSERT INTO orders"))
                    let_go.set()
                    with pytest.raises(psycopg.errors.UniqueViolation):
                        await waiting

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(first(), second())

    asyncio.run(main())
    assert shop.rows() == [(1, "first")]


def test_a_cancelled_task_cancels_psycopgs_statement(shop: PostgresShop) -> None:
    async def work() -> None:
        async with shop.tm.begin() as tx:
            connection = tx["shop"].asyncio.psycopg
            await connection.execute("INSERT INTO orders VALUES (1, 'never')")
            await connection.execute("SELECT pg_sleep(600)")

    async def main() -> None:
        task = asyncio.create_task(work())
        await until(lambda: shop.at_work(*shop.asleep))
        task.cancel()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert not shop.at_work(*shop.asleep)

    asyncio.run(main())
    assert shop.rows() == []


def test_two_tasks_in_one_session_are_refused(shop: PostgresShop) -> None:
    async def main() -> None:
        with pytest.raises(RolledBack):
            async with shop.tm.begin() as tx:
                connection = tx["shop"].asyncio
                sleeping = asyncio.create_task(connection.execute(text("SELECT pg_sleep(600)")))
                await until(lambda: shop.at_work(*shop.asleep))
                with pytest.raises(XaMisuse, match="another thread or task is in a statement"):
                    await connection.psycopg.execute("SELECT 1")
                sleeping.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sleeping

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
