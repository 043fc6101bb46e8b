"""Maps and lists in the octets of JMS's map and stream messages, `jms/map-message` and `jms/stream-message`. Broker-J
makes them of the flat maps and of the lists that AMQP 1.0 clients send. They are only read: what is sent is AMQP 0-10's
own.

A value stands behind an octet that says its type. Text ends with a zero octet.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from rm_amqp.amqp010.values import Reader, WireError

JMS_MAP: Final = "jms/map-message"
JMS_STREAM: Final = "jms/stream-message"

_U8: Final = struct.Struct(">B")
_I32: Final = struct.Struct(">i")
_BOOLEAN, _OCTETS, _CHAR, _TEXT, _NULL = 1, 3, 5, 10, 11
_NUMBERS: Final = {
    2: struct.Struct(">b"),
    4: struct.Struct(">h"),
    6: _I32,
    7: struct.Struct(">q"),
    8: struct.Struct(">f"),
    9: struct.Struct(">d"),
}


def read_map_message(octets: bytes) -> dict[str, Any]:
    """The map; WireError where it is none."""
    reader, entries = Reader(octets), {}
    count: int = reader.number(_I32)
    while reader.left:
        name = _text(reader)
        entries[name] = _value(reader)
    if len(entries) != count:
        raise WireError(f"a map says that it has {count} entries, and has {len(entries)}")
    return entries


def read_stream_message(octets: bytes) -> list[Any]:
    """The list; WireError where it is none."""
    reader, items = Reader(octets), []
    while reader.left:
        items.append(_value(reader))
    return items


def _value(reader: Reader) -> Any:
    kind: int = reader.number(_U8)
    if kind in _NUMBERS:
        return reader.number(_NUMBERS[kind])
    if kind == _BOOLEAN:
        return reader.number(_U8) != 0
    if kind == _TEXT:
        return _text(reader)
    if kind == _OCTETS:
        size: int = reader.number(_I32)
        return None if size < 0 else reader.take(size)
    if kind == _CHAR:
        return _decoded(reader.take(2), "utf-16-be")
    if kind == _NULL:
        return None
    raise WireError(f"JMS has no type {kind}")


def _text(reader: Reader) -> str:
    return _decoded(reader.until_zero(), "utf-8")


def _decoded(octets: bytes, encoding: str) -> str:
    try:
        return octets.decode(encoding)
    except UnicodeDecodeError:
        raise WireError(f"text is not {encoding}") from None
