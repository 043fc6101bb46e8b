"""These tests cover the deciding variant, for cases that the contract suite can't cause from outside."""

from __future__ import annotations

import pytest

from xa import TMSUCCESS, Code, ResourceUnavailable, TryAgain, XaError, Xid
from xabridge.testing.reference import DecidingStore, Fate, ReferenceDecider

RMID = 1
X = Xid(1, b"global", b"branch")


@pytest.fixture
def store() -> DecidingStore:
    return DecidingStore("d", decider_id=b"12345678")


@pytest.fixture
def rm(store: DecidingStore) -> ReferenceDecider:
    client = ReferenceDecider(store)
    client.open(store.url, RMID)
    client.start(X, RMID)
    client.session(RMID).write("k", 1)
    client.end(X, RMID, TMSUCCESS)
    return client


@pytest.mark.parametrize("is_in_time", [False, True])
def test_a_late_decide_finds_the_tombstone(store: DecidingStore, rm: ReferenceDecider, *, is_in_time: bool) -> None:
    store.script.plan("decide", fate=Fate.IN_FLIGHT)
    with pytest.raises(ResourceUnavailable):
        rm.decide(X, RMID, b"record")
    rm.open(store.url, RMID)
    if is_in_time:
        store.deliver()
        assert rm.settle(X.gtrid, RMID) == b"record"
        assert store.data == {"k": 1}
        return
    assert rm.settle(X.gtrid, RMID) is None
    assert store.deliver() == 1
    assert store.decided == {}
    assert store.data == {}
    assert store.branches == {}
    assert rm.settle(X.gtrid, RMID) is None


@pytest.mark.parametrize("code", [Code.XA_RBINTEGRITY, Code.XAER_RMERR, Code.XAER_NOTA])
def test_a_refused_decision_leaves_neither(store: DecidingStore, rm: ReferenceDecider, code: Code) -> None:
    store.script.plan("decide", code)
    with pytest.raises(XaError) as raised:
        rm.decide(X, RMID, b"record")
    assert raised.value.code is code
    assert store.decided == {}
    assert store.data == {}
    assert store.branches == {}


@pytest.mark.parametrize(("fate", "settled"), [(Fate.REQUEST_LOST, False), (Fate.REPLY_LOST, True)])
def test_lost_and_refused_calls(store: DecidingStore, rm: ReferenceDecider, fate: Fate, *, settled: bool) -> None:
    store.script.plan("settle", Code.XA_RETRY)
    with pytest.raises(TryAgain):
        rm.settle(X.gtrid, RMID)
    assert store.tombstones == set()
    store.script.plan("settle", fate=fate)
    with pytest.raises(ResourceUnavailable):
        rm.settle(b"another", RMID)
    assert store.tombstones == ({b"another"} if settled else set())
    rm.open(store.url, RMID)
    assert rm.decide(X, RMID, b"record") is Code.XA_OK
    store.script.plan("end_decisions", fate=Fate.REQUEST_LOST)
    with pytest.raises(ResourceUnavailable):
        rm.end_decisions([X.gtrid], RMID)
    store.script.plan("decisions", Code.XAER_RMERR)
    rm.open(store.url, RMID)
    with pytest.raises(XaError):
        rm.decisions(RMID)
    assert [store.decided, len(rm.decisions(RMID))] == [{X.gtrid: b"record"}, 1]


def test_decisions_and_tombstones_survive_a_crash(store: DecidingStore, rm: ReferenceDecider) -> None:
    rm.settle(b"settled", RMID)
    rm.decide(X, RMID, b"record")
    rm.start(Xid(1, b"second"), RMID)
    store.crash()
    store.heal()
    assert store.branches == {}
    assert store.decided == {X.gtrid: b"record"}
    assert store.tombstones == {b"settled"}
    assert store.data == {"k": 1}


def test_a_decider_id_has_8_octets() -> None:
    with pytest.raises(ValueError, match="has 8 octets, not 3"):
        DecidingStore(decider_id=b"123")
