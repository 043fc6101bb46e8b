"""What tests expect behind a descriptor: a list whose items they look into, whatever they are."""

from __future__ import annotations

from typing import Any

from dtx.amqp.decoding import decode, decode_from
from dtx.amqp.values import Described, Value


def items_of(value: Value) -> list[Any]:
    """The list behind the descriptor of a value."""
    assert isinstance(value, Described)
    assert isinstance(value.value, list)
    return value.value


def decoded_list(octets: bytes) -> Described:
    """The described list that these octets are."""
    value = decode(octets)
    items_of(value)
    assert isinstance(value, Described)
    return value


def performative_at(octets: bytes, at: int, end: int | None = None) -> tuple[int, list[Any], int]:
    """The code and the fields of the performative that begins at `at`, and where it ends."""
    value, stop = decode_from(octets, at, end)
    assert isinstance(value, Described)
    assert isinstance(value.descriptor, int)
    return int(value.descriptor), items_of(value), stop
