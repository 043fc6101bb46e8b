"""These tests cover the store: data, locks, crashes and partitions; and what its clients are strict about or limit."""

from __future__ import annotations

import gc
import weakref

import pytest

from xa import (
    HEURISTIC_CODES,
    TMASYNC,
    TMENDRSCAN,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMREGISTER,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    Code,
    Handle,
    ResourceUnavailable,
    ThreadOfControl,
    XaError,
    Xid,
    entered,
)
from xa.machine import IllegalTransition
from xa.tables import BranchState
from xabridge.testing.reference import Fate, KeyLocked, ReferenceResource, ReferenceStore
from xabridge.testing.reference.server import MAX_OUTSTANDING

RMID = 1
X, Y = Xid(1, b"global", b"x"), Xid(1, b"global", b"y")
S0, S1, S2, S3, S4, S5 = BranchState
AT_WORK: list[ThreadOfControl] = []
"""Threads of control that stay: one that is gone has lost its associations."""


def end(rm: ReferenceResource, xid: Xid) -> None:
    rm.end(xid, RMID, TMSUCCESS)


# --- data ---------------------------------------------------------------------------------------------------
def test_a_branch_reads_what_it_wrote_and_others_what_is_committed(
    store: ReferenceStore, rm: ReferenceResource
) -> None:
    rm.start(X, RMID)
    session = rm.session(RMID)
    assert session.read("k") is None
    session.write("k", 1)
    session.append("list", "a")
    session.append("list", "b")
    assert (session.read("k"), session.read("list")) == (1, ("a", "b"))
    with entered(ThreadOfControl()):
        rm.start(Y, RMID)
        assert rm.session(RMID).read("k") is None
        end(rm, Y)
        rm.rollback(Y, RMID)
    end(rm, X)
    rm.prepare(X, RMID)
    rm.commit(X, RMID)
    assert store.data == {"k": 1, "list": ("a", "b")}


def test_a_written_key_is_locked_until_the_branch_is_gone(store: ReferenceStore, rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    rm.session(RMID).write("k", 1)
    end(rm, X)
    rm.prepare(X, RMID)
    rm.start(Y, RMID)
    with pytest.raises(KeyLocked, match="'k' is locked by the branch"):
        rm.session(RMID).write("k", 2)
    assert store.locked_keys == {"k": X}
    rm.commit(X, RMID)
    rm.session(RMID).write("k", 2)
    end(rm, Y)
    rm.rollback(Y, RMID)
    assert store.data == {"k": 1}
    assert store.locked_keys == {}


# --- association states at the server -------------------------------------------------------------------------
def test_a_branch_is_active_while_somebody_is_at_work(store: ReferenceStore, rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    other = ThreadOfControl()
    with entered(other):
        rm.start(X, RMID, TMJOIN)
    assert store.associations == 2
    rm.end(X, RMID, TMSUSPEND)
    assert store.branches[X] is S1  # the other is still at work
    with entered(other):
        end(rm, X)
    assert store.branches[X] is S2
    assert store.associations == 1
    end(rm, X)
    assert store.associations == 0


def test_an_association_migrates_to_another_client(store: ReferenceStore, rm: ReferenceResource) -> None:
    other = ReferenceResource(store)
    other.open(store.url, RMID)
    rm.start(X, RMID)
    rm.session(RMID).write("k", 1)
    rm.end(X, RMID, TMSUSPEND | TMMIGRATE)
    other.start(X, RMID, TMRESUME)
    assert store.associations == 1
    store.disconnect(rm)  # has nothing to do with the branch any more
    other.session(RMID).write("l", 2)
    end(other, X)
    other.prepare(X, RMID)
    other.commit(X, RMID)
    assert store.data == {"k": 1, "l": 2}


def test_a_failed_resume_leaves_a_migrating_association_where_it_was(
    store: ReferenceStore, rm: ReferenceResource
) -> None:
    rm.start(X, RMID)
    rm.end(X, RMID, TMSUSPEND | TMMIGRATE)
    store.script.plan("start", Code.XAER_RMERR)
    with entered(ThreadOfControl()), pytest.raises(XaError):
        rm.start(X, RMID, TMRESUME)
    rm.start(X, RMID, TMRESUME)
    end(rm, X)
    assert store.branches[X] is S2


# --- operator, timer, network, crash --------------------------------------------------------------------------
def in_every_state(store: ReferenceStore, rm: ReferenceResource) -> dict[Xid, BranchState]:
    """A branch in each state, held by threads of control of their own."""
    made = {}
    for state in (S1, S2, S3, S4, S5):
        xid = Xid(1, state.name.encode())
        AT_WORK.append(ThreadOfControl())
        with entered(AT_WORK[-1]):
            rm.start(xid, RMID)
            rm.session(RMID).write(state.name, True)
            if state is not S1:
                rm.end(xid, RMID, TMFAIL if state is S4 else TMSUCCESS)
            if state in {S3, S5}:
                rm.prepare(xid, RMID)
            if state is S5:
                store.complete_heuristically(xid, Code.XA_HEURCOM)
        made[xid] = state
    assert store.branches == made
    return made


def test_a_crash_of_the_server_takes_what_was_not_prepared(store: ReferenceStore, rm: ReferenceResource) -> None:
    made = in_every_state(store, rm)
    store.crash()
    assert store.branches == {xid: state for xid, state in made.items() if state in {S3, S5}}
    assert set(store.locked_keys) == {"S3"}
    with pytest.raises(ResourceUnavailable):
        rm.recover(RMID, TMSTARTRSCAN)
    with pytest.raises(ResourceUnavailable):
        rm.open(store.url, RMID)
    store.heal()
    rm.open(store.url, RMID)
    assert set(rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN)) == {xid for xid, state in made.items() if state in {S3, S5}}


@pytest.mark.parametrize("trouble", ["partition", "death", "death of another"])
def test_a_client_that_is_gone(store: ReferenceStore, rm: ReferenceResource, trouble: str) -> None:
    """What was being worked for is doomed, and nothing else is touched."""
    made = in_every_state(store, rm)
    other = ReferenceResource(store)
    other.open(store.url, RMID)
    if trouble == "death of another":
        store.disconnect(other)
        store.cut(other)
        assert store.branches == made
        return
    store.partition() if trouble == "partition" else store.disconnect(rm)
    assert store.branches == {xid: S4 if state is S1 else state for xid, state in made.items()}
    assert store.associations == 0
    assert set(store.locked_keys) == {"S2", "S3"}
    with pytest.raises(XaError) as raised:
        rm.recover(RMID, TMSTARTRSCAN)
    assert raised.value.code is (Code.XAER_RMFAIL if trouble == "partition" else Code.XAER_PROTO)


@pytest.mark.parametrize(
    ("outcome", "committed"),
    [
        (Code.XA_HEURCOM, {"a", "b", "c"}),
        (Code.XA_HEURRB, set()),
        (Code.XA_HEURMIX, {"a", "c"}),
        (Code.XA_HEURHAZ, set()),
    ],
)
def test_an_operator_completes(
    store: ReferenceStore, rm: ReferenceResource, outcome: Code, committed: set[str]
) -> None:
    rm.start(X, RMID)
    for key in ("a", "b", "c"):
        rm.session(RMID).write(key, True)
    end(rm, X)
    rm.prepare(X, RMID)
    store.complete_heuristically(X, outcome)
    assert set(store.data) == committed
    assert store.locked_keys == {}
    with pytest.raises(XaError) as raised:
        rm.rollback(X, RMID)
    assert raised.value.code is outcome


def test_an_operator_completes_only_what_is_prepared(store: ReferenceStore, rm: ReferenceResource) -> None:
    for xid, state in in_every_state(store, rm).items():
        if state is not S3:
            with pytest.raises(IllegalTransition):
                store.complete_heuristically(xid, Code.XA_HEURRB)
        with pytest.raises(ValueError, match="not one of XA_HEUR"):
            store.complete_heuristically(xid, Code.XA_OK)
        assert store.branches[xid] is state
    assert len(HEURISTIC_CODES) == 4


# --- clients --------------------------------------------------------------------------------------------------
def test_a_loss_is_one_threads_and_one_clients(store: ReferenceStore, rm: ReferenceResource) -> None:
    other = ThreadOfControl()
    with entered(other):
        rm.start(Y, RMID)
    rm.start(X, RMID)
    store.script.plan("end", fate=Fate.REQUEST_LOST)
    with pytest.raises(ResourceUnavailable):
        end(rm, X)
    assert store.branches == {X: S4, Y: S1}
    with entered(other):
        end(rm, Y)  # needs no open
    assert store.branches[Y] is S2


def test_a_branch_that_the_server_forgot_is_a_lost_connection_to_who_works_for_it(
    store: ReferenceStore, rm: ReferenceResource
) -> None:
    rm.start(X, RMID)
    session = rm.session(RMID)
    store.crash()
    store.heal()
    with pytest.raises(ResourceUnavailable):
        session.write("k", 1)
    rm.open(store.url, RMID)
    rm.start(X, RMID)  # nothing is left of it
    assert store.branches == {X: S1}


def test_open_does_not_hide_a_loss(store: ReferenceStore, rm: ReferenceResource) -> None:
    """Who has not heard yet that its association is lost hears it at the next verb, whatever was opened since."""
    rm.start(X, RMID)
    rm.end(X, RMID, TMSUSPEND)
    rm.start(Y, RMID)
    store.cut(rm)
    rm.open(store.url, RMID)
    with pytest.raises(ResourceUnavailable):
        end(rm, Y)
    rm.open(store.url, RMID)
    assert store.branches == {X: S4, Y: S4}
    assert store.associations == 0


def test_close_is_not_refused_for_an_association_that_is_lost(store: ReferenceStore, rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    store.cut(rm)
    assert rm.close("", RMID) is Code.XA_OK


def test_outstanding_operations_are_bounded(store: ReferenceStore, rm: ReferenceResource) -> None:
    unknown = [Xid(1, b"unknown", number.to_bytes(2)) for number in range(MAX_OUTSTANDING)]
    handles = [rm.prepare(xid, RMID, TMASYNC) for xid in unknown]
    with pytest.raises(XaError) as raised:
        rm.prepare(X, RMID, TMASYNC)
    assert raised.value.code is Code.XAER_ASYNC
    assert f"{MAX_OUTSTANDING} operations are outstanding" in str(raised.value)
    rm.start(X, RMID)
    end(rm, X)
    with pytest.raises(XaError):
        rm.prepare(X, RMID, TMASYNC)
    with pytest.raises(XaError):
        rm.start(Y, RMID, TMASYNC)
    with pytest.raises(XaError):
        rm.open(store.url, RMID, TMASYNC)
    assert (store.branches, rm.outstanding) == ({X: S2}, MAX_OUTSTANDING), "what is refused has no effect"
    for handle in handles:
        assert isinstance(handle, Handle)
        rm.complete(handle, RMID)
    assert rm.complete(rm.prepare(X, RMID, TMASYNC), RMID).code is Code.XA_OK  # type: ignore[arg-type]
    assert store.in_doubt == [X]


def test_messages_name_the_xid_and_the_state(rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    end(rm, X)
    with pytest.raises(XaError) as raised:
        rm.commit(X, RMID)
    assert str(X) in str(raised.value)
    assert "S2 idle" in str(raised.value)
    assert raised.value.xid == X


def test_switch_flags_that_are_none(store: ReferenceStore) -> None:
    with pytest.raises(ValueError, match="not switch flags"):
        ReferenceResource(store, flags=TMASYNC)
    with pytest.raises(ValueError, match="needs a registrar"):
        ReferenceResource(store, flags=TMREGISTER)


def test_a_thread_of_control_that_is_gone_leaves_nothing_at_the_client(
    store: ReferenceStore, rm: ReferenceResource
) -> None:
    control = ThreadOfControl()
    reference = weakref.ref(control)
    with entered(control):
        rm.start(X, RMID)
        end(rm, X)
        rm.prepare(X, RMID)
        rm.recover(RMID, TMSTARTRSCAN, 1)  # and never ended
        store.partition()
        with pytest.raises(ResourceUnavailable):
            rm.commit(X, RMID)  # and never opened again
    del control
    gc.collect()
    assert reference() is None
    store.heal()
    rm.commit(X, RMID)
