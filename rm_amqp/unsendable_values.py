"""Finds the value of a message that can't be sent, and names what to send instead, for the error message.

AMQP has null, booleans, integers of 64 bits, floats, text, octets, UUIDs, milliseconds since 1970, and lists and maps
of these. A reader would have to guess the meaning of any other type, so other types are refused.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSTEAD: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (dt.datetime, "send value.isoformat(), or proton.timestamp(milliseconds since 1970)"),
    ((dt.date, dt.time), "send value.isoformat()"),
    (dt.timedelta, "send value.total_seconds()"),
    (decimal.Decimal, "send str(value), since a float would round it"),
    (enum.Enum, "send value.value"),
    ((set, frozenset), "send a list"),
    (dict, "send dict(value)"),
    ((list, tuple), "send list(value)"),
    (str, "send str(value)"),
    (int, "send int(value)"),
    (float, "send float(value)"),
)
"""A type that can't be sent → what to do instead; the first that fits."""
_OTHERWISE: Final = "send None, booleans, numbers, str, bytes, UUIDs, or lists and dicts of these"
_PLAIN: Final = (type(None), bool, float, bytes, bytearray, memoryview)
_WITH_AMQP_TYPES: Final = frozenset({"dtx", "proton"})
"""Packages that have classes for the types of AMQP."""
_INTEGERS: Final = range(-(2**63), 2**63)
_DEEPEST: Final = 100


def refusals(what: str, value: Any, depth: int = 0) -> Iterator[str]:
    """A sentence for each value in `value`, which is called `what`, that can't be sent."""
    kind = type(value)

    if kind is int:
        if value not in _INTEGERS:
            yield f"{what} is {value}: an integer has 64 bits at most; send str(value)"
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            yield f"{what} is {value!r}, which is not valid text: it has half of a surrogate pair"
    elif kind in {list, tuple} and depth < _DEEPEST:
        for number, item in enumerate(value):
            yield from refusals(f"{what}[{number}]", item, depth + 1)
    elif kind is dict and depth < _DEEPEST:
        for key, item in value.items():
            yield from refusals(f"the key {key!r} of {what}", key, depth + 1)
            yield from refusals(f"{what}[{key!r}]", item, depth + 1)
    elif kind not in _PLAIN and kind.__module__.partition(".")[0] not in _WITH_AMQP_TYPES and kind is not UUID:
        yield f"{what} is of type {kind.__qualname__}, which AMQP does not have: {_instead(value)}"


def _instead(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "send dataclasses.asdict(value)"
    return next((advice for kinds, advice in _INSTEAD if isinstance(value, kinds)), _OTHERWISE)
