"""These tests check messages as columns: our code reads what proton wrote, and proton reads what our code writes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from proton import Message, symbol, timestamp, ulong

from tests.cases import each
from xabridge.pipeline.core import Messages
from xabridge.pipeline.core.task.message_decoder import MessageFilter, decode_messages
from xabridge.pipeline.core.task.message_encoder import encode_messages

ID = UUID("12345678-1234-5678-1234-567812345678")


def _octets(message: Message) -> bytes:
    return bytes(message.encode())


def _read(*messages: bytes) -> Messages:
    (columns,) = decode_messages([("orders", octets) for octets in messages], 100)
    return columns


def test_every_column_of_a_message_is_read() -> None:
    full = Message(
        b"body",
        inferred=True,
        durable=True,
        priority=9,
        id="m-1",
        correlation_id=ulong(7),
        subject="paid",
        reply_to="answers",
        content_type=symbol("text/plain"),
        group_id="g",
        creation_time=1.5,
        properties={"n": 1, "ok": True, "name": "ä", "list": None},
        annotations={symbol("x-a"): "b"},
    )
    full.delivery_count = 3

    columns = _read(_octets(full), _octets(Message("text")))
    assert columns.body == [b"body", "text"]
    assert columns.address == ["orders", "orders"]
    assert columns.message_id == ["m-1", None]
    assert columns.correlation_id == ["7", None]
    assert (columns.subject, columns.reply_to) == (["paid", None], ["answers", None])
    assert columns.content_type == ["text/plain", None]
    assert (columns.group_id, columns.creation_time_ms) == (["g", None], [1500, None])
    assert (columns.delivery_count, columns.priority) == ([3, None], [9, None])
    assert columns.application_properties == [{"n": "1", "ok": "true", "name": "ä", "list": None}, None]
    assert columns.annotations == [{"x-a": "b"}, None]


def test_bodies_that_are_no_text_and_ids_that_are_no_string_come_as_text() -> None:
    bodies: list[Any] = [{"a": [1, None, b"\x01"]}, 5, True, None, ID, ["x"]]
    columns = _read(*(_octets(Message(body)) for body in bodies), _octets(Message(b"", id=ID, inferred=True)))
    assert columns.body == ['{"a": [1, null, "01"]}', "5", "true", None, str(ID), '["x"]', b""]
    assert columns.message_id is not None
    assert columns.message_id[-1] == str(ID)


def test_what_nobody_can_read_is_left_out_and_noted() -> None:
    good = _octets(Message(b"good", id="1", inferred=True))
    broken = (b"\x00\x53\x73\xc0\x7f\x01", b"nonsense", good[:-2], b"\x00\x53\x74\x40")
    sorting = MessageFilter()
    chunks = list(decode_messages([("orders", octets) for octets in (*broken, good, *broken, good)], 2, sorting))
    assert [chunk.body for chunk in chunks] == [[b"good"], [b"good"]]
    assert [chunk.message_id for chunk in chunks] == [["1"], ["1"]]
    assert sorted(sorting.bad) == [0, 1, 2, 3, 5, 6, 7, 8]


@each(
    ("section", "told"),
    [
        (b"\x00\x53\x73\x43", "the properties are no list"),
        (b"\x00\x53\x73\xa1\x01x", "the properties are no list"),
        (b"\x00\x53\x72\x45", "annotations is no map"),
        (b"\x00\x53\x74\x43", "application_properties is no map"),
        (b"\x00\x53\x71\x43", "the delivery annotations are no map"),
        (b"\x00\x53\x73\x45\x00\x53\x70\x45", "the header is not the first section"),
        (b"\x00\x53\x70\x45\x00\x53\x70\x45", "the header is not the first section"),
    ],
)
def test_a_section_of_another_type_or_at_another_place_is_noted(section: bytes, told: str) -> None:
    good = b"\x00\x53\x75\xa0\x04good"
    sorting = MessageFilter()
    (columns,) = decode_messages([("orders", section + good), ("orders", good)], 100, sorting)
    assert columns.body == [b"good"]
    assert list(sorting.bad) == [0]
    assert told in sorting.bad[0]


def test_what_is_set_aside_is_no_text_or_is_named_bad_is_left_out() -> None:
    octets = [_octets(Message(body, id=body.hex(), inferred=True)) for body in (b"a", b"\xff", b"b", b"bad", b"c")]
    sorting = MessageFilter(1, text=True, is_bad=lambda message: message["body"] == "bad" and message["message_id"])
    (columns,) = decode_messages((("orders", one) for one in octets), 100, sorting)
    assert (columns.body, columns.message_id) == (["b", "c"], [b"b".hex(), b"c".hex()])
    assert sorting.bad[3] == b"bad".hex()
    assert sorted(sorting.bad) == [1, 3]


def test_chunks_hold_so_many_and_the_columns_of_each_are_as_long_as_it() -> None:
    octets = [_octets(Message(b"x", inferred=True)) for _ in range(6)] + [_octets(Message(b"y", id="1", inferred=True))]
    chunks = list(decode_messages(((None, one) for one in octets), 3))
    assert [len(chunk) for chunk in chunks] == [3, 3, 1]
    assert [chunk.message_id for chunk in chunks] == [None, None, ["1"]]


def test_what_is_written_is_what_proton_reads() -> None:
    columns = Messages(
        [b"a" * 300, "text", None, b""],
        message_id=["m", None, "i" * 300, None],
        subject=[None, "s", None, None],
        correlation_id=["c", None, None, None],
        content_type=["text/plain", None, None, None],
        creation_time_ms=[1500, None, None, None],
        group_id=["g", None, None, None],
        priority=[9, None, None, None],
        application_properties=[{"a": "b"}, None, {}, None],
    )
    found: list[Any] = []
    for octets in encode_messages(columns):
        message = Message()
        message.decode(octets)
        found.append(message)

    first, second, third, last = found
    assert all(message.durable for message in found)
    assert (bytes(first.body), second.body, third.body, bytes(last.body)) == (b"a" * 300, "text", None, b"")
    assert (first.id, second.id, third.id, last.id) == ("m", None, "i" * 300, None)
    assert (first.correlation_id, first.content_type, first.group_id) == ("c", "text/plain", "g")
    assert (first.creation_time, first.priority, first.properties) == (timestamp(1500) / 1000, 9, {"a": "b"})
    assert second.subject == "s"
    columns_again = _read(*encode_messages(columns))
    assert columns_again.message_id == columns.message_id
    assert list(columns_again.body) == list(columns.body)
