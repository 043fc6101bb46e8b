"""These tests check that the table of meanings is total, and has the right meaning for every code at every verb."""

from __future__ import annotations

import itertools

import pytest

from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, Meaning, Verb
from xa import HEURISTIC_CODES, ROLLBACK_CODES, Code

WRONG_CALLS = {Code.XAER_PROTO, Code.XAER_INVAL, Code.XAER_ASYNC, Code.XAER_DUPID, Code.XAER_OUTSIDE}
"""The call was wrong and had no effect, says the contract."""
HEURISTIC_MEANINGS = {
    Code.XA_HEURCOM: Meaning.HEUR_COMMITTED,
    Code.XA_HEURRB: Meaning.HEUR_ROLLED_BACK,
    Code.XA_HEURMIX: Meaning.HEUR_MIXED,
    Code.XA_HEURHAZ: Meaning.HEUR_HAZARD,
}


def test_every_code_has_a_meaning_at_every_verb() -> None:
    assert set(MEANING) == set(Verb)
    for verb in Verb:
        assert set(MEANING[verb]) == set(Code), verb


def test_ok_is_as_asked_everywhere() -> None:
    assert {MEANING[verb][Code.XA_OK] for verb in Verb} == {Meaning.DONE}


@pytest.mark.parametrize("verb", [Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK, Verb.DECIDE, Verb.COMMIT_ONE_PHASE])
def test_a_lost_connection_leaves_it_to_another_try(verb: Verb) -> None:
    assert MEANING[verb][Code.XAER_RMFAIL] is Meaning.LATER


@pytest.mark.parametrize("verb", list(Verb))
def test_a_call_without_effect_gives_no_prepared_branch_up(verb: Verb) -> None:
    """Wrong calls, and codes that do not belong to the verb, end nothing: neither done, nor gone."""
    for code in WRONG_CALLS | {Code.XA_RETRY}:
        assert MEANING[verb][code] in {Meaning.LATER, Meaning.REFUSED}, code


@pytest.mark.parametrize("verb", [Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK, Verb.COMMIT_ONE_PHASE])
def test_a_heuristic_code_means_what_it_says(verb: Verb) -> None:
    assert {code: MEANING[verb][code] for code in HEURISTIC_CODES} == HEURISTIC_MEANINGS


def test_a_rollback_code_after_the_vote_is_a_loss_and_before_it_a_rollback() -> None:
    for code in ROLLBACK_CODES:
        assert MEANING[Verb.PREPARE][code] is Meaning.ROLLED_BACK
        assert MEANING[Verb.COMMIT_ONE_PHASE][code] is Meaning.ROLLED_BACK
        assert MEANING[Verb.DECIDE][code] is Meaning.ROLLED_BACK
        assert MEANING[Verb.COMMIT][code] is MEANING[Verb.COMMIT_AGAIN][code] is Meaning.LOST_ROLLED_BACK
        assert MEANING[Verb.ROLLBACK][code] is Meaning.DONE
        assert MEANING[Verb.END][code] is Meaning.REFUSED


def test_an_unknown_xid_says_another_thing_at_each_verb() -> None:
    assert {verb: MEANING[verb][Code.XAER_NOTA] for verb in Verb} == {
        Verb.END: Meaning.ROLLED_BACK,
        Verb.END_LATE: Meaning.ROLLED_BACK,
        Verb.PREPARE: Meaning.ROLLED_BACK,
        Verb.COMMIT: Meaning.LOST_HAZARD,
        Verb.COMMIT_AGAIN: Meaning.DONE,
        Verb.COMMIT_ONE_PHASE: Meaning.ROLLED_BACK,
        Verb.DECIDE: Meaning.ROLLED_BACK,
        Verb.ROLLBACK: Meaning.DONE,
        Verb.FORGET: Meaning.DONE,
    }


def test_only_a_plain_yes_is_a_yes() -> None:
    yes = {code for code in Code if MEANING[Verb.PREPARE][code] is Meaning.DONE}
    decided = {code for code in Code if MEANING[Verb.DECIDE][code] is Meaning.DONE}
    assert yes == decided == {Code.XA_OK}


def test_every_damage_has_a_code_to_be_noted_under() -> None:
    for verb, code in itertools.product(Verb, Code):
        meaning = MEANING[verb][code]
        if meaning.name.startswith(("HEUR_", "LOST_")):
            assert HEURISTIC_CODE[meaning] in HEURISTIC_CODES
    assert all(HEURISTIC_CODE[meaning] is code for code, meaning in HEURISTIC_MEANINGS.items())
