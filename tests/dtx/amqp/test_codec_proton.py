"""These tests compare the codec with octets that proton wrote, and give it random ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from proton import Data, symbol, timestamp, ubyte, uint, ulong, ushort

from dtx.amqp.decoding import MAX_ARRAY, DecodeError, decode, decode_from, fields, skip

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
    return bytes(data.encode())


@given(values)
def test_what_proton_writes_is_read(value: object) -> None:
    octets = encoded_by_proton(value)
    assert decode(octets) == value
    assert skip(octets) == len(octets)
    assert decode_from(b"x" + octets + b"x", 1, len(octets) + 1) == (value, len(octets) + 1)


@given(st.lists(simple, max_size=300))
def test_the_fields_of_a_list_are_found(items: list[object]) -> None:
    octets = encoded_by_proton(items)
    starts = fields(octets, 0, len(octets))
    assert [decode(octets[start:stop]) for start, stop in pairwise(starts)] == items


@given(st.binary(max_size=400))
@example(b"\x00" * 5000)
@example(b"\x00\xc0" * 2000)
@example(b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")
@example(b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff")
@example(b"\xd0\x00\x00\x00\x00")
@example(b"\xe0\x01\x01")
@example(b"\xe0\x02\x01\x00")
@example(b"\xc0\x00")
@example(b"\xc1\x03\x02\xc0\x00")
def test_whatever_it_reads_it_raises_only_its_own_error(octets: bytes) -> None:
    for read in (lambda: decode(octets), lambda: skip(octets), lambda: fields(octets, 0, len(octets))):
        try:
            read()
        except DecodeError:
            continue


@given(values, st.data())
def test_octets_that_were_changed_are_refused_or_another_value(value: object, data: st.DataObject) -> None:
    octets = bytearray(encoded_by_proton(value))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(octets)
    except DecodeError:
        return


def test_nested_arrays_do_not_multiply() -> None:
    """Each inner array would be thousands of nulls in nine octets."""
    inner = b"\x00\x00\x00\x05\x00\x00\x10\x00\x40"
    body = b"\xf0" + inner * 1000
    with pytest.raises(DecodeError, match="4096 elements"):
        decode(b"\xf0" + (len(body) + 4).to_bytes(4, "big") + (1000).to_bytes(4, "big") + body)
    few = b"\xe0\x02" + bytes((MAX_ARRAY,)) + b"\x41"
    assert decode(few) == [True] * MAX_ARRAY
