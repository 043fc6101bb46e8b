"""Composites as tables: a dataclass on our side, a described list on the wire, and the fields between them.

A composite is `00`, its descriptor, and a list of its fields in their order. Trailing nulls are left out, and a
missing field is null. The descriptor is a symbol or a number; both are understood.

A table is built field by field, so that its type has the types of its fields:

    standard(Detach, "detach", 0x16, FIELDS.mandatory("handle", UINT).default("closed", BOOLEAN, absent=False))

mypy checks that the dataclass takes exactly these types in this order. The decoder works on the octets directly: for
each field the constructor octet chooses the reader, so that a value of a wrong type is never built, and an attribute
holds what its annotation says. Nothing but WireError leaves `decode`, whatever the octets are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping  # noqa: TC003 — compiled dataclasses have the types of their fields
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, TypeVar, TypeVarTuple, cast

from dtx.amqp import decoding
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import MAX_DEPTH, READERS, DecodeError, decode_from, list_head, skip
from dtx.amqp.encoding import (
    encode,
    encode_binary,
    encode_boolean,
    encode_list,
    encode_map,
    encode_string,
    encode_symbol,
    encode_timestamp,
    encode_ubyte,
    encode_uint,
    encode_ulong,
    encode_ushort,
)
from dtx.amqp.values import Array, Symbol, Ulong

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from dtx.amqp.decoding import Reader
    from dtx.amqp.values import Map, Value

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")
W = TypeVar("W")
Ts = TypeVarTuple("Ts")

NULL: Final = 0x40
DESCRIBED: Final = 0x00
_NAMES: Final[dict[int, str]] = {
    NULL: "null",
    DESCRIBED: "described",
    **dict.fromkeys(decoding.BOOLEANS, "bool"),
    **dict.fromkeys(decoding.UBYTES, "ubyte"),
    **dict.fromkeys(decoding.USHORTS, "ushort"),
    **dict.fromkeys(decoding.UINTS, "uint"),
    **dict.fromkeys(decoding.ULONGS, "ulong"),
    **dict.fromkeys(decoding.TIMESTAMPS, "timestamp"),
    **dict.fromkeys(decoding.BINARIES, "bytes"),
    **dict.fromkeys(decoding.STRINGS, "str"),
    **dict.fromkeys(decoding.SYMBOLS, "symbol"),
    **dict.fromkeys(decoding.LISTS, "list"),
    **dict.fromkeys(decoding.MAPS, "dict"),
    **dict.fromkeys(decoding.ARRAYS, "array"),
}
"""Constructor → the type of its values, for messages."""


class WireError(ValueError):
    """What the peer sent can't be understood; `condition` is sent to the peer."""

    def __init__(self, condition: Condition, message: str) -> None:
        super().__init__(message)
        self.condition = condition


class Kind(Generic[T_co]):
    """What a field may hold. `readers` has a reader for each constructor that is allowed; a reader raises ValueError
    for a wrong value. `write` gives the octets of a value, which has the type of the kind: `composite` has this checked
    for the attributes of a dataclass. Null is the business of the field."""

    __slots__ = ("name", "readers", "write")

    def __init__(self, name: str, readers: Mapping[int, Reader[T_co]], write: Callable[[T_co], bytes]) -> None:
        self.name: Final = name
        self.readers: Final = readers
        self.write: Final = cast("Callable[[object], bytes]", write)


class Field:
    """A field: its name in the documents, what it may hold, and what null means: `absent`, or a refusal where the field
    is mandatory."""

    __slots__ = ("absent", "kind", "mandatory", "name")

    def __init__(self, name: str, kind: Kind[object], absent: object, *, mandatory: bool) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.absent: Final = absent
        self.mandatory: Final = mandatory


class Table(Generic[*Ts]):
    """The fields of a composite in the order of the wire; `Ts` are the types of their attributes."""

    __slots__ = ("fields",)

    def __init__(self, found: tuple[Field, ...] = ()) -> None:
        self.fields: Final = found

    def mandatory(self, name: str, kind: Kind[V]) -> Table[*Ts, V]:
        """A further field, which must not be null."""
        return Table((*self.fields, Field(name, kind, None, mandatory=True)))

    def optional(self, name: str, kind: Kind[V]) -> Table[*Ts, V | None]:
        """A further field, None where it is null."""
        return Table((*self.fields, Field(name, kind, None, mandatory=False)))

    def default(self, name: str, kind: Kind[V], absent: V) -> Table[*Ts, V]:
        """A further field, `absent` where it is null."""
        return Table((*self.fields, Field(name, kind, absent, mandatory=False)))


FIELDS: Final[Table[()]] = Table()
"""A table without fields, with which all others begin."""


class Composite(Generic[T_co]):
    """A type of the wire. `table` has the order of the wire; the attributes of `make`, a dataclass, have the same
    order. `sent` is the descriptor that we send: ours are symbols, the specification's are numbers. `composite` makes
    one."""

    def __init__(
        self,
        make: type[T_co],
        attributes: tuple[str, ...],
        name: str,
        symbol: Symbol,
        code: Ulong,
        sent: Symbol | Ulong,
        table: tuple[Field, ...],
    ) -> None:
        self.make = make
        self.name = name
        self.symbol = symbol
        self.code = code
        self.sent = sent
        self.fields = table
        self.attributes = attributes
        self.prefix = b"\x00" + encode(sent)
        """The octets in front of the list."""
        self._absent = [field.absent for field in table]
        self._readers = tuple([field.kind.readers for field in table])
        self._needed = tuple([index for index, field in enumerate(table) if field.mandatory])
        self._least = 1 + self._needed[-1] if self._needed else 0
        self._writers: list[tuple[Callable[[object], object], Callable[[object], bytes], object, bool]] = []

        for attribute, field in zip(attributes, table, strict=True):
            get: Callable[[object], object] = attrgetter(attribute)
            self._writers.append((get, field.kind.write, field.absent, field.mandatory))

    # -- writing
    def encode(self, value: object) -> bytes:
        """The octets of `value`, which has the type `make`."""
        items: list[bytes] = []
        for get, write, absent, mandatory in self._writers:
            item = get(value)
            items.append(b"\x40" if not mandatory and item == absent else write(item))
        while items and items[-1] == b"\x40":
            items.pop()
        return self.prefix + encode_list(items)

    # -- reading
    def read(self, octets: bytes, at: int, end: int, depth: int) -> tuple[T_co, int]:
        """The value whose list begins at `at`, and where the list ends. WireError says which field is wrong,
        DecodeError that the octets are no list of AMQP."""
        at, stop, count = self._head(octets, at, end)
        values = self._absent[:]
        readers = self._readers
        for index in range(count):
            if at >= stop:
                raise DecodeError(f"a list is cut off at {stop}")
            constructor = octets[at]
            if constructor == NULL:
                if index in self._needed:
                    raise self._lacks(index)
                at += 1
                continue
            reader = readers[index].get(constructor)
            if reader is None:
                raise self._wrong(index, constructor)

            try:
                values[index], at = reader(octets, at + 1, stop, depth - 1)
            except (WireError, DecodeError):
                raise
            except ValueError as error:
                raise WireError(Condition.INVALID_FIELD, f"{self.name}, {self.fields[index].name}: {error}") from None
        if at != stop:
            raise DecodeError(f"a list ends at {at}, its size says {stop}")
        if count < self._least:
            raise self._lacks(next(index for index in self._needed if index >= count))

        try:
            return self.make(*values), stop
        except ValueError as error:
            raise WireError(Condition.INVALID_FIELD, f"{self.name}: {error}") from None

    def _head(self, octets: bytes, at: int, end: int) -> tuple[int, int, int]:
        constructor = octets[at] if at < end else NULL
        if constructor not in {0x45, 0xC0, 0xD0}:
            if at >= end:
                raise DecodeError(f"a value at {at} is cut off at {end}")
            raise WireError(Condition.INVALID_FIELD, f"{self.name} is a list, not {kind_of(constructor)}")
        at, stop, count = list_head(octets, at, end)
        if count > len(self.fields):
            raise WireError(Condition.INVALID_FIELD, f"{self.name} has {len(self.fields)} fields, not {count}")
        return at, stop, count

    def _lacks(self, index: int) -> WireError:
        return WireError(Condition.INVALID_FIELD, f"{self.name} needs {self.fields[index].name}")

    def _wrong(self, index: int, constructor: int) -> WireError:
        field = self.fields[index]
        message = f"{self.name}, {field.name}: {field.kind.name} is expected, not {kind_of(constructor)}"
        return WireError(Condition.INVALID_FIELD, message)


class Catalog(Generic[T]):
    """The composites that may stand in one place."""

    def __init__(self, *composites: Composite[T]) -> None:
        self.by_type: dict[type, Composite[T]] = {found.make: found for found in composites}
        self._by_descriptor: dict[Value, Composite[T]] = {}
        self._by_octets: dict[bytes, Composite[T]] = {}
        for found in composites:
            for descriptor in (found.symbol, found.code):
                self._by_descriptor[descriptor] = found
                self._by_octets[encode(descriptor)] = found

    def encode(self, value: T) -> bytes:
        """The octets of `value`, which has a type of this catalogue."""
        return self.by_type[type(value)].encode(value)

    def decode(self, octets: bytes, at: int = 0) -> T:
        """What the octets from `at` on say; WireError where they say nothing of this catalogue."""
        end = len(octets)
        try:
            if at >= end or octets[at] != DESCRIBED:
                found = kind_of(octets[at]) if at < end else "nothing"
                raise WireError(Condition.DECODE_ERROR, f"a described list is expected, not {found}")
            value, stop = self.read(octets, at + 1, end, MAX_DEPTH)
        except DecodeError as error:
            raise WireError(Condition.DECODE_ERROR, str(error)) from None
        if stop != end:
            raise WireError(Condition.DECODE_ERROR, f"{end - stop} octets after the value")
        return value

    def read(self, octets: bytes, at: int, end: int, depth: int) -> tuple[T, int]:
        """The value whose descriptor begins at `at`, and where it ends; a Reader for the constructor 00."""
        if depth < 0:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        found, at = self.find(octets, at, end)
        return found.read(octets, at, end, depth)

    def find(self, octets: bytes, at: int, end: int) -> tuple[Composite[T], int]:
        """The composite whose descriptor stands at `at`, and where its list begins."""
        if end - at > 2:
            stop = at + 2 + (octets[at + 1] if octets[at] == 0xA3 else 0)
            found = self._by_octets.get(octets[at:stop])
            if found is not None:
                return found, stop
        descriptor, stop = decode_from(octets, at, end)
        if type(descriptor) in {Symbol, Ulong}:
            found = self._by_descriptor.get(descriptor)
            if found is not None:
                return found, stop
        skip(octets, stop, end)  # is it a value at all?
        raise WireError(Condition.NOT_IMPLEMENTED, f"nothing is known of {shown(descriptor)} here")


def composite(
    make: Callable[[*Ts], T], name: str, symbol: Symbol, code: Ulong, sent: Symbol | Ulong, table: Table[*Ts]
) -> Composite[T]:
    """A composite: the dataclass `make` has an attribute for each field of the table, of its type."""
    found: tuple[dataclasses.Field[object], ...] = dataclasses.fields(cast("type[DataclassInstance]", make))
    attributes = tuple([attribute.name for attribute in found])
    return Composite(cast("type[T]", make), attributes, name, symbol, code, sent, table.fields)


def standard(make: Callable[[*Ts], T], name: str, number: int, table: Table[*Ts]) -> Composite[T]:
    """A composite of the AMQP specification."""
    code = Ulong(number)
    return composite(make, name, Symbol(f"amqp:{name}:list"), code, code, table)


def kind_of(constructor: int) -> str:
    """The type of the values with this constructor, for messages."""
    return _NAMES.get(constructor, f"constructor {constructor:#04x}")


def shown(descriptor: Value) -> str:
    """A descriptor, for messages: short, whatever the peer sent."""
    if isinstance(descriptor, int) and not isinstance(descriptor, bool):
        return hex(descriptor)
    return ascii(descriptor)[:64]


# --- kinds --------------------
BOOLEAN: Final[Kind[bool]] = Kind("boolean", decoding.BOOLEANS, encode_boolean)
UBYTE: Final[Kind[int]] = Kind("ubyte", decoding.UBYTES, encode_ubyte)
USHORT: Final[Kind[int]] = Kind("ushort", decoding.USHORTS, encode_ushort)
UINT: Final[Kind[int]] = Kind("uint", decoding.UINTS, encode_uint)
ULONG: Final[Kind[int]] = Kind("ulong", decoding.ULONGS, encode_ulong)
TIMESTAMP: Final[Kind[int]] = Kind("timestamp", decoding.TIMESTAMPS, encode_timestamp)
BINARY: Final[Kind[bytes]] = Kind("binary", decoding.BINARIES, encode_binary)
STRING: Final[Kind[str]] = Kind("string", decoding.STRINGS, encode_string)
SYMBOL: Final[Kind[str]] = Kind("symbol", decoding.SYMBOLS, encode_symbol)
MAP: Final[Kind[Map]] = Kind("map", decoding.MAPS, encode_map)


def checked(kind: Kind[V], check: Callable[[V], str], name: str = "") -> Kind[V]:
    """A kind whose values `check` has looked at: it says what is wrong with one, or the empty string."""

    def accepted(value: V) -> V:
        wrong = check(value)
        if wrong:
            raise ValueError(wrong)
        return value

    return Kind(name or kind.name, converting(kind.readers, accepted), kind.write)


def converting(readers: Mapping[int, Reader[V]], convert: Callable[[V], W]) -> dict[int, Reader[W]]:
    """Readers of what `convert` makes of what `readers` read; ValueError of `convert` refuses the value."""
    return {code: _converting(reader, convert) for code, reader in readers.items()}


def _converting(reader: Reader[V], convert: Callable[[V], W]) -> Reader[W]:
    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[W, int]:
        value, at = reader(octets, at, end, depth)
        return convert(value), at

    return read


def nested(found: Composite[V]) -> Kind[V]:
    """A kind that is another composite."""
    return Kind(found.name, {DESCRIBED: Catalog(found).read}, found.encode)


def several(kind: Kind[V], limit: int) -> Kind[tuple[V, ...]]:
    """A kind that is a list of at most `limit` values; our side has them in a tuple."""
    readers = kind.readers
    write = kind.write

    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[tuple[V, ...], int]:
        at, stop, count = list_head(octets, at - 1, end)
        if count > limit:
            raise ValueError(f"a list of at most {limit} is expected, not of {count}")
        values: list[V] = []
        for _ in range(count):
            constructor = octets[at] if at < stop else NULL
            reader = readers.get(constructor)
            if reader is None:
                raise ValueError(f"{kind.name} is expected, not {kind_of(constructor)}")
            value, at = reader(octets, at + 1, stop, depth - 1)
            values.append(value)
        if at != stop:
            raise DecodeError(f"a list ends at {at}, its size says {stop}")
        return tuple(values), stop

    def written(values: tuple[V, ...]) -> bytes:
        return encode_list([write(value) for value in values])

    return Kind(f"list of {kind.name}", dict.fromkeys(decoding.LISTS, read), written)


def _as_symbols(value: Value) -> tuple[str, ...]:
    found: list[str] = []
    for item in value if type(value) is Array else (value,):
        if type(item) is not Symbol:
            raise ValueError("symbols are expected")
        found.append(str(item))
    return tuple(found)


def _write_symbols(symbols: tuple[str, ...]) -> bytes:
    return encode(Array([Symbol(symbol) for symbol in symbols]))


SYMBOLS: Final[Kind[tuple[str, ...]]] = Kind(
    "symbols",
    converting({code: READERS[code] for code in (*decoding.SYMBOLS, *decoding.ARRAYS)}, _as_symbols),
    _write_symbols,
)
"""A symbol with multiple="true": one, or an array of them."""
