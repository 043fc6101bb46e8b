"""Stores in a file whose octets were changed: a broker starts, or says in a sentence that it can't, and never fails
with another error; and `look_at_store`, which is `xabridge check`, says which table is damaged."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from dtx.amqp.encoding import encode
from dtx.amqp.messages import value_message
from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.broker import SystemClock
from dtx.broker.container import Container
from dtx.broker.queues.outcomes import TAKEN_OCTETS
from dtx.broker.settings import Settings
from dtx.store.contract import CHUNK, PENDING, StoreDamaged, StoreError
from dtx.store.sql import SqlStore
from dtx.store.sql.inspection import look_at_store
from dtx.store.sql.sqlite import PAGE_SIZE
from dtx.store.sql.tables import METADATA
from tests.dtx.store.stores import Place
from xa import Code, Xid

FLIPS: Final = int(os.environ.get("XABRIDGE_SCHEDULES", "80"))


@pytest.fixture
def octets(tmp_path: Path) -> bytes:
    """The file of a store with rows in every table."""
    place = Place(f"sqlite:///{tmp_path / 'whole.db'}")
    opened = place.open()
    numbers = iter(range(opened.first, opened.first + 1000))
    queue = next(numbers)
    with opened.batch() as batch:
        batch.create_queue(queue, "orders")
        messages = [next(numbers) for _ in range(40)]
        for count, message in enumerate(messages):
            batch.enqueue(message, queue, message, value_message(encode("x" * 30 * count)))
        large = next(numbers)
        batch.enqueue(large, queue, large, value_message(encode("y" * CHUNK)))

        for number in range(4):
            posted = next(numbers)
            batch.enqueue(posted, queue, PENDING, value_message(encode("z")))
            work = {"enqueues": [posted], "dequeues": [(messages[number], TAKEN_OCTETS)]}
            batch.prepare(next(numbers), Xid(7, b"%d" % number, b"b"), "ada", 1000, **work)  # type: ignore[arg-type]
        completed = next(numbers)
        batch.prepare(completed, Xid(7, b"by hand", b"b"), "ada", 1000)
        batch.complete(completed, Code.XA_HEURCOM, 1001)
        batch.fence(b"fenced", "ada", 1000)
        batch.record(queue, "configured", json.dumps({"queue": "orders"}))
    place.close()
    return (tmp_path / "whole.db").read_bytes()


def put(path: Path, octets: bytes) -> str:
    """The URL of a store with these octets."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(octets)
    return f"sqlite:///{path}"


def started(url: str) -> str:
    """What a broker says that opens this store; empty where it starts."""
    store = SqlStore(url, lambda _: None)
    container = Container(store, SystemClock(), Settings(), Permissions({"*": EVERYTHING}), lambda _: None)
    try:
        container.open()
    except StoreError as error:
        return str(error)
    finally:
        store.close()
    return ""


def checked(url: str) -> str:
    """What `xabridge check` says is wrong with a store; empty for nothing."""
    try:
        return "; ".join(look_at_store(url).faults)
    except StoreError as error:
        return str(error)


@pytest.mark.slow
def test_a_store_with_any_octets_changed_starts_or_says_why_it_does_not(octets: bytes, tmp_path: Path) -> None:
    """In every page, one octet or many. What could not be started can be tried again in the same process."""
    seed = random.randrange(1 << 32)
    drawn = random.Random(seed)
    pages = len(octets) // PAGE_SIZE
    for number in range(FLIPS):
        damaged = bytearray(octets)
        for _ in range(drawn.choice([1, 2, 8, 64])):
            damaged[number % pages * PAGE_SIZE + drawn.randrange(PAGE_SIZE)] ^= drawn.randrange(1, 256)

        where = f"seed {seed}, number {number}"
        url = put(tmp_path / "damaged.db", bytes(damaged))
        try:
            found = checked(url)
            said = started(url)
            assert "in use" not in started(url), where
        except Exception as error:
            raise AssertionError(f"{where}: {error!r}") from error
        assert not said or found or "a row" in said, f"{where}: {said}"


def roots(path: Path) -> dict[str, int]:
    """Table → the number of its first page, from 0."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: page - 1 for name, page in rows}


@pytest.mark.parametrize("table", sorted(METADATA.tables))
def test_the_table_is_named(octets: bytes, tmp_path: Path, table: str) -> None:
    page = roots(tmp_path / "whole.db")[table]
    damaged = bytearray(octets)
    damaged[page * PAGE_SIZE : page * PAGE_SIZE + 200] = b"\xff" * 200
    url = put(tmp_path / "damaged.db", bytes(damaged))
    assert f"damaged in the table {table}" in checked(url)
    assert table in {"dtx_payload", "dtx_chunk"} or "damaged" in started(url)


def test_a_store_that_can_not_be_opened_is_let_go(octets: bytes, tmp_path: Path) -> None:
    """The process can open it when it is repaired."""
    url = put(tmp_path / "store.db", octets)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE dtx_branch SET outcome = 99")
    assert "a row of the store is damaged" in started(url)
    with sqlite3.connect(tmp_path / "store.db") as connection:
        connection.execute("UPDATE dtx_branch SET outcome = NULL")
    assert started(url) == ""


def test_the_error_is_of_a_damaged_store(octets: bytes, tmp_path: Path) -> None:
    url = put(tmp_path / "store.db", octets[: len(octets) // 2])
    with pytest.raises(StoreDamaged, match="damaged"):
        look_at_store(url)
