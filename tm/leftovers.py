"""Leftovers: branches of completions that ended, or were broken off, before they were rid of them.

Recovery finds what is prepared by scanning. A branch that is not prepared is in no scan: one whose rollback got
lost, one whose commit in one phase got lost, and what an interruption (KeyboardInterrupt, say) leaves in the
middle of a completion. It would keep its locks until the resource manager's own timeout. Its process remembers
it here, and each recovery pass tries again:

 1. Collect what is outstanding in the thread of control of the completion.
 2. Where a decision may have been taken, ask for it. A decided transaction is left to the scan: all of its
    branches are prepared, and nothing here touches them.
 3. End its associations, and roll its branches back. What can't be told now is kept.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tm.effects import Call, Note, code_of
from tm.log import Heuristic, LogError
from tm.outcome import named
from tm.recovery import Action, Finding
from tm.verdicts import HEURISTIC_CODE, MEANING, Meaning, Verb
from xa import TMFAIL, TMMULTIPLE, TMNOFLAGS, Code, XaError, entered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.log import Branch, DecisionLog
    from tm.performer import Performer
    from tm.resources import Resource
    from xa import ThreadOfControl

logger = logging.getLogger("xabridge.tm.recovery")

MOST: Final = 10_000
MOST_OUTSTANDING: Final = 10_000


@dataclass(slots=True)
class Leftover:
    """What one completion left: `branches` to roll back in the thread `control`. Of all that it has `touched` (its
    branches, under the names of every resource that worked in them) operations may wait to be collected, and
    associations to be ended. `undecided`: a decision may have been taken, in `decider` or, without one, in the log."""

    gtrid: bytes
    control: ThreadOfControl
    branches: tuple[Branch, ...]
    touched: tuple[Branch, ...]
    decider: str | None
    undecided: bool


class Leftovers:
    """Those of one manager; `clear` is called by one thread at a time."""

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        performer: Performer,
        settle: Callable[[str, bytes], object],
    ) -> None:
        self._resources = resources
        self._log = log
        self._performer = performer
        self._settle = settle
        self._lock = threading.Lock()
        self._kept: dict[bytes, Leftover] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, leftover: Leftover) -> None:
        """Remembers `leftover` for the next pass."""
        with self._lock:
            if len(self._kept) >= MOST:
                oldest = self._kept.pop(next(iter(self._kept)))
                logger.error("%s: it is given up, its branches end with their own timeouts", named(oldest.gtrid))
            self._kept[leftover.gtrid] = leftover

    def clear(self) -> list[Finding]:
        """Tries to get rid of all; what was done, and what is still pending."""
        findings: list[Finding] = []
        for leftover in tuple(self._kept.values()):
            with entered(leftover.control):
                if self._clear(leftover, findings):
                    with self._lock:
                        self._kept.pop(leftover.gtrid, None)
        return findings

    def _clear(self, leftover: Leftover, findings: list[Finding]) -> bool:
        """Whether nothing of it is left here."""
        self._collect(leftover)
        if leftover.undecided:
            decided = self._is_decided(leftover)
            if decided is None:
                findings += [
                    Finding(branch, Action.PENDING, "its completion was broken off, and its decision can't be told now")
                    for branch in leftover.branches
                ]
                return False
            if decided:
                return True
            leftover.undecided = False
        if not leftover.branches:
            return True
        if leftover.touched:
            self._performer.call(Call(Verb.END, leftover.touched, TMFAIL))  # what fails here shows at the rollback
            leftover.touched = ()
        answers = self._performer.call(Call(Verb.ROLLBACK, leftover.branches, TMNOFLAGS))
        left = []
        for branch, answer in zip(leftover.branches, answers, strict=True):
            code = code_of(answer)
            meaning = MEANING[Verb.ROLLBACK][code]
            if meaning is Meaning.LATER:
                left.append(branch)
                said = answer.message if isinstance(answer, XaError) else answer.name
                findings.append(Finding(branch, Action.PENDING, f"left by its completion, to be rolled back; {said}"))
            elif meaning is not Meaning.DONE:
                findings.append(self._completed_on_its_own(branch, meaning))
            elif code is not Code.XAER_NOTA:
                findings.append(Finding(branch, Action.ROLLED_BACK, "left by its completion, and not decided"))
        leftover.branches = tuple(left)
        return not left

    def _collect(self, leftover: Leftover) -> None:
        """Step 1. Whatever fails here shows later."""
        for name in dict.fromkeys(branch.resource for branch in leftover.touched):
            resource = self._resources[name]
            if resource.overlaps:
                self._collect_all(resource)

    def _collect_all(self, resource: Resource) -> None:
        for _ in range(MOST_OUTSTANDING):
            try:
                resource.rm.complete(None, resource.rmid, TMMULTIPLE)
            except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
                if not isinstance(raised, XaError):
                    resource.heard(raised, "complete")
                return  # XAER_INVAL: nothing is outstanding

    def _is_decided(self, leftover: Leftover) -> bool | None:
        """Step 2; None: it can't be told now."""
        if leftover.decider is not None:
            word = self._settle(leftover.decider, leftover.gtrid)
            return None if isinstance(word, XaError) else word is not None
        if self._log is None:
            return False  # without a decider nothing can be decided
        try:
            return self._log.decision(leftover.gtrid) is not None
        except LogError:
            return None

    def _completed_on_its_own(self, branch: Branch, meaning: Meaning) -> Finding:
        if meaning is Meaning.HEUR_ROLLED_BACK:
            self._performer.call(Call(Verb.FORGET, (branch,), TMNOFLAGS))
            return Finding(branch, Action.FORGOTTEN, "left by its completion, and not decided")
        refused = self._performer.note(Note(Heuristic(branch, HEURISTIC_CODE[meaning])))
        action = Action.HEURISTIC if refused is None else Action.PENDING
        return Finding(branch, action, f"left by its completion, and not decided; {meaning.value}")
