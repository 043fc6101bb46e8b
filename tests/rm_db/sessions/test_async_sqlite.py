"""These tests use a deciding database from asyncio although its driver can't be awaited: it works in a thread."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from tm import ResourceConfig, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(told(i)) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a table."""
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id integer PRIMARY KEY)")
    return path


@pytest.fixture
def manager(path: Path) -> Iterator[TransactionManager]:
    """One with the file as the one that decides."""
    resources = {"ledger": ResourceConfig(f"sqlite:///{path}", "decider")}
    with TransactionManager("node-1", resources=resources, background=False) as manager:
        yield manager


def rows(path: Path) -> list[int]:
    """What is committed."""
    with closing(sqlite3.connect(path)) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]


def place(ledger: Any, number: int) -> int:
    """Work that waits for itself."""
    return ledger.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number}).rowcount  # type: ignore[no-any-return]


def test_who_asks_for_an_asyncio_session_is_told_what_to_use(manager: TransactionManager, path: Path) -> None:
    async def main() -> None:
        async with manager.begin() as tx:
            ledger = await tx.aenlist("ledger")
            with pytest.raises(XaMisuse, match=r"sqlite has no asyncio session.*await asyncio.to_thread\(work"):
                _ = ledger.asyncio
            assert await asyncio.to_thread(place, ledger, 1) == 1
            assert rows(path) == []

    asyncio.run(main())
    assert rows(path) == [1]


def test_what_goes_wrong_in_the_thread_is_rolled_back(manager: TransactionManager, path: Path) -> None:
    async def main() -> None:
        with pytest.raises(LookupError):
            async with manager.begin() as tx:
                ledger = await tx.aenlist("ledger")
                await asyncio.to_thread(place, ledger, 1)
                raise LookupError

    asyncio.run(main())
    assert rows(path) == []


def test_a_cancelled_task_leaves_nothing_behind(manager: TransactionManager, path: Path) -> None:
    """The thread can't be cancelled: its statement is interrupted, and what it did is rolled back."""
    running = threading.Event()

    def told(number: int) -> int:
        running.set()
        return number

    def count(ledger: Any) -> None:
        ledger.connection.driver_connection.create_function("told", 1, told)
        place(ledger, 1)
        ledger.execute(text(FOREVER)).all()

    async def one() -> None:
        async with manager.begin() as tx:
            await asyncio.to_thread(count, await tx.aenlist("ledger"))

    async def main() -> None:
        task = asyncio.create_task(one())
        assert await asyncio.to_thread(running.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with manager.begin() as tx:
            await asyncio.to_thread(place, await tx.aenlist("ledger"), 2)

    asyncio.run(main())
    assert rows(path) == [2]
