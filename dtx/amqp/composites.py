"""Composites as tables: a dataclass on our side, a described list on the wire, and the fields between them.

A composite is `00`, its descriptor, and a list of its fields in their order. Trailing nulls are left out, and a
missing field is null. The descriptor is a symbol or a number; both are understood.

The encoder and the decoder of a composite are made from its table once. A decoder works on the octets directly: for
each field the constructor octet chooses the reader, so that a value of a wrong type is never built. Nothing but
WireError leaves `decode`, whatever the octets are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 — compiled dataclasses have the types of their fields
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import MAX_DEPTH, READERS, DecodeError, decode_from, list_head, skip
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.values import (
    Array,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
)

if TYPE_CHECKING:
    from dtx.amqp.decoding import Reader

T = TypeVar("T")
NULL: Final = 0x40
DESCRIBED: Final = 0x00
CONSTRUCTORS: Final[dict[type, tuple[int, ...]]] = {
    bool: (0x41, 0x42, 0x56),
    Ubyte: (0x50,),
    Ushort: (0x60,),
    Uint: (0x43, 0x52, 0x70),
    Ulong: (0x44, 0x53, 0x80),
    Timestamp: (0x83,),
    bytes: (0xA0, 0xB0),
    str: (0xA1, 0xB1),
    Symbol: (0xA3, 0xB3),
    list: (0x45, 0xC0, 0xD0),
    dict: (0xC1, 0xD1),
    Array: (0xE0, 0xF0),
}
"""A type of AMQP → the octets that a value of it may begin with."""
_KINDS: Final = {code: kind.__name__.lower() for kind, codes in CONSTRUCTORS.items() for code in codes} | {
    NULL: "null",
    DESCRIBED: "described",
}


class WireError(ValueError):
    """What the peer sent can't be understood; `condition` is what the peer is told."""

    def __init__(self, condition: Condition, message: str) -> None:
        super().__init__(message)
        self.condition = condition


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold. `readers` has a reader for each constructor that is allowed; a reader raises ValueError
    for a wrong value. `write` gives the octets of a value. Null is the business of the field."""

    name: str
    readers: Mapping[int, Reader]
    write: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its name in the documents, its kind, and what null means: `absent`, or a refusal where the field is
    mandatory."""

    name: str
    kind: Kind
    absent: Any = None
    mandatory: bool = False


class Composite(Generic[T]):
    """A type of the wire. `table` has the order of the wire; the attributes of `make`, a dataclass, have the same
    order. `sent` is the descriptor that we send: ours are symbols, the specification's are numbers."""

    def __init__(
        self, make: type[T], name: str, symbol: Symbol, code: Ulong, sent: Symbol | Ulong, table: tuple[Field, ...]
    ) -> None:
        self.make = make
        self.name = name
        self.symbol = symbol
        self.code = code
        self.sent = sent
        self.fields = table
        self.attributes = tuple(field.name for field in fields(make))  # type: ignore[arg-type] # it is a dataclass
        self.prefix = b"\x00" + encode(sent)
        """The octets in front of the list."""
        self._absent = [field.absent for field in table]
        self._readers = tuple(field.kind.readers for field in table)
        self._needed = tuple(index for index, field in enumerate(table) if field.mandatory)
        self._least = 1 + self._needed[-1] if self._needed else 0
        self._writers = tuple(
            (attrgetter(attribute), field.kind.write, field.absent, field.mandatory)
            for attribute, field in zip(self.attributes, table, strict=True)
        )

    # -- writing
    def encode(self, value: T) -> bytes:
        """The octets of `value`."""
        items: list[bytes] = []
        for get, write, absent, mandatory in self._writers:
            item = get(value)
            items.append(b"\x40" if not mandatory and item == absent else write(item))
        while items and items[-1] == b"\x40":
            items.pop()
        return self.prefix + encode_list(items)

    # -- reading
    def read(self, octets: bytes, at: int, end: int, depth: int) -> tuple[T, int]:
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
        told = f"{self.name}, {field.name}: {field.kind.name} is expected, not {kind_of(constructor)}"
        return WireError(Condition.INVALID_FIELD, told)


class Catalog:
    """The composites that may stand in one place."""

    def __init__(self, *composites: Composite[Any]) -> None:
        self.by_type: dict[type, Composite[Any]] = {composite.make: composite for composite in composites}
        self._by_descriptor: dict[Any, Composite[Any]] = {}
        self._by_octets: dict[bytes, Composite[Any]] = {}
        for composite in composites:
            for descriptor in (composite.symbol, composite.code):
                self._by_descriptor[descriptor] = composite
                self._by_octets[encode(descriptor)] = composite

    def encode(self, value: Any) -> bytes:
        """The octets of `value`, which has a type of this catalogue."""
        return self.by_type[type(value)].encode(value)

    def decode(self, octets: bytes, at: int = 0) -> Any:
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

    def read(self, octets: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
        """The value whose descriptor begins at `at`, and where it ends; a Reader for the constructor 00."""
        if depth < 0:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        composite, at = self.find(octets, at, end)
        return composite.read(octets, at, end, depth)

    def find(self, octets: bytes, at: int, end: int) -> tuple[Composite[Any], int]:
        """The composite whose descriptor stands at `at`, and where its list begins."""
        if end - at > 2:
            stop = at + 2 + (octets[at + 1] if octets[at] == 0xA3 else 0)
            composite = self._by_octets.get(octets[at:stop])
            if composite is not None:
                return composite, stop
        descriptor, stop = decode_from(octets, at, end)
        if type(descriptor) in {Symbol, Ulong}:
            composite = self._by_descriptor.get(descriptor)
            if composite is not None:
                return composite, stop
        skip(octets, stop, end)  # is it a value at all?
        raise WireError(Condition.NOT_IMPLEMENTED, f"nothing is known of {shown(descriptor)} here")


def standard(make: type[T], name: str, number: int, table: tuple[Field, ...]) -> Composite[T]:
    """A composite of the AMQP specification."""
    code = Ulong(number)
    return Composite(make, name, Symbol(f"amqp:{name}:list"), code, code, table)


def kind_of(constructor: int) -> str:
    """The type of the values with this constructor, for messages."""
    return _KINDS.get(constructor, f"constructor {constructor:#04x}")


def shown(descriptor: Any) -> str:
    """A descriptor, for messages: short, whatever the peer sent."""
    if isinstance(descriptor, int) and not isinstance(descriptor, bool):
        return hex(descriptor)
    return ascii(descriptor)[:64]


# --- kinds --------------------
def plain(name: str, wire: type, check: Callable[[Any], str] | None = None) -> Kind:
    """A kind that is one AMQP type; `check` says what is wrong with a value of it, or the empty string."""
    readers = {code: READERS[code] for code in CONSTRUCTORS[wire]}
    if check is not None:
        readers = {code: converting(reader, _refusing(check)) for code, reader in readers.items()}
    return Kind(name, readers, lambda value: encode(wire(value)))


def _refusing(check: Callable[[Any], str]) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        wrong = check(value)
        if wrong:
            raise ValueError(wrong)
        return value

    return checked


def converting(reader: Reader, convert: Callable[[Any], Any]) -> Reader:
    """A reader of what `convert` makes of what `reader` reads; ValueError of `convert` refuses the value."""

    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
        value, at = reader(octets, at, end, depth)
        return convert(value), at

    return read


def nested(found: Composite[Any]) -> Kind:
    """A kind that is another composite."""
    return Kind(found.name, {DESCRIBED: Catalog(found).read}, found.encode)


def several(kind: Kind, limit: int) -> Kind:
    """A kind that is a list of at most `limit` values; our side has them in a tuple."""

    def read(octets: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
        at, stop, count = list_head(octets, at - 1, end)
        if count > limit:
            raise ValueError(f"a list of at most {limit} is expected, not of {count}")
        values = []
        for _ in range(count):
            constructor = octets[at] if at < stop else NULL
            reader = kind.readers.get(constructor)
            if reader is None:
                raise ValueError(f"{kind.name} is expected, not {kind_of(constructor)}")
            value, at = reader(octets, at + 1, stop, depth - 1)
            values.append(value)
        if at != stop:
            raise DecodeError(f"a list ends at {at}, its size says {stop}")
        return tuple(values), stop

    return Kind(
        f"list of {kind.name}",
        dict.fromkeys(CONSTRUCTORS[list], read),
        lambda values: encode_list([kind.write(value) for value in values]),
    )


def _as_symbols(value: Any) -> tuple[str, ...]:
    items = value if type(value) is Array else [value]
    if not all(type(item) is Symbol for item in items):
        raise ValueError("symbols are expected")
    return tuple(str(item) for item in items)


SYMBOLS: Final = Kind(
    "symbols",
    {code: converting(READERS[code], _as_symbols) for code in CONSTRUCTORS[Symbol] + CONSTRUCTORS[Array]},
    lambda value: encode(Array(map(Symbol, value))),
)
"""A symbol with multiple="true": one, or an array of them."""
