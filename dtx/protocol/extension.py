"""The composites of this protocol. Their descriptors are symbols, `xabridge:NAME:list`. Each has a number as well
(0x58414231, the domain, in the upper 32 bits), which is taken everywhere, and sent where proton can send numbers only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, TypeVarTuple

from dtx.amqp import composites
from dtx.amqp.values import Symbol, Ulong

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.composites import Composite, Table

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
DOMAIN: Final = 0x58414231
"""The upper half of our numeric descriptors: "XAB1"."""


def composite(make: Callable[[*Ts], T], name: str, number: int, table: Table[*Ts]) -> Composite[T]:
    """A composite of this protocol: the dataclass `make` has an attribute for each field of the table."""
    symbol = Symbol(f"xabridge:{name}:list")
    return composites.composite(make, name, symbol, Ulong(DOMAIN << 32 | number), symbol, table)
