"""What nodes tell of what is in doubt comes to the console as it left them, and nothing else is taken for it. It is
shown once, as the one knows it whose log it is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from xa import FORMAT_ID, Code, Gtrid, Xid
from xa.holdings import Holding, Relation
from xabridge.console.in_doubt import HERE, together
from xabridge.console.nodes import InDoubt
from xabridge.operations import survey_json
from xabridge.operations.scan import Origin
from xabridge.operations.survey import BranchView, DecisionKnowledge, State, Survey, TransactionView
from xabridge.testing.contract.client import case


def view(number: int, decision: DecisionKnowledge, age_s: float = 1.0, *, at_work: bool = False) -> TransactionView:
    gtrid = Gtrid("orders-1", b"\xab" * 8, b"\x01" * 8, number).encode()
    branch = BranchView("shop", Xid(FORMAT_ID, gtrid, b"shop"), State.PREPARED, age_s)
    return TransactionView(FORMAT_ID, gtrid, decision, "why", (branch,), at_work=at_work)


def survey(*views: TransactionView, trouble: str | None = None, **unreachable: str) -> Survey:
    return Survey("n", 1, views, unreachable, trouble)


def node(*views: TransactionView, acting: bool = True, live: frozenset[bytes] = frozenset(), **told: str) -> InDoubt:
    return InDoubt(1, acting, survey(*views, **told), live)


def test_whose_log_knows_tells() -> None:
    """What is under way is in nobody's doubt."""
    unknown, known = view(1, DecisionKnowledge.UNKNOWN), view(1, DecisionKnowledge.COMMIT)
    doubts = together(survey(unknown), {"a": node(unknown), "b": node(known)}, {})
    assert doubts.survey.transactions == (known,)
    assert doubts.place_of(known) == "b"
    live = view(2, DecisionKnowledge.UNKNOWN)
    doubts = together(survey(live, view(1, DecisionKnowledge.NONE)), {"a": node(live=frozenset([live.gtrid]))}, {})
    assert doubts.survey.transactions == (view(1, DecisionKnowledge.NONE),)


def test_of_several_who_know_one_that_can_be_acted_through() -> None:
    known, busy = view(1, DecisionKnowledge.NONE), view(1, DecisionKnowledge.NONE, at_work=True)
    looks, acts = node(known, acting=False), node(known)
    assert together(survey(known), {"a": looks, "b": acts}, {}).place_of(known) == "b"
    assert together(survey(known), {"b": node(busy)}, {}).place_of(known) == HERE
    assert together(survey(known), {}, {"b": "is away"}).place_of(known) == HERE


def test_the_oldest_is_first_and_who_is_silent_is_told() -> None:
    doubts = together(
        survey(view(1, DecisionKnowledge.NONE, 5.0)),
        {"a": node(view(2, DecisionKnowledge.NONE, 9.0), shop="is away")},
        {"b": "gone"},
    )
    assert [one.ours.sequence for one in doubts.survey.transactions if one.ours] == [2, 1]
    assert doubts.survey.unreachable == {"shop of a": "is away", "node b": "gone"}
    assert not doubts.survey.complete


# -- on its way
GTRID = Gtrid("orders-1", b"\xab" * 8, b"\x01" * 8, 7).encode()
XID = Xid(FORMAT_ID, GTRID, b"shop")
BRANCH = BranchView(
    "shop", XID, State.HEURISTIC, 12.5, "orders", Code.XA_HEURRB,
    (Holding(Relation.LOCKED, "public.orders", "row", None, "x"), Holding(Relation.TO, "q", "message", 3)), 2,
    Code.XA_HEURCOM, configured=False, origin=Origin("a pipeline", "its sink", "xabridge pipeline status"),
    also=("shop2",),
)  # fmt: skip
VIEW = TransactionView(
    FORMAT_ID, GTRID, DecisionKnowledge.ENDED, "why", (BRANCH,), in_log=True, decider="db", at_work=True
)
SURVEY = Survey("orders-1", 2, (VIEW,), {"broker": "is away"}, "the log is not there", 3, 4)


def test_it_comes_as_it_left() -> None:
    assert survey_json.decode_survey(json.loads(json.dumps(survey_json.encode_survey(SURVEY)))) == SURVEY


def test_only_the_oldest_are_told() -> None:
    many = Survey("orders-1", 2, (VIEW,) * (survey_json.MOST + 1))
    told = survey_json.encode_survey(many)
    assert (told["count"], len(told["transactions"])) == (survey_json.MOST + 1, survey_json.MOST)


def test_nothing_else_is_taken_for_one() -> None:
    wrong: list[tuple[list[Any], Any]] = [
        (["decision"], "perhaps"),
        (["branches"], []),
        (["branches"], "none"),
        (["gtrid"], "xx"),
        (["gtrid"], "00" * 65),
        (["branches", 0, "xid"], "nothing"),
        (["branches", 0, "age_s"], float("inf")),
        (["branches", 0, "age_s"], -1),
        (["branches", 0, "holdings"], [["from"]]),
        (["branches", 0, "outcome"], "XA_PERHAPS"),
    ]
    everywhere = [(["transactions", 0, *path], value) for path, value in wrong]

    for (*path, key), value in (*everywhere, (["unreachable"], None), (["configured"], "many")):
        told: Any = json.loads(json.dumps(survey_json.encode_survey(SURVEY)))
        place = told
        for step in path:
            place = place[step]
        place[key] = value
        with case(key, value), pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            survey_json.decode_survey(told)
