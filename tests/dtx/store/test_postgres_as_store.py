"""These tests use PostgreSQL as a store: one that does not force is refused, and when one restarts, the broker ends
with a clear message.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dtx.store.contract import StoreError
from dtx.store.sql import SqlStore
from rm_amqp import Message
from tests.postgres import Postgres
from tests.waiting import until
from tm import TransactionError, TransactionManager


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_one_that_does_not_force_is_refused(setting: str, postgres: Postgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:

        def setting_is(value: str) -> None:
            connection.execute(f"ALTER SYSTEM SET {setting} = {value}".encode())
            connection.execute("SELECT pg_reload_conf()")
            until(lambda: connection.execute(f"SHOW {setting}".encode()).fetchone() == (value,))

        try:
            setting_is("off")
            store = SqlStore(postgres.create_database(), lambda call: call())
            with pytest.raises(StoreError, match=f"{setting} = off: a crash would lose messages"):
                store.open()
        finally:
            setting_is("on")


def test_a_restart_under_the_broker_ends_it_with_a_sentence(postgres: Postgres, tmp_path: Path) -> None:
    """The lines are JSON, each by itself."""
    flags = ("--listen", "127.0.0.1:0", "--store", postgres.create_database(), "--log-format", "json")
    broker = subprocess.Popen(
        [sys.executable, "-m", "dtx", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    port = broker.stdout.readline().partition("127.0.0.1:")[2].split()[0]
    postgres.stop()
    postgres.start()

    with (
        TransactionManager(
            "node-1", f"file://{tmp_path}/log", {"broker": f"amqp://127.0.0.1:{port}"}, background=False
        ) as manager,
        pytest.raises(TransactionError),
        manager.begin() as tx,
    ):
        tx["broker"].send("orders", Message(body=1))
    _, told = broker.communicate(timeout=60)
    assert broker.returncode == 1
    assert "Traceback" not in told
    assert "stopped, because the store did" in told
    for written in told.splitlines():
        assert json.loads(written)["level"] in {"WARNING", "CRITICAL"}
