"""A survey as JSON, on its way from a node to the console: `told` writes it, `survey_of` reads it again and takes
nothing else for one, because any process could listen at the address of a node.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from xa import Code, Xid
from xa.holdings import Holding, Relation
from xabridge.cli.origins import Origin
from xabridge.cli.survey import BranchView, Known, State, Survey, TransactionView

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST: Final = 500
"""Transactions that are told, the oldest first."""
_LONGEST_S: Final = 1e10


def told(survey: Survey) -> dict[str, Any]:
    """The survey, with the first MOST transactions; `count` are all."""
    return {
        "node": survey.node,
        "configured": survey.configured,
        "count": len(survey.transactions),
        "transactions": [transaction_told(view) for view in survey.transactions[:MOST]],
        "unreachable": dict(survey.unreachable),
        "log_trouble": survey.log_trouble,
        "open_decisions": survey.open_decisions,
        "carried_out": survey.carried_out,
    }


def survey_of(value: dict[str, Any]) -> Survey:
    """The survey again. ValueError, KeyError, TypeError or AttributeError: it is none."""
    return Survey(
        str(value["node"]),
        int(value["configured"]),
        tuple(transaction_of(one) for one in _list(value["transactions"])[:MOST]),
        {str(name): str(why) for name, why in value["unreachable"].items()},
        _text_or_none(value["log_trouble"]),
        int(value["open_decisions"]),
        int(value["carried_out"]),
    )


def transaction_told(view: TransactionView) -> dict[str, Any]:
    """One transaction."""
    return {
        "format_id": view.format_id,
        "gtrid": view.gtrid.hex(),
        "decision": view.decision.value,
        "why": view.why,
        "branches": [_branch_told(branch) for branch in view.branches],
        "in_log": view.in_log,
        "decider": view.decider,
        "at_work": view.at_work,
    }


def transaction_of(value: dict[str, Any]) -> TransactionView:
    """The transaction again; errors as in `survey_of`."""
    branches = tuple(_branch_of(one) for one in _list(value["branches"]))
    if not branches:
        raise ValueError("a transaction in doubt has a branch")
    format_id, gtrid = int(value["format_id"]), bytes.fromhex(value["gtrid"])
    Xid(format_id, gtrid)
    return TransactionView(
        format_id,
        gtrid,
        Known(value["decision"]),
        str(value["why"]),
        branches,
        value["in_log"] is True,
        _text_or_none(value["decider"]),
        value["at_work"] is True,
    )


def _branch_told(branch: BranchView) -> dict[str, Any]:
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
        "configured": branch.configured,
        "origin": None if origin is None else [origin.transaction, origin.branch, origin.command],
        "also": list(branch.also),
    }


def _branch_of(value: dict[str, Any]) -> BranchView:
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
