"""These tests check that AMQP values survive encoding and decoding, that the codec reads what proton's wrote, and that
malformed octets are refused and do nothing worse.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from proton import Data, symbol, timestamp, ubyte, uint, ulong, ushort

from dtx.amqp.decoding import (
    LONGEST_SYMBOL,
    MAX_ARRAY,
    MAX_DEPTH,
    DecodeError,
    _symbols,
    decode,
    decode_from,
    fields,
    skip,
)
from dtx.amqp.encoding import encode
from dtx.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)
from tests.cases import each

INTEGERS = {
    Ubyte: (0, 2**8 - 1),
    Ushort: (0, 2**16 - 1),
    Uint: (0, 2**32 - 1),
    Ulong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    Long: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
}
TEXT = st.text(max_size=300)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
ELEMENTS = (
    st.booleans(),
    *(st.integers(low, high).map(kind) for kind, (low, high) in INTEGERS.items()),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False, width=32).map(Float),
    st.binary(max_size=300),
    TEXT,
    SYMBOLS,
    st.uuids(),
)
SIMPLE = st.one_of(st.none(), st.characters(codec="utf-8").map(Char), *ELEMENTS)
KEYS = st.one_of(SYMBOLS, st.text(max_size=10))
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=5),
        st.builds(Described, st.one_of(SYMBOLS, st.integers(0, 2**64 - 1).map(Ulong)), inner),
        st.one_of(*(st.lists(one, max_size=5) for one in ELEMENTS)).map(Array),
        st.lists(st.builds(Described, st.just(Symbol("d")), st.text(max_size=5)), max_size=3).map(Array),
        st.lists(st.lists(inner, max_size=3), max_size=3).map(Array),
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Described):
        return same(one.descriptor, other.descriptor) and same(one.value, other.value)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    return bool(one == other)


@pytest.mark.slow
@given(VALUES)
def test_what_is_encoded_is_decoded(value: Any) -> None:
    octets = encode(value)
    assert same(decode(octets), value)
    assert skip(octets) == len(octets)
    assert decode_from(b"\x40" + octets + b"\x40", 1)[1] == len(octets) + 1


@given(VALUES, st.data())
def test_octets_that_are_cut_off_are_refused_and_changed_ones_are_refused_or_a_value(
    value: Any, data: st.DataObject
) -> None:
    octets = bytearray(encode(value))
    at = data.draw(st.integers(0, len(octets) - 1))
    with pytest.raises(DecodeError):
        decode(octets[:at])
    octets[at] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        decode(octets)


@given(st.binary(max_size=200))
@example(b"\x00" * 5000)
@example(b"\x00\xc0" * 2000)
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
@example(b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\xd0\x00\x00\x00\x00")
@example(b"\xe0\x01\x01")
@example(b"\xe0\x02\x01\x00")
@example(b"\xc0\x00")
@example(b"\xc1\x03\x02\xc0\x00")
def test_any_octets_are_a_value_or_refused(octets: bytes) -> None:
    for read in (lambda: decode(octets), lambda: skip(octets), lambda: fields(octets, 0, len(octets))):
        with suppress(DecodeError):
            read()
    with suppress(DecodeError):
        _, end = decode_from(octets)
        assert skip(octets) == end


# -- proton's codec
FEWER = settings(max_examples=40)
"""For what takes a while."""
ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=300)
BY_PROTON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(0, 255).map(ubyte),
    st.integers(0, 2**16 - 1).map(ushort),
    st.integers(0, 2**32 - 1).map(uint),
    st.integers(0, 2**64 - 1).map(ulong),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**63 - 1).map(timestamp),
    st.floats(allow_nan=False),
    st.binary(max_size=300),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=300),
    ASCII.map(symbol),
)


def encoded_by_proton(value: object) -> bytes:
    data = Data()
    data.put_object(value)
    return bytes(data.encode())


@pytest.mark.slow
@FEWER
@given(
    st.recursive(
        BY_PROTON,
        lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(ASCII.map(symbol), inner, max_size=8)),
        max_leaves=20,
    )
)
@example([None] * 300)
@example([symbol("x")] * 300)
def test_what_proton_writes_is_read(value: object) -> None:
    octets = encoded_by_proton(value)
    assert decode(octets) == value
    assert skip(octets) == len(octets)
    assert decode_from(b"x" + octets + b"x", 1, len(octets) + 1) == (value, len(octets) + 1)
    if isinstance(value, list):
        starts = fields(octets, 0, len(octets))
        assert [decode(octets[start:stop]) for start, stop in pairwise(starts)] == value


# -- forms
@each(
    ("value", "octets"),
    [
        (None, "40"),
        (True, "41"),
        (Uint(0), "43"),
        (Uint(255), "52ff"),
        (Uint(256), "7000000100"),
        (Ulong(0), "44"),
        (Int(-1), "54ff"),
        (Int(-129), "71ffffff7f"),
        (Ushort(7), "600007"),
        (b"ab", "a0026162"),
        ("ä", "a102c3a4"),
        (Symbol("ab"), "a3026162"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        (Timestamp(1), "830000000000000001"),
        (Decimal(0x74, b"\0\0\0\1"), "7400000001"),
        (UUID(int=1), "98" + "00" * 15 + "01"),
        (Array([Symbol("a")]), "e00701b30000000161"),
        (Array([Int(1), Int(-1)]), "e00a027100000001ffffffff"),
        (Array([Described(Symbol("d"), True)]), "e0070100a301645601"),
        (Float(0.5), "723f000000"),
        (Described(Ulong(0x24), []), "00532445"),
    ],
)
def test_values_have_their_shortest_form(value: Any, octets: str) -> None:
    assert encode(value).hex() == octets
    assert same(decode(bytes.fromhex(octets)), value)


@each(
    ("octets", "why"),
    [
        ("", "nothing"),
        ("4040", "two values"),
        ("01", "no constructor"),
        ("5602", "a boolean that is neither"),
        ("a205", "no constructor"),
        ("a103ffffff", "no UTF-8"),
        ("a30180", "no ASCII"),
        ("73ffffffff", "no character"),
        ("7300d800", "cut off"),
        ("7300" + "00d800"[2:] + "00", "a surrogate"),
        ("c0", "cut off"),
        ("c005024040", "size beyond the end"),
        ("c0030240", "fewer items than told"),
        ("c003014040", "more octets than items"),
        ("d0ffffffff00000000", "a size of 4 GiB"),
        ("d000000004ffffffff", "4 billion items"),
        ("c1020140", "an odd map"),
        ("c10704a10161a1016140", "a key twice"),
        ("c1030245 40".replace(" ", ""), "a list as key"),
        ("e003ff4040", "an array that is cut off"),
        ("e00401500505", "an array that is longer than its elements"),
        ("f000000005ffffffff40", "an array of 4 billion nulls"),
        ("00" * (MAX_DEPTH + 5), "descriptors without end"),
        ("c0" * 3, "nonsense"),
    ],
)
def test_wrong_octets_are_refused(octets: str, why: str) -> None:
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(octets))
    del why


def test_symbols_that_are_remembered_are_short() -> None:
    before = len(_symbols)
    for number in range(10):
        decode(encode(Symbol(f"{number}" * (LONGEST_SYMBOL + 1))))
    assert len(_symbols) == before
    assert all(len(symbol) <= LONGEST_SYMBOL for symbol in _symbols)


def test_nesting_is_bounded() -> None:
    value: Any = []
    for _ in range(MAX_DEPTH):
        value = [value]
    decode(encode(value))
    with pytest.raises(DecodeError, match="deeper"):
        decode(encode([value]))


def test_arrays_of_nothing_are_bounded() -> None:
    """Also nested ones: each inner array would be thousands of nulls in nine octets."""

    def array(elements: bytes, count: int) -> bytes:
        return b"\xf0" + struct.pack(">II", len(elements) + 4, count) + elements

    assert decode(array(b"\x40", MAX_ARRAY)) == [None] * MAX_ARRAY
    for octets in (array(b"\x40", MAX_ARRAY + 1), array(b"\xf0" + array(b"\x40", 4096)[1:] * 1000, 1000)):
        with pytest.raises(DecodeError, match=r"\d+ elements"):
            decode(octets)
    assert decode(b"\xe0\x02" + bytes((MAX_ARRAY,)) + b"\x41") == [True] * MAX_ARRAY


@each(
    ("value", "error"),
    [
        *((value, TypeError) for value in (1, object(), (1,), {1, 2})),
        *((value, struct.error) for value in (Ubyte(256), Uint(-1), Int(2**31), Ulong(2**64))),
    ],
)
def test_what_is_no_amqp_value_is_not_encoded(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        encode(value)
