"""These tests cover the TX interface: every call in every state, the code of every outcome, and the characteristics of
each thread of control.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

from tests.event_loop import in_loop
from tests.tm.shop import elsewhere
from tests.tm.two_resources import TwoResources
from tests.tm.wrapped import Gate
from tm.outcome import Verdict
from tm.resources.states import ResourceState
from tm.transaction import live_of
from tm.two_phase.states import GlobalState
from tm.tx import TxInterface
from tm.tx.codes import (
    NO_BEGIN,
    OUTCOME_CODES,
    STATE_OF,
    CommitReturn,
    TransactionControl,
    TransactionState,
    TxCode,
    TxInfo,
)
from tm.tx.states import CHAINED, IN_TRANSACTION, TX, TxState, TxVerb
from xa import FORMAT_ID, NULL_XID, TMREGISTER, TMUSEASYNC, AxCode, Code, Xid
from xa.machine import advance
from xabridge.testing.reference import NetworkFault

OK, REFUSED = TxCode.TX_OK, TxCode.TX_PROTOCOL_ERROR
COMPLETED, LOGGED = CommitReturn.TX_COMMIT_COMPLETED, CommitReturn.TX_COMMIT_DECISION_LOGGED
CHAIN, NO_CHAIN = TransactionControl.TX_CHAINED, TransactionControl.TX_UNCHAINED


@pytest.fixture
def both() -> Iterator[TwoResources]:
    with TwoResources() as two:
        yield two


@pytest.fixture
def tx(both: TwoResources) -> TxInterface:
    return TxInterface(both.manager)


def bring_to(tx: TxInterface, state: TxState) -> None:
    """Brings the calling thread of control from S0 to `state`."""
    if state is TxState.S0:
        return
    assert tx.tx_open() is OK
    if state in CHAINED:
        assert tx.tx_set_transaction_control(CHAIN) is OK
    if state in IN_TRANSACTION:
        assert tx.tx_begin() is OK


def state_of(tx: TxInterface) -> TxState:
    """The state, as a user can tell it."""
    mode, info = tx.tx_info()
    if info is None:
        assert mode == REFUSED
        return TxState.S0
    assert (info.xid == NULL_XID) == (mode == 0) == (info.transaction_state is None)
    chained = info.transaction_control is CHAIN
    return (TxState.S4 if chained else TxState.S3) if mode else (TxState.S2 if chained else TxState.S1)


def info_of(tx: TxInterface) -> TxInfo:
    info = tx.tx_info()[1]
    assert info is not None
    return info


CALLS: dict[TxVerb, Callable[[TxInterface], int]] = {
    TxVerb.BEGIN: TxInterface.tx_begin,
    TxVerb.CLOSE: TxInterface.tx_close,
    TxVerb.COMMIT: TxInterface.tx_commit,
    TxVerb.INFO: lambda tx: min(tx.tx_info()[0], 0),
    TxVerb.OPEN: TxInterface.tx_open,
    TxVerb.ROLLBACK: TxInterface.tx_rollback,
    TxVerb.SET_COMMIT_RETURN: lambda tx: tx.tx_set_commit_return(LOGGED),
    TxVerb.SET_CHAINED: lambda tx: tx.tx_set_transaction_control(CHAIN),
    TxVerb.SET_UNCHAINED: lambda tx: tx.tx_set_transaction_control(NO_CHAIN),
    TxVerb.SET_TIMEOUT: lambda tx: tx.tx_set_transaction_timeout(5),
}


@pytest.mark.parametrize(("state", "verb"), list(product(TxState, CALLS)), ids=lambda member: member.name)
def test_every_call_in_every_state(tx: TxInterface, state: TxState, verb: TxVerb) -> None:
    bring_to(tx, state)
    legal = TX.refusal(state, verb) is None
    assert CALLS[verb](tx) == (OK if legal else REFUSED)
    assert state_of(tx) is (advance(TX, state, verb) if legal else state)


def test_a_chain(both: TwoResources, tx: TxInterface) -> None:
    bring_to(tx, TxState.S4)
    xids = set()
    for number in range(3):
        xids.add(info_of(tx).xid)
        both.write(f"key {number}")
        assert tx.tx_commit() is OK
    both.write("never")
    assert tx.tx_set_transaction_control(NO_CHAIN) is OK
    assert tx.tx_rollback() is OK
    assert state_of(tx) is TxState.S1
    assert len(xids) == 3
    assert set(both.one.data) == set(both.two.data) == {"key 0", "key 1", "key 2"}


# --- outcomes -----------------------------------------------------------------------------------------------
def heuristic(verb: str, code: Code, *stores: str) -> Callable[[TwoResources], None]:
    """The resource managers named answer `verb` with `code`."""

    def plan(both: TwoResources) -> None:
        for store in (both.one, both.two):
            if store.name in stores:
                store.script.plan(verb, code)

    return plan


def full(both: TwoResources) -> None:
    both.log.fault = "full"


def commit_lost(both: TwoResources) -> None:
    both.two.script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=3)


OUTCOMES = [
    ("nothing", lambda _: None, TxVerb.COMMIT, OK),
    ("a vote of no", heuristic("prepare", Code.XA_RBINTEGRITY, "two"), TxVerb.COMMIT, TxCode.TX_ROLLBACK),
    ("the disk is full", full, TxVerb.COMMIT, TxCode.TX_ROLLBACK),
    ("all rolled back", heuristic("commit", Code.XA_HEURRB, "one", "two"), TxVerb.COMMIT, TxCode.TX_ROLLBACK),
    ("one rolled back", heuristic("commit", Code.XA_HEURRB, "two"), TxVerb.COMMIT, TxCode.TX_MIXED),
    ("one mixed", heuristic("commit", Code.XA_HEURMIX, "two"), TxVerb.COMMIT, TxCode.TX_MIXED),
    ("one hazard", heuristic("commit", Code.XA_HEURHAZ, "two"), TxVerb.COMMIT, TxCode.TX_HAZARD),
    ("one committed alone", heuristic("commit", Code.XA_HEURCOM, "two"), TxVerb.COMMIT, OK),
    ("one can't be told", commit_lost, TxVerb.COMMIT, TxCode.TX_HAZARD),
    ("nothing", lambda _: None, TxVerb.ROLLBACK, OK),
    ("all committed", heuristic("rollback", Code.XA_HEURCOM, "one", "two"), TxVerb.ROLLBACK, TxCode.TX_COMMITTED),
    ("one committed", heuristic("rollback", Code.XA_HEURCOM, "two"), TxVerb.ROLLBACK, TxCode.TX_MIXED),
    ("one mixed", heuristic("rollback", Code.XA_HEURMIX, "one"), TxVerb.ROLLBACK, TxCode.TX_MIXED),
    ("one hazard", heuristic("rollback", Code.XA_HEURHAZ, "one"), TxVerb.ROLLBACK, TxCode.TX_HAZARD),
    ("one rolled back alone", heuristic("rollback", Code.XA_HEURRB, "one"), TxVerb.ROLLBACK, OK),
]


@pytest.mark.parametrize("chained", [False, True], ids=["unchained", "chained"])
@pytest.mark.parametrize("begins", [True, False], ids=["", "no begin"])
@pytest.mark.parametrize(
    ("plan", "verb", "code"),
    [outcome[1:] for outcome in OUTCOMES],
    ids=[f"{verb.value}: {name}" for name, _, verb, _ in OUTCOMES],
)
def test_every_outcome(
    both: TwoResources,
    tx: TxInterface,
    plan: Callable[[TwoResources], None],
    verb: TxVerb,
    code: TxCode,
    begins: bool,
    chained: bool,
) -> None:
    bring_to(tx, TxState.S4 if chained else TxState.S3)
    both.write()
    plan(both)
    if not begins:
        both.one.script.plan("start", Code.XAER_RMERR)
    expected = code if begins or not chained else NO_BEGIN[code]
    assert CALLS[verb](tx) is expected
    assert state_of(tx) is (TxState.S1 if not chained else TxState.S4 if begins else TxState.S2)


def test_rollback_only_and_committed_all_the_same(both: TwoResources, tx: TxInterface) -> None:
    bring_to(tx, TxState.S3)
    both.write()
    both.manager.get_transaction().set_rollback_only()
    assert info_of(tx).transaction_state is TransactionState.TX_ROLLBACK_ONLY
    for store in (both.one, both.two):
        store.script.plan("rollback", Code.XA_HEURCOM)
    assert tx.tx_commit() is TxCode.TX_HAZARD


def test_one_resource_whose_reply_is_lost() -> None:
    with TwoResources(TMREGISTER | TMUSEASYNC) as both:
        tx = TxInterface(both.manager)
        bring_to(tx, TxState.S3)
        both.manager["one"].write("key", "value")
        both.one.script.plan("commit", fate=NetworkFault.REPLY_LOST)
        assert tx.tx_commit() is TxCode.TX_HAZARD
        assert both.one.data == {"key": "value"}
        assert state_of(tx) is TxState.S1


@pytest.mark.parametrize("fault", ["failed, durable", "failed, lost"])
@pytest.mark.parametrize("state", [TxState.S3, TxState.S4], ids=lambda state: state.name)
def test_a_log_that_stops_is_fatal(both: TwoResources, tx: TxInterface, state: TxState, fault: str) -> None:
    bring_to(tx, state)
    both.write()
    both.log.fault = fault
    assert tx.tx_commit() is TxCode.TX_FAIL
    assert state_of(tx) is TxState.S0
    assert tx.tx_begin() is REFUSED
    assert tx.tx_open() is TxCode.TX_FAIL
    assert len(both.one.in_doubt) == len(both.two.in_doubt) == 1  # nobody guessed


def test_a_manager_that_is_closed_before_the_next_begin_is_fatal(both: TwoResources, tx: TxInterface) -> None:
    bring_to(tx, TxState.S1)
    both.manager.close(timeout_s=0)
    assert tx.tx_begin() is TxCode.TX_FAIL
    assert state_of(tx) is TxState.S0
    assert tx.tx_open() is TxCode.TX_FAIL


def test_the_tables_are_total() -> None:
    assert set(OUTCOME_CODES) == {TxVerb.COMMIT, TxVerb.ROLLBACK}
    for row in OUTCOME_CODES.values():
        assert set(row) == set(Verdict)
    assert {code for row in OUTCOME_CODES.values() for code in row.values()} == set(NO_BEGIN)
    assert set(STATE_OF) == set(GlobalState)
    for code, without in NO_BEGIN.items():
        assert without == code + TxCode.TX_NO_BEGIN
    assert TxCode.TX_COMMITTED not in OUTCOME_CODES[TxVerb.COMMIT].values()
    assert TxCode.TX_ROLLBACK not in OUTCOME_CODES[TxVerb.ROLLBACK].values()


# --- completed behind its back ------------------------------------------------------------------------------
@pytest.mark.parametrize(("end", "code"), [(TxInterface.tx_commit, TxCode.TX_ROLLBACK), (TxInterface.tx_rollback, OK)])
def test_a_timeout(both: TwoResources, tx: TxInterface, end: Callable[[TxInterface], TxCode], code: TxCode) -> None:
    bring_to(tx, TxState.S1)
    assert tx.tx_set_transaction_timeout(5) is OK
    assert tx.tx_begin() is OK
    assert tx.tx_set_transaction_timeout(0) is OK  # for the next one
    both.write()
    transaction = both.manager.get_transaction()
    assert not live_of(transaction).expire(both.clock.now + 4.9)

    assert info_of(tx).transaction_state is TransactionState.TX_ACTIVE
    assert live_of(transaction).expire(both.clock.now + 5)
    assert info_of(tx).transaction_state is TransactionState.TX_TIMEOUT_ROLLBACK_ONLY
    assert state_of(tx) is TxState.S3
    assert end(tx) is code
    assert both.one.data == both.two.data == {}
    assert tx.tx_begin() is OK
    assert both.manager.get_transaction() is not transaction
    assert not live_of(both.manager.get_transaction()).expire(1e12)


@pytest.mark.parametrize(("end", "code"), [(TxInterface.tx_commit, OK), (TxInterface.tx_rollback, TxCode.TX_COMMITTED)])
def test_suspended_it_is_not_completed_and_committed_through_the_manager_it_is_over(
    both: TwoResources, tx: TxInterface, end: Callable[[TxInterface], TxCode], code: TxCode
) -> None:
    bring_to(tx, TxState.S3)
    both.write()
    transaction = both.manager.suspend()
    assert end(tx) is REFUSED
    both.manager.resume(transaction)
    transaction.commit()
    assert end(tx) is code
    assert state_of(tx) is TxState.S1
    assert both.one.data == {"key": "value"}
    with both.manager.begin():
        assert tx.tx_begin() is REFUSED, "inside of another one"
        both.write("second")
    assert tx.tx_begin() is OK
    assert tx.tx_rollback() is OK
    assert both.one.data == {"key": "value", "second": "value"}


# --- when commit returns ------------------------------------------------------------------------------------
def test_when_commit_returns() -> None:
    gate = Gate("commit")
    with TwoResources(factory=gate.over) as both:
        tx = TxInterface(both.manager)
        bring_to(tx, TxState.S1)
        assert tx.tx_set_commit_return(LOGGED) is OK
        assert tx.tx_begin() is OK
        both.write("logged")
        gtrid = info_of(tx).xid.gtrid
        assert tx.tx_commit() is OK  # while no branch can be told
        assert state_of(tx) is TxState.S1
        assert both.one.data == both.two.data == {}
        assert both.log.decision(gtrid) is not None

        assert tx.tx_set_commit_return(COMPLETED) is OK
        assert tx.tx_begin() is OK
        both.write("completed")
        opened = threading.Timer(0.05, gate.opened.set)
        opened.start()
        assert tx.tx_commit() is OK
        assert gate.opened.is_set()
        assert "completed" in both.one.data
        assert "completed" in both.two.data
        opened.join()
        both.manager.close()
        assert set(both.one.data) == set(both.two.data) == {"logged", "completed"}


# --- resource managers --------------------------------------------------------------------------------------
def test_open_needs_one_resource_manager(both: TwoResources, tx: TxInterface) -> None:
    for store, resource in ((both.one, "one"), (both.two, "two")):
        store.partition()
        held = both.manager.resource(resource)
        held.state, held.suspect = ResourceState.DOWN, True

    assert tx.tx_open() is TxCode.TX_ERROR
    assert state_of(tx) is TxState.S0
    both.one.heal()
    both.clock.now += 60
    assert tx.tx_open() is OK
    assert tx.tx_begin() is OK  # without the one that is not open
    assert both.manager.get_transaction().resources == ("one",)
    both.manager["one"].write("key", "value")
    assert tx.tx_commit() is OK
    both.two.heal()
    both.clock.now += 60
    assert tx.tx_begin() is OK
    assert both.manager.get_transaction().resources == ("one", "two")
    assert tx.tx_rollback() is OK


@pytest.mark.parametrize(
    ("answer", "code"),
    [(Code.XAER_OUTSIDE, TxCode.TX_OUTSIDE), (Code.XAER_RMERR, TxCode.TX_ERROR), (None, TxCode.TX_ERROR)],
)
def test_begin_refused_by_a_resource_manager_or_because_none_is_left(
    both: TwoResources, tx: TxInterface, answer: Code | None, code: TxCode
) -> None:
    bring_to(tx, TxState.S1)
    if answer is not None:
        both.two.script.plan("start", answer)
    for store in (both.one, both.two) if answer is None else ():
        store.partition()
        both.manager.resource(store.name).close()
    assert tx.tx_begin() is code
    assert state_of(tx) is TxState.S1
    assert both.manager.current_or_none() is None
    assert both.one.branches == {}
    if answer is not None:
        assert tx.tx_begin() is OK


def test_work_outside_of_one_that_registers_itself() -> None:
    with TwoResources(TMREGISTER) as both:
        tx, registrar = TxInterface(both.manager), both.manager._registrar
        bring_to(tx, TxState.S1)
        rmid = both.manager.resource("two").rmid
        assert registrar.ax_reg(rmid)[0] is AxCode.TM_OK
        assert tx.tx_begin() is TxCode.TX_OUTSIDE
        assert state_of(tx) is TxState.S1
        assert registrar.ax_unreg(rmid) is AxCode.TM_OK
        assert tx.tx_begin() is OK
        assert both.manager.get_transaction().resources == ()
        both.write()
        assert tx.tx_commit() is OK
        assert both.one.data == both.two.data == {"key": "value"}


# --- characteristics ----------------------------------------------------------------------------------------
def test_initial_values_and_what_info_tells(both: TwoResources, tx: TxInterface) -> None:
    bring_to(tx, TxState.S1)
    assert tx.tx_info() == (0, TxInfo(NULL_XID, COMPLETED, NO_CHAIN, 0, None))
    tx.tx_set_commit_return(LOGGED)
    tx.tx_set_transaction_timeout(7)
    tx.tx_set_transaction_control(CHAIN)
    tx.tx_begin()
    xid = Xid(FORMAT_ID, both.manager.get_transaction().gtrid)
    assert tx.tx_info() == (1, TxInfo(xid, LOGGED, CHAIN, 7, TransactionState.TX_ACTIVE))
    assert both.manager.get_transaction().timeout_s == 7
    tx.tx_set_transaction_control(NO_CHAIN)
    tx.tx_rollback()
    assert (tx.tx_close(), tx.tx_open()) == (OK, OK)
    assert tx.tx_info() == (0, TxInfo(NULL_XID, COMPLETED, NO_CHAIN, 0, None))


NO_TIMEOUTS: tuple[Any, ...] = (-1, 2**31, True, 1.5)
INVALID: list[Callable[[TxInterface], TxCode]] = [
    lambda tx: tx.tx_set_commit_return(2),
    lambda tx: tx.tx_set_transaction_control(-1),
    *(partial(TxInterface.tx_set_transaction_timeout, timeout_s=timeout_s) for timeout_s in NO_TIMEOUTS),
]


@pytest.mark.parametrize("state", TxState, ids=lambda state: state.name)
def test_invalid_values(tx: TxInterface, state: TxState) -> None:
    bring_to(tx, state)
    before = tx.tx_info()
    for call in INVALID:
        assert call(tx) is (REFUSED if state is TxState.S0 else TxCode.TX_EINVAL)
        assert tx.tx_info() == before


def test_each_thread_has_its_own_state(both: TwoResources, tx: TxInterface) -> None:
    bring_to(tx, TxState.S4)

    def other() -> None:
        assert state_of(tx) is TxState.S0
        bring_to(tx, TxState.S3)
        both.manager["one"].write("other", 1)
        assert tx.tx_commit() is OK

    elsewhere(other)
    assert state_of(tx) is TxState.S4
    assert both.one.data == {"other": 1}


@in_loop
async def test_each_task_has_its_own_state(both: TwoResources, tx: TxInterface) -> None:
    async def work(name: str, chained: bool, meet: asyncio.Barrier) -> None:
        bring_to(tx, TxState.S4 if chained else TxState.S3)
        await meet.wait()
        both.write(name)
        await meet.wait()
        assert (tx.tx_commit() if chained else tx.tx_rollback()) is OK
        assert state_of(tx) is (TxState.S4 if chained else TxState.S1)

    meet = asyncio.Barrier(2)
    await asyncio.gather(work("chained", True, meet), work("unchained", False, meet))
    assert both.one.data == both.two.data == {"chained": "value"}
    assert state_of(tx) is TxState.S0


def test_codes_have_x_opens_values() -> None:
    assert {code.name: int(code) for code in TxCode} == {
        "TX_NOT_SUPPORTED": 1,
        "TX_OK": 0,
        "TX_OUTSIDE": -1,
        "TX_ROLLBACK": -2,
        "TX_MIXED": -3,
        "TX_HAZARD": -4,
        "TX_PROTOCOL_ERROR": -5,
        "TX_ERROR": -6,
        "TX_FAIL": -7,
        "TX_EINVAL": -8,
        "TX_COMMITTED": -9,
        "TX_NO_BEGIN": -100,
        "TX_ROLLBACK_NO_BEGIN": -102,
        "TX_MIXED_NO_BEGIN": -103,
        "TX_HAZARD_NO_BEGIN": -104,
        "TX_COMMITTED_NO_BEGIN": -109,
    }
