"""These tests let PostgreSQL be in the way of consumers, by conflicts and by an outage, and check that no message is
made a dead letter for it, at the lowest limit of deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text

from rm_amqp import Message
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.waiting import until
from tm import Consumer, Transaction, TransactionManager


class Shop:
    """A queue, a counter in PostgreSQL, and as many managers as there are processes."""

    def __init__(self, postgres: Postgres, broker: EmbeddedBroker, folder: Path, processes: int) -> None:
        self.url = postgres.create_database()
        engine = create_engine(self.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE stock (left_over integer)"))
            connection.execute(text("INSERT INTO stock VALUES (0)"))
            connection.execute(text("CREATE TABLE orders (number integer)"))

        self.engine = engine
        self.managers = [
            TransactionManager(
                f"shop-{number}",
                f"file://{folder / str(number)}",
                {"broker": f"amqp://{broker.address}", "shop": self.url},
                recovery_interval_s=0.5,
            )
            for number in range(processes)
        ]

    def put(self, count: int) -> None:
        with self.managers[0].begin() as tx:
            tx["broker"].send_batch("orders", [Message({"number": number}) for number in range(count)])

    def wait(self, consumers: list[Consumer], count: int) -> tuple[int, int]:
        """How many messages were handled, and are dead, when these are so many."""

        def told() -> tuple[int, int]:
            return sum(c.counts.handled for c in consumers), sum(c.counts.dead_lettered for c in consumers)

        until(lambda: sum(told()) >= count)
        return told()

    def numbers(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars())


@pytest.fixture
def shop(postgres: Postgres, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    broker = EmbeddedBroker(tmp_path)
    shop = Shop(postgres, broker, tmp_path, request.param)
    yield shop
    for manager in shop.managers:
        manager.close()
    shop.engine.dispose()
    broker.stop()


@pytest.mark.parametrize(
    ("shop", "batch", "waits"),
    [
        (1, 5, "worker"),
        (2, 1, "broker"),
        pytest.param(1, 1, "broker", marks=pytest.mark.long),
        pytest.param(2, 5, "worker", marks=pytest.mark.long),
    ],
    indirect=["shop"],
)
def test_conflicts_make_no_dead_letter(shop: Shop, batch: int, waits: Any) -> None:
    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].execute(text("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"))
        (left,) = tx["shop"].execute(text("SELECT left_over FROM stock")).scalars().all()
        tx["shop"].execute(text("INSERT INTO orders VALUES (:number)"), message.body)
        tx["shop"].execute(text("UPDATE stock SET left_over = :left"), {"left": left + 1})

    shop.put(40)
    settings: dict[str, Any] = {"workers": 6, "batch": batch, "max_deliveries": 1, "idle_s": 0.05, "retry_waits": waits}
    consumers = [manager.consumer("orders", **settings)(handle) for manager in shop.managers]
    for consumer in consumers:
        consumer.start()
    assert shop.wait(consumers, 40) == (40, 0)
    for consumer in consumers:
        consumer.stop()
    assert sum(consumer.counts.failed for consumer in consumers), "there were none"
    assert shop.numbers() == list(range(40))


@pytest.mark.parametrize("shop", [2], indirect=True)
def test_an_outage_makes_no_dead_letter(shop: Shop, postgres: Postgres) -> None:
    """The workers are idle, the database goes away, and messages come."""

    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].execute(text("INSERT INTO orders VALUES (:number)"), message.body)

    settings: dict[str, Any] = {"workers": 6, "max_deliveries": 1, "idle_s": 0.1}
    consumers = [manager.consumer("orders", **settings)(handle) for manager in shop.managers]
    shop.put(1)
    for consumer in consumers:
        consumer.start()
    assert shop.wait(consumers, 1) == (1, 0)
    postgres.kill()
    shop.put(5)
    until(lambda: all(consumer.health().trouble for consumer in consumers))
    postgres.start()
    assert shop.wait(consumers, 6) == (6, 0)
    for consumer in consumers:
        consumer.stop()
    assert shop.numbers() == [0, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("shop", [1], indirect=True)
def test_a_statement_that_waits_for_longer_than_its_transaction_may_take_makes_no_dead_letter(shop: Shop) -> None:
    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].execute(text("UPDATE stock SET left_over = left_over + 1"))
        tx["shop"].execute(text("INSERT INTO orders VALUES (:number)"), message.body)

    consumer = shop.managers[0].consumer("orders", max_deliveries=1, timeout_s=1, idle_s=0.1, retry_first_s=0.1)(handle)
    shop.put(1)
    with shop.engine.begin() as blocker:
        blocker.execute(text("UPDATE stock SET left_over = 0"))
        consumer.start()
        until(lambda: consumer.counts.failed >= 2 or consumer.counts.dead_lettered)
    assert shop.wait([consumer], 1) == (1, 0)
    consumer.stop()
    assert shop.numbers() == [0]
