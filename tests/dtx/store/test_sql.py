"""These tests cover the SQL store: group commit, failures, opening, and what it keeps in memory."""

from __future__ import annotations

import os
import resource
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from dtx.broker.broker import rehearse_start
from dtx.store.contract import (
    PENDING,
    Batch,
    Restored,
    Step,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreRefused,
    StoreStopped,
)
from dtx.store.sql import SqlStore
from dtx.store.sql.disk_reserve import DiskReserve
from dtx.store.sql.inspection import look_at_store
from dtx.store.sql.store import open_database
from tests.dtx.store.stores import WAIT_S, Loop, Opened, Place, enqueued
from tests.postgres import Postgres
from xa import Xid

QUEUE = 1


def cursor_of(opened: Opened) -> Any:
    """One more cursor of the connection that writes: the writer's own is at work, in its thread."""
    assert isinstance(opened.store, SqlStore)
    return opened.store._open.writer._transactions.cursor.connection.cursor()


class Gate:
    """Holds the writer between the write and the force of its first group."""

    def __init__(self) -> None:
        self.held, self.opened = threading.Event(), threading.Event()

    def __call__(self, step: Step) -> None:
        if step is Step.WRITTEN and not self.held.is_set():
            self.held.set()
            assert self.opened.wait(WAIT_S)


def test_all_that_waits_shares_one_force_and_nobody_is_answered_before_it(sql_place: Place) -> None:
    """While the writer stands between write and force, forty others come: they are one group. Nothing is delivered
    meanwhile, and a reader sees nothing."""
    gate = Gate()
    opened = sql_place.open(gate)
    answers: list[tuple[int, StoreError | None]] = []
    store = opened.store
    assert isinstance(store, SqlStore)
    for number in range(1, 42):
        batch = enqueued([number], QUEUE)
        store.submit(batch, lambda error, number=number: answers.append((number, error)))  # type: ignore[misc]
        if number == 1:
            assert gate.held.wait(WAIT_S)

    assert opened.fetch(1) == {}
    assert answers == []
    gate.opened.set()
    opened.loop.until(lambda: len(answers) == 41)
    assert answers == [(number, None) for number in range(1, 42)]
    assert store.groups == 2
    assert opened.fetch(1) == {1: b"payload"}
    assert len(list(sql_place.open().restored.messages())) == 41


def test_a_full_store_refuses_and_goes_on(sqlite_place: Place) -> None:
    opened = sqlite_place.open()
    opened.keep(enqueued(range(1, 100), QUEUE, b"x" * 1000))
    cursor = cursor_of(opened)
    (pages,) = cursor.execute("PRAGMA page_count").fetchone()
    cursor.execute(f"PRAGMA max_page_count = {pages}")

    (error,) = opened.submit(enqueued(range(100, 300), QUEUE, b"x" * 1000))
    assert type(error) is StoreFull
    with opened.batch() as batch:
        for number in range(1, 60):
            batch.dequeue(number, 1000)
    opened.keep(enqueued(range(300, 320), QUEUE, b"y" * 1000))
    left = [facts.number for facts in sqlite_place.open().restored.messages()]
    assert left == [*range(60, 100), *range(300, 320)]


def test_what_the_database_refuses_is_refused_alone(sql_place: Place) -> None:
    """Of batches that were to be forced together one names a message that is there already: it has no effect, and those
    beside it are kept, in their order."""
    gate = Gate()
    opened = sql_place.open(gate)
    answers: list[StoreError | None] = []
    poisoned = enqueued([4, 1], QUEUE, b"poison")
    poisoned.create_queue(9, "never")
    opened.store.submit(enqueued([1], QUEUE), answers.append)
    assert gate.held.wait(WAIT_S)

    for batch in (enqueued([2], QUEUE), poisoned, enqueued([3], QUEUE)):
        opened.store.submit(batch, answers.append)
    gate.opened.set()
    opened.loop.until(lambda: len(answers) == 4)
    assert [type(answer) for answer in answers] == [type(None), type(None), StoreRefused, type(None)]
    assert opened.fetch(1, 2, 3, 4) == {1: b"payload", 2: b"payload", 3: b"payload"}
    opened.keep(enqueued([5], QUEUE))
    restored = sql_place.open().restored
    assert [facts.number for facts in restored.messages()] == [1, 2, 3, 5]
    assert not restored.queues


def test_a_database_that_somebody_else_has_locked_refuses_and_goes_on(sqlite_place: Place) -> None:
    """All that waited is refused at once, and not one by one; what comes later is kept."""
    opened = sqlite_place.open()
    opened.keep(enqueued([1], QUEUE))
    cursor_of(opened).execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(sqlite_place.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers = opened.submit(enqueued([2], QUEUE), enqueued([3], QUEUE))
    assert [type(answer) for answer in answers] == [StoreBusy, StoreBusy]
    other.close()
    opened.keep(enqueued([4], QUEUE))
    assert [facts.number for facts in sqlite_place.open().restored.messages()] == [1, 4]


def test_a_failed_force_stops_the_store(sqlite_place: Place) -> None:
    """The operating system refuses to write at the second force: this and all later batches are told so, also
    when writing would work again, until the store is opened anew."""
    forces = 0

    def hook(step: Step) -> None:
        nonlocal forces
        forces += step is Step.WRITTEN
        if forces == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    opened = sqlite_place.open(hook)
    try:
        answers = [opened.submit(enqueued([number], QUEUE))[0] for number in (1, 2, 3)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    answers += opened.submit(enqueued([4], QUEUE))
    assert [type(answer) for answer in answers] == [type(None), StoreStopped, StoreStopped, StoreStopped]
    assert str(answers[1]).startswith("the store has stopped, open it again: a force failed")
    assert str(answers[3]) == str(answers[1])
    assert [facts.number for facts in sqlite_place.open().restored.messages()] == [1]


def test_a_lost_database_stops_the_store(postgres: Postgres) -> None:
    def hook(step: Step) -> None:
        if step is Step.WRITTEN and armed.is_set():
            postgres.kill()

    armed = threading.Event()
    place = Place(postgres.create_database())
    opened = place.open(hook)
    opened.keep(enqueued([1], QUEUE))
    armed.set()
    answers = opened.submit(enqueued([2], QUEUE)) + opened.submit(enqueued([3], QUEUE))
    assert [type(answer) for answer in answers] == [StoreStopped, StoreStopped]
    place.close()
    postgres.start()
    again = place.open()
    assert [facts.number for facts in again.restored.messages()] == [1]
    place.close()


def test_an_unforeseen_error_in_the_writer_leaves_nobody_waiting(sqlite_place: Place) -> None:
    class BugError(Exception):
        pass

    def hook(step: Step) -> None:
        if step is Step.WRITTEN:
            raise BugError

    reported: list[threading.ExceptHookArgs] = []
    before, threading.excepthook = threading.excepthook, reported.append
    try:
        opened = sqlite_place.open(hook)
        answers = opened.submit(enqueued([1], QUEUE)) + opened.submit(enqueued([2], QUEUE))
        sqlite_place.close()
    finally:
        threading.excepthook = before
    assert [type(answer) for answer in answers] == [StoreStopped, StoreStopped]
    assert [report.exc_type for report in reported] == [BugError]
    assert list(sqlite_place.open().restored.messages()) == []


def test_one_process_has_the_store(sql_place: Place) -> None:
    sql_place.open()
    with pytest.raises(StoreLocked, match="in use"):
        sql_place.make(Loop()).open()
    sql_place.close()
    sql_place.open()


@pytest.mark.slow
def test_a_look_while_it_is_at_work(sql_place: Place) -> None:
    """What a start would read, as it is at one moment, though the store goes on writing meanwhile."""
    opened = sql_place.open()
    with opened.batch() as batch:
        batch.create_queue(opened.first, "orders")
    opened.keep(enqueued(range(opened.first + 1, opened.first + 2001), opened.first))
    seen: list[int] = []

    def rehearse(restored: Restored) -> None:
        rehearse_start(restored)
        opened.keep(enqueued([opened.first + 3000 + len(seen)], opened.first))
        seen.append(len(list(restored.messages())))

    for _ in range(3):
        assert look_at_store(str(sql_place.where), rehearse).faults == ()
    assert seen == [2000, 2001, 2002]
    assert len(list(sql_place.open().restored.messages())) == 2003


@pytest.mark.slow
def test_a_first_opening_that_fails_at_any_statement_leaves_a_store_that_can_be_opened(sqlite_place: Place) -> None:
    """A disk that fails for a moment (EIO) leaves all of the tables, with their version, or none."""
    statements = 0
    for failing in count(1):
        statements = 0

        def fail(*_: object) -> None:
            nonlocal statements
            statements += 1
            if statements == failing:  # noqa: B023 — called before the next one
                raise sqlite3.OperationalError("disk I/O error")

        event.listen(Engine, "before_cursor_execute", fail)
        try:
            sqlite_place.open()
        except (StoreError, sqlite3.OperationalError):
            pass
        finally:
            event.remove(Engine, "before_cursor_execute", fail)
        if statements < failing:
            break
        assert list(sqlite_place.open().restored.messages()) == []
        sqlite_place.close()
        for file in sqlite_place.path.parent.glob(f"{sqlite_place.path.name}*"):
            file.unlink()
    assert statements > 10


def test_what_is_not_ours_and_tables_of_another_version_are_not_opened(sqlite_place: Place) -> None:
    cursor_of(sqlite_place.open()).execute("UPDATE dtx_meta SET value = 99 WHERE name = 'version'")
    with pytest.raises(StoreError, match="made by a newer version"):
        sqlite_place.open()
    sqlite_place.path.write_bytes(b"not a database at all, but a text of some length. " * 100)
    with pytest.raises(StoreDamaged, match="not a database"):
        sqlite_place.open()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "not the URL of a store"),
        ("mysql://host/name", "not in mysql"),
        ("sqlite://", "needs a file"),
        ("sqlite:////proc/store.db", "can't be opened"),
        ("postgresql://nobody@127.0.0.1:1/none", "can't be opened"),
    ],
)
def test_a_wrong_url_is_told_in_a_sentence(url: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        Place(url).open()


def test_a_closed_store_says_so(sqlite_place: Place) -> None:
    opened = sqlite_place.open()
    sqlite_place.close()
    with pytest.raises(StoreError, match="not open"):
        opened.store.submit(Batch(), print)


def test_closing_forces_what_waits(sql_place: Place) -> None:
    opened = sql_place.open()
    for number in range(1, 200):
        opened.store.submit(enqueued([number], QUEUE), lambda _: None)
    assert len(list(sql_place.open().restored.messages())) == 199


def test_the_file_is_the_owners_and_forced_at_every_commit(sqlite_place: Place) -> None:
    opened = sqlite_place.open()
    assert sqlite_place.path.stat().st_mode & 0o077 == 0
    cursor = cursor_of(opened)
    assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert cursor.execute("PRAGMA synchronous").fetchone() == (2,)


def test_payloads_leave_memory_with_the_force(sqlite_place: Place) -> None:
    """20 MB go through a store whose cache may hold 1 MB."""
    loop = Loop()
    opened = Opened(SqlStore(str(sqlite_place.where), loop.deliver, cache_octets=1_000_000), loop)
    opened.keep(enqueued([1], QUEUE))
    tracemalloc.start()

    try:
        for first in range(100, 300, 10):
            batch = Batch()
            for number in range(first, first + 10):
                batch.enqueue(number, QUEUE, number, os.urandom(100_000))
            opened.keep(batch)
            del batch
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
    kept = [number for number in range(100, 300) if opened.store.cached(number) is not None]
    assert kept == [*range(290, 300)]
    opened.store.close()


def test_what_a_turn_submits_has_one_force(sqlite_place: Place) -> None:
    loop = Loop()
    later: list[Callable[[], None]] = []
    store = SqlStore(str(sqlite_place.where), loop.deliver, soon=later.append)
    store.open()
    told: list[StoreError | None] = []
    for first in (1, 11, 21):
        store.submit(enqueued(range(first, first + 10), QUEUE), told.append)
    assert len(later) == 1

    assert (store.groups, store.waiting_octets) == (0, 30 * len(b"payload"))
    later.pop()()
    loop.until(lambda: len(told) == 3)
    assert (told, store.groups, store.waiting_octets) == ([None] * 3, 1, 0)
    store.submit(enqueued([31], QUEUE), told.append)
    store.hand_over()
    later.pop()()  # there is nothing left to hand over
    store.close()
    loop.until(lambda: len(told) == 4)
    assert len(list(sqlite_place.open().restored.messages())) == 31


def test_a_dequeued_payload_leaves_the_cache(sqlite_place: Place) -> None:
    opened = sqlite_place.open()
    opened.keep(enqueued([1, 2], QUEUE))
    assert opened.store.cached(1) == b"payload"
    with opened.batch() as batch:
        batch.dequeue(1, 7)
    assert opened.store.cached(1) is None
    assert opened.store.cached(2) == b"payload"


def test_restoring_reads_no_payload(sqlite_place: Place) -> None:
    """10 MB of payloads stand in the store; opening it takes a small part of that, however it is read."""
    opened = sqlite_place.open()
    for first in range(1, 101, 50):
        opened.keep(enqueued(range(first, first + 50), QUEUE, os.urandom(100_000)))
    sqlite_place.close()
    tracemalloc.start()
    try:
        again = sqlite_place.open()
        count = sum(1 for _ in again.restored.messages())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 100
    assert peak < 3_000_000


def test_folders_that_it_makes_are_there_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    force = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    open_database(f"sqlite:///{tmp_path}/one/two/store.db").close()
    for folder in (tmp_path, tmp_path / "one", tmp_path / "one" / "two"):
        assert str(folder) in forced


def test_what_was_promised_is_kept_free_of_what_takes_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies of a message that a branch has posted to a topic take what was kept for them."""
    monkeypatch.setattr(DiskReserve, "free", 12 << 20)
    place = Place(f"sqlite:///{tmp_path / 'store.db'}")
    opened = place.open()
    with opened.batch() as batch:
        batch.create_queue(1, "orders")
        batch.enqueue(2, 1, PENDING, b"posted")
        batch.prepare(3, Xid(1, b"g", b"b"), "me", 1, enqueues=[2])

    opened.store.promised = 10 << 20
    more, copies = Batch(), Batch()
    more.enqueue(4, 1, 4, b"x" * 1000)
    copies.finish(3)
    copies.unpost(2)
    for number in (5, 6):
        copies.copy(number, 2, 1, number, 6)
    refused, taken = opened.submit(more, copies)
    assert isinstance(refused, StoreFull)
    assert taken is None
    opened.store.promised = 0
    opened.keep(more)
    assert [message.number for message in place.open().restored.messages()] == [4, 5, 6]
    place.close()
