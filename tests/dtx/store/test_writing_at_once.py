"""These tests cover the groups that the SQL store writes on the event loop: which ones, and what happens to others."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator

import pytest

from dtx.store.contract import PENDING, Batch, Step, StoreBusy, StoreError, StoreFull, StoreRefused, StoreStopped
from dtx.store.sql import SqlStore, fsync_latency
from dtx.store.sql.fsync_latency import FOR_EACH, QUICK_S, SLOW_S, ForcePace
from dtx.store.sql.sqlite import PAGE_SIZE, DiskSpace
from dtx.store.sql.writer import SMALL_OCTETS, SMALL_ROWS
from tests.dtx.store.stores import Clock, Loop, Opened, Place, enqueued
from tests.waiting import until
from xa import Xid

QUEUE = 1
XID = Xid(1, b"global", b"branch")
HERE = threading.current_thread()


class Turns:
    """A store that is written to in turns, as the broker does. `threads` tells which thread made each force."""

    def __init__(self, place: Place) -> None:
        self.path = place.path
        self.threads: list[str] = []
        self.calls: list[Step] = []
        self.fails: Exception | None = None
        self.loop = Loop()
        self.store = SqlStore(str(place.where), self.loop.deliver, self.hook, lambda _: None)
        self.opened = Opened(self.store, self.loop)
        assert self.turn(enqueued([1], QUEUE)) == [None]  # nothing is known of the disk before
        assert self.threads == ["thread"]
        self.threads.clear()

    def hook(self, step: Step) -> None:
        """The store's."""
        if step is Step.BEFORE_WRITE:
            self.threads.append("loop" if threading.current_thread() is HERE else "thread")
        if step is Step.WRITTEN and self.fails is not None:
            raise self.fails

    def turn(self, *batches: Batch) -> list[StoreError | None]:
        """Submits, writes, and waits for the answers."""
        answers: list[StoreError | None] = []
        for batch in batches:
            self.store.submit(batch, answers.append)
            assert answers == []
        self.store.write()
        self.loop.until(lambda: len(answers) == len(batches))
        self.until_idle()
        return answers

    def until_idle(self) -> None:
        """Waits until the thread has nothing to do: it answers a group first, and then looks for more."""
        writer = self.store._open.writer
        until(lambda: writer._waiting.empty() and not writer._at_work.locked())


@pytest.fixture
def turns(sqlite_place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """A store on a disk that counts as quick, whatever else this machine does."""
    monkeypatch.setattr(fsync_latency, "QUICK_S", float("inf"))
    monkeypatch.setattr(fsync_latency, "SLOW_S", float("inf"))
    turns = Turns(sqlite_place)
    yield turns
    turns.store.close()


def test_a_small_group_is_durable_and_answered_when_write_returns(turns: Turns) -> None:
    answers: list[StoreError | None] = []
    for number in (2, 3):
        turns.store.submit(enqueued([number], QUEUE), answers.append)
    assert turns.store.waiting_octets > 0
    turns.store.write()
    assert answers == [None, None]
    assert turns.threads == ["loop"]
    assert turns.store.waiting_octets == 0
    assert turns.store.cached(3) == b"payload"
    other = sqlite3.connect(turns.path)
    assert other.execute("SELECT count(*) FROM dtx_message").fetchone() == (3,)
    other.close()


def test_nothing_to_write_is_no_force(turns: Turns) -> None:
    turns.store.write()
    assert turns.threads == []


def test_a_hundred_messages_of_a_branch_are_a_small_group(turns: Turns) -> None:
    """A batch of a consumer: so many are taken, sent and prepared, and then committed."""
    taken, sent = range(100, 200), range(200, 300)
    assert turns.turn(enqueued(taken, QUEUE, bytes(1024))) == [None]
    prepared, committed = Batch(), Batch()
    for number in sent:
        prepared.enqueue(number, QUEUE, PENDING, bytes(1024))
        committed.place(number, QUEUE, number, 0)
    prepared.prepare(9, XID, "owner", 1, enqueues=sent, dequeues=[(number, b"accepted") for number in taken])
    for number in taken:
        committed.dequeue(number, 1024)
    committed.finish(9)
    assert turns.turn(prepared) == turns.turn(committed) == [None]
    assert turns.threads == ["loop"] * 3


def test_what_takes_longer_is_the_threads(turns: Turns) -> None:
    rows = enqueued(range(10, 11 + SMALL_ROWS), QUEUE)
    octets = enqueued([2], QUEUE, bytes(SMALL_OCTETS + 1))
    queue = Batch()
    queue.delete_queue(7)
    for batch in (queue, rows, octets):
        assert turns.turn(batch) == [None]
    assert turns.threads == ["thread"] * 3
    writer = turns.store._open.writer
    until(lambda: not writer._untidy)
    turns.until_idle()
    assert turns.turn(enqueued([3], QUEUE)) == [None]
    assert turns.threads[3:] == ["loop"]


def test_the_order_is_kept_while_the_thread_is_at_work(turns: Turns) -> None:
    """What comes while the thread has a group goes to the thread as well, until that is answered."""
    answers: list[int] = []
    for number in (2, 3, 4):
        payload = bytes(SMALL_OCTETS + 1) if number == 2 else b"payload"
        turns.store.submit(
            enqueued([number], QUEUE, payload),
            lambda error, number=number: answers.append(number) if error is None else None,  # type: ignore[misc]
        )
        turns.store.write()
    assert answers == []
    turns.loop.until(lambda: len(answers) == 3)
    assert answers == [2, 3, 4]
    turns.until_idle()
    assert "loop" not in turns.threads
    assert turns.turn(enqueued([5], QUEUE)) == [None]
    assert turns.threads[-1] == "loop"


def test_the_loop_does_not_wait_for_a_lock(turns: Turns) -> None:
    """Somebody else has the database locked: the thread waits for it."""
    other = sqlite3.connect(turns.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answers: list[StoreError | None] = []
    turns.store.submit(enqueued([2], QUEUE), answers.append)
    turns.store.write()
    assert answers == []
    other.close()
    turns.loop.until(lambda: answers)
    assert answers == [None]
    turns.until_idle()
    assert turns.threads == ["loop", "thread"]
    assert turns.turn(enqueued([3], QUEUE)) == [None]
    assert turns.threads == ["loop", "thread", "loop"]


def test_what_is_refused_is_tried_by_the_thread(turns: Turns) -> None:
    """One of three batches can't be stored: the others are."""
    batches = [enqueued([2], QUEUE), enqueued([1], QUEUE), enqueued([3], QUEUE)]
    answers = turns.turn(*batches)
    assert [type(answer) for answer in answers] == [type(None), StoreRefused, type(None)]
    assert turns.threads == ["loop", "thread", "thread", "thread", "thread"]


@pytest.mark.parametrize(
    ("code", "answer", "after", "threads"),
    [
        (sqlite3.SQLITE_BUSY, StoreBusy, type(None), ["loop", "thread"]),
        (sqlite3.SQLITE_FULL, StoreFull, type(None), ["loop", "thread"]),
        (sqlite3.SQLITE_IOERR, StoreStopped, StoreStopped, ["loop"]),
    ],
    ids=["busy", "full", "a write that fails"],
)
def test_an_error_that_lasts_is_told_by_the_thread_and_one_of_the_disk_stops_the_store(
    turns: Turns, code: int, answer: type[StoreError], after: type, threads: list[str]
) -> None:
    turns.fails = sqlite3.OperationalError("as the test says")
    turns.fails.sqlite_errorcode = code
    assert [type(told) for told in turns.turn(enqueued([2], QUEUE))] == [answer]
    assert turns.threads[:2] == threads
    turns.fails = None
    assert [type(told) for told in turns.turn(enqueued([3], QUEUE))] == [after]


def test_an_unforeseen_error_leaves_nobody_waiting(turns: Turns) -> None:
    class BugError(Exception):
        pass

    turns.fails = BugError()
    answers: list[StoreError | None] = []
    turns.store.submit(enqueued([2], QUEUE), answers.append)
    with pytest.raises(BugError):
        turns.store.write()
    assert [type(answer) for answer in answers] == [StoreStopped]


def test_a_completion_may_submit(turns: Turns) -> None:
    answers: list[StoreError | None] = []

    def again(error: StoreError | None) -> None:
        answers.append(error)
        turns.store.submit(enqueued([3], QUEUE), answers.append)

    turns.store.submit(enqueued([2], QUEUE), again)
    turns.store.write()
    assert answers == [None]
    assert turns.store.waits
    turns.store.write()
    assert answers == [None, None]
    assert not turns.store.waits


def test_no_commit_shortens_the_log(turns: Turns) -> None:
    """The thread does, before a commit would have to: the loop would wait for it."""
    space = turns.store._open.writer._space
    assert isinstance(space, DiskSpace)
    limit = space._log_limit
    for number in range(2, limit):
        assert turns.turn(enqueued([number], QUEUE)) == [None]
    assert turns.path.with_name("store.db-wal").stat().st_size < limit * PAGE_SIZE
    assert turns.threads.count("loop") > limit // 2


def test_unused_space_is_given_back(turns: Turns) -> None:
    """Nothing wakes the thread but `maintain`."""
    many = range(100, 400)
    assert turns.turn(enqueued(many, QUEUE, bytes(60_000))) == [None]
    for number in many:
        batch = Batch()
        batch.dequeue(number, 60_000)
        assert turns.turn(batch) == [None]
    writer = turns.store._open.writer
    assert writer._untidy
    turns.store.maintain()
    until(lambda: not writer._untidy)


# -- pace
def test_the_first_force_is_the_threads() -> None:
    paced = ForcePace(Clock())
    assert not paced.quick
    paced.took(QUICK_S / 2)
    assert [paced.quick] == [True]


def test_a_disk_that_is_slow_on_average_is_the_threads() -> None:
    paced = ForcePace(Clock())
    for _ in range(100):
        paced.took(2 * QUICK_S)
        assert not paced.quick
    for _ in range(100):
        paced.took(QUICK_S / 2)
    assert paced.quick


def test_after_one_slow_force_the_thread_forces_for_a_multiple_of_its_time() -> None:
    clock = Clock()
    paced = ForcePace(clock)
    for _ in range(100):
        paced.took(QUICK_S / 4)
    assert paced.quick
    paced.took(2.0)
    assert [paced.quick] == [False]
    for _ in range(100):
        paced.took(QUICK_S / 4)
    clock.now += FOR_EACH * 2.0 - 1
    assert [paced.quick] == [False]
    clock.now += 1
    assert [paced.quick] == [True]
    paced.took(SLOW_S)
    assert [paced.quick] == [True]
