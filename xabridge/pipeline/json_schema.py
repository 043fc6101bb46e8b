"""The option `body_schema`: the columns of JSON bodies, as DDL of Spark. It is written as DDL, or as a JSON Schema, of
which the part is read that has a type in Spark; what says nothing about types (`title`, `minimum`) is left aside.

    {"type": "string"}                               string
      with "format": "date-time" or "date"           timestamp, date
      with "contentEncoding": "base64"               binary
    {"type": "integer"}                              bigint
    {"type": "number"}                               double
      with "multipleOf": 0.01                        decimal(38,2)
    {"type": "boolean"}                              boolean
    {"type": "array", "items": …}                    array<…>
    {"type": "object", "properties": …}              struct<…>
    {"type": "object", "additionalProperties": …}    map<string,…>

A property that is not `required`, or whose type may be `null`, may be null.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

DIGITS: Final = 38
_STRINGS: Final[Mapping[str, str]] = {"date-time": "timestamp", "date": "date"}
_PLAIN: Final[Mapping[str, str]] = {"integer": "bigint", "boolean": "boolean"}
_UNREAD: Final = ("$ref", "oneOf", "anyOf", "allOf", "not", "if", "patternProperties")


def ddl_of(text: str) -> str:
    """The columns, as DDL. ValueError: a JSON Schema that has no type in Spark. DDL is checked by Spark itself."""
    if not text.lstrip().startswith("{"):
        return text.strip()
    try:
        schema = json.loads(text, parse_float=Decimal)
        type_ = _type(schema, "the schema")
    except RecursionError as error:
        raise ValueError("the schema is nested too deeply") from error
    except ArithmeticError as error:
        raise ValueError("the schema has a number that is too large") from error
    if not type_.startswith("struct<"):
        raise ValueError("the schema has to be of an object with properties")
    return type_.removeprefix("struct<").removesuffix(">")


def _type(schema: Any, where: str) -> str:
    if not isinstance(schema, dict):
        raise ValueError(f"{where} is no schema with a type")  # noqa: TRY004 — of the text, not of a caller
    unread = [name for name in _UNREAD if name in schema]
    if unread:
        raise ValueError(f"{where} has {unread[0]}, which gives no column a type")
    names = _names(schema)
    if len(names) != 1:
        raise ValueError(f"{where} needs one type, and has {' and '.join(names) or 'none'}")

    (name,) = names
    if name == "object":
        return _object(schema, where)
    if name == "array":
        return f"array<{_type(schema.get('items'), f'the items of {where}')}>"
    if name == "string":
        return (
            "binary" if schema.get("contentEncoding") == "base64" else _STRINGS.get(str(schema.get("format")), "string")
        )
    if name == "number":
        return _number(schema.get("multipleOf"))
    if name not in _PLAIN:
        raise ValueError(f"{where} has the type {name}, which Spark has not")
    return _PLAIN[name]


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Its types but null."""
    named = schema.get("type", [])
    return [str(name) for name in (named if isinstance(named, list) else [named]) if name != "null"]


def _number(step: Any) -> str:
    if not isinstance(step, Decimal):
        return "double"
    exponent = step.normalize().as_tuple().exponent
    return f"decimal({DIGITS},{-exponent})" if isinstance(exponent, int) and 0 < -exponent <= DIGITS else "double"


def _object(schema: Mapping[str, Any], where: str) -> str:
    properties = schema.get("properties")
    if not properties:
        return f"map<string,{_type(schema.get('additionalProperties'), f'additionalProperties of {where}')}>"
    required = schema.get("required", ())
    columns = []
    for name, one in properties.items():
        type_ = _type(one, f"the property {name!r}")
        nullable = name not in required or "null" in one["type"]
        columns.append(f"`{name.replace('`', '``')}` {type_}{'' if nullable else ' NOT NULL'}")
    return f"struct<{', '.join(columns)}>"
