"""These tests kill PostgreSQL at every step of transactions that a real transaction manager runs, restart it, and
recover.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from rm_db import DecidingDatabase, PostgresResource
from tests.rm_db.strike import Strike
from tests.tm.wrapped import DECIDER_VERBS, VERBS, hooked
from tm import OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.postgres import Postgres

PATIENCE_S: Final = 60


def stopped_at_once(server: Postgres) -> None:
    server.stop(immediate=True)


def backends_terminated(server: Postgres) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'xabridge'"
        )


@pytest.mark.parametrize("mode", ["two-phase", "decider"])
@pytest.mark.parametrize("disaster", [stopped_at_once, backends_terminated])
def test_at_every_step(postgres: Postgres, tmp_path: Path, mode: Any, disaster: Callable[[Postgres], None]) -> None:
    """Both databases have the row or neither has; the application was told which, or that it is not known yet."""
    urls = {"shop": postgres.create_database(), "ledger": postgres.create_database()}
    for url in urls.values():
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE rows (number integer)")
    number = 0
    seen: set[str] = set()
    while True:
        number += 1
        postgres.start()
        strike = Strike(number, lambda: disaster(postgres))
        with _manager(urls, mode, tmp_path, strike) as manager:
            told = _transact(manager, strike, number)
            postgres.start()
            _recover(manager)
        found = {name: _has(url, number) for name, url in urls.items()}
        assert len(set(found.values())) == 1, f"{strike.struck}: {found}"
        assert told is None or told == found["shop"], f"{strike.struck}: told {told}, found {found}"
        with psycopg.connect(postgres.url) as connection:
            left = connection.execute("SELECT gid, database FROM pg_prepared_xacts").fetchall()
        assert left == [], strike.struck
        if not strike.struck:
            break
        seen.add(strike.struck)
    assert told is True  # the last one, which nothing happened to
    assert {"after start", "before end", "after end", "before prepare", "after prepare", "before commit"} <= seen


def _manager(urls: dict[str, str], mode: Any, folder: Path, strike: Strike) -> TransactionManager:
    hook = hooked(strike.hit, VERBS + DECIDER_VERBS)
    shop = DecidingDatabase if mode == "decider" else PostgresResource
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
            transaction["shop"].psycopg.execute("INSERT INTO rows VALUES (%s)", [number])
            transaction["ledger"].psycopg.execute("INSERT INTO rows VALUES (%s)", [number])
    except (RolledBack, psycopg.OperationalError):
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


def _has(url: str, number: int) -> bool:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT FROM rows WHERE number = %s", [number]).fetchall()
    assert len(rows) <= 1
    return bool(rows)
