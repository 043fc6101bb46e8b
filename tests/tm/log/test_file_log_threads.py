"""These tests use FileLog from many threads: what the threads share, and what happens to all of them when a force
fails.
"""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from tests.tm.log.disk import Disk
from tests.tm.log.samples import decision, heuristic
from tests.tm.log.waiting import until
from tm.log import Decision, FileLog, LogFull, LogStopped, read_log
from tm.log.journal import LEAST_SEGMENT_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE = "orders-1"
FOLLOWERS = 15


class Bottleneck:
    """A log whose leader is held inside its force, while the others gather behind it."""

    def __init__(self, pool: ThreadPoolExecutor, *, segment_size: int = 1 << 20) -> None:
        self.disk = Disk()
        self.log = FileLog("", NODE, segment_size=segment_size, files=self.disk)
        self.forces = self.disk.forces
        self.pool = pool
        self.go_on = threading.Event()
        self.forcing = threading.Event()
        self.failure: BaseException | None = None
        """What the held force comes to."""
        self.disk.trouble = self._trouble

    def _trouble(self, _: int, what: str) -> None:
        if what == "force" and not self.forcing.is_set():
            self.forcing.set()
            assert self.go_on.wait(60)
            if self.failure is not None:
                raise self.failure

    def gather(self, followers: int = FOLLOWERS, branches: int = 2) -> list[Future[None]]:
        """One decides and is held; then so many others decide, and wait."""
        futures = [self.pool.submit(self.log.decide, decision(0))]
        assert self.forcing.wait(60)
        futures += [
            self.pool.submit(self.log.decide, decision(sequence, branches)) for sequence in range(1, followers + 1)
        ]
        until(lambda: len(self.log._filling.records) == followers)
        assert not any(future.done() for future in futures), "somebody was told before the force"
        assert list(self.log.decisions()) == [], "something is visible before the force"
        return futures

    def release(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.go_on.set()

    def come_to(self, futures: list[Future[None]], error: type[BaseException] | None, match: str | None = None) -> None:
        for future in futures:
            with pytest.raises(error, match=match) if error is not None else nullcontext():
                future.result(60)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(FOLLOWERS + 1) as executor:
        yield executor


@pytest.mark.parametrize(
    ("failure", "leader", "others", "forces"),
    [
        (None, None, None, 2),
        (OSError(errno.EIO, "Input/output error"), LogStopped, LogStopped, 0),
        (KeyboardInterrupt(), KeyboardInterrupt, None, 2),
    ],
    ids=repr,
)
def test_who_waits_for_the_disk_shares_the_next_force_and_hears_what_it_comes_to(
    pool: ThreadPoolExecutor, failure: BaseException | None, leader: Any, others: Any, forces: int
) -> None:
    """A leader that is interrupted holds up nobody."""
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather()
    bottleneck.release(failure)
    match = "Input/output error" if others is LogStopped else None
    bottleneck.come_to(futures[:1], leader, match)
    bottleneck.come_to(futures[1:], others, match)
    assert bottleneck.disk.forces - bottleneck.forces == forces
    if others is None:
        assert {made.gtrid for made in bottleneck.log.decisions()} == {
            decision(sequence).gtrid for sequence in range(FOLLOWERS + 1)
        }
    bottleneck.log.close()


def test_a_full_disk_is_told_to_everybody_of_the_batch_and_to_nobody_else(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool, segment_size=LEAST_SEGMENT_SIZE)
    futures = bottleneck.gather(branches=200)
    bottleneck.disk.capacity = 0
    bottleneck.release()
    bottleneck.come_to(futures[:1], None)
    bottleneck.come_to(futures[1:], LogFull)
    bottleneck.disk.capacity = 1 << 30
    bottleneck.log.decide(decision(99))
    assert list(bottleneck.log.decisions()) == [decision(0), decision(99)]
    bottleneck.log.close()


def test_closing_waits_for_those_under_way_and_refuses_the_rest(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather(FOLLOWERS - 1)
    closing = threading.Thread(target=bottleneck.log.close)
    closing.start()
    until(lambda: bottleneck.log._closed)
    bottleneck.release()
    closing.join(60)
    bottleneck.come_to(futures, None)
    with pytest.raises(LogStopped, match="closed"):
        bottleneck.log.decide(decision(99))
    assert len(read_log("", files=bottleneck.disk).decisions) == FOLLOWERS


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_64_threads_of_everything(tmp_path: Path, rounds: int) -> None:
    """With small segments, so that the log moves on all the time, and with looks from inside and outside."""
    log = FileLog(tmp_path / "log", NODE, segment_size=1 << 16)
    stuck = decision(0)
    log.decide(stuck)
    done = threading.Event()

    def work(thread: int) -> list[Decision]:
        rng = random.Random(thread)
        kept = []
        for turn in range(rounds):
            made = decision(1 + thread + 64 * turn, rng.randrange(1, 5))
            log.decide(made)
            assert log.decision(made.gtrid) == made
            if rng.random() < 0.95:
                log.end(made.gtrid)
            else:
                kept.append(made)
            if rng.random() < 0.05:
                log.note_heuristic(heuristic(1 + thread + 64 * turn))
                log.drop_heuristic(heuristic(1 + thread + 64 * turn).branch)
        return kept

    def look() -> int:
        looks = 0
        while not done.is_set() or looks == 0:
            assert stuck in log.decisions()
            assert stuck in read_log(tmp_path / "log").decisions
            looks += 1
        return looks

    with ThreadPoolExecutor(65) as executor:
        looking = executor.submit(look)
        futures = [executor.submit(work, thread) for thread in range(64)]
        kept = [made for future in futures for made in future.result(100)]
        done.set()
        assert looking.result(100) > 0
    expected = {made.gtrid: made for made in [stuck, *kept]}
    assert {made.gtrid: made for made in log.decisions()} == expected
    assert log.heuristics() == []
    log.close()
    log = FileLog(tmp_path / "log", NODE, segment_size=1 << 16)
    assert {made.gtrid: made for made in log.decisions()} == expected
    log.close()
