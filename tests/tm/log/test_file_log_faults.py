"""These tests run FileLog on a disk that fails, runs full or loses power, at every step of a run that uses every
operation.

`Run` does the same each time: it opens the log, decides, ends, notes and drops, fills several segments, closes and
opens again; and it keeps the answers. After the fault the log is opened on what is left of the disk.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable

import pytest

from tests.cases import each
from tests.tm.log.disk import Disk, PowerCut
from tests.tm.log.samples import decision, heuristic
from tm.log import Branch, Decision, FileLog, Heuristic, LogError, LogFull, LogStopped, read_log
from tm.log.incarnations import IncarnationState
from tm.log.journal import LEAST_SEGMENT_SIZE, segment_name

pytestmark = pytest.mark.slow

NODE = "orders-1"
EVERY_POINT = os.environ.get("XABRIDGE_POINTS") == "all"
LONG = os.environ.get("XABRIDGE_LONG") == "all"
SMALL = LEAST_SEGMENT_SIZE
"""So small that a segment holds a few records, and the run needs many."""


class Run:
    """What was asked of a log, and what was answered."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.log: FileLog | None = None
        self.log_id: bytes | None = None
        self.incarnation = b""
        self.asked: dict[bytes, Decision] = {}
        self.promised: dict[bytes, Decision] = {}
        self.refused: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.noted: dict[Branch, Heuristic] = {}
        self.unsure: set[Branch] = set()
        """Branches whose heuristic outcome was being noted or dropped when the run was broken off."""

    def open(self) -> None:
        log = FileLog("", NODE, segment_size=SMALL, files=self.disk)
        self.log_id = log.log_id
        self.incarnation = log.incarnation
        self.log = log

    def decide(self, made: Decision) -> None:
        assert self.log is not None
        self.asked[made.gtrid] = made
        try:
            self.log.decide(made)
        except LogFull:
            self.refused.add(made.gtrid)
            raise
        assert self.log.incarnation == self.incarnation
        assert self.log.incarnations.noted[self.incarnation] is IncarnationState.OPEN
        self.promised[made.gtrid] = made

    def end(self, gtrid: bytes) -> None:
        assert self.log is not None
        self.ended.add(gtrid)
        self.log.end(gtrid)

    def note(self, outcome: Heuristic) -> None:
        assert self.log is not None
        self.unsure.add(outcome.branch)
        self.log.note_heuristic(outcome)
        self.noted[outcome.branch] = outcome
        self.unsure.discard(outcome.branch)

    def drop(self, branch: Branch) -> None:
        assert self.log is not None
        self.unsure.add(branch)
        self.log.drop_heuristic(branch)
        self.noted.pop(branch, None)
        self.unsure.discard(branch)

    def everything(self) -> None:
        """The run. What it raises is what the fault raised."""
        self.open()
        assert self.log is not None
        for sequence in range(64):
            self.decide(decision(sequence, branches=9 + sequence % 3))
            if sequence not in (3, 40):
                self.end(decision(sequence).gtrid)
            if sequence % 8 == 5:
                self.note(heuristic(sequence))
            if sequence % 16 == 14:
                self.drop(heuristic(sequence - 9).branch)
        self.log.close()
        self.open()
        self.decide(decision(100, branches=5))
        self.log.close()

    def check(self, log: FileLog) -> None:
        """`log` was opened after the run, keeps its promises, and left nothing lying about."""
        told = {made.gtrid: made for made in log.decisions()}
        for gtrid, made in self.promised.items():
            assert gtrid in told or gtrid in self.ended, "a decision was lost"
            assert told.get(gtrid, made) == made
        for gtrid, made in told.items():
            assert self.asked.get(gtrid) == made, "a decision that nobody took"
            assert gtrid not in self.refused, "a decision that was refused"

        outcomes = {outcome.branch: outcome for outcome in log.heuristics()}
        for branch in self.noted.keys() | outcomes.keys():
            if branch not in self.unsure:
                assert outcomes.get(branch) == self.noted.get(branch)
        if self.log_id is not None:
            assert log.log_id == self.log_id
        if self.incarnation:
            assert log.incarnation != self.incarnation
            assert log.incarnations.noted[self.incarnation] is IncarnationState.WHOLE
        names = sorted(log._journal._files.names())
        assert names == [segment_name(log._journal._header.generation), "spare"]

    def check_what_is_left(self) -> None:
        """Of the disk, with and without a power cut."""
        for seed in range(2):
            self.check(reopened(self.disk.crashed(random.Random(seed))))
        self.check(reopened(self.disk))


def steps_of_a_run() -> int:
    disk = Disk()
    Run(disk).everything()
    return disk.steps


STEPS = range(1, steps_of_a_run() + 1)
SEED = int(os.environ.get("XABRIDGE_SEED", "20"))
SOME = STEPS if EVERY_POINT else sorted(random.Random(SEED).sample(STEPS, len(STEPS) // 4))
"""The steps of the run that are tried: all of them, or a sample; the run does the same again and again."""


def raising(at: int, make: Callable[[], BaseException], *, times: int = 1) -> Callable[[int, str], None]:
    """A trouble that raises at step `at`, and so many times in all."""

    def trouble(step: int, what: str) -> None:
        del what
        if at <= step < at + times:
            raise make()

    return trouble


def reopened(disk: Disk) -> FileLog:
    disk.locked = False
    disk.trouble = None
    disk.capacity = 1 << 30
    return FileLog("", NODE, segment_size=SMALL, files=disk)


def test_the_run_touches_everything() -> None:
    disk = Disk()
    seen: set[str] = set()
    disk.trouble = lambda _, what: seen.add(what)
    run = Run(disk)
    run.everything()
    assert seen == {
        "create", "write", "written", "force", "forced", "rename", "renamed", "force names", "forced names",
    }  # fmt: skip
    assert run.log is not None
    assert run.log._journal._header.generation >= 5, "opened twice, moved on three times"
    run.check(reopened(disk))


@each("step", SOME)
def test_power_cut(step: int) -> None:
    """At every step, and of what was not forced any part survives."""
    disk = Disk()
    disk.trouble = raising(step, PowerCut, times=1 << 30)
    run = Run(disk)
    with pytest.raises(PowerCut):
        run.everything()
    for seed in range(5):
        after = disk.crashed(random.Random(f"{step} {seed}"))
        log = reopened(after)
        run.check(log)
        log.decide(decision(200))
        survivors = Run(after.crashed(random.Random(seed)))
        survivors.asked = survivors.promised = {made.gtrid: made for made in log.decisions()}
        survivors.noted = {outcome.branch: outcome for outcome in log.heuristics()}
        survivors.log_id, survivors.incarnation = log.log_id, log.incarnation
        survivors.check(reopened(survivors.disk))


@each("step", SOME)
def test_input_output_error(step: int) -> None:
    """A call that fails stops the log: everything after it is refused, and nothing is written any more."""
    disk = Disk()
    disk.trouble = raising(step, lambda: OSError(errno.EIO, "Input/output error"))
    run = Run(disk)
    try:
        run.everything()
    except LogStopped:
        assert run.log is not None
        steps = disk.steps
        for call in (lambda: run.decide(decision(99)), run.log.decisions, run.log.heuristics):
            with pytest.raises(LogStopped, match="Input/output error"):
                call()

        run.log.close()
        assert disk.steps == steps
        assert not disk.locked
    except LogError as error:
        assert run.log is None or run.log._closed, "only opening raises this"
        told = str(error)
        assert told.startswith("/disk: the log can't be opened: Input/output error. Nothing in it was given up")
        assert not disk.locked
    run.asked[decision(99).gtrid] = decision(99)
    run.check_what_is_left()


@each("step", SOME)
def test_full_disk(step: int) -> None:
    """A file system that is full at one step: what is refused is refused for good, and the log stays sound."""
    disk = Disk()
    disk.trouble = raising(step, lambda: OSError(errno.ENOSPC, "No space left on device"))
    run = Run(disk)
    try:
        run.everything()
    except LogFull:
        if run.log is None:
            run.open()
        run.decide(decision(101))
        assert run.log is not None
        assert run.log.decision(decision(101).gtrid) == decision(101)
    except LogError:
        pass
    run.check_what_is_left()


class History(Run):
    """A run in the order that a seed draws."""

    def __init__(self, seed: int) -> None:
        super().__init__(Disk())
        self.rng = random.Random(seed)
        self.numbers = itertools.count(1)
        self.open()
        self.incarnations = [self.incarnation]

    def decide_one(self) -> None:
        self.decide(decision(next(self.numbers), self.rng.randint(0, 30)))

    def decide_and_end_many(self) -> None:
        """So that the log moves on to further segments."""
        for _ in range(self.rng.randint(1, 60)):
            self.decide(made := decision(next(self.numbers), 10))
            self.end(made.gtrid)

    def end_one(self) -> None:
        if self.alive:
            self.end(self.rng.choice(list(self.alive)))

    def note_one(self) -> None:
        self.note(heuristic(next(self.numbers)))

    def drop_one(self) -> None:
        if self.noted:
            self.drop(self.rng.choice(list(self.noted)))

    def resize(self) -> None:
        self.disk.capacity = self.rng.choice((0, self.rng.randrange(SMALL // 2, 8 * SMALL), 1 << 20))

    def close(self) -> None:
        assert self.log is not None
        ended = set(self.ended) if self.disk.capacity >= 1 << 20 else set()
        self.log.close()
        self.go_on(self.disk)
        assert not ended & self.promised.keys(), "an end that was written comes back"

    def kill(self) -> None:
        self.go_on(self.disk)

    def cut_power(self) -> None:
        self.go_on(self.disk.crashed(self.rng))

    def cut_power_at_work(self) -> None:
        self.disk.trouble = raising(self.disk.steps + self.rng.randint(1, 30), PowerCut, times=1 << 30)
        while True:
            self.decide(decision(next(self.numbers), 8))
            self.note(heuristic(next(self.numbers)))

    def go_on(self, disk: Disk) -> None:
        """What stopped the run is over: the log keeps its promises, and the run goes on with what it says now."""
        log = reopened(disk)
        self.check(log)
        self.disk, self.log, self.incarnation = disk, log, log.incarnation
        self.incarnations.append(log.incarnation)
        self.promised = {made.gtrid: made for made in log.decisions()}
        self.noted = {outcome.branch: outcome for outcome in log.heuristics()}
        self.ended.clear()
        self.unsure.clear()

    @property
    def alive(self) -> dict[bytes, Decision]:
        return {gtrid: made for gtrid, made in self.promised.items() if gtrid not in self.ended}

    def look(self) -> None:
        """The log says what was promised, inside and outside, and stays small."""
        assert self.log is not None
        assert {made.gtrid: made for made in self.log.decisions()} == self.alive
        assert {outcome.branch: outcome for outcome in self.log.heuristics()} == self.noted
        image = read_log("", files=self.disk)
        assert self.alive.keys() <= {made.gtrid for made in image.decisions} <= self.promised.keys()
        assert {outcome.branch: outcome for outcome in image.heuristics} == self.noted
        assert (image.openings, image.incarnations) == (self.log.openings, self.log.incarnations)
        assert list(image.incarnations.noted) == self.incarnations
        assert not image.incarnations.cut
        assert self.disk.used <= 64 * SMALL or len(self.alive) + len(self.noted) >= 40


@each("seed", range(SEED, SEED + (400 if LONG else 20)))
def test_any_history(seed: int) -> None:
    """Decisions, ends and heuristic outcomes in any order, while the process ends, the power goes, and space comes and
    goes."""
    run = History(seed)
    actions = [
        run.decide_one, run.decide_one, run.decide_and_end_many, run.end_one, run.end_one, run.note_one, run.drop_one,
        run.resize, run.resize, run.close, run.kill, run.cut_power, run.cut_power_at_work,
    ]  # fmt: skip
    for _ in range(60):
        try:
            run.rng.choice(actions)()
        except LogFull:
            assert run.disk.capacity < 1 << 20
            run.unsure.clear()  # what was refused has changed nothing
        except PowerCut:
            pass

        if run.disk.trouble is not None:
            run.cut_power()
        run.look()


class Signal(KeyboardInterrupt):
    """What a signal handler raised, in the main thread, when a system call had returned."""


@each("step", SOME)
@pytest.mark.parametrize("times", [1, 2, 3])
def test_interruption(step: int, times: int) -> None:
    """Whoever was interrupted while deciding asks the log, and what it answers is what is on disk. Interrupted
    again and again the log can't tell, and says so."""
    disk = Disk()
    disk.trouble = raising(step, Signal, times=times)
    run = Run(disk)
    try:
        run.everything()
    except Signal:
        if run.log is None or run.log._closed:
            run.check(reopened(disk.crashed(random.Random(step))))
            return

    assert run.log is not None
    disk.trouble = None
    interrupted = [made for gtrid, made in run.asked.items() if gtrid not in run.promised]
    stopped = run.log._stopped
    if stopped is not None:
        assert times > 1 or "closed" in stopped
        with pytest.raises(LogStopped):
            run.log.decisions()
    else:
        told = run.log.decisions()
        assert all((made in told) == (run.log.decision(made.gtrid) is not None) for made in interrupted)
        run.promised.update((made.gtrid, made) for made in told)
        run.refused.update(made.gtrid for made in interrupted if made not in told)
        run.decide(decision(99))
    run.check_what_is_left()
