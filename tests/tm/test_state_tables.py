"""These tests compare each state table of the manager with a second copy of it, for every state and verb."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests.cases import each
from tm.consumer.states import CONSUMER
from tm.log.incarnations import INCARNATION
from tm.resources.states import RESOURCE
from tm.two_phase.states import GLOBAL
from tm.tx.states import TX
from xa.machine import IllegalTransition, advance

COPIES: dict[str, tuple[Any, dict[str, dict[str, str]]]] = {
    "global transaction": (
        GLOBAL,
        {
            "MARK": {
                **dict.fromkeys(("ACTIVE", "MARKED"), "MARKED"),
                **dict.fromkeys(("SUSPENDED", "SUSPENDED_MARKED"), "SUSPENDED_MARKED"),
            },
            "SUSPEND": {"ACTIVE": "SUSPENDED", "MARKED": "SUSPENDED_MARKED"},
            "RESUME": {"SUSPENDED": "ACTIVE", "SUSPENDED_MARKED": "MARKED"},
            "COMMIT": {"ACTIVE": "PREPARING", "MARKED": "ROLLING_BACK"},
            "ROLLBACK": dict.fromkeys(("ACTIVE", "MARKED", "SUSPENDED", "SUSPENDED_MARKED"), "ROLLING_BACK"),
            "REFUSE": {"PREPARING": "ROLLING_BACK"},
            "DECIDE": {"PREPARING": "COMMITTING"},
            "NO_WORK": {"PREPARING": "COMMITTED"},
            "ONE_PHASE": {"PREPARING": "COMMITTED"},
            "LOSE": {"PREPARING": "IN_DOUBT"},
            "LEAVE": {"COMMITTING": "IN_DOUBT"},
            "FINISH": {"COMMITTING": "COMMITTED", "ROLLING_BACK": "ROLLED_BACK"},
            "DAMAGE": dict.fromkeys(("PREPARING", "COMMITTING", "ROLLING_BACK"), "HEURISTIC"),
        },
    ),
    "TX interface": (  # the specification's table 7-1
        TX,
        {
            "BEGIN": {"S1": "S3", "S2": "S4"},
            "CLOSE": {"S0": "S0", "S1": "S0", "S2": "S0"},
            "COMMIT": {"S3": "S1", "S4": "S4"},
            "COMMIT_NO_BEGIN": {"S4": "S2"},
            "INFO": {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
            "OPEN": {"S0": "S1", "S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
            "ROLLBACK": {"S3": "S1", "S4": "S4"},
            "ROLLBACK_NO_BEGIN": {"S4": "S2"},
            "SET_COMMIT_RETURN": {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
            "SET_CHAINED": {"S1": "S2", "S2": "S2", "S3": "S4", "S4": "S4"},
            "SET_UNCHAINED": {"S1": "S1", "S2": "S1", "S3": "S3", "S4": "S3"},
            "SET_TIMEOUT": {"S1": "S1", "S2": "S2", "S3": "S3", "S4": "S4"},
            "FAIL": dict.fromkeys(("S0", "S1", "S2", "S3", "S4"), "S0"),  # ours: the table leaves TX_FAIL open
        },
    ),
    "resource": (
        RESOURCE,
        {
            "OPENED": {"NEW": "OPEN", "OPEN": "OPEN", "DOWN": "OPEN", "CLOSED": "CLOSED"},
            "FAILED": {"NEW": "DOWN", "OPEN": "DOWN", "DOWN": "DOWN", "CLOSED": "CLOSED"},
            "CLOSE": dict.fromkeys(("NEW", "OPEN", "DOWN", "CLOSED"), "CLOSED"),
        },
    ),
    "consumer": (
        CONSUMER,
        {
            "START": {"NEW": "RUNNING"},
            "STOP": {"NEW": "STOPPED", "RUNNING": "STOPPING", "STOPPING": "STOPPING", "STOPPED": "STOPPED"},
            "END": {"STOPPING": "STOPPED", "STOPPED": "STOPPED"},
        },
    ),
    "incarnation": (
        INCARNATION,
        {
            "NOTE": {"UNKNOWN": "OPEN"},
            "CLOSE": {"OPEN": "WHOLE"},
            "SUCCEED": {"OPEN": "WHOLE", "WHOLE": "WHOLE", "CUT": "CUT"},
            "COPY": {"OPEN": "CUT", "CUT": "CUT", "WHOLE": "WHOLE"},
            "TRUST": {"CUT": "WHOLE"},
        },
    ),
}


@each("name", COPIES)
def test_every_state_and_verb(name: str) -> None:
    machine, copy = COPIES[name]
    for state, verb in product(machine.states, machine.verbs):
        target = copy[verb.name].get(state.name)
        if target is None:
            assert machine.refusal(state, verb) is not None, (state, verb)
            with pytest.raises(IllegalTransition):
                advance(machine, state, verb)
        else:
            assert machine.refusal(state, verb) is None, (state, verb)
            assert advance(machine, state, verb).name == target, (state, verb)
