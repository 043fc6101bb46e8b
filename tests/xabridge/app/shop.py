"""The vocabulary of the tests of applications: a shop that has a broker and a database."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from xabridge import Broker, Configuration, Database, Tx
from xabridge.testing import TestApp

NOWHERE = Configuration(
    "shop-1", None, {"broker": "amqp://nowhere.invalid", "shop": "postgresql://nowhere.invalid/shop"}
)


@dataclass
class Invoice:
    """What goes."""

    order: int


class Shop(Tx):
    """What the application works with."""

    shop: Database
    broker: Broker


def set_up(test: TestApp) -> None:
    """Its table."""
    with test.engine("shop").begin() as connection:
        connection.execute(text("CREATE TABLE orders (number integer PRIMARY KEY)"))


def rows(test: TestApp) -> list[int]:
    """What is in it."""
    with test.engine("shop").begin() as connection:
        return list(connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars())
