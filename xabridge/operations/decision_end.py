"""`recover end` ends a decision that names a resource which is not configured any more, and so would never end.

1. The command explains which of the decision's resources are missing, and what ending it means; the user confirms.
2. The log is opened, as a transaction manager opens it: no other process decides in it from here on.
3. The decision is looked up again, and one recovery pass made, as `recover run` makes it. It commits the other
   branches, under any name under which they are found.
4. Only if the pass reached every resource manager, and left nothing of the transaction, the decision is ended.
5. The log is closed, and read again; the command reports its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tm.errors import TransactionError
from tm.log import LogError
from xa.printable import escaped
from xabridge.operations.recovery_pass import recovery_of, report_lines
from xabridge.operations.survey_json import report_value
from xabridge.text import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tm.log import Branch, Decision
    from tm.recovery import Report
    from xabridge.operations.progress import Progress
    from xabridge.operations.scan import ScannedSite
    from xabridge.operations.site import OperationsTarget
    from xabridge.operations.survey import Survey, TransactionView


_NOT_WRITTEN: Final = "everything was carried out, but the end of the decision could not be written: try again"


@dataclass(frozen=True, slots=True)
class DecisionEnding:
    """The request. `lost` are the decision's branches on resources that are not configured; `refused` says why it can't
    be carried out now."""

    view: TransactionView
    gone: frozenset[str]
    lost: tuple[Branch, ...]
    refused: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """The result: the report of the pass, if there was one, and the reason why the decision is not ended."""

    report: Report | None = None
    trouble: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the decision is ended."""
        return self.report is not None and self.trouble is None


# --- step 1 -----------------------------------------------------------------------------------------------------------
def planned_end(view: TransactionView, seen: ScannedSite, found: Survey, gone: frozenset[str]) -> DecisionEnding:
    """What ending the decision without the resources `gone` would mean."""
    decision = _decision(view, seen)
    if decision is None:
        refused = f"no decision of it is known here ({view.decision.value}): there is none to end"
        return DecisionEnding(view, gone, (), refused)
    lost = tuple(branch for branch in decision.branches if branch.resource not in seen.configured)
    return DecisionEnding(view, gone, lost, _refusal(lost, gone, seen.configured, found.unreachable))


def _decision(view: TransactionView, seen: ScannedSite) -> Decision | None:
    if view.decider is not None:
        return seen.decided[view.decider].get(view.gtrid)
    if not view.in_log or seen.log is None or isinstance(seen.log, LogError):
        return None
    return next((decision for decision in seen.log.decisions if decision.gtrid == view.gtrid), None)


def _refusal(
    lost: tuple[Branch, ...], gone: frozenset[str], configured: tuple[str, ...], unreachable: Mapping[str, str]
) -> str | None:
    """Why the decision can't be ended; the same is asked again, with the log in hand."""
    names = dict.fromkeys(branch.resource for branch in lost)
    if not names:
        return "every resource that it names is configured: recovery ends it"
    for name in sorted(gone - names.keys()):
        why = "is configured: recovery commits its branch" if name in configured else "has no branch in it"
        return f"{escaped(name)} {why}"
    missing = [escaped(name) for name in names if name not in gone]
    if missing:
        return f"it also names {listed(missing)}, not configured any more: if that is gone for good, add it with --gone"
    if unreachable:
        away = listed([escaped(name) for name in unreachable])
        return f"{away} could not be reached, and may have a branch of it under any name: try again when that is over"
    return None


def explained_end(ending: DecisionEnding) -> list[str]:
    """The explanation, a paragraph each; of what is refused, only the first."""
    view = ending.view
    steps = _steps(ending) if ending.refused is None else ()
    return [f"{view.name}: decision {view.decision.value}: {view.why}", *steps]


def _steps(ending: DecisionEnding) -> Iterator[str]:
    found = {branch.xid: branch.resource for branch in ending.view.in_doubt}
    yield "makes one recovery pass first, as recover run does, which finishes everything that this node has in doubt"
    yield from (_step(branch, found.get(branch.xid)) for branch in ending.lost)


def _step(branch: Branch, found_on: str | None) -> str:
    where = escaped(branch.resource)
    if found_on not in (None, branch.resource):
        return f"commits the branch of {where}, which was found on {escaped(str(found_on))}"
    return (
        f"ends the decision without {where}: if that has the branch prepared and comes back, recovery rolls it back "
        "there, which splits the transaction"
    )


# --- steps 2 to 5 -----------------------------------------------------------------------------------------------------
def carry_out(place: OperationsTarget, ending: DecisionEnding, progress: Progress) -> Result:
    """Ends it, unless it can't be any more. LogError: the log can't be opened, so nothing was done."""
    with place.holding_the_log() as log:
        recovery = recovery_of(place, log, progress)
        try:
            with progress.step("recovering", 1):
                report = recovery.end_decision(ending.view.gtrid, ending.gone)
        except (TransactionError, LogError) as error:
            return Result(recovery.last_report, str(error))
    return Result(report, None if _is_written(place, ending.view) else _NOT_WRITTEN)


def _is_written(place: OperationsTarget, view: TransactionView) -> bool:
    """Whether the log that is closed now says so too: an end is written without a force, and may be lost."""
    if view.decider is not None:
        return True
    log = place.read_log()
    return log is None or not (isinstance(log, LogError) or any(view.gtrid == left.gtrid for left in log.decisions))


# --- what is said -----------------------------------------------------------------------------------------------------
def result_lines(
    ending: DecisionEnding, result: Result, most: int | None = None, *, wrapped: bool = True
) -> Iterator[str]:
    """What was done; of the pass, the first `most` transactions one by one, as `report_lines` says."""
    if result.report is not None:
        yield from report_lines(result.report, most, wrapped=wrapped)
    for branch in _untold(ending, result):
        yield f"{ending.view.name} on {escaped(branch.resource)}: ended without it (xid {branch.xid})"
    if result.ended:
        yield f"{ending.view.name}: the decision is ended"


def _untold(ending: DecisionEnding, result: Result) -> Iterator[Branch]:
    """The lost branches that the pass has not found elsewhere."""
    if result.report is not None and result.ended:
        reported = {finding.branch.xid for finding in result.report.findings}
        yield from (branch for branch in ending.lost if branch.xid not in reported)


def result_value(ending: DecisionEnding, result: Result) -> dict[str, Any]:
    view = ending.view
    found = {branch.xid: branch.resource for branch in view.in_doubt}

    return {
        "act": "end",
        "plan": [
            {
                "transaction": view.name,
                "decision": view.decision.value,
                "why": view.why,
                "resource": branch.resource,
                "xid": str(branch.xid),
                "what": _step(branch, found.get(branch.xid)),
            }
            for branch in ending.lost
        ],
        "done": [
            {"resource": branch.resource, "xid": str(branch.xid), "ok": True, "said": "ended without it"}
            for branch in _untold(ending, result)
        ],
        "ended": result.ended,
        "report": report_value(result.report) if result.report is not None else None,
        "trouble": result.trouble,
    }
