"""Octets of AMQP 1.0's type system from values: each in the shortest form that its type has, so that equal
values are equal octets. The layout is told in `decoding`, which reads them back.
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
    octets = b"".join(encode(key) + encode(item) for key, item in value.items())
    return _compounded(0xC1, 2 * len(value), octets)


_ELEMENTS: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Symbol: (0xB3, lambda value: _U32.pack(len(value)) + value.encode("ascii")),
    Uint: (0x70, _U32.pack),
    bytes: (0xB0, lambda value: _U32.pack(len(value)) + value),
}


def _encode_array(value: Array) -> bytes:
    kinds = {type(item) for item in value} or {Symbol}
    if len(kinds) != 1 or not kinds <= _ELEMENTS.keys():
        raise TypeError(f"no array of {', '.join(sorted(kind.__name__ for kind in kinds))}")
    code, element = _ELEMENTS[kinds.pop()]
    octets = bytes((code,)) + b"".join(map(element, value))
    return _compounded(0xE0, len(value), octets)


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
