"""The worst messages: what an octet of a peer costs its decoder at most, in time and in memory.

`KINDS` has, for each way in which decoding might cost more than its octets are worth, a value of AMQP 1.0 of any size:
the smallest items of every type, keys whose hashes collide, deep nesting. `DECODERS` are the places where our software
decodes what a peer sends; the decoders of AMQP 0-10 and OpenWire have kinds of their own. What an octet costs may not
grow with the size, and `MOST_TIME` and `MOST_MEMORY` bound it for each kind. `tests/dtx/amqp/test_worst_messages.py`
holds every kind and decoder to that at small sizes, `bench broker` measures it up to 64 MB.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from contextlib import suppress
from functools import cache
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import ProtocolError
from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER, FrameReader, frame
from dtx.amqp.messages import read_facts, read_request, with_message_annotations
from dtx.amqp.values import Long, Symbol, Ulong
from dtx.protocol.commands import COORDINATION
from rm_amqp.amqp010.values import Reader, read_map
from rm_amqp.amqp010.values import WireError as WireError010
from rm_amqp.message import Message
from rm_openwire.primitives import decode_map
from rm_openwire.wire import DecodeError as OpenWireError
from xabridge.pipeline.core.task.message_decoder import decode_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KILOBYTE: Final = 1 << 10
MIDDLE: Final = 64 << 10
MEGABYTE: Final = 1 << 20
LARGEST: Final = 64 << 20
_MODULUS: Final = (1 << 61) - 1
"""The hash of a number is the number modulo this one."""
_U64: Final = (1 << 64) - 1


# --- keys that collide --------------------
def colliding_uuids(count: int) -> list[UUID]:
    """UUIDs with one hash."""
    return [UUID(int=7 + number * _MODULUS) for number in range(count)]


@cache
def colliding_numbers(count: int) -> tuple[int, ...]:
    """Numbers of less than 53 bits, each with a hash of its own, whose dict takes the square of their number. The first
    half takes the places of a dict's table in the order in which it looks for a free one; each of the others meets only
    taken places until its own bits are used up, and then goes past nearly all of the first half."""
    size = 8
    while size * 2 // 3 < count:
        size *= 2
    mask, place = size - 1, 0
    row: dict[int, int] = {}
    for number in range(count // 2):
        row[place] = number
        place = (place * 5 + 1) & mask

    keys, bits = list(row), size.bit_length() + 14
    random = Random(count)  # noqa: S311 — any will do, always the same
    chosen: dict[int, None] = {}
    while len(chosen) < count - len(keys):
        key = random.getrandbits(bits) | size
        perturb, place = key, key & mask
        while perturb and place in row:
            perturb >>= 5
            place = (place * 5 + perturb + 1) & mask
        if row.get(place, count) < count // 8:
            chosen[key] = None
    return (*keys, *chosen)


# --- values of AMQP 1.0 --------------------
def compound(constructor: int, items: Iterable[bytes]) -> bytes:
    """A list (0xD0) or a map (0xD1) of items that are encoded already."""
    listed = list(items)
    octets = b"".join(listed)
    return struct.pack(">BII", constructor, len(octets) + 4, len(listed)) + octets


def map_of(keys: Iterable[bytes]) -> bytes:
    """A map with these keys, whose values are null."""
    return compound(0xD1, [octets for key in keys for octets in (key, b"\x40")])


def _list_of(item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        count = max(1, octets // len(item))
        return struct.pack(">BII", 0xD0, 4 + count * len(item), count) + item * count

    return value


def _array_of(constructor: bytes, item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        count = max(1, octets // len(item))
        return struct.pack(">BII", 0xF0, 4 + len(constructor) + count * len(item), count) + constructor + item * count

    return value


def _map_by(size: int, key: Callable[[int], Any]) -> Callable[[int], bytes]:
    """A map with a key for every `size` octets."""
    return lambda octets: map_of([encode(key(number)) for number in range(max(1, octets // size))])


def _nested(item: bytes, depth: int, wrap: Callable[[bytes], bytes]) -> bytes:
    for _ in range(depth):
        item = wrap(item)
    return item


def _text(number: int) -> str:
    return f"k{number:07}"


MOST_NUMBERS: Final = 600


@cache
def _colliding_map(make: Callable[[int], Long | float]) -> bytes:
    return map_of([encode(make(key)) for key in colliding_numbers(MOST_NUMBERS)])


def _list_of_maps_that_collide(make: Callable[[int], Long | float]) -> Callable[[int], bytes]:
    """The map is made when it is asked for, because it takes a second."""

    def value(octets: int) -> bytes:
        return _list_of(_colliding_map(make))(octets)

    return value


_UUIDS_64: Final = map_of([encode(key) for key in colliding_uuids(64)])
_DEEP: Final = 28

KINDS: Final[Mapping[str, Callable[[int], bytes]]] = {
    "null": _list_of(b"\x40"),
    "boolean": _list_of(b"\x56\x01"),
    "ubyte": _list_of(b"\x50\x07"),
    "ushort": _list_of(b"\x60\x01\x00"),
    "uint": _list_of(b"\x70\x01\x00\x00\x00"),
    "ulong": _list_of(b"\x80\x01" + b"\0" * 7),
    "byte": _list_of(b"\x51\x07"),
    "short": _list_of(b"\x61\x01\x00"),
    "int": _list_of(b"\x54\x07"),
    "long": _list_of(b"\x55\x07"),
    "float": _list_of(b"\x72\x3f\x00\x00\x00"),
    "double": _list_of(b"\x82\x3f" + b"\0" * 7),
    "decimal": _list_of(b"\x74" + b"\0" * 4),
    "char": _list_of(b"\x73\x00\x01\xf6\x00"),
    "timestamp": _list_of(b"\x83\x00\x01" + b"\0" * 6),
    "uuid": _list_of(b"\x98" + b"\x07" * 16),
    "binary": _list_of(b"\xa0\x02ab"),
    "long binary": lambda octets: b"\xb0" + struct.pack(">I", octets) + b"x" * octets,
    "string": _list_of(b"\xa1\x02\xc3\xa9"),
    "wide string": _list_of(b"\xa1\x05\xf0\x9f\x98\x80a"),
    "long string": lambda octets: b"\xb1" + struct.pack(">I", octets) + b"x" * octets,
    "long wide string": lambda octets: b"\xb1" + struct.pack(">I", octets + 4) + b"x" * octets + b"\xf0\x9f\x98\x80",
    "symbol": lambda octets: compound(0xD0, [b"\xa3\x05" + b"%05x" % number for number in range(octets // 7)]),
    "empty list": _list_of(b"\x45"),
    "list": _list_of(b"\xc0\x01\x00"),
    "empty map": _list_of(b"\xc1\x01\x00"),
    "array": _list_of(b"\xe0\x02\x00\x40"),
    "described": _list_of(b"\x00\x40\x40"),
    "array of ubytes": _array_of(b"\x50", b"\x07"),
    "array of longs": _array_of(b"\x55", b"\x07"),
    "array of described": _array_of(b"\x00\x40\x50", b"\x07"),
    "array of what is described often": _array_of(_nested(b"\x50", _DEEP, lambda item: b"\x00\x40" + item), b"\x07"),
    "deep lists": _list_of(_nested(b"\x40", _DEEP, lambda item: bytes((0xC0, len(item) + 1, 1)) + item)),
    "deep maps": _list_of(_nested(b"\x40", _DEEP, lambda item: bytes((0xC1, len(item) + 2, 2, 0x40)) + item)),
    "deep descriptions": _list_of(b"\x00\x40" * _DEEP + b"\x40"),
    "keys: text": _map_by(11, _text),
    "keys: symbols": _map_by(11, lambda number: Symbol(_text(number))),
    "keys: ulongs": _map_by(10, lambda number: Ulong(1 << 40 | number)),
    "keys: doubles": _map_by(10, lambda number: number * 0.5),
    "keys: UUIDs": _map_by(18, lambda number: UUID(int=number * (_MODULUS + 2))),
    "keys: UUIDs that collide": lambda octets: map_of(map(encode, colliding_uuids(max(1, octets // 18)))),
    "keys: UUIDs of which a few collide": _list_of(_UUIDS_64),
    "keys: UUIDs of which groups collide": _map_by(
        18, lambda number: UUID(int=(number % 56) * _MODULUS + (number // 56 << 20) + number // 56)
    ),
    "keys: longs that collide": _list_of_maps_that_collide(Long),
    "keys: doubles that collide": _list_of_maps_that_collide(float),
}
"""What to decode → the encoded value, of about so many octets."""


MOST_TIME: Final = 6.0
"""What an octet of any kind takes at most: so many times the time that a client takes for one of a list of nulls."""
MOST_MEMORY: Final[Mapping[str, float]] = {
    "": 40,
    "empty list": 80,
    "array of longs": 64,
    "array of described": 96,
    "deep maps": 64,
    "deep descriptions": 56,
}
"""Kind of value → the octets of memory that one of its octets takes at most."""
JSON: Final = 4.0
"""So many times as much take the rows of a pipeline, whose bodies become text of JSON."""


# --- decoders of AMQP 1.0 --------------------
def _performative(value: bytes) -> None:
    """An open whose properties are the value."""
    items = b"\xa1\x01x" + b"\x40" * 8 + value
    octets = b"\x00\x53\x10" + struct.pack(">BII", 0xD0, len(items) + 4, 10) + items
    reader = FrameReader(LARGEST)
    reader.feed(AMQP_HEADER + frame(0, octets))
    reader.header()
    reader.next()


def _request(value: bytes) -> None:
    request = read_request(b"\x00\x53\x74" + value + b"\x00\x53\x77" + value)
    with suppress(WireError):
        COORDINATION.decode(request.body)
    request.application_properties()


DECODERS: Final[Mapping[str, Callable[[bytes], object]]] = {
    "values": decode,
    "bodies": lambda value: Message.from_octets(b"\x00\x53\x77" + value),
    "rows of a pipeline": lambda value: list(decode_messages([(None, b"\x00\x53\x77" + value)], 1)),
    "what a queue reads": lambda value: read_facts(b"\x00\x53\x72" + value + b"x-opt-delivery-", 0),
    "what a consumer changes": lambda value: with_message_annotations(b"\x00\x53\x72" + value, {}),
    "performatives": _performative,
    "requests": _request,
}
REFUSALS: Final = (DecodeError, WireError, WireError010, OpenWireError, ProtocolError)


# --- AMQP 0-10 and OpenWire --------------------
def _map_010(item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        entries = [b"\x08" + _text(number).encode() + item for number in range(octets // (9 + len(item)))]
        content = struct.pack(">I", len(entries)) + b"".join(entries)
        return struct.pack(">I", len(content)) + content

    return value


def _list_010(item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        count = max(1, octets // len(item))
        items = struct.pack(">I", count) + item * count
        content = struct.pack(">IB", 1, 1) + b"k\xa9" + struct.pack(">I", len(items)) + items
        return struct.pack(">I", len(content)) + content

    return value


def _deep_010(item: bytes) -> bytes:
    content = struct.pack(">I", 1) + item
    return b"\xa9" + struct.pack(">I", len(content)) + content


KINDS_010: Final[Mapping[str, Callable[[int], bytes]]] = {
    "map": _map_010(b"\xf0"),
    "void": _list_010(b"\xf0"),
    "int64": _list_010(b"\x31\x01" + b"\0" * 7),
    "uuid": _list_010(b"\x48" + b"\x07" * 16),
    "text": _list_010(b"\x95\x00\x02\xc3\xa9"),
    "empty list": _list_010(b"\xa9\x00\x00\x00\x00"),
    "empty map": _list_010(b"\xa8\x00\x00\x00\x00"),
    "deep lists": _list_010(_nested(b"\xf0", 12, _deep_010)),
}


def _map_openwire(item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        entries = [b"\x00\x08" + _text(number).encode() + item for number in range(octets // (10 + len(item)))]
        return struct.pack(">i", len(entries)) + b"".join(entries)

    return value


def _list_openwire(item: bytes) -> Callable[[int], bytes]:
    def value(octets: int) -> bytes:
        count = max(1, octets // len(item))
        return struct.pack(">iH", 1, 1) + b"k" + struct.pack(">Bi", 12, count) + item * count

    return value


KINDS_OPENWIRE: Final[Mapping[str, Callable[[int], bytes]]] = {
    "map": _map_openwire(b"\x00"),
    "null": _list_openwire(b"\x00"),
    "long": _list_openwire(b"\x06\x01" + b"\0" * 7),
    "string": _list_openwire(b"\x09\x00\x02\xc3\xa9"),
    "empty list": _list_openwire(b"\x0c\x00\x00\x00\x00"),
    "empty map": _list_openwire(b"\x0b\x00\x00\x00\x00"),
    "deep lists": _list_openwire(b"\x0c\x00\x00\x00\x01" * 12 + b"\x00"),
}


def all_decoders() -> dict[str, tuple[Callable[[bytes], object], Mapping[str, Callable[[int], bytes]]]]:
    """Every decoder by its name, with the kinds of values that it is measured with."""
    found: dict[str, tuple[Callable[[bytes], object], Mapping[str, Callable[[int], bytes]]]]
    found = {name: (decoder, KINDS) for name, decoder in DECODERS.items()}
    found["AMQP 0-10"] = (lambda octets: read_map(Reader(octets), 0), KINDS_010)
    found["OpenWire"] = (decode_map, KINDS_OPENWIRE)
    return found


LARGE: Final = frozenset(
    {
        "long binary",
        "long string",
        "long wide string",
        "keys: UUIDs",
        "keys: UUIDs that collide",
        "keys: UUIDs of which a few collide",
        "keys: longs that collide",
        "map",
        "int64",
    }
)
"""Kinds that are measured up to 64 MB: of others the values take more memory than a benchmark should."""


# --- measuring --------------------
def nanoseconds_per_octet(decoder: Callable[[bytes], object], octets: bytes, times: int = 1) -> float:
    """The processor time that an octet takes: the least of so many tries."""
    least = float("inf")
    for _ in range(times):
        began = time.thread_time_ns()
        with suppress(*REFUSALS):
            decoder(octets)
        least = min(least, (time.thread_time_ns() - began) / len(octets))
    return least


def memory_per_octet(decoder: Callable[[bytes], object], octets: bytes) -> float:
    """Octets of memory that an octet takes at most, while it is decoded and behind that."""
    tracemalloc.start()
    try:
        with suppress(*REFUSALS):
            decoder(octets)
        return tracemalloc.get_traced_memory()[1] / len(octets)
    finally:
        tracemalloc.stop()


def measure_worst(*, quick: bool) -> dict[str, Any]:
    """What the dearest kind of value costs each decoder, and how much more an octet takes in a large value than in one
    of 64 KB: of every kind up to 1 MB, of those in `LARGE` up to 64 MB."""
    found = all_decoders()
    return {f"worst_{name}": _worst(decoder, kinds, quick=quick) for name, (decoder, kinds) in found.items()}


def _worst(
    decoder: Callable[[bytes], object], kinds: Mapping[str, Callable[[int], bytes]], *, quick: bool
) -> dict[str, Any]:
    times: dict[str, dict[int, float]] = {kind: {} for kind in kinds}
    memory: dict[str, float] = {}
    for kind, make in kinds.items():
        sizes = [KILOBYTE, MIDDLE] if quick else [KILOBYTE, MIDDLE, MEGABYTE, *([LARGEST] if kind in LARGE else [])]
        for size in sizes:
            times[kind][size] = nanoseconds_per_octet(decoder, make(size), 1 if size > MIDDLE else 5)
        memory[kind] = max(memory_per_octet(decoder, make(size)) for size in (KILOBYTE, MIDDLE))

    dearest = max(kinds, key=lambda kind: max(times[kind].values()))
    largest = max(kinds, key=lambda kind: memory[kind])
    return {
        "ns_per_octet": round(max(times[dearest].values()), 1),
        "dearest": dearest,
        "octets_per_octet": round(memory[largest], 1),
        "largest": largest,
        "growth": round(max(of_kind[max(of_kind)] / of_kind[MIDDLE] for of_kind in times.values()), 2),
    }
