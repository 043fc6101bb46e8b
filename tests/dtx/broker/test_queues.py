"""These tests cover queues over the wire: order, consumers, credit, time to live, depth, browsing and dynamic nodes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from proton import Delivery, Described, Message, Receiver, ulong

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import State
from dtx.broker.settings import Limits, QueueSettings, Settings
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Complete, Prepare, Recover, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import TRANSACTIONAL
from dtx.store.contract import StoreStopped
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, closed, condition_of, dead, filled, say_state
from xa import Code


def test_messages_stand_in_the_order_of_their_commits(world: World, peer: Peer, control: Coordinator) -> None:
    sender = peer.sender("q")
    first, second = control.declare(), control.declare()
    peer.post(sender, "first", first)
    peer.post(sender, "second", second)
    peer.post(sender, "outside")
    control.discharge(second)
    control.discharge(first)
    assert peer.drained("q") == ["outside", "second", "first"]
    assert world.crash().connect().drained("q") == ["outside", "second", "first"]
    assert peer.bodies(peer.receiver("q", 3)) == ["outside", "second", "first"]


def test_what_is_given_back_comes_first_again() -> None:
    world, peer = filled(*range(4))
    receiver = peer.receiver("q", 3)
    taken = [peer.taken(receiver)[0] for _ in range(3)]
    for one in (taken[2], taken[0]):
        peer.settle(one, Delivery.RELEASED)
    world.more(receiver, 10)
    assert peer.bodies(receiver) == [0, 2, 3]


@pytest.mark.parametrize("how", ["close", "detach and end", "end", "close the connection", "the broker shuts down"])
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
        receiver, delivery, message = consumer.first(credit=100)
        found.append((message.body, message.delivery_count))
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()

        if how == "the broker shuts down":
            world.pump()
            consumer.server.close(Refusal(Condition.CONNECTION_FORCED, "the broker shuts down", Code.XAER_RMFAIL))
        else:
            if how == "detach and end":
                receiver.detach()
                world.pump()
            ends = {"close": receiver.close, "detach and end": consumer.session.close, "end": consumer.session.close}
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
        receiver, _, message = consumer.first(credit=10)
        assert message.delivery_count == count
        if ends == "error":
            consumer.fail(receiver)
        else:
            consumer.vanish()
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ["x"]


WITHOUT_A_TRANSACTION: dict[str, Callable[[Peer, Receiver, Delivery], None]] = {
    "released": lambda consumer, _, delivery: consumer.settle(delivery, Delivery.RELEASED),
    "modified, and not failed": lambda consumer, _, delivery: consumer.settle(delivery, Delivery.MODIFIED),
    "closed": lambda consumer, receiver, _: consumer.world.close(receiver),
    "detached, and the session ended": lambda consumer, receiver, _: detach_and_end(consumer, receiver),
    "closed with the connection": lambda consumer, *_: consumer.world.close(consumer.connection),
}
TRANSACTIONS: dict[str, Callable[[Coordinator, bytes], Any]] = {
    "the transaction fails": lambda control, txn_id: control.discharge(txn_id, fail=True),
    "it takes too long": lambda control, _: control.peer.world.pass_time(61),
    "its link is closed": lambda control, _: control.peer.world.close(control.link),
    "its connection is lost": lambda control, _: control.peer.vanish(),
}
BRANCHES: dict[str, Callable[[Peer], Any]] = {
    "rolled back": lambda peer: peer.ask(Rollback(XID)),
    "completed by hand": lambda peer: peer.ask(Complete(XID, commit=False)),
    "left alone": lambda peer: peer.world.pass_time(601),
}
EXCUSED = {"released": Described(ulong(0x26), []), "modified": Described(ulong(0x27), [False, False])}


def detach_and_end(consumer: Peer, receiver: Receiver) -> None:
    receiver.detach()
    consumer.world.pump()
    consumer.world.close(consumer.session)


def above_the_limit() -> tuple[World, Peer]:
    """A message that three lost connections have brought above the limit of two deliveries."""
    settings = Settings(queue_defaults=QueueSettings(max_deliveries=2), local_timeout_s=60, branch_timeout_s=600)
    world, peer = filled("x", settings=settings)
    for _ in range(3):
        consumer = world.connect()
        consumer.first()
        consumer.vanish()
    return world, peer


def check_limit(world: World) -> None:
    """The message is in its queue, with its count; one more delivery that counts makes a dead letter of it."""
    peer = world.connect()
    _, delivery, message = peer.first()
    assert message.delivery_count == 3
    delivery.local.failed = True
    peer.settle(delivery, Delivery.MODIFIED)
    assert dead(peer) == [("q", "delivery-count reached 4")]


def retired_with_an_excuse(peer: Peer, txn_id: bytes, outcome: str) -> Receiver:
    receiver, delivery, _ = peer.first()
    say_state(delivery, TRANSACTIONAL, [txn_id, Described(ulong(0x24), []), EXCUSED[outcome]])
    delivery.settle()
    peer.world.pump()
    return receiver


@pytest.mark.parametrize("how", WITHOUT_A_TRANSACTION)
def test_a_return_that_does_not_count_makes_no_dead_letter(how: str) -> None:
    """Whatever has brought the message above the limit: nothing has failed now."""
    world, _ = above_the_limit()
    consumer = world.connect()
    receiver, delivery, _ = consumer.first()
    WITHOUT_A_TRANSACTION[how](consumer, receiver, delivery)
    check_limit(world)


@pytest.mark.parametrize("how", TRANSACTIONS)
@pytest.mark.parametrize("outcome", EXCUSED)
def test_a_rollback_that_does_not_count_makes_no_dead_letter(how: str, outcome: str) -> None:
    world, _ = above_the_limit()
    control = world.connect().coordinator()
    txn_id = control.declare()
    retired_with_an_excuse(control.peer, txn_id, outcome)
    TRANSACTIONS[how](control, txn_id)
    check_limit(world)


@pytest.mark.parametrize("outcome", EXCUSED)
@pytest.mark.parametrize(
    ("before", "how"),
    [
        ("nothing", "rolled back"),
        ("nothing", "left alone"),
        ("a vote", "rolled back"),
        ("a vote", "completed by hand"),
        ("a restart", "rolled back"),
        ("a restart", "completed by hand"),
    ],
)
def test_a_branch_whose_rollback_does_not_count_makes_no_dead_letter(outcome: str, before: str, how: str) -> None:
    world, peer = above_the_limit()
    control = world.connect().coordinator()
    txn_id = control.declare(Start(XID))
    retired_with_an_excuse(control.peer, txn_id, outcome)
    control.discharge(txn_id)
    if before != "nothing":
        assert peer.ask(Prepare(XID)) == OK
    if before == "a restart":
        world = world.crash()
        peer = world.connect()
    BRANCHES[how](peer)
    check_limit(world)


def test_consumers_compete_in_turn() -> None:
    world, peer = filled()
    others = [world.connect() for _ in range(2)]
    receivers = [other.receiver("q", 4) for other in others]
    peer.fill("q", *range(8))
    had = [other.bodies(receiver) for other, receiver in zip(others, receivers, strict=True)]
    assert sorted(had[0] + had[1]) == list(range(8))
    assert len(had[0]) == len(had[1])


def test_a_consumer_holds_no_more_than_it_may() -> None:
    world, peer = filled(*range(10), settings=Settings(limits=Limits(unsettled=3)))
    receiver = peer.receiver("q", 10)
    assert world.queue().counters.held == 3
    assert peer.bodies(receiver) == [0, 1, 2]
    world.pump()
    assert peer.bodies(receiver) == [3, 4, 5]


def test_settled_messages_are_gone_when_they_are_sent() -> None:
    world, peer = filled("x", "y")
    assert peer.first(settled=True)[1].settled
    peer.vanish()
    assert world.crash().connect().drained("q") == ["y"]


def test_a_receiver_that_does_not_settle_first_hears_when_its_outcome_is_durable() -> None:
    world, peer = filled("x")
    _, delivery, _ = peer.first()
    delivery.update(Delivery.ACCEPTED)
    world.pump(store=False)
    early = delivery.settled
    world.pump()
    assert (early, delivery.settled) == (False, True)
    assert world.crash().connect().drained("q") == []


def test_acceptance_comes_when_the_message_is_durable() -> None:
    """And an empty or a broken one is refused."""
    world, peer = filled()
    consumer, sender = world.connect().receiver("q", 1), peer.sender("q")
    for octets in (b"", b"junk", b"\x00\x53\x70\xd0\xff\xff\xff\xff"):
        delivery = peer.send_octets(sender, octets, peer.name("t"))
        world.pump()
        assert delivery.remote_state == Delivery.REJECTED
    delivery = peer.send_octets(sender, bytes(Message(body="x").encode()), "t")
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
    world.close(held)
    assert "short" not in world.connect().drained("q"), "nobody gets it, before it is dropped either"
    world.pass_time(2)
    assert "short" not in world.connect().drained("q")
    after = world.crash()
    assert after.connect().drained("q") == left[0:] if not default_ttl_ms else ["long"]


def test_a_dead_letter_queue_that_is_full_takes_nothing_and_loses_nothing() -> None:
    defaults = QueueSettings(max_deliveries=1, dead_letter="dead")
    settings = Settings(queue_defaults=defaults, queues={"dead": QueueSettings(max_depth=1)})
    _, peer = filled("a", "b", settings=settings)
    for _ in range(3):
        peer.fail(peer.receiver("q", 2))
    assert sorted(peer.drained("q") + peer.drained("dead")) == ["a", "b"]
    assert len(peer.drained("dead")) == 1


def test_a_browser_sees_what_comes_and_takes_nothing() -> None:
    world, peer = filled("a", "b")
    browser = peer.receiver("q", 10, browse=True)
    assert peer.bodies(browser) == ["a", "b"]
    peer.post(peer.sender("q"), "c")
    assert peer.bodies(browser) == ["c"]
    assert world.queue().depth == 3
    assert peer.drained("q") == ["a", "b", "c"]


def test_queues_are_made_on_demand_or_not_at_all() -> None:
    settings = Settings(create_on_demand=False, queues={"orders": QueueSettings()})
    world, peer = filled(settings=settings)
    assert not closed(peer.sender("orders"))
    for link in (peer.sender("others"), peer.receiver("others")):
        assert condition_of(link).condition == Condition.NOT_FOUND
    assert set(world.container.resource.queues) == {"orders"}
    assert set(world.crash().container.resource.queues) == {"orders"}
    demand = World()
    demand.connect().sender("made")
    assert "made" in demand.crash().container.resource.queues


def test_names_of_queues_are_sane(peer: Peer) -> None:
    for name in ("x" * 256, "a\nb", "$made"):
        assert closed(peer.sender(name))
    assert condition_of(peer.sender("")).condition == Condition.INVALID_FIELD
    assert condition_of(peer.receiver("")).condition == Condition.NOT_IMPLEMENTED


def test_a_dynamic_node_lasts_as_long_as_its_link(world: World) -> None:
    peer, other = world.connect(), world.connect()
    node = peer.receiver(None, 10)
    address = str(node.remote_source.address)
    peer.post(peer.sender(address), "x")
    assert peer.bodies(node) == ["x"]
    assert not closed(other.sender(address)), "who knows its name may send there"
    assert condition_of(other.receiver(address)).condition == Condition.NOT_ALLOWED, "it is its connection's"
    world.close(node)
    assert closed(peer.sender(address))
    assert not [name for name in world.container.resource.queues if name.startswith("$")]


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
        states.append(peer.send_octets(requests, message, str(number)))
        if number % 100 == 99 or number > 998:
            world.pump()
    assert states[999].remote_state == Delivery.ACCEPTED
    assert states[1005].remote_state == Delivery.REJECTED
    other = world.connect()
    other.ask(Recover())


def test_a_store_that_stops_ends_the_broker_without_a_word(world: World, peer: Peer) -> None:
    sender = peer.sender("q")
    world.fault = StoreStopped("the disk is gone")
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
                peer.settle(taken[0], chance.choice(outcomes))

        if chance.random() < 0.5:
            control.discharge(txn_id, fail=chance.random() < 0.5)
        if chance.random() < 0.5:
            world.close(receiver)
        if step % 20 == 19:
            world = world.crash()
            peer = world.connect()
        for queue in world.container.resource.queues.values():
            assert queue.counters.held == sum(entry.state is State.HELD for entry in queue)
