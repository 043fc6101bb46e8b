"""Commits, rolls back and forgets branches by hand: it plans, explains and carries out.

For a branch whose decision is in this log:

 1. The plan is made from what was seen, explained, and confirmed.
 2. The log is opened, as a transaction manager opens it. No other process decides in it from here on, and no
    transaction of it is under way. If a resource decides, it settles the transaction instead.
 3. The decision is looked up again. If it is not what was explained, nothing is done.
 4. An action that goes, or may go, against the decision is noted in the log as a heuristic outcome, before it is
    carried out. (A crash in between leaves a note of an action that did not happen; the branch is still in doubt,
    recovery leaves it alone, and `recover list` shows both.)
 5. The resource manager is asked. If it answers that it did nothing, the note is dropped.

For a branch whose decision can't be known here, only the resource manager is asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Heuristic
from tm.resources.blocking_ports import BlockingPorts
from tm.two_phase.ports import code_of, text_of
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, AnswerMeaning, Verb
from xa import Code, XaError
from xa.coroutines import drive
from xa.printable import escaped
from xabridge.operations.survey import AGREES, IN_DOUBT, WAITING, BranchView, DecisionKnowledge, State, TransactionView
from xabridge.text import listed, transaction_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.log import DecisionLog
    from tm.two_phase.ports import Answer
    from xabridge.operations.site import OperationsTarget


HELD: Final = "The transaction manager that holds it recovers by itself; stop it to do it by hand, or act through it"
"""What to do where the log is in use."""


class OperatorAction(Enum):
    """The actions that a user can ask for."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    FORGET = "forget"


class Consent(Enum):
    """The consent that an action needs."""

    PLAIN = "agrees with the log"
    SPLITS = "goes against the decision"
    BLIND = "may go against a decision that is not known here"
    AT_WORK = "agrees with what is known of the decision, and another process of the node is at work with it"
    REFUSED = "can't be done"


_CONSENT: Final = {
    (OperatorAction.COMMIT, DecisionKnowledge.COMMIT): Consent.PLAIN,
    (OperatorAction.COMMIT, DecisionKnowledge.NONE): Consent.SPLITS,
    (OperatorAction.COMMIT, DecisionKnowledge.ENDED): Consent.BLIND,
    (OperatorAction.COMMIT, DecisionKnowledge.UNKNOWN): Consent.BLIND,
    (OperatorAction.ROLLBACK, DecisionKnowledge.COMMIT): Consent.SPLITS,
    (OperatorAction.ROLLBACK, DecisionKnowledge.NONE): Consent.PLAIN,
    (OperatorAction.ROLLBACK, DecisionKnowledge.ENDED): Consent.BLIND,
    (OperatorAction.ROLLBACK, DecisionKnowledge.UNKNOWN): Consent.BLIND,
    (OperatorAction.FORGET, DecisionKnowledge.COMMIT): Consent.PLAIN,
    (OperatorAction.FORGET, DecisionKnowledge.NONE): Consent.PLAIN,
    (OperatorAction.FORGET, DecisionKnowledge.ENDED): Consent.PLAIN,
    (OperatorAction.FORGET, DecisionKnowledge.UNKNOWN): Consent.BLIND,
}
_NEEDING: Final = frozenset({Consent.SPLITS, Consent.BLIND, Consent.AT_WORK})
"""The consents that need --heuristic."""
_VERB: Final = {OperatorAction.COMMIT: Verb.COMMIT_AGAIN, OperatorAction.ROLLBACK: Verb.ROLLBACK}
_DONE: Final = {
    OperatorAction.COMMIT: "committed",
    OperatorAction.ROLLBACK: "rolled back",
    OperatorAction.FORGET: "forgotten",
}
_HEURISTIC: Final = {OperatorAction.COMMIT: Code.XA_HEURCOM, OperatorAction.ROLLBACK: Code.XA_HEURRB}
_UNKNOWN: Final = frozenset({Code.XAER_RMFAIL})
"""Answers after which it is unknown whether it was done."""


@dataclass(frozen=True, slots=True)
class PlannedBranch:
    """One branch of a plan: the consent that it needs, and its explanation for the user."""

    branch: BranchView
    consent: Consent
    what: str

    @property
    def is_refused(self) -> bool:
        """Whether it can't be done."""
        return self.consent is Consent.REFUSED


@dataclass(frozen=True, slots=True)
class Plan:
    """The action for one global transaction."""

    act: OperatorAction
    view: TransactionView
    steps: tuple[PlannedBranch, ...]
    whole: bool = False
    """Whether a decision to commit is undone on every branch that it has, so that nothing is split by it."""

    @property
    def needs_heuristic(self) -> bool:
        """Whether it does what recovery would not."""
        return any(step.consent in _NEEDING for step in self.steps)

    @property
    def refused(self) -> bool:
        """Whether some of it can't be done at all."""
        return any(step.is_refused for step in self.steps)


@dataclass(frozen=True, slots=True)
class BranchResult:
    """The result for one branch."""

    branch: BranchView
    ok: bool
    said: str

    @property
    def line(self) -> str:
        """It in words."""
        return f"{transaction_name(self.branch.xid)} on {escaped(self.branch.resource)}: {escaped(self.said)}"


class DecisionChanged(Exception):
    """The decision is not what the plan was made with; nothing was done."""


def plan(
    act: OperatorAction, view: TransactionView, branches: tuple[BranchView, ...], *, complete: bool = False
) -> Plan:
    """The effect that `act` would have on those of `branches` that are in doubt. `complete`: every resource manager was
    asked."""
    whole = (
        act is OperatorAction.ROLLBACK
        and view.decision
        is DecisionKnowledge.COMMIT  # which names all of its branches; else one may have been rolled back before
        and view.decider is None  # which has committed its own work with the decision
        and complete
        and set(branches) >= set(view.branches)
        and all(branch.state in WAITING for branch in branches)
    )
    steps = tuple(_step(act, view, branch, whole=whole) for branch in branches if branch.state in IN_DOUBT)
    return Plan(act, view, steps, whole)


def _step(act: OperatorAction, view: TransactionView, branch: BranchView, *, whole: bool) -> PlannedBranch:
    where = escaped(branch.resource)
    if branch.state is State.NOT_REACHED:
        return PlannedBranch(branch, Consent.REFUSED, f"{where} can't be reached now, or is not configured")
    if act is OperatorAction.FORGET:
        return _forgetting(view, branch)
    if branch.state is State.HEURISTIC:
        outcome = branch.outcome.name if branch.outcome is not None else "a heuristic outcome"
        return PlannedBranch(
            branch, Consent.REFUSED, f"{where} has completed it already ({outcome}); it can only be forgotten"
        )
    consent = _consent(act, view)
    doing = "commits" if act is OperatorAction.COMMIT else "rolls back"
    return PlannedBranch(branch, consent, f"{doing} the branch on {where}: {_consequence(consent, view, whole=whole)}")


def _consent(act: OperatorAction, view: TransactionView) -> Consent:
    """The consent that the act needs. If another process of the node is at work with the transaction, recovery leaves
    it alone until the lease of that process ends; so any action differs from that of recovery."""
    consent = _CONSENT[act, view.decision]
    return Consent.AT_WORK if view.at_work and consent is Consent.PLAIN else consent


def _consequence(consent: Consent, view: TransactionView, *, whole: bool) -> str:
    """`whole`: every branch of the decision is rolled back."""
    if consent is Consent.PLAIN:
        return "as recovery would"
    if consent is Consent.AT_WORK:
        return "another process of this node is working on it, so that recovery would leave it to that process"
    if whole:
        return "against the decision to commit, on every branch: nothing is split, but the commit may be known"
    if consent is Consent.SPLITS and view.decision is DecisionKnowledge.COMMIT:
        return "this splits the transaction, because the decision is to commit"

    if consent is Consent.SPLITS:
        return (
            "against the log, because no decision means rollback: this splits the transaction, if another branch of it "
            "is not committed too, or was rolled back before, by recovery or by hand"
        )
    if view.decision is DecisionKnowledge.ENDED:
        return "this splits the transaction, if its other branches went the other way"
    return "its decision is not known here: this splits the transaction, unless every other branch goes the same way"


def _forgetting(view: TransactionView, branch: BranchView) -> PlannedBranch:
    where = escaped(branch.resource)
    if branch.state is not State.HEURISTIC and branch.noted is None:
        return PlannedBranch(
            branch, Consent.REFUSED, f"{where} has it prepared, not completed: commit it, or roll it back"
        )

    outcome = branch.outcome or branch.noted or Code.XA_HEURHAZ
    consent = _consent(OperatorAction.FORGET, view)
    if consent is Consent.AT_WORK:
        what = f"another process of this node is working on it, and may not know of {outcome.name} yet"
    elif consent is Consent.BLIND:
        what = f"its transaction manager may not know of {outcome.name}, and will never learn of it"
    elif view.decision is DecisionKnowledge.ENDED:
        what = f"this deletes the last trace of {outcome.name}, and the log no longer has the decision: compare first"
    elif outcome is AGREES[view.decision]:
        what = f"{outcome.name} agrees with the decision; nothing is lost"
    else:
        what = f"{outcome.name} differs from the decision: this deletes its last trace, so correct the data first"
    return PlannedBranch(branch, consent, f"forgets the branch on {where}: {what}")


def explained(planned: Plan) -> list[str]:
    """The explanation of the plan, a paragraph each."""
    view = planned.view
    return [f"{view.name}: decision {view.decision.value}: {view.why}", *(step.what for step in planned.steps)]


def refusal(plans: Sequence[Plan], *, heuristic: bool, anyway: str) -> str | None:
    """Why this is not done, before the user is asked; None: it can be done. `heuristic`: the user wants it done also
    where recovery would not; `anyway` says how to want that."""
    lone = [
        planned.view.name
        for planned in plans
        if planned.view.lone
        and planned.act is not OperatorAction.FORGET
        and planned.view.decision is DecisionKnowledge.UNKNOWN
    ]
    if lone and len(plans) > 1:
        return (
            f"of {listed(lone)} one branch is left, where others of the same log have more: the missing one may be "
            "committed. Name such a transaction alone, when you know what became of it, and the others without it"
        )
    if any(planned.refused for planned in plans):
        return "some of it can't be done; name the others with --on"
    needing = [planned for planned in plans if planned.needs_heuristic]
    if not needing or heuristic:
        return None

    busy = [planned.view.name for planned in needing if planned.view.at_work]
    if busy:
        return (
            f"another process of this node is at work with {listed(busy)}, and completes it; recovery leaves it "
            f"alone until the lease of that process ends. To do it anyway, {anyway}"
        )
    whole = all(planned.whole for planned in needing)
    what = "goes against the log" if whole else "may split a transaction"
    return f"this {what}: to do it anyway, {anyway}"


class BranchCompleter:
    """Carries plans out, with the log in hand where one is configured and the plan needs it."""

    def __init__(self, place: OperationsTarget, log: DecisionLog | None) -> None:
        self._resources = place.resources
        self._log = log
        self._ports = BlockingPorts(place.resources, log)
        self._recovery = place.recovery(log)

    def carry_out(self, planned: Plan) -> list[BranchResult]:
        """Returns the result of each branch. DecisionChanged: nothing was done. LogError: the log failed meanwhile."""
        self._check(planned)
        return [self._do(planned, step.branch) for step in planned.steps]

    def _check(self, planned: Plan) -> None:
        """Step 3."""
        view = planned.view
        if view.decision is DecisionKnowledge.UNKNOWN:
            return
        if view.decider is not None:
            word = self._final_word(view.decider, view.gtrid)
        else:
            assert self._log is not None  # noqa: S101 — the view says that it is this log's
            word = DecisionKnowledge.NONE if self._log.decision(view.gtrid) is None else DecisionKnowledge.COMMIT
        shown = DecisionKnowledge.NONE if view.decision is DecisionKnowledge.ENDED else view.decision
        if word is not shown:
            raise DecisionChanged(
                f"{view.name}: the decision was {shown.value} when it was shown, and is {word.value} now; look again"
            )

    def _final_word(self, decider: str, gtrid: bytes) -> DecisionKnowledge:
        resource = self._resources[decider]
        resource.reopen(now=True)
        return (
            DecisionKnowledge.NONE
            if resource.decider.settle(gtrid, resource.rmid) is None
            else DecisionKnowledge.COMMIT
        )

    def _do(self, planned: Plan, view: BranchView) -> BranchResult:
        act = planned.act
        branch = Branch(view.resource, view.xid)
        if act is OperatorAction.FORGET:
            return self._forget(view)

        log = self._log if planned.view.decision is not DecisionKnowledge.UNKNOWN else None
        against = _CONSENT[act, planned.view.decision] is not Consent.PLAIN and not _agrees(act, planned.view, view)
        if against and log is not None:
            log.note_heuristic(Heuristic(branch, _HEURISTIC[act], f"an operator did it: recover {act.value}"))
        (answer,) = drive(self._ports.ask(_VERB[act], (branch,)))
        meaning = MEANING[_VERB[act]][code_of(answer)]
        if meaning is not AnswerMeaning.DONE:
            return BranchResult(view, False, self._not_done(log, branch, answer, meaning, against=against))
        if code_of(answer) is Code.XAER_NOTA:
            return self._vanished(log, view, against=against)
        if log is not None and view.noted is not None and not against:
            log.drop_heuristic(branch)  # what was noted has not happened
        noted = ", and noted as a heuristic outcome" if against and log is not None else ""
        return BranchResult(view, True, f"{_DONE[act]}{noted}")

    @staticmethod
    def _vanished(log: DecisionLog | None, view: BranchView, *, against: bool) -> BranchResult:
        """The branch was there before, and another process has completed it since. If the act agrees with the
        decision, so does the completion; otherwise its outcome is unknown, and noted as a hazard."""
        if not against:
            return BranchResult(view, True, "the resource no longer knows it: another process has completed it")
        if log is not None:
            why = "it was gone when an operator completed it"
            log.note_heuristic(Heuristic(Branch(view.resource, view.xid), Code.XA_HEURHAZ, why))
        return BranchResult(
            view, False, "not done: the resource no longer knows it, and how it was completed is unknown"
        )

    @staticmethod
    def _not_done(
        log: DecisionLog | None, branch: Branch, answer: Answer, meaning: AnswerMeaning, *, against: bool
    ) -> str:
        if meaning is not AnswerMeaning.LATER:
            if log is not None:
                log.note_heuristic(Heuristic(branch, HEURISTIC_CODE[meaning], text_of(answer)))
            return f"{meaning.value} ({text_of(answer)})"
        if code_of(answer) in _UNKNOWN:
            return f"unknown whether it was done: {text_of(answer)}; look again"
        if against and log is not None:
            log.drop_heuristic(branch)
        return f"not done: {text_of(answer)}"

    def _forget(self, view: BranchView) -> BranchResult:
        resource = self._resources.get(view.resource)
        if resource is None:
            return self._drop_note(view)
        try:
            self._recovery.forget(resource, view.xid)
        except XaError as error:
            return BranchResult(view, False, f"not done: {error.message}")
        return BranchResult(view, True, "forgotten")

    def _drop_note(self, view: BranchView) -> BranchResult:
        """Of a resource manager that is not configured any more, only the note can be dropped."""
        if view.noted is None or self._log is None:
            return BranchResult(view, False, "not done: its resource manager is not configured")
        self._log.drop_heuristic(Branch(view.resource, view.xid))
        return BranchResult(view, True, "forgotten here; its resource manager is not configured")


def _agrees(act: OperatorAction, transaction: TransactionView, branch: BranchView) -> bool:
    """Whether the act agrees with a decision that has ended: what was noted of the branch before is what differs from
    it, and has not happened."""
    noted = {code for of, code in _HEURISTIC.items() if of is not act}
    return transaction.decision is DecisionKnowledge.ENDED and branch.noted in noted


def needs_the_log(planned: Plan) -> bool:
    """Whether the plan is about a decision of this log, or about a note in it."""
    return planned.view.in_log or any(
        step.branch.noted is not None or step.consent is Consent.SPLITS for step in planned.steps
    )
