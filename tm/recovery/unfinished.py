"""UnfinishedTransactions: transactions whose commit or rollback ended, or was broken off, before every branch was
asked to complete.

Recovery finds prepared branches by scanning. A branch that is not prepared is in no scan: one whose rollback got lost,
one whose commit in one phase got lost, and the branches of a commit that an interruption (KeyboardInterrupt, say) has
broken off. Such a branch would keep its locks until the resource manager's own timeout. So its process remembers it
here, and each recovery pass tries again:

 1. Collect the asynchronous operations that are outstanding in the transaction's thread of control.
 2. Where a decision may have been taken, ask for it. A decided transaction is left to the scan, because all of its
    branches are prepared; nothing here touches them.
 3. End its associations, and roll its branches back. Branches that can't be reached now are kept for the next pass.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from tm.log import Heuristic, LogError
from tm.outcome import named
from tm.recovery.report import Action, Finding
from tm.two_phase.ports import code_of
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, AnswerMeaning, Verb
from xa import TMFAIL, TMMULTIPLE, Code, XaError, entered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tm.log import Branch, DecisionLog
    from tm.recovery.ports import RecoveryPorts
    from tm.resources import Resource
    from tm.two_phase.executor import UnfinishedTransaction

logger = logging.getLogger("xabridge.tm.recovery")

MOST: Final = 10_000
MOST_OUTSTANDING: Final = 10_000


class UnfinishedTransactions:
    """Those of one manager; `finish` is called by one thread at a time."""

    def __init__(self, resources: Mapping[str, Resource], log: DecisionLog | None, ports: RecoveryPorts) -> None:
        self._resources = resources
        self._log = log
        self._ports = ports
        self._lock = threading.Lock()
        self._kept: dict[bytes, UnfinishedTransaction] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, transaction: UnfinishedTransaction) -> None:
        """Remembers `transaction` for the next pass."""
        with self._lock:
            if len(self._kept) >= MOST:
                oldest = self._kept.pop(next(iter(self._kept)))
                logger.error("%s: recovery abandons it; its branches end with their own timeouts", named(oldest.gtrid))
            self._kept[transaction.gtrid] = transaction

    async def finish(self) -> list[Finding]:
        """Tries to finish all of them; what was done, and what is still pending."""
        findings: list[Finding] = []
        for transaction in tuple(self._kept.values()):
            with entered(transaction.control):
                if await self._finish(transaction, findings):
                    with self._lock:
                        self._kept.pop(transaction.gtrid, None)
        return findings

    async def _finish(self, transaction: UnfinishedTransaction, findings: list[Finding]) -> bool:
        """Whether nothing is left to do for this process."""
        self._collect(transaction)
        if transaction.undecided:
            decided = await self._is_decided(transaction)
            if decided is None:
                findings += [
                    Finding(branch, Action.PENDING, "its completion was broken off, and its decision is unknown now")
                    for branch in transaction.branches
                ]
                return False
            if decided:
                return True
            transaction.undecided = False

        if not transaction.branches:
            return True
        if transaction.touched:
            await self._ports.ask(Verb.END, transaction.touched, TMFAIL)  # what fails here shows at the rollback
            transaction.touched = ()

        answers = await self._ports.ask(Verb.ROLLBACK, transaction.branches)
        left = []
        for branch, answer in zip(transaction.branches, answers, strict=True):
            code = code_of(answer)
            meaning = MEANING[Verb.ROLLBACK][code]
            if meaning is AnswerMeaning.LATER:
                left.append(branch)
                said = answer.message if isinstance(answer, XaError) else answer.name
                findings.append(Finding(branch, Action.PENDING, f"left by its completion, to be rolled back; {said}"))
            elif meaning is not AnswerMeaning.DONE:
                findings.append(await self._completed_on_its_own(branch, meaning))
            elif code is not Code.XAER_NOTA:
                findings.append(Finding(branch, Action.ROLLED_BACK, "left by its completion, and not decided"))
        transaction.branches = tuple(left)
        return not left

    def _collect(self, transaction: UnfinishedTransaction) -> None:
        """Step 1. Whatever fails here shows later."""
        for name in dict.fromkeys(branch.resource for branch in transaction.touched):
            resource = self._resources[name]
            if resource.overlaps:
                self._collect_all(resource)

    def _collect_all(self, resource: Resource) -> None:
        for _ in range(MOST_OUTSTANDING):
            try:
                resource.rm.complete(None, resource.rmid, TMMULTIPLE)
            except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
                if not isinstance(raised, XaError):
                    resource.as_xa_error(raised, "complete")
                return  # XAER_INVAL: nothing is outstanding

    async def _is_decided(self, transaction: UnfinishedTransaction) -> bool | None:
        """Step 2; None: it is unknown now."""
        if transaction.decider is not None:
            word = await self._ports.settle(transaction.decider, transaction.gtrid)
            return None if isinstance(word, XaError) else word is not None
        if self._log is None:
            return False  # without a decider nothing can be decided
        try:
            return self._log.decision(transaction.gtrid) is not None
        except LogError:
            return None

    async def _completed_on_its_own(self, branch: Branch, meaning: AnswerMeaning) -> Finding:
        if meaning is AnswerMeaning.HEUR_ROLLED_BACK:
            await self._ports.ask(Verb.FORGET, (branch,))
            return Finding(branch, Action.FORGOTTEN, "left by its completion, and not decided")
        refused = await self._ports.note(Heuristic(branch, HEURISTIC_CODE[meaning], meaning.value))
        action = Action.HEURISTIC if refused is None else Action.PENDING
        return Finding(branch, action, f"left by its completion, and not decided; {meaning.value}")
