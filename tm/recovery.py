"""One recovery pass, as a generator without I/O, in the order that is safe while transactions run.

 1. Read the decisions: those of the log, and those of each decider.
 2. Scan every resource manager for prepared and heuristically completed branches.
 3. Then read the live transactions, who else of this node is at work at each decider, and the decisions again. (A
    branch that was prepared during the scan may belong to a transaction that has been decided since, or is about
    to be. Who prepared one before the scan had its lease by then.)
 4. For each branch found: leave alone what isn't ours to resolve (`tm.ownership`), and what is live; commit the
    decided; roll back the rest (presumed abort). Where the decision lives in a decider, let that settle it first.
 5. End a decision of ours read in step 1 only if every one of its resource managers was reached, and none of its
    branches is left; but for the resources that an operator has declared gone, for this decision. A branch whose
    resource is not configured any more, and that this pass has found (by its xid) and finished under another name,
    is not left. One that was not found anywhere may be: its resource manager was not asked.

What is not ours is neither ended nor counted as undone. What a pass can't do stays as it is, and is named in its
report. Passes may run concurrently with transactions and with each other; a branch that somebody else has finished
is finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tm.effects import Call, Effect, End, Note, code_of
from tm.log import Branch, Decision, Heuristic
from tm.ownership import Claim
from tm.verdicts import HEURISTIC_CODE, MEANING, Meaning, Verb
from xa import TMNOFLAGS, Code, Gtrid, XaError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from tm.effects import Answer
    from tm.ownership import AtWork, Ownership
    from xa import Xid


@dataclass(slots=True)
class ReadDecisions:
    """Answer: Decisions."""


@dataclass(slots=True)
class Scan:
    """Answer: dict of each resource's name to its xids, or to the XaError that kept it from telling them."""


@dataclass(slots=True)
class ReadLive:
    """Answer: (the gtrids of the live transactions, AtWork, Decisions); read in this order."""


@dataclass(slots=True)
class Settle:
    """Ask the decider for its final word on a gtrid. Answer: Decision, None (rolled back for good), or XaError."""

    decider: str
    gtrid: bytes


RecoveryEffect: TypeAlias = Effect | ReadDecisions | Scan | ReadLive | Settle
Steps: TypeAlias = "Generator[RecoveryEffect, Any, Report]"


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is decided: in the log, and in each decider that could be reached; and which branches are noted as
    completed on their own (by xid: a resource may have got another name, or have two)."""

    logged: Mapping[bytes, Decision]
    by_decider: Mapping[str, Mapping[bytes, Decision]]
    heuristics: frozenset[Xid]

    def find(self, gtrid: bytes) -> Decision | None:
        """The decision of `gtrid`, wherever it lives."""
        found = self.logged.get(gtrid)
        for decided in self.by_decider.values():
            found = found or decided.get(gtrid)
        return found


class Action(Enum):
    """What a pass did about one branch."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEURISTIC = "completed on its own, noted"
    FORGOTTEN = "completed on its own as decided, forgotten"
    PENDING = "still in doubt"
    LEFT_ALONE = "left alone"
    GONE = "finished meanwhile"


@dataclass(frozen=True, slots=True)
class Finding:
    """One branch that a pass met: what was done about it, and why."""

    branch: Branch
    action: Action
    why: str


@dataclass(slots=True)
class Report:
    """What one pass did. `ended` and `undone` are the gtrids whose decisions are, and are not, carried out everywhere;
    `unreachable` maps a resource's name to what kept the pass from it; `not_configured` the gtrid of an undone
    decision to the names in it that no resource has any more."""

    findings: list[Finding] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    undone: list[bytes] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    not_configured: dict[bytes, tuple[str, ...]] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing of ours is left in doubt, as far as could be seen."""
        return not self.unreachable and all(finding.action is not Action.PENDING for finding in self.findings)


AT_ONCE: Final = 256
"""How many branches are asked of at a time: what is outstanding stays bounded, however much is in doubt."""

_THIS_NODES: Final = frozenset({Claim.OURS, Claim.UNKNOWN})
"""Decisions that are this pass's to carry out, now or when it can be told whose they are."""

_FINISHED: Final = frozenset({Action.COMMITTED, Action.HEURISTIC, Action.FORGOTTEN})
"""What a pass does with a branch of a decision after which it is not to be told any more."""

_DONE: Final = {Verb.COMMIT_AGAIN: Action.COMMITTED, Verb.ROLLBACK: Action.ROLLED_BACK}
_AGREES: Final = {Verb.COMMIT_AGAIN: Meaning.HEUR_COMMITTED, Verb.ROLLBACK: Meaning.HEUR_ROLLED_BACK}


Gone: TypeAlias = "Mapping[bytes, frozenset[str]]"
"""gtrid → the names, not configured any more, of resources whose branches of it an operator has taken care of."""


def recover(ownership: Ownership, gone: Gone = MappingProxyType({})) -> Steps:
    """One pass; see the module's docstring for its steps."""
    before: Decisions = yield ReadDecisions()
    scanned: dict[str, Sequence[Xid] | XaError] = yield Scan()
    live: frozenset[bytes]
    at_work: AtWork
    now: Decisions
    live, at_work, now = yield ReadLive()

    report = Report()
    found: list[Branch] = []
    for resource, xids in scanned.items():
        if isinstance(xids, XaError):
            report.unreachable[resource] = xids.message
        else:
            found += [Branch(resource, xid) for xid in xids]

    commits: list[tuple[Branch, str]] = []
    rollbacks: list[tuple[Branch, str]] = []
    settled: dict[bytes, Decision | XaError | None] = {}
    for branch in found:
        yield from _judge(branch, ownership, live, at_work, now, settled, commits, rollbacks, report)
    yield from _tell(Verb.COMMIT_AGAIN, commits, report)
    yield from _tell(Verb.ROLLBACK, rollbacks, report)

    owned = [
        (decider, decision, whose.claim)
        for decider, decided in ((None, before.logged), *before.by_decider.items())
        for decision in decided.values()
        if (whose := ownership.whose(decision.gtrid, at_work, decided=True)).claim in _THIS_NODES
    ]
    finished = _finished(report, now.heuristics)
    for _, decision, _ in owned:
        for name in _absent(decision, scanned, finished):
            if name not in gone.get(decision.gtrid, ()):
                report.unreachable[name] = "not configured any more, but a decision names a branch there"
    left = {finding.branch.xid for finding in report.findings if finding.action is Action.PENDING}
    for decider, decision, claim in owned:
        if claim is Claim.OURS and _is_over(decision, live, scanned, left, finished, gone):
            yield End(decision, decider)
            report.ended.append(decision.gtrid)
        elif decision.gtrid not in live and now.find(decision.gtrid) is not None:
            report.undone.append(decision.gtrid)
            absent = _absent(decision, scanned, finished)
            if absent:
                report.not_configured[decision.gtrid] = tuple(absent)
    return report


def _finished(report: Report, noted: frozenset[Xid]) -> set[Xid]:
    """The branches that were found, under whatever name, and that nothing is left to be told to."""
    done = {finding.branch.xid for finding in report.findings if finding.action in _FINISHED}
    left = {finding.branch.xid for finding in report.findings if finding.action is Action.PENDING}
    return (done | {finding.branch.xid for finding in report.findings if finding.branch.xid in noted}) - left


def _absent(decision: Decision, scanned: Mapping[str, object], finished: set[Xid]) -> dict[str, None]:
    """The names in `decision` that nobody has any more, of branches that were not found and finished elsewhere."""
    return dict.fromkeys(
        branch.resource for branch in decision.branches if branch.resource not in scanned and branch.xid not in finished
    )


def _is_over(
    decision: Decision,
    live: frozenset[bytes],
    scanned: Mapping[str, Sequence[Xid] | XaError],
    left: set[Xid],
    finished: set[Xid],
    gone: Gone,
) -> bool:
    """Whether a decision read before the scan has no branch left: each resource manager was reached, and each
    branch was either not found there or has been finished since; or it was finished under another name (`finished`).

    What is gone need not be reached, but everything else has to be: a branch may be there, under another name.
    """
    if decision.gtrid in live or not all(branch.xid not in left for branch in decision.branches):
        return False
    absent = _absent(decision, scanned, finished)
    if absent:
        return absent.keys() <= gone.get(decision.gtrid, frozenset()) and not any(
            isinstance(xids, XaError) for xids in scanned.values()
        )
    return not any(isinstance(scanned.get(branch.resource), XaError) for branch in decision.branches)


def _judge(
    branch: Branch,
    ownership: Ownership,
    live: frozenset[bytes],
    at_work: AtWork,
    now: Decisions,
    settled: dict[bytes, Decision | XaError | None],
    commits: list[tuple[Branch, str]],
    rollbacks: list[tuple[Branch, str]],
    report: Report,
) -> Generator[RecoveryEffect, Any, None]:
    """Puts one branch into the list it belongs to, or into the report."""
    gtrid = branch.xid.gtrid
    ours = Gtrid.of(branch.xid)
    if ours is None:
        return  # somebody else's transaction manager made it
    decision = now.find(gtrid)
    whose = ownership.whose(gtrid, at_work, decided=decision is not None)
    if whose.claim is Claim.UNKNOWN:
        report.findings.append(Finding(branch, Action.PENDING, whose.why))
        return
    if not whose.is_ours:
        _leave(report, branch, whose.why)
        return
    if gtrid in live:
        return  # its own completion takes care of it
    if branch.xid in now.heuristics:
        _leave(report, branch, "completed on its own and noted; it waits to be forgotten")
        return
    if decision is not None:
        commits.append((branch, "decided to commit"))
        return
    if ours.log_id == ownership.log_id:
        rollbacks.append((branch, "no decision in the log: presumed rolled back"))
        return
    decider = ownership.deciders[ours.log_id]
    if gtrid not in settled:
        settled[gtrid] = yield Settle(decider, gtrid)
    word = settled[gtrid]
    if isinstance(word, XaError):
        report.findings.append(Finding(branch, Action.PENDING, f"{decider} can't tell the decision: {word.message}"))
    elif word is not None:
        commits.append((branch, f"decided to commit, in {decider}"))
    else:
        rollbacks.append((branch, f"{decider} has no decision and will take none: rolled back"))


def _leave(report: Report, branch: Branch, why: str) -> None:
    report.findings.append(Finding(branch, Action.LEFT_ALONE, why))


def _tell(verb: Verb, asked: Sequence[tuple[Branch, str]], report: Report) -> Generator[RecoveryEffect, Any, None]:
    """Commits or rolls back the branches, and reports what came of each."""
    for first in range(0, len(asked), AT_ONCE):
        some = asked[first : first + AT_ONCE]
        answers: list[Answer] = yield Call(verb, tuple(branch for branch, _ in some))
        yield from _report(verb, some, answers, report)


def _report(
    verb: Verb, asked: Sequence[tuple[Branch, str]], answers: Sequence[Answer], report: Report
) -> Generator[RecoveryEffect, Any, None]:
    for (branch, reason), answer in zip(asked, answers, strict=True):
        meaning = MEANING[verb][code_of(answer)]
        why = reason
        if verb is Verb.ROLLBACK and code_of(answer) is Code.XAER_NOTA:
            action, why = Action.GONE, "finished since the scan: what became of it is not for this pass to say"
        elif meaning is Meaning.DONE:
            action = _DONE[verb]
        elif meaning is Meaning.LATER:
            action, why = Action.PENDING, f"{reason}; {_said(answer)}"
        elif meaning is _AGREES[verb]:
            yield Call(Verb.FORGET, (branch,), TMNOFLAGS)
            action = Action.FORGOTTEN
        else:
            refused = yield Note(Heuristic(branch, HEURISTIC_CODE[meaning]))
            action = Action.HEURISTIC if refused is None else Action.PENDING
            why = f"{reason}; {_said(answer)}" + ("" if refused is None else f"; {refused}")
        report.findings.append(Finding(branch, action, why))


def _said(answer: Answer) -> str:
    return answer.message if isinstance(answer, XaError) else answer.name
