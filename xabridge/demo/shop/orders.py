"""The orders: their form in the queue, in the database and on the invoices, and how one becomes the others."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, insert

from rm_amqp import Message
from xa.open_string import OpenString
from xabridge.demo.shop.shop import BROKER, DATABASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Engine

    from tm import Transaction, TransactionManager

ORDERS: Final = "orders"
INVOICES: Final = "invoices"
DEAD: Final = f"{ORDERS}.dead"
CUSTOMERS: Final = ("Ada", "Boole", "Church", "Dijkstra", "Erdős", "Floyd", "Gödel", "Hopper")
AT_ONCE: Final = 500
"""Orders that are placed in one transaction."""

TABLE: Final = Table(
    "orders",
    MetaData(),
    # no key: an order that is written twice has to be seen, not to be refused
    Column("number", Integer, nullable=False),
    Column("customer", String, nullable=False),
    Column("cents", BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True, order=True)
class Order:
    """One order."""

    number: int
    customer: str
    cents: int

    @classmethod
    def read(cls, body: Any) -> Order:
        """Reads it from the body of a message; ValueError where it is none."""
        try:
            return cls(int(body["number"]), str(body["customer"]), int(body["cents"]))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"no order: {body!r}") from error

    def message(self) -> Message:
        """The message that it travels in, as an order or as an invoice."""
        return Message(
            {"number": self.number, "customer": self.customer, "cents": self.cents}, id=f"order-{self.number}"
        )


def orders_from(seed: int, first: int = 1) -> Iterator[Order]:
    """Orders without end, the same for the same seed."""
    dice = random.Random(seed)  # noqa: S311 — no secret
    number = first
    while True:
        yield Order(number, dice.choice(CUSTOMERS), dice.randrange(100, 100_000))
        number += 1


def place(manager: TransactionManager, orders: Iterable[Order], at_once: int = AT_ONCE) -> int:
    """Puts orders into the queue, `at_once` of them in a transaction; how many."""
    left = iter(orders)
    placed = 0
    while some := list(islice(left, at_once)):
        with manager.begin() as tx:
            for order in some:
                tx[BROKER].send(ORDERS, order.message())
        placed += len(some)
    return placed


def engine_of(database: str) -> Engine:
    """An engine for an open string of the shop's database, one without settings of xabridge's."""
    url = OpenString.parse(database).url.replace("postgresql://", "postgresql+psycopg://", 1)
    return create_engine(url, pool_size=1, pool_pre_ping=True)


def open_books(database: str) -> None:
    """Makes the table, where there is none."""
    engine = engine_of(database)
    try:
        TABLE.metadata.create_all(engine)
    finally:
        engine.dispose()


def handle(message: Message, tx: Transaction) -> None:
    """The shop's work: the order is consumed, its row is written, its invoice is produced."""
    order = Order.read(message.body)
    tx[DATABASE].execute(insert(TABLE).values(number=order.number, customer=order.customer, cents=order.cents))
    tx[BROKER].send(INVOICES, order.message())
