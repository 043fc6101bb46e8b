"""Maps of OpenWire: the properties of a message, the body of a map message, and what a `WireFormatInfo` offers.

    map       the number of its entries in 4 octets (-1: none), then of each the name and the value
    name      its length in 2 octets, modified UTF-8
    value     an octet that tells its type (`_TYPES`), and the value as Java writes it

A map is valid if and only if its entries are complete and nothing follows the last one.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from rm_openwire.wire import MAX_STRING, DecodeError, decode_text, encode_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_DEPTH: Final = 16
"""How deep maps and lists may be nested."""
MIN_LONG, MAX_LONG = -(2**63), 2**63 - 1
_COUNT: Final = struct.Struct(">i")
_SHORT_STRING: Final = 8191
"""Longer text is written as a big string, as the brokers' own clients do it."""

_NULL, _BOOLEAN, _BYTE, _CHAR, _SHORT, _INTEGER, _LONG, _DOUBLE, _FLOAT = range(9)
_STRING, _OCTETS, _MAP, _LIST, _BIG_STRING = range(9, 14)
_NUMBERS: Final = {
    _BYTE: struct.Struct(">b"),
    _SHORT: struct.Struct(">h"),
    _INTEGER: struct.Struct(">i"),
    _LONG: struct.Struct(">q"),
    _DOUBLE: struct.Struct(">d"),
    _FLOAT: struct.Struct(">f"),
}


def encode_map(values: Mapping[str, Any]) -> bytes:
    """The octets of a map. TypeError or ValueError for what OpenWire does not have."""
    pieces: list[bytes] = []
    _write_map(pieces, values, 0)
    return b"".join(pieces)


def _write_map(pieces: list[bytes], values: Mapping[str, Any], depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ValueError(f"maps and lists are nested deeper than {MAX_DEPTH}")
    pieces.append(_COUNT.pack(len(values)))
    for name, value in values.items():
        if type(name) is not str:
            raise TypeError(f"{name!r} is no name of a map's entry: it has to be text")
        octets = encode_text(name)
        if len(octets) > MAX_STRING:
            raise ValueError(f"the name of an entry has {len(octets)} octets, allowed are {MAX_STRING}")
        pieces.append(struct.pack(">H", len(octets)) + octets)
        _write(pieces, value, depth)


def _write(pieces: list[bytes], value: Any, depth: int) -> None:
    kind = type(value)

    if value is None:
        pieces.append(b"\0")
    elif kind is str:
        octets = encode_text(value)
        short = len(octets) <= _SHORT_STRING
        head = struct.pack(">BH", _STRING, len(octets)) if short else struct.pack(">Bi", _BIG_STRING, len(octets))
        pieces.append(head + octets)
    elif kind in _WRITERS:
        pieces.append(_WRITERS[kind](value))
    elif kind is dict:
        pieces.append(bytes((_MAP,)))
        _write_map(pieces, value, depth + 1)
    elif kind in {list, tuple}:
        if depth + 1 >= MAX_DEPTH:
            raise ValueError(f"maps and lists are nested deeper than {MAX_DEPTH}")
        pieces.append(struct.pack(">Bi", _LIST, len(value)))
        for item in value:
            _write(pieces, item, depth + 1)
    else:
        raise TypeError(f"{kind.__name__} is no type that OpenWire has: send text, a number, octets, a list or a dict")


def _long(value: int) -> bytes:
    if not MIN_LONG <= value <= MAX_LONG:
        raise ValueError(f"{value} is larger than 64 bits")
    return struct.pack(">Bq", _LONG, value)


def _octets(value: bytes | bytearray | memoryview) -> bytes:
    octets = bytes(value)
    return struct.pack(">Bi", _OCTETS, len(octets)) + octets


_WRITERS: Final[dict[type, Callable[[Any], bytes]]] = {
    bool: lambda value: bytes((_BOOLEAN, value)),
    int: _long,
    float: lambda value: struct.pack(">Bd", _DOUBLE, value),
    bytes: _octets,
    bytearray: _octets,
    memoryview: _octets,
}


def decode_map(octets: bytes) -> dict[str, Any]:
    """The map that these octets are; DecodeError."""
    try:
        values, at = _read_map(octets, 0, 0)
    except (IndexError, struct.error):
        raise DecodeError("a map ends inside of an entry") from None
    if at != len(octets):
        raise DecodeError(f"{len(octets) - at} octets after a map")
    return values


def _read_count(octets: bytes, at: int) -> tuple[int, int]:
    (count,) = _COUNT.unpack_from(octets, at)
    if count > len(octets) - at:
        raise DecodeError(f"{count} are announced, and there are {len(octets) - at} octets")
    return count, at + 4


def _read_map(octets: bytes, at: int, depth: int) -> tuple[dict[str, Any], int]:
    if depth >= MAX_DEPTH:
        raise DecodeError(f"maps and lists are nested deeper than {MAX_DEPTH}")
    count, at = _read_count(octets, at)
    values: dict[str, Any] = {}
    for _ in range(count):
        stop = at + 2 + struct.unpack_from(">H", octets, at)[0]
        name = _text(octets, at + 2, stop)
        values[name], at = _read(octets, stop, depth)
    return values, at


def _read(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    kind = octets[at]
    at += 1
    if kind == _STRING:
        stop = at + 2 + struct.unpack_from(">H", octets, at)[0]
        return _text(octets, at + 2, stop), stop

    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(octets, at)[0], at + number.size
    if kind == _NULL:
        return None, at
    if kind == _BOOLEAN:
        return octets[at] != 0, at + 1
    if kind == _CHAR:
        return chr(struct.unpack_from(">H", octets, at)[0]), at + 2
    if kind == _MAP:
        return _read_map(octets, at, depth + 1)
    if kind not in {_OCTETS, _BIG_STRING, _LIST}:
        raise DecodeError(f"the type {kind} of a value is not known")

    count, at = _read_count(octets, at)
    if kind == _LIST:
        return _read_list(octets, at, count, depth + 1)
    stop = at + max(count, 0)
    if kind == _BIG_STRING:
        return _text(octets, at, stop) if count >= 0 else None, stop
    if stop > len(octets):
        raise DecodeError("octets end inside of a value")
    return octets[at:stop], stop


def _read_list(octets: bytes, at: int, count: int, depth: int) -> tuple[list[Any], int]:
    if depth >= MAX_DEPTH:
        raise DecodeError(f"maps and lists are nested deeper than {MAX_DEPTH}")
    values = []
    for _ in range(count):
        value, at = _read(octets, at, depth)
        values.append(value)
    return values, at


def _text(octets: bytes, at: int, stop: int) -> str:
    if stop > len(octets):
        raise DecodeError("a text ends inside of a map")
    return decode_text(octets[at:stop])
