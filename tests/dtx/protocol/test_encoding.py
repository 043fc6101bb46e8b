"""The AMQP type encodings: what is decoded and written, and that nothing malformed gets through or blows up."""

from __future__ import annotations

import uuid
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proton import Array, Data, symbol, timestamp, ubyte, uint, ulong, ushort
from proton import Described as ProtonDescribed

from dtx.protocol import encoding
from dtx.protocol.encoding import Described, EncodingError, Symbol, decode, extent, fields

ascii_text = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=300)
simple = st.one_of(
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
    ascii_text.map(symbol),
)
values = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=300),
        st.dictionaries(ascii_text.map(symbol), inner, max_size=8),
    ),
    max_leaves=40,
)


def encoded_by_proton(value: object) -> bytes:
    data = Data()
    data.put_object(value)
    octets: bytes = data.encode()
    return octets


@given(values)
def test_what_proton_writes_is_read(value: object) -> None:
    octets = encoded_by_proton(value)
    decoded, end = decode(octets)
    assert decoded == value
    assert end == extent(octets, 0, len(octets)) == len(octets)


@given(st.lists(simple, max_size=300))
def test_the_fields_of_a_list_are_found(items: list[object]) -> None:
    octets = encoded_by_proton(items)
    starts = fields(octets, 0, len(octets))
    assert [decode(octets, start, stop)[0] for start, stop in pairwise(starts)] == items


@given(st.binary(max_size=400))
@example(b"\x00" * 5000)
@example(b"\x00\xc0" * 2000)
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
@example(b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\xd0\x00\x00\x00\x00")
@example(b"\xc0\x00")
@example(b"\x73\x00\x00\xd8\x00")
@example(b"\xc1\x03\x02\xc0\x00")
def test_whatever_it_reads_it_raises_only_its_own_error(octets: bytes) -> None:
    for read in (
        lambda: decode(octets),
        lambda: extent(octets, 0, len(octets)),
        lambda: fields(octets, 0, len(octets)),
    ):
        try:
            read()
        except EncodingError:
            continue


@given(values, st.data())
def test_a_value_that_is_cut_off_or_changed_is_refused_or_another_value(value: object, data: st.DataObject) -> None:
    octets = bytearray(encoded_by_proton(value))
    cut = data.draw(st.integers(0, len(octets) - 1))
    with pytest.raises(EncodingError):
        decode(bytes(octets[:cut]))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(octets))
    except EncodingError:
        return


def nested(depth: int) -> bytes:
    octets = b"\x40"
    for _ in range(depth):
        octets = b"\xd0" + (len(octets) + 4).to_bytes(4, "big") + b"\x00\x00\x00\x01" + octets
    return octets


def test_nesting_is_bounded() -> None:
    assert decode(nested(encoding.MAX_DEPTH))[1] == len(nested(encoding.MAX_DEPTH))
    with pytest.raises(EncodingError, match="nested deeper"):
        decode(nested(encoding.MAX_DEPTH + 1))


def test_arrays_without_data_do_not_multiply() -> None:
    """Nine octets that would become four thousand million values."""
    with pytest.raises(EncodingError, match="4294967295 elements"):
        decode(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x43")
    assert decode(b"\xe0\x02\x03\x41") == ([True, True, True], 4)


@pytest.mark.parametrize(
    ("octets", "value"),
    [
        (encoding.NULL, None),
        (encoding.TRUE, True),
        (encoding.binary(b"\0\xff"), b"\0\xff"),
        (encoding.binary(b"x" * 256), b"x" * 256),
        (encoding.string("ä"), "ä"),
        (encoding.symbol("txn-id"), Symbol("txn-id")),
        (encoding.ubyte(7), 7),
        (encoding.symbols(["PLAIN", "ANONYMOUS"]), [Symbol("PLAIN"), Symbol("ANONYMOUS")]),
        (encoding.listed([encoding.ubyte(1), encoding.NULL]), [1, None]),
        (encoding.listed([encoding.binary(b"x" * 200)] * 2), [b"x" * 200] * 2),
        (encoding.mapped([(encoding.symbol("a"), encoding.binary(b"b"))]), {"a": b"b"}),
        (encoding.composite(0x34, [encoding.binary(b"t")]), Described(0x34, [b"t"])),
    ],
)
def test_what_is_written_is_read_here_and_by_proton(octets: bytes, value: object) -> None:
    assert decode(octets) == (value, len(octets))
    data = Data()
    assert data.decode(octets) == len(octets)
    data.rewind()
    data.next()
    read: Any = data.get_object()
    if isinstance(read, Array):
        read = list(read.elements)
    elif isinstance(read, ProtonDescribed):
        read = Described(read.descriptor, read.value)
    assert read == value


def test_a_uuid_and_a_described_array_are_read() -> None:
    identity = uuid.UUID(int=5)
    assert decode(b"\x98" + identity.bytes) == (identity.bytes, 17)
    assert decode(b"\xe0\x07\x02\x00\x53\x07\x50\x01\x02") == ([Described(7, 1), Described(7, 2)], 9)


@pytest.mark.parametrize(
    "octets",
    [
        b"\xc1\x04\x03\x40\x40\x40",
        b"\xc1\x05\x04\x40\x40\x40\x40",
        b"\xc1\x04\x02\xc0\x00\x40",
        b"\x56\x02",
        b"\xa1\x01\xff",
    ],
    ids=["key without value", "key twice", "list as key", "half a truth", "no text"],
)
def test_what_is_well_cut_but_wrong_is_refused(octets: bytes) -> None:
    with pytest.raises(EncodingError):
        decode(octets)
