"""The output of `--json`: the survey, a report, as tables of texts and numbers. The keys are documented in
docs/recover.md; new ones may be added, and none is taken away."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from xabridge.cli.text import transaction_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.recovery import Report
    from xa import Gtrid
    from xabridge.cli.survey import BranchView, Survey, TransactionView


def write(value: object, *, lines: bool = False) -> None:
    """Prints `value`; with `lines` in one line, for readers of a stream."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=None if lines else 2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def survey_value(survey: Survey, transactions: Sequence[TransactionView]) -> dict[str, Any]:
    """The survey, of these transactions only."""
    return {
        "node": survey.node,
        "transactions": [transaction_value(view) for view in transactions],
        "unreachable": survey.unreachable,
        "log_trouble": survey.log_trouble,
        "complete": survey.complete,
        "open_decisions": survey.open_decisions,
        "carried_out": survey.carried_out,
    }


def transaction_value(view: TransactionView) -> dict[str, Any]:
    """One global transaction."""
    ours = view.ours
    return {
        "name": view.name,
        "format_id": view.format_id,
        "gtrid": view.gtrid.hex(),
        "node": ours.node if ours is not None else None,
        "log": ours.log_id.hex() if ours is not None else None,
        "incarnation": _incarnation(ours) if ours is not None else None,
        "sequence": ours.sequence if ours is not None else None,
        "decision": view.decision.value,
        "decider": view.decider,
        "why": view.why,
        "origin": view.origin.transaction if view.origin is not None else None,
        "branches": [_branch(branch) for branch in view.branches],
    }


def _incarnation(ours: Gtrid) -> int | str:
    """Hexadecimal; a counter as the number that it is."""
    return ours.incarnation if isinstance(ours.incarnation, int) else ours.incarnation.hex()


def _branch(branch: BranchView) -> dict[str, Any]:
    return {
        "resource": branch.resource,
        "xid": str(branch.xid),
        "state": branch.state.value,
        "age_s": branch.age_s,
        "owner": branch.owner,
        "outcome": branch.outcome.name if branch.outcome is not None else None,
        "noted": branch.noted.name if branch.noted is not None else None,
        "holds": [
            {
                "relation": holding.relation.name.lower(),
                "place": holding.place,
                "unit": holding.unit,
                "count": holding.count,
                "note": holding.note,
            }
            for holding in branch.holdings
        ],
        "omitted": branch.omitted,
        "configured": branch.configured,
        "origin": branch.origin.branch if branch.origin is not None else None,
        "also": list(branch.also),
    }


def report_value(report: Report) -> dict[str, Any]:
    """The results of a recovery pass."""
    return {
        "findings": [
            {
                "transaction": transaction_name(finding.branch.xid),
                "resource": finding.branch.resource,
                "xid": str(finding.branch.xid),
                "action": finding.action.name.lower().replace("_", "-"),
                "why": finding.why,
            }
            for finding in report.findings
        ],
        "ended": [gtrid.hex() for gtrid in report.ended],
        "undone": [gtrid.hex() for gtrid in report.undone],
        "not_configured": {gtrid.hex(): list(names) for gtrid, names in report.not_configured.items()},
        "unreachable": report.unreachable,
        "clean": report.clean,
    }
