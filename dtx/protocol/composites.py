"""Composites as tables: a frozen dataclass on our side, a described list on the wire, and the fields
between them.

A composite is `00`, its descriptor, and a list of its fields in their order; trailing nulls are left out,
and a missing field is null. Descriptors of ours are symbols, `xabridge:NAME:list`, and each has a number as
well (0x58414231, the domain, in the upper 32 bits), which is taken everywhere and sent where proton can
send numbers only. Nothing but WireError leaves this module, whatever the octets are.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from dtx.protocol.conditions import Condition
from dtx.protocol.decoding import DecodeError, decode
from dtx.protocol.encoding import encode
from dtx.protocol.values import Array, Described, Symbol, Ulong

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
DOMAIN: Final = 0x58414231
"""The upper half of our numeric descriptors: "XAB1"."""


class WireError(ValueError):
    """The peer sent something that can't be understood; it gets `condition` as answer."""

    def __init__(self, condition: Condition, message: str) -> None:
        super().__init__(message)
        self.condition = condition


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold: `to_wire` makes an AMQP value; `from_wire` takes one back and raises ValueError
    for a wrong one. Null is the field's business."""

    name: str
    to_wire: Callable[[Any], Any]
    from_wire: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A field: its name in the documents, its kind, and what null means: `absent`, or a refusal where the
    field is mandatory."""

    name: str
    kind: Kind
    absent: Any = None
    mandatory: bool = False


@dataclass(frozen=True, slots=True)
class Composite(Generic[T]):
    """A type of the wire. `fields` have the order of the wire; `make` takes them in this order. `sent` is the
    descriptor that we send: ours are symbols, the specification's are numbers."""

    name: str
    symbol: Symbol
    code: Ulong
    sent: Symbol | Ulong
    make: type[T]
    fields: tuple[Field, ...]
    attributes: tuple[str, ...]

    def to_wire(self, value: T) -> Described:
        """The AMQP value of `value`."""
        items: list[Any] = []
        for field, attribute in zip(self.fields, self.attributes, strict=True):
            item = getattr(value, attribute)
            if not field.mandatory and item == field.absent:
                items.append(None)
            else:
                items.append(field.kind.to_wire(item))
        while items and items[-1] is None:
            items.pop()
        return Described(self.sent, items)

    def from_wire(self, items: Any) -> T:
        """The value with these fields; WireError says which field is wrong."""
        if type(items) is not list:
            raise WireError(Condition.INVALID_FIELD, f"{self.name} is a list, not {kind_name(items)}")
        if len(items) > len(self.fields):
            raise WireError(Condition.INVALID_FIELD, f"{self.name} has {len(self.fields)} fields, not {len(items)}")
        values = []
        for number, field in enumerate(self.fields):
            item = items[number] if number < len(items) else None
            if item is None:
                if field.mandatory:
                    raise WireError(Condition.INVALID_FIELD, f"{self.name} needs {field.name}")
                values.append(field.absent)
                continue
            try:
                values.append(field.kind.from_wire(item))
            except WireError:
                raise
            except ValueError as error:
                raise WireError(Condition.INVALID_FIELD, f"{self.name}, {field.name}: {error}") from None
        try:
            return self.make(*values)
        except ValueError as error:
            raise WireError(Condition.INVALID_FIELD, f"{self.name}: {error}") from None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The composites that may stand in one place."""

    by_descriptor: dict[Any, Composite[Any]]
    by_type: dict[type, Composite[Any]]

    @classmethod
    def of(cls, *composites: Composite[Any]) -> Catalog:
        """A catalogue of these."""
        by_descriptor: dict[Any, Composite[Any]] = {}
        for composite in composites:
            by_descriptor[composite.symbol] = composite
            by_descriptor[composite.code] = composite
        return cls(by_descriptor, {composite.make: composite for composite in composites})

    def to_wire(self, value: Any) -> Described:
        """The AMQP value of `value`, which has a type of this catalogue."""
        return self.by_type[type(value)].to_wire(value)

    def from_wire(self, value: Any) -> Any:
        """What `value` stands for; WireError where it is none of this catalogue."""
        if type(value) is not Described:
            raise WireError(Condition.DECODE_ERROR, f"a described list is expected, not {kind_name(value)}")
        composite = None
        if type(value.descriptor) in {Symbol, Ulong}:
            composite = self.by_descriptor.get(value.descriptor)
        if composite is None:
            raise WireError(Condition.NOT_IMPLEMENTED, f"nothing is known of {shown(value.descriptor)} here")
        return composite.from_wire(value.value)

    def encode(self, value: Any) -> bytes:
        """The octets of `value`, which has a type of this catalogue."""
        return encode(self.to_wire(value))

    def decode(self, octets: bytes) -> Any:
        """What `octets` say; WireError where they say nothing of this catalogue."""
        try:
            value = decode(octets)
        except DecodeError as error:
            raise WireError(Condition.DECODE_ERROR, str(error)) from None
        return self.from_wire(value)


def composite(make: type[T], name: str, number: int, table: tuple[Field, ...]) -> Composite[T]:
    """A composite of ours. The attributes of `make` are the fields, in their order."""
    symbol = Symbol(f"xabridge:{name}:list")
    return Composite(name, symbol, Ulong(DOMAIN << 32 | number), symbol, make, table, _attributes(make))


def standard(make: type[T], name: str, number: int, table: tuple[Field, ...]) -> Composite[T]:
    """A composite of the AMQP specification."""
    code = Ulong(number)
    return Composite(name, Symbol(f"amqp:{name}:list"), code, code, make, table, _attributes(make))


def _attributes(make: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(make))


def kind_name(value: Any) -> str:
    """The name of a wrong value's type, for messages."""
    return "null" if value is None else type(value).__name__.lower()


def shown(descriptor: Any) -> str:
    """A descriptor, for messages: short, whatever the peer sent."""
    if isinstance(descriptor, int) and not isinstance(descriptor, bool):
        return hex(descriptor)
    return ascii(descriptor)[:64]


# --- kinds --------------------
def plain(name: str, wire: type, ours: Callable[[Any], Any], check: Callable[[Any], str] | None = None) -> Kind:
    """A kind that is one AMQP type; `check` says what is wrong with a value of it, or the empty string."""

    def from_wire(value: Any) -> Any:
        if type(value) is not wire:
            raise ValueError(f"{name} is expected, not {kind_name(value)}")
        wrong = check(value) if check is not None else ""
        if wrong:
            raise ValueError(wrong)
        return ours(value)

    return Kind(name, wire, from_wire)


def nested(found: Composite[Any]) -> Kind:
    """A kind that is another composite."""
    catalog = Catalog.of(found)
    return Kind(found.name, found.to_wire, catalog.from_wire)


def several(kind: Kind, limit: int) -> Kind:
    """A kind that is a list of at most `limit` values; our side has them in a tuple."""

    def from_wire(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ValueError(f"a list is expected, not {kind_name(value)}")
        if len(value) > limit:
            raise ValueError(f"a list of at most {limit} is expected, not of {len(value)}")
        return tuple(kind.from_wire(item) for item in value)

    return Kind(f"list of {kind.name}", lambda value: [kind.to_wire(item) for item in value], from_wire)


def _symbols_from_wire(value: Any) -> tuple[str, ...]:
    items = value if type(value) is Array else [value]
    if not all(type(item) is Symbol for item in items):
        raise ValueError(f"symbols are expected, not {kind_name(value)}")
    return tuple(str(item) for item in items)


SYMBOLS: Final = Kind("symbols", lambda value: Array(map(Symbol, value)), _symbols_from_wire)
"""A symbol with multiple="true": one, or an array of them."""
