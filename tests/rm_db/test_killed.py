"""These tests kill a database, its sessions or a whole process at every step of transactions that a real transaction
manager runs over it and a PostgreSQL, and recover.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from rm_db import DecidingDatabase, MariaResource, PostgresResource
from tests.postgres import Postgres
from tests.tm.wrapped import DECIDER_VERBS, VERBS, hooked
from tests.waiting import until
from tm import OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager
from xabridge.testing.mariadb import MariaDB

PATIENCE_S: Final = 60
ROUNDS: Final = int(os.environ.get("XABRIDGE_KILL_ROUNDS", "2"))
EVERY: Final = os.environ.get("XABRIDGE_POINTS") == "all"
NEVER: Final = 10**9


class Strike:
    """What happens at the point number `at` of a transaction; points are before and after each verb."""

    def __init__(self, at: int, disaster: Callable[[], None]) -> None:
        self._at = at
        self._disaster = disaster
        self.points = 0
        self.passed: set[str] = set()
        self.armed = False
        self.struck = ""

    def hit(self, when: str, verb: str) -> None:
        """A point was reached."""
        if self.armed:
            self.points += 1
            self.passed.add(f"{when} {verb}")
            if self.points == self._at:
                self.struck = f"{when} {verb}"
                self._disaster()


def stopped_at_once(server: Postgres | MariaDB) -> None:
    server.stop(immediate=True)


def sessions_ended(server: Postgres | MariaDB) -> None:
    if isinstance(server, Postgres):
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'xabridge'"
            )
        return
    sessions = "SELECT id FROM information_schema.processlist WHERE user LIKE 'test%'"
    for (session,) in server.ask(sessions):
        server.admin(f"KILL {session}")
    while server.ask(sessions):
        pass


def seeded() -> tuple[int, random.Random]:
    """The seed, to be printed, and what is drawn from it."""
    seed = int(os.environ.get("XABRIDGE_SEED", "0")) or random.SystemRandom().randrange(10**6)
    return seed, random.Random(seed)


DISASTERS: Final = (stopped_at_once, sessions_ended)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["postgres two-phase", "postgres decider", "mariadb two-phase"])
def test_at_every_step(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path, kind: str) -> None:
    """Both databases have the row or neither has; the application was told which, or that it is not known yet. The
    short form strikes at every other step, in turn with one disaster and the other; the seed says where it begins."""
    name, _, mode = kind.partition(" ")
    server: Postgres | MariaDB = request.getfixturevalue(name)
    urls = _made_databases(server, postgres)
    seed, chance = seeded()
    number = 0

    def transaction(strike: Strike) -> bool | None:
        nonlocal number
        number += 1
        server.start()
        with _manager(urls, mode, tmp_path, strike) as manager:
            told = _transact(manager, strike, number)
            server.start()
            _recover(manager)
        found = {name: number in rows for name, rows in _rows(urls).items()}
        assert len(set(found.values())) == 1, f"{strike.struck}: {found}, XABRIDGE_SEED={seed}"
        assert told is None or told == found["shop"], f"{strike.struck}: told {told}, {found}, XABRIDGE_SEED={seed}"
        assert _prepared(server) == [], f"{strike.struck}, XABRIDGE_SEED={seed}"
        return told

    whole = Strike(NEVER, lambda: None)
    assert transaction(whole) is True
    assert {"before start", "before end", "before prepare", "before commit"} <= whole.passed
    for step in range(1 if EVERY else 1 + chance.randrange(2), whole.points + 1, 1 if EVERY else 2):
        turn = chance.randrange(2)
        for disaster in DISASTERS if EVERY else DISASTERS[turn : turn + 1]:
            strike = Strike(step, partial(disaster, server))
            transaction(strike)
            assert strike.struck


def _made_databases(shop: Postgres | MariaDB, ledger: Postgres) -> dict[str, str]:
    """The URLs of two databases with a table each."""
    made = shop.create_database() if isinstance(shop, Postgres) else shop.create_database("mariadb")
    urls = {"shop": made, "ledger": ledger.create_database()}
    for url in urls.values():
        _execute(url, "CREATE TABLE made (number integer PRIMARY KEY)")
    return urls


def _execute(url: str, statement: str) -> list[Any]:
    """Somebody else's statement, and its rows."""
    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}[make_url(url).drivername]
    engine = create_engine(make_url(url).set(drivername=driver, query={}))
    with engine.begin() as connection:
        answer = connection.execute(text(statement))
        rows = list(answer.all()) if answer.returns_rows else []
    engine.dispose()
    return rows


def _manager(urls: dict[str, str], mode: Any, folder: Path, strike: Strike) -> TransactionManager:
    hook = hooked(strike.hit, VERBS + DECIDER_VERBS)
    two_phase = PostgresResource if urls["shop"].startswith("postgresql") else MariaResource
    shop: Any = DecidingDatabase if mode == "decider" else two_phase
    resources = {
        "shop": ResourceConfig(urls["shop"], mode, lambda registrar: hook(shop(registrar))),
        "ledger": ResourceConfig(urls["ledger"], factory=lambda registrar: hook(PostgresResource(registrar))),
    }
    log = None if mode == "decider" else f"file://{folder}/log"
    return TransactionManager("node-1", log, resources, background=False)


def _transact(manager: TransactionManager, strike: Strike, number: int) -> bool | None:
    """Whether the transaction was committed, as the application was told; None: that is not known yet."""
    strike.armed = True
    try:
        with manager.begin() as transaction:
            for name in ("shop", "ledger"):
                transaction[name].execute(text("INSERT INTO made VALUES (:number)"), {"number": number})
    except (RolledBack, DBAPIError):
        return False
    except OutcomeUnknown as unknown:
        return True if unknown.outcome is not None and unknown.outcome.decided else None
    finally:
        strike.armed = False
    return True


def _recover(manager: TransactionManager) -> None:
    until(lambda: manager.recover().clean, lambda: manager.last_report)


def _rows(urls: dict[str, str]) -> dict[str, set[int]]:
    return {name: {number for (number,) in _execute(url, "SELECT number FROM made")} for name, url in urls.items()}


def _prepared(server: Postgres | MariaDB) -> list[Any]:
    if isinstance(server, Postgres):
        return _execute(server.url, "SELECT gid FROM pg_prepared_xacts")
    return server.ask("XA RECOVER")


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
    urls = _made_databases(mariadb, postgres)
    _execute(urls["shop"], "CREATE TABLE stocked (number integer PRIMARY KEY)")
    stock = urls["shop"] + "?xa_pool_size=3"
    seed, chance = seeded()
    program = [sys.executable, "-c", WORKER]
    workers: dict[str, subprocess.Popen[bytes]] = {}
    starts = iter(range(0, 10**9, 10**5))

    def start(node: str) -> None:
        with (tmp_path / f"{node}.err").open("a") as errors, (tmp_path / f"{node}.told").open("a") as committed:
            workers[node] = subprocess.Popen(
                [*program, node, f"file://{tmp_path}/{node}", str(next(starts)), urls["shop"], stock, urls["ledger"]],
                stdout=committed,
                stderr=errors,
            )

    def reap(node: str) -> None:
        workers[node].send_signal(signal.SIGKILL)
        workers[node].wait(timeout=PATIENCE_S)

    def errors() -> list[str]:
        return [(tmp_path / f"{node}.err").read_text()[-2000:] for node in workers]

    def told(node: str) -> set[int]:
        return {int(line) for line in (tmp_path / f"{node}.told").read_text().splitlines()}

    try:
        for node in ("node-1", "node-2"):
            start(node)
        until(lambda: all(map(told, workers)), errors)
        for number in range(ROUNDS):
            time.sleep(chance.uniform(0.1, 0.5))  # a moment for it to be in the middle of something
            if number % 2 == 1:
                mariadb.stop(immediate=True)
                mariadb.start()
                continue
            node = chance.choice(["node-1", "node-2"])
            reap(node)
            before = told(node)
            start(node)
            until(lambda node=node, before=before: told(node) != before, errors)  # type: ignore[misc]
    finally:
        for node in workers:
            reap(node)
    for node in ("node-1", "node-2"):
        resources = {name: ResourceConfig(url) for name, url in {**urls, "stock": stock}.items()}
        with TransactionManager(node, f"file://{tmp_path}/{node}", resources, background=False) as manager:
            _recover(manager)
    found = _rows(urls)
    found["stock"] = {number for (number,) in _execute(urls["shop"], "SELECT number FROM stocked")}
    assert found["shop"] == found["stock"] == found["ledger"], f"XABRIDGE_SEED={seed}"
    assert told("node-1") | told("node-2") <= found["shop"]
    assert _prepared(mariadb) == _prepared(postgres) == []
