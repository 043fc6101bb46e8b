"""These tests found token queues with a real client and the embedded broker: several processes at once, late ones,
every order of the messages, queues of other versions, and what becomes of the messages that do not count.

`tests.simulation.test_elections` tests the algorithm by itself, and `tests.interop` tests it over ActiveMQ Artemis.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations

import pytest

from rm_amqp import DecidingBroker, Message
from rm_amqp.decider.tokens import FoundingMessage, Token
from tests.rm_amqp.decider.deciding import DECLARE, DISCHARGE, DecidingBrokerHarness, NetworkHarness
from tests.simulation.seeds import EVERY_POINT
from xa import (
    Code,
    ResourceError,
    ResourceUnavailable,
    TryAgain,
)
from xabridge.testing.contract.client import RMID
from xabridge.testing.contract.deciding import RECORD, new_owner

SLOTS = 2
FIRST, SECOND, THIRD = b"1" * 8, b"2" * 8, b"3" * 8
EVERY_ORDER = list(permutations([FIRST, SECOND, THIRD]))
ORDERS = EVERY_ORDER if EVERY_POINT else [EVERY_ORDER[0], EVERY_ORDER[-1]]


def put(harness: DecidingBrokerHarness, suffix: str, bodies: Sequence[str]) -> None:
    """These are in the queue."""
    harness.alien(harness.tokens + suffix, *(Message(body) for body in bodies))


def found(harness: DecidingBrokerHarness, *foundings: FoundingMessage, used: Sequence[bytes] = ()) -> None:
    """These have been committed; the lease tokens of those in `used` were replaced."""
    put(harness, "", [founding.encode() for founding in foundings])
    for founding in foundings:
        for token in founding.first_tokens():
            is_used = founding.founder in used and token.slot == founding.lease_slot
            put(harness, f".{token.slot}", [(token.renewed() if is_used else token).encode()])


def works(harness: DecidingBrokerHarness, rm: DecidingBroker) -> None:
    """Everything that is done with tokens, through each slot."""
    client = harness.using(rm)
    rm.hold(owner := new_owner(), 60, RMID)
    assert list(rm.owners(RMID)) == [owner]
    rm.hold(owner, 0, RMID)
    for _ in range(8):
        assert client.decide(xid := client.ended("key")) is Code.XA_OK
        assert client.settle(xid) == RECORD
        assert client.settle(client.ended("key")) is None
    rm.end_decisions([decision.gtrid for decision in rm.decisions(RMID)], RMID)
    assert rm.decisions(RMID) == []


def tokens(harness: DecidingBrokerHarness, slots: int) -> list[Token]:
    """What is in the slots' queues."""
    return [Token.decode(body) for slot in range(slots + 1) for body in harness.bodies(f"{harness.tokens}.{slot}")]


# --- several foundings ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("used", [[SECOND], []], ids=["one is in use", "none is"])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_no_order_of_the_messages_says_which_counts(
    harness: DecidingBrokerHarness, order: Sequence[bytes], used: Sequence[bytes]
) -> None:
    """A broker that keeps no order shows them in any after a restart. The one in use counts, or the smallest."""
    found(harness, *(FoundingMessage(founder, 2) for founder in order), used=used)
    rm = harness.opened()
    counts = used[0] if used else FIRST
    assert rm.decider_id == counts
    if not used:
        assert [token.founder for token in tokens(harness, 2) if token.slot == 2] == [counts]
    works(harness, rm)
    assert {token.founder for token in tokens(harness, 1)} == {counts}, "tokens that do not count are dropped"


@pytest.mark.parametrize("sign", [DECLARE, DISCHARGE], ids=["before it begins", "before it commits"])
def test_one_that_comes_late_does_not_count(harness: DecidingBrokerHarness, sign: bytes) -> None:
    """It has looked and seen nothing; when it goes on, another founding is in use. Then it works with that one."""
    slow, others = harness.new(), []

    def meanwhile() -> None:
        others.append(harness.opened())
        works(harness, others[0])

    harness.weather[slow].pause(sign, meanwhile)
    slow.open(harness.open_string, RMID)
    assert slow.decider_id == others[0].decider_id
    assert len(harness.bodies(harness.tokens)) == 2
    for rm in (slow, *others, harness.opened()):
        works(harness, rm)
    assert {token.founder for token in tokens(harness, 2)} == {slow.decider_id}


@pytest.mark.slow
def test_a_smaller_founder_that_comes_late_does_not_count(harness: DecidingBrokerHarness) -> None:
    rm = harness.opened()
    found(harness, FoundingMessage(bytes(8), 2))
    assert harness.opened().decider_id == rm.decider_id
    works(harness, rm)
    works(harness, harness.opened())


def test_foundings_with_other_numbers_of_slots(harness: DecidingBrokerHarness) -> None:
    """The lease token of one stands where the other has a slot of its own."""
    harness.open_string = harness.open_string.replace("&slots=2", "")
    found(harness, FoundingMessage(SECOND, 1), FoundingMessage(FIRST, 4), FoundingMessage(THIRD, 3))
    rm = harness.opened()
    assert rm.decider_id == FIRST
    works(harness, rm)
    assert {token.founder for token in tokens(harness, 3)} == {FIRST}


@pytest.mark.parametrize("foundings", [0, 6])
def test_many_open_at_the_same_moment(harness: DecidingBrokerHarness, foundings: int) -> None:
    """What nobody has founded, or several."""
    found(harness, *(FoundingMessage(bytes([number]) * 8, 2) for number in range(3 + foundings, 3, -1)))
    barrier = threading.Barrier(6)

    def open_it() -> DecidingBroker:
        rm = harness.new()
        barrier.wait(30)
        rm.open(harness.open_string, RMID)
        return rm

    with ThreadPoolExecutor(6) as pool:
        rms = [future.result() for future in [pool.submit(open_it) for _ in range(6)]]
    (counts,) = {rm.decider_id for rm in rms}
    works(harness, rms[0])
    assert counts in {token.founder for token in tokens(harness, 2)}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("founders", [[], [FIRST, SECOND]], ids=["nothing", "founded twice"])
def test_one_that_is_lost_on_the_way(
    harness: DecidingBrokerHarness, founders: Sequence[bytes], *, before: bool
) -> None:
    """Whoever founds, or elects: the next one finds a place that is whole."""
    found(harness, *(FoundingMessage(founder, 2) for founder in founders))
    rm = harness.new()
    harness.weather[rm].strike(DISCHARGE, before=before)
    with pytest.raises(ResourceUnavailable):
        rm.open(harness.open_string, RMID)
    rm = harness.opened()
    assert rm.decider_id == FIRST or not founders
    assert len(harness.bodies(harness.tokens)) == (len(founders) or 1)
    assert [token.slot for token in tokens(harness, 2) if token.founder == rm.decider_id] == [0, 1, 2]
    assert harness.token(2).used
    works(harness, rm)


def test_a_lock_that_somebody_holds_is_waited_for(timeless: NetworkHarness) -> None:
    """Nothing is elected without it; when it is back, it is."""
    harness = timeless
    harness.open_string += "&timeout=2"
    found(harness, FoundingMessage(FIRST, 2), FoundingMessage(SECOND, 2))
    first = harness.take(f"{harness.tokens}.2")
    with pytest.raises(TryAgain, match="it is not known yet which founding"):
        harness.opened()
    assert not any(token.used for token in tokens(harness, 2))
    harness.alien(f"{harness.tokens}.2", first)
    assert harness.opened().decider_id == FIRST


def test_two_that_are_in_use_are_an_error(harness: DecidingBrokerHarness) -> None:
    """Somebody has put messages there by hand: nothing is presumed, and nothing thrown away."""
    found(harness, FoundingMessage(FIRST, 2), FoundingMessage(SECOND, 2), used=[FIRST, SECOND])
    before = tokens(harness, 2)
    with pytest.raises(ResourceError, match="both use its tokens"):
        harness.opened()
    assert sorted(tokens(harness, 2), key=repr) == sorted(before, key=repr)


# --- other versions ---------------------------------------------------------------------------------------------------
OTHERS = ((2, "made by xabridge 0.1.0, which is not read any more"), (4, "made by a newer version"))


@pytest.mark.parametrize(("version", "said"), OTHERS)
@pytest.mark.parametrize("founded", [True, False])
def test_tokens_of_another_version_are_refused_by_its_name(
    harness: DecidingBrokerHarness, version: int, said: str, *, founded: bool
) -> None:
    """Also those whose founding message is lost; nothing of them is changed."""
    founding = FoundingMessage(FIRST, SLOTS)
    bodies = {f".{token.slot}": token.renewed().encode() for token in founding.first_tokens()}
    if founded:
        bodies[""] = founding.encode()
    for suffix, body in bodies.items():
        put(harness, suffix, [body.replace('"version": 3', f'"version": {version}')])

    def stored() -> list[list[object]]:
        return [harness.bodies(harness.tokens + suffix) for suffix in ("", ".0", ".1", ".2")]

    before = stored()
    with pytest.raises(ResourceError, match=said):
        harness.opened()
    assert stored() == before
