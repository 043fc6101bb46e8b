"""The demo's orders, and what has to come of them: a row each, revenue per product, alerts of large ones."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PRODUCTS: Final = ("abacus", "compass", "globe", "hourglass", "kettle", "lantern", "metronome", "sextant")
BEGAN_S: Final = 1_767_225_600
"""When the first order was placed: the beginning of 2026."""
WINDOW_S: Final = 600
LARGE_CENTS: Final = 95_000
"""An order of so much is alerted."""
MOST_CENTS: Final = 100_000

ORDERS: Final = "orders"
ALERTS: Final = "alerts"
TABLES: Final = """
CREATE TABLE enriched (
    number bigint NOT NULL, product text NOT NULL, cents bigint NOT NULL, placed timestamptz NOT NULL
);
CREATE TABLE revenue (
    period timestamptz NOT NULL, product text NOT NULL, orders bigint NOT NULL, cents bigint NOT NULL,
    PRIMARY KEY (period, product)
);
"""
"""The first has no key: an order that is written twice has to be seen, not to be refused."""


@dataclass(frozen=True, slots=True, order=True)
class Order:
    """One order; `placed` in seconds since 1970."""

    number: int
    product: str
    cents: int
    placed: int

    def body(self) -> bytes:
        """The message that it comes in."""
        fields = {"number": self.number, "product": self.product, "cents": self.cents, "placed": self.placed}
        return json.dumps(fields).encode()

    @property
    def large(self) -> bool:
        """Whether it is alerted."""
        return self.cents >= LARGE_CENTS


@dataclass(frozen=True, slots=True, order=True)
class Revenue:
    """The revenue of one product in one window."""

    period: int
    product: str
    orders: int
    cents: int


def orders_from(seed: int, count: int) -> Iterator[Order]:
    """Orders, three a second; the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311 — no secret
    for number in range(1, count + 1):
        yield Order(number, dice.choice(PRODUCTS), dice.randrange(100, MOST_CENTS), BEGAN_S + number // 3)


def revenue_of(orders: Iterable[Order]) -> list[Revenue]:
    """Revenue per window and product, in order."""
    counts: Counter[tuple[int, str]] = Counter()
    cents: Counter[tuple[int, str]] = Counter()
    for order in orders:
        key = (order.placed // WINDOW_S * WINDOW_S, order.product)
        counts[key] += 1
        cents[key] += order.cents
    return [Revenue(*key, counts[key], cents[key]) for key in sorted(counts)]


def checksum(values: Iterable[Order] | Iterable[Revenue] | Iterable[int]) -> str:
    """The same for the same values, in whatever sequence."""
    return hashlib.sha256("\n".join(map(str, sorted(values))).encode()).hexdigest()[:16]
