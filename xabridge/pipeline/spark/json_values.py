"""Values of Arrow types as JSON: what nested columns become in `json` and `jsonb`, and in the bodies of messages.

    decimal, date     text: 12.50 keeps its digits, whatever reads it
    timestamp         text by ISO 8601, with its zone if it has one
    binary            text by base64
    NaN, infinity     text, because JSON has no such number
    map, struct       an object; array: an array

`xabridge.pipeline.spark.json_bodies` reads all of these with a schema of the same types.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa


def json_texts(array: pa.Array) -> list[str | None]:
    """Each value as JSON; None for null."""
    kind = array.type
    return [
        None if value is None else json.dumps(json_value(value, kind), ensure_ascii=False)
        for value in array.to_pylist()
    ]


def json_value(value: Any, kind: pa.DataType) -> Any:
    """The value in types that JSON has. Arrow's maps are pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_key(key): json_value(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: json_value(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [json_value(one, kind.value_type) for one in value]

    if isinstance(value, bytes):  # as Spark's to_json has it
        return b64encode(value).decode("ascii")
    if isinstance(value, date):  # which datetime is, too
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return key.isoformat() if isinstance(key, date) else str(key)
