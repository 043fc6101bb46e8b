"""These tests cover the layer in front of proton: it loses and changes no byte, it sees what proton hides, and
malformed bytes do no harm.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proton import Endpoint, Event, Message, Sender

from dtx.protocol.encoding import encode, encode_list
from dtx.protocol.frames import AMQP_HEADER, IncomingFrames, OutgoingFrames
from dtx.protocol.performatives import (
    DECODE_ERROR,
    FRAMING_ERROR,
    TRANSFER,
    AttachSeen,
    BeginSeen,
    ContinuationSeen,
    DetachSeen,
    EndSeen,
    FlowSeen,
    FrameError,
    Seen,
)
from dtx.protocol.values import Described, Symbol, Ulong
from tests.dtx.protocol.engines import Engine, answer, received

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtx.protocol.frames import Segment

LIMIT = 65536
TXN = b"\x00txn\xff"


def frame(body: bytes, channel: int = 0, *, doff: int = 2, kind: int = 0) -> bytes:
    extended = b"\xee" * (4 * doff - 8)
    return struct.pack(">IBBH", 8 + len(extended) + len(body), doff, kind, channel) + extended + body


def composite(code: int, items: list[bytes]) -> bytes:
    return b"\x00\x53" + bytes((code,)) + encode_list(items)


def joined(segments: Sequence[Segment]) -> bytes:
    return b"".join(data for data, _ in segments)


def seen(segments: Sequence[Segment]) -> list[Seen]:
    return [what for _, what in segments if what is not None]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in pairwise(edges)]


def conversation(sizes: Sequence[int], max_frame_size: int) -> bytes:
    """What a client sends: it opens, begins, attaches, and transfers messages of these sizes in a transaction."""
    client, server = Engine(server=False), Engine(server=True, max_frame_size=max_frame_size)
    client.connection.open()
    session = client.connection.session()
    session.open()
    sender = session.sender("to the queue")
    sender.open()
    sent = client.output()
    server.push(sent)
    answer(server)
    client.push(server.output())
    for number, size in enumerate(sizes):
        delivery = sender.delivery(f"tag {number}")
        delivery.local.data = [TXN]  # type: ignore[list-item]  # proton's annotation is wrong
        delivery.update(0x34)
        sender.stream(Message(body="x" * size).encode())
        sender.advance()
        while data := client.output():
            sent += data
            server.push(data)
            for kind, arrived in answer(server):
                if kind == Event.DELIVERY and arrived.readable:
                    received(arrived.link)
                    if not arrived.partial:
                        arrived.link.advance()
            client.push(server.output())
    sender.close()
    session.close()
    client.connection.close()
    return sent + client.output()


@given(
    st.lists(st.integers(0, 3000), max_size=6),
    st.sampled_from([512, 600, 2000, LIMIT]),
    st.lists(st.integers(0, 2**20), max_size=12),
)
def test_every_octet_passes_in_order_however_it_is_cut(sizes: list[int], max_frame: int, places: list[int]) -> None:
    sent = conversation(sizes, max_frame)
    incoming, outgoing = IncomingFrames(max_frame), OutgoingFrames()
    segments: list[Segment] = []
    passed = b""
    for piece in cut(sent, places):
        segments += incoming.feed(piece)
        assert incoming.kept <= max_frame
        passed += outgoing.feed(piece)
    assert joined(segments) == passed == sent
    assert incoming.kept == 0
    for data, what in segments:
        if what is not None:
            assert int.from_bytes(data[:4], "big") == len(data), "what is seen is one frame alone"
    in_one_go = IncomingFrames(max_frame).feed(sent)
    assert seen(in_one_go) == seen(segments)


def test_handles_are_told() -> None:
    told = seen(IncomingFrames(LIMIT).feed(conversation([10, 20], LIMIT)))
    assert told == [
        BeginSeen(0, None),
        AttachSeen(0, 0, "to the queue", receiver=False),
        DetachSeen(0, 0),
        EndSeen(0),
    ]


def test_a_message_in_one_frame_is_not_looked_at() -> None:
    segments = IncomingFrames(LIMIT).feed(conversation([10] * 50, LIMIT))
    assert len([data for data, what in segments if what is None]) == 3  # before, between and behind what is seen


def test_every_frame_that_continues_a_delivery_is_told_with_its_state() -> None:
    told = seen(IncomingFrames(512).feed(conversation([1000], 512)))
    states = [what for what in told if isinstance(what, ContinuationSeen)]
    assert len(states) >= 2
    assert all(what.state == Described(Ulong(0x34), [TXN]) and not what.aborted for what in states)
    assert [what.more for what in states] == [True] * (len(states) - 1) + [False]


class Pair:
    """A client with a receiving link to a server; the client's frames go through both layers."""

    def __init__(self) -> None:
        self.client, self.server = Engine(server=False), Engine(server=True)
        self.outgoing, self.incoming = OutgoingFrames(), IncomingFrames(LIMIT)
        self.client.connection.open()
        session = self.client.connection.session()
        session.open()
        self.receiver = session.receiver("from the queue")
        self.receiver.source.address = "queue"
        self.receiver.open()
        self.told: list[Seen] = []
        self.pump()
        sender = self.server.connection.link_head(Endpoint.REMOTE_ACTIVE)
        assert isinstance(sender, Sender)
        self.sender = sender

    def pump(self) -> None:
        while True:
            to_server, to_client = self.outgoing.feed(self.client.output()), self.server.output()
            if not to_server and not to_client:
                return
            for data, what in self.incoming.feed(to_server):
                if what is not None:
                    self.told.append(what)
                self.server.push(data)
                answer(self.server)
            self.client.push(to_client)

    def flows(self) -> list[Seen]:
        told, self.told = self.told, []
        return [what for what in told if isinstance(what, FlowSeen)]


def test_properties_of_a_flow_reach_the_other_side() -> None:
    pair = Pair()
    pair.receiver.flow(5)
    pair.pump()
    assert pair.flows() == []

    pair.outgoing.set_properties("from the queue", {"txn-id": TXN}, receiver=True)
    pair.receiver.flow(10)
    pair.pump()
    assert pair.flows() == [FlowSeen(0, 0, {"txn-id": TXN})]
    assert pair.sender.credit == 15
    pair.receiver.drain(0)
    pair.pump()
    assert pair.flows() == [FlowSeen(0, 0, {"txn-id": TXN})]
    assert pair.sender.drain_mode

    pair.outgoing.set_properties("from the queue", {}, receiver=True)
    pair.receiver.flow(1)
    pair.pump()
    assert pair.flows() == [FlowSeen(0, 0, {})], "that they have gone is told once"
    pair.receiver.flow(1)
    pair.pump()
    assert pair.flows() == []


def test_properties_belong_to_one_endpoint() -> None:
    pair = Pair()
    pair.outgoing.set_properties("another", {"txn-id": TXN}, receiver=True)
    pair.outgoing.set_properties("from the queue", {"txn-id": TXN}, receiver=False)
    pair.receiver.flow(1)
    pair.pump()
    assert pair.flows() == []


def test_properties_end_with_their_link() -> None:
    pair = Pair()
    pair.outgoing.set_properties("from the queue", {"txn-id": TXN}, receiver=True)
    session = pair.receiver.session
    pair.receiver.close()
    pair.pump()
    again = session.receiver("from the queue")
    again.open()
    again.flow(3)
    pair.pump()
    assert pair.flows() == []


def test_properties_end_with_their_session() -> None:
    pair = Pair()
    pair.outgoing.set_properties("from the queue", {"txn-id": TXN}, receiver=True)
    pair.receiver.session.close()
    pair.pump()
    session = pair.client.connection.session()
    session.open()
    again = session.receiver("from the queue")
    again.open()
    again.flow(3)
    pair.pump()
    assert pair.flows() == []


def test_properties_are_bounded() -> None:
    with pytest.raises(ValueError, match="at most 256"):
        OutgoingFrames().set_properties("link", {"txn-id": b"x" * 300}, receiver=True)


def test_messages_arrive_whole_through_segments() -> None:
    sizes = [0, 100, 5000, 70_000]
    sent = conversation(sizes, 1000)
    server, incoming = Engine(server=True, max_frame_size=1000), IncomingFrames(1000)
    bodies: list[int] = []
    octets = b""
    for piece in cut(sent, range(0, len(sent), 777)):
        for data, _ in incoming.feed(piece):
            server.push(data)
            for kind, delivery in answer(server):
                if kind == Event.DELIVERY and delivery.readable:
                    octets += received(delivery.link)
                    if not delivery.partial:
                        message = Message()
                        message.decode(octets)
                        octets = b""
                        delivery.link.advance()
                        bodies.append(len(str(message.body)))
            server.output()  # its session window goes on
    assert bodies == sizes


PROPERTIES = encode({Symbol("txn-id"): TXN})
FIELDS = [b"\x43"] * 4 + [b"\x52\x05"] + [b"\x40"] * 5 + [PROPERTIES]
LISTED = encode_list(FIELDS)


@pytest.mark.parametrize(
    "octets",
    [
        pytest.param(frame(b"\0\x53\x13" + LISTED, 3), id="as everybody writes it"),
        pytest.param(frame(b"\0\x53\x13" + LISTED, 3, doff=5), id="extended header"),
        pytest.param(frame(b"\0\x80" + (0x13).to_bytes(8, "big") + LISTED, 3), id="wide descriptor"),
        pytest.param(frame(b"\0" + encode(Symbol("amqp:flow:list")) + LISTED, 3), id="symbolic descriptor"),
        pytest.param(
            frame(b"\0\x53\x13\xd0" + (len(LISTED) + 1).to_bytes(4, "big") + b"\0\0\0\x0b" + LISTED[3:], 3),
            id="wide list",
        ),
    ],
)
def test_a_performative_is_known_in_every_encoding(octets: bytes) -> None:
    incoming = IncomingFrames(LIMIT)
    assert incoming.feed(AMQP_HEADER + octets) == [
        (AMQP_HEADER, None),
        (octets, FlowSeen(3, 5, {"txn-id": TXN})),
    ]


def transfer(*fields: bytes) -> bytes:
    return frame(composite(TRANSFER, [b"\x52\x07", b"\x43", b"\xa0\x01t", b"\x43", *fields]) + b"payload")


@pytest.mark.parametrize(
    ("last", "more"),
    [
        ((), False),
        ((b"\x42", b"\x40"), False),
        ((b"\x42", b"\x42"), False),
        ((b"\x40", b"\x56\x00"), False),
        ((b"\x42", b"\x41"), True),
        ((b"\x56\x00", b"\x56\x01"), True),
    ],
)
def test_more_is_known_in_every_encoding(last: tuple[bytes, ...], more: bool) -> None:
    incoming = IncomingFrames(LIMIT)
    told = seen(incoming.feed(AMQP_HEADER + transfer(*last) + transfer(b"\x42", b"\x42")))
    assert told == ([ContinuationSeen(0, 7, None, more=False, aborted=False)] if more else [])


def test_an_aborted_delivery_is_not_continued() -> None:
    more = transfer(b"\x42", b"\x41")
    aborted = transfer(b"\x42", b"\x41", b"\x40", b"\x40", b"\x42", b"\x41")
    told = seen(IncomingFrames(LIMIT).feed(AMQP_HEADER + more + aborted + transfer(b"\x42", b"\x42")))
    assert told == [ContinuationSeen(0, 7, None, more=True, aborted=True)]


def test_a_link_that_attaches_anew_continues_nothing() -> None:
    attach = frame(composite(0x12, [encode("name"), b"\x52\x07", b"\x42"]))
    told = seen(
        IncomingFrames(LIMIT).feed(AMQP_HEADER + transfer(b"\x42", b"\x41") + attach + transfer(b"\x42", b"\x42"))
    )
    assert told == [AttachSeen(0, 7, "name", receiver=False)]


@pytest.mark.parametrize(
    ("octets", "condition", "says"),
    [
        (b"HTTP/1.1", FRAMING_ERROR, "expected the header"),
        (b"AMQP\x03\x01\x00\x00", FRAMING_ERROR, "expected the header"),
        (AMQP_HEADER + b"\0\0\0\x07\x02\0\0\0", FRAMING_ERROR, "a frame of 7 octets"),
        (AMQP_HEADER + b"\0\0\0\0", FRAMING_ERROR, "a frame of 0 octets"),
        (AMQP_HEADER + b"\0\x01\0\x01", FRAMING_ERROR, "a frame of 65537 octets; 8 to 65536"),
        (AMQP_HEADER + b"\xff\xff\xff\xff\x02\0\0\0" + b"x" * 999, FRAMING_ERROR, "4294967295 octets"),
        (AMQP_HEADER + frame(b"", doff=2, kind=1), FRAMING_ERROR, "type 1"),
        (AMQP_HEADER + b"\0\0\0\x08\x01\0\0\0", FRAMING_ERROR, "body at 4"),
        (AMQP_HEADER + b"\0\0\0\x08\xff\0\0\0", FRAMING_ERROR, "body at 1020"),
        (AMQP_HEADER + frame(b"\x40"), DECODE_ERROR, "without a performative"),
        (AMQP_HEADER + frame(b"\0\xa3\xff"), DECODE_ERROR, "cut off"),
        (AMQP_HEADER + frame(b"\0\x53\x11\x40"), DECODE_ERROR, "performative 0x11 on channel 0: a list is expected"),
        (AMQP_HEADER + frame(composite(0x12, [b"\x43", b"\x43", b"\x42"])), DECODE_ERROR, "no str"),
        (AMQP_HEADER + frame(composite(0x16, [])), DECODE_ERROR, "field 0 is missing"),
        (AMQP_HEADER + frame(composite(0x16, [b"\x54\xff"])), DECODE_ERROR, "field 0 is no uint"),
    ],
)
def test_what_is_no_frame_is_refused_with_its_condition(octets: bytes, condition: str, says: str) -> None:
    with pytest.raises(FrameError, match=says) as error:
        IncomingFrames(LIMIT).feed(octets)
    assert error.value.condition == condition


def test_a_frame_that_is_too_large_is_refused_before_it_is_there() -> None:
    incoming = IncomingFrames(LIMIT)
    incoming.feed(AMQP_HEADER + b"\0\x01")
    with pytest.raises(FrameError, match="a frame of 65537 octets"):
        incoming.feed(b"\0\x01")


def test_an_empty_frame_is_not_held_back() -> None:
    """A heartbeat that waits for the next frame is none."""
    incoming = IncomingFrames(LIMIT)
    incoming.feed(AMQP_HEADER)
    assert incoming.feed(frame(b"")) == [(frame(b""), None)]


def test_a_limit_below_the_protocols_is_refused() -> None:
    with pytest.raises(ValueError, match="below 512"):
        IncomingFrames(511)


TALK = conversation([5, 3000, 0], 512)


@given(
    st.lists(st.tuples(st.integers(0, len(TALK) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.lists(st.integers(0, 2**20), max_size=6),
)
@example([(8, 0x7F)], [9])
def test_damaged_frames_raise_only_the_layers_own_error(damage: list[tuple[int, int]], places: list[int]) -> None:
    octets = bytearray(TALK)
    for place, value in damage:
        octets[place] = value
    incoming, segments, conditions = IncomingFrames(512), [], set()
    try:
        for piece in cut(bytes(octets), places):
            segments += incoming.feed(piece)
            assert incoming.kept <= 512
    except FrameError as error:
        conditions.add(error.condition)
    assert bytes(octets).startswith(joined(segments))
    assert conditions <= {FRAMING_ERROR, DECODE_ERROR}


@given(st.binary(max_size=2000), st.lists(st.integers(0, 2**20), max_size=6))
def test_rubbish_raises_only_the_layers_own_error(octets: bytes, places: list[int]) -> None:
    incoming, segments = IncomingFrames(512), []
    try:
        for piece in cut(AMQP_HEADER + octets, places):
            segments += incoming.feed(piece)
            assert incoming.kept <= 512
    except FrameError:
        pass
    assert (AMQP_HEADER + octets).startswith(joined(segments))
