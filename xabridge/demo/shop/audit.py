"""Gauge and Audit: what a shop looks like from outside, while it works and when it is done.

Both ask the broker and the database themselves, on connections of their own: nothing here trusts the transaction
manager.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, select, text
from sqlalchemy.exc import SQLAlchemyError

from xa.open_string import OpenString
from xabridge.demo.shop.orders import DEAD, INVOICES, ORDERS, TABLE, Order, engine_of
from xabridge.demo.shop.shop import BROKER
from xabridge.testing.management import Management

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tm import TransactionManager
    from xabridge.demo.shop.shop import Shop

ASK_S: Final = 2.0
_PREPARED: Final = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"


@dataclass(frozen=True, slots=True)
class Figures:
    """One look: what waits in the queue, rows, invoices, prepared branches of both, and dead letters. `whole` says that
    both could be asked; what could not is as it was at the last look."""

    waiting: int = 0
    rows: int = 0
    invoices: int = 0
    in_doubt: int = 0
    whole: bool = False
    dead: int = 0

    def text(self, orders: int) -> str:
        """The figures in words, of so many orders."""
        return f"rows {self.rows:,}/{orders:,} invoices {self.invoices:,} in doubt {self.in_doubt}"


class ShopProbe:
    """Looks at a shop again and again, whether its broker and its database are there or not."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._broker: Management | None = None
        self._engine = engine_of(shop.database)
        self._seen = {"waiting": 0, "invoices": 0, "rows": 0, "broker": 0, "database": 0, "dead": 0}

    def look(self) -> Figures:
        """The present results."""
        broker, database = self._look_at_broker(), self._look_at_database()
        seen = self._seen
        return Figures(
            seen["waiting"],
            seen["rows"],
            seen["invoices"],
            seen["broker"] + seen["database"],
            broker and database,
            seen["dead"],
        )

    def _look_at_broker(self) -> bool:
        try:
            if self._broker is None:
                self._broker = Management(*_place(self._shop.broker), ASK_S)
            depths, status = self._broker.depths(), self._broker.ask("status")
        except OSError:
            self._drop_broker()
            return False
        self._seen |= {"waiting": depths.get(ORDERS, 0), "invoices": depths.get(INVOICES, 0)}
        self._seen |= {"broker": int(status["in-doubt"]), "dead": depths.get(DEAD, 0)}
        return True

    def _look_at_database(self) -> bool:
        try:
            with self._engine.connect() as connection:
                self._seen["rows"] = connection.scalar(select(func.count()).select_from(TABLE)) or 0
                if connection.dialect.name == "postgresql":  # others prepare nothing
                    self._seen["database"] = connection.scalar(text(_PREPARED)) or 0
        except SQLAlchemyError:
            return False
        return True

    def _drop_broker(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def close(self) -> None:
        """Drops both connections."""
        self._drop_broker()
        self._engine.dispose()


def _place(url: str) -> tuple[str, int]:
    """Host and port of the shop's broker."""
    return OpenString.parse(url).hosts(5672)[0]


@dataclass(frozen=True, slots=True)
class ShopAudit:
    """The result of an audit. `lost`: neither row nor invoice, and not in the queue either; `split`: one without the
    other; `duplicated`: a row or an invoice too many, or in the queue as well."""

    orders: int
    waiting: int
    rows: int
    invoices: int
    lost: int
    duplicated: int
    split: int
    in_doubt: int
    checksums: tuple[str, str, str]

    @property
    def exact(self) -> bool:
        """Whether every order is once a row and once an invoice, unchanged, and nothing is in doubt."""
        return (
            self.orders == self.rows == self.invoices
            and len(set(self.checksums)) == 1
            and not any((self.lost, self.duplicated, self.split, self.in_doubt, self.waiting))
        )

    def figures(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"exact": self.exact, **asdict(self), "checksums": list(self.checksums)}


class Audit:
    """Compares orders, rows and invoices. `manager` is one that has the shop's broker."""

    def __init__(self, shop: Shop, manager: TransactionManager) -> None:
        self._shop = shop
        self._manager = manager

    def prove(self, placed: Iterable[Order], in_doubt: int) -> ShopAudit:
        """Whether the orders that were placed are rows and invoices, each once, and what else there is; `in_doubt` is
        how many branches still are. Nothing may be at work."""
        orders = list(placed)
        waiting, invoices = self._messages(ORDERS), self._messages(INVOICES)
        rows = self._rows()
        as_row, as_invoice, as_order = Counter(rows), Counter(invoices), Counter(waiting)
        split = sum(min(as_row[order], 1) != min(as_invoice[order], 1) for order in orders)

        lost = sum(not as_row[order] and not as_invoice[order] and not as_order[order] for order in orders)
        return ShopAudit(
            len(orders),
            len(waiting),
            len(rows),
            len(invoices),
            lost,
            sum(_too_many(counts) for counts in (as_row, as_invoice, as_order)) + sum((as_order & as_row).values()),
            split,
            in_doubt,
            (checksum(orders), checksum(rows), checksum(invoices)),
        )

    def began(self) -> bool:
        """Whether there is anything already: orders are placed once, however often their generator is started."""
        return bool(self._rows() or self._messages(ORDERS) or self._messages(INVOICES))

    def _messages(self, queue: str) -> list[Order]:
        with self._manager.begin() as tx:
            return [Order.read(message.body) for message in tx[BROKER].browse(queue)]

    def _rows(self) -> list[Order]:
        engine = engine_of(self._shop.database)
        with engine.connect() as connection:
            rows = [Order(*row) for row in connection.execute(select(TABLE))]
        engine.dispose()
        return rows


def _too_many(counts: Counter[Order]) -> int:
    return sum(count - 1 for count in counts.values())


def checksum(orders: Iterable[Order]) -> str:
    """The same for the same orders, in whatever sequence."""
    lines = "\n".join(f"{order.number} {order.customer} {order.cents}" for order in sorted(orders))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
