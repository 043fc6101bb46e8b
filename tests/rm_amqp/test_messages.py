"""Messages are written and read as proton does, the short way too."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from proton import Described, MessageException, char, int32, symbol, timestamp, ubyte, ulong

from rm_amqp import Message
from rm_amqp.messages import decoded, encoded

ROUNDS = int(os.environ.get("XABRIDGE_SCHEDULES", "500"))
SIMPLE = (None, True, False, 0, -1, 127, 128, -128, -129, 2**63 - 1, -(2**63), 1.5, float("-inf"), "", "é" * 127)
SIZED = ("x" * 255, "x" * 256, "é" * 128, b"", b"y" * 255, b"y" * 256, "\0", "𝄞")
ODD = (ulong(7), ubyte(1), int32(-5), symbol("s"), char("c"), timestamp(1), Described("d", 1), (1, 2))
"""What goes the long way."""


def value(dice: Random, depth: int = 0) -> Any:
    kind = dice.randrange(12)
    if kind == 0 and depth < 10:
        return [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 1 and depth < 10:
        return {f"k{n}": value(dice, depth + 1) for n in range(dice.randrange(4))}
    if kind == 2:
        return dice.choice(ODD)
    return dice.choice(SIZED if kind < 6 else SIMPLE)


def message(dice: Random) -> Any:
    made: Any = Message(value(dice))
    if dice.random() < 0.3:
        made.properties = {f"p{n}": value(dice, 9) for n in range(dice.randrange(3))}
    if dice.random() < 0.3:
        made.id, made.subject = dice.choice(("m", 7, b"b")), "s"
    if dice.random() < 0.2:
        made.ttl, made.durable, made.delivery_count = 5.0, True, 3
    if dice.random() < 0.1:
        made.annotations = {symbol("a"): 1}
    if dice.random() < 0.1:
        made.inferred = True
    return made


def facts(octets: bytes, how: Any) -> tuple[Any, ...]:
    """What is read, or that nothing can be; proton looks at the text of properties only when it is asked for it."""
    try:
        read = how(octets)
        outer = (read.ttl, read.durable, read.delivery_count, read.inferred, read.content_type, read.subject)
        return (*outer, *map(shown, (read.id, read.annotations, read.properties, read.body)))
    except (MessageException, ValueError, OverflowError, TypeError) as error:
        return ("refused", type(error))


def shown(read: Any) -> Any:
    """Values with their types, so that 1, 1.0, True and ulong(1) are not equal."""
    if isinstance(read, dict):
        return type(read), [(shown(key), shown(item)) for key, item in read.items()]
    if isinstance(read, list):
        return type(read), [shown(item) for item in read]
    return type(read), bytes(read) if isinstance(read, memoryview) else repr(read)


def by_proton(octets: bytes) -> Message:
    read = Message()
    read.decode(octets)
    return read


def test_octets_are_proton_s() -> None:
    dice = Random(1)
    for _ in range(ROUNDS):
        made = message(dice)
        octets = encoded(made)
        assert octets == bytes(made.encode())
        assert facts(octets, decoded) == facts(octets, by_proton)
        assert encoded(decoded(octets)) == bytes(by_proton(octets).encode())


def test_what_is_no_message_or_an_odd_one_is_what_proton_says_it_is() -> None:
    dice = Random(2)
    for _ in range(4 * ROUNDS):
        octets = bytearray(encoded(message(dice)))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(octets))
            octets[at : at + dice.randrange(2)] = dice.randbytes(dice.randrange(3))
            octets = octets or bytearray(1)
        assert facts(bytes(octets), decoded) == facts(bytes(octets), by_proton), bytes(octets)


@pytest.mark.parametrize("body", [2**63, "\ud800", {"k": 2**70}, object()])
def test_what_is_no_value_is_refused_as_by_proton(body: Any) -> None:
    refusals = []
    for write in (encoded, Message.encode):
        with pytest.raises(Exception) as refused:
            write(Message(body))
        refusals.append((type(refused.value), str(refused.value)))
    assert refusals[0] == refusals[1]


def test_a_message_can_be_written_by_proton_after_it_was_written_here() -> None:
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
        message = decoded(bytes(Message(**fields).encode()))
        return [message.body, message.properties, message.annotations]

    kept = parts()
    others = [bytes(Message(body=[b"Z" * 100, b"Z" * 40, b"Z" * 9]).encode()) for _ in range(20)]
    assert len(others) == 20
    assert set("".join(binaries(kept))) == {"A"}


def binaries(value: Any) -> list[str]:
    if isinstance(value, memoryview):
        return [bytes(value).decode("latin-1")]
    if isinstance(value, Described):
        return binaries(value.value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in binaries(item)]
