"""These tests check that the state machines are total over (state, verb, result), and complete against the
specification's tables.
"""

from __future__ import annotations

from enum import Enum
from itertools import product
from typing import Any

import pytest

from xa import Code
from xa.machine import IllegalTransition, Machine, Member, Result, Row, advance
from xa.state_tables import (
    ASSOCIATION,
    ASYNC,
    BRANCH,
    MACHINES,
    REGISTRATION,
    RESOURCE,
    AssociationVerb,
    AsyncVerb,
    BranchState,
    BranchVerb,
    RegistrationVerb,
    ResourceVerb,
)

AnyMachine = Machine[Any, Any]
OK, RDONLY, RB, HEUR, RETRY, RMERR, RMFAIL = (
    Result.OK,
    Result.RDONLY,
    Result.RB,
    Result.HEUR,
    Result.RETRY,
    Result.RMERR,
    Result.RMFAIL,
)

# Chapter 6 of the specification, written down a second time: verb, results, state → next state. A routine that
# the tables list without a return value leads there whatever it returns, here OK and XA_RB.
SPECIFICATION: dict[str, list[tuple[Any, tuple[Result, ...], dict[str, str]]]] = {
    RESOURCE.name: [
        (ResourceVerb.OPEN, (OK,), {"R0": "R1", "R1": "R1"}),
        (ResourceVerb.CLOSE, (OK,), {"R0": "R0", "R1": "R0"}),
        *((verb, (RMFAIL,), {"R0": "R0", "R1": "R0"}) for verb in (ResourceVerb.OPEN, ResourceVerb.CLOSE)),
        (ResourceVerb.ANY, (RMFAIL,), {"R1": "R0"}),
    ],
    ASSOCIATION.name: [
        (AssociationVerb.START, (OK,), {"T0": "T1"}),
        (AssociationVerb.RESUME, (OK,), {"T2": "T1"}),
        (AssociationVerb.RESUME, (RB,), {"T2": "T0"}),
        (AssociationVerb.SUSPEND, (OK,), {"T1": "T2"}),
        (AssociationVerb.SUSPEND, (RB,), {"T1": "T0"}),
        (AssociationVerb.END, (OK, RB), {"T1": "T0", "T2": "T0"}),
        (AssociationVerb.END_FAIL, (OK, RB), {"T1": "T0", "T2": "T0"}),
        (AssociationVerb.OPEN, (OK,), {"T0": "T0", "T1": "T1", "T2": "T2"}),
        (AssociationVerb.RECOVER, (OK,), {"T0": "T0", "T1": "T1", "T2": "T2"}),
        (AssociationVerb.CLOSE, (OK,), {"T0": "T0", "T2": "T0"}),  # to R0, which has no associations
    ],
    REGISTRATION.name: [
        (RegistrationVerb.REGISTER, (OK,), {"D0": "D1"}),
        (RegistrationVerb.REGISTER_NULL, (OK,), {"D0": "D3"}),
        (RegistrationVerb.REGISTER_RESUME, (OK,), {"D2": "D1"}),
        (RegistrationVerb.UNREGISTER, (OK,), {"D3": "D0"}),
        (RegistrationVerb.SUSPEND, (OK,), {"D1": "D2"}),
        (RegistrationVerb.SUSPEND, (RB,), {"D1": "D0"}),
        (RegistrationVerb.END, (OK, RB), {"D1": "D0", "D2": "D0"}),
        (RegistrationVerb.END_FAIL, (OK, RB), {"D1": "D0", "D2": "D0"}),
        (RegistrationVerb.OPEN, (OK,), {"D0": "D0", "D1": "D1", "D2": "D2", "D3": "D3"}),
        (RegistrationVerb.RECOVER, (OK,), {"D0": "D0", "D1": "D1", "D2": "D2", "D3": "D3"}),
        (RegistrationVerb.CLOSE, (OK,), {"D0": "D0", "D2": "D0"}),
    ],
    BRANCH.name: [
        (BranchVerb.START, (OK,), {"S0": "S1"}),
        (BranchVerb.JOIN, (OK,), {"S2": "S1"}),
        (BranchVerb.JOIN, (RB,), {"S2": "S4"}),
        (BranchVerb.END, (OK,), {"S1": "S2"}),
        (BranchVerb.END, (RB,), {"S1": "S4"}),
        (BranchVerb.END_FAIL, (RB,), {"S1": "S4"}),
        (BranchVerb.PREPARE, (OK,), {"S2": "S3"}),
        (BranchVerb.PREPARE, (RDONLY, RB), {"S2": "S0"}),
        (BranchVerb.PREPARE, (RMERR,), {"S2": "S2"}),
        (BranchVerb.COMMIT, (OK, RMERR), {"S3": "S0"}),
        (BranchVerb.COMMIT, (RETRY,), {"S3": "S3"}),
        (BranchVerb.COMMIT, (HEUR,), {"S3": "S5", "S5": "S5"}),
        (BranchVerb.COMMIT_ONE_PHASE, (OK, RMERR, RB), {"S2": "S0"}),
        (BranchVerb.COMMIT_ONE_PHASE, (HEUR,), {"S2": "S5"}),
        (BranchVerb.ROLLBACK, (OK, RB, RMERR), {"S2": "S0", "S3": "S0", "S4": "S0"}),
        (BranchVerb.ROLLBACK, (HEUR,), {"S3": "S5", "S4": "S5", "S5": "S5"}),
        (BranchVerb.FORGET, (OK,), {"S5": "S0"}),
        (BranchVerb.FORGET, (RMERR,), {"S5": "S5"}),
    ],
    ASYNC.name: [
        (AsyncVerb.SYNCHRONOUS, (OK,), {"A0": "A0"}),
        (AsyncVerb.ASYNCHRONOUS, (OK,), {"A0": "A1"}),
        (AsyncVerb.COMPLETE, (OK,), {"A1": "A0"}),
        (AsyncVerb.COMPLETE, (RETRY,), {"A1": "A1"}),
    ],
}
NOT_OF_THE_MANAGER = {
    AssociationVerb.LOSE,
    RegistrationVerb.REGISTER,
    RegistrationVerb.REGISTER_NULL,
    RegistrationVerb.REGISTER_RESUME,
    RegistrationVerb.UNREGISTER,
    RegistrationVerb.LOSE,
}


def members(kind: type[Enum]) -> list[Any]:
    return list(kind)


def entries(machine: AnyMachine) -> dict[tuple[Any, Any, Result], tuple[Any, str]]:
    return {(state, verb, result): (target, source) for state, verb, result, target, source in machine.transitions()}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_every_state_verb_and_result(machine: AnyMachine) -> None:
    known = entries(machine)
    legal = {(state, verb) for state, verb, _ in known}
    for state, verb, result in product(members(machine.states), members(machine.verbs), Result):
        if (state, verb, result) in known:
            assert advance(machine, state, verb, result) is known[state, verb, result][0]
            assert machine.refusal(state, verb) is None
            continue

        with pytest.raises(IllegalTransition) as raised:
            advance(machine, state, verb, result)
        error = raised.value
        assert (error.machine, error.state, error.verb, error.result) == (machine.name, state, verb, result)
        assert state.value in str(error)
        assert verb.value in str(error)
        if (state, verb) in legal:  # the verb is possible, this result of it is not
            assert error.code is Code.XAER_PROTO
        else:
            assert error.code is machine.refusal(state, verb)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_column_says_what_advance_says(machine: AnyMachine) -> None:
    known = entries(machine)
    for verb, result in product(members(machine.verbs), Result):
        column = machine.column(verb, result)
        for state in members(machine.states):
            if (state, verb, result) in known:
                assert column[state] is advance(machine, state, verb, result)
                continue
            with pytest.raises(IllegalTransition) as raised:
                column[state]
            with pytest.raises(IllegalTransition) as expected:
                advance(machine, state, verb, result)
            assert vars(raised.value) == vars(expected.value)
            assert str(raised.value) == str(expected.value)
            assert state not in column


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_rows_are_the_specifications_or_say_whose_they_are(machine: AnyMachine) -> None:
    ours = entries(machine)
    specified = {
        (machine.states[state], verb, result): machine.states[target]
        for verb, results, moves in SPECIFICATION[machine.name]
        for result in results
        for state, target in moves.items()
    }
    assert {triple: ours[triple][0] for triple in specified} == specified
    for triple, (_, source) in ours.items():
        from_table = source.startswith("6-")
        everywhere = triple[2] is RMFAIL and "xa_* → [XAER_RMFAIL]" in source
        assert from_table == (triple in specified or everywhere), (triple, source)
        assert from_table or source.startswith("design") or ", text" in source, (triple, source)


@pytest.mark.parametrize("machine", [ASSOCIATION, REGISTRATION], ids=lambda machine: machine.name)
def test_a_lost_connection_ends_every_association(machine: AnyMachine) -> None:
    for state, verb in product(members(machine.states), members(machine.verbs)):
        if machine.refusal(state, verb) is None and verb not in NOT_OF_THE_MANAGER:
            assert advance(machine, state, verb, RMFAIL) is machine.initial


def test_every_state_can_be_reached_and_left() -> None:
    for machine in MACHINES:
        reached = {machine.initial}
        while True:
            more = reached | {target for state, _, _, target, _ in machine.transitions() if state in reached}
            if more == reached:
                break
            reached = more
        assert reached == set(members(machine.states)), machine.name
        for state in members(machine.states):
            leaves = {target for source, _, _, target, _ in machine.transitions() if source is state}
            assert leaves - {state}, f"{machine.name}: {state} can't be left"


def test_refusals_of_the_branch() -> None:
    """Unknown is XAER_NOTA, known already XAER_DUPID, anything else XAER_PROTO."""
    for (state, verb), code in BRANCH.refusals.items():
        if state is BranchState.S0:
            assert code is Code.XAER_NOTA
        elif verb is BranchVerb.START:
            assert code is Code.XAER_DUPID
        else:
            assert code is Code.XAER_PROTO


def test_no_timer_and_no_lost_thread_touches_a_prepared_branch() -> None:
    for state, verb in product((BranchState.S3, BranchState.S5), (BranchVerb.EXPIRE, BranchVerb.LOSE)):
        assert BRANCH.refusal(state, verb) is not None


def test_a_rollback_only_branch_never_commits() -> None:
    reached = {target for state, _, _, target, _ in BRANCH.transitions() if state is BranchState.S4}
    assert reached == {BranchState.S0, BranchState.S4, BranchState.S5}
    for verb in (BranchVerb.PREPARE, BranchVerb.COMMIT, BranchVerb.COMMIT_ONE_PHASE):
        results = {
            result for state, done, result, _, _ in BRANCH.transitions() if (state, done) == (BranchState.S4, verb)
        }
        assert results <= {RB}


class _State(Member):
    A = "a"
    B = "b"


class _Verb(Member):
    GO = "go"


GO_A = Row(_Verb.GO, OK, (_State.A,), _State.B, "test")


@pytest.mark.parametrize(
    ("rows", "refusals", "message"),
    [
        ((GO_A, GO_A), {(_State.B, _Verb.GO): Code.XAER_PROTO}, "two rows for"),
        ((GO_A,), {}, "do not divide"),
        ((GO_A,), {(_State.A, _Verb.GO): Code.XAER_PROTO, (_State.B, _Verb.GO): Code.XAER_PROTO}, "do not divide"),
    ],
)
def test_a_table_with_a_hole_or_an_overlap_is_no_machine(
    rows: tuple[Row[_State, _Verb], ...], refusals: dict[tuple[_State, _Verb], Code], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Machine("test", _State, _Verb, _State.A, rows, refusals)
