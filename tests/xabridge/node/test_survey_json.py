"""A survey comes to the console as it left the node, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xa import FORMAT_ID, Code, Gtrid, Xid
from xa.holdings import Holding, Relation
from xabridge.cli.origins import Origin
from xabridge.cli.survey import BranchView, Known, State, Survey, TransactionView
from xabridge.node import survey_json
from xabridge.testing.contract.client import case

GTRID = Gtrid("orders-1", b"\xab" * 8, b"\x01" * 8, 7).encode()
XID = Xid(FORMAT_ID, GTRID, b"shop")
BRANCH = BranchView(
    "shop", XID, State.HEURISTIC, 12.5, "orders", Code.XA_HEURRB,
    (Holding(Relation.LOCKED, "public.orders", "row", None, "x"), Holding(Relation.TO, "q", "message", 3)), 2,
    Code.XA_HEURCOM, configured=False, origin=Origin("a pipeline", "its sink", "xabridge pipeline status"),
    also=("shop2",),
)  # fmt: skip
VIEW = TransactionView(FORMAT_ID, GTRID, Known.ENDED, "why", (BRANCH,), in_log=True, decider="db", at_work=True)
SURVEY = Survey("orders-1", 2, (VIEW,), {"broker": "is away"}, "the log is not there", 3, 4)


def test_it_comes_as_it_left() -> None:
    assert survey_json.survey_of(json.loads(json.dumps(survey_json.told(SURVEY)))) == SURVEY


def test_only_the_oldest_are_told() -> None:
    many = Survey("orders-1", 2, (VIEW,) * (survey_json.MOST + 1))
    told = survey_json.told(many)
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
        told: Any = json.loads(json.dumps(survey_json.told(SURVEY)))
        place = told
        for step in path:
            place = place[step]
        place[key] = value
        with case(key, value), pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
            survey_json.survey_of(told)
