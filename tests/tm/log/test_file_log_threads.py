"""These tests use FileLog from many threads: what the threads share, and what happens to all of them when a force
fails.
"""

from __future__ import annotations

import errno
import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

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


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(FOLLOWERS + 1) as executor:
        yield executor


def test_who_waits_for_the_disk_shares_the_next_force(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather()
    bottleneck.release()
    for future in futures:
        future.result(60)
    assert bottleneck.disk.forces - bottleneck.forces == 2
    assert {made.gtrid for made in bottleneck.log.decisions()} == {
        decision(sequence).gtrid for sequence in range(FOLLOWERS + 1)
    }
    bottleneck.log.close()


def test_a_failed_force_is_told_to_everybody_who_waits(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather()
    bottleneck.release(OSError(errno.EIO, "Input/output error"))
    for future in futures:
        with pytest.raises(LogStopped, match="Input/output error"):
            future.result(60)
    assert bottleneck.disk.forces == bottleneck.forces
    bottleneck.log.close()


def test_a_full_disk_is_told_to_everybody_of_the_batch_and_to_nobody_else(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool, segment_size=LEAST_SEGMENT_SIZE)
    futures = bottleneck.gather(branches=200)
    bottleneck.disk.capacity = 0
    bottleneck.release()
    futures[0].result(60)
    for future in futures[1:]:
        with pytest.raises(LogFull):
            future.result(60)
    bottleneck.disk.capacity = 1 << 30
    bottleneck.log.decide(decision(99))
    assert list(bottleneck.log.decisions()) == [decision(0), decision(99)]
    bottleneck.log.close()


def test_an_interrupted_leader_holds_up_nobody(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather()
    bottleneck.release(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        futures[0].result(60)
    for future in futures[1:]:
        future.result(60)
    assert len(bottleneck.log.decisions()) == FOLLOWERS + 1
    bottleneck.log.close()


def test_closing_waits_for_those_under_way_and_refuses_the_rest(pool: ThreadPoolExecutor) -> None:
    bottleneck = Bottleneck(pool)
    futures = bottleneck.gather(FOLLOWERS - 1)
    closing = threading.Thread(target=bottleneck.log.close)
    closing.start()
    until(lambda: bottleneck.log._closed)
    bottleneck.release()
    closing.join(60)
    for future in futures:
        future.result(60)
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
