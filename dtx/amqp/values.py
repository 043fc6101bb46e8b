"""The values of AMQP 1.0: every AMQP type has a Python type of its own, so that a composite can ask for an
uint and refuse a ulong.

    null None              boolean bool                    ubyte … long   Ubyte, Ushort, Uint, Ulong, Byte, …
    float Float            double float                    char Char      decimal32 … 128 Decimal (undecoded)
    timestamp Timestamp (milliseconds)
    binary bytes           string str                      symbol Symbol  uuid uuid.UUID
    list list              map dict                        array Array    described Described

`Value` is any of them. A plain `int` is none: it does not say which type of the wire it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from uuid import UUID


class Symbol(str):
    """A symbol: ASCII, from a domain of names."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class Ubyte(int):
    """8 bits, unsigned."""

    __slots__ = ()


class Ushort(int):
    """16 bits, unsigned."""

    __slots__ = ()


class Uint(int):
    """32 bits, unsigned."""

    __slots__ = ()


class Ulong(int):
    """64 bits, unsigned."""

    __slots__ = ()


class Byte(int):
    """8 bits, signed."""

    __slots__ = ()


class Short(int):
    """16 bits, signed."""

    __slots__ = ()


class Int(int):
    """32 bits, signed."""

    __slots__ = ()


class Long(int):
    """64 bits, signed."""

    __slots__ = ()


INTEGERS: Final = (Ubyte, Ushort, Uint, Ulong, Byte, Short, Int, Long)
"""The types of whole numbers."""


class Float(float):
    """32 bits, binary."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the epoch."""

    __slots__ = ()


class Array(list["Value"]):
    """An array: its elements have one type."""

    __slots__ = ("_empty_of",)

    @property
    def empty_of(self) -> bytes:
        """Of an array without elements that was read: the constructor that elements would have."""
        try:
            return self._empty_of
        except AttributeError:
            return b""

    @empty_of.setter
    def empty_of(self, constructor: bytes) -> None:
        self._empty_of = constructor


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal floating point number, as it stands on the wire: `code` is its constructor."""

    code: int
    octets: bytes


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor: a Ulong or a Symbol says what the value means."""

    descriptor: Value
    value: Value


Value: TypeAlias = (
    "bool | Ubyte | Ushort | Uint | Ulong | Byte | Short | Int | Long | Timestamp | float | str | bytes | UUID"
    " | Decimal | list[Value] | Map | Array | Described | None"
)
"""A value of AMQP. Symbol and Char are among `str`, Float is among `float`."""
Map: TypeAlias = "dict[Value, Value]"
"""A map of AMQP. Its keys are simple values."""
