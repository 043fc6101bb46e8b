"""These tests cover messages that are to be delivered later: who sees them when, in which order, and what a restart, a
transaction and a clock that is set do to it."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message, symbol

from dtx.amqp.messages import DELIVERY_DELAY, DELIVERY_TIME
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import Commit, Prepare, Rollback, Start
from dtx.protocol.replies import Result as Told
from tests.dtx.broker.peer import Coordinator, Peer, World
from tests.dtx.broker.test_management import manage
from xa import Code, Xid

OK = Told(Code.XA_OK)
XID = Xid(7, b"g", b"b")
NOW_MS = 1_000_000_000


def post(peer: Peer, body: Any, txn_id: bytes | None = None, *, queue: str = "q", **said: Any) -> Delivery:
    """Posts a message; `delay` in milliseconds, `at` in milliseconds since the epoch, the rest is proton's."""
    annotations = {}
    if "delay" in said:
        annotations[symbol(DELIVERY_DELAY)] = said.pop("delay")
    if "at" in said:
        annotations[symbol(DELIVERY_TIME)] = said.pop("at")
    message = Message(body=body, annotations=annotations or None, **said)
    delivery = peer.send_octets(peer.sender(queue), bytes(message.encode()), peer.name("m"), txn_id)
    peer.world.pump()
    return delivery


def prepared(peer: Peer, delay: int) -> None:
    """A prepared branch posts a message."""
    control: Coordinator = peer.coordinator()
    txn_id = control.declare(Start(XID))
    post(peer, "x", txn_id, delay=delay)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK


@pytest.mark.parametrize("said", [{"delay": 5000}, {"at": NOW_MS + 5000}])
@pytest.mark.parametrize("restart", [False, True])
def test_nobody_sees_it_before_its_time(world: World, peer: Peer, said: dict[str, Any], *, restart: bool) -> None:
    assert post(peer, "later", **said).remote_state == Delivery.ACCEPTED
    post(peer, "now")
    if restart:
        world.pass_time(2)
        world = world.crash()
        peer = world.connect()
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == ["now"]
    assert peer.drained("q") == []
    (told,) = (one for one in manage(peer, operation="queues") if one["name"] == "q")
    assert (told["depth"], told["delayed"], told["held"]) == (1, 1, 0)
    (told,) = manage(peer, operation="messages", queue="q")
    assert (told["state"], told["due"]) == ("delayed", NOW_MS + 5000)
    world.pass_time(4.9 - 2 * restart)
    assert peer.bodies(receiver) == []
    world.pass_time(0.2)
    assert peer.bodies(receiver) == ["later"]
    (told,) = (one for one in manage(peer, operation="queues") if one["name"] == "q")
    assert (told["depth"], told["delayed"], told["held"], told["octets"]) == (0, 0, 0, 0)


def test_it_is_seen_by_those_who_have_passed_it(world: World, peer: Peer) -> None:
    """A browser that waits and a consumer with a selector have read the queue to its end, and hear of it."""
    post(peer, "later", delay=5000, properties={"n": 1})
    post(peer, "now", properties={"n": 1})
    browser = peer.receiver("q", 10, browse=True)
    assert peer.bodies(browser) == ["now"]
    world.pass_time(6)
    assert peer.bodies(browser) == ["later"]
    assert sorted(peer.drained("q")) == ["later", "now"]


def test_it_stands_where_it_was_committed(world: World, peer: Peer) -> None:
    """In front of what was committed later, whatever was due first: as after a restart."""
    post(peer, "a", delay=5000)
    post(peer, "b", delay=2000)
    post(peer, "c")
    world.pass_time(6)
    post(peer, "d", delay=0)
    assert world.crash().connect().drained("q") == ["a", "b", "c", "d"]
    assert peer.bodies(peer.receiver("q", 10)) == ["a", "b", "c", "d"]


def test_a_time_that_is_over_is_no_delay(peer: Peer) -> None:
    post(peer, "x", at=NOW_MS - 1)
    assert peer.drained("q") == ["x"]


@pytest.mark.parametrize("said", [{"delay": "soon"}, {"delay": -1}, {"at": 2**63 - 1}, {"at": True}])
def test_a_time_that_is_none_is_refused(peer: Peer, said: dict[str, Any]) -> None:
    delivery = post(peer, "x", **said)
    assert delivery.remote_state == Delivery.REJECTED
    assert str(delivery.remote.condition.name) == "amqp:invalid-field"  # type: ignore[union-attr]
    assert peer.drained("q") == []


@pytest.mark.parametrize("restart", [False, True])
def test_the_time_begins_with_the_commit(world: World, peer: Peer, *, restart: bool) -> None:
    """Not with the post, nor with the prepare."""
    prepared(peer, delay=5000)
    world.pass_time(100)
    if restart:
        world = world.crash()
        peer = world.connect()
    assert peer.ask(Commit(XID)) == OK
    assert peer.drained("q") == []
    world.pass_time(4)
    if restart:
        world = world.crash()
        peer = world.connect()
    assert peer.drained("q") == []
    world.pass_time(1.5)
    assert peer.drained("q") == ["x"]


def test_a_local_transaction_begins_it_with_its_discharge(world: World, peer: Peer, control: Coordinator) -> None:
    txn_id = control.declare()
    post(peer, "x", txn_id, delay=5000)
    world.pass_time(10)
    control.discharge(txn_id)
    assert peer.drained("q") == []
    world.pass_time(6)
    assert peer.drained("q") == ["x"]


def test_a_rollback_leaves_nothing(world: World, peer: Peer) -> None:
    prepared(peer, delay=5000)
    assert peer.ask(Rollback(XID)) == OK
    world.pass_time(10)
    assert peer.drained("q") == []
    assert not world.disk.messages


def test_a_clock_that_is_set_back_takes_nothing_back(world: World, peer: Peer) -> None:
    """What came due stays so, held and given back as well. What is not due yet waits for the time that was said."""
    post(peer, "a", at=NOW_MS + 5000)
    post(peer, "b", at=NOW_MS + 60_000)
    world.pass_time(6)
    receiver = peer.receiver("q", 1)
    world.clock.set_s = -3600
    world.pass_time(1)
    taken = peer.taken(receiver)
    peer.settle(taken[0], Delivery.RELEASED)
    assert peer.drained("q") == ["a"]
    world.clock.set_s = 3600
    world.pass_time(1)
    assert peer.drained("q") == ["a", "b"]


def test_it_may_expire_before_it_is_due() -> None:
    world = World(Settings(queue_defaults=QueueSettings(dead_letter="")))
    peer = world.connect()
    post(peer, "x", delay=60_000, ttl=5)
    world.pass_time(6)
    world.pass_time(60)
    assert peer.drained("q") == []
    assert not world.disk.messages
    assert world.container.resource.queues["q"].delayed == 0


def test_operators_move_and_purge_what_is_delayed(world: World, peer: Peer) -> None:
    post(peer, "a", delay=5000)
    post(peer, "b", delay=5000)
    ids = [one["id"] for one in manage(peer, operation="messages", queue="q")]
    post(peer, "x", queue="to")
    assert manage(peer, operation="move", queue="q", to="to", ids=ids[0])["done"] == 1
    assert manage(peer, operation="purge", queue="q")["done"] == 1
    assert peer.drained("to") == ["x"], "it keeps its time"
    world = world.crash()
    world.pass_time(6)
    assert world.connect().drained("to") == ["x", "a"]


def test_many_that_are_due_at_once_keep_nobody_waiting(world: World, peer: Peer) -> None:
    sender = peer.sender("q")
    octets = bytes(Message(body="x", annotations={symbol(DELIVERY_TIME): NOW_MS + 5000}).encode())
    for _ in range(12):
        for _ in range(200):
            peer.send_octets(sender, octets, peer.name("m"), settled=True)
        world.pump()
    queue = world.container.resource.queues["q"]
    assert queue.delayed == 2400
    world.pass_time(6)
    assert (queue.delayed, queue.available) == (1400, 1000), "so many in one turn"
    world.pass_time(0.01)
    world.pass_time(0.01)
    assert (queue.delayed, queue.available) == (0, 2400)


def test_the_next_look_is_when_something_is_due(world: World, peer: Peer) -> None:
    resource = world.container.resource
    told = []
    for delay in (300, 60_000):
        told.append(resource.schedule.sooner)
        post(peer, "x", delay=delay)
        told.append(resource.schedule.sooner)
        assert resource.next_due_in() == pytest.approx(0.3, abs=0.002)
    assert told == [False, True, False, False], "whether the shell has to look sooner than it meant to"
