"""What is a message at the door: the sections of format 0, in their order, and messages of other formats as they come.

The sentences are those of the messaging chapter, 3.2, and of the transport chapter, 2.7.5 and 2.8.11."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import decode_from
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.queues.entry import Entry
from dtx.broker.settings import Settings
from dtx.store.contract import CHUNK
from tests.dtx.broker.peer import Peer, World, flow, frame, manage, refused_with
from tests.dtx.broker.strangers import (
    DETACH,
    DISPOSITION,
    TRANSFER,
    Stranger,
    connected,
    node,
    said,
    selecting,
    source,
)

VALUES: dict[int, Any] = {
    0x70: [True],
    0x71: {Symbol("x-opt-d"): Uint(1)},
    0x72: {Symbol("x-opt-m"): Uint(1)},
    0x73: ["id"],
    0x74: {"a": Uint(1)},
    0x75: b"data",
    0x76: [Uint(1)],
    0x77: "value",
    0x78: {Symbol("x-sum"): Uint(1)},
}


def sections(*codes: int) -> bytes:
    """A message with these sections."""
    return b"".join(encode(Described(Ulong(code), VALUES[code])) for code in codes)


def posted(peer: Peer, octets: bytes) -> Delivery:
    """The delivery of a message to q, with its outcome."""
    delivery = peer.send_octets(peer.sender("q"), octets, peer.name("m"))
    peer.world.pump()
    return delivery


IN_FRONT = (0x70, 0x71, 0x72, 0x73, 0x74)


@pytest.mark.parametrize(
    "codes",
    [
        (0x77,),
        (*IN_FRONT, 0x75, 0x75, 0x75, 0x78),
        (*IN_FRONT, 0x76, 0x76, 0x78),
        (*IN_FRONT, 0x77, 0x78),
        (0x70, 0x75),
        (0x72, 0x76, 0x78),
        (0x74, 0x77),
    ],
)
def test_a_message_has_its_sections_in_their_order(peer: Peer, codes: tuple[int, ...]) -> None:
    """The body consists of one of the following three choices: one or more data sections, one or more amqp-sequence
    sections, or a single amqp-value section."""
    assert posted(peer, sections(*codes)).remote_state == Delivery.ACCEPTED


@pytest.mark.parametrize("codes", [(0x70, 0x73), (0x73,), (0x70, 0x73, 0x74), (0x74,)])
def test_properties_need_no_body(peer: Peer, codes: tuple[int, ...]) -> None:
    """Qpid JMS sends a `Message` so, and proton a message whose body is None: refused, they would be lost, because both
    send without waiting for the outcome."""
    assert posted(peer, sections(*codes)).remote_state == Delivery.ACCEPTED


WRONG = {
    "no body behind the header": sections(0x70),
    "no body behind the annotations": sections(0x70, 0x71, 0x72),
    "nothing": b"",
    "no body before the footer": sections(0x73, 0x78),
    "two bodies": sections(0x75, 0x77),
    "two values": sections(0x77, 0x77),
    "data behind a sequence": sections(0x76, 0x75),
    "something behind the footer": sections(0x77, 0x78, 0x77),
    "an octet behind the last section": sections(0x77) + b"\0",
    "octets behind the last section": sections(0x75) + b"trailing",
    "cut off": sections(0x73, 0x75)[:-1],
    "an unknown section": encode(Described(Ulong(0x79), "x")) + sections(0x77),
    **{f"{one:#x} behind {other:#x}": sections(other, one, 0x77) for one, other in pairwise(IN_FRONT)},
    **{f"{one:#x} twice": sections(one, one, 0x77) for one in IN_FRONT},
    **{f"{one:#x} behind the body": sections(0x77, one) for one in IN_FRONT},
}


@pytest.mark.parametrize("why", WRONG)
def test_what_is_no_message_of_format_0_is_refused(peer: Peer, why: str) -> None:
    """2.8.11, 3.2.16: the format 0 is that of the messaging chapter: sections in their order, each at most once but for
    the body, which has to be there behind a header or annotations alone."""
    assert refused_with(posted(peer, WRONG[why])).condition == Condition.DECODE_ERROR
    assert peer.drained("q") == []


@pytest.mark.parametrize("octets", [*WRONG.values(), b"\xff"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_is_stored_already_stays_readable(world: World, octets: bytes, *, restart: bool) -> None:
    """Earlier versions took such messages: they are sent as they are."""
    peer = world.connect()
    peer.sender("q")
    resource = world.container.resource
    resource.post(Entry(world.queue(), resource.number(), len(octets), 0, octets), None)
    resource.settle()
    world.pump()
    peer = world.crash().connect() if restart else peer
    receiver = peer.receiver("q", 1)
    delivery = receiver.current
    assert delivery is not None
    assert (receiver.recv(delivery.pending) or b"") == octets


# -- message formats
FORMAT = 0x0102_0304
OCTETS = b"\xff any octets at all"


def transfer(stranger: Stranger, octets: bytes, *, more: bool = False, number: int = 1) -> None:
    """Sends a message of another format, in one or two transfers."""
    fields = [Uint(0), Uint(number), number.to_bytes(4, "big"), Uint(FORMAT), False, more]
    stranger.say(frame(TRANSFER, fields, octets))


def came(stranger: Stranger) -> tuple[int, bytes]:
    """The message-format and the octets of the one message that came."""
    stranger.listen()
    heard, stranger.heard = stranger.heard, b""
    octets, at, found = b"", 0, None
    while at < len(heard):
        size = int.from_bytes(heard[at : at + 4], "big")
        one = heard[at : at + size]
        if one[10:11] == b"\x14":
            performative, start = decode_from_frame(one)
            found = performative[3] if performative[3] is not None else found
            octets += one[start:]
        at += size
    assert found is not None
    return int(found), octets


def decode_from_frame(one: bytes) -> tuple[list[Any], int]:
    """The fields of a performative, and where it ends."""
    value, end = decode_from(one, 8)
    assert isinstance(value, Described)
    fields: Any = value.value
    return [*fields, *[None] * (11 - len(fields))], end


@pytest.mark.parametrize("how", ["whole", "in parts", "large", "restart", "browse", "again", "select"])
def test_the_message_format_is_kept_and_its_octets_are_not_looked_at(how: str) -> None:
    """This field MUST be specified for the first transfer of a multi-transfer message: the format in which a message is
    encoded, which the transport passes on."""
    world = World()
    stranger = connected(world)
    stranger.attach(0, node("q"))
    octets = OCTETS * (1 + 3 * CHUNK // len(OCTETS)) if how == "large" else OCTETS
    parts = [octets[at : at + 30_000] for at in range(0, len(octets), 30_000)] if how == "large" else [octets]
    parts = [octets[:5], octets[5:]] if how == "in parts" else parts
    for part in parts[:-1]:
        transfer(stranger, part, more=True)
    stranger.told()
    transfer(stranger, parts[-1])
    (disposition,) = said(stranger.told(), DISPOSITION)
    assert disposition[4].descriptor == 0x24
    if how == "restart":
        world = world.crash()

    if how == "again":  # a delivery-count would stand in a header, which the message does not have
        peer = world.connect()
        receiver = peer.receiver("q", 1)
        assert receiver.current is not None
        peer.fail(receiver)
    reader = connected(world)
    filters = selecting("a = 1") if how == "select" else None
    reader.attach(
        0, source=source("q", mode=Symbol("copy") if how == "browse" else None, filters=filters), receiver=True
    )
    reader.told()
    reader.say(flow(0, 0, 1, None))
    if how == "select":  # nothing is known of its properties
        assert not said(reader.told(), TRANSFER)
    else:
        assert came(reader) == (FORMAT, octets)


def test_management_tells_the_message_format(world: World, peer: Peer) -> None:
    """Who reads a message learns that its octets are no message of AMQP's."""
    stranger = connected(world)
    stranger.attach(0, node("q"))
    transfer(stranger, OCTETS)
    (one,) = manage(peer, operation="messages", queue="q")
    told = manage(peer, operation="read", queue="q", id=one["id"])
    assert (told["octets"], told["format"]) == (OCTETS, FORMAT)


def test_a_message_of_another_format_says_nothing_of_where_it_goes() -> None:
    """On an anonymous terminus it is refused: `to` is a field of format 0."""
    stranger = connected(World(Settings()))
    stranger.attach(0)
    stranger.told()
    transfer(stranger, OCTETS)
    told = stranger.told()
    (disposition,) = said(told, DISPOSITION)
    assert disposition[4].descriptor == 0x25
    assert not said(told, DETACH)
