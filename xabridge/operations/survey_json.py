"""A survey as JSON, in two forms.

- `survey_value` and `report_value` are the output of `--json`. The keys are documented in docs/recover.md; new ones may
  be added, and none is taken away.
- `encode_survey` makes what a node sends to the console, and `decode_survey` reads it again. It takes nothing else for
  a survey, because any process could listen at the address of a node.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from xa import Code, XaError, Xid
from xa.holdings import Holding, Relation
from xabridge.operations.scan import Origin
from xabridge.operations.survey import BranchView, DecisionKnowledge, State, Survey, TransactionView
from xabridge.text import transaction_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tm.recovery import Report
    from xa import Gtrid
    from xabridge.operations.recovery_pass import MissingBranch

MOST: Final = 500
"""Transactions that a node sends, the oldest first."""
_LONGEST_S: Final = 1e10


# --- the output of --json ---------------------------------------------------------------------------------------------
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
        "lone": bool(view.lone),
        "origin": view.origin.transaction if view.origin is not None else None,
        "branches": [_branch_value(branch) for branch in view.branches],
    }


def _incarnation(ours: Gtrid) -> int | str:
    """Hexadecimal; a counter as the number that it is."""
    return ours.incarnation if isinstance(ours.incarnation, int) else ours.incarnation.hex()


def _branch_value(branch: BranchView) -> dict[str, Any]:
    return {
        "resource": branch.resource,
        "xid": str(branch.xid),
        "state": branch.state.value,
        "age_s": branch.age_s,
        "owner": branch.owner,
        "outcome": branch.outcome.name if branch.outcome is not None else None,
        "noted": branch.noted.name if branch.noted is not None else None,
        "noted_why": branch.noted_why,
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


def missing_value(missing: Iterable[MissingBranch]) -> dict[str, Any]:
    """Branches of decisions that are not there any more, and what became of each; null where that can't be known
    now."""
    return {
        "missing": [
            {
                "transaction": transaction_name(branch.xid),
                "resource": branch.resource,
                "xid": str(branch.xid),
                "outcome": None if isinstance(outcome, XaError) else outcome.name.lower().replace("_", "-"),
            }
            for branch, outcome in missing
        ]
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


# --- from a node to the console ---------------------------------------------------------------------------------------
def encode_survey(survey: Survey) -> dict[str, Any]:
    """The survey, with the first MOST transactions; `count` are all."""
    return {
        "node": survey.node,
        "configured": survey.configured,
        "count": len(survey.transactions),
        "transactions": [encode_transaction(view) for view in survey.transactions[:MOST]],
        "unreachable": dict(survey.unreachable),
        "log_trouble": survey.log_trouble,
        "open_decisions": survey.open_decisions,
        "carried_out": survey.carried_out,
    }


def decode_survey(value: dict[str, Any]) -> Survey:
    """The survey again. ValueError, KeyError, TypeError or AttributeError: it is none."""
    return Survey(
        str(value["node"]),
        int(value["configured"]),
        tuple(decode_transaction(one) for one in _list(value["transactions"])[:MOST]),
        {str(name): str(why) for name, why in value["unreachable"].items()},
        _text_or_none(value["log_trouble"]),
        int(value["open_decisions"]),
        int(value["carried_out"]),
    )


def encode_transaction(view: TransactionView) -> dict[str, Any]:
    """One transaction."""
    return {
        "format_id": view.format_id,
        "gtrid": view.gtrid.hex(),
        "decision": view.decision.value,
        "why": view.why,
        "branches": [_encode_branch(branch) for branch in view.branches],
        "in_log": view.in_log,
        "decider": view.decider,
        "at_work": view.at_work,
        "lone": view.lone,
    }


def decode_transaction(value: dict[str, Any]) -> TransactionView:
    """The transaction again; errors as in `decode_survey`."""
    branches = tuple(_decode_branch(one) for one in _list(value["branches"]))
    if not branches:
        raise ValueError("a transaction in doubt has a branch")

    format_id, gtrid = int(value["format_id"]), bytes.fromhex(value["gtrid"])
    Xid(format_id, gtrid)
    return TransactionView(
        format_id,
        gtrid,
        DecisionKnowledge(value["decision"]),
        str(value["why"]),
        branches,
        value["in_log"] is True,
        _text_or_none(value["decider"]),
        value["at_work"] is True,
        lone=str(value["lone"]),
    )


def _encode_branch(branch: BranchView) -> dict[str, Any]:
    origin = branch.origin

    return {
        "resource": branch.resource,
        "xid": str(branch.xid),
        "state": branch.state.value,
        "age_s": branch.age_s,
        "owner": branch.owner,
        "outcome": _name(branch.outcome),
        "holdings": [[one.relation.value, one.place, one.unit, one.count, one.note] for one in branch.holdings],
        "omitted": branch.omitted,
        "noted": _name(branch.noted),
        "noted_why": branch.noted_why,
        "configured": branch.configured,
        "origin": None if origin is None else [origin.transaction, origin.branch, origin.command],
        "also": list(branch.also),
    }


def _decode_branch(value: dict[str, Any]) -> BranchView:
    origin = value["origin"]

    return BranchView(
        str(value["resource"]),
        Xid.parse(str(value["xid"])),
        State(value["state"]),
        None if value["age_s"] is None else _seconds(value["age_s"]),
        str(value["owner"]),
        _code(value["outcome"]),
        tuple(
            Holding(Relation(relation), str(place), str(unit), None if count is None else int(count), str(note))
            for relation, place, unit, count, note in _list(value["holdings"])
        ),
        int(value["omitted"]),
        _code(value["noted"]),
        value["configured"] is True,
        None if origin is None else Origin(*map(str, origin)),
        tuple(str(one) for one in _list(value["also"])),
        str(value["noted_why"]),
    )


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _name(code: Code | None) -> str | None:
    return None if code is None else code.name


def _code(name: Any) -> Code | None:
    return None if name is None else Code[str(name)]


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not isfinite(seconds) or not 0 <= seconds <= _LONGEST_S:
        raise ValueError(f"{value!r} is no age")
    return seconds
