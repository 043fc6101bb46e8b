"""These tests cover messages as octets: which sections a resource reads, and which of them it replaces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from proton import Message

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.messages import (
    NO_HEADER,
    Header,
    body_value,
    read_destination,
    read_header,
    read_request,
    request_message,
    response_message,
    value_message,
    with_delivery_annotations,
    with_header,
    with_message_annotations,
    with_to,
)
from dtx.amqp.values import Described, Symbol, Ubyte, Uint, Ulong, Value
from dtx.protocol.addresses import branch_address, parse_branch_address
from tests.cases import each
from xa import Xid


def proton_message(octets: bytes) -> Message:
    message = Message()
    message.decode(octets)
    return message


def test_a_message_that_proton_wrote_is_read() -> None:
    told = {"id": "m1", "reply_to": "$reply/1", "properties": {"operation": "queues"}}
    message = Message(body=[1], durable=True, priority=7, ttl=2.5, **told)
    octets = bytes(message.encode())
    header = read_header(octets)
    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (True, 7, 2500, 0)
    assert decode(body_value(octets)) == [1]
    request = read_request(octets)
    assert (request.reply_to, request.correlation) == ("$reply/1", "m1")
    assert request.application_properties() == {"operation": "queues"}


@each("octets", [value_message(b"\x40"), b"\x00\x53\x75\xa0\x01x"])
def test_a_message_may_have_no_header(octets: bytes) -> None:
    assert read_header(octets) == NO_HEADER


@given(
    st.booleans(),
    st.integers(0, 255),
    st.none() | st.integers(0, 2**32 - 1),
    st.integers(0, 1000),
    st.integers(0, 1000),
)
def test_a_header_is_replaced_and_the_rest_stays(
    durable: bool, priority: int, ttl_ms: int | None, before: int, after: int
) -> None:
    rest = value_message(encode("body"))
    octets = with_header(rest, NO_HEADER, delivery_count=before, ttl_ms=ttl_ms)
    header = Header(durable, priority, ttl_ms, before, read_header(octets).end)
    octets = with_header(octets, header, delivery_count=after, ttl_ms=ttl_ms)
    found = read_header(octets)
    assert (found.durable, found.priority, found.ttl_ms, found.delivery_count) == (durable, priority, ttl_ms, after)
    assert octets[found.end :] == rest
    assert proton_message(octets).body == "body"
    assert proton_message(octets).delivery_count == after


@each("fields", [[], [True], [True, Ubyte(7), Uint(2500), None, Uint(3)]])
def test_a_header_is_read_in_each_of_its_encodings(fields: list[Value]) -> None:
    """Short ones are remembered: what stands behind one, or is cut off, is looked at each time."""
    items = b"".join(map(encode, fields))
    short = bytes((0xC0, len(items) + 1, len(fields))) + items
    long = b"\xd0" + (len(items) + 4).to_bytes(4, "big") + len(fields).to_bytes(4, "big") + items
    durable, priority, ttl_ms, count = bool(fields), 4, None, 0
    if len(fields) > 1:
        priority, ttl_ms, count = 7, 2500, 3
    for written in (encode_list([encode(field) for field in fields]), short, long):
        header = b"\x00\x53\x70" + written
        for rest in (value_message(b"\x40"), value_message(b"\x41"), b""):
            found = read_header(header + rest)
            assert found == Header(durable, priority, ttl_ms, count, len(header))
        if len(written) > 1:
            with pytest.raises(WireError):
                read_header(header[:-1])


NO_HEADERS: list[Any] = [{}, [Ubyte(1)], [None, None, "ttl"], [None] * 6]
NO_PROPERTIES: list[Any] = [{}, [None, None, None, None, Uint(5)]]


def header(value: Value) -> bytes:
    return encode(Described(Ulong(0x70), value))


def properties(value: Value) -> bytes:
    return encode(Described(Ulong(0x73), value)) + value_message(b"\x40")


@each(
    ("read", "octets"),
    [
        *((read_header, octets) for octets in (b"", b"x", b"\x00", b"\x00\x53\x99\x45", b"\x00\x53\x70\xc0")),
        *((read_header, header(value)) for value in NO_HEADERS),
        (read_header, encode(Described("amqp:header:list", []))),
        *((body_value, octets) for octets in (b"", b"\x00\x53\x75\xa0\x01x", value_message(b""), b"junk")),
        *((body_value, value_message(b"\x40") + more) for more in (value_message(b"\x40"), b"\x00\x53\x70\x45")),
        *((read_request, properties(value)) for value in NO_PROPERTIES),
    ],
)
def test_what_begins_with_no_section_is_refused(read: Callable[[bytes], object], octets: bytes) -> None:
    """Nor is a body that is not one value, nor properties of a wrong type."""
    with pytest.raises(WireError):
        read(octets)


def test_sections_with_symbols_as_descriptors_are_read() -> None:
    octets = encode(Described(Symbol("amqp:header:list"), [True, Ubyte(9), Uint(5)]))
    octets += encode(Described(Symbol("amqp:amqp-value:*"), "x"))
    assert read_header(octets).ttl_ms == 5
    assert body_value(octets) == encode("x")


def test_delivery_annotations_are_put_in_place_of_those_that_are_there() -> None:
    message = Message(body="x", durable=True, annotations={"keep": 1})
    message.instructions = {"x-old": 1}
    octets = with_delivery_annotations(bytes(message.encode()), {Symbol("x-new"): "orders"})
    found = proton_message(octets)
    assert found.instructions == {"x-new": "orders"}
    assert found.annotations == {"keep": 1}
    assert found.durable
    assert found.body == "x"


@each("correlation", [Ulong(7), b"bytes", "text", None])
def test_a_response_carries_the_correlation_of_its_request(correlation: Any) -> None:
    request = read_request(request_message(b"\x40", "$reply/1", correlation))
    assert (request.body, request.reply_to, request.correlation) == (b"\x40", "$reply/1", correlation)
    response = proton_message(response_message(b"\x40", request.correlation))
    assert response.correlation_id == correlation


@each(
    "told",
    [
        {},
        {"subject": "s", "address": "elsewhere"},
        {"id": "m-1", "durable": True, "annotations": {"a": 1}, "properties": {"b": 2}},
        {"properties": {"b": 2}},
    ],
)
def test_a_message_gets_another_to_and_keeps_the_rest(told: dict[str, Any]) -> None:
    before = Message(body="x", **told)
    after = proton_message(with_to(bytes(before.encode()), "orders"))
    assert after.address == "orders"
    after.address = before.address  # type: ignore[assignment]  # None, where it had none
    assert after.encode() == before.encode()


def test_a_body_of_several_sections_is_left_alone() -> None:
    body = encode(Described(Ulong(0x75), b"part")) * 2 + encode(Described(Ulong(0x78), {}))
    octets = encode(Described(Ulong(0x72), {Symbol("x-opt-a"): Uint(1)})) + body
    assert with_to(octets, "there").endswith(body)
    assert read_destination(with_to(octets, "there")) == ("there", False)
    annotated = with_message_annotations(octets, {Symbol("x-opt-b"): Uint(2)})
    assert annotated == encode(Described(Ulong(0x72), {Symbol("x-opt-a"): Uint(1), Symbol("x-opt-b"): Uint(2)})) + body


@given(st.binary(max_size=100))
def test_any_octets_are_a_message_or_refused(octets: bytes) -> None:
    for read in (read_header, body_value, read_request):
        with contextlib.suppress(WireError):
            read(octets)


def test_addresses_of_branches() -> None:
    xid = Xid(1, b"g/x", b"")
    for work in ("all", "retired", "posted"):
        assert parse_branch_address(branch_address(xid, work)) == (xid, work)
    assert parse_branch_address("orders") is None
    for wrong in ("$branch/", "$branch/all", "$branch/all/", "$branch/some/1_Zw==_", "$branch/all/nonsense"):
        with pytest.raises(ValueError, match=r"branch|xid"):
            parse_branch_address(wrong)
    with pytest.raises(ValueError, match="one of"):
        branch_address(xid, "some")
