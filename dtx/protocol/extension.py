"""The composites of this protocol. Their descriptors are symbols, `xabridge:NAME:list`. Each has a number as well
(0x58414231, the domain, in the upper 32 bits), which is taken everywhere, and sent where proton can send numbers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.composites import Composite
from dtx.amqp.values import Symbol, Ulong

if TYPE_CHECKING:
    from dtx.amqp.composites import Field

T = TypeVar("T")
DOMAIN: Final = 0x58414231
"""The upper half of our numeric descriptors: "XAB1"."""


def composite(make: type[T], name: str, number: int, table: tuple[Field, ...]) -> Composite[T]:
    """A composite of this protocol. The attributes of `make` are the fields, in their order."""
    symbol = Symbol(f"xabridge:{name}:list")
    return Composite(make, name, symbol, Ulong(DOMAIN << 32 | number), symbol, table)
