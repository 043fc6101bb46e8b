"""These tests check that messages are written and read as proton writes and reads them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import uuid
from collections import OrderedDict
from decimal import Decimal
from random import Random
from typing import Any

import proton
import pytest
from proton import UNDESCRIBED, Array, Data, Described, char, float32, int32, symbol, timestamp, ubyte, ulong

from dtx.amqp import values
from dtx.amqp.decoding import DecodeError
from dtx.amqp.messages import check_sections, read_header
from rm_amqp import Message
from rm_amqp.message import encoded
from xa import Code, XaMisuse

ROUNDS = int(os.environ.get("XABRIDGE_SCHEDULES", "500"))
SIMPLE = (None, True, False, 0, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 1.5, float("-inf"), "", "é" * 127)
SIZED = ("x" * 255, "x" * 256, "é" * 128, b"", b"y" * 255, b"y" * 256, "\0", "𝄞")
ODD = (ulong(7), ubyte(1), int32(-5), symbol("s"), char("c"), timestamp(1), float32(1.5), Described("d", 1), (1, 2))
"""Values that are seldom sent."""


def value(dice: Random, depth: int = 0) -> Any:
    kind = dice.randrange(12)
    if kind == 0 and depth < 10:
        return [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 1 and depth < 10:
        return {f"k{n}": value(dice, depth + 1) for n in range(dice.randrange(4))}
    if kind == 2:
        return dice.choice(ODD)
    return dice.choice(SIZED if kind < 6 else SIMPLE)


def message(dice: Random, made: Any) -> Any:
    made.body = value(dice)
    if dice.random() < 0.3:
        made.properties = {f"p{n}": value(dice, 9) for n in range(dice.randrange(3))}
    if dice.random() < 0.3:
        made.id, made.subject = dice.choice(("m", 7, b"b")), "s"
    if dice.random() < 0.2:
        made.id = dice.choice(("", "é" * 127, "é" * 128, 7, b"b", uuid.UUID(int=3)))

    if dice.random() < 0.2:
        made.ttl, made.durable, made.delivery_count = 5.0, True, 3
    if dice.random() < 0.1:
        made.annotations = {symbol("a"): 1}
    if dice.random() < 0.1:
        made.inferred = True
    if dice.random() < 0.1:
        made.correlation_id, made.reply_to, made.content_type = uuid.UUID(int=7), "r", "text/plain"
        made.creation_time, made.group_id, made.group_sequence, made.priority = 1.5, "g", 4, 9
    return made


def facts(octets: bytes, how: Any) -> tuple[Any, ...]:
    """What is read, or that nothing can be; proton looks at the text of properties only when it is asked for it."""
    try:
        read = how(octets)
        outer = (read.ttl, read.durable, read.delivery_count, read.inferred, read.subject)
        more = (read.priority, read.creation_time, read.group_id, read.group_sequence, read.reply_to)
        ids = (read.id, read.correlation_id)
        return (*outer, *more, *map(shown, (*ids, read.annotations, read.properties, read.body)))
    except (proton.MessageException, ValueError, OverflowError, TypeError) as error:
        return ("refused", type(error))


OURS = {
    "ubyte": "Ubyte",
    "ulong": "Ulong",
    "int32": "Int",
    "symbol": "Symbol",
    "char": "Char",
    "timestamp": "Timestamp",
    "float32": "Float",
    "AnnotationDict": "dict",
}
"""Names of proton's types, and of ours."""


def shown(read: Any) -> Any:
    """Values with their types, so that 1, 1.0, True and Ulong(1) are not equal; proton's types by our names."""
    if isinstance(read, dict):
        return "dict", [(shown(key), shown(item)) for key, item in read.items()]
    if isinstance(read, list):
        return "list", [shown(item) for item in read]
    if isinstance(read, Array):
        return "Array", read.descriptor, read.type, [shown(item) for item in read.elements]
    if isinstance(read, Described | values.Described):
        return "Described", shown(read.descriptor), shown(read.value)
    if isinstance(read, memoryview):
        read = bytes(read)
    name = OURS.get(type(read).__name__, type(read).__name__)
    return name, int(read) if isinstance(read, int) else str(float(read) if isinstance(read, float) else read)


def by_proton(octets: bytes) -> proton.Message:
    read = proton.Message()
    read.decode(octets)
    return read


def test_octets_are_proton_s() -> None:
    for seed in range(ROUNDS):
        made, protons = message(Random(seed), Message()), message(Random(seed), proton.Message())
        octets = encoded(made)
        no_body = b"" if made.body is not None else b"\x00\x53\x77\x40"  # which proton leaves out, and must not
        assert octets == bytes(protons.encode()) + no_body == encoded(protons)
        assert facts(octets, Message.from_octets) == facts(octets, by_proton)
        assert encoded(Message.from_octets(octets)) == bytes(by_proton(octets).encode()) + no_body


def test_what_is_no_message_or_an_odd_one() -> None:
    """Whatever is read from it is what proton reads; the codec is stricter, and never raises anything else than that
    it is no message."""
    dice = Random(2)
    read = 0
    for _ in range(4 * ROUNDS):
        octets = bytearray(encoded(message(dice, Message())))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(octets))
            octets[at : at + dice.randrange(2)] = dice.randbytes(dice.randrange(3))
            octets = octets or bytearray(1)
        found = facts(bytes(octets), Message.from_octets)
        if found[0] == "refused":
            assert issubclass(found[1], DecodeError), bytes(octets)
        else:
            read += 1
            assert found == facts(bytes(octets), by_proton), bytes(octets)
    assert read > ROUNDS // 5


@dataclasses.dataclass
class Order:
    number: int


class Colour(enum.StrEnum):
    RED = "red"


NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (NOON, "the message's body is of type datetime, which AMQP does not have: send value.isoformat(), or proton."),
        (NOON.date(), "the message's body is of type date, which AMQP does not have: send value.isoformat()"),
        (dt.timedelta(1), "of type timedelta, which AMQP does not have: send value.total_seconds()"),
        (
            {"price": Decimal("1.5")},
            "the message's body['price'] is of type Decimal, which AMQP does not have: send str(",
        ),
        (
            {"lines": [1, Order(1)]},
            "body['lines'][1] is of type Order, which AMQP does not have: send dataclasses.asdict",
        ),
        (
            Order,
            "of type type, which AMQP does not have: send None, booleans, numbers, str, bytes, UUIDs, or lists and",
        ),
        (Colour.RED, "of type Colour, which AMQP does not have: send value.value"),
        ({1, 2}, "of type set, which AMQP does not have: send a list"),
        (OrderedDict(a=1), "of type OrderedDict, which AMQP does not have: send dict(value)"),
        ({"k": 2**70}, f"the message's body['k'] is {2**70}: an integer has 64 bits at most; send str(value)"),
        ("\ud800", "which is not valid text"),
        (object(), "of type object, which AMQP does not have: send None"),
        ({Decimal(1): 1}, "the key Decimal('1') of the message's body is of type Decimal"),
    ],
)
def test_what_amqp_does_not_have_is_refused_in_a_sentence(body: Any, told: str) -> None:
    for message in (Message(body), Message(body, annotations={symbol("a"): 1})):
        with pytest.raises(XaMisuse) as refused:
            encoded(message)
        assert refused.value.code is Code.XAER_INVAL
        assert told in str(refused.value)
    if isinstance(body, dict):
        with pytest.raises(XaMisuse, match="the message's properties"):
            encoded(Message("x", properties=body))


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"ab"), b"ab"),
        ({"k": b"ab", "l": [b"", b"z" * 300]}, {"k": b"ab", "l": [b"", b"z" * 300]}),
        (uuid.UUID(int=7), uuid.UUID(int=7)),
        ((1, 2), [1, 2]),
        ({"at": timestamp(5)}, {"at": timestamp(5)}),
    ],
)
def test_what_comes_back(body: Any, read: Any) -> None:
    others: tuple[dict[str, Any], ...] = ({}, {"annotations": {symbol("a"): 1}}, {"properties": {"p": b"q"}})
    for fields in others:
        back: Any = Message.from_octets(encoded(Message(body, **fields)))
        assert type(back.body) is type(read)
        assert back.body == read
        if "properties" in fields:
            assert back.properties == {"p": b"q"}
            assert type(back.properties["p"]) is bytes
    if isinstance(body, bytes):
        assert type(Message.from_octets(encoded(Message(body, inferred=True))).body) is bytes


def array(kind: int, *elements: Any) -> Array:
    return Array(UNDESCRIBED, kind, *elements)  # type: ignore[arg-type]


FOREIGN: dict[str, Any] = {
    "float32": [float32(0.5), {"k": float32(-3.0)}],
    "long": array(Data.LONG, 1, -(2**63)),
    "int": {"k": array(Data.INT, int32(1), int32(-1))},
    "no int": array(Data.INT),
    "double": array(Data.DOUBLE, 1.5, -0.5),
    "boolean": array(Data.BOOL, True, False),
    "string": array(Data.STRING, "a", "é" * 300),
    "binary": array(Data.BINARY, b"", b"a"),
    "uuid": array(Data.UUID, uuid.UUID(int=7)),
    "described": Array(symbol("d"), Data.STRING, "a", "b"),
    "of descriptor": Described(symbol("d"), array(Data.SYMBOL, symbol("a"))),
}


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
def test_what_came_from_another_client_is_sent_on_with_its_types(body: Any) -> None:
    made = proton.Message(body=body, annotations={symbol("x"): body}, properties={"p": float32(1.5)})
    read = by_proton(bytes(made.encode()))
    on = by_proton(encoded(Message.from_octets(bytes(made.encode()))))
    for one, other in ((read.body, on.body), (read.annotations, on.annotations), (read.properties, on.properties)):
        assert shown(one) == shown(other)


@pytest.mark.parametrize("body", [body for body in FOREIGN.values() if isinstance(body, Array)])
def test_an_array_of_proton_s_is_sent_as_proton_sends_it(body: Any) -> None:
    read, protons = by_proton(encoded(Message(body))), by_proton(bytes(proton.Message(body=body).encode()))
    assert shown(read.body) == shown(protons.body)


@pytest.mark.parametrize(("section", "whole"), [("5375a00161", b"a"), ("5376c003015401", [1])])
def test_a_body_of_many_sections_is_read_in_one_go(section: str, whole: Any) -> None:
    count = 30_000
    message = Message.from_octets((b"\0" + bytes.fromhex(section)) * count)
    assert message.body == whole * count
    assert message.inferred


@pytest.mark.parametrize("octets", ["005375a00161005376c003015401", "005376c003015401005377a10161"])
def test_a_body_of_two_kinds_of_sections_is_none(octets: str) -> None:
    with pytest.raises(DecodeError, match="one kind of section"):
        Message.from_octets(bytes.fromhex(octets))


def test_a_message_can_be_changed_after_it_was_written() -> None:
    made = Message({"a": 1}, id="m")
    assert encoded(made) == bytes(made.encode()) == encoded(made)
    made.body = "other"
    assert by_proton(encoded(made)).body == "other"


KEPT: dict[str, dict[str, Any]] = {
    "data": {"body": b"A" * 100, "inferred": True},
    "a list": {"body": [b"A" * 100, "A"], "annotations": {symbol("k"): b"A" * 40}},
    "a map": {"body": {"k": [{"k": b"A" * 100}]}, "properties": {"k": b"A" * 9}, "annotations": {symbol("k"): "A"}},
    "described": {"body": Described(symbol("k"), [b"A" * 100])},
}


@pytest.mark.parametrize("fields", KEPT.values(), ids=KEPT)
def test_what_a_message_held_outlives_it(fields: dict[str, Any]) -> None:
    def parts() -> list[Any]:
        message = Message.from_octets(bytes(Message(**fields).encode()))
        return [message.body, message.properties, message.annotations]

    kept = parts()
    others = [bytes(Message(body=[b"Z" * 100, b"Z" * 40, b"Z" * 9]).encode()) for _ in range(20)]
    assert len(others) == 20
    assert set("".join(binaries(kept))) == {"A"}


def binaries(value: Any) -> list[str]:
    assert not isinstance(value, memoryview)
    if isinstance(value, bytes):
        return [value.decode("latin-1")]
    if isinstance(value, values.Described):
        return binaries(value.value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in binaries(item)]


@pytest.mark.parametrize("fields", [{"id": 1.5}, {"subject": 7}, {"priority": 300}, {"ttl": -1.0}, {"properties": []}])
def test_fields_of_a_wrong_type_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(XaMisuse) as refused:
        encoded(Message("x", **fields))
    assert refused.value.code is Code.XAER_INVAL


@pytest.mark.parametrize("make", [Message, proton.Message])
def test_a_message_without_a_body_has_a_body_that_is_null(make: Any) -> None:
    """AMQP has no message without a body: a broker refuses it."""
    octets = encoded(make())
    check_sections(octets, read_header(octets).end)
    assert Message.from_octets(octets).body is None
