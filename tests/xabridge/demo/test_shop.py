"""These tests run the parts of the shop with SQLite as the database that decides, and stop and kill its worker
processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from tm import TransactionManager
from xabridge.demo.shop import ORDERS, Audit, Order, Shop, ShopProbe, WorkerProcess, orders_from, place
from xabridge.demo.shop.orders import TABLE, engine_of, open_books
from xabridge.demo.shop.shop import BRANCH_TIMEOUT_S
from xabridge.testing.broker import BrokerProcess

COUNT = 120


class Stand:
    """A shop whose database is a file."""

    def __init__(self, folder: Path) -> None:
        self.broker = BrokerProcess(folder)
        self.broker.start()
        broker = f"amqp://127.0.0.1:{self.broker.port}/?branch_timeout={BRANCH_TIMEOUT_S}"
        self.shop = Shop(broker, f"sqlite:///{folder}/shop.db", "decider")
        open_books(self.shop.database)
        self.front = TransactionManager("front", f"file://{folder}/front", {"broker": self.shop.broker})
        config = self.shop.configure(folder / "worker.toml", "worker", folder / "log")
        self.worker = WorkerProcess(config, workers=3, batch=4)
        self.gauge = ShopProbe(self.shop)
        self.audit = Audit(self.shop, self.front)
        self.orders = list(islice(orders_from(7), COUNT))

    def until(self, rows: int) -> None:
        """Returns when so many orders are rows."""
        while self.gauge.look().rows < rows:
            assert self.worker.running, self.worker.errors()

    def close(self) -> None:
        self.worker.kill()
        self.gauge.close()
        self.front.close()
        self.broker.kill()


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path)
    yield stand
    stand.close()


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_nothing_half_done(stand: Stand) -> None:
    place(stand.front, stand.orders)
    stand.worker.start()
    stand.until(COUNT // 3)
    stand.worker.kill()
    stand.worker.start()
    stand.until(COUNT)
    assert stand.worker.stop() == 0
    proof = stand.audit.prove(stand.orders, stand.gauge.look().in_doubt)
    assert proof.exact, proof


@pytest.mark.slow
def test_sigterm_finishes_what_runs(stand: Stand) -> None:
    place(stand.front, stand.orders)
    stand.worker.start()
    stand.until(1)
    assert stand.worker.stop() == 0  # SIGTERM
    proof = stand.audit.prove(stand.orders, stand.gauge.look().in_doubt)
    assert proof.rows == proof.invoices == COUNT - proof.waiting
    assert (proof.lost, proof.duplicated, proof.split, proof.in_doubt) == (0, 0, 0, 0)
    stopped = list(stand.worker.events())[-1]
    assert stopped["event"] == "stopped"
    assert stopped["handled"] == proof.rows
    assert stopped["failed"] == 0


@pytest.mark.slow
def test_the_audit_sees_what_is_wrong(stand: Stand) -> None:
    orders = stand.orders[:6]
    place(stand.front, orders)
    stand.worker.start()
    stand.until(6)
    stand.worker.stop()
    engine = engine_of(stand.shop.database)
    with engine.begin() as connection:
        twice, never = orders[:2]  # a row too many, and an invoice without one
        connection.execute(TABLE.insert().values(number=twice.number, customer=twice.customer, cents=twice.cents))
        connection.execute(TABLE.delete().where(TABLE.c.number == never.number))
        changed = replace(orders[2], cents=1)  # a row that is no invoice's, for an invoice that has none
        connection.execute(TABLE.update().where(TABLE.c.number == changed.number).values(cents=changed.cents))

    engine.dispose()
    with stand.front.begin() as tx:  # one that was handled, and is to be handled again
        tx["broker"].send(ORDERS, orders[3].message())
    missing = Order(99, "Nobody", 1)
    proof = stand.audit.prove([*orders, missing], 0)
    assert not proof.exact
    assert (proof.lost, proof.duplicated, proof.split, proof.waiting) == (1, 2, 2, 1)
    assert len(set(proof.checksums)) == 3
