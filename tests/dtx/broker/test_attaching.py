"""What an attach is answered: what is echoed is honoured, what is not supported is refused by its name, and nodes are
reached by those who may reach them."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.encoding import encode
from dtx.amqp.messages import DATA, FOOTER, PROPERTIES, SEQUENCE, value_message
from dtx.amqp.values import Array, Described, Symbol, Ubyte, Uint, Ulong, Value
from dtx.broker.access.permissions import EVERYTHING, Permissions, Rule
from dtx.broker.settings import Limits, Settings
from tests.dtx.broker.peer import Peer, World, closed, filled, flow, frame, post
from tests.dtx.broker.strangers import (
    ATTACH,
    DETACH,
    DISPOSITION,
    FLOW,
    TRANSFER,
    attach_answer,
    closed_with,
    connected,
    consumer,
    coordinator,
    message,
    node,
    received,
    said,
    selecting,
    source,
    terminus,
)


# --- what is echoed
@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"filters": {Symbol("x"): Described(Symbol("apache.org:no-local-filter:list"), [])}}, 7),
        ({"filters": {Symbol("x"): Described(Symbol("somebody:filter"), "a")}}, 7),
        ({"capabilities": Array([Symbol("queue"), Symbol("something")])}, 10),
        ({"durable": Uint(2)}, 1),
    ],
    ids=["no-local", "a filter that nobody knows", "a capability that nobody knows", "durable"],
)
def test_what_is_not_honoured_is_not_echoed(world: World, asked: dict[str, Any], place: int) -> None:
    """In this case the endpoint MUST report the actual properties of the terminus as created."""
    _, answer = consumer(world, **asked)
    echoed = answer[place]
    assert echoed is None or echoed == Array([Symbol("queue")])


RED = selecting("colour = 'red'")


def test_a_selector_is_echoed_and_honoured(world: World, peer: Peer) -> None:
    peer.post_many(range(200), properties={"colour": "blue"})
    sender = peer.sender("q")
    for number in range(300):
        octets = message(f"m{number}", colour="red" if number % 3 == 0 else "blue")
        peer.send_octets(sender, octets, f"t{number}", settled=True)

    world.pump()
    stranger, answer = consumer(world, filters=RED, credit=1000)
    assert answer[7] == RED
    world.pump()
    stranger.listen()
    assert received(stranger) == [f"m{number}" for number in range(0, 300, 3)]
    queue = world.queue()
    assert queue.available == 400, "what does not match stays for others"
    stranger.leave()  # it settled nothing: all of it comes back
    world.pump()
    assert queue.available == 500
    again, _ = consumer(world, filters=RED, credit=5)
    world.pump()
    again.listen()
    assert received(again)[:5] == ["m0", "m3", "m6", "m9", "m12"]


def test_what_a_selector_passed_over_is_looked_at_again_when_it_comes_back(world: World, peer: Peer) -> None:
    first = peer.receiver("q", 1)
    post(peer, "red", properties={"colour": "red"})
    assert first.current is not None
    stranger, _ = consumer(world, filters=RED, credit=10)
    post(peer, "blue", properties={"colour": "blue"})
    stranger.told()
    world.close(first)
    stranger.listen()
    assert received(stranger) == ["red"]


@pytest.mark.slow
def test_what_comes_back_to_a_link_that_takes_nothing_takes_no_memory(world: World) -> None:
    """It reads the queue from its beginning then, and gets what its selector matches all the same."""
    stranger, peer = connected(world), world.connect()
    peer.post_many(["blue"] * 1200)
    stranger.attach(0, source=source(filters=RED), receiver=True)
    stranger.say(flow(0, 0, 10, None))
    stranger.told()
    stranger.say(flow(0, 0, 0, None))
    (link,) = world.queue().readers
    for _ in range(2):
        peer.receiver("q", 1200).close()
        world.pump()
        assert len(link._again) <= 1000  # type: ignore[attr-defined]
    post(peer, "red one", properties={"colour": "red"})
    stranger.say(flow(0, 0, 10, None))
    assert "red one" in received(stranger)


def test_a_selector_and_a_drain(world: World, peer: Peer) -> None:
    """The credit is given back when every message was looked at, and not before."""
    peer.post_many(range(449))
    post(peer, "last", properties={"n": 449})
    selector = {Symbol("s"): Described(Ulong(0x0000_468C_0000_0004), "n = 449")}
    stranger, _ = consumer(world, filters=selector)
    stranger.say(frame(FLOW, [Uint(0), Uint(2048), Uint(0), Uint(2048), Uint(0), Uint(0), Uint(10), None, True]))
    world.pump()
    stranger.listen()
    assert [code for _, code, _ in stranger.told() if code in {TRANSFER, FLOW}] == [TRANSFER, FLOW]


# --- what is refused
@pytest.mark.parametrize("kind", ["temporary-topic", "shared", "global"])
def test_what_is_no_topic_is_not_shared_and_refused_without_a_terminus(world: World, kind: str) -> None:
    """2.6.3: an attach that is refused has no terminus of ours, so that a client sees the refusal at once."""
    address, capabilities = "prices", Symbol(kind)
    fields: list[Value] = [address, None, None, None, None, None, capabilities]
    for place, how in (
        (5, {"source": source(address, capabilities=capabilities), "receiver": True}),
        (6, {"target": Described(Ulong(0x29), fields)}),
    ):
        stranger = connected(world)
        stranger.attach(0, **how)
        told = stranger.told()
        assert attach_answer(told)[place] is None
        assert closed_with(told, DETACH) == "amqp:not-implemented"
    assert "prices" not in world.container.resource.queues


def test_resumed_deliveries_are_refused(world: World) -> None:
    stranger = connected(world)
    unsettled = {b"tag": Described(Ulong(0x24), [])}
    stranger.say(frame(ATTACH, ["resumed", Uint(0), True, None, None, source(), node(None), unsettled]))
    assert closed_with(stranger.told(), DETACH) == "amqp:not-implemented"


# --- credit, flows, detaches


def test_credit_is_taken_back_for_a_large_message_that_is_still_read_from_the_store(world: World, peer: Peer) -> None:
    """The drain is answered, and the message stays in its queue."""
    peer.post(peer.sender("q"), "x" * 1_000_000)
    stranger, _ = consumer(world)
    session = [Uint(0), Uint(2048), Uint(0), Uint(2048)]
    stranger.server.received(flow(0, 0, 1, None))
    queue = world.queue()
    assert queue.counters.held == 1, "it is on its way"
    stranger.server.received(frame(FLOW, [*session, Uint(0), Uint(0), Uint(0), None, True]))
    stranger.heard += stranger.server.output()
    assert [code for _, code, _ in stranger.told()] == [FLOW]
    assert queue.available == 1
    stranger.say(flow(0, 0, 1, None))
    assert [code for _, code, _ in stranger.told()].count(TRANSFER) > 10
    assert (queue.depth, queue.counters.held) == (1, 1)


@pytest.mark.parametrize("settled", [False, True])
def test_a_large_message_comes_back_from_a_link_that_goes_before_its_first_part_was_read(
    world: World, peer: Peer, *, settled: bool
) -> None:
    """It was taken from its queue, and nothing of it was sent."""
    peer.fill("q", "x" * 1_000_000)
    stranger = connected(world)
    mode = Ubyte(1) if settled else None
    stranger.say(frame(ATTACH, ["large", Uint(0), True, mode, None, source(), node(None)]))
    stranger.server.received(flow(0, 0, 1, None))
    assert world.queue().counters.held == 1
    stranger.server.received(frame(DETACH, [Uint(0), True]))
    stranger.listen()
    assert (world.queue().available, world.queue().counters.held) == (1, 0)


@pytest.mark.parametrize("frames", [3, 1500])
def test_nothing_is_sent_for_a_link_that_was_detached_in_the_middle_of_a_message(frames: int) -> None:
    """However many frames had come: no credit on its handle, no outcome for its delivery."""
    world = World(Settings(limits=Limits(frame_octets=512)))
    stranger = connected(world)
    stranger.attach(0, node("q"))
    stranger.told()
    stranger.say(frame(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0), False, True], b"x" * 400))
    for _ in range(frames):
        stranger.say(frame(TRANSFER, [Uint(0), None, None, None, None, True], b"x" * 400))
    stranger.told()
    stranger.say(frame(DETACH, [Uint(0), True]))
    assert {code for _, code, _ in stranger.told()} <= {DETACH, FLOW}
    assert stranger.server.partial_octets == 0
    stranger.say(frame(DISPOSITION, [False, Uint(0), None, True]))
    assert not [code for _, code, _ in stranger.told() if code == DISPOSITION]
    assert not stranger.server.closed


@pytest.mark.parametrize("how", ["closed", "with an error", "link-detach"])
def test_an_outcome_for_a_delivery_whose_link_was_detached_refuses_the_discharge(
    world: World, peer: Peer, how: str
) -> None:
    """The message is somebody else's by then: a transaction that takes it as accepted must not succeed."""
    peer.post(peer.sender("q"), "x")
    stranger = connected(world)
    stranger.attach(0, source=source(expiry=Symbol(how) if how == "link-detach" else None), receiver=True)
    stranger.attach(1, coordinator("amqp:local-transactions"))
    stranger.say(flow(0, 0, 10, None))
    stranger.told()
    stranger.transfer(1, 0, value_message(encode(Described(Ulong(0x31), []))))
    (declared,) = [fields[4] for _, code, fields in stranger.told() if code == DISPOSITION]
    txn_id = declared.value[0]

    error = Described(Ulong(0x1D), [Symbol("app:failed")]) if how == "with an error" else None
    stranger.say(frame(DETACH, [Uint(0), how == "closed", error]))
    accepted = Described(Ulong(0x34), [txn_id, Described(Ulong(0x24), [])])
    stranger.say(frame(DISPOSITION, [True, Uint(0), None, True, accepted]))
    stranger.told()
    stranger.transfer(1, 1, value_message(encode(Described(Ulong(0x32), [txn_id, False]))))
    (answer,) = [fields[4] for _, code, fields in stranger.told() if code == DISPOSITION]
    assert answer.descriptor == 0x25, "rejected"
    assert answer.value[0].value[0] == "amqp:transaction:rollback"
    assert peer.drained("q") == ["x"]


# --- stealing
def test_a_link_is_stolen_by_the_same_user_only(world: World) -> None:
    """And by the same container."""
    known = (("ada", "orders"), ("bob", "orders"), ("ada", "another"), ("ada", "orders"))
    strangers = [connected(world, *one) for one in known]
    for stranger in strangers:
        stranger.attach(0, source=source(), receiver=True)
    for stranger in strangers:
        stranger.listen()
    assert [closed_with(stranger.told(), DETACH) for stranger in strangers] == ["amqp:link:stolen", "", "", ""]


def small(browse: bool = False) -> bytes:
    """An attach of a receiver that takes 1,000 octets, and credit."""
    asked = source(mode=Symbol("copy") if browse else None)
    fields = ["small", Uint(0), True, None, None, asked, node(None), None, None, None, Ulong(1000)]
    return frame(ATTACH, fields) + flow(0, 0, 10, None)


@pytest.mark.parametrize("browse", [False, True])
def test_a_receiver_gets_no_message_that_is_larger_than_it_takes(world: World, peer: Peer, *, browse: bool) -> None:
    peer.fill("q", "x" * 2000)
    stranger = connected(world)
    stranger.say(small(browse))
    told = stranger.told()
    assert closed_with(told, DETACH) == "amqp:link:message-size-exceeded"
    assert not said(told, TRANSFER)
    assert peer.drained("q") == ["x" * 2000]


def test_what_was_accepted_before_a_message_that_is_too_large_stays_accepted(world: World, peer: Peer) -> None:
    """The link is detached when the messages before it are settled: their outcomes don't cross the detach."""
    peer.fill("q", "a", "b", "x" * 2000, "c")
    stranger = connected(world)
    stranger.say(small())
    told = stranger.told()
    assert len(said(told, TRANSFER)) == 2
    assert not closed_with(told, DETACH)
    stranger.say(frame(DISPOSITION, [True, Uint(0), Uint(1), True, Described(Ulong(0x24), [])]))
    assert closed_with(stranger.told(), DETACH) == "amqp:link:message-size-exceeded"
    assert peer.drained("q") == ["x" * 2000, "c"]


# --- dynamic nodes, and no node
def test_dynamic_nodes_are_bounded_in_number_and_octets() -> None:
    world, peer = filled(settings=Settings(limits=Limits(dynamic_nodes=3, dynamic_octets=5000)))
    nodes = [peer.receiver(None) for _ in range(4)]
    assert closed(nodes[3])
    sender = peer.sender(str(nodes[0].remote_source.address))
    outcomes = [peer.post(sender, "x" * 1000).remote_state for _ in range(8)]
    assert 4 <= outcomes.count(Delivery.ACCEPTED) <= 5
    assert outcomes[-1] == Delivery.REJECTED
    other = peer.sender(str(nodes[1].remote_source.address))
    assert peer.post(other, "x").remote_state == Delivery.REJECTED
    world.close(nodes[0])
    assert peer.post(other, "x").remote_state == Delivery.ACCEPTED
    nodes[1].flow(100)  # the octets are those of the messages that are in the nodes now
    for _ in range(20):
        assert peer.post(other, "x" * 1000).remote_state == Delivery.ACCEPTED
        peer.bodies(nodes[1])


@pytest.mark.parametrize(
    ("rule", "condition"), [(EVERYTHING, "amqp:invalid-field"), (Rule(), "amqp:unauthorized-access")]
)
def test_a_selector_that_cannot_be_read_is_refused(rule: Rule, condition: str) -> None:
    """Who may not consume learns nothing of it."""
    stranger = connected(World(permissions=Permissions({"anonymous": rule})))
    stranger.attach(0, source=source(filters=selecting("colour = = 'red'")), receiver=True)
    assert closed_with(stranger.told(), DETACH) == condition


def test_request_and_response_between_two_connections(world: World) -> None:
    """A dynamic node is read by the connection that made it, also with a selector, and written by who knows its
    name."""
    asks, answers = connected(world), connected(world)
    asks.attach(0, source=source(None, dynamic=True, filters=RED), receiver=True)
    echoed = terminus(attach_answer(asks.told())[5])
    address = echoed[0]
    assert echoed[7] == RED
    asks.say(flow(0, 0, 10, None))
    answers.attach(0, node(address))
    answers.transfer(0, 0, message("another one's", colour="blue"))

    answers.transfer(0, 1, message("the answer", colour="red"))
    assert not closed_with(answers.told(), DETACH)
    asks.listen()
    assert received(asks) == ["the answer"]
    answers.attach(1, source=source(address), receiver=True)
    assert closed_with(answers.told(), DETACH) == "amqp:not-allowed"
    asks.leave()
    answers.attach(2, node(address))
    assert closed_with(answers.told(), DETACH) == "amqp:not-found"


def test_a_dynamic_target_is_read_by_its_own_connection(world: World) -> None:
    """That is how JMS makes a temporary queue."""
    stranger = connected(world)
    capabilities = Array([Symbol("temporary-queue")])
    stranger.attach(0, target=Described(Ulong(0x29), [None, None, None, None, True, None, capabilities]))
    fields = [*attach_answer(stranger.told())[6].value, None, None]
    assert fields[4] is True
    stranger.attach(1, source=source(fields[0]), receiver=True)
    stranger.say(flow(1, 0, 10, None))
    stranger.transfer(0, 0, message("to myself"))
    assert "to myself" in received(stranger)
    stranger.say(frame(DETACH, [Uint(0), True]))
    assert fields[0] not in world.container.resource.queues


def test_a_link_without_an_address_relays_by_the_address_in_each_message() -> None:
    rules = {"anonymous": Rule(("*",), ("may.*",), ("*",))}
    world = World(permissions=Permissions(rules))
    stranger = connected(world)
    stranger.attach(0, node(None))
    assert attach_answer(stranger.told())[6] is not None
    for number, to in enumerate(("may.one", "may.two", "must-not", "$dtx", None, "topic://may.x")):
        properties = encode(Described(Ulong(PROPERTIES), [None, None, to]))
        stranger.transfer(0, number, properties + value_message(encode("x")))

    told = stranger.told()
    said = [(int(fields[1]), fields[4]) for _, code, fields in told if code == DISPOSITION]
    refused = {number: outcome.value[0].value[0] for number, outcome in said if outcome.value}
    assert refused == {
        2: "amqp:unauthorized-access",
        3: "amqp:not-found",
        4: "amqp:precondition-failed",
        5: "amqp:unauthorized-access",
    }
    assert not closed_with(told, DETACH), "other messages may go elsewhere"
    queues = world.container.resource.queues
    assert (queues["may.one"].depth, queues["may.two"].depth) == (1, 1)


@pytest.mark.parametrize("code", [DATA, SEQUENCE])
def test_a_link_without_an_address_relays_bodies_of_several_sections(world: World, code: int) -> None:
    """What matters stands in front of the body, and only that is looked at."""
    stranger = connected(world)
    stranger.attach(0, node(None))
    stranger.told()
    value: Value = b"part" if code == DATA else [Uint(1), Uint(2)]
    body = encode(Described(Ulong(code), value)) * 3 + encode(Described(Ulong(FOOTER), {}))
    octets = encode(Described(Ulong(PROPERTIES), [None, None, "parts"])) + body
    stranger.transfer(0, 0, octets)
    (said,) = [fields for _, which, fields in stranger.told() if which == DISPOSITION]
    assert said[4].descriptor == 0x24
    (entry,) = world.queue("parts")
    assert world.container.resource.payloads.get(entry) == octets
