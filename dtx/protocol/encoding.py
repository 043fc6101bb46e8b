"""The AMQP 1.0 type encodings that the bytes in front of proton need: a bounded decoder, and what is written.

A value is a constructor octet and data; its first half says how long the data is:
  0x4_ nothing · 0x5_ 1 octet · 0x6_ 2 · 0x7_ 4 · 0x8_ 8 · 0x9_ 16
  0xa_ length(1) data · 0xb_ length(4) data · 0xc_ size(1) count(1) items · 0xd_ size(4) count(4) items
  0xe_ size(1) count(1) constructor data… · 0xf_ size(4) count(4) constructor data… (arrays)
  0x00 descriptor value (a described value)
Decoding never reads past the end it was given, never nests deeper than MAX_DEPTH, and makes not many more
objects than the input has octets (arrays of elements without data are bounded by MAX_EMPTY).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_DEPTH: Final = 16
MAX_EMPTY: Final = 8


class EncodingError(ValueError):
    """The octets are not a value of AMQP 1.0, or not one that fits into its bounds."""


class Symbol(str):
    """An AMQP symbol: ASCII text that is not a string."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A described value, such as a delivery state."""

    descriptor: Any
    value: Any


def _fixed(fmt: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(fmt).unpack
    return lambda octets: unpack(octets)[0]


def _boolean(octets: bytes) -> bool:
    if octets not in {b"\0", b"\1"}:
        raise EncodingError(f"a boolean is 0 or 1, not {octets.hex()}")
    return octets == b"\1"


def _char(octets: bytes) -> str:
    code = int.from_bytes(octets, "big")
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise EncodingError(f"{code:#x} is no Unicode character")
    return chr(code)


def _string(octets: bytes) -> str:
    return octets.decode("utf-8")


def _symbol(octets: bytes) -> Symbol:
    return Symbol(octets.decode("ascii"))


_SIMPLE: Final[dict[int, Callable[[bytes], Any]]] = {
    0x40: lambda _: None,
    0x41: lambda _: True,
    0x42: lambda _: False,
    0x43: lambda _: 0,
    0x44: lambda _: 0,
    0x45: lambda _: [],
    0x50: _fixed(">B"),
    0x51: _fixed(">b"),
    0x52: _fixed(">B"),
    0x53: _fixed(">B"),
    0x54: _fixed(">b"),
    0x55: _fixed(">b"),
    0x56: _boolean,
    0x60: _fixed(">H"),
    0x61: _fixed(">h"),
    0x70: _fixed(">I"),
    0x71: _fixed(">i"),
    0x72: _fixed(">f"),
    0x73: _char,
    0x74: bytes,  # decimal32, 64 and 128 stay as they are
    0x80: _fixed(">Q"),
    0x81: _fixed(">q"),
    0x82: _fixed(">d"),
    0x83: _fixed(">q"),
    0x84: bytes,
    0x94: bytes,
    0x98: bytes,  # uuid
    0xA0: bytes,
    0xA1: _string,
    0xA3: _symbol,
    0xB0: bytes,
    0xB1: _string,
    0xB3: _symbol,
}
"""Constructor → how its data reads; compound constructors are in `_value`."""

_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
_LISTS: Final = frozenset({0xC0, 0xD0})
_MAPS: Final = frozenset({0xC1, 0xD1})
_ARRAYS: Final = frozenset({0xE0, 0xF0})


def extent(data: bytes, position: int, end: int) -> int:
    """Where the value that starts at `position` ends; what is inside of it is not looked at."""
    values = 1
    for _ in range(MAX_DEPTH):
        if position >= end:
            raise EncodingError("a value is cut off")
        if data[position] == 0:  # a descriptor and a value follow
            position += 1
            values += 1
            continue
        position = _data_end(data[position], data, position + 1, end)
        values -= 1
        if not values:
            return position
    raise EncodingError(f"more than {MAX_DEPTH} descriptors in a row")


def decode(data: bytes, position: int = 0, end: int | None = None) -> tuple[Any, int]:
    """The value at `position`, and where it ends. EncodingError says what is wrong with the octets."""
    return _value(data, position, len(data) if end is None else end, MAX_DEPTH)


def fields(data: bytes, position: int, end: int) -> list[int]:
    """Where the items of the list at `position` start, and at last where the list ends."""
    if position < end and data[position] == 0x45:
        return [position + 1]
    if position >= end or data[position] not in _LISTS:
        raise EncodingError("expected a list")
    count, position, end = _compound(data[position], data, position + 1, end)
    starts = [position]
    for _ in range(count):
        position = extent(data, position, end)
        starts.append(position)
    if position != end:
        raise EncodingError("a list is longer than its items")
    return starts


def _data_end(constructor: int, data: bytes, position: int, end: int) -> int:
    half = constructor >> 4
    if half in _WIDTHS:
        position += _WIDTHS[half]
    elif half in {0xA, 0xC, 0xE}:
        if position >= end:
            raise EncodingError("a length is cut off")
        position += 1 + data[position]
    elif half in {0xB, 0xD, 0xF}:
        position += 4 + int.from_bytes(data[position : min(position + 4, end)].ljust(4, b"\xff"), "big")
    else:
        raise EncodingError(f"unknown constructor {constructor:#04x}")
    if position > end:
        raise EncodingError(f"a value of constructor {constructor:#04x} is cut off")
    return position


def _compound(constructor: int, data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Count, start and end of a compound value's items."""
    width = 1 if constructor < 0xD0 or 0xE0 <= constructor < 0xF0 else 4
    end = _data_end(constructor, data, position, end)
    items = position + 2 * width
    if items > end:
        raise EncodingError("a compound value has no room for its count")
    return int.from_bytes(data[position + width : items], "big"), items, end


def _value(data: bytes, position: int, end: int, depth: int) -> tuple[Any, int]:
    if position >= end:
        raise EncodingError("a value is cut off")
    constructor = data[position]
    if constructor:
        return _data(constructor, data, position + 1, end, depth)
    if not depth:
        raise EncodingError(f"a value is nested deeper than {MAX_DEPTH}")
    descriptor, position = _value(data, position + 1, end, depth - 1)
    value, position = _value(data, position, end, depth - 1)
    return Described(descriptor, value), position


def _data(constructor: int, data: bytes, position: int, end: int, depth: int) -> tuple[Any, int]:
    if constructor in _SIMPLE:
        end = _data_end(constructor, data, position, end)
        start = position + (0 if constructor < 0xA0 else 1 if constructor < 0xB0 else 4)
        try:
            return _SIMPLE[constructor](data[start:end]), end
        except UnicodeDecodeError as error:
            raise EncodingError(f"a value of constructor {constructor:#04x}: {error}") from error
    if not depth:
        raise EncodingError(f"a value is nested deeper than {MAX_DEPTH}")
    count, position, end = _compound(constructor, data, position, end)
    if constructor in _ARRAYS:
        return _array(data, position, end, count, depth - 1), end
    if constructor not in _LISTS and constructor not in _MAPS:
        raise EncodingError(f"unknown constructor {constructor:#04x}")
    if count > end - position:
        raise EncodingError(f"{count} items in {end - position} octets")
    items = []
    for _ in range(count):
        item, position = _value(data, position, end, depth - 1)
        items.append(item)
    if position != end:
        raise EncodingError("a compound value is longer than its items")
    return (_map(items) if constructor in _MAPS else items), end


def _map(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    if len(items) % 2:
        raise EncodingError("a map has a key without a value")
    if any(isinstance(key, (list, dict, Described)) for key in keys):
        raise EncodingError("a map has a key that is not a simple value")
    mapping = dict(zip(keys, items[1::2], strict=True))
    if len(mapping) != len(keys):
        raise EncodingError("a map has a key twice")
    return mapping


def _array(data: bytes, position: int, end: int, count: int, depth: int) -> list[Any]:
    if position >= end:
        raise EncodingError("an array has no constructor")
    described = data[position] == 0
    descriptor = None
    if described:
        descriptor, position = _value(data, position + 1, end, depth)
    if position >= end or data[position] == 0:
        raise EncodingError("an array has no constructor, or a descriptor within a descriptor")
    constructor = data[position]
    position += 1
    if count > max(end - position, MAX_EMPTY):
        raise EncodingError(f"{count} elements in {end - position} octets")
    elements: list[Any] = []
    for _ in range(count):
        element, position = _data(constructor, data, position, end, depth)
        elements.append(Described(descriptor, element) if described else element)
    if position != end:
        raise EncodingError("an array is longer than its elements")
    return elements


NULL: Final = b"\x40"
TRUE: Final = b"\x41"


def _variable(short: int, octets: bytes) -> bytes:
    if len(octets) < 256:
        return bytes((short, len(octets))) + octets
    return bytes((short + 0x10,)) + len(octets).to_bytes(4, "big") + octets


def binary(octets: bytes) -> bytes:
    """A binary value."""
    return _variable(0xA0, octets)


def string(text: str) -> bytes:
    """A string."""
    return _variable(0xA1, text.encode("utf-8"))


def symbol(text: str) -> bytes:
    """A symbol."""
    return _variable(0xA3, text.encode("ascii"))


def ubyte(number: int) -> bytes:
    """An unsigned octet."""
    return bytes((0x50, number))


def symbols(texts: Sequence[str]) -> bytes:
    """An array of symbols."""
    elements = [text.encode("ascii") for text in texts]
    body = b"\xb3" + b"".join(len(element).to_bytes(4, "big") + element for element in elements)
    return b"\xf0" + (len(body) + 4).to_bytes(4, "big") + len(elements).to_bytes(4, "big") + body


def _compound_of(short: int, items: Sequence[bytes]) -> bytes:
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return bytes((short, len(body) + 1, len(items))) + body
    return bytes((short + 0x10,)) + (len(body) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + body


def listed(items: Sequence[bytes]) -> bytes:
    """A list of values that are encoded already."""
    return _compound_of(0xC0, items)


def mapped(items: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A map of keys and values that are encoded already."""
    return _compound_of(0xC1, [octets for item in items for octets in item])


def composite(code: int, items: Sequence[bytes]) -> bytes:
    """A described list with a descriptor below 256: a performative, a delivery state, a SASL body."""
    return bytes((0x00, 0x53, code)) + listed(items)
