"""These tests compare codes and switch values with X/Open's xa.h, and check the exception of each code."""

from __future__ import annotations

import pickle

import pytest

import xa
from xa import EXCEPTIONS, HEURISTIC_CODES, ROLLBACK_CODES, AxCode, Code, XaError, XaMisuse, Xid, xa_error
from xa.codes import MEANING, XA_RBBASE, XA_RBEND
from xa.machine import RESULT_OF, Result

XA_H = {
    "XA_RBROLLBACK": 100,
    "XA_RBCOMMFAIL": 101,
    "XA_RBDEADLOCK": 102,
    "XA_RBINTEGRITY": 103,
    "XA_RBOTHER": 104,
    "XA_RBPROTO": 105,
    "XA_RBTIMEOUT": 106,
    "XA_RBTRANSIENT": 107,
    "XA_NOMIGRATE": 9,
    "XA_HEURHAZ": 8,
    "XA_HEURCOM": 7,
    "XA_HEURRB": 6,
    "XA_HEURMIX": 5,
    "XA_RETRY": 4,
    "XA_RDONLY": 3,
    "XA_OK": 0,
    "XAER_ASYNC": -2,
    "XAER_RMERR": -3,
    "XAER_NOTA": -4,
    "XAER_INVAL": -5,
    "XAER_PROTO": -6,
    "XAER_RMFAIL": -7,
    "XAER_DUPID": -8,
    "XAER_OUTSIDE": -9,
}
AX_H = {"TM_JOIN": 2, "TM_RESUME": 1, "TM_OK": 0, "TMER_TMERR": -1, "TMER_INVAL": -2, "TMER_PROTO": -3}
ANSWERS = {Code.XA_OK, Code.XA_RDONLY, Code.XA_NOMIGRATE}


def test_return_codes_are_xopens() -> None:
    assert {code.name: code.value for code in Code} == XA_H


def test_ax_codes_are_xopens() -> None:
    assert {code.name: code.value for code in AxCode} == AX_H


def test_groups() -> None:
    assert (XA_RBBASE, XA_RBEND) == (100, 107)
    assert {code.name for code in ROLLBACK_CODES} == {name for name in XA_H if name.startswith("XA_RB")}
    assert {code.name for code in HEURISTIC_CODES} == {name for name in XA_H if name.startswith("XA_HEUR")}


def test_every_code_has_a_sentence() -> None:
    assert set(MEANING) == set(Code)
    assert all(MEANING.values())


def test_every_code_is_an_answer_or_has_an_exception() -> None:
    assert set(EXCEPTIONS) | ANSWERS == set(Code)
    assert not set(EXCEPTIONS) & ANSWERS


def test_the_exception_of_a_code_tells_code_xid_and_what_happened() -> None:
    xid = Xid(1, b"g", b"b")
    for code in sorted(EXCEPTIONS):
        error = xa_error(code, xid=xid)
        assert type(error) is EXCEPTIONS[code], code
        assert isinstance(error, XaError)
        assert (error.code, error.xid) == (code, xid)
        assert str(error) == f"{code.name}: {MEANING[code]} ({xid})"
        assert str(xa_error(code, "shop voted no")) == f"{code.name}: shop voted no"


def test_exceptions_survive_a_process_boundary() -> None:
    for code in sorted(EXCEPTIONS):
        error = xa_error(code, "what happened", Xid(1, b"g", b"b"))
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 — our own bytes
        assert type(again) is type(error), code
        assert (again.code, again.xid, str(again)) == (error.code, error.xid, str(error))


@pytest.mark.parametrize("code", sorted(ANSWERS))
def test_an_answer_is_never_raised(code: Code) -> None:
    with pytest.raises(KeyError):
        xa_error(code)


def test_one_class_for_each_decision_of_the_caller() -> None:
    decisions = {
        xa.BranchRolledBack: ROLLBACK_CODES,
        xa.HeuristicOutcome: HEURISTIC_CODES,
        xa.TryAgain: {Code.XA_RETRY},
        xa.ResourceError: {Code.XAER_RMERR},
        xa.ResourceUnavailable: {Code.XAER_RMFAIL},
        xa.UnknownBranch: {Code.XAER_NOTA},
        XaMisuse: {Code.XAER_PROTO, Code.XAER_INVAL, Code.XAER_DUPID, Code.XAER_OUTSIDE, Code.XAER_ASYNC},
    }
    assert {code: kind for kind, codes in decisions.items() for code in codes} == EXCEPTIONS


def test_every_code_moves_a_state_or_is_a_refusal() -> None:
    refusals = {Code.XAER_ASYNC, Code.XAER_NOTA, Code.XAER_INVAL, Code.XAER_PROTO, Code.XAER_DUPID, Code.XAER_OUTSIDE}
    assert set(RESULT_OF) == set(Code) - refusals
    assert set(RESULT_OF.values()) == set(Result)
