"""Octets of AMQP 1.0's type system from values: each in the shortest form that its type has, so that equal
values are equal octets. `decoding`, which reads them back, describes the layout.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeVar, cast
from uuid import UUID

from dtx.amqp import values
from dtx.amqp.values import Array, Described

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dtx.amqp.values import Map, Value

    Encoder = Callable[[Value], bytes]

V = TypeVar("V")

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


def _plain(code: int, layout: str) -> Callable[[V], bytes]:
    pack: Callable[[int, V], bytes] = struct.Struct(">B" + layout).pack
    return lambda value: pack(code, value)


def _packing(layout: str) -> Callable[[V], bytes]:
    pack: Callable[[V], bytes] = struct.Struct(layout).pack
    return pack


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


def encode_boolean(value: bool) -> bytes:
    """A boolean."""
    return b"\x41" if value else b"\x42"


encode_ubyte: Final[Callable[[int], bytes]] = _plain(0x50, "B")
encode_ushort: Final[Callable[[int], bytes]] = _plain(0x60, "H")
encode_uint: Final = _small(0x43, 0x52, 0x70, "I")
encode_ulong: Final = _small(0x44, 0x53, 0x80, "Q")
encode_timestamp: Final[Callable[[int], bytes]] = _plain(0x83, "q")
"""A number as a value of this type; struct.error for one that does not fit."""


def encode_binary(value: bytes) -> bytes:
    """Octets."""
    return _sized(0xA0, value)


def encode_string(value: str) -> bytes:
    """Text."""
    return _sized(0xA1, value.encode("utf-8"))


def encode_symbol(value: str) -> bytes:
    """A symbol; UnicodeEncodeError for a text that is not ASCII."""
    return _sized(0xA3, value.encode("ascii"))


def encode_map(value: Map) -> bytes:
    """A map."""
    return _compounded(0xC1, 2 * len(value), _pairs(value))


def encode_pairs(items: int, octets: bytes) -> bytes:
    """A map of so many keys and values that are encoded already."""
    return _compounded(0xC1, items, octets)


def _pairs(value: Map) -> bytes:
    return b"".join([encode(key) + encode(item) for key, item in value.items()])


def _wide(octets: bytes) -> bytes:
    return _U32.pack(len(octets)) + octets


def _wide_items(count: int, octets: bytes) -> bytes:
    return _wide(_U32.pack(count) + octets)


def _for(kind: type[V], encoder: Callable[[V], bytes]) -> tuple[type, Encoder]:
    """An entry of a table by types. An encoder that was found by the type of a value is called with values of that type
    only."""
    return kind, cast("Encoder", encoder)


def _element(kind: type[V], code: int, encoder: Callable[[V], bytes]) -> tuple[type, tuple[int, Encoder]]:
    return kind, (code, _for(kind, encoder)[1])


_ELEMENTS: Final = dict(
    (
        _element(type(None), 0x40, lambda _: b""),
        _element(bool, 0x56, lambda value: b"\x01" if value else b"\x00"),
        _element(values.Ubyte, 0x50, _packing(">B")),
        _element(values.Ushort, 0x60, _packing(">H")),
        _element(values.Uint, 0x70, _packing(">I")),
        _element(values.Ulong, 0x80, _packing(">Q")),
        _element(values.Byte, 0x51, _packing(">b")),
        _element(values.Short, 0x61, _packing(">h")),
        _element(values.Int, 0x71, _packing(">i")),
        _element(values.Long, 0x81, _packing(">q")),
        _element(values.Float, 0x72, _packing(">f")),
        _element(float, 0x82, _packing(">d")),
        _element(values.Timestamp, 0x83, _packing(">q")),
        _element(values.Char, 0x73, lambda value: value.encode("utf-32-be")),
        _element(bytes, 0xB0, _wide),
        _element(str, 0xB1, lambda value: _wide(value.encode("utf-8"))),
        _element(values.Symbol, 0xB3, lambda value: _wide(value.encode("ascii"))),
        _element(UUID, 0x98, lambda value: value.bytes),
        _element(list, 0xD0, lambda value: _wide_items(len(value), b"".join(map(encode, value)))),
        _element(dict, 0xD1, lambda value: _wide_items(2 * len(value), _pairs(value))),
        _element(Array, 0xF0, lambda value: _wide_items(len(value), _elements(value))),
    )
)
"""The type of an array's elements → their constructor, in its widest form, and what encodes the data of one."""


def element_constructor(kind: type) -> bytes:
    """The constructor of elements of this type in an array."""
    return bytes((_ELEMENTS[kind][0],))


def _elements(items: Sequence[Value]) -> bytes:
    """The constructor of an array's elements, and their data."""
    if not items:
        return (items.empty_of if isinstance(items, Array) else b"") or b"\xb3"  # none says of what: symbols
    kinds = {type(item) for item in items}
    kind = kinds.pop()
    if kinds:
        raise _no_array((kind, *kinds))
    if kind is Described:
        return _described_elements([item for item in items if isinstance(item, Described)])
    if kind is values.Decimal:
        return _decimal_elements([item for item in items if isinstance(item, values.Decimal)])
    if kind not in _ELEMENTS:
        raise _no_array((kind,))
    code, element = _ELEMENTS[kind]
    return bytes((code,)) + b"".join(map(element, items))


def _described_elements(items: Sequence[Described]) -> bytes:
    descriptor = encode(items[0].descriptor)
    if any(encode(item.descriptor) != descriptor for item in items):
        raise _no_array((Described,))
    return b"\x00" + descriptor + _elements([item.value for item in items])


def _decimal_elements(items: Sequence[values.Decimal]) -> bytes:
    code = items[0].code
    if any(item.code != code for item in items):
        raise _no_array((values.Decimal,))
    return bytes((code,)) + b"".join([item.octets for item in items])


def _no_array(kinds: Iterable[type]) -> TypeError:
    return TypeError(f"no array of {', '.join(sorted(each.__name__ for each in kinds))}")


def _encode_array(value: Array) -> bytes:
    return _compounded(0xE0, len(value), _elements(value))


_ENCODERS: Final = dict(
    (
        _for(type(None), lambda _: b"\x40"),
        _for(bool, encode_boolean),
        _for(values.Ubyte, encode_ubyte),
        _for(values.Ushort, encode_ushort),
        _for(values.Uint, encode_uint),
        _for(values.Ulong, encode_ulong),
        _for(values.Byte, _plain(0x51, "b")),
        _for(values.Short, _plain(0x61, "h")),
        _for(values.Int, _small(None, 0x54, 0x71, "i")),
        _for(values.Long, _small(None, 0x55, 0x81, "q")),
        _for(values.Float, _plain(0x72, "f")),
        _for(float, _plain(0x82, "d")),
        _for(values.Timestamp, encode_timestamp),
        _for(values.Char, lambda value: b"\x73" + value.encode("utf-32-be")),
        _for(values.Decimal, lambda value: bytes((value.code,)) + value.octets),
        _for(bytes, encode_binary),
        _for(str, encode_string),
        _for(values.Symbol, encode_symbol),
        _for(UUID, lambda value: b"\x98" + value.bytes),
        _for(list, lambda value: encode_list([encode(item) for item in value])),
        _for(dict, encode_map),
        _for(Array, _encode_array),
        _for(Described, lambda value: b"\x00" + encode(value.descriptor) + encode(value.value)),
    )
)


def encode(value: Value) -> bytes:
    """`value` in the shortest form of its type; TypeError for a Python type that is no AMQP type (a plain int
    is none), struct.error for a number that does not fit."""
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise TypeError(f"{type(value).__name__} is not an AMQP type")
    return encoder(value)
