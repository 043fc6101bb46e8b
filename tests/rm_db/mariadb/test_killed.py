"""These tests kill MariaDB, its sessions or a whole process at every step of transactions that a real transaction
manager runs over MariaDB and PostgreSQL, and recover.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, text

from rm_db import MariaResource, PostgresResource
from tests.rm_db.strike import Strike
from tests.tm.wrapped import VERBS, hooked
from tm import OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres import Postgres
    from xabridge.testing.mariadb import MariaDB

PATIENCE_S: Final = 60
ROUNDS: Final = int(os.environ.get("XABRIDGE_KILL_ROUNDS", "8"))


def stopped_at_once(server: MariaDB) -> None:
    server.stop(immediate=True)


def sessions_killed(server: MariaDB) -> None:
    for (session,) in server.ask("SELECT id FROM information_schema.processlist WHERE user LIKE 'test%'"):
        server.admin(f"KILL {session}")
    while server.ask("SELECT id FROM information_schema.processlist WHERE user LIKE 'test%'"):
        pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("disaster", [stopped_at_once, sessions_killed])
def test_at_every_step(
    mariadb: MariaDB, postgres: Postgres, tmp_path: Path, disaster: Callable[[MariaDB], None]
) -> None:
    """Both databases have the row or neither has; the application was told which, or that it is not known yet."""
    urls = {"shop": mariadb.create_database("mariadb"), "ledger": postgres.create_database()}
    _make_tables(urls)
    number = 0
    seen: set[str] = set()
    while True:
        number += 1
        mariadb.start()
        strike = Strike(number, lambda: disaster(mariadb))
        with _manager(urls, tmp_path, strike) as manager:
            told = _transact(manager, strike, number)
            mariadb.start()
            _recover(manager)
        found = {name: number in rows for name, rows in _rows(urls).items()}
        assert len(set(found.values())) == 1, f"{strike.struck}: {found}"
        assert told is None or told == found["shop"], f"{strike.struck}: told {told}, found {found}"
        assert mariadb.ask("XA RECOVER") == [], strike.struck
        if not strike.struck:
            break
        seen.add(strike.struck)
    assert told is True  # the last one, which nothing happened to
    assert {"after start", "before end", "after end", "before prepare", "after prepare", "before commit"} <= seen


def _manager(urls: dict[str, str], folder: Path, strike: Strike) -> TransactionManager:
    hook = hooked(strike.hit, VERBS)
    resources = {
        "shop": ResourceConfig(urls["shop"], factory=lambda registrar: hook(MariaResource(registrar))),
        "ledger": ResourceConfig(urls["ledger"], factory=lambda registrar: hook(PostgresResource(registrar))),
    }
    return TransactionManager("node-1", f"file://{folder}/log", resources, background=False)


def _transact(manager: TransactionManager, strike: Strike, number: int) -> bool | None:
    """Whether the transaction was committed, as the application was told; None: that is not known yet."""
    strike.armed = True
    try:
        with manager.begin() as transaction:
            transaction["shop"].pymysql.cursor().execute("INSERT INTO made VALUES (%s)", [number])
            transaction["ledger"].psycopg.execute("INSERT INTO made VALUES (%s)", [number])
    except (RolledBack, pymysql.MySQLError):
        return False
    except OutcomeUnknown as unknown:
        return True if unknown.outcome is not None and unknown.outcome.decided else None
    finally:
        strike.armed = False
    return True


def _recover(manager: TransactionManager) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not manager.recover().clean:
        assert time.monotonic() < deadline, manager.last_report


def _make_tables(urls: dict[str, str]) -> None:
    with create_engine(urls["shop"].replace("mariadb:", "mariadb+pymysql:")).begin() as connection:
        connection.execute(text("CREATE TABLE made (number integer PRIMARY KEY) ENGINE = InnoDB"))
    with psycopg.connect(urls["ledger"]) as ledger:
        ledger.execute("CREATE TABLE made (number integer PRIMARY KEY)")


def _rows(urls: dict[str, str]) -> dict[str, set[int]]:
    engine = create_engine(urls["shop"].replace("mariadb:", "mariadb+pymysql:"))
    with engine.connect() as connection:
        shop = {row.number for row in connection.execute(text("SELECT number FROM made"))}
    engine.dispose()
    with psycopg.connect(urls["ledger"]) as ledger:
        return {"shop": shop, "ledger": {number for (number,) in ledger.execute("SELECT number FROM made").fetchall()}}


WORKER: Final = """
import itertools, sys, threading
from tm import ResourceConfig, RolledBack, TransactionManager
node, log, first, shop, stock, ledger = sys.argv[1:]
resources = {name: ResourceConfig(url) for name, url in (("shop", shop), ("stock", stock), ("ledger", ledger))}
manager = TransactionManager(node, log, resources, recovery_interval_s=0.2)
numbers = itertools.count(int(first))
def work():
    while True:
        number = next(numbers)
        with manager.begin() as transaction:
            transaction["shop"].pymysql.query(f"INSERT INTO made VALUES ({number})")
            transaction["stock"].pymysql.query(f"INSERT INTO stocked VALUES ({number})")
            transaction["ledger"].psycopg.execute("INSERT INTO made VALUES (%s)", [number])
        sys.stdout.write(str(number) + chr(10))
        sys.stdout.flush()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
threading.Event().wait()
"""


@pytest.mark.timeout(300)
def test_several_nodes_whose_processes_are_killed(mariadb: MariaDB, postgres: Postgres, tmp_path: Path) -> None:
    """Two nodes over the same databases, two resources of which are one server's: each sees the branches of all. A
    process is killed at any moment, the server now and then, while the others work and recover. (The seed says who is
    killed when; what is in the middle of what then, chance.)"""
    urls = {"shop": mariadb.create_database("mariadb"), "ledger": postgres.create_database()}
    urls["stock"] = urls["shop"] + "?xa_pool_size=3"
    _make_tables(urls)
    with create_engine(urls["shop"].replace("mariadb:", "mariadb+pymysql:")).begin() as connection:
        connection.execute(text("CREATE TABLE stocked (number integer PRIMARY KEY) ENGINE = InnoDB"))
    seed = int(os.environ.get("XABRIDGE_SEED", "0")) or random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    workers: dict[str, subprocess.Popen[bytes]] = {}
    starts = iter(range(0, 10**9, 10**5))

    def start(node: str) -> None:
        with (tmp_path / f"{node}.err").open("a") as errors, (tmp_path / f"{node}.told").open("a") as committed:
            workers[node] = subprocess.Popen(
                [sys.executable, "-c", WORKER, node, f"file://{tmp_path}/{node}", str(next(starts))]
                + [urls[name] for name in ("shop", "stock", "ledger")],
                stdout=committed,
                stderr=errors,
            )

    def reap(node: str) -> None:
        workers[node].send_signal(signal.SIGKILL)
        workers[node].wait(timeout=PATIENCE_S)

    def told(node: str) -> set[int]:
        return {int(line) for line in (tmp_path / f"{node}.told").read_text().splitlines()}

    try:
        for node in ("node-1", "node-2"):
            start(node)
        deadline = time.monotonic() + PATIENCE_S
        while not all(map(told, workers)):
            assert time.monotonic() < deadline, [(tmp_path / f"{node}.err").read_text()[-2000:] for node in workers]
            time.sleep(0.1)
        for number in range(ROUNDS):
            time.sleep(chance.uniform(1.0, 2.5))  # a moment for it to be in the middle of something
            if number % 4 == 3:
                mariadb.stop(immediate=True)
                mariadb.start()
                continue
            node = chance.choice(["node-1", "node-2"])
            reap(node)
            start(node)
        time.sleep(1.0)
    finally:
        for node in workers:
            reap(node)
    for node in ("node-1", "node-2"):
        resources = {name: ResourceConfig(urls[name]) for name in ("shop", "stock", "ledger")}
        with TransactionManager(node, f"file://{tmp_path}/{node}", resources, background=False) as manager:
            _recover(manager)
    found = _rows(urls)
    with create_engine(urls["shop"].replace("mariadb:", "mariadb+pymysql:")).connect() as connection:
        found["stock"] = {row.number for row in connection.execute(text("SELECT number FROM stocked"))}
    assert found["shop"] == found["stock"] == found["ledger"], f"XABRIDGE_SEED={seed}"
    assert told("node-1") | told("node-2") <= found["shop"]
    assert mariadb.ask("XA RECOVER") == []
    assert _prepared(urls["ledger"]) == []


def _prepared(url: str) -> list[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall()
