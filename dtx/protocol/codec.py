"""The type system of AMQP 1.0 in bytes: a decoder and an encoder, strict and bounded, for control and command
messages, message sections and the performatives that proton does not show.

Octets are a value's if and only if `decode` reads them to their end without DecodeError. A value is encoded
in the shortest form that its type has, so that equal values are equal octets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dtx.protocol.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH: Final = 32
MAX_ARRAY: Final = 65_536
"""Elements of an array whose elements have no octets of their own (null, true, empty list)."""


class DecodeError(ValueError):
    """The octets are no AMQP value. What the peer hears is amqp:decode-error."""


_FIXED: Final[dict[int, tuple[struct.Struct, Callable[[Any], Any]]]] = {
    0x50: (struct.Struct(">B"), Ubyte),
    0x51: (struct.Struct(">b"), Byte),
    0x52: (struct.Struct(">B"), Uint),
    0x53: (struct.Struct(">B"), Ulong),
    0x54: (struct.Struct(">b"), Int),
    0x55: (struct.Struct(">b"), Long),
    0x60: (struct.Struct(">H"), Ushort),
    0x61: (struct.Struct(">h"), Short),
    0x70: (struct.Struct(">I"), Uint),
    0x71: (struct.Struct(">i"), Int),
    0x72: (struct.Struct(">f"), float),
    0x80: (struct.Struct(">Q"), Ulong),
    0x81: (struct.Struct(">q"), Long),
    0x82: (struct.Struct(">d"), float),
    0x83: (struct.Struct(">q"), Timestamp),
}
_EMPTY: Final[dict[int, Callable[[], Any]]] = {
    0x40: lambda: None,
    0x41: lambda: True,
    0x42: lambda: False,
    0x43: lambda: Uint(0),
    0x44: lambda: Ulong(0),
    0x45: list,
}
_DECIMAL_SIZES: Final = {0x74: 4, 0x84: 8, 0x94: 16}
_U32: Final = struct.Struct(">I")
_HASHABLE: Final = (type(None), bool, int, float, str, bytes, UUID)


class _Reader:
    """Reads values from `octets`, from `at` on."""

    __slots__ = ("at", "end", "octets")

    def __init__(self, octets: bytes, at: int, end: int) -> None:
        self.octets = octets
        self.at = at
        self.end = end

    def take(self, size: int) -> int:
        """Where the next `size` octets begin; they are consumed."""
        at = self.at
        if size > self.end - at:
            raise DecodeError(f"{size} octets expected at {at}, there are {self.end - at}")
        self.at = at + size
        return at

    def octet(self) -> int:
        return self.octets[self.take(1)]

    def width(self, *, wide: bool) -> int:
        """A size or count: one octet, or four."""
        return int(_U32.unpack_from(self.octets, self.take(4))[0]) if wide else self.octet()

    def value(self, depth: int = 0) -> Any:
        """The next value."""
        return self.of(self.octet(), depth)

    def of(self, code: int, depth: int) -> Any:
        """A value whose constructor, `code`, is already read."""
        if depth > MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        fixed = _FIXED.get(code)
        if fixed is not None:
            layout, make = fixed
            return make(layout.unpack_from(self.octets, self.take(layout.size))[0])
        empty = _EMPTY.get(code)
        if empty is not None:
            return empty()
        match code >> 4:
            case 0xA | 0xB:
                return self.variable(code)
            case 0xC | 0xD:
                return self.compound(code, depth)
            case 0xE | 0xF:
                return self.array(code, depth)
        return self.other(code, depth)

    def variable(self, code: int) -> Any:
        size = self.width(wide=code >= 0xB0)
        at = self.take(size)
        octets = self.octets[at : at + size]
        low = code & 0x0F
        if low == 0x0:
            return octets
        try:
            if low == 0x1:
                return octets.decode("utf-8")
            if low == 0x3:
                return Symbol(octets.decode("ascii"))
        except UnicodeDecodeError as error:
            raise DecodeError(f"string or symbol at {at}: {error}") from None
        raise DecodeError(f"unknown constructor {code:#04x}")

    def compound(self, code: int, depth: int) -> Any:
        wide = code >= 0xD0
        size = self.width(wide=wide)
        end = self.at + size
        if end > self.end:
            raise DecodeError(f"a list or map of {size} octets at {self.at}, there are {self.end - self.at}")
        outer, self.end = self.end, end
        count = self.width(wide=wide)
        if count > end - self.at:
            raise DecodeError(f"a list or map of {count} items in {end - self.at} octets")
        items = [self.value(depth + 1) for _ in range(count)]
        if self.at != end:
            raise DecodeError(f"a list or map ends at {self.at}, its size says {end}")
        self.end = outer
        low = code & 0x0F
        if low == 0x0:
            return items
        if low == 0x1:
            return _as_map(items)
        raise DecodeError(f"unknown constructor {code:#04x}")

    def array(self, code: int, depth: int) -> Array:
        if code & 0x0F:
            raise DecodeError(f"unknown constructor {code:#04x}")
        wide = code >= 0xF0
        size = self.width(wide=wide)
        end = self.at + size
        if end > self.end:
            raise DecodeError(f"an array of {size} octets at {self.at}, there are {self.end - self.at}")
        outer, self.end = self.end, end
        count = self.width(wide=wide)
        element = self.octet()
        descriptor: list[Any] = []
        while element == 0x00:
            if len(descriptor) > MAX_DEPTH:
                raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
            descriptor.append(self.value(depth + 1))
            element = self.octet()
        if count > (MAX_ARRAY if element in _EMPTY else end - self.at):
            raise DecodeError(f"an array of {count} elements in {end - self.at} octets")
        items = Array()
        for _ in range(count):
            item = self.of(element, depth + 1)
            for name in reversed(descriptor):
                item = Described(name, item)
            items.append(item)
        if self.at != end:
            raise DecodeError(f"an array ends at {self.at}, its size says {end}")
        self.end = outer
        return items

    def other(self, code: int, depth: int) -> Any:
        if code == 0x00:
            descriptor = self.value(depth + 1)
            return Described(descriptor, self.value(depth + 1))
        if code == 0x56:
            flag = self.octet()
            if flag > 1:
                raise DecodeError(f"a boolean is 0 or 1, not {flag}")
            return flag == 1
        if code == 0x73:
            at = self.take(4)
            try:
                return Char(self.octets[at : at + 4].decode("utf-32-be"))
            except UnicodeDecodeError as error:
                raise DecodeError(f"char at {at}: {error}") from None
        if code == 0x98:
            at = self.take(16)
            return UUID(bytes=self.octets[at : at + 16])
        size = _DECIMAL_SIZES.get(code)
        if size is not None:
            at = self.take(size)
            return Decimal(code, self.octets[at : at + size])
        raise DecodeError(f"unknown constructor {code:#04x}")


def _as_map(items: list[Any]) -> dict[Any, Any]:
    if len(items) % 2:
        raise DecodeError(f"a map has {len(items)} items, an odd number")
    keys = items[::2]
    if not all(isinstance(key, _HASHABLE) for key in keys):
        raise DecodeError("a map's key is not a simple value")
    pairs = dict(zip(keys, items[1::2], strict=True))
    if len(pairs) != len(keys):
        raise DecodeError("a map has a key twice")
    return pairs


def decode(octets: bytes | bytearray | memoryview) -> Any:
    """The one value that `octets` (any bytes-like object) are; DecodeError for anything else."""
    reader = _Reader(bytes(octets), 0, len(octets))
    value = reader.value()
    if reader.at != reader.end:
        raise DecodeError(f"{reader.end - reader.at} octets after the value")
    return value


def decode_from(octets: bytes, at: int = 0) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends; DecodeError when there is none."""
    reader = _Reader(octets, at, len(octets))
    value = reader.value()
    return value, reader.at


def skip(octets: bytes, at: int = 0) -> int:
    """Where the value ends that begins at `at`, without building it; DecodeError when it does not end."""
    end = len(octets)
    descriptors = 0
    while at < end and octets[at] == 0x00:
        descriptors += 1
        if descriptors > MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        at = skip(octets, at + 1) if octets[at + 1 : at + 2] == b"\x00" else _skip_simple(octets, at + 1)
    return _skip_simple(octets, at)


def _skip_simple(octets: bytes, at: int) -> int:
    if at >= len(octets):
        raise DecodeError(f"a value expected at {at}, there is none")
    code = octets[at]
    at += 1
    kind = code >> 4
    if kind in {0xA, 0xC, 0xE}:
        at += 1 + octets[at] if at < len(octets) else 1
    elif kind in {0xB, 0xD, 0xF}:
        at += 4 + _U32.unpack_from(octets, at)[0] if at + 4 <= len(octets) else 4
    elif kind in _FIXED_SIZES:
        at += _FIXED_SIZES[kind]
    else:
        raise DecodeError(f"unknown constructor {code:#04x}")
    if at > len(octets):
        raise DecodeError(f"a value ends at {at}, there are {len(octets)} octets")
    return at


_FIXED_SIZES: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


# --- encoding -------------------------------------------------------------------------------------------
def _small(code_zero: int | None, code_small: int, code: int, layout: str) -> Callable[[int], bytes]:
    """An encoder for integers with a one-octet form, and where `code_zero` is given, one for zero."""
    wide = struct.Struct(">B" + layout)
    narrow = struct.Struct(">Bb" if layout.islower() else ">BB")
    low, high = (-128, 127) if layout.islower() else (0, 255)

    def encoded(value: int) -> bytes:
        if value == 0 and code_zero is not None:
            return bytes((code_zero,))
        if low <= value <= high:
            return narrow.pack(code_small, value)
        return wide.pack(code, value)

    return encoded


def _plain(code: int, layout: str) -> Callable[[Any], bytes]:
    packer = struct.Struct(">B" + layout)
    return lambda value: packer.pack(code, value)


def _sized(code: int, octets: bytes) -> bytes:
    """A variable-width value: `code` is the constructor with one octet of size."""
    if len(octets) <= 255:
        return bytes((code, len(octets))) + octets
    return bytes((code + 0x10,)) + _U32.pack(len(octets)) + octets


def _compound(code: int, count: int, octets: bytes) -> bytes:
    if count <= 255 and len(octets) < 255:
        return bytes((code, len(octets) + 1, count)) + octets
    return bytes((code + 0x10,)) + _U32.pack(len(octets) + 4) + _U32.pack(count) + octets


def _list(value: list[Any]) -> bytes:
    return _compound(0xC0, len(value), b"".join(map(encode, value))) if value else b"\x45"


def _map(value: dict[Any, Any]) -> bytes:
    octets = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _compound(0xC1, 2 * len(value), octets)


_ELEMENTS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Symbol: (0xB3, lambda value: _U32.pack(len(value)) + value.encode("ascii")),
    Uint: (0x70, _U32.pack),
    bytes: (0xB0, lambda value: _U32.pack(len(value)) + value),
}


def _array(value: Array) -> bytes:
    kinds = {type(item) for item in value} or {Symbol}
    if len(kinds) != 1 or not kinds <= _ELEMENTS.keys():
        raise TypeError(f"no array of {', '.join(sorted(kind.__name__ for kind in kinds))}")
    code, element = _ELEMENTS[kinds.pop()]
    octets = bytes((code,)) + b"".join(map(element, value))
    return _compound(0xE0, len(value), octets)


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    type(None): lambda _: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    Ubyte: _plain(0x50, "B"),
    Ushort: _plain(0x60, "H"),
    Uint: _small(0x43, 0x52, 0x70, "I"),
    Ulong: _small(0x44, 0x53, 0x80, "Q"),
    Byte: _plain(0x51, "b"),
    Short: _plain(0x61, "h"),
    Int: _small(None, 0x54, 0x71, "i"),
    Long: _small(None, 0x55, 0x81, "q"),
    float: _plain(0x82, "d"),
    Timestamp: _plain(0x83, "q"),
    Char: lambda value: b"\x73" + value.encode("utf-32-be"),
    Decimal: lambda value: bytes((value.code,)) + value.octets,
    bytes: lambda value: _sized(0xA0, value),
    str: lambda value: _sized(0xA1, value.encode("utf-8")),
    Symbol: lambda value: _sized(0xA3, value.encode("ascii")),
    UUID: lambda value: b"\x98" + value.bytes,
    list: _list,
    dict: _map,
    Array: _array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}


def encode(value: Any) -> bytes:
    """`value` in the shortest form of its type; TypeError for a Python type that is no AMQP type (a plain int
    is none), struct.error for a number that does not fit."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"{type(value).__name__} is no AMQP type")
    return encoder(value)
