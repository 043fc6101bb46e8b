"""Octets of AMQP 1.0's type system from values: each in the shortest form that its type has, so that equal
values are equal octets. `decoding`, which reads them back, describes the layout.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dtx.amqp.values import (
    Array,
    Byte,
    Char,
    Decimal,
    Described,
    Float,
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
    from collections.abc import Callable, Sequence

_U32: Final = struct.Struct(">I")


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


def _compounded(code: int, count: int, octets: bytes) -> bytes:
    if count <= 255 and len(octets) < 255:
        return bytes((code, len(octets) + 1, count)) + octets
    return bytes((code + 0x10,)) + _U32.pack(len(octets) + 4) + _U32.pack(count) + octets


def encode_list(items: Sequence[bytes]) -> bytes:
    """A list of values that are encoded already."""
    return _compounded(0xC0, len(items), b"".join(items)) if items else b"\x45"


def _map(value: dict[Any, Any]) -> bytes:
    return _compounded(0xC1, 2 * len(value), _pairs(value))


def _pairs(value: dict[Any, Any]) -> bytes:
    return b"".join(encode(key) + encode(item) for key, item in value.items())


def _wide(octets: bytes) -> bytes:
    return _U32.pack(len(octets)) + octets


def _wide_items(count: int, octets: bytes) -> bytes:
    return _wide(_U32.pack(count) + octets)


_ELEMENTS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    type(None): (0x40, lambda _: b""),
    bool: (0x56, lambda value: b"\x01" if value else b"\x00"),
    Ubyte: (0x50, struct.Struct(">B").pack),
    Ushort: (0x60, struct.Struct(">H").pack),
    Uint: (0x70, _U32.pack),
    Ulong: (0x80, struct.Struct(">Q").pack),
    Byte: (0x51, struct.Struct(">b").pack),
    Short: (0x61, struct.Struct(">h").pack),
    Int: (0x71, struct.Struct(">i").pack),
    Long: (0x81, struct.Struct(">q").pack),
    Float: (0x72, struct.Struct(">f").pack),
    float: (0x82, struct.Struct(">d").pack),
    Timestamp: (0x83, struct.Struct(">q").pack),
    Char: (0x73, lambda value: value.encode("utf-32-be")),
    bytes: (0xB0, _wide),
    str: (0xB1, lambda value: _wide(value.encode("utf-8"))),
    Symbol: (0xB3, lambda value: _wide(value.encode("ascii"))),
    UUID: (0x98, lambda value: value.bytes),
    list: (0xD0, lambda value: _wide_items(len(value), b"".join(map(encode, value)))),
    dict: (0xD1, lambda value: _wide_items(2 * len(value), _pairs(value))),
    Array: (0xF0, lambda value: _wide_items(len(value), _elements(value))),
}
"""The type of an array's elements → their constructor, in its widest form, and what encodes the data of one."""


def element_constructor(kind: type) -> bytes:
    """The constructor of elements of this type in an array."""
    return bytes((_ELEMENTS[kind][0],))


def _elements(items: Array | list[Any]) -> bytes:
    """The constructor of an array's elements, and their data."""
    if not items:
        return (items.empty_of if isinstance(items, Array) else b"") or b"\xb3"  # none says of what: symbols
    kinds = {type(item) for item in items}
    kind = kinds.pop()
    if kind is Described and not kinds:
        descriptor = encode(items[0].descriptor)
        if all(encode(item.descriptor) == descriptor for item in items):
            return b"\x00" + descriptor + _elements([item.value for item in items])
    if kind is Decimal and not kinds and len({item.code for item in items}) == 1:
        return bytes((items[0].code,)) + b"".join(item.octets for item in items)
    if kinds or kind not in _ELEMENTS:
        raise TypeError(f"no array of {', '.join(sorted(each.__name__ for each in (kind, *kinds)))}")
    code, element = _ELEMENTS[kind]
    return bytes((code,)) + b"".join(map(element, items))


def _encode_array(value: Array) -> bytes:
    return _compounded(0xE0, len(value), _elements(value))


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
    Float: _plain(0x72, "f"),
    float: _plain(0x82, "d"),
    Timestamp: _plain(0x83, "q"),
    Char: lambda value: b"\x73" + value.encode("utf-32-be"),
    Decimal: lambda value: bytes((value.code,)) + value.octets,
    bytes: lambda value: _sized(0xA0, value),
    str: lambda value: _sized(0xA1, value.encode("utf-8")),
    Symbol: lambda value: _sized(0xA3, value.encode("ascii")),
    UUID: lambda value: b"\x98" + value.bytes,
    list: lambda value: encode_list([encode(item) for item in value]),
    dict: _map,
    Array: _encode_array,
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}


def encode(value: Any) -> bytes:
    """`value` in the shortest form of its type; TypeError for a Python type that is no AMQP type (a plain int
    is none), struct.error for a number that does not fit."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"{type(value).__name__} is not an AMQP type")
    return encoder(value)
