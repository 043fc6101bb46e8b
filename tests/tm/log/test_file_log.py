"""These tests use FileLog through its public methods, from one thread and from many: what the threads share, and what
happens to all of them when a force fails."""

from __future__ import annotations

import errno
import logging
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.memory_disk import as_unprivileged, new_folder
from tests.tm.log.disk import Disk
from tests.tm.log.samples import decision, gtrid
from tests.waiting import until
from tm.log import (
    FileLog,
    LogDamaged,
    LogError,
    LogFull,
    LogLocked,
    LogStopped,
    read_log,
)
from tm.log.backup import back_up
from tm.log.folder_check import examine_folder
from tm.log.journal import LEAST_SEGMENT_SIZE
from tm.log.segment import HEADER_SIZE

NODE = "orders-1"
SMALL = 2 * HEADER_SIZE


def open_log(directory: Path, node: str = NODE) -> FileLog:
    return FileLog(directory, node, segment_size=SMALL)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_what_is_no_log_of_this_node_is_refused_and_says_what_to_do(directory: Path) -> None:
    open_log(directory).close()
    with pytest.raises(LogError, match=r"is the decision log of node 'orders-1', not of 'orders-2'"):
        open_log(directory, "orders-2")
    open_log(directory).close()
    with pytest.raises(LogError, match=f"mkdir -p {directory.parent}/not"):
        open_log(directory.parent / "not" / "log")
    assert not (directory.parent / "not").exists()
    for nowhere in (directory.parent, directory.parent / "nowhere"):
        with pytest.raises(LogError, match="there is no decision log here"):
            read_log(nowhere)


def test_a_second_one_is_told_who_holds_the_log(directory: Path) -> None:
    log = open_log(directory)
    with pytest.raises(LogLocked, match=rf"in use by process {os.getpid()} on {os.uname().nodename}") as refused:
        open_log(directory)
    assert str(refused.value) == refused.value.held + (
        ". Stop that one, or give this one a node and a log of its own, or let a database decide "
        '(mode = "decider"), which any number of processes may share'
    )
    log.close()
    open_log(directory).close()


def test_the_lock_does_not_outlive_its_process_and_a_fork_does_not_hold_it(directory: Path) -> None:
    """The parent opens the log and forks; the child can neither write nor keep others out after the parent."""
    ready, tell_ready = os.pipe()
    hold, release = os.pipe()
    parent = os.fork()
    if parent == 0:
        log = open_log(directory)
        log.decide(decision(1))
        child = os.fork()
        if child == 0:
            try:
                log.decide(decision(2))
            except LogStopped as error:
                log.close()
                os.write(tell_ready, f"{os.getpid()} {error}".encode())
            os.read(hold, 1)
            os._exit(0)
        os.read(hold, 1)
        os._exit(1)

    child_id, _, message = os.read(ready, 400).decode().partition(" ")
    try:
        assert message == "this process is a fork of the one that opened the log"
        with pytest.raises(LogLocked, match=f"in use by process {parent} "):
            open_log(directory)
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        log = open_log(directory)
        assert list(log.decisions()) == [decision(1)]
        log.close()
    finally:
        os.kill(int(child_id), signal.SIGKILL)
        for end in (ready, tell_ready, hold, release):
            os.close(end)


@pytest.mark.parametrize("transactions", [1_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_the_log_takes_two_segments_however_long_it_runs(transactions: int) -> None:
    """Also when one decision never ends, because its resource manager never comes back. It needs no more than what it
    takes when it is opened: a disk that is full then does not stop it."""
    disk = Disk()
    log = FileLog("", NODE, segment_size=2 * SMALL, files=disk)
    disk.capacity = disk.used
    for sequence in range(transactions):
        log.decide(decision(sequence))
        if sequence != 3:
            log.end(decision(sequence).gtrid)
        assert disk.used == 4 * SMALL
    assert disk.forces < 1.05 * transactions
    assert list(log.decisions()) == [decision(3)]
    log.close()
    log = FileLog("", NODE, segment_size=2 * SMALL, files=disk)
    assert list(log.decisions()) == [decision(3)]
    log.close()


def test_segments_grow_with_what_is_undecided_and_shrink_again() -> None:
    """Each is a few times as large as what it begins with, so that moving on stays cheap."""
    disk = Disk()
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    for sequence in range(400):
        log.decide(decision(sequence))
    state = sum(map(len, log._state.records()))
    assert disk.used <= 16 * state
    assert disk.forces < 400 * 1.1
    for sequence in range(400):
        log.end(decision(sequence).gtrid)
    for sequence in range(400, 4000):
        log.decide(decision(sequence))
        log.end(decision(sequence).gtrid)
    assert disk.used < 12 * SMALL
    log.close()


def test_one_decision_may_be_larger_than_a_segment() -> None:
    large = decision(1, branches=2000)
    disk = Disk()
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    log.decide(decision(0))
    log.decide(large)
    log.close()
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    assert list(log.decisions()) == [decision(0), large]
    log.close()


def damaged(directory: Path) -> tuple[Path, bytearray]:
    """The segment whose first decision is changed, and its octets."""
    segment = next(path for path in directory.iterdir() if path.name.startswith("segment"))
    octets = bytearray(segment.read_bytes())
    octets[octets.index(decision(1).gtrid)] ^= 1
    segment.write_bytes(octets)
    return segment, octets


@pytest.mark.parametrize("closed", [False, True])
def test_a_damaged_middle_is_not_opened_and_the_message_says_where(directory: Path, *, closed: bool) -> None:
    """The last record of a closed log is not taken for a torn one."""
    log = open_log(directory)
    log.decide(decision(1))
    if closed:
        log.close()
    else:
        log.decide(decision(2))
        log._journal.close()
    segment, octets = damaged(directory)
    for look in (open_log, read_log):
        with pytest.raises(LogDamaged) as caught:
            look(directory)
        assert str(directory) in str(caught.value)
        assert segment.name in str(caught.value)
        assert f"octet {HEADER_SIZE + 24 + 10}" in str(caught.value)
    assert segment.read_bytes() == octets


@pytest.mark.parametrize("closed", ["segment-0000000000000001", "", ".."])
def test_what_this_user_may_not_read_is_named(closed: str) -> None:
    """A segment, the folder, and the one above it; by a look, an opening, a copy and the examination of the folder."""
    directory = new_folder("closed") / "log"
    open_log(directory).close()
    for path in (directory, *directory.iterdir()):
        path.chmod(0o777)
    (directory / closed).chmod(0)
    destination = new_folder("copies")
    destination.chmod(0o777)

    with as_unprivileged():
        for look in (open_log, read_log, lambda folder: back_up(folder, destination / "copy")):
            with pytest.raises(
                LogError, match=f"{directory}: the log can't be (read|opened): Permission denied"
            ) as caught:
                look(directory)
            assert "who may read and write there" in str(caught.value)
            assert closed in str(caught.value) or closed == ".."
        checks = list(examine_folder(directory))
    assert closed.startswith("segment") != any("can't be written" in check.found for check in checks)
    (directory / closed).chmod(0o777)


def test_a_segment_that_is_gone_or_has_another_name_is_missed(directory: Path) -> None:
    log = open_log(directory)
    log.decide(decision(1))
    log.close()
    segment = directory / "segment-0000000000000001"

    for away, told in (
        (directory.parent / segment.name, "the segment with the decisions is missing"),
        (directory / "segment-0000000000000009", "generation 1"),
    ):
        segment.rename(away)
        for look in (open_log, read_log):
            with pytest.raises(LogDamaged, match=told):
                look(directory)
        away.rename(segment)
    log = open_log(directory)
    assert list(log.decisions()) == [decision(1)]
    log.close()


def test_nothing_is_lost_by_not_closing_and_it_is_said(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(directory)
    log.decide(decision(1))
    log._journal.close()
    with caplog.at_level(logging.INFO):
        log = open_log(directory)
        assert list(log.decisions()) == [decision(1)]
        log.close()
        assert "was not closed" in caplog.text
        caplog.clear()
        open_log(directory).close()
        assert "was not closed" not in caplog.text


def test_a_full_disk_at_the_beginning_makes_no_log() -> None:
    disk = Disk(capacity=SMALL - 1)
    with pytest.raises(LogFull, match="no space for a segment of 8192 octets"):
        FileLog("", NODE, segment_size=SMALL, files=disk)
    assert not disk.locked
    assert disk.used == 0
    disk.capacity = 2 * SMALL
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    assert log.openings == 1
    log.close()


def test_where_the_disk_is_full_a_decision_is_refused_until_there_is_room() -> None:
    disk = Disk(capacity=2 * SMALL)
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    accepted: list[int] = []

    def decide_on_and_on() -> None:
        for sequence in range(1000):
            log.decide(decision(sequence))
            accepted.append(sequence)

    with pytest.raises(LogFull, match="make room"):
        decide_on_and_on()
    refused = accepted[-1] + 1
    assert len(accepted) > 20
    with pytest.raises(LogFull):
        log.decide(decision(refused))
    assert list(log.decisions()) == [decision(sequence) for sequence in accepted]
    for sequence in accepted[:10]:
        log.end(decision(sequence).gtrid)
    log.decide(decision(refused + 1))
    expected = [decision(sequence) for sequence in [*accepted[10:], refused + 1]]
    assert list(log.decisions()) == expected
    disk.capacity = 1 << 20
    for sequence in range(2000, 2100):
        log.decide(decision(sequence))
    log.close()
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    assert list(log.decisions()) == expected + [decision(sequence) for sequence in range(2000, 2100)]
    log.close()


def test_a_failed_force_stops_the_log_for_good() -> None:
    disk = Disk()
    log = FileLog("", NODE, segment_size=SMALL, files=disk)
    log.decide(decision(1))

    def failing(_: int, what: str) -> None:
        if what == "force":
            raise OSError(5, "Input/output error")

    disk.trouble = failing
    with pytest.raises(LogStopped, match="Input/output error"):
        log.decide(decision(2))
    disk.trouble = None
    steps = disk.steps
    for call in (lambda: log.decide(decision(3)), log.decisions, lambda: log.decision(gtrid(2)), log.heuristics):
        with pytest.raises(LogStopped, match="Input/output error"):
            call()
    log.close()
    assert disk.steps == steps, "nothing was tried again"


# --- many threads --------------------------------------------------------------------------------------------------
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
