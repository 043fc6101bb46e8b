"""These tests run two brokers on one store in PostgreSQL, one of which stands by, while workers move orders to invoices
and rows in two phases. The broker at work is killed, paused and resumed, and cut off from its database, again and
again. In the end each order is one row and one invoice, and nothing is in doubt.

With XABRIDGE_POINTS=all there are four rounds of the three faults.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from rm_amqp import Message
from tests.crash.forked import ForkedProcess
from tests.postgres import Postgres
from tests.rm_db.proxy import Proxy
from tests.simulation.seeds import EVERY_POINT
from tests.waiting import until
from tm import TransactionManager
from xabridge.testing.amqp_client import Client, run
from xabridge.testing.ports import free_port

ROUNDS = 4 if EVERY_POINT else 1
ORDERS = 300
WORKERS = 3
LEASE_S = 1
PATIENCE_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 * ROUNDS)]


class StandingBroker:
    """A broker that waits for the store where another one has it, with a network of its own to the database; without a
    database, on a file."""

    def __init__(self, folder: Path, name: str, database: str) -> None:
        self.port = free_port()
        self.proxy = Proxy(database or "postgresql://127.0.0.1:1/none")
        self._errors = folder / f"{name}.err"
        self._errors.touch()
        self._config = folder / f"{name}.toml"
        store = self.proxy.url if database else f"sqlite:///{folder}/store.db"
        self._config.write_text(
            f'[broker]\nlisten = "127.0.0.1:{self.port}"\nstore = "{store}"\nstandby = true\nlease_s = {LEASE_S}\n'
        )
        self.process: ForkedProcess | None = None

    def start(self) -> None:
        """Starts it, and does not wait."""
        if self.process is not None:
            self.process.close()
        self.process = ForkedProcess("dtx.broker.command", "--config", str(self._config), errors=self._errors)

    @property
    def listens(self) -> bool:
        """Whether it has the store, or has had it."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        """Waits until it has ended, its exit code."""
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        """Its output on stderr."""
        return self._errors.read_text()

    def close(self) -> None:
        """The end."""
        if self.process is not None:
            self.process.close()
        self.proxy.close()


@pytest.fixture
def brokers(postgres: Postgres, tmp_path: Path) -> Iterator[tuple[StandingBroker, StandingBroker]]:
    """Two of them on one store; the first one has it."""
    database = postgres.create_database()
    with ExitStack() as stack:
        both = [StandingBroker(tmp_path, name, database) for name in ("one", "two")]
        for broker in both:
            stack.callback(broker.close)
        both[0].start()
        until(lambda: both[0].listens, "the first broker has the store")
        both[1].start()
        until(lambda: "standing by: the store" in both[1].errors(), "the second one stands by")
        yield both[0], both[1]


def killed(active: StandingBroker, other: StandingBroker) -> None:
    """It dies, the other one takes over."""
    active.signal(signal.SIGKILL)
    active.ended()
    until(lambda: other.listens, "the other one has the store")
    active.start()


def paused(active: StandingBroker, other: StandingBroker) -> None:
    """It is stopped until the other one has taken over, and wakes up under load. What it is asked meanwhile it does not
    answer."""
    client = Client("127.0.0.1", active.port, PATIENCE_S)
    run(client, client.receiver("unused", 1))
    active.signal(signal.SIGSTOP)
    next(client.receiver("unused", 1))
    client.flush()
    until(lambda: other.listens, "the other one has the store")
    time.sleep(0.2)  # the workers are at it
    active.signal(signal.SIGCONT)
    with suppress(ConnectionResetError):
        assert client.socket.recv(1) == b"", "it has answered"
    client.socket.close()
    assert active.ended() == 1
    assert "stopped, because the store did" in active.errors()
    active.start()


def cut_off(active: StandingBroker, other: StandingBroker) -> None:
    """Nothing comes from its database any more, nor gets there: connections are open, and silent."""
    active.proxy.hold_replies()
    active.proxy.hold_requests()
    until(lambda: other.listens, "the other one has the store")
    assert active.ended() == 1
    active.proxy.cut()
    active.start()


def test_two_brokers_on_one_store_lose_and_split_nothing(
    postgres: Postgres, brokers: tuple[StandingBroker, StandingBroker], tmp_path: Path
) -> None:
    shop = postgres.create_database()
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    one, two = brokers
    url = f"amqp://127.0.0.1:{one.port},127.0.0.1:{two.port}/?timeout=5"
    resources = {"broker": url, "shop": shop}
    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, recovery_interval_s=0.5) as tm:
        with tm.begin() as tx:
            tx["broker"].send_batch("orders", [Message(body=number) for number in range(ORDERS * ROUNDS)])
        failures: list[Exception] = []
        stop, hurry = threading.Event(), threading.Event()
        threads = [threading.Thread(target=work, args=(tm, stop, hurry, failures)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        active, other = one, two
        for _ in range(ROUNDS):
            for fault in (killed, paused, cut_off):
                fault(active, other)
                active, other = other, active

        assert len(rows(shop)) < ORDERS * ROUNDS, "there was nothing to do any more when the last fault came"
        hurry.set()
        until(lambda: rows(shop) == list(range(ORDERS * ROUNDS)), lambda: f"every order is a row: {failures[-3:]}")
        stop.set()
        for thread in threads:
            thread.join()
        until(lambda: recovered(tm), "nothing is in doubt")
        invoices: list[int] = []
        with tm.begin() as tx:
            while len(invoices) < ORDERS * ROUNDS:
                found = tx["broker"].receive_batch("invoices", ORDERS * ROUNDS, timeout_s=10)
                invoices += [int(message.body) for message in found]
        assert sorted(invoices) == list(range(ORDERS * ROUNDS))
        assert rows(shop) == list(range(ORDERS * ROUNDS))
        for queue in ("orders", "invoices"):
            with tm.begin() as tx, pytest.raises(TimeoutError):
                tx["broker"].receive(queue, timeout_s=0.5)


def recovered(tm: TransactionManager) -> bool:
    """Whether everything was reached, and nothing is in doubt."""
    return tm.recover().clean


def rows(shop: str) -> list[int]:
    """What the shop has."""
    with psycopg.connect(shop) as connection:
        return sorted(row[0] for row in connection.execute("SELECT id FROM orders"))


def work(tm: TransactionManager, stop: threading.Event, hurry: threading.Event, failures: list[Exception]) -> None:
    """Moves one order after the other, whatever happens; slowly until `hurry`, so that there is work until the last
    fault."""
    while not stop.is_set():
        try:
            with tm.begin() as tx:
                order = tx["broker"].receive("orders", timeout_s=0.5)
                tx["shop"].execute(text("INSERT INTO orders VALUES (:id)"), {"id": order.body})
                tx["broker"].send("invoices", Message(body=order.body))
                hurry.wait(0.2)
        except Exception as error:  # noqa: BLE001 — whatever it is, it is tried again
            failures.append(error)
            time.sleep(0.05)


def test_one_that_stands_by_ends_when_it_is_told_to(brokers: tuple[StandingBroker, StandingBroker]) -> None:
    active, other = brokers
    other.signal(signal.SIGTERM)
    assert other.ended() == 0
    other.start()
    active.signal(signal.SIGTERM)  # which gives the lease back
    assert active.ended() == 0
    until(lambda: other.listens, "the other one has the store")


def test_on_one_machine_a_store_in_a_file_has_one_that_stands_by(tmp_path: Path) -> None:
    with ExitStack() as stack:
        both = [StandingBroker(tmp_path, name, "") for name in ("one", "two")]
        for broker in both:
            stack.callback(broker.close)
        both[0].start()
        until(lambda: both[0].listens, "the first broker has the store")
        both[1].start()
        until(lambda: "standing by: the store is in use by process" in both[1].errors(), "the second one stands by")
        both[0].signal(signal.SIGKILL)
        until(lambda: both[1].listens, "the other one has the store")
