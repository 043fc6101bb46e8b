"""The messaging chapter of AMQP 1.0, sentence by sentence, at a broker with its queues.

`docs/amqp-endpoint.md` has the table; a docstring here quotes the sentences."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Receiver, ulong
from proton import Described as ProtonDescribed

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.messages import read_header, value_message
from dtx.amqp.values import Array, Described, Map, Symbol, Ubyte, Uint, Ulong, Value
from dtx.broker.endpoint import outgoing_link
from dtx.broker.queues.selector import Selector
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.addresses import DEPTH
from dtx.protocol.replies import MODIFIED, RELEASED, TRANSACTIONAL
from tests.dtx.broker.peer import Peer, World, closed, condition_of, filled, flow, frame, say_state
from tests.dtx.broker.strangers import (
    ATTACH,
    DETACH,
    DISPOSITION,
    TRANSFER,
    attach_answer,
    closed_with,
    connected,
    consumer,
    message,
    received,
    said,
    selecting,
    source,
    terminus,
)

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
SECTIONS = {
    PROPERTIES: ["id", b"user", "to", "subject", "reply", None, Symbol("text/plain")],
    APPLICATION: {"a": Uint(1), "b": None},
    DATA: b"data",
    SEQUENCE: [Uint(1), "two"],
    VALUE: "value",
    FOOTER: {Symbol("x-sum"): Ulong(7)},
}


def section(code: int, value: Any) -> bytes:
    return encode(Described(Ulong(code), value))


def numbered(number: int) -> bytes:
    """A message whose body is a number."""
    return value_message(encode(Uint(number)))


def posted(*messages: bytes, settings: Settings | None = None) -> tuple[World, Peer]:
    """A world with these messages in q."""
    world, peer = filled(settings=settings)
    sender = peer.sender("q")
    for octets in messages:
        peer.send_octets(sender, octets, peer.name("m"), settled=True)
        world.pump()
    return world, peer


def had(receiver: Receiver) -> tuple[Delivery, bytes]:
    """The next delivery that has come, and its octets."""
    delivery = receiver.current
    assert delivery is not None
    assert delivery.readable
    octets = receiver.recv(delivery.pending) or b""
    receiver.advance()
    return delivery, bytes(octets)


def modify(delivery: Delivery, *, failed: bool = False, undeliverable: bool = False, settle: bool = True) -> None:
    """Gives a delivery back."""
    delivery.local.failed = failed
    delivery.local.undeliverable = undeliverable
    delivery.update(Delivery.MODIFIED)
    if settle:
        delivery.settle()


# -- 3.2 messages
@pytest.mark.parametrize("body", [DATA, SEQUENCE, VALUE])
@pytest.mark.parametrize("omitted", [None, PROPERTIES, APPLICATION, FOOTER])
@pytest.mark.parametrize("again", [False, True])
def test_the_bare_message_stays_as_it_is(body: int, omitted: int | None, *, again: bool) -> None:
    """If a section of the bare message is omitted, one MUST NOT be inserted by an intermediary.

    The exact encoding of sections of the bare message MUST NOT be modified.

    The properties section is part of the bare message; therefore, if retransmitted by an intermediary, it MUST remain
    unaltered."""
    codes = [code for code in (PROPERTIES, APPLICATION, body, FOOTER) if code != omitted]
    bare = b"".join(section(code, SECTIONS[code]) for code in codes)
    # An encoding that nobody here would choose: a wide descriptor, and a wide list.
    wide = b"\x00\x80" + bytes(7) + b"\x73\xd0" + (8).to_bytes(4, "big") + (1).to_bytes(4, "big") + b"\xa1\x02id"
    for octets in (bare, wide + section(VALUE, "x")):
        world, peer = posted(section(HEADER, [True, None, Uint(60_000)]) + octets)
        receiver = peer.receiver("q", 1)
        delivery, came = had(receiver)
        if again:  # what changes with a redelivery is the header
            modify(delivery, failed=True)
            world.more(receiver, 1)
            came = had(receiver)[1]
            assert read_header(came).delivery_count == 1
        assert came[read_header(came).end :] == octets


def test_a_message_without_a_header_has_the_defaults() -> None:
    """If the header section is omitted the receiver MUST assume the appropriate default values (or the meaning implied
    by no value being set) for the fields within the header unless other target or node specific defaults have
    otherwise been set."""
    plain = value_message(encode("plain"))
    _, peer = posted(plain)
    assert had(peer.receiver("q", 1))[1] == plain
    header = read_header(plain)
    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (False, 4, None, 0)
    world, peer = posted(plain, settings=Settings(queue_defaults=QueueSettings(ttl_ms=5000)))  # a node's default
    world.pass_time(6)
    assert peer.drained("q") == []


@pytest.mark.parametrize("durable", [None, False, True])
def test_messages_are_not_lost_with_the_broker(durable: bool | None) -> None:
    """Durable messages MUST NOT be lost even if an intermediary is unexpectedly terminated and restarted."""
    world, _ = posted(section(HEADER, [durable]) + value_message(encode("kept")))
    _, octets = had(world.crash().connect().receiver("q", 1))
    assert (read_header(octets).durable, octets[read_header(octets).end :]) == (
        durable is True,
        value_message(encode("kept")),
    )


def test_a_dynamic_node_says_that_it_ends_with_its_link(world: World) -> None:
    """A target which is not capable of fulfilling this guarantee MUST NOT accept messages where the durable header is
    set to true: if the source allows the rejected outcome then the message SHOULD be rejected with the
    precondition-failed error, otherwise the link MUST be detached by the receiver with the same error. Every queue is
    capable; a dynamic node has no restart to outlive, as its lifetime-policy says."""
    _, answer = consumer(world, None, dynamic=True)
    assert answer[5] == {Symbol("lifetime-policy"): Described(Ulong(0x2B), [])}
    peer = world.connect()
    octets = section(HEADER, [True]) + value_message(encode("response"))
    delivery = peer.send_octets(peer.sender(str(answer[0])), octets, "t")
    world.pump()
    assert delivery.remote_state == Delivery.ACCEPTED
    assert str(answer[0]) not in world.crash().container.resource.queues


def test_every_priority_is_the_same() -> None:
    """An AMQP intermediary implementing distinct priority levels MUST do so in the following manner: this one
    implements none, so that n is 1.

    If n distinct priorities are implemented and n is less than 10 -- priorities 0 to (5 - ceiling(n/2)) MUST be treated
    equivalently and MUST be the lowest effective priority.

    The priorities (4 + floor(n/2)) and above MUST be treated equivalently and MUST be the highest effective priority.

    The priorities (5 - ceiling(n/2)) to (4 + floor(n/2)) inclusive MUST be treated as distinct priorities.

    If n distinct priorities are implemented and n is 10 or greater -- priorities 0 to (n - 1) MUST be distinct, and
    priorities n and above MUST be equivalent to priority (n - 1)."""
    order = [4, 0, 9, 5, 200, 1, 8, 2, 3, 255, 6, 7, 10]
    world, peer = posted(*[section(HEADER, [True, Ubyte(one)]) + numbered(one) for one in order])
    receiver = peer.receiver("q", 100)
    for one in order:
        delivery, octets = had(receiver)
        assert read_header(octets).priority == one
        modify(delivery, failed=True)
    world.more(receiver, 100)
    for one in order:  # the header that is written anew has what the first one had
        header = read_header(had(receiver)[1])
        assert (header.durable, header.priority, header.delivery_count) == (True, one, 1)


def test_annotations_are_passed_on() -> None:
    """Intermediaries MUST propagate the annotations unless the annotations are explicitly augmented or modified (e.g.,
    by the use of the modified outcome).

    Keys beginning with "x-opt-" MUST be ignored if not understood.

    On receiving an annotation key which is not understood, and which does not begin with "x-opt", the receiving AMQP
    container MUST detach the link with a not-implemented error: the annotations are for who consumes the message, and
    are passed on unread."""
    octets = section(ANNOTATIONS, {Symbol("x-opt-a"): "a", Symbol("x-b"): Uint(1), Ulong(7): [None]})
    octets += value_message(encode("x"))
    world, peer = posted()
    sender = peer.sender("q")
    delivery = peer.send_octets(sender, octets, "t")
    world.pump()
    assert (delivery.remote_state, closed(sender)) == (Delivery.ACCEPTED, False)
    receiver = peer.receiver("q", 1)
    for count in range(3):
        delivery, came = had(receiver)
        assert came[read_header(came).end :] == octets
        assert read_header(came).delivery_count == count
        modify(delivery, failed=True)
        world.more(receiver, 1)


def test_nobody_is_told_to_be_the_first_to_acquire_a_message() -> None:
    """3.2.1: a header says first-acquirer only of a message that no other link has acquired; ours never do."""
    _, peer = posted(section(HEADER, [None, None, None, True]) + numbered(0))
    for _ in range(2):
        receiver = peer.receiver("q", 1)
        delivery, came = had(receiver)
        assert came == numbered(0)
        peer.settle(delivery, Delivery.RELEASED)
        receiver.close()


# -- 3.4 delivery states
def test_no_delivery_is_sent_as_received() -> None:
    """The sender MUST NOT send the received state on transfer or disposition performatives except on the first transfer
    performative on a resumed delivery."""
    world, _ = posted(*[numbered(one) for one in range(3)])
    stranger, _ = consumer(world, credit=3)
    for number, state in enumerate((0x23, 0x24, 0x26)):
        said = Described(Ulong(state), [Uint(0), Ulong(0)] if state == 0x23 else [])
        stranger.say(frame(DISPOSITION, [True, Uint(number), None, False, said]))
    told = stranger.told()
    states = [fields[4].descriptor for _, code, fields in told if code == DISPOSITION]
    assert states == [Ulong(0x24), Ulong(0x26)]
    assert {(*fields, None, None, None)[7] for _, code, fields in told if code == TRANSFER} == {None}


def test_a_terminal_outcome_stays() -> None:
    """Once the sender has arrived at a terminal outcome it MUST NOT change."""
    world, peer = posted(numbered(0))
    delivery, _ = had(peer.receiver("q", 1))
    delivery.update(Delivery.ACCEPTED)
    peer.exchange()
    peer.settle(delivery, Delivery.RELEASED)
    assert peer.drained("q") == []
    assert world.queue().depth == 0


def test_a_message_that_was_given_back_is_nobody_elses_to_accept() -> None:
    """Once the sender has arrived at a terminal outcome it MUST NOT change."""
    world, peer = posted(numbered(0))
    other = world.connect()
    receiver = peer.receiver("q", 1)
    delivery, _ = had(receiver)
    taking = other.receiver("q", 1)
    delivery.update(Delivery.RELEASED)
    peer.exchange()
    other.exchange()

    assert had(taking)[1] == numbered(0)
    delivery.update(Delivery.ACCEPTED)
    delivery.settle()
    peer.exchange()
    world.pump()
    queue = world.queue()
    assert (queue.depth, queue.counters.held) == (1, 1)
    other.vanish()
    assert peer.drained("q") == [0]


def test_a_message_that_is_released_is_unchanged() -> None:
    """The message is unchanged at the node (i.e., the delivery-count of the header of the released message MUST NOT be
    incremented)."""
    octets = value_message(encode("x"))
    world, peer = posted(octets)
    receiver = peer.receiver("q", 1)
    for _ in range(3):
        delivery, came = had(receiver)
        assert came == octets
        delivery.update(Delivery.RELEASED)
        delivery.settle()
        world.more(receiver, 1)


@pytest.mark.parametrize("failed", [False, True])
def test_what_failed_is_counted(*, failed: bool) -> None:
    """If the delivery-failed flag is set, any messages modified MUST have their delivery-count incremented."""
    world, peer = posted(value_message(encode("x")))
    receiver = peer.receiver("q", 1)
    for count in range(3):
        delivery, came = had(receiver)
        assert read_header(came).delivery_count == (count if failed else 0)
        modify(delivery, failed=failed)
        world.more(receiver, 1)
    other = world.crash().connect()
    assert read_header(had(other.receiver("q", 1))[1]).delivery_count >= (3 if failed else 0)


NO_DEAD_LETTERS = Settings(queue_defaults=QueueSettings(dead_letter=""))


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("how", ["all", "selecting", "dynamic"])
def test_what_is_undeliverable_here_does_not_come_again(how: str, *, settle: bool) -> None:
    """If the undeliverable-here is set, then any messages released MUST NOT be redelivered to the modifying link
    endpoint."""
    world = World(NO_DEAD_LETTERS)
    peer = world.connect()
    stranger = connected(world)
    selector = selecting("n < 9")
    asked = source(None, dynamic=True) if how == "dynamic" else source(filters=selector if how == "selecting" else None)
    stranger.attach(0, source=asked, receiver=True)
    address = str(terminus(attach_answer(stranger.told())[5])[0])
    sender = peer.sender(address)
    for number in range(3):
        peer.send_octets(sender, message(f"m{number}", n=Uint(number)), f"t{number}", settled=True)
    world.pump()
    stranger.say(flow(0, 0, 2, None))
    assert received(stranger) == ["m0", "m1"]
    said = Described(Ulong(0x27), [False, True])
    stranger.say(frame(DISPOSITION, [True, Uint(0), None, settle, said]))
    stranger.say(flow(0, 2, 5, None))
    world.pump()
    stranger.listen()
    assert received(stranger) == ["m2"]
    assert world.queue(address).available == 1
    if how == "dynamic":
        return

    other = peer.receiver(address, 5)  # it may have what the first one can't handle
    assert [had(other)[1][-2:]] == [b"m0"]
    world.close(other)
    stranger.listen()
    assert received(stranger) == []
    stranger.leave()
    world.pump()
    assert len(peer.bodies(peer.receiver(address, 5))) == 3


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize("last", ["undeliverable", "released"])
def test_what_a_transaction_says_is_undeliverable_here_does_not_come_again(last: str, *, settle: bool) -> None:
    """If the undeliverable-here is set, then any messages released MUST NOT be redelivered to the modifying link
    endpoint: with the outcome that the transaction applies."""
    world, peer = posted(numbered(0), settings=NO_DEAD_LETTERS)
    control, receiver = peer.coordinator(), peer.receiver("q", 1)
    delivery, _ = had(receiver)
    txn_id = control.declare()
    say_state(delivery, TRANSACTIONAL, [txn_id, ProtonDescribed(ulong(MODIFIED), [False, True])])
    peer.exchange()
    if last == "released":
        peer.retire(delivery, txn_id, RELEASED)
    if settle:
        delivery.settle()
    world.more(receiver, 1)
    assert receiver.current is None
    control.discharge(txn_id)
    assert world.queue().available == (last == "undeliverable")
    assert (receiver.current is None) == (last == "undeliverable")


def test_what_is_undeliverable_here_hinders_nobody() -> None:
    """If the undeliverable-here is set, then any messages released MUST NOT be redelivered to the modifying link
    endpoint: others get it in its place, and in turn."""
    world, peer = posted(*[numbered(one) for one in range(4)], settings=NO_DEAD_LETTERS)
    receiver = peer.receiver("q", 2)
    for _ in range(2):
        modify(had(receiver)[0], undeliverable=True)
    world.pump()
    other = world.connect()
    taking = other.receiver("q", 10)
    assert other.bodies(taking) == [0, 1, 2, 3]
    world.close(taking)
    peer.post(peer.sender("q"), "late")
    world.more(receiver, 10)
    assert peer.bodies(receiver) == ["late"]


@pytest.mark.pure  # replaces a constant of ours
def test_a_link_says_of_many_messages_that_they_are_undeliverable(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the undeliverable-here is set, then any messages released MUST NOT be redelivered to the modifying link
    endpoint: there may be so many of them, and no more. Those that are gone don't count."""
    monkeypatch.setattr(outgoing_link, "UNDELIVERABLE", 3)
    world, peer = posted(*[numbered(one) for one in range(9)], settings=NO_DEAD_LETTERS)
    receiver = peer.receiver("q", 9)
    for _ in range(2):
        modify(had(receiver)[0], undeliverable=True)
    world.pump()
    other = world.connect()
    assert other.bodies(other.receiver("q", 2)) == [0, 1]

    for _ in range(2):
        modify(had(receiver)[0], undeliverable=True)
    world.pump()
    assert not closed(receiver)
    modify(had(receiver)[0], undeliverable=True)
    world.pump()
    assert condition_of(receiver).condition == Condition.RESOURCE_LIMIT
    assert other.drained("q") == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("unsettled", [{b"tag": Described(Ulong(0x24), [])}, {b"tag": None}, {}])
@pytest.mark.parametrize("incomplete", [None, True])
@pytest.mark.parametrize("receiver", [True, False])
def test_nothing_is_resumed(unsettled: dict[bytes, Any], *, incomplete: bool | None, receiver: bool) -> None:
    """3.4.6, 2.6.13: an attach with an unsettled map is refused, with not-implemented.

    To preserve "exactly once" or "at least once" delivery guarantees, the sender …
    To do this the sender MUST send a resuming transfer to associate …
    To preserve "exactly once" or "at least once" delivery guarantees, the sender …
    Unlike the case with delivery-tag 1 the resent delivery MUST be sent …
    As such, if a sender is capable of resuming a delivery (even …
    For delivery-tag 11 it MUST be assumed that the sender spontaneously attained …
    The sender thus MUST restate this as the terminal outcome, and the …
    Deliveries in this category MUST be ignored by the sender, and MUST …
    Deliveries in this category MUST be resumed by the sender.
    In this case the two endpoints MUST reduce the levels of unsettled …
    Upon completion of this reduction of state, the two parties MUST suspend …
    The local and remote delivery states for a given delivery-tag MUST be …
    On receipt of an incomplete unsettled map a sending endpoint MUST NOT …
    Note that if this flag is set to true then the endpoints …"""
    world, _ = posted(value_message(encode("x")))
    stranger = connected(world)
    target = Described(Ulong(0x29), ["q"])
    count = None if receiver else Uint(0)
    stranger.say(
        frame(ATTACH, ["resumed", Uint(0), receiver, None, None, source(), target, unsettled, incomplete, count])
    )
    told = stranger.told()
    if not unsettled and incomplete is None:
        assert attach_answer(told)[7] is None  # there is nothing to resume, and nothing is: a new link
        return
    assert closed_with(told, DETACH) == "amqp:not-implemented"
    assert attach_answer(told)[5 if receiver else 6] is None
    assert world.queue().available == 1


def test_what_was_not_settled_is_sent_anew() -> None:
    """To preserve "exactly once" or "at least once" delivery guarantees, the sender MUST resend the message; however,
    the delivery is not being resumed (since the receiver does not remember the delivery tag) so transfers MUST NOT have
    the resume flag set to true."""
    world, _ = posted(message("x"))
    stranger = connected(world)
    for count in range(2):
        stranger.attach(0, source=source(), receiver=True)
        stranger.say(flow(0, 0, 1, None))
        (fields,) = said(stranger.told(), TRANSFER)
        assert len(fields) <= 8, "no resume flag"
        stranger.say(frame(DETACH, [Uint(0), bool(count)]))
        stranger.told()
    assert world.queue().available == 1


# -- 3.5 sources and targets
def test_a_filter_answers_the_same_as_long_as_the_message_is_the_same() -> None:
    """A filter MUST NOT change its return value for a message unless the state or annotations on the message at the
    node change (e.g., through an updated delivery state)."""
    selector = Selector.parse("n > 1 AND JMSDeliveryMode = 'NON_PERSISTENT'")
    octets = [message(f"m{number}", n=Uint(number)) for number in range(4)]
    for _ in range(3):
        for order in (octets, octets[::-1]):
            assert [one for one in order if selector.matches(one, delivery_count=0)] == [
                one for one in order if one in octets[2:]
            ]
    counted = Selector.parse("JMSXDeliveryCount > 1")
    assert [counted.matches(octets[0], delivery_count=count) for count in (0, 1, 2)] == [False, True, True]


def test_what_is_accepted_is_not_sent_again() -> None:
    """A source MUST NOT resend a message which has previously been successfully transferred from the source, i.e.,
    reached an ACCEPTED delivery state at the receiver."""
    world, peer = posted(*[numbered(one) for one in range(3)])
    receiver = peer.receiver("q", 10)
    for outcome in (Delivery.ACCEPTED, Delivery.RELEASED, Delivery.ACCEPTED):
        delivery, _ = had(receiver)
        delivery.update(outcome)
    world.pump()
    delivery, octets = had(receiver)
    assert octets == numbered(1)
    delivery.update(Delivery.ACCEPTED)
    world.pump()
    assert receiver.current is None
    assert peer.bodies(peer.receiver("q", 10)) == []
    assert world.crash().connect().drained("q") == []


@pytest.mark.parametrize("settled", [False, True])
def test_a_browser_sees_every_message_once(*, settled: bool) -> None:
    """For a copy link, state MUST be retained at the source to ensure compliance."""
    world, peer = posted(*[numbered(one) for one in range(3)])
    browser = peer.receiver("q", 100, browse=True, settled=settled)
    assert peer.bodies(browser) == [0, 1, 2]
    other = world.connect()
    receiver = other.receiver("q", 3)
    for outcome in (Delivery.RELEASED, Delivery.MODIFIED, Delivery.RELEASED):
        delivery, _ = had(receiver)
        delivery.update(outcome)
        delivery.settle()
    world.close(receiver)
    assert world.queue().available == 3
    assert peer.bodies(browser) == [], "what comes back was seen"
    peer.post(peer.sender("q"), 3)
    assert peer.bodies(browser) == [3]


@pytest.mark.parametrize("receiver", [True, False])
@pytest.mark.parametrize("asked", [None, "mine"])
def test_a_dynamic_node_has_an_address_of_ours(world: World, asked: str | None, *, receiver: bool) -> None:
    """The address of the source MUST NOT be set when sent on an attach frame sent by the receiving …

    The address of the source MUST be set when sent on an attach frame sent by the sending link …
    In this case the address field MUST NOT be set.
    The address of the target MUST NOT be set when sent on an attach frame sent by the sending …
    The address of the source MUST be set when sent on an attach frame sent by the receiving link …
    If the dynamic field is not set to true this field MUST be left unset.
    The value of this entry MUST be of a type which provides the lifetime-policy archetype."""
    policy: Map = {Symbol("lifetime-policy"): Described(Ulong(0x2B), [])}
    stranger = connected(world)
    for handle, dynamic in enumerate((True, None)):
        fields: list[Value] = [asked if dynamic else "q", None, None, None, dynamic, policy if dynamic else None]
        terminus_asked = {"source" if receiver else "target": Described(Ulong(0x28 if receiver else 0x29), fields)}
        stranger.attach(handle, **terminus_asked, receiver=receiver)
        answer = terminus(attach_answer(stranger.told())[5 if receiver else 6])
        if dynamic:
            assert answer[0] in world.container.resource.queues
            assert answer[0] not in {"mine", ""}
            assert answer[4] is True
            assert answer[5] == {Symbol("lifetime-policy"): Described(Ulong(0x2B), [])}, "what it really has"
        else:
            assert (answer[0], bool(answer[4]), answer[5]) == ("q", False, None)
    assert "mine" not in world.container.resource.queues


@pytest.mark.parametrize(
    ("asked", "told"),
    [(None, "move"), ("move", "move"), ("copy", "copy"), ("something", "move")],
)
def test_the_distribution_mode_is_told(world: World, asked: str | None, told: str) -> None:
    """This field MUST be set by the sending end of the link if the endpoint supports more than one
    distribution-mode."""
    stranger, answer = consumer(world, mode=asked and Symbol(asked))
    assert answer[6] == told
    stranger.attach(1, source=source(None, dynamic=True, mode=asked and Symbol(asked)), receiver=True)
    assert terminus(attach_answer(stranger.told())[5])[6] == "move", "a dynamic node can't be browsed"
    stranger.attach(2, source=source(f"{DEPTH}q", mode=asked and Symbol(asked)), receiver=True)
    assert terminus(attach_answer(stranger.told())[5])[6] is None, "it has no messages, and one mode"


@pytest.mark.parametrize(
    ("default", "condition"),
    [
        (Described(Ulong(0x26), []), ""),
        (Described(Symbol("amqp:modified:list"), [True]), ""),
        (Described(Ulong(0x23), [Uint(0), Ulong(0)]), "amqp:not-implemented"),
        (Described(Ulong(0x34), [b"txn"]), "amqp:not-implemented"),
        (Described(Ulong(0x99), []), "amqp:not-implemented"),
        (Described(Ulong(0x27), [Uint(1)]), "amqp:invalid-field"),
    ],
)
def test_a_default_outcome_is_an_outcome(world: World, default: Described, condition: str) -> None:
    """The value MUST be a valid outcome (e.g., released or rejected)."""
    stranger = connected(world)
    stranger.attach(0, source=source(default_outcome=default), receiver=True)
    told = stranger.told()
    assert closed_with(told, DETACH) == condition
    if not condition:
        assert terminus(attach_answer(told)[5])[8] == default


ACCEPTED, MODIFIED_TOO = Symbol("amqp:accepted:list"), Symbol("amqp:modified:list")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, []),
        (ACCEPTED, [ACCEPTED]),
        (Array([ACCEPTED, MODIFIED_TOO]), [ACCEPTED, MODIFIED_TOO]),
        (Array([Symbol("amqp:received:list"), Symbol("amqp:released:list"), Symbol("x")]), ["amqp:released:list"]),
        (Array([Symbol("amqp:transactional-state:list")]), []),
    ],
)
def test_outcomes_that_are_told_can_be_had(asked: Any, told: list[str]) -> None:
    """This field MAY be empty, indicating that the default-outcome will be assumed for all message transfers (if the
    default-outcome is not set, and no outcomes are provided, then the accepted outcome MUST be supported by the
    source).

    When present, the values MUST be a symbolic descriptor of a valid outcome, e.g., "amqp:accepted:list"."""
    world, _ = posted(message("x"))
    stranger, answer = consumer(world, outcomes=asked)
    answer = answer[9]
    names = [] if answer is None else answer if isinstance(answer, Array) else [answer]
    assert list(map(str, names)) == told
    stranger.say(flow(0, 0, 1, None))
    stranger.say(frame(DISPOSITION, [True, Uint(0), None, False, Described(Ulong(0x24), [])]))
    (fields,) = said(stranger.told(), DISPOSITION)
    assert (fields[3], fields[4].descriptor) == (True, Ulong(0x24))
    assert world.queue().depth == 0


@pytest.mark.parametrize(
    ("filters", "echoed"),
    [
        ({Symbol("a"): None}, None),
        ({Symbol("a"): Described(Symbol("apache.org:selector-filter:string"), "n = 1")}, "same"),
        ({"a": Described(Symbol("somebody:filter"), "n = 1")}, None),
        ({Symbol("a"): "n = 1"}, None),
    ],
)
def test_what_is_no_filter_is_not_in_place(world: World, filters: dict[Any, Any], echoed: str | None) -> None:
    """Every key in the map MUST be of type symbol, every value MUST be either null or of a described type which
    provides the archetype filter."""
    _, answer = consumer(world, filters=filters)
    assert answer[7] == (filters if echoed else None)


# -- 2.6.12: what the chapter before it asks of a sender
@pytest.mark.parametrize("browse", [False, True])
def test_the_tags_of_deliveries_differ(*, browse: bool) -> None:
    """The delivery-tag MUST be unique amongst all deliveries that could be considered unsettled by either end of the
    link."""
    world, peer = posted(*[numbered(one) for one in range(20)])
    receiver = peer.receiver("q", 20, browse=browse)
    deliveries = [had(receiver)[0] for _ in range(20)]
    assert len({delivery.tag for delivery in deliveries}) == 20
    deliveries[0].update(Delivery.RELEASED)
    deliveries[0].settle()
    world.more(receiver, 1)
    if not browse:
        assert had(receiver)[0].tag not in {delivery.tag for delivery in deliveries}
