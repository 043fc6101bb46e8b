"""These tests check the codec of OpenWire: what is written is read, and octets that are no frame are refused."""

from __future__ import annotations

import contextlib
import random
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rm_openwire import wire
from rm_openwire.primitives import decode_map, encode_map
from rm_openwire.wire import (
    MAX_FRAME,
    STRUCTURES,
    DecodeError,
    FrameReader,
    Kind,
    MessageDispatch,
    Queue,
    Response,
    TextMessage,
    Throwable,
    TransactionInfo,
    XATransactionId,
    decode,
    decode_text,
    encode,
    encode_text,
)
from tests.cases import each
from tests.simulation.seeds import EVERY_POINT

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
COMMANDS = [made for number, (made, _) in STRUCTURES.items() if number < 100]
IDENTIFIERS = [made for number, (made, _) in STRUCTURES.items() if number >= 100]


def nested(name: str) -> st.SearchStrategy[Any]:
    """What a nested field may hold."""
    allowed = [made for made in wire._NESTED.get(name, IDENTIFIERS) if made is not wire.WireMessage]
    if not allowed:
        return st.one_of(st.none(), st.builds(TextMessage, type=st.none() | TEXT, content=st.none() | st.binary()))
    return st.one_of(st.none(), *(structure(made) for made in allowed))


def value_of(name: str, kind: Kind, made: type[Any]) -> st.SearchStrategy[Any]:
    """What a field may hold."""
    bare = made in IDENTIFIERS
    simple: dict[Kind, st.SearchStrategy[Any]] = {
        Kind.BOOL: st.booleans(),
        Kind.BYTE: st.integers(-128, 127),
        Kind.INT: st.integers(-(2**31), 2**31 - 1),
        Kind.LONG: st.integers(-(2**63), 2**63 - 1),
        Kind.STRING: TEXT if bare and name != "text" else st.none() | TEXT,
        Kind.OCTETS: st.binary(max_size=40) if bare else st.none() | st.binary(max_size=40),
        Kind.ERROR: st.none() | st.builds(Throwable, TEXT, TEXT),
        Kind.MAGIC: st.just(wire.MAGIC),
        Kind.ARRAY: st.none() | st.lists(structure(wire.BrokerId), max_size=3).map(tuple),
    }
    return simple[kind] if kind in simple else nested(name)


def structure(made: type[Any]) -> st.SearchStrategy[Any]:
    """Any structure of a class."""
    _, layout = wire._LAYOUTS[wire._NUMBERS[made]]
    return st.deferred(lambda: st.builds(made, **{name: value_of(name, kind, made) for name, kind in layout}))


@pytest.mark.slow
@settings(max_examples=10_000 if EVERY_POINT else 25)
@given(st.sampled_from(COMMANDS).flatmap(structure))
def test_what_is_written_is_read(command: Any) -> None:
    assert decode(encode(command)[4:]) == command


@each("made", COMMANDS + IDENTIFIERS)
def test_the_table_has_a_kind_for_every_field(made: type[Any]) -> None:
    _, layout = wire._LAYOUTS[wire._NUMBERS[made]]
    assert [name for name, _ in layout] == [field.name for field in fields(made)]


@given(st.text())
def test_text_is_modified_utf_8(text: str) -> None:
    try:
        octets = encode_text(text)
    except ValueError:
        assert any(0xD800 <= ord(letter) < 0xE000 for letter in text)
        return
    assert b"\0" not in octets
    assert all(octet < 0xF0 for octet in octets)
    assert decode_text(octets) == text


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=500 if EVERY_POINT else 15)
@given(st.dictionaries(TEXT, VALUES, max_size=6))
def test_maps(values: dict[str, Any]) -> None:
    octets = encode_map(values)
    assert decode_map(octets) == values
    for length in range(len(octets)):
        with pytest.raises(DecodeError):
            decode_map(octets[:length])


def test_long_text_in_a_map_and_what_a_map_has_no_type_for() -> None:
    assert decode_map(encode_map({"long": "é" * 9000})) == {"long": "é" * 9000}
    with pytest.raises(TypeError, match="object"):
        encode_map({"what": object()})
    with pytest.raises(ValueError, match="64 bits"):
        encode_map({"large": 2**63})
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    with pytest.raises(ValueError, match="deeper"):
        encode_map({"deep": deep})


def test_a_prepare_as_the_brokers_read_it() -> None:
    command = TransactionInfo(7, True, wire.ConnectionId("c"), XATransactionId(5, b"g", b"b"), 1)
    assert encode(command).hex(" ") == (
        "00 00 00 25 07 00 00 00 07 01 01 78 01 00 01 63 01 70 00 00 00 05 01 00 00 00 01 67 01 00 00 00 01 62 01"
    ).replace("00 00 00 25", (len(encode(command)) - 4).to_bytes(4, "big").hex(" "))


def test_frames_come_in_any_pieces() -> None:
    octets = encode(Response(correlation_id=1)) + encode(MessageDispatch(destination=Queue("q"), message=TextMessage()))
    reader = FrameReader()
    found = [command for at in range(len(octets)) for command in reader.feed(octets[at : at + 1])]
    assert [type(command) for command in found] == [Response, MessageDispatch]


@pytest.mark.parametrize("length", [0, -1, MAX_FRAME + 1])
def test_a_length_that_is_none(length: int) -> None:
    with pytest.raises(DecodeError, match="at most"):
        list(FrameReader().feed(length.to_bytes(4, "big", signed=True)))


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        (b"\x01NotTheMQ\0\0\0\x0c\0", "OpenWire"),
        (b"\xff", "not known"),
        (b"\x78\1\0\1c", "no command"),
        (encode(Response())[4:] + b"x", "after"),
        (encode(Response())[4:-1], "ends inside"),
    ],
)
def test_octets_that_are_no_frame(octets: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode(octets)


def test_a_field_of_the_wrong_class() -> None:
    octets = encode(wire.MessagePull(destination=Queue("q")))
    with pytest.raises(DecodeError, match="destination"):
        decode(octets[4:].replace(b"\x64\1\0\1q", b"\x7c\1\0\1q"))


def test_hostile_octets_are_refused_and_nothing_else_happens() -> None:
    """Frames that are cut, flipped and put together at random: each is read, or refused with a DecodeError."""
    draw = random.Random(7)
    seeds = [encode(made())[4:] for made in COMMANDS] + [
        encode_map({"a": 1, "b": [None, {"c": b"x"}]}),
        encode(MessageDispatch(message=TextMessage(content=b"\0\0\0\1x", properties=encode_map({"n": 1}))))[4:],
    ]
    for _ in range(200_000 if EVERY_POINT else 5_000):
        octets = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(1, 6)):
            at = draw.randrange(len(octets) + 1)
            match draw.randrange(4):
                case 0:
                    del octets[at : at + draw.randrange(1, 9)]
                case 1:
                    octets[at:at] = draw.randbytes(draw.randrange(1, 9))
                case 2:
                    octets[at : at + 4] = draw.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"])
                case _:
                    octets[at:at] = draw.choice(seeds)

        for read in (decode, decode_map):
            with contextlib.suppress(DecodeError):
                read(bytes(octets))
