"""`recover run`: one recovery pass, as a transaction manager makes it at its start, and its report for people.

Where the decisions are in a log, the log is opened for it: no transaction of it is under way then. Where a resource
decides, others of this node may be at work beside the pass; what they have under way is left to them, as long as their
leases run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tm.recovery import Action, Report
from tm.recovery.recovery_pass import AGAINST, BEFORE, ELSEWHERE, OLDER
from tm.resources.blocking_ports import BlockingPorts
from tm.two_phase.return_codes import Verb
from xa import Gtrid, ThreadOfControl, XaError, entered
from xa.coroutines import drive
from xa.outcome_notes import BranchOutcome
from xa.printable import escaped
from xabridge.operations.survey import REPAIR, DecisionKnowledge, Survey, lone_branch, spelled, survey, usual_branches
from xabridge.text import (
    NARROW,
    ending_command,
    gtrid_name,
    listed,
    paragraph,
    several,
    shortened,
    transaction_name,
    unreachable_lines,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tm.log import Branch, DecisionLog
    from tm.recovery import Finding
    from tm.recovery.service import RecoveryService
    from xabridge.operations.progress import Progress
    from xabridge.operations.scan import ScannedSite
    from xabridge.operations.site import OperationsTarget
    from xabridge.operations.survey import BranchView, TransactionView

_WIDTH: Final = 20
MOST_KINDS: Final = 20
"""The most kinds of transactions that are counted one by one, where not each transaction is listed."""
_MISSING: Final = {
    BranchOutcome.COMMITTED: "not there any more",
    BranchOutcome.UNKNOWN: "not there any more",
    BranchOutcome.PREPARED: "would stay in doubt",
    BranchOutcome.ROLLED_BACK: "would be noted as completed on its own",
    BranchOutcome.LOST: "would be noted as completed on its own",
}
_WHY_MISSING: Final = {
    BranchOutcome.COMMITTED: ": it was committed, as decided",
    BranchOutcome.UNKNOWN: f": {BEFORE}",
    BranchOutcome.PREPARED: f": {ELSEWHERE}",
    BranchOutcome.ROLLED_BACK: f": {AGAINST}",
    BranchOutcome.LOST: f": {OLDER}",
}
_NOT_CARRIED_OUT: Final = frozenset({BranchOutcome.ROLLED_BACK, BranchOutcome.LOST, BranchOutcome.PREPARED})
_LONE: Final = {
    Action.ROLLED_BACK: DecisionKnowledge.NONE,
    Action.LEFT_ALONE: DecisionKnowledge.UNKNOWN,
    Action.STRANDED: DecisionKnowledge.UNKNOWN,
}
"""What is known of the decision of a branch of which this was done."""
_DOING: Final = {Verb.COMMIT_AGAIN: "committed", Verb.ROLLBACK: "rolled back"}


def one_pass(place: OperationsTarget, log: DecisionLog | None, progress: Progress) -> Report:
    """One pass with the log in hand."""
    return recovery_of(place, log, progress).run_once(now=True)


def recovery_of(place: OperationsTarget, log: DecisionLog | None, progress: Progress) -> RecoveryService:
    """The service that makes the pass."""
    return place.recovery(log, _PassProgress(progress))


class _PassProgress:
    """Tells `progress` how far a pass has come."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._asked = dict.fromkeys(_DOING, 0)

    def reads_decisions(self) -> None:
        self._progress.note("reading the decisions …")

    def scans(self) -> None:
        self._progress.note("asking the resource managers …")

    def asks(self, verb: Verb, branches: int) -> None:
        if verb in self._asked:
            self._asked[verb] += branches
            self._progress.note("branches: " + ", ".join(f"{self._asked[verb]} {_DOING[verb]}" for verb in self._asked))


def report_lines(report: Report, most: int | None = None, *, wrapped: bool = True) -> Iterator[str]:
    """The actions of the pass, a line for each of the first `most` transactions, and their counts for the others.
    `wrapped`: in the columns of a terminal; otherwise a line is a sentence with its transaction's name."""
    by_name: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_name.setdefault(transaction_name(finding.branch.xid), []).append(finding)
    usual = usual_branches((Gtrid.of(of[0].branch.xid), len(of)) for of in by_name.values())
    lines = [(name, (*_what(findings), *_lone(findings, usual))) for name, findings in by_name.items()]
    silent = "decided to commit; a resource manager it needs could not be asked"
    lines += [
        (gtrid_name(gtrid), (silent,))
        for gtrid in report.undone
        if gtrid_name(gtrid) not in by_name and gtrid not in report.not_configured
    ]
    yield from _listed(lines, most, wrapped=wrapped)

    for number, (gtrid, names) in enumerate(report.not_configured.items()):
        if number == most:
            yield f"… and {len(report.not_configured) - number} more with resources that are not configured (--all)"
            break
        name = gtrid_name(gtrid)
        yield from _not_configured(name, names, wrapped=wrapped)
    if not by_name and not report.undone:
        yield "nothing in doubt" if not report.unreachable else "nothing found in doubt"


def _listed(lines: Sequence[tuple[str, tuple[str, ...]]], most: int | None, *, wrapped: bool) -> Iterator[str]:
    """The lines about each transaction, by name; for those after the first `most`, only the number of each kind."""
    for name, said in lines[:most]:
        for number, what in enumerate(said):
            yield from _line(name if not wrapped or not number else "", what, wrapped=wrapped)
    others = lines[most:] if most is not None else ()
    if others:
        yield f"… and {several(len(others), 'transaction')} more (--all tells of each):"
        for what, count in Counter(what for _, said in others for what in said).most_common(MOST_KINDS):
            yield from _line(f"    {count}" if wrapped else f"{count}", what, wrapped=wrapped)


def _not_configured(name: str, names: Collection[str], *, wrapped: bool) -> Iterator[str]:
    where = listed([escaped(resource) for resource in names])
    what = (
        f"decided to commit, but not configured: {where}. Configure it again, under any name, and recovery commits its "
        "branch. Only if it is gone for good:"
    )
    command = ending_command(name, names)
    if not wrapped:
        yield from _line(name, f"{what} {command}", wrapped=False)
        return
    yield from _line(name, what, wrapped=True)
    yield " " * (_WIDTH + 1) + command


def _what(findings: list[Finding]) -> Iterator[str]:
    for action in Action:
        those = [finding for finding in findings if finding.action is action]
        if action in {Action.COMMITTED, Action.ROLLED_BACK, Action.FORGOTTEN} and those:
            yield f"{action.value} on {_where(those)}"
        elif those:
            for why in dict.fromkeys(finding.why for finding in those):
                on = (
                    f" on {_where([one for one in those if one.why == why])}" if action is not Action.LEFT_ALONE else ""
                )
                yield f"{action.value}{on}: {escaped(why)}"


def _lone(findings: list[Finding], usual: Mapping[tuple[str, bytes], int]) -> Iterator[str]:
    """What to say of a branch without a decision that was found alone, where others of its log are not."""
    knowledge = _LONE.get(findings[0].action)
    ours = Gtrid.of(findings[0].branch.xid)
    if len(findings) > 1 or knowledge is None or ours is None or isinstance(ours.incarnation, int):
        return  # a number is a pipeline's, whose branches are alone at times
    if (ours.node, ours.log_id) in usual:
        yield lone_branch(usual[ours.node, ours.log_id], knowledge)


def _where(findings: list[Finding]) -> str:
    return ", ".join(escaped(finding.branch.resource) for finding in findings)


def _line(name: str, what: str, *, wrapped: bool) -> Iterator[str]:
    shown = shortened(name, NARROW)
    if not wrapped:
        yield f"{shown}: {what}"
        return
    margin = " " * (_WIDTH + 1)
    if len(shown) > _WIDTH:
        yield shown
        shown = ""
    yield from paragraph(what, shown.ljust(_WIDTH + 1), margin)


MissingBranch: TypeAlias = "tuple[Branch, BranchOutcome | XaError]"
"""A branch of a decision that is not there any more, and what became of it; the error where that can't be known now."""


@dataclass(frozen=True, slots=True)
class PassPreview:
    """What a pass would do now: about the transactions `found`, and about the branches of decisions that are not there
    any more, with what became of each as far as its resource manager tells."""

    found: Survey
    outcomes: tuple[BranchOutcome | XaError, ...]

    @property
    def not_carried_out(self) -> tuple[str, ...]:
        """What became of those branches after which their decisions can't simply be ended, a sentence each."""
        return _sentences(one for one in self.missing if not_carried_out([one]))

    @property
    def missing(self) -> tuple[MissingBranch, ...]:
        """Those branches, each with its outcome."""
        return tuple(zip(self.found.missing, self.outcomes, strict=True))

    def missing_of(self, name: str) -> tuple[MissingBranch, ...]:
        """Those of the decision that `name` names, or the one whose xid it is."""
        wanted, short = spelled(name)
        return tuple(
            (branch, outcome) for branch, outcome in self.missing
            if transaction_name(branch.xid) == short or str(branch.xid) == wanted
        )  # fmt: skip

    @property
    def known_committed(self) -> int:
        """How many of those branches are known to be committed."""
        return self.outcomes.count(BranchOutcome.COMMITTED)

    @property
    def unsolved(self) -> bool:
        """Whether something of this node is in doubt, or would be after a pass."""
        return bool(self.not_carried_out) or self.found.unsolved(self.found.transactions)


def _sentences(missing: Iterable[MissingBranch]) -> tuple[str, ...]:
    return tuple(
        f"{transaction_name(branch.xid)} on {escaped(branch.resource)}{_why_missing(outcome)}"
        for branch, outcome in missing
    )


def noting_command(*, has_log: bool) -> str:
    """What to do about a branch that was not committed as decided. `has_log`: there is a log to note it in."""
    then = f"{REPAIR[0].upper()}{REPAIR[1:]}, then: xabridge recover forget"
    if has_log:
        return f"xabridge recover run notes it. {then}"
    return (
        "its decision is kept until there is a log to note the outcome in: configure one beside the resource that "
        f'decides, log = "file:///folder"; then xabridge recover run notes it. {then}'
    )


def expectation(place: OperationsTarget, seen: ScannedSite | None = None) -> PassPreview:
    """Looks, unless that was done (`seen`), and asks what a pass would ask; it changes nothing."""
    found = survey(place.look() if seen is None else seen)
    with entered(ThreadOfControl()):
        outcomes = drive(BlockingPorts(place.resources, None).outcomes(found.missing))
    return PassPreview(found, tuple(outcomes))


def expected(what: PassPreview, most: int | None = None, *, wrapped: bool = True) -> Iterator[str]:
    """The lines of `run --dry-run`: the actions of a pass now, as in `report_lines`."""
    found = what.found
    lines = {view.name: tuple(would(view)) for view in found.transactions}
    for branch, outcome in what.missing:
        name = transaction_name(branch.xid)
        lines[name] = (*lines.get(name, ()), _of_missing(branch, outcome))
    yield from _listed([(name, said) for name, said in lines.items() if said], most, wrapped=wrapped)

    absent = [view for view in found.transactions if view.decision is DecisionKnowledge.COMMIT and _absent(view)]
    for view in absent[:most]:
        yield from _not_configured(view.name, _absent(view), wrapped=wrapped)
    if most is not None and len(absent) > most:
        yield f"… and {len(absent) - most} more with resources that are not configured (--all)"
    if not found.transactions and not found.missing:
        yield "nothing found in doubt"


def would(view: TransactionView) -> Iterator[str]:
    """What a recovery pass would do with a transaction now, a line for each kind; nothing if it can do nothing now."""
    if view.decision is DecisionKnowledge.UNKNOWN or view.at_work:
        yield f"would be left alone: {view.why}"
        return

    noted = [branch for branch in view.in_doubt if branch.noted is not None]
    completed = [branch for branch in view.in_doubt if branch.noted is None and branch.outcome is not None]
    others = [branch for branch in view.in_doubt if branch not in noted and branch not in completed]
    if noted:
        yield f"was completed on its own on {_on(noted)}, and waits to be forgotten"
    if completed:
        what = "would be noted, or forgotten if that agrees with the decision"
        yield f"was completed on its own on {_on(completed)}; {what}"
    if view.decision is DecisionKnowledge.COMMIT:
        others = [branch for branch in others if branch.configured]
    if others and view.decision is DecisionKnowledge.COMMIT:
        yield f"would be committed on {_on(others)}"
    elif others:
        yield f"would be rolled back on {_on(others)}, unless it is decided before"
        if view.lone:
            yield view.lone


def _on(branches: Sequence[BranchView]) -> str:
    return listed([escaped(branch.resource) for branch in branches])


def _of_missing(branch: Branch, outcome: BranchOutcome | XaError) -> str:
    """What a pass would say of a branch that was decided to commit and is not there any more."""
    what = _MISSING[BranchOutcome.UNKNOWN if isinstance(outcome, XaError) else outcome]
    return f"{what} on {escaped(branch.resource)}{_why_missing(outcome)}"


def _why_missing(outcome: BranchOutcome | XaError) -> str:
    if isinstance(outcome, XaError):
        return f", and its outcome can't be known now: {escaped(outcome.message)}"
    return _WHY_MISSING[outcome]


def finished_lines(missing: Sequence[MissingBranch], *, has_log: bool) -> Iterator[str]:
    """The lines of `show` about the branches of a decision that has not ended, and of which none is there any more."""
    yield transaction_name(missing[0][0].xid)
    yield "  decision  commit, and has not ended"
    for branch, outcome in missing:
        yield from paragraph(_of_missing(branch, outcome), " " * 12, " " * 12)
    command = noting_command(has_log=has_log) if not_carried_out(missing) else "xabridge recover run"
    yield from paragraph(command, "  next      ", " " * 12)


def not_carried_out(missing: Iterable[MissingBranch]) -> bool:
    """Whether one of these branches was not committed, or may not be."""
    return any(isinstance(outcome, XaError) or outcome in _NOT_CARRIED_OUT for _, outcome in missing)


def _absent(view: TransactionView) -> tuple[str, ...]:
    """The resources of a transaction that are not configured any more."""
    return tuple(dict.fromkeys(branch.resource for branch in view.in_doubt if not branch.configured))


def troubles(survey: Survey) -> list[str]:
    """The resource managers and logs that were not reached, a paragraph each."""
    lines = [line for said in unreachable_lines(survey.unreachable) for line in paragraph(said)]
    if survey.log_trouble is not None:
        lines += paragraph(f"the decisions could not be read: {escaped(survey.log_trouble)}")
    return lines
