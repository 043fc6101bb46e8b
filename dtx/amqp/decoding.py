"""Values of AMQP 1.0's type system from octets, strict and bounded: for control and command messages, message
sections, SASL, and the performatives that proton does not show.

A value is a constructor octet and data; its first half says how long the data is:
  0x4_ nothing · 0x5_ 1 octet · 0x6_ 2 · 0x7_ 4 · 0x8_ 8 · 0x9_ 16
  0xa_ length(1) data · 0xb_ length(4) data · 0xc_ size(1) count(1) items · 0xd_ size(4) count(4) items
  0xe_ size(1) count(1) constructor data… · 0xf_ size(4) count(4) constructor data… (arrays)
  0x00 descriptor value (a described value)
Octets are a value's if and only if `decode` reads them to their end without DecodeError. Decoding makes not many
more objects than there are octets.

A map becomes a dict, and the peer chooses its keys. Python hides the hash of text and octets from a peer, but that of a
number or a UUID can be computed, so that a peer could choose keys which all meet in one place of the dict's table: to
make the dict would take the square of their number. `keys_collide` recognises such keys, and they are refused. `find`
reads a few entries of a map without making a dict at all.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from uuid import UUID

from dtx.amqp import values
from dtx.amqp.values import Array, Described, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dtx.amqp.values import Map, Value

    V = TypeVar("V")
    W = TypeVar("W")
    Reader: TypeAlias = Callable[[bytes, int, int, int], tuple[V, int]]
    """Takes the octets, where the data behind the constructor begins, where it must have ended, and how much deeper
    values may be nested; gives the value, and where it ends."""

MAX_DEPTH: Final = 32
MAX_ARRAY: Final = 8
"""Elements of an array whose elements have no octets of their own (null, true, empty list)."""
MAX_SYMBOLS: Final = 1000
LONGEST_SYMBOL: Final = 64
"""Octets of a symbol that is remembered, and how many of these are."""
FEW_KEYS: Final = 64
"""So many keys may all collide: the time that takes is less than that for reading them."""
MOST_PROBES: Final = 32
"""Places of the table that may be looked at for each key of a dict: 1 or 2 for usual keys, up to 14 for honest ones
that are all multiples of a large power of two."""
_PERTURB_SHIFT: Final = 5
_U64: Final = (1 << 64) - 1

_u32_at: Final[Callable[[bytes, int], tuple[int]]] = struct.Struct(">I").unpack_from
_HASHABLE: Final = (type(None), bool, int, float, str, bytes, UUID)
_SEED: Final = os.environ.get("PYTHONHASHSEED", "")
_SECRET: Final[frozenset[type]] = frozenset(
    {str, Symbol, values.Char, bytes} if sys.flags.hash_randomization and _SEED in {"", "random"} else ()
)
"""The types whose hash a peer can't compute. There are none where the seed of the hashes is fixed, as Spark does."""


class DecodeError(ValueError):
    """The octets are no AMQP value. The peer gets amqp:decode-error."""


def _cut_off(at: int, end: int) -> DecodeError:
    return DecodeError(f"a value at {at} is cut off at {end}")


def _constant(value: V) -> Reader[V]:
    return lambda _octets, at, _end, _depth: (value, at)


def _octet(kinds: Sequence[V]) -> Reader[V]:
    def read(octets: bytes, at: int, end: int, _depth: int) -> tuple[V, int]:
        if at >= end:
            raise _cut_off(at, end)
        return kinds[octets[at]], at + 1

    return read


def _fixed(layout: str, make: Callable[[W], V]) -> Reader[V]:
    unpack: Callable[[bytes, int], tuple[W]] = struct.Struct(layout).unpack_from
    size = struct.calcsize(layout)

    def read(octets: bytes, at: int, end: int, _depth: int) -> tuple[V, int]:
        stop = at + size
        if stop > end:
            raise _cut_off(at, end)
        return make(unpack(octets, at)[0]), stop

    return read


def _span(octets: bytes, at: int, end: int, width: int) -> tuple[int, int]:
    """Where data begins and ends that stands behind a size of `width` octets."""
    start = at + width
    if start > end:
        raise _cut_off(at, end)
    stop = start + (octets[at] if width == 1 else _u32_at(octets, at)[0])
    if stop > end:
        raise _cut_off(at, end)
    return start, stop


def _variable(width: int, make: Callable[[bytes], V]) -> Reader[V]:
    def read(octets: bytes, at: int, end: int, _depth: int) -> tuple[V, int]:
        start, stop = _span(octets, at, end, width)
        return make(octets[start:stop]), stop

    return read


_symbols: Final[dict[bytes, Symbol]] = {}


def _as_symbol(octets: bytes) -> Symbol:
    symbol = _symbols.get(octets)
    if symbol is None:
        try:
            symbol = Symbol(octets.decode("ascii"))
        except UnicodeDecodeError as error:
            raise DecodeError(f"a symbol: {error}") from None
        if len(octets) <= LONGEST_SYMBOL and len(_symbols) < MAX_SYMBOLS:
            _symbols[octets] = symbol
    return symbol


def _as_string(octets: bytes) -> str:
    try:
        return octets.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"a string: {error}") from None


def _as_char(octets: bytes) -> values.Char:
    try:
        return values.Char(octets.decode("utf-32-be"))
    except UnicodeDecodeError as error:
        raise DecodeError(f"a char: {error}") from None


def _as_boolean(octet: int) -> bool:
    if octet > 1:
        raise DecodeError(f"a boolean is 0 or 1, not {octet}")
    return octet == 1


def keys_collide(keys: Sequence[object]) -> bool:
    """Whether a dict of these keys, which are hashable, takes much longer to make than one of others, because their
    hashes were chosen so. It counts the places at which CPython looks while the dict grows: a place is the low bits of
    the hash, and where that is taken, the next one is found with the bits above them (Objects/dictobject.c)."""
    if len(keys) <= FEW_KEYS or all(type(key) in _SECRET for key in keys):
        return False
    hashes = [hash(key) for key in keys]
    size = 2 * FEW_KEYS
    while True:
        count = min(len(hashes), size * 2 // 3)
        if _probes_exceed(hashes, count, size, MOST_PROBES * count):
            return True
        if count == len(hashes):
            return False
        size *= 2


def _probes_exceed(hashes: list[int], count: int, size: int, most: int) -> bool:
    """Whether the first `count` of these hashes meet more than `most` taken places in a table of `size`."""
    mask = size - 1
    taken = bytearray(size)
    for number in range(count):
        perturb = hashes[number]
        place = perturb & mask
        if taken[place]:
            perturb &= _U64
            while taken[place]:
                most -= 1
                perturb >>= _PERTURB_SHIFT
                place = (place * 5 + perturb + 1) & mask
            if most < 0:
                return True
        taken[place] = 1
    return False


def _as_map(items: list[Value]) -> Map:
    if len(items) % 2:
        raise DecodeError(f"a map has {len(items)} items, an odd number")
    keys = items[::2]
    if not all(isinstance(key, _HASHABLE) for key in keys):
        raise DecodeError("a map's key is not a simple value")
    if keys_collide(keys):
        raise DecodeError(f"a map has {len(keys)} keys whose hashes collide")
    pairs = dict(zip(keys, items[1::2], strict=True))
    if len(pairs) != len(keys):
        raise DecodeError("a map has a key twice")
    return pairs


def _head(octets: bytes, at: int, end: int, width: int) -> tuple[int, int, int]:
    """Where a compound value's items begin, where they end, and how many they are."""
    start, stop = _span(octets, at, end, width)
    items = start + width
    if items > stop:
        raise _cut_off(start, stop)
    return items, stop, octets[start] if width == 1 else _u32_at(octets, start)[0]


def _compound(width: int, make: Callable[[list[Value]], V]) -> Reader[V]:
    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[V, int]:
        at, stop, count = _head(octets, at, end, width)
        if count > stop - at:
            raise DecodeError(f"a list or map of {count} items in {stop - at} octets")
        if count and not depth:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        items: list[Value] = []
        for _ in range(count):
            if at >= stop:
                raise _cut_off(at, stop)
            item, at = READERS[octets[at]](octets, at + 1, stop, depth - 1)
            items.append(item)
        if at != stop:
            raise DecodeError(f"a list or map ends at {at}, its size says {stop}")
        return make(items), stop

    return read


def _array(width: int) -> Reader[Array]:
    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[Array, int]:
        at, stop, count = _head(octets, at, end, width)
        start = at
        descriptors: list[Value] = []
        while octets[at : at + 1] == b"\0" and at < stop:
            descriptor, at = _value(octets, at + 1, stop, depth - len(descriptors) - 1)
            descriptors.append(descriptor)
        if at >= stop:
            raise _cut_off(at, stop)
        element = octets[at]
        at += 1
        if count > (stop - at if element >> 4 != 4 else MAX_ARRAY):
            raise DecodeError(f"an array of {count} elements in {stop - at} octets")
        if count * len(descriptors) > max(stop - at, MAX_ARRAY * MAX_DEPTH):
            raise DecodeError(f"an array of {count} elements, {len(descriptors)} times described")
        items = Array()
        if not count:
            items.empty_of = octets[start:at]

        for _ in range(count):
            item, at = READERS[element](octets, at, stop, depth - 1)
            for descriptor in descriptors[::-1]:
                item = Described(descriptor, item)
            items.append(item)
        if at != stop:
            raise DecodeError(f"an array ends at {at}, its size says {stop}")
        return items, stop

    return read


def _described(octets: bytes, at: int, end: int, depth: int) -> tuple[Described, int]:
    descriptor, at = _value(octets, at, end, depth - 1)
    value, at = _value(octets, at, end, depth - 1)
    return Described(descriptor, value), at


def _value(octets: bytes, at: int, end: int, depth: int) -> tuple[Value, int]:
    if at >= end:
        raise _cut_off(at, end)
    if depth < 0:
        raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
    return READERS[octets[at]](octets, at + 1, end, depth)


def _unknown(code: int) -> Reader[Value]:
    def read(_octets: bytes, at: int, _end: int, _depth: int) -> tuple[Value, int]:
        raise DecodeError(f"unknown constructor {code:#04x} in front of {at}")

    return read


def _decimal(code: int, size: int) -> Reader[values.Decimal]:
    def decimal(octets: bytes) -> values.Decimal:
        return values.Decimal(code, octets)

    return _fixed(f">{size}s", decimal)


def _as_uuid(octets: bytes) -> UUID:
    return UUID(bytes=octets)


def _no_items(_octets: bytes, at: int, _end: int, _depth: int) -> tuple[list[Value], int]:
    return [], at


# --- constructors --------------------
BOOLEANS: Final = {0x41: _constant(True), 0x42: _constant(False), 0x56: _fixed(">B", _as_boolean)}
"""Constructor → reader, of the values of one type."""
UBYTES: Final = {0x50: _octet(tuple(map(values.Ubyte, range(256))))}
USHORTS: Final = {0x60: _fixed(">H", values.Ushort)}
UINTS: Final = {
    0x43: _constant(values.Uint(0)),
    0x52: _octet(tuple(map(values.Uint, range(256)))),
    0x70: _fixed(">I", values.Uint),
}
ULONGS: Final = {
    0x44: _constant(values.Ulong(0)),
    0x53: _octet(tuple(map(values.Ulong, range(256)))),
    0x80: _fixed(">Q", values.Ulong),
}
TIMESTAMPS: Final = {0x83: _fixed(">q", values.Timestamp)}
BINARIES: Final = {0xA0: _variable(1, bytes), 0xB0: _variable(4, bytes)}
STRINGS: Final = {0xA1: _variable(1, _as_string), 0xB1: _variable(4, _as_string)}
SYMBOLS: Final = {0xA3: _variable(1, _as_symbol), 0xB3: _variable(4, _as_symbol)}
LISTS: Final = {0x45: _no_items, 0xC0: _compound(1, list), 0xD0: _compound(4, list)}
MAPS: Final = {0xC1: _compound(1, _as_map), 0xD1: _compound(4, _as_map)}
ARRAYS: Final = {0xE0: _array(1), 0xF0: _array(4)}
_ANNOTATING: Final = frozenset({*SYMBOLS, *ULONGS, *STRINGS})
"""Constructors of what annotations may have as keys."""
_LONGEST_NAME: Final = 256
_KNOWN: Final[Mapping[int, Reader[Value]]] = {
    0x00: _described,
    0x40: _constant(None),
    **BOOLEANS,
    **UBYTES,
    **USHORTS,
    **UINTS,
    **ULONGS,
    0x51: _fixed(">b", values.Byte),
    0x61: _fixed(">h", values.Short),
    0x54: _fixed(">b", values.Int),
    0x71: _fixed(">i", values.Int),
    0x55: _fixed(">b", values.Long),
    0x81: _fixed(">q", values.Long),
    0x72: _fixed(">f", values.Float),
    0x82: _fixed(">d", float),
    0x74: _decimal(0x74, 4),
    0x84: _decimal(0x84, 8),
    0x94: _decimal(0x94, 16),
    0x73: _fixed(">4s", _as_char),
    **TIMESTAMPS,
    0x98: _fixed(">16s", _as_uuid),
    **BINARIES,
    **STRINGS,
    **SYMBOLS,
    **LISTS,
    **MAPS,
    **ARRAYS,
}
READERS: Final[tuple[Reader[Value], ...]] = tuple(_KNOWN.get(code) or _unknown(code) for code in range(256))


def decode(octets: bytes | bytearray | memoryview) -> Value:
    """The one value that `octets` (any bytes-like object) are; DecodeError for anything else."""
    whole = bytes(octets)
    value, end = _value(whole, 0, len(whole), MAX_DEPTH)
    if end != len(whole):
        raise DecodeError(f"{len(whole) - end} octets after the value")
    return value


def decode_from(octets: bytes, at: int = 0, end: int | None = None) -> tuple[Value, int]:
    """The value that begins at `at`, and where it ends; DecodeError when there is none up to `end`."""
    return _value(octets, at, len(octets) if end is None else end, MAX_DEPTH)


_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}


def skip(octets: bytes, at: int = 0, end: int | None = None) -> int:
    """Where the value ends that begins at `at`, without looking into it; DecodeError when it does not end."""
    end = len(octets) if end is None else end
    values = 1
    for _ in range(2 * MAX_DEPTH):
        if at >= end:
            raise _cut_off(at, end)
        code = octets[at]
        at += 1
        if not code:  # a descriptor and a value follow
            values += 1
            continue

        half = code >> 4
        if half in _WIDTHS:
            at += _WIDTHS[half]
        elif half >= 0xA:
            at = _span(octets, at, end, 4 if half & 1 else 1)[1]
        else:
            raise DecodeError(f"unknown constructor {code:#04x}")
        if at > end:
            raise _cut_off(at, end)
        values -= 1
        if not values:
            return at
    raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")


def entries(octets: bytes, at: int, end: int | None = None) -> Iterator[tuple[bytes, int, int, int]]:
    """The entries of the map of annotations at `at`: the name in the key, b"" for another key or a long one, where the
    key begins, where the value begins, and where it ends. No value is decoded. Keys are symbols or ulongs, or strings,
    as which some clients write them; DecodeError for any other, and for what is no map."""
    end = len(octets) if end is None else end
    code = octets[at] if at < end else 0x40
    if code not in MAPS:
        raise DecodeError("annotations are a map")
    at, stop, count = _head(octets, at + 1, end, 1 if code == 0xC1 else 4)
    if count % 2 or count > stop - at:
        raise DecodeError(f"a map of {count} items in {stop - at} octets")

    for _ in range(count // 2):
        key = octets[at] if at < stop else 0x40
        if key not in _ANNOTATING:
            raise DecodeError("a key of annotations is a symbol or a ulong")
        value_at = skip(octets, at, stop)
        name = b""
        if key not in ULONGS and value_at - at < _LONGEST_NAME:
            name = octets[at + (2 if key < 0xB0 else 5) : value_at]
        value_end = skip(octets, value_at, stop)
        yield name, at, value_at, value_end
        at = value_end
    if at != stop:
        raise DecodeError(f"a map ends at {at}, its size says {stop}")


def find(octets: bytes, at: int, names: Collection[bytes]) -> dict[bytes, Value]:
    """What the map of annotations at `at` has under these names, of at most 250 octets. Nothing else is decoded."""
    return {name: decode_from(octets, start, end)[0] for name, _, start, end in entries(octets, at) if name in names}


def list_head(octets: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Where the items of the list at `at` begin, where they end, and how many they are; DecodeError for no list."""
    code = octets[at] if at < end else 0x40
    if code == 0xC0 and end - at > 2:  # nearly every list
        stop = at + 2 + octets[at + 1]
        count = octets[at + 2]
        if stop > end or stop < at + 3:
            raise _cut_off(at, end)
        at += 3
    elif code == 0x45:
        return at + 1, at + 1, 0
    elif code in {0xC0, 0xD0}:
        at, stop, count = _head(octets, at + 1, end, 1 if code == 0xC0 else 4)
    else:
        raise DecodeError("a list is expected")

    if count > stop - at:
        raise DecodeError(f"a list of {count} items in {stop - at} octets")
    return at, stop, count


def map_head(octets: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Where the items of the map at `at` begin, where they end, and how many they are; DecodeError for no map."""
    code = octets[at] if at < end else 0x40
    if code not in MAPS:
        raise DecodeError("a map is expected")
    at, stop, count = _head(octets, at + 1, end, 1 if code == 0xC1 else 4)
    if count > stop - at or count % 2:
        raise DecodeError(f"a map of {count} items in {stop - at} octets")
    return at, stop, count


def fields(octets: bytes, at: int, end: int) -> list[int]:
    """Where the items of the list at `at` begin, and at last where the list ends; DecodeError for no list."""
    at, stop, count = list_head(octets, at, end)
    starts = [at]
    for _ in range(count):
        at = skip(octets, at, stop)
        starts.append(at)
    if at != stop:
        raise DecodeError(f"a list ends at {at}, its size says {stop}")
    return starts
