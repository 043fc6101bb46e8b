"""A JSON text as Python values: the same way for the bodies of a source and for those that a schema is inferred from.

What is JSON and can be read is read, whatever its size: whether a number fits is the matter of its column. Numbers are
`int`, if they are whole and have few digits, or `Decimal`. An `OutOfRangeNumber` has an exponent of so many digits that
Python has no number of it. Of a name that comes twice in an object the last value counts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

FEW: Final = 40
"""So many characters a whole number has that may be an `int`. Python refuses to read one of some thousands."""


@dataclass(frozen=True, slots=True)
class OutOfRangeNumber:
    """A number that is larger, or nearer to zero, than any that Python has."""

    text: str

    def __str__(self) -> str:
        return self.text


def read_json(body: bytes | str) -> Any:
    """The value. ValueError: the body is no JSON, or nested too deeply."""
    try:
        return json.loads(body, parse_float=_number, parse_int=_whole, parse_constant=_no_number)
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error


def _whole(text: str) -> int | Decimal:
    return int(text) if len(text) <= FEW else Decimal(text)


def _number(text: str) -> Decimal | OutOfRangeNumber:
    try:
        return Decimal(text)
    except InvalidOperation:
        return OutOfRangeNumber(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
