"""These tests cover queues over the wire: order, consumers, credit, time to live, depth, browsing and dynamic nodes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import State
from dtx.broker.settings import Limits, QueueSettings, Settings
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Recover
from dtx.protocol.conditions import Refusal
from dtx.store.contract import Step, StoreStopped
from tests.dtx.broker.peer import Peer, World, closed, condition_of
from xa import Code


def filled(*bodies: Any, settings: Settings | None = None) -> tuple[World, Peer]:
    """A world with these messages in q."""
    world = World(settings)
    peer = world.connect()
    sender = peer.sender("q")
    for body in bodies:
        peer.post(sender, body)
    return world, peer


def test_first_in_first_out() -> None:
    world, peer = filled(*range(20))
    receiver = peer.receiver("q", 7)
    assert peer.bodies(receiver) == list(range(7))
    receiver.flow(100)
    world.pump()
    assert peer.bodies(receiver) == list(range(7, 20))


def test_messages_stand_in_the_order_of_their_commits() -> None:
    world, peer = filled()
    control, sender = peer.coordinator(), peer.sender("q")
    first, second = control.declare(), control.declare()
    peer.post(sender, "first", first)
    peer.post(sender, "second", second)
    peer.post(sender, "outside")
    control.discharge(second)
    control.discharge(first)
    assert peer.drained("q") == ["outside", "second", "first"]
    assert world.crash().connect().drained("q") == ["outside", "second", "first"]


def test_what_is_given_back_comes_first_again() -> None:
    _, peer = filled(*range(4))
    receiver = peer.receiver("q", 3)
    taken = [peer.take(receiver) for _ in range(3)]
    for one in (taken[2], taken[0]):
        assert one is not None
        one[0].update(Delivery.RELEASED)
        one[0].settle()
    peer.world.pump()
    receiver.flow(10)
    peer.world.pump()
    assert peer.bodies(receiver) == [0, 2, 3]


@pytest.mark.parametrize("how", ["close", "detach", "end", "close the connection", "the broker shuts down"])
@pytest.mark.parametrize("jms", [False, True])
def test_what_a_consumer_that_closes_has_not_settled_is_no_failed_delivery(how: str, *, jms: bool) -> None:
    """A program that receives one message per consumer has prefetched the others, again and again. They never reached
    it, so they are not dead letters at the end. That holds also where the default outcome is modified with
    delivery-failed, as each consumer of Qpid JMS says."""
    numbers = list(range(15))
    world, peer = filled(*numbers, settings=Settings(queue_defaults=QueueSettings(max_deliveries=3)))
    found = []
    for _ in numbers:
        consumer = world.connect()
        world.pump()
        if jms:
            consumer.default_outcome, consumer.default_fields = 0x27, [True]
        receiver = consumer.receiver("q", 100)
        taken = consumer.taken(receiver)
        delivery, message = taken
        found.append((message.body, message.delivery_count))
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        if how == "the broker shuts down":
            world.pump()
            consumer.server.close(Refusal(Condition.CONNECTION_FORCED, "the broker shuts down", Code.XAER_RMFAIL))
        else:
            ends = {"close": receiver.close, "detach": receiver.detach, "end": consumer.session.close}
            ends.get(how, consumer.connection.close)()
        world.pump()
    assert found == [(number, 0) for number in numbers]
    assert peer.drained("q.dead") == []


def test_what_a_consumer_that_fails_has_not_settled_is_a_failed_delivery() -> None:
    """It is lost, or it closes its link with an error: the message may be why, so that twice the limit makes a dead
    letter of it."""
    world, peer = filled("x", settings=Settings(queue_defaults=QueueSettings(max_deliveries=3)))
    for count, ends in enumerate(("vanish", "error", "vanish", "vanish", "vanish", "vanish")):
        consumer = world.connect()
        receiver = consumer.receiver("q", 10)
        taken = consumer.taken(receiver)
        assert taken[1].delivery_count == count
        if ends == "error":
            consumer.fail(receiver)
        else:
            consumer.vanish()
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ["x"]


def test_consumers_compete_in_turn() -> None:
    world, peer = filled(*range(8))
    others = [world.connect() for _ in range(2)]
    receivers = [other.receiver("q") for other in others]
    for receiver in receivers:
        receiver.flow(4)
    for other in others:
        other.exchange()
    world.pump()
    sender = peer.sender("q")
    for receiver in receivers:
        receiver.flow(4)
    world.pump()
    for number in range(8, 16):
        peer.post(sender, number)
    had = [other.bodies(receiver) for other, receiver in zip(others, receivers, strict=True)]
    assert sorted(had[0] + had[1]) == list(range(16))
    assert len(had[0]) == len(had[1]) == 8


def test_credit_is_not_exceeded_and_can_be_taken_back() -> None:
    world, peer = filled(*range(5))
    receiver = peer.receiver("q", 2)
    assert [taken is not None for taken in (peer.take(receiver), peer.take(receiver), peer.take(receiver))] == [
        True,
        True,
        False,
    ]
    receiver.drain(1)
    world.pump()
    assert peer.take(receiver) is not None
    assert receiver.credit == 0
    empty = peer.receiver("empty")
    empty.drain(10)
    world.pump()
    assert (empty.credit, empty.draining()) == (0, False)


def test_a_consumer_holds_no_more_than_it_may() -> None:
    world, peer = filled(*range(10), settings=Settings(limits=Limits(unsettled=3)))
    receiver = peer.receiver("q", 10)
    assert world.container.resource.queues["q"].held == 3
    assert peer.bodies(receiver) == [0, 1, 2]
    world.pump()
    assert peer.bodies(receiver) == [3, 4, 5]


def test_settled_messages_are_gone_when_they_are_sent() -> None:
    world, peer = filled("x", "y")
    receiver = peer.receiver("q", 1, settled=True)
    taken = peer.taken(receiver)
    assert taken[0].settled
    peer.vanish()
    assert world.crash().connect().drained("q") == ["y"]


def test_a_receiver_that_does_not_settle_first_hears_when_its_outcome_is_durable() -> None:
    world, peer = filled("x")
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    taken[0].update(Delivery.ACCEPTED)
    world.pump(store=False)
    early = taken[0].settled
    world.pump()
    assert (early, taken[0].settled) == (False, True)
    assert world.crash().connect().drained("q") == []


def test_acceptance_comes_when_the_message_is_durable() -> None:
    world, peer = filled()
    consumer = world.connect().receiver("q", 1)
    delivery = peer.send_octets(peer.sender("q"), bytes(Message(body="x").encode()), "t")
    world.pump(store=False)
    assert int(delivery.remote_state) == 0
    assert peer.take(consumer) is None
    world.pump()
    assert delivery.remote_state == Delivery.ACCEPTED


@pytest.mark.parametrize("default_ttl_ms", [0, 5000])
def test_messages_expire(default_ttl_ms: int) -> None:
    world, peer = filled(settings=Settings(queue_defaults=QueueSettings(ttl_ms=default_ttl_ms)))
    sender = peer.sender("q")
    for body, ttl in (("short", 2.0), ("long", 60.0), ("default", None)):
        message = Message(body=body) if ttl is None else Message(body=body, ttl=ttl)
        peer.send_octets(sender, bytes(message.encode()), body)
    world.pump()
    held = peer.receiver("q", 1)
    world.pass_time(10)
    left = ["long"] if default_ttl_ms else ["long", "default"]
    assert world.connect().drained("q") == left
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    assert taken[1].ttl == pytest.approx(50, abs=1), "what is left of it"
    assert peer.take(held) is not None, "what somebody holds is not touched"
    held.close()
    world.pump()
    assert "short" not in world.connect().drained("q"), "nobody gets it, before it is dropped either"
    world.pass_time(2)
    assert "short" not in world.connect().drained("q")
    after = world.crash()
    assert after.connect().drained("q") == left[0:] if not default_ttl_ms else ["long"]


def test_a_full_queue_refuses_and_goes_on() -> None:
    world, peer = filled("x", settings=Settings(queue_defaults=QueueSettings(max_depth=1)))
    sender = peer.sender("q")
    refused = peer.post(sender, "y")
    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition is not None
    assert refused.remote.condition.name == Condition.RESOURCE_LIMIT
    assert not closed(sender)
    assert peer.bodies(peer.receiver("q", 1)) == ["x"]
    assert peer.post(sender, "z").remote_state == Delivery.ACCEPTED
    assert world.connect().drained("q") == ["z"]


def test_a_dead_letter_queue_that_is_full_takes_nothing_and_loses_nothing() -> None:
    defaults = QueueSettings(max_deliveries=1, dead_letter="dead")
    settings = Settings(queue_defaults=defaults, queues={"dead": QueueSettings(max_depth=1)})
    _, peer = filled("a", "b", settings=settings)
    for _ in range(3):
        peer.fail(peer.receiver("q", 2))
    assert sorted(peer.drained("q") + peer.drained("dead")) == ["a", "b"]
    assert len(peer.drained("dead")) == 1


def test_a_browser_with_much_credit_sees_a_long_queue(peer: Peer) -> None:
    peer.post_many(range(1500))
    assert peer.bodies(peer.receiver("q", 1500, browse=True)) == list(range(1500))


def test_a_browser_sees_what_comes_and_takes_nothing() -> None:
    world, peer = filled("a", "b")
    browser = peer.receiver("q", 10, browse=True)
    assert peer.bodies(browser) == ["a", "b"]
    peer.post(peer.sender("q"), "c")
    assert peer.bodies(browser) == ["c"]
    assert world.container.resource.queues["q"].depth == 3
    assert peer.drained("q") == ["a", "b", "c"]


def test_queues_are_made_on_demand_or_not_at_all() -> None:
    settings = Settings(create_on_demand=False, queues={"orders": QueueSettings()})
    world = World(settings)
    peer = world.connect()
    assert not closed(peer.sender("orders"))
    for link in (peer.sender("others"), peer.receiver("others")):
        assert condition_of(link).condition == Condition.NOT_FOUND
    assert set(world.container.resource.queues) == {"orders"}
    assert set(world.crash().container.resource.queues) == {"orders"}
    demand = World()
    demand.connect().sender("made")
    assert "made" in demand.crash().container.resource.queues


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "$made"])
def test_names_of_queues_are_sane(peer: Peer, name: str) -> None:
    assert closed(peer.sender(name))


def test_a_dynamic_node_lasts_as_long_as_its_link(world: World) -> None:
    peer, other = world.connect(), world.connect()
    node = peer.receiver(None, 10)
    address = str(node.remote_source.address)
    peer.post(peer.sender(address), "x")
    assert peer.bodies(node) == ["x"]
    assert not closed(other.sender(address)), "who knows its name may send there"
    assert condition_of(other.receiver(address)).condition == Condition.NOT_ALLOWED, "it is its connection's"
    node.close()
    world.pump()
    assert closed(peer.sender(address))
    assert not [name for name in world.container.resource.queues if name.startswith("$")]


def test_links_with_an_empty_address_are_refused(peer: Peer) -> None:
    assert condition_of(peer.sender("")).condition == Condition.INVALID_FIELD
    assert condition_of(peer.receiver("")).condition == Condition.NOT_IMPLEMENTED


def test_an_empty_or_broken_message_is_refused() -> None:
    world, peer = filled()
    sender = peer.sender("q")
    for octets in (b"", b"junk", b"\x00\x53\x70\xd0\xff\xff\xff\xff"):
        delivery = peer.send_octets(sender, octets, peer.name("t"))
        world.pump()
        assert delivery.remote_state == Delivery.REJECTED
    assert peer.post(sender, "fine").remote_state == Delivery.ACCEPTED


# --- requests --------------------
@pytest.mark.parametrize("reply_to", [None, "q", "$reply/nonsense"])
def test_a_request_that_cannot_be_answered_is_rejected(reply_to: str | None) -> None:
    world, peer = filled()
    message = Message(id="1", body="x")
    if reply_to is not None:
        message.reply_to = reply_to
    for address in (COORDINATION, MANAGEMENT):
        delivery = peer.send_octets(peer.sender(address), bytes(message.encode()), peer.name("t"))
        world.pump()
        assert delivery.remote_state == Delivery.REJECTED
    assert peer.drained("q") == []


def test_responses_that_nobody_reads_are_bounded() -> None:
    world, peer = filled()
    replies, requests = peer.receiver(None), peer.sender(COORDINATION)
    address = str(replies.remote_source.address)
    message = bytes(Message(id="1", reply_to=address, body="no command").encode())
    states = []
    for number in range(1010):
        delivery = peer.send_octets(requests, message, str(number))
        world.pump()
        states.append(delivery.remote_state)
        delivery.settle()
    assert states[999] == Delivery.ACCEPTED
    assert states[1005] == Delivery.REJECTED
    other = world.connect()
    other.ask(Recover())


def test_a_store_that_stops_ends_the_broker_without_a_word() -> None:
    broken = [False]

    def hook(step: Step) -> None:
        if broken[0] and step is Step.WRITTEN:
            raise StoreStopped("the disk is gone")

    world = World(hook=hook)
    peer = world.connect()
    sender = peer.sender("q")
    broken[0] = True
    delivery = peer.post(sender, "x")
    assert len(world.stopped) == 1
    assert int(delivery.remote_state) == 0, "nobody knows whether it is durable"
    assert int(peer.post(sender, "y").remote_state) == 0
    assert len(world.stopped) == 1


def test_what_is_held_is_counted() -> None:
    world, peer = filled(*range(60), settings=Settings(queue_defaults=QueueSettings(max_deliveries=3)))
    chance = random.Random(7)
    outcomes = (Delivery.ACCEPTED, Delivery.RELEASED, Delivery.REJECTED, Delivery.MODIFIED)
    for step in range(60):
        control = peer.coordinator()
        txn_id = control.declare()
        receiver = peer.receiver("q", chance.randrange(1, 8))
        while (taken := peer.take(receiver)) is not None:
            if chance.random() < 0.3:
                peer.retire(taken[0], txn_id, chance.choice((0x24, 0x25)))
            elif chance.random() < 0.7:
                taken[0].update(chance.choice(outcomes))
                taken[0].settle()
        world.pump()
        if chance.random() < 0.5:
            control.discharge(txn_id, fail=chance.random() < 0.5)
        if chance.random() < 0.5:
            receiver.close()
            world.pump()
        if step % 20 == 19:
            world = world.crash()
            peer = world.connect()
        for queue in world.container.resource.queues.values():
            assert queue.held == sum(entry.state is State.HELD for entry in queue)
