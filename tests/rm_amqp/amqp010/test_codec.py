"""These tests cover the codec of AMQP 0-10: what is written is read as it was, and octets that are nothing are refused
by one kind of error.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtx.amqp.values import Byte, Int, Short, Timestamp, Ubyte, Uint, Ulong, Ushort
from rm_amqp import Message
from rm_amqp.amqp010 import structs, values
from rm_amqp.amqp010.frames import (
    FIRST_FRAME,
    FIRST_SEGMENT,
    HEAD,
    LAST_FRAME,
    LAST_SEGMENT,
    Assembly,
    FrameReader,
    Segment,
    write_segments,
)
from rm_amqp.amqp010.messages import content_of
from rm_amqp.amqp010.session import ranges_of
from rm_amqp.amqp010.structs import (
    COMMANDS,
    CONTROLS,
    STRUCTS,
    AnyStruct,
    DeliveryProperties,
    DtxStart,
    ExecutionResult,
    MessageProperties,
    MessageTransfer,
    RecoverResult,
    ReplyTo,
    Struct,
    WireXid,
    XaResult,
    read_command,
    read_control,
    read_header,
    read_struct,
    write_command,
    write_control,
    write_struct,
    xids_of,
)
from rm_amqp.amqp010.typed_octets import read_map_message, read_stream_message
from rm_amqp.amqp010.values import Kind, Reader, WireError, read_list, read_map, write_list, write_map
from tests.cases import each
from tests.simulation.seeds import EVERY_POINT

TEXT = st.text(max_size=20)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    TEXT,
    st.binary(max_size=300),
    st.uuids(),
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)), max_leaves=12
)
U32 = st.integers(0, 2**32 - 1)
RANGES = st.lists(st.tuples(U32, st.integers(0, 1000)), max_size=4).map(
    lambda pairs: tuple((first, (first + more) % 2**32) for first, more in pairs)
)
FIELDS: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BIT: st.just(value=True),
    Kind.UINT8: st.integers(0, 255),
    Kind.UINT16: st.integers(0, 65_535),
    Kind.UINT32: U32,
    Kind.UINT64: st.integers(0, 2**64 - 1),
    Kind.STR8: TEXT,
    Kind.STR16: TEXT,
    Kind.VBIN8: st.binary(max_size=255),
    Kind.VBIN16: st.binary(max_size=300),
    Kind.VBIN32: st.binary(max_size=300),
    Kind.UUID: st.uuids(),
    Kind.RANGES: RANGES,
    Kind.MAP: st.dictionaries(TEXT, VALUES, max_size=3),
    Kind.ARRAY: st.lists(TEXT, max_size=3),
    Kind.STRUCT: st.builds(WireXid, U32, st.binary(max_size=64), st.binary(max_size=64)),
    Kind.REPLY_TO: st.builds(ReplyTo, TEXT, TEXT),
}


@st.composite
def struct_of(draw: st.DrawFn, of: type[AnyStruct]) -> AnyStruct:
    """Any value of a struct, with any of its fields missing."""
    told = {}
    for name, kind in structs._LAYOUTS[of]:
        if draw(st.booleans()):
            told[name] = draw(FIELDS[kind])
    return of(**told)


ROUNDS = settings(max_examples=1000 if EVERY_POINT else 30)


@ROUNDS
@given(st.sampled_from(sorted(CONTROLS.values(), key=lambda of: of.CODE)).flatmap(struct_of))
def test_every_control_is_read_as_it_was_written(control: Any) -> None:
    assert read_control(write_control(control)) == control


@ROUNDS
@given(st.sampled_from(sorted(COMMANDS.values(), key=lambda of: of.CODE)).flatmap(struct_of), st.booleans())
def test_every_command_is_read_as_it_was_written(command: Any, sync: bool) -> None:
    assert read_command(write_command(command, sync=sync)) == (command, sync)


@ROUNDS
@given(st.sampled_from(sorted(STRUCTS.values(), key=lambda of: of.CODE)).flatmap(struct_of))
def test_every_struct_is_read_as_it_was_written(value: Struct) -> None:
    reader = Reader(write_struct(value))
    assert read_struct(reader) == value
    assert reader.left == 0


def test_octets_of_the_specification() -> None:
    """Written by hand, from the layout of the class `dtx`."""
    start = DtxStart(WireXid(7, b"g", b"bq"), join=True)
    xid = b"\0\0\0\x0d" + b"\x06\x04" + b"\x07\x00" + b"\0\0\0\7" + b"\1g" + b"\2bq"
    assert write_command(start, sync=True) == b"\x06\x02" + b"\x01\x01" + b"\x03\x00" + xid
    assert read_command(write_command(start)) == (start, False)
    assert write_struct(XaResult(2)) == b"\0\0\0\6" + b"\x06\x01" + b"\x01\x00" + b"\0\2"
    delivery = DeliveryProperties(routing_key="q", priority=3)
    assert write_struct(delivery) == b"\0\0\0\7" + b"\x04\x01" + b"\x08\x02" + b"\x03" + b"\1q"


@ROUNDS
@given(st.dictionaries(TEXT, VALUES, max_size=5), st.lists(VALUES, max_size=5))
def test_maps_and_lists_are_read_as_they_were_written(entries: dict[str, Any], items: list[Any]) -> None:
    assert read_map(Reader(write_map(entries, 0)), 0) == entries
    assert read_list(Reader(write_list(items, 0)), 0) == items


def test_numbers_of_their_own_width_keep_their_value() -> None:
    numbers = [Byte(-3), Ubyte(3), Short(-300), Ushort(300), Int(-70_000), Uint(70_000), Ulong(2**63), Timestamp(12)]
    assert read_list(Reader(write_list(numbers, 0)), 0) == numbers


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, object(), {1: "x"}, "x" * 65_536, {"x" * 256: 1}, 1j])
def test_what_it_does_not_have_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError, struct.error)):
        write_list([value], 0)


def test_values_of_unknown_types_are_octets() -> None:
    """The upper half of the code says how wide they are."""
    codes = {0x00: b"1", 0x20: b"1234", 0x70: bytes(128), 0x80: b"\x02ab", 0x90: b"\0\1a", 0xA0: b"\0\0\0\1a"}
    codes |= {0xC8: b"12345", 0xD8: b"123456789", 0xFF: b""}
    items = b"".join(bytes((code,)) + octets for code, octets in codes.items())
    inner = struct.pack(">I", len(codes)) + items
    found = read_list(Reader(struct.pack(">I", len(inner)) + inner), 0)
    assert found == [b"1", b"1234", bytes(128), b"ab", b"a", b"a", b"12345", b"123456789", b""]
    for reserved in (0xB0, 0xE0):
        inner = struct.pack(">IB", 1, reserved)
        with pytest.raises(WireError):
            read_list(Reader(struct.pack(">I", len(inner)) + inner), 0)


def test_nesting_is_bounded() -> None:
    deep: Any = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(WireError):
        write_list(deep, 0)
    octets = b""
    for _ in range(40):
        inner = struct.pack(">I", 1) + b"\xa9" + octets if octets else struct.pack(">I", 0)
        octets = struct.pack(">I", len(inner)) + inner
    with pytest.raises(WireError):
        read_list(Reader(octets), 0)


def test_a_count_without_octets_costs_nothing() -> None:
    for code in (b"", b"\xf0"):
        inner = code + struct.pack(">I", 2**32 - 1)
        octets = struct.pack(">I", len(inner)) + inner
        with pytest.raises(WireError):
            (values.FIELDS[Kind.ARRAY][0] if code else lambda reader: read_list(reader, 0))(Reader(octets))


def test_the_xids_in_doubt() -> None:
    xids = [WireXid(7, b"a", b"b"), WireXid(8, b"c", b"")]
    inner = b"\xab" + struct.pack(">I", 2) + b"".join(map(write_struct, xids))
    octets = b"\x06\x03\x01\x00" + struct.pack(">I", len(inner)) + inner
    result = read_struct(Reader(struct.pack(">I", len(octets)) + octets))
    assert isinstance(result, RecoverResult)
    assert list(xids_of(result)) == xids
    for wrong in (["text"], [b"\x06\x01\0\0"], [b"\x06"], [b"\x06\x04\x07"]):
        with pytest.raises(WireError):
            list(xids_of(RecoverResult(wrong)))


def test_a_header_of_two_structs_in_any_order() -> None:
    delivery, properties = DeliveryProperties(routing_key="q"), MessageProperties(content_type="text/plain")
    for pair in ((delivery, properties), (properties, delivery)):
        assert read_header(b"".join(map(write_struct, pair))) == (delivery, properties)
    assert read_header(b"") == (DeliveryProperties(), MessageProperties())


# --- frames -----------------------------------------------------------------------------------------------------------
TRANSFER = write_command(MessageTransfer(""))


@given(st.binary(max_size=5000), st.binary(max_size=300), st.integers(20, 600), st.integers(1, 999))
def test_segments_in_frames_of_any_size(body: bytes, header: bytes, max_frame: int, piece: int) -> None:
    segments = [(Segment.COMMAND, TRANSFER), (Segment.HEADER, header), (Segment.BODY, body)]
    octets = write_segments(3, max_frame, segments) + write_segments(0, max_frame, [(Segment.CONTROL, b"\1\n\0\0")])
    reader = FrameReader()
    found = [assembly for at in range(0, len(octets), piece) for assembly in reader.feed(octets[at : at + piece])]
    assert found == [Assembly(3, TRANSFER, True, header, body), Assembly(0, b"\1\n\0\0", False)]


def frame(flags: int, kind: int, content: bytes = b"", *, track: int = 1, size: int | None = None) -> bytes:
    """A frame, right or wrong."""
    return HEAD.pack(flags, kind, HEAD.size + len(content) if size is None else size, 0, track, 0, 0) + content


WHOLE = FIRST_SEGMENT | LAST_SEGMENT | FIRST_FRAME | LAST_FRAME


@pytest.mark.parametrize(
    "octets",
    [
        frame(WHOLE, 1, size=3),
        frame(0x80 | WHOLE, 1),
        frame(WHOLE, 9),
        frame(WHOLE, 1, track=5),
        frame(WHOLE, 2),
        frame(FIRST_FRAME | LAST_FRAME, 2),
        frame(FIRST_SEGMENT | FIRST_FRAME, 1) * 2,
        frame(FIRST_SEGMENT | FIRST_FRAME, 1) + frame(FIRST_FRAME | LAST_FRAME, 2),
        frame(FIRST_SEGMENT | FIRST_FRAME, 1) + frame(LAST_FRAME, 2),
        frame(FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME, 1) + frame(LAST_FRAME | LAST_SEGMENT, 2),
        frame(FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME, 1) + frame(FIRST_FRAME | LAST_FRAME | LAST_SEGMENT, 1),
        frame(FIRST_SEGMENT | FIRST_FRAME | LAST_FRAME, 0) + frame(FIRST_FRAME | LAST_FRAME | LAST_SEGMENT, 3),
    ],
)
def test_frames_that_make_no_sense(octets: bytes) -> None:
    with pytest.raises(WireError):
        list(FrameReader().feed(octets))


def test_a_message_without_an_end_is_refused() -> None:
    reader = FrameReader()
    reader.longest = 1000
    list(reader.feed(frame(FIRST_SEGMENT | FIRST_FRAME, 1, bytes(600))))
    with pytest.raises(WireError):
        list(reader.feed(frame(0, 1, bytes(600))))


def test_a_control_without_an_end_is_refused() -> None:
    """However long messages may be."""
    reader = FrameReader()
    reader.longest = 64 << 20
    list(reader.feed(frame(FIRST_SEGMENT | FIRST_FRAME, 0, bytes(60_000))))
    with pytest.raises(WireError):
        for _ in range(20):
            list(reader.feed(frame(FIRST_SEGMENT, 0, bytes(60_000))))


# --- whatever comes ---------------------------------------------------------------------------------------------------
GOOD = [
    write_control(structs.ConnectionStart({"product": "x", "list": [1, {"a": None}]}, ["PLAIN"], ["en_US"])),
    write_control(structs.SessionCompleted(((0, 7), (9, 9)))),
    write_command(ExecutionResult(3, RecoverResult(["x"]))),
    write_command(structs.ExecutionException(404, 1, 6, 4, 0, "no", {"a": UUID(int=1)})),
    write_struct(MessageProperties(1, UUID(int=5), b"c", ReplyTo("e", "k"), "t", "e", b"u", b"a", {"h": [True]})),
]


@pytest.mark.slow
@given(st.data())
def test_broken_octets_are_refused_by_one_kind_of_error(data: st.DataObject) -> None:
    octets = bytearray(data.draw(st.sampled_from(GOOD)))
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    octets = octets[: data.draw(st.integers(0, len(octets)))]
    for read in (read_control, read_command, read_header):
        try:
            read(bytes(octets))
        except WireError:
            continue


@pytest.mark.slow
@given(st.lists(st.integers(0, 2000), unique=True))
def test_ranges_hold_the_numbers(numbers: list[int]) -> None:
    ranges = ranges_of(sorted(numbers))
    assert [number for first, last in ranges for number in range(first, last + 1)] == sorted(numbers)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


MAP_OF_BROKER_J = (
    b"\0\0\0\x08a\0\x07\0\0\0\0\0\0\0\x01b\0\n\xc3\xbc\0c\0\t?\xf8\0\0\0\0\0\0d\0\x01\x01e\0\x0bf\0\x03\0\0\0\x02zz"
    b"g\0\x06\0\0\0\x03h\0\x04\0\xc8"
)
"""What Broker-J 9.2.1 made of a map that proton had sent."""


def test_maps_and_lists_as_jms_has_them() -> None:
    told = {"a": 1, "b": "ü", "c": 1.5, "d": True, "e": None, "f": b"zz", "g": 3, "h": 200}
    assert read_map_message(MAP_OF_BROKER_J) == told
    assert read_stream_message(b"\x07\0\0\0\0\0\0\0\x01\n\xc3\xbc\0\x0b\x05\0x\x03\xff\xff\xff\xff") == [
        1,
        "ü",
        None,
        "x",
        None,
    ]
    assert read_map_message(bytes(4)) == {}
    assert read_stream_message(b"") == []


@each("octets", [*(MAP_OF_BROKER_J[:size] for size in range(len(MAP_OF_BROKER_J))), b"\0\0\0\1a\0\x0c"])
def test_maps_that_jms_does_not_have(octets: bytes) -> None:
    with pytest.raises(WireError):
        read_map_message(octets)


@given(st.binary(max_size=40))
def test_any_octets_are_a_list_of_jms_or_are_refused(octets: bytes) -> None:
    try:
        read_stream_message(octets)
    except WireError:
        return


def test_the_number_in_a_group_is_an_int_of_java() -> None:
    """JMS says that JMSXGroupSeq is one, and its clients refuse to read a long as an int."""
    headers = content_of(Message("x", group_id="g", group_sequence=3), "orders").properties.application_headers
    assert headers is not None
    assert type(headers["JMSXGroupSeq"]) is Int
    headers = content_of(Message("x", group_sequence=1 << 31), "orders").properties.application_headers
    assert headers == {"JMSXGroupSeq": 1 << 31}


def test_the_layouts_are_complete() -> None:
    """Every field has a type, and no two structs have one code."""
    for of, layout in structs._LAYOUTS.items():
        assert [name for name, _ in layout] == [field.name for field in fields(of)]
    assert len(COMMANDS) + len(CONTROLS) + len(STRUCTS) + 1 == len(structs._LAYOUTS)
