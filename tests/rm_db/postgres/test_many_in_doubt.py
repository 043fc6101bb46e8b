"""These tests start a manager with many branches in doubt on one PostgreSQL, which allows it 24 connections, or 5. In
the short form they are as many as the session's server takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from rm_db import PostgresResource
from tests.postgres import Postgres
from tm import ResourceConfig, TransactionManager
from tm.log import Branch, Decision, FileLog
from xa import FORMAT_ID, TMSUCCESS, Code, Gtrid, Xid
from xabridge.testing.contract.client import ScriptedRegistrar

NODE: Final = "orders-1"
RMID: Final = 1
UNDECIDED_EVERY: Final = 4
"""Each fourth transaction was killed before its decision."""


@pytest.fixture(scope="module")
def roomy() -> Iterator[Postgres]:
    """A server that lets thousands of transactions be prepared."""
    server = Postgres({"max_prepared_transactions": "12000"})
    server.start()
    yield server
    server.remove()


class InDoubt:
    """Two databases of one server, in which a manager that was killed has left transactions behind."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.urls = {name: server.create_database() for name in ("shop", "bank")}
        self.folder = folder
        for url in self.urls.values():
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CREATE TABLE work (number int PRIMARY KEY)")

    def leave(self, transactions: int) -> None:
        """Prepares, and decides most."""
        log = FileLog(self.folder, NODE)
        log.note_ceiling(transactions)
        rms = {name: PostgresResource(ScriptedRegistrar()) for name in self.urls}
        for name, rm in rms.items():
            rm.open(self.urls[name], RMID)
        for number in range(transactions):
            gtrid = Gtrid(NODE, log.log_id, log.incarnation, number).encode()
            branches = tuple(Branch(name, Xid(FORMAT_ID, gtrid, name.encode())) for name in rms)
            for name, xid in ((branch.resource, branch.xid) for branch in branches):
                rms[name].start(xid, RMID)
                rms[name].session(RMID).psycopg.execute("INSERT INTO work VALUES (%s)", [number])
                rms[name].end(xid, RMID, TMSUCCESS)
                assert rms[name].prepare(xid, RMID) is Code.XA_OK
            if number % UNDECIDED_EVERY:
                log.decide(Decision(gtrid, branches))

        for rm in rms.values():
            rm.close("", RMID)
        log.close()

    def start(self, settings: str = "") -> TransactionManager:
        """The manager that comes back."""
        resources = {name: ResourceConfig(url + settings) for name, url in self.urls.items()}
        return TransactionManager(NODE, FileLog(self.folder, NODE), resources)

    def look(self, name: str) -> tuple[set[int], int]:
        """What is committed in a database, and how much is prepared there."""
        with psycopg.connect(self.urls[name], autocommit=True) as connection:
            committed = {number for (number,) in connection.execute("SELECT number FROM work")}
            query = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
            ((left,),) = connection.execute(query).fetchall()
        return committed, left


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("server", "branches", "settings", "within_s"),
    [
        pytest.param("postgres", 90, "", 60, id="90"),
        pytest.param("postgres", 90, "?xa_pool_size=1&xa_pool_wait_s=2", 60, id="90 over few connections"),
        pytest.param("roomy", 1000, "?xa_pool_size=1&xa_pool_wait_s=2", 60, id="1000", marks=pytest.mark.long),
        pytest.param("roomy", 10_000, "", 300, id="10000", marks=pytest.mark.long),
    ],
)
def test_a_manager_that_comes_back(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, branches: int, settings: str, within_s: float
) -> None:
    """Its constructor returns, and then every decision is carried out, and everything else rolled back."""
    transactions = branches // 2
    in_doubt = InDoubt(request.getfixturevalue(server), tmp_path)
    in_doubt.leave(transactions)
    began = time.monotonic()
    manager = in_doubt.start(settings)
    took_s = time.monotonic() - began

    try:
        assert manager.recover().clean
        decided = {number for number in range(transactions) if number % UNDECIDED_EVERY}
        for name in in_doubt.urls:
            assert in_doubt.look(name) == (decided, 0)
        assert manager.log is not None
        assert list(manager.log.decisions()) == []
        assert took_s < within_s
    finally:
        manager.close()
