"""These tests cover leases at a broker that decides: what they wait for and what waits for them, wrong clocks, and what
tokens hold when hundreds of decisions are in doubt.
"""

from __future__ import annotations

import threading

import pytest

from rm_amqp import DecidingBroker, Message
from rm_amqp.decider.tokens import MAX_LEASES, MAX_OCTETS, Lease, Token
from tests.rm_amqp.decider.deciding import DISCHARGE, DecidingBrokerHarness, NetworkHarness
from tests.simulation.seeds import EVERY_POINT
from tm.log import Branch
from tm.log.decider_record import encode_branches
from xa import FORMAT_ID, BranchRolledBack, Code, Gtrid, Owner, ResourceError, ResourceUnavailable, TryAgain, Xid
from xabridge.testing.contract.client import RMID, new_xid
from xabridge.testing.contract.deciding import LONG_S, RECORD, Decider, new_owner

SLOTS = 1
HOUR_S = 3600.0
MANY = 400 if EVERY_POINT else 120
"""Decisions in doubt in one slot."""


def test_they_wait_for_no_work_and_no_decision(harness: DecidingBrokerHarness) -> None:
    """Every channel has a transaction, and somebody has the token of the slot in his hands."""
    harness.open_string += "&channels=1"
    client = Decider(harness)
    client.begun("key")
    token = harness.take(f"{harness.tokens}.0")
    done = threading.Event()
    owner = new_owner()

    def renew() -> None:
        client.rm.hold(owner, LONG_S, RMID)
        assert list(client.rm.owners(RMID)) == [owner]
        done.set()

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    assert done.wait(2)
    thread.join()
    harness.alien(f"{harness.tokens}.0", token)


def test_no_decision_waits_for_them(timeless: NetworkHarness) -> None:
    """Somebody has the lease token in his hands: work goes on, leases can't be told."""
    harness = timeless
    client = Decider(harness)
    token = harness.take(f"{harness.tokens}.1")
    assert client.decide(xid := client.ended("key")) is Code.XA_OK
    assert client.settle(xid) == RECORD
    assert len(client.decided()) == 1
    for call in (lambda: client.rm.owners(RMID), lambda: client.rm.hold(new_owner(), LONG_S, RMID)):
        with pytest.raises(TryAgain, match="held by another process, or does not exist"):
            call()
    harness.alien(f"{harness.tokens}.1", token)
    assert list(client.rm.owners(RMID)) == []


@pytest.mark.parametrize("before", [True, False])
def test_a_renewal_that_is_lost_on_the_way(harness: DecidingBrokerHarness, *, before: bool) -> None:
    """It is held, or it is not; the next one goes over another connection."""
    client = Decider(harness)
    owner = new_owner()
    client.rm.hold(owner, 0, RMID)
    harness.weather[client.rm].strike(DISCHARGE, before=before)  # type: ignore[index]
    with pytest.raises(ResourceUnavailable):
        client.rm.hold(owner, LONG_S, RMID)
    client.reopen()
    assert list(client.rm.owners(RMID)) == ([] if before else [owner])
    client.rm.hold(owner, LONG_S, RMID)
    assert list(client.rm.owners(RMID)) == [owner]


@pytest.mark.slow
def test_many_renew_at_once(harness: DecidingBrokerHarness) -> None:
    """None of them is lost."""
    owners = [new_owner(f"orders-{number}") for number in range(6)]
    barrier = threading.Barrier(len(owners))

    def renew(owner: Owner) -> None:
        rm = harness.opened()
        barrier.wait(30)
        for _ in range(5):
            rm.hold(owner, LONG_S, RMID)

    threads = [threading.Thread(target=renew, args=[owner]) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(harness.opened().owners(RMID)) == set(owners)


def test_a_clock_that_is_wrong_takes_leases_and_changes_no_decision(harness: DecidingBrokerHarness) -> None:
    """Somebody whose clock is an hour ahead takes a process that is at work for gone, and settles its transactions:
    one that was decided stays so, one that was not is rolled back, and the lease is there again when it is renewed."""
    start = 1_000_000.0
    now = [start]
    late, ahead = DecidingBroker(wall=lambda: now[0]), DecidingBroker(wall=lambda: start + HOUR_S)
    for rm in (late, ahead):
        rm.open(harness.open_string, RMID)
    client = harness.using(late)
    owner, other = new_owner(), new_owner()
    decided, undecided = client.ended("1"), client.ended("2")
    client.rm.hold(owner, 10, RMID)
    client.decide(decided)
    assert list(ahead.owners(RMID)) == []
    ahead.hold(other, 10, RMID)
    assert list(client.rm.owners(RMID)) == [other], "by its clock it runs for more than an hour"
    assert ahead.settle(decided.gtrid, RMID) == RECORD
    assert ahead.settle(undecided.gtrid, RMID) is None

    with pytest.raises(BranchRolledBack):
        client.decide(undecided)
    client.rm.hold(owner, 10, RMID)
    assert set(client.rm.owners(RMID)) == {owner, other}
    now[0] += HOUR_S + 20
    assert list(client.rm.owners(RMID)) == []
    for rm in (late, ahead):
        rm.drop()


def test_there_is_no_room_for_more(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    full = Token.decode(str(harness.take(f"{harness.tokens}.1").body))
    for number in range(MAX_LEASES):
        full = full.holding(Lease(Owner("n" * 32, number.to_bytes(8, "big"), "p" * 100), 2**42), 0)
    harness.alien(f"{harness.tokens}.1", Message(full.encode()))
    with pytest.raises(ResourceError, match="1000 processes are at work"):
        rm.hold(new_owner(), LONG_S, RMID)
    rm.hold(full.leases[7].owner, 0, RMID)
    rm.hold(owner := new_owner(), LONG_S, RMID)
    assert owner in rm.owners(RMID)
    assert len(rm.owners(RMID)) == MAX_LEASES


# --- hundreds in doubt ------------------------------------------------------------------------------------------------
def in_doubt(client: Decider, count: int) -> dict[bytes, bytes]:
    """So many decisions in one slot, with the longest gtrids there are, and three branches in each record."""
    decided = {}
    for sequence in range(count):
        gtrid = Gtrid("n" * 32, client.rm.decider_id, b"12345678", sequence).encode()
        branches = [Branch(f"database-{number}", Xid(FORMAT_ID, gtrid, bytes(32))) for number in range(3)]
        decided[gtrid] = encode_branches(branches)
        client.decide(client.ended(f"key {sequence}", Xid(FORMAT_ID, gtrid, b"broker")), decided[gtrid])
    return decided


@pytest.mark.slow
def test_hundreds_of_decisions_in_doubt(harness: DecidingBrokerHarness) -> None:
    client = Decider(harness)
    decided = in_doubt(client, MANY)
    assert client.decided(100) == decided
    other = Decider(harness)
    last = list(decided)[-1]
    assert other.rm.settle(last, RMID) == decided[last]
    undecided = new_xid()
    assert other.settle(undecided) is None
    other.rm.end_decisions([undecided.gtrid, *list(decided)[:-1]], RMID)
    assert client.decided() == {last: decided[last]}


def test_a_token_that_is_nearly_full(harness: DecidingBrokerHarness) -> None:
    """What a slot takes it can also give back."""
    client = Decider(harness)
    size = MAX_OCTETS // 2 - 1000
    client.decide(xid := client.ended("key"), record := bytes(size))
    with pytest.raises(BranchRolledBack, match="takes no more before recovery"):
        client.decide(client.ended("key"), bytes(2000))
    other = Decider(harness)
    assert other.settle(xid) == record
    other.rm.end_decisions([xid.gtrid], RMID)
    assert other.decided() == {}
    assert client.decide(client.ended("key")) is Code.XA_OK
