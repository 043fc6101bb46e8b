"""JSON bodies as values of Arrow types: what the option `body_schema` asks for.

A body fits its schema, or the message is bad. Fields that the schema does not know are left out, and those that it
knows and the body lacks are null, so that a schema may get new nullable columns while older messages still wait.

    timestamp       text by ISO 8601 with a zone, like 2026-11-21T23:12:07Z
    timestamp_ntz   the same without a zone
    date            2026-11-21
    decimal         a number, or text with one; it has to fit without being rounded
    binary          text by base64
    map, struct     an object; array: an array

A number fits if the type holds it: a whole one for integers, one that is not infinite there for float and double, of
which digits may be lost.
"""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from xabridge.pipeline.json_document import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    Body = bytes | str | None

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""A decimal as text; Python would read more, like 1_000."""
_EXACT: Final = Context(prec=38, traps=[InvalidOperation, Inexact])


def json_reader(type_: pa.StructType) -> Callable[[Body], dict[str, Any]]:
    """The function that reads a body. ValueError: it does not fit."""

    def read(body: Body) -> dict[str, Any]:
        if body is None:
            raise ValueError("there is no body")
        found: dict[str, Any] = _fitting(read_json(body), type_, "the body")
        return found

    return read


def _wrong(value: Any, type_: pa.DataType, where: str) -> ValueError:
    shown = "nested" if isinstance(value, dict | list) else json.dumps(value, default=str)[:40]
    return ValueError(f"{where} is {shown}, which is no {type_}")


def _fitting(value: Any, type_: pa.DataType, where: str) -> Any:
    if pa.types.is_struct(type_):
        if not isinstance(value, dict):
            raise _wrong(value, type_, where)
        return {field.name: _field(value.get(field.name), field, field.name) for field in type_.fields}
    if pa.types.is_map(type_):
        if not isinstance(value, dict):
            raise _wrong(value, type_, where)
        keys = {key: _fitting(key, type_.key_type, f"a key of {where}") for key in value}
        return [(keys[key], _field(one, type_.item_field, f"{where}.{key}")) for key, one in value.items()]
    if pa.types.is_list(type_):
        if not isinstance(value, list):
            raise _wrong(value, type_, where)
        return [_field(one, type_.value_field, f"{where}[{place}]") for place, one in enumerate(value)]

    try:
        return _plain(value, type_)
    except (ValueError, ArithmeticError) as error:
        raise _wrong(value, type_, where) from error


def _field(value: Any, field: pa.Field, where: str) -> Any:
    if value is not None:
        return _fitting(value, field.type, where)
    if not field.nullable:
        raise ValueError(f"{where} is missing, or null")
    return None


def _plain(value: Any, type_: pa.DataType) -> Any:
    """The value of a column. ValueError, ArithmeticError: it does not fit."""
    if isinstance(value, bool):
        if pa.types.is_boolean(type_):
            return value
    elif isinstance(value, str):
        return _text(value, type_)
    elif isinstance(value, int | Decimal):
        return _number(value, type_)
    raise ValueError(value)


def _number(value: int | Decimal, type_: pa.DataType) -> Any:
    if pa.types.is_integer(type_) and isinstance(value, int):
        most = 1 << (type_.bit_width - 1)
        if not -most <= value < most:
            raise ValueError(value)
        return value
    if pa.types.is_floating(type_):
        found = float(value)
        if not math.isfinite(found):
            raise ValueError(value)
        if pa.types.is_float32(type_):
            struct.pack("<f", found)  # OverflowError: Arrow would make it infinite
        return found
    if pa.types.is_decimal(type_):
        return _decimal(value, type_)
    raise ValueError(value)


def _text(value: str, type_: pa.DataType) -> Any:
    if pa.types.is_string(type_):
        value.encode()  # half of a surrogate pair is no text
        return value
    if pa.types.is_timestamp(type_):
        moment = datetime.fromisoformat(value)
        if (moment.tzinfo is None) == (type_.tz is None):
            return moment if moment.tzinfo is None else moment.astimezone(UTC)  # OverflowError: years are 1 to 9999
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    if pa.types.is_binary(type_):
        return b64decode(value, validate=True)
    if pa.types.is_decimal(type_):
        return _decimal(value, type_)
    raise ValueError(value)


def _decimal(value: int | Decimal | str, type_: pa.Decimal128Type) -> Decimal:
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError(value)
    try:
        number = Decimal(value)
    except InvalidOperation as error:
        raise ValueError(value) from error
    if not number.is_finite():
        raise ValueError(value)
    if not number:
        return Decimal(0)
    if number.adjusted() >= type_.precision - type_.scale or _places(number) > type_.scale:
        raise ValueError(value)
    # Exactly so many places: of a number with many zeros at its end Arrow makes an error, or another number.
    return number.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)


def _places(number: Decimal) -> int:
    """Its digits after the point, without zeros at the end."""
    _, digits, exponent = number.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(int(exponent) + zeros)
