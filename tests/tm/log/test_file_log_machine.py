"""These tests compare FileLog with a model: hypothesis makes the calls, closes, opens, cuts the power and fills the
disk.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.tm.log.disk import Disk, PowerCut
from tests.tm.log.samples import decision, heuristic
from tm.log import Branch, Decision, FileLog, Heuristic, LogFull, read_log
from tm.log.journal import LEAST_SEGMENT_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

NODE = "orders-1"


class FileLogMachine(RuleBasedStateMachine):
    """The model: what is decided, what may be decided (the power went while it was being asked), what ended in
    memory but perhaps not on disk; the same of heuristic outcomes."""

    decided = Bundle("decided")
    noted = Bundle("noted")

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.sequence = 0
        self.decisions: dict[bytes, Decision] = {}
        self.lately_ended: dict[bytes, Decision] = {}
        self.outcomes: dict[Branch, Heuristic] = {}
        self.openings = 0
        self.incarnations: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.log = FileLog("", NODE, segment_size=LEAST_SEGMENT_SIZE, files=self.disk)
        self.openings += 1
        self.incarnations.append(self.log.incarnation)

    @rule(target=decided, branches=st.integers(0, 30))
    def decide(self, branches: int) -> bytes:
        self.sequence += 1
        made = decision(self.sequence, branches)
        try:
            self.log.decide(made)
        except LogFull:
            assert self.disk.capacity < 1 << 20
        else:
            self.decisions[made.gtrid] = made
        return made.gtrid

    @rule(count=st.integers(1, 60))
    def decide_and_end_many(self, count: int) -> None:
        """So that the log moves on to further segments."""
        for _ in range(count):
            self.end(self.decide(10))

    @rule(gtrid=consumes(decided))
    def end(self, gtrid: bytes) -> None:
        self.log.end(gtrid)
        if gtrid in self.decisions:
            self.lately_ended[gtrid] = self.decisions.pop(gtrid)

    @rule(target=noted)
    def note(self) -> Branch:
        self.sequence += 1
        outcome = heuristic(self.sequence)
        try:
            self.log.note_heuristic(outcome)
        except LogFull:
            assert self.disk.capacity < 1 << 20
        else:
            self.outcomes[outcome.branch] = outcome
        return outcome.branch

    @rule(branch=consumes(noted))
    def drop(self, branch: Branch) -> None:
        try:
            self.log.drop_heuristic(branch)
        except LogFull:
            assert self.disk.capacity < 1 << 20
        else:
            self.outcomes.pop(branch, None)

    @rule(capacity=st.sampled_from([0, 4 * LEAST_SEGMENT_SIZE, 1 << 20]))
    def resize_disk(self, capacity: int) -> None:
        self.disk.capacity = capacity

    @rule(close=st.booleans())
    def reopen(self, *, close: bool) -> None:
        """The process ends, cleanly or by kill -9: the page cache stays."""
        if close:
            self.log.close()
        self._after_a_stop(self.disk, closed=close and self.disk.capacity >= 1 << 20)

    @rule(seed=st.integers(0, 2**32))
    def power_cut(self, seed: int) -> None:
        self._after_a_stop(self.disk.crashed(random.Random(seed)), closed=False)

    @rule(seed=st.integers(0, 2**32), after=st.integers(1, 30), note=st.booleans())
    def power_cut_while_at_work(self, seed: int, after: int, *, note: bool) -> None:
        """The last call may have had its effect or not."""
        self.disk.trouble = _cut_at(self.disk.steps + after)
        attempt: Any = None
        try:
            while True:
                self.sequence += 1
                attempt = heuristic(self.sequence) if note else decision(self.sequence, 8)
                if isinstance(attempt, Heuristic):
                    self.log.note_heuristic(attempt)
                    self.outcomes[attempt.branch] = attempt
                else:
                    self.log.decide(attempt)
                    self.decisions[attempt.gtrid] = attempt
        except PowerCut:
            pass
        except LogFull:
            attempt = None
        self._after_a_stop(self.disk.crashed(random.Random(seed)), closed=False, attempt=attempt)

    def _after_a_stop(self, disk: Disk, *, closed: bool, attempt: Decision | Heuristic | None = None) -> None:
        self.disk = disk
        self.disk.capacity = 1 << 30
        self.disk.locked = False
        self.disk.trouble = None
        self.open()
        if isinstance(attempt, Decision) and self.log.decision(attempt.gtrid) is not None:
            self.decisions[attempt.gtrid] = attempt
        if isinstance(attempt, Heuristic) and attempt in self.log.heuristics():
            self.outcomes[attempt.branch] = attempt
        for made in self.log.decisions():
            if made.gtrid in self.lately_ended and not closed:
                self.decisions[made.gtrid] = made
        self.lately_ended.clear()

    @invariant()
    def it_says_what_the_model_says(self) -> None:
        assert {made.gtrid: made for made in self.log.decisions()} == self.decisions
        assert {outcome.branch: outcome for outcome in self.log.heuristics()} == self.outcomes
        assert all(self.log.decision(gtrid) == made for gtrid, made in self.decisions.items())

    @invariant()
    def a_look_from_outside_agrees(self) -> None:
        image = read_log("", files=self.disk)
        told = {made.gtrid: made for made in image.decisions}
        assert {gtrid: told.get(gtrid) for gtrid in self.decisions} == self.decisions
        assert told.keys() <= self.decisions.keys() | self.lately_ended.keys()
        assert {outcome.branch: outcome for outcome in image.heuristics} == self.outcomes
        assert image.openings == self.log.openings == self.openings
        assert image.incarnations == self.log.incarnations
        assert list(image.incarnations.noted) == self.incarnations
        assert not image.incarnations.cut

    @precondition(lambda self: len(self.decisions) + len(self.outcomes) < 40)
    @invariant()
    def it_stays_small(self) -> None:
        assert self.disk.used <= 64 * LEAST_SEGMENT_SIZE

    def teardown(self) -> None:
        self.log.close()


def _cut_at(step: int) -> Callable[[int, str], None]:
    def trouble(now: int, _: str) -> None:
        if now >= step:
            raise PowerCut

    return trouble


def test_file_log() -> None:
    run_state_machine_as_test(
        FileLogMachine,
        settings=settings(max_examples=5, stateful_step_count=60, deadline=None, derandomize=True),
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_file_log_for_longer() -> None:
    run_state_machine_as_test(
        FileLogMachine,
        settings=settings(max_examples=60, stateful_step_count=80, deadline=None, print_blob=True),
    )
