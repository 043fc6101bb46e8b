"""Frames: cut out of a stream wherever it is cut, refused where they are wrong, and made as the tables make them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.conditions import Condition, ProtocolError, Scope
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.frames import (
    AMQP_HEADER,
    HEARTBEAT,
    MIN_MAX_FRAME_SIZE,
    SHORT_DESCRIPTION,
    FrameReader,
    body_within,
    continuation_body,
    disposition_body,
    frame,
    performative_frame,
    transfer_body,
)
from dtx.amqp.performatives import (
    MAX_PERFORMATIVE,
    MAX_TAG,
    MAX_UINT,
    MAX_USHORT,
    PERFORMATIVES,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Performative,
    Source,
    Target,
    Transfer,
)
from dtx.amqp.values import Described, Ulong
from tests.cases import each
from tests.dtx.amqp.described import performative_at

LIMIT = 1024
ACCEPTED = encode(Described(Ulong(0x24), []))
FRAMES: tuple[tuple[int, Performative | None, bytes], ...] = (
    (0, Open("someone"), b""),
    (0, None, b""),
    (7, Begin(None, 1, 2, 3), b""),
    (7, Attach("link", 0, receiver=False, source=Source("here"), target=Target("there")), b""),
    (7, Flow(1, 2, 3, 4, echo=True), b""),
    (7, Transfer(0, 1, b"tag", settled=True), b""),
    (7, Transfer(0, 2, b"tag", settled=False, more=True), b"payload"),
    (7, Transfer(0), bytes(256)),
    (7, Disposition(receiver=False, first=0, last=9, settled=True, state=ACCEPTED), b""),
    (7, Detach(0, closed=True, error=Error("amqp:not-found", "where?")), b""),
    (MAX_USHORT, End(), b""),
    (0, Close(), b""),
)
uints = st.one_of(st.integers(0, 300), st.integers(0, MAX_UINT))
transactional = st.binary(max_size=300).map(lambda octets: encode(Described(Ulong(0x34), [octets])))
states = st.one_of(st.none(), st.just(ACCEPTED), transactional)


def octets_of(channel: int, performative: Performative | None, payload: bytes) -> bytes:
    return frame(channel, (b"" if performative is None else PERFORMATIVES.encode(performative)) + payload)


STREAM = AMQP_HEADER + b"".join(octets_of(*one) for one in FRAMES)


def read(pieces: Iterable[bytes], limit: int = LIMIT) -> list[tuple[int, Performative | None, bytes]]:
    """All frames in a stream that comes in pieces."""
    reader = FrameReader(limit)
    found = []
    for piece in pieces:
        reader.feed(piece)
        if not reader.started and not reader.header():
            continue
        while (one := reader.next()) is not None:
            found.append(one)
    return found


def refused(body: bytes, *, limit: int = LIMIT) -> ProtocolError:
    """The error for octets behind the header."""
    with pytest.raises(ProtocolError) as raised:
        read([AMQP_HEADER + body], limit)
    assert raised.value.scope is Scope.CONNECTION
    return raised.value


# -- cuts
def test_every_cut_in_two_and_octet_by_octet() -> None:
    for cut in range(len(STREAM) + 1):
        assert read([STREAM[:cut], STREAM[cut:]]) == list(FRAMES)
    assert read(bytes((octet,)) for octet in STREAM) == list(FRAMES)


def test_what_is_not_read_is_counted() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(STREAM)
    assert reader.pending == len(STREAM)
    assert reader.header()
    at = len(AMQP_HEADER)
    for one in FRAMES:
        assert reader.next() == one
        at += len(octets_of(*one))
        assert reader.pending == len(STREAM) - at
    assert reader.next() is None


# -- the header
@each("at", range(len(AMQP_HEADER)))
def test_a_wrong_header_is_refused_at_its_first_wrong_octet(at: int) -> None:
    wrong = bytearray(AMQP_HEADER)
    wrong[at] ^= 1
    reader = FrameReader(LIMIT)
    for octet in wrong[:at]:
        reader.feed(bytes((octet,)))
        assert not reader.header()
    reader.feed(bytes(wrong[at : at + 1]))
    with pytest.raises(ProtocolError) as raised:
        reader.header()
    assert raised.value.condition == Condition.FRAMING_ERROR
    assert not reader.started


def test_a_reader_takes_no_smaller_frames_than_every_peer_may_send() -> None:
    with pytest.raises(ValueError, match="512"):
        FrameReader(MIN_MAX_FRAME_SIZE - 1)


# -- sizes
@each("size", [*range(8), LIMIT + 1, 2**31, MAX_UINT])
def test_a_wrong_size_is_refused_before_the_frame_is_there(size: int) -> None:
    error = refused(size.to_bytes(4, "big"))
    assert error.condition == Condition.FRAMING_ERROR
    assert str(size) in error.description


@each("size", [8, LIMIT])
def test_the_smallest_and_the_largest_frame_are_read(size: int) -> None:
    payload = b"" if size == 8 else bytes(size - 8 - len(PERFORMATIVES.encode(Transfer(0))))
    octets = HEARTBEAT if size == 8 else octets_of(3, Transfer(0), payload)
    assert len(octets) == size
    assert read([AMQP_HEADER + octets]) == ([(0, None, b"")] if size == 8 else [(3, Transfer(0), payload)])


@each("doff", range(256))
def test_the_extended_header_is_skipped(doff: int) -> None:
    body = PERFORMATIVES.encode(End())
    extended = 4 * doff - 8
    if doff < 2:
        assert refused(b"\x00\x00\x00\x10" + bytes((doff, 0, 0, 1)) + bytes(8)).condition == Condition.FRAMING_ERROR
        return
    octets = (8 + extended + len(body)).to_bytes(4, "big") + bytes((doff, 0, 0, 1)) + bytes(extended) + body
    assert read([AMQP_HEADER + octets], 2048) == [(1, End(), b"")]
    if doff > 2:  # the frame ends before its body begins
        short = (4 * doff - 1).to_bytes(4, "big") + octets[4 : 4 * doff - 1]
        assert refused(short, limit=2048).condition == Condition.FRAMING_ERROR


@each("octet", range(1, 256))
def test_frames_of_other_types_and_bodies_without_a_performative_are_refused(octet: int) -> None:
    assert refused(b"\x00\x00\x00\x08\x02" + bytes((octet, 0, 0))).condition == Condition.FRAMING_ERROR
    assert refused(frame(0, bytes((octet, 0, 0)))).condition == Condition.DECODE_ERROR


# -- bodies
def test_only_a_transfer_has_a_payload_and_none_is_cut_off() -> None:
    for channel, performative, _ in FRAMES:
        if performative is None:
            continue
        if not isinstance(performative, Transfer):
            assert refused(octets_of(channel, performative, b"x")).condition == Condition.DECODE_ERROR
        body = PERFORMATIVES.encode(performative)
        for cut in range(1, len(body)):
            assert refused(frame(0, body[:cut])).condition == Condition.DECODE_ERROR


def test_an_unknown_performative_is_refused_by_its_descriptor() -> None:
    error = refused(frame(0, encode(Described(Ulong(0x99), []))))
    assert error.condition == Condition.DECODE_ERROR
    assert "0x99" in error.description


def test_a_performative_is_bounded_and_a_payload_is_not() -> None:
    attach = Attach("x" * MAX_PERFORMATIVE, 0, receiver=True)
    assert refused(performative_frame(0, attach), limit=65_536).condition == Condition.RESOURCE_LIMIT
    payload = bytes(2 * MAX_PERFORMATIVE)
    assert read([AMQP_HEADER + octets_of(0, Transfer(0), payload)], 65_536) == [(0, Transfer(0), payload)]


# -- made by hand
@given(
    handle=uints,
    number=uints,
    tag=st.binary(max_size=MAX_TAG),
    state=states,
    settled=st.booleans(),
    more=st.booleans(),
)
def test_the_first_transfer_is_what_the_table_writes(
    handle: int, number: int, tag: bytes, state: bytes | None, *, settled: bool, more: bool
) -> None:
    body = transfer_body(handle, number, tag, state, settled=settled, more=more)
    check_body(body, Transfer(handle, number, tag, message_format=0, settled=settled, more=more, state=state))


@given(handle=uints, more=st.booleans(), aborted=st.booleans())
def test_a_further_transfer_is_what_the_table_writes(handle: int, *, more: bool, aborted: bool) -> None:
    body = continuation_body(handle, more=more, aborted=aborted)
    check_body(body, Transfer(handle, more=more and not aborted, aborted=aborted))


@given(first=uints, last=uints, state=states, receiver=st.booleans(), settled=st.booleans())
def test_a_disposition_is_what_the_table_writes(
    first: int, last: int, state: bytes | None, *, receiver: bool, settled: bool
) -> None:
    body = disposition_body(first, last, state, receiver=receiver, settled=settled)
    check_body(body, Disposition(receiver, first, None if last == first else last, settled, state))


def check_body(body: bytes, said: Transfer | Disposition) -> None:
    """A body is what the table writes; it may say a false that the table leaves out, as it is the default."""
    assert PERFORMATIVES.decode(body) == said
    code, found, _ = performative_at(body, 0)
    table = {0x14: {5, 8, 9, 10}, 0x15: {3, 5}}[code]
    items = [None if index in table and item is False else item for index, item in enumerate(found)]
    while items and items[-1] is None:
        items.pop()
    assert Described(Ulong(code), items) == decode(PERFORMATIVES.encode(said))


# -- within the peer's frames
@given(description=st.text(max_size=2000), room=st.integers(400, 1000))
def test_a_long_error_is_told_without_its_details(description: str, room: int) -> None:
    for said in (
        Detach(MAX_UINT, closed=True, error=Error("amqp:internal-error", description, {"x": description})),
        End(Error("amqp:internal-error", description)),
        Close(Error("amqp:internal-error", description)),
    ):
        body = body_within(said, room)
        assert body is not None
        assert len(body) <= room
        told = PERFORMATIVES.decode(body)
        assert isinstance(told, Detach | End | Close)
        assert type(told) is type(said)
        assert told.error is not None
        assert told.error.condition == "amqp:internal-error"

        if told != said:
            assert told.error.info is None
            assert description.startswith(told.error.description)
            assert len(told.error.description.encode()) <= SHORT_DESCRIPTION


def test_what_can_not_be_shortened_is_not_made() -> None:
    attach = Attach("x" * 600, 0, receiver=True)
    whole = PERFORMATIVES.encode(attach)
    assert body_within(attach, len(whole)) == whole
    assert body_within(attach, len(whole) - 1) is None
