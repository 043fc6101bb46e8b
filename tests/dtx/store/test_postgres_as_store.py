"""These tests use PostgreSQL as a store: one that does not force is refused, and when one restarts, the broker ends
with a clear message.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dtx.store.contract import StoreError
from dtx.store.sql import SqlStore
from dtx.store.sql.store import open_database
from rm_amqp import Message
from tests.postgres import Postgres
from tm import TransactionError, TransactionManager

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_one_that_does_not_force_is_refused(setting: str) -> None:
    server = Postgres({setting: "off"})
    try:
        server.start()
        store = SqlStore(server.create_database(), lambda call: call())
        with pytest.raises(StoreError, match=f"{setting} = off: a crash would lose messages"):
            store.open()
    finally:
        server.remove()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_restart_under_the_broker_ends_it_with_a_sentence(log_format: str, tmp_path: Path) -> None:
    server = Postgres()
    try:
        server.start()
        broker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "dtx",
                "--listen",
                "127.0.0.1:0",
                "--store",
                server.create_database(),
                "--log-format",
                log_format,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert broker.stdout is not None
        port = broker.stdout.readline().partition("127.0.0.1:")[2].split()[0]
        server.stop()
        server.start()
        log, url = f"file://{tmp_path}/log", f"amqp://127.0.0.1:{port}"
        with (
            TransactionManager("node-1", log, {"broker": url}, background=False) as manager,
            pytest.raises(TransactionError),
            manager.begin() as tx,
        ):
            tx["broker"].send("orders", Message(body=1))
        _, told = broker.communicate(timeout=60)
        assert broker.returncode == 1
        assert "Traceback" not in told
        assert "stopped, because the store did" in told
        if log_format == "json":
            for written in told.splitlines():
                assert json.loads(written)["level"] in {"WARNING", "CRITICAL"}
    finally:
        server.remove()


def test_folders_that_it_makes_are_there_durably(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[str] = []
    force = os.fsync

    def noted(descriptor: int) -> None:
        forced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        force(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    open_database(f"sqlite:///{tmp_path}/one/two/store.db").close()
    for folder in (tmp_path, tmp_path / "one", tmp_path / "one" / "two"):
        assert str(folder) in forced
