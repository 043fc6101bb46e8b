"""These tests press Ctrl-C at random moments of transactions over databases and a broker of each kind: no transaction
may be split, and nothing may be left.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import make_url, text

from tests.broker_j import BrokerJ
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_openwire.java_brokers import BROKERS
from tests.simulation.seeds import few
from tests.waiting import until
from tm import ResourceConfig, TransactionManager
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.mariadb import MariaDB

pytestmark = pytest.mark.slow

ROUNDS: Final = 2000 if os.environ.get("XABRIDGE_INTERRUPTIONS") == "all" else 60
LONGEST_S: Final = 0.008
LONGEST_WAIT_S: Final = 8.0
PATIENCE_S: Final = 60.0


@pytest.fixture
def alarm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """SIGALRM interrupts, as SIGINT does."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number, frame)

    before = signal.signal(signal.SIGALRM, interrupted)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # a finalizer of the interpreter's may be hit as well
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def transact(manager: TransactionManager, number: int, *, interrupt_s: tuple[float, float], fails: bool) -> bool:
    """Whether the transaction was interrupted."""
    interrupted = False
    try:
        with manager.begin() as tx:
            for name in ("shop", "ledger"):
                tx[name].execute(text("insert into orders (id) values (:id)"), {"id": number})
            tx["broker"].send("orders", message(number))
            signal.setitimer(signal.ITIMER_REAL, *interrupt_s)
            if fails:
                raise LookupError  # noqa: TRY301 — out of the block
    except LookupError:
        pass
    except KeyboardInterrupt:
        interrupted = True

    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            continue
        return interrupted


def message(number: int) -> Any:
    from rm_amqp import Message  # noqa: PLC0415 — beside its use

    return Message(body=str(number))


@pytest.mark.parametrize("ledger", ["postgresql", "sqlite decides", "mariadb"])
@pytest.mark.parametrize("seed", few(1))
@pytest.mark.usefixtures("alarm")
def test_at_random(request: pytest.FixtureRequest, tmp_path: Path, seed: int, ledger: str) -> None:
    broker = EmbeddedBroker(tmp_path)
    try:
        at_random(request, tmp_path, seed, ledger, f"amqp://{broker.address}")
    finally:
        broker.stop()


@pytest.mark.parametrize(
    "kind", ["broker-j", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("classic", "artemis"))]
)
@pytest.mark.parametrize("seed", few(1))
@pytest.mark.usefixtures("alarm")
@pytest.mark.xdist_group("openwire")
def test_at_random_with_brokers_of_others(request: pytest.FixtureRequest, tmp_path: Path, seed: int, kind: str) -> None:
    if kind == "broker-j":
        broker_j: BrokerJ = request.getfixturevalue("broker_j")
        broker_j.make("orders")
        at_random(request, tmp_path, seed, "mariadb", broker_j.url)
        return
    broker = BROKERS[kind](tmp_path)
    try:
        broker.start()
        at_random(request, tmp_path, seed, "mariadb", broker.url)
    finally:
        broker.kill()


def database(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> ResourceConfig:
    """A new database with a table."""
    create = "create table orders (id integer primary key)"
    if kind == "sqlite decides":
        path = tmp_path / "ledger.db"
        with closing(sqlite3.connect(path)) as file:
            file.execute(create)
        return ResourceConfig(f"sqlite:///{path}", "decider")
    if kind == "mariadb":
        mariadb: MariaDB = request.getfixturevalue("mariadb")
        url = mariadb.create_database("mariadb")
        mariadb.admin(f"use {make_url(url).database}", f"{create} engine = innodb")
        return ResourceConfig(url)

    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute(create.encode())
    return ResourceConfig(url)


def at_random(request: pytest.FixtureRequest, tmp_path: Path, seed: int, ledger: str, broker_url: str) -> None:
    """Transactions over PostgreSQL, another database and a broker."""
    generator = random.Random(seed)
    resources = {
        "shop": database(request, tmp_path, "postgresql"),
        "ledger": database(request, tmp_path, ledger),
        "broker": ResourceConfig(broker_url),
    }
    log = None if ledger == "sqlite decides" else f"file://{tmp_path}/log"
    with TransactionManager("node-1", log, resources) as manager:
        interrupted = 0
        for number in range(ROUNDS):
            interrupt_s = generator.uniform(1e-5, LONGEST_S), generator.choice([0.0, 2e-4, 1e-3])
            fails = generator.random() < 0.3
            interrupted += transact(manager, number, interrupt_s=interrupt_s, fails=fails)

        assert interrupted
        manager.wait_for_completions()
        manager.recover()
        assert manager.recover().clean
        assert not manager._live
        ids = {name: ids_of(manager, name) for name in ("shop", "ledger")}
        assert ids["shop"] == ids["ledger"] == received(manager)


@pytest.mark.parametrize("stopped", ["shop", "broker"])
def test_ctrl_c_twice_while_a_resource_does_not_answer(postgres: Postgres, tmp_path: Path, stopped: str) -> None:
    """It is raised long before the resource's time-out, and recovery finishes the transaction."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    frozen: list[int] = []

    def freeze() -> None:
        frozen[:] = [broker.pid] if stopped == "broker" else backends(manager)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        while frozen:
            os.kill(frozen.pop(), signal.SIGCONT)

    resources = {
        "shop": ResourceConfig(postgres.create_database()),
        "broker": ResourceConfig(f"amqp://{broker.host}:{broker.port}"),
    }
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    press_it = (threading.main_thread().ident or 0, signal.SIGINT)
    presses = [threading.Timer(wait_s, signal.pthread_kill, press_it) for wait_s in (0.5, 1.0)]
    try:
        with TransactionManager("node-1", f"file://{tmp_path}/log", resources) as manager:
            with manager.begin() as tx:
                tx["shop"].execute(text("create table orders (id integer primary key)"))
            began = time.monotonic()
            with pytest.raises(KeyboardInterrupt), manager.begin() as tx:
                tx["shop"].execute(text("insert into orders (id) values (1)"))
                tx["broker"].send("orders", message(1))
                freeze()
                for press in presses:
                    press.start()
            assert time.monotonic() - began < LONGEST_WAIT_S
            go_on()
            until(lambda manager=manager: manager.recover().clean)  # type: ignore[misc]
            assert ids_of(manager, "shop") == received(manager)
    finally:
        go_on()
        for press in presses:
            press.cancel()
        signal.signal(signal.SIGINT, before)
        broker.stop()


def backends(manager: TransactionManager) -> list[int]:
    """The server processes that serve the manager's connections."""
    resource: Any = manager._resources["shop"].rm
    return [connection.pgconn.backend_pid for connection in resource._database_driver.opened.pool._in_use]


def ids_of(manager: TransactionManager, name: str) -> list[int]:
    with manager.begin() as tx:
        return [row.id for row in tx[name].execute(text("select id from orders order by id"))]


def received(manager: TransactionManager) -> list[int]:
    numbers: list[int] = []
    while True:
        with manager.begin() as tx:
            found = tx["broker"].receive_batch("orders", 100, timeout_s=0.2)
            if not found:
                return sorted(numbers)
            numbers += [int(one.body) for one in found]
