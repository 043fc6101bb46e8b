"""`recover run`: one recovery pass, as a transaction manager makes it at its start, and its report for people.

Where the decisions are in a log, the log is opened for it: no transaction of it is under way then. Where a resource
decides, others of this node may be at work beside the pass; what they have under way is left to them, as long as their
leases run.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from tm.recovery import Action, Report
from tm.two_phase.return_codes import Verb
from xa.printable import escaped
from xabridge.operations.survey import DecisionKnowledge, Survey
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
    from collections.abc import Collection, Iterator, Sequence

    from tm.log import DecisionLog
    from tm.recovery import Finding
    from tm.recovery.service import RecoveryService
    from xabridge.operations.progress import Progress
    from xabridge.operations.site import OperationsTarget
    from xabridge.operations.survey import TransactionView

_WIDTH: Final = 20
MOST_KINDS: Final = 20
"""The most kinds of transactions that are counted one by one, where not each transaction is listed."""
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


def report_lines(report: Report, most: int | None = None) -> Iterator[str]:
    """The actions of the pass, a line for each of the first `most` transactions, and their counts for the others."""
    by_name: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_name.setdefault(transaction_name(finding.branch.xid), []).append(finding)
    told = [(name, tuple(_what(findings))) for name, findings in by_name.items()]
    silent = "decided to commit; a resource manager it needs could not be asked"
    told += [
        (gtrid_name(gtrid), (silent,))
        for gtrid in report.undone
        if gtrid_name(gtrid) not in by_name and gtrid not in report.not_configured
    ]
    yield from _told_of(told, most)

    for number, (gtrid, names) in enumerate(report.not_configured.items()):
        if number == most:
            yield f"… and {len(report.not_configured) - number} more with resources that are not configured (--all)"
            break
        name = gtrid_name(gtrid)
        yield from _not_configured(name, names, name)
    if not by_name and not report.undone:
        yield "nothing in doubt" if not report.unreachable else "nothing found in doubt"


def _told_of(told: Sequence[tuple[str, tuple[str, ...]]], most: int | None) -> Iterator[str]:
    """The lines about each transaction, by name; for those after the first `most`, only the number of each kind."""
    for name, said in told[:most]:
        for what in said:
            yield from _line(name, what)
            name = ""  # noqa: PLW2901 — said once
    others = told[most:] if most is not None else ()
    if others:
        yield f"… and {several(len(others), 'transaction')} more (--all tells of each):"
        for what, count in Counter(what for _, said in others for what in said).most_common(MOST_KINDS):
            yield from _line(f"    {count}", what)


def _not_configured(name: str, names: Collection[str], shown: str) -> Iterator[str]:
    where = listed([escaped(resource) for resource in names])
    yield from _line(
        shown,
        f"decided to commit, but not configured: {where}. Configure it again, under any name, and recovery commits its "
        "branch. Only if it is gone for good:",
    )
    yield " " * (_WIDTH + 1) + ending_command(name, names)


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


def _where(findings: list[Finding]) -> str:
    return ", ".join(escaped(finding.branch.resource) for finding in findings)


def _line(name: str, what: str) -> Iterator[str]:
    shown = shortened(name, NARROW)
    margin = " " * (_WIDTH + 1)
    if len(shown) > _WIDTH:
        yield shown
        shown = ""
    yield from paragraph(what, shown.ljust(_WIDTH + 1), margin)


def expected(found: Survey, most: int | None = None) -> Iterator[str]:
    """The lines of `run --dry-run`: the actions of a pass now, as in `report_lines`."""
    yield from _told_of([(view.name, (what,)) for view in found.transactions if (what := would(view))], most)
    absent = [view for view in found.transactions if view.decision is DecisionKnowledge.COMMIT and _absent(view)]
    for view in absent[:most]:
        yield from _not_configured(view.name, _absent(view), view.name)
    if most is not None and len(absent) > most:
        yield f"… and {len(absent) - most} more with resources that are not configured (--all)"
    if not found.transactions:
        yield "nothing found in doubt"


def would(view: TransactionView) -> str:
    """What a recovery pass would do with a transaction now; the empty string if it can do nothing now."""
    on = listed([escaped(branch.resource) for branch in view.in_doubt])
    if view.decision is DecisionKnowledge.UNKNOWN or view.at_work:
        return f"would be left alone: {view.why}"
    if any(branch.outcome is not None or branch.noted is not None for branch in view.in_doubt):
        return f"was completed on its own on {on}; would be noted, or forgotten if that agrees with the decision"
    if view.decision is DecisionKnowledge.COMMIT:
        configured = listed([escaped(branch.resource) for branch in view.in_doubt if branch.configured])
        return f"would be committed on {configured}" if configured else ""
    return f"would be rolled back on {on}, unless it is decided before"


def _absent(view: TransactionView) -> tuple[str, ...]:
    """The resources of a transaction that are not configured any more."""
    return tuple(dict.fromkeys(branch.resource for branch in view.in_doubt if not branch.configured))


def troubles(survey: Survey) -> list[str]:
    """The resource managers and logs that were not reached, a paragraph each."""
    lines = [line for said in unreachable_lines(survey.unreachable) for line in paragraph(said)]
    if survey.log_trouble is not None:
        lines += paragraph(f"the decisions could not be read: {escaped(survey.log_trouble)}")
    return lines
