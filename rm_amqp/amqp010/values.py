"""The types of AMQP 0-10, in both directions.

A struct's fields have types that both sides know (`Kind`). The values in a map, a list or an array carry a type code,
whose upper half says how wide the value is, so that a value of an unknown type can be read too: as its octets.

    void None                boolean bool             int8 … int64, uint8 … uint64 int
    float, double float      str8, str16 str          vbin8 … vbin32, bin8 … bin1024 bytes
    uuid UUID                datetime Timestamp       map dict (its keys are str)        list, array list

An int is written as int64, and as uint64 where it needs that. What AMQP 0-10 does not have is refused with `TypeError`
or `ValueError`.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dtx.amqp.values import Byte, Float, Int, Long, Short, Timestamp, Ubyte, Uint, Ulong, Ushort

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_DEPTH: Final = 32
"""How deep maps and lists may be nested."""

Ranges = tuple[tuple[int, int], ...]
"""A set of command numbers: pairs of the first and the last of a range."""


class WireError(ValueError):
    """These octets are no AMQP 0-10."""


class Kind(Enum):
    """The type of a struct's field."""

    BIT = "bit"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
    STR8 = "str8"
    STR16 = "str16"
    VBIN8 = "vbin8"
    VBIN16 = "vbin16"
    VBIN32 = "vbin32"
    UUID = "uuid"
    RANGES = "sequence-set"
    MAP = "map"
    ARRAY = "array"
    STRUCT = "struct32"
    REPLY_TO = "reply-to"


_U8: Final = struct.Struct(">B")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_PAIR: Final = struct.Struct(">II")
_SIZES: Final = {1: _U8, 2: _U16, 4: _U32}


class Reader:
    """Octets that are read from the front; WireError where there are not enough of them."""

    __slots__ = ("_at", "_end", "octets")

    def __init__(self, octets: bytes, at: int = 0, end: int | None = None) -> None:
        self.octets = octets
        self._at = at
        self._end = len(octets) if end is None else end

    @property
    def left(self) -> int:
        """How many octets are left."""
        return self._end - self._at

    def take(self, size: int) -> bytes:
        """The next octets."""
        at = self._skip(size)
        return self.octets[at : at + size]

    def number(self, layout: struct.Struct) -> Any:
        """The next number."""
        return layout.unpack_from(self.octets, self._skip(layout.size))[0]

    def sized(self, width: int) -> bytes:
        """Octets behind their size, which is `width` octets long."""
        size: int = self.number(_SIZES[width])
        return self.take(size)

    def within(self, width: int) -> Reader:
        """A reader of what stands behind a size."""
        size: int = self.number(_SIZES[width])
        at = self._skip(size)
        return Reader(self.octets, at, at + size)

    def until_zero(self) -> bytes:
        """The octets before the next zero octet, which is read too."""
        zero = self.octets.find(b"\0", self._at, self._end)
        if zero < 0:
            raise WireError("text has no end")
        return self.take(zero + 1 - self._at)[:-1]

    def end(self, what: str) -> None:
        """Checks that nothing is left."""
        if self.left:
            raise WireError(f"{what}: {self.left} octets too many")

    def _skip(self, size: int) -> int:
        at = self._at
        if size > self._end - at:
            raise WireError(f"{size} octets are expected, and {self._end - at} are left")
        self._at = at + size
        return at


# --- fields -----------------------------------------------------------------------------------------------------------
def _sized(octets: bytes, width: int) -> bytes:
    if len(octets) >= 1 << 8 * width:
        raise ValueError(f"{len(octets)} octets are too many: at most {(1 << 8 * width) - 1} fit")
    return _SIZES[width].pack(len(octets)) + octets


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise WireError("text is not UTF-8") from None


def _ranges(reader: Reader) -> Ranges:
    inner = reader.within(2)
    if inner.left % _PAIR.size:
        raise WireError("a set of numbers has no whole pairs")
    pairs = _PAIR.iter_unpack(inner.take(inner.left))
    ranges = tuple((first, last) for first, last in pairs)
    if any((last - first) & 0xFFFFFFFF >= 1 << 31 for first, last in ranges):
        raise WireError("a range of numbers ends before it begins")
    return ranges


def _write_ranges(ranges: Ranges) -> bytes:
    return _sized(b"".join(_PAIR.pack(first & 0xFFFFFFFF, last & 0xFFFFFFFF) for first, last in ranges), 2)


def _plain_number(layout: struct.Struct) -> tuple[Callable[[Reader], Any], Callable[[Any], bytes]]:
    return lambda reader: reader.number(layout), layout.pack


FIELDS: Final[dict[Kind, tuple[Callable[[Reader], Any], Callable[[Any], bytes]]]] = {
    Kind.UINT8: _plain_number(_U8),
    Kind.UINT16: _plain_number(_U16),
    Kind.UINT32: _plain_number(_U32),
    Kind.UINT64: _plain_number(_U64),
    Kind.STR8: (lambda reader: _text(reader.sized(1)), lambda text: _sized(text.encode(), 1)),
    Kind.STR16: (lambda reader: _text(reader.sized(2)), lambda text: _sized(text.encode(), 2)),
    Kind.VBIN8: (lambda reader: reader.sized(1), lambda octets: _sized(octets, 1)),
    Kind.VBIN16: (lambda reader: reader.sized(2), lambda octets: _sized(octets, 2)),
    Kind.VBIN32: (lambda reader: reader.sized(4), lambda octets: _sized(octets, 4)),
    Kind.UUID: (lambda reader: UUID(bytes=reader.take(16)), lambda uuid: uuid.bytes),
    Kind.RANGES: (_ranges, _write_ranges),
    Kind.MAP: (lambda reader: read_map(reader, 0), lambda value: write_map(value, 0)),
    Kind.ARRAY: (lambda reader: _read_array(reader, 0), lambda items: _write_array(items)),  # noqa: PLW0108 — it is below
}
"""How a field of each kind is read and written; a bit is in the flags, and structs are read by `structs`."""


# --- values with a type code ------------------------------------------------------------------------------------------
_NUMBERS: Final[dict[int, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    0x01: (struct.Struct(">b"), int),
    0x02: (_U8, int),
    0x08: (_U8, bool),
    0x11: (struct.Struct(">h"), int),
    0x12: (_U16, int),
    0x21: (struct.Struct(">i"), int),
    0x22: (_U32, int),
    0x23: (struct.Struct(">f"), float),
    0x31: (_I64, int),
    0x32: (_U64, int),
    0x33: (struct.Struct(">d"), float),
    0x38: (_U64, Timestamp),
}
_TEXTS: Final = {0x84: (1, "latin-1"), 0x85: (1, "utf-8"), 0x94: (2, "latin-1"), 0x95: (2, "utf-8")}
_MAP, _LIST, _ARRAY, _VOID, _BIT, _UUID = 0xA8, 0xA9, 0xAA, 0xF0, 0xF1, 0x48


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise WireError(f"values are nested deeper than {MAX_DEPTH}")
    return depth + 1


def _read(reader: Reader, code: int, depth: int) -> Any:
    if code in _NUMBERS:
        layout, kind = _NUMBERS[code]
        return kind(reader.number(layout))

    if code in _TEXTS:
        width, encoding = _TEXTS[code]
        try:
            return reader.sized(width).decode(encoding)
        except UnicodeDecodeError:
            raise WireError("text is not UTF-8") from None
    if code == _MAP:
        return read_map(reader, depth)
    if code == _LIST:
        return read_list(reader, depth)
    if code == _ARRAY:
        return _read_array(reader, depth)
    if code == _VOID:
        return None
    if code == _BIT:
        return True
    if code == _UUID:
        return UUID(bytes=reader.take(16))
    return _read_unknown(reader, code)


def _read_unknown(reader: Reader, code: int) -> bytes:
    """The octets of a value of which only the width is known."""
    group = code >> 4
    if group < 8:
        return reader.take(1 << group)
    if group in {8, 9, 10}:
        return reader.sized(1 << (group - 8))
    if group in {12, 13}:
        return reader.take(5 if group == 12 else 9)
    if group == 15:
        return b""
    raise WireError(f"there is no type {code:#04x}")


def read_map(reader: Reader, depth: int) -> dict[str, Any]:
    """A map, behind its size."""
    inner, depth = reader.within(4), _deeper(depth)
    if not inner.left:
        return {}
    count: int = inner.number(_U32)
    if count > inner.left:
        raise WireError("a map says that it has more entries than octets")
    entries: dict[str, Any] = {}
    for _ in range(count):
        key = _text(inner.sized(1))
        entries[key] = _read(inner, inner.number(_U8), depth)
    inner.end("a map")
    return entries


def read_list(reader: Reader, depth: int) -> list[Any]:
    """A list, behind its size."""
    inner, depth = reader.within(4), _deeper(depth)
    if not inner.left:
        return []
    count: int = inner.number(_U32)
    if count > inner.left:
        raise WireError("a list says that it has more items than octets")
    items = [_read(inner, inner.number(_U8), depth) for _ in range(count)]
    inner.end("a list")
    return items


def _read_array(reader: Reader, depth: int) -> list[Any]:
    inner, depth = reader.within(4), _deeper(depth)
    if not inner.left:
        return []
    code: int = inner.number(_U8)
    count: int = inner.number(_U32)
    if count > inner.left:  # items without a width (void) are of no use, and would be endless
        raise WireError("an array says that it has more items than octets")
    items = [_read(inner, code, depth) for _ in range(count)]
    inner.end("an array")
    return items


def write_map(entries: dict[str, Any], depth: int) -> bytes:
    """A map, behind its size. TypeError, ValueError: it holds what AMQP 0-10 does not have."""
    depth = _deeper(depth)
    pieces = [_U32.pack(len(entries))]
    for key, value in entries.items():
        if not isinstance(key, str):
            raise TypeError(f"the keys of a map are text, not {type(key).__name__}")
        pieces += [_sized(key.encode(), 1), _write(value, depth)]
    return _sized(b"".join(pieces), 4)


def write_list(items: Iterable[Any], depth: int) -> bytes:
    """A list, behind its size. TypeError, ValueError: it holds what AMQP 0-10 does not have."""
    depth = _deeper(depth)
    pieces = [_write(item, depth) for item in items]
    return _sized(_U32.pack(len(pieces)) + b"".join(pieces), 4)


def _write_array(items: list[Any]) -> bytes:
    """An array of texts: we send no other ones."""
    if not items:
        return _U32.pack(0)
    return _sized(b"\x95" + _U32.pack(len(items)) + b"".join(_sized(item.encode(), 2) for item in items), 4)


_WRITTEN: Final[dict[type, tuple[bytes, struct.Struct]]] = {
    Byte: (b"\x01", struct.Struct(">b")),
    Ubyte: (b"\x02", _U8),
    Short: (b"\x11", struct.Struct(">h")),
    Ushort: (b"\x12", _U16),
    Int: (b"\x21", struct.Struct(">i")),
    Uint: (b"\x22", _U32),
    Long: (b"\x31", _I64),
    Ulong: (b"\x32", _U64),
    Float: (b"\x23", struct.Struct(">f")),
    float: (b"\x33", struct.Struct(">d")),
    Timestamp: (b"\x38", _U64),
}


def _write(value: Any, depth: int) -> bytes:
    kind = type(value)
    if kind is str:
        octets = value.encode()
        if len(octets) >= 1 << 16:
            raise ValueError("text in a map or a list has at most 65535 octets; send it as the message's body")
        return b"\x95" + _sized(octets, 2)
    if kind is bool:
        return b"\x08\x01" if value else b"\x08\x00"
    if kind is int:
        return b"\x31" + _I64.pack(value) if value < 1 << 63 else b"\x32" + _U64.pack(value)
    if kind in _WRITTEN:
        code, layout = _WRITTEN[kind]
        octets = layout.pack(value)
        return code + octets

    if value is None:
        return b"\xf0"
    if kind in {bytes, bytearray, memoryview}:
        octets = bytes(value)
        return b"\x90" + _sized(octets, 2) if len(octets) < 1 << 16 else b"\xa0" + _sized(octets, 4)
    if kind is dict:
        return b"\xa8" + write_map(value, depth)
    if kind in {list, tuple}:
        return b"\xa9" + write_list(value, depth)
    if isinstance(value, UUID):
        return b"\x48" + value.bytes
    raise TypeError(f"AMQP 0-10 has no type for {kind.__name__}")
