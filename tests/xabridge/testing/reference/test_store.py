"""These tests cover the store: data, locks, crashes and partitions; and what its clients are strict about or limit."""

from __future__ import annotations

import gc
import weakref

import pytest

from xa import (
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
    ResourceUnavailable,
    ThreadOfControl,
    XaError,
    Xid,
    entered,
)
from xa.machine import IllegalTransition
from xa.tables import BranchState
from xabridge.testing.reference import Fate, KeyLocked, ReferenceResource, ReferenceStore

RMID = 1
X, Y = Xid(1, b"global", b"x"), Xid(1, b"global", b"y")
S0, S1, S2, S3, S4, S5 = BranchState
AT_WORK: list[ThreadOfControl] = []
"""Threads of control that stay: one that is gone has lost its associations."""


def end(rm: ReferenceResource, xid: Xid) -> None:
    rm.end(xid, RMID, TMSUCCESS)


# --- data ---------------------------------------------------------------------------------------------------
# --- association states at the server -------------------------------------------------------------------------
def test_a_branch_reads_what_it_wrote_which_is_locked_for_others(store: ReferenceStore, rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    session = rm.session(RMID)
    assert session.read("k") is None
    session.write("k", 1)
    session.append("list", "a")
    session.append("list", "b")
    assert (session.read("k"), session.read("list")) == (1, ("a", "b"))
    with pytest.raises(XaError, match=r"(?s).*S1 active") as refused:
        rm.prepare(X, RMID)
    assert str(X) in str(refused.value)
    with entered(ThreadOfControl()):
        rm.start(Y, RMID)
        assert rm.session(RMID).read("k") is None
        with pytest.raises(KeyLocked, match="'k' is locked by the branch"):
            rm.session(RMID).write("k", 2)
        end(rm, Y)
        rm.rollback(Y, RMID)
    end(rm, X)
    rm.prepare(X, RMID)
    assert store.locked_keys == {"k": X, "list": X}
    rm.commit(X, RMID)
    assert (store.data, store.locked_keys) == ({"k": 1, "list": ("a", "b")}, {})


# --- association states at the server -------------------------------------------------------------------------
def test_a_branch_is_active_while_somebody_is_at_work(store: ReferenceStore, rm: ReferenceResource) -> None:
    """A loss is one thread's."""
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
    with entered(other):
        rm.start(X, RMID, TMJOIN)
    rm.start(Y, RMID)
    store.script.plan("end", fate=Fate.REQUEST_LOST)
    with pytest.raises(ResourceUnavailable):
        end(rm, Y)
    assert store.branches == {X: S1, Y: S4}
    with entered(other):
        end(rm, X)  # needs no open
    assert store.branches[X] is S2


def test_an_association_migrates_to_another_client(store: ReferenceStore, rm: ReferenceResource) -> None:
    other = ReferenceResource(store)
    other.open(store.url, RMID)
    rm.start(X, RMID)
    rm.session(RMID).write("k", 1)
    rm.end(X, RMID, TMSUSPEND | TMMIGRATE)
    store.script.plan("start", Code.XAER_RMERR)
    with pytest.raises(XaError):
        other.start(X, RMID, TMRESUME)  # it stays where it was
    other.start(X, RMID, TMRESUME)
    assert store.associations == 1
    store.disconnect(rm)  # has nothing to do with the branch any more
    other.session(RMID).write("l", 2)
    end(other, X)
    other.prepare(X, RMID)
    other.commit(X, RMID)
    assert store.data == {"k": 1, "l": 2}


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


def test_an_operator_completes_what_is_prepared(store: ReferenceStore, rm: ReferenceResource) -> None:
    for xid, state in in_every_state(store, rm).items():
        if state is not S3:
            with pytest.raises(IllegalTransition):
                store.complete_heuristically(xid, Code.XA_HEURRB)
        with pytest.raises(ValueError, match="not one of XA_HEUR"):
            store.complete_heuristically(xid, Code.XA_OK)
        assert store.branches[xid] is state
    for outcome, committed in (
        (Code.XA_HEURCOM, {"a", "b", "c"}), (Code.XA_HEURRB, set()), (Code.XA_HEURMIX, {"a", "c"}),
        (Code.XA_HEURHAZ, set()),
    ):  # fmt: skip
        rm.start(X, RMID)
        for key in ("a", "b", "c"):
            rm.session(RMID).write(key, outcome)
        end(rm, X)
        rm.prepare(X, RMID)
        store.complete_heuristically(X, outcome)
        assert {key for key, value in store.data.items() if value is outcome} == committed
        with pytest.raises(XaError) as raised:
            rm.rollback(X, RMID)
        assert raised.value.code is outcome
        rm.forget(X, RMID)


# --- clients --------------------------------------------------------------------------------------------------
def test_open_does_not_hide_a_loss(store: ReferenceStore, rm: ReferenceResource) -> None:
    """Who has not heard yet that its association is lost hears it at the next verb, whatever was opened since."""
    rm.start(X, RMID)
    rm.end(X, RMID, TMSUSPEND)
    rm.start(Y, RMID)
    session = rm.session(RMID)
    store.cut(rm)
    rm.open(store.url, RMID)
    with pytest.raises(ResourceUnavailable):
        end(rm, Y)
    rm.open(store.url, RMID)
    assert store.branches == {X: S4, Y: S4}
    assert store.associations == 0
    store.crash()
    store.heal()
    with pytest.raises((ResourceUnavailable, XaError)):
        session.write("k", 1)
    rm.open(store.url, RMID)
    rm.start(X, RMID)  # nothing is left of it
    assert store.branches == {X: S1}
    store.cut(rm)
    assert rm.close("", RMID) is Code.XA_OK  # with an association that is lost


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
