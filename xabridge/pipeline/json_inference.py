"""A schema of JSON bodies, found out from some of them: DDL, to be looked at and written down as `body_schema`.

Every column may be null, because a sample proves nothing about the messages after it. A number with a fraction makes a
column `double`; text makes it `timestamp`, `timestamp_ntz` or `date` only where every value of the sample is one.
`xabridge.pipeline.spark.json_bodies` reads each body of the sample with the schema.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from xabridge.pipeline.json_document import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LONG: Final = 1 << 63
_DIGITS: Final = 38
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_body(body: bytes | str) -> dict[str, Any]:
    """The body as an object. ValueError: it is none."""
    value = read_json(body)
    if not isinstance(value, dict):
        raise ValueError("the body is no JSON object")  # noqa: TRY004 — of what it reads, not of what it was given
    return value


def inferred_ddl(bodies: Sequence[dict[str, Any]]) -> str:
    """The columns of these bodies. ValueError: a field is of several kinds, or there are none."""
    columns = _fields(bodies, "")
    if not columns:
        raise ValueError("the bodies have no fields")
    return ", ".join(f"{_name(name)} {type_}" for name, type_ in columns.items())


def _fields(values: Iterable[dict[str, Any]], where: str) -> dict[str, str]:
    found: dict[str, list[Any]] = {}
    for value in values:
        for name, one in value.items():
            if not name.isascii() and _is_broken(name):
                raise ValueError(f"{where}{name!a} is no name: it has half of a surrogate pair")
            found.setdefault(name, []).append(one)
    names: dict[str, str] = {}
    for name in found:
        other = names.setdefault(name.lower(), name)
        if other != name:
            raise ValueError(f"{where}{other} and {where}{name} are one column to Spark, which ignores case")
    return {name: _type(some, f"{where}{name}") for name, some in found.items()}


def _is_broken(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return True
    return False


def _type(values: Sequence[Any], where: str) -> str:
    """The type of a field that has these values."""
    some = [value for value in values if value is not None]
    kinds = sorted({_kind(value) for value in some})
    if len(kinds) > 1:
        raise ValueError(f"{where} is {' and '.join(kinds)}, which no type of Spark holds")
    if not some:
        return "string"

    match kinds[0]:
        case "an object":
            inner = _fields(some, f"{where}.")
            return _struct(inner) if inner else "map<string,string>"
        case "an array":
            return f"array<{_type([one for value in some for one in value], f'{where}[]')}>"
        case "a number":
            return _number(some)
        case "text":
            return _text(some)
    return "boolean"


def _struct(fields: dict[str, str]) -> str:
    return f"struct<{', '.join(f'{_name(name)}: {type_}' for name, type_ in fields.items())}>"


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return "text" if isinstance(value, str) else "a number"


def _number(values: Sequence[Any]) -> str:
    if not all(isinstance(value, int) for value in values):
        return "double"
    if all(-_LONG <= value < _LONG for value in values):
        return "bigint"
    return f"decimal({_DIGITS},0)" if all(abs(value) < 10**_DIGITS for value in values) else "double"


def _text(values: Sequence[str]) -> str:
    if all(_DAY.fullmatch(value) and _is_date(value) for value in values):
        return "date"
    moments = [_zone(value) for value in values]
    if all(zone is True for zone in moments):
        return "timestamp"
    return "timestamp_ntz" if all(zone is False for zone in moments) else "string"


def _is_date(value: str) -> bool:
    try:
        date.fromisoformat(value)
    except ValueError:
        return False
    return True


def _zone(value: str) -> bool | None:
    """Whether a moment has a zone; None: it is no moment."""
    if not _MOMENT.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return None


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
