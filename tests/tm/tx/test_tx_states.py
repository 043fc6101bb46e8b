"""These tests compare the state table of the TX interface with a second copy of the specification's table 7-1."""

from __future__ import annotations

from itertools import product

import pytest

from tests.cases import each
from tm.tx.states import CHAINED, IN_TRANSACTION, TX, TxState, TxVerb
from xa import Code
from xa.machine import IllegalTransition, advance

TABLE_7_1: dict[TxVerb, dict[str, str]] = {
    TxVerb.BEGIN: {"S1": "S3", "S2": "S4"},
    TxVerb.CLOSE: {"S0": "S0", "S1": "S0", "S2": "S0"},
    TxVerb.COMMIT: {"S3": "S1", "S4": "S4"},
    TxVerb.COMMIT_NO_BEGIN: {"S4": "S2"},
    TxVerb.INFO: {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
    TxVerb.OPEN: {"S0": "S1", "S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
    TxVerb.ROLLBACK: {"S3": "S1", "S4": "S4"},
    TxVerb.ROLLBACK_NO_BEGIN: {"S4": "S2"},
    TxVerb.SET_COMMIT_RETURN: {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
    TxVerb.SET_CHAINED: {"S1": "S2", "S2": "S2", "S3": "S4", "S4": "S4"},
    TxVerb.SET_UNCHAINED: {"S1": "S1", "S2": "S1", "S3": "S3", "S4": "S3"},
    TxVerb.SET_TIMEOUT: {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
    TxVerb.FAIL: dict.fromkeys(("S0", "S1", "S2", "S3", "S4"), "S0"),  # ours: the table leaves TX_FAIL open
}


@each(("state", "verb"), list(product(TxState, TxVerb)))
def test_every_state_and_verb(state: TxState, verb: TxVerb) -> None:
    target = TABLE_7_1[verb].get(state.name)
    if target is not None:
        assert advance(TX, state, verb) is TxState[target]
        assert TX.refusal(state, verb) is None
        return
    assert TX.refusal(state, verb) is Code.XAER_PROTO
    with pytest.raises(IllegalTransition):
        advance(TX, state, verb)


def test_what_a_state_says() -> None:
    """The sets beside the table agree with it."""
    assert {state for state in TxState if TX.refusal(state, TxVerb.COMMIT) is None} == IN_TRANSACTION
    assert {advance(TX, state, TxVerb.SET_CHAINED) for state in TxState if state is not TxState.S0} == CHAINED
    assert {source for _, verb, _, _, source in TX.transitions() if not source.startswith("7-1")} == {
        source for _, verb, _, _, source in TX.transitions() if verb is TxVerb.FAIL
    }
