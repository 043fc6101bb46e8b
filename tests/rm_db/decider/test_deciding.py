"""These tests cover DecidingDatabase: its tables, their cleaning, durability, and what is particular to each kind of
database.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from rm_db import DecidingDatabase
from rm_db.decider import decision_table
from rm_db.decider.decision_table import END_BATCH
from tests.rm_db.harness import (
    MariaDeciderHarness,
    PooledDeciderHarness,
    PostgresDeciderHarness,
    SqliteDeciderHarness,
)
from tests.waiting import until
from xa import TMONEPHASE, TMSUCCESS, Code, Owner, ThreadOfControl, XaError, Xid, entered
from xa.gtrid import OVER
from xabridge.testing.contract.client import RMID, case, elsewhere, new_key, new_xid, refused
from xabridge.testing.contract.deciding import Decider

PATIENCE_S: Final = 60
ROUNDS: Final = int(os.environ.get("XABRIDGE_KILL_ROUNDS", "1"))


@pytest.fixture(params=["postgres", "sqlite"])
def harness(request: pytest.FixtureRequest) -> Any:
    """Each kind."""
    return request.getfixturevalue(f"{request.param}_harness")


in_mariadb_too = pytest.mark.parametrize("harness", ["postgres", "sqlite", "mariadb"], indirect=True)


@pytest.fixture
def sqlite_client(sqlite_harness: SqliteDeciderHarness) -> Iterator[Decider]:
    """An open DecidingDatabase over a file."""
    client = Decider(sqlite_harness)
    yield client
    client.rm.close("", RMID)


@pytest.fixture
def decider(harness: Any) -> Iterator[Decider]:
    """An open DecidingDatabase."""
    client = Decider(harness)
    yield client
    client.rm.close("", RMID)


def query(harness: Any, statement: str) -> list[tuple[Any, ...]]:
    """What somebody sees who is not part of it."""
    return [tuple(row) for row in harness.admin(statement)]


# --- tables -----------------------------------------------------------------------------------------------------
def test_the_tables_are_as_documented(decider: Decider, harness: Any) -> None:
    ((decider_id, version),) = query(harness, "SELECT decider_id, version FROM xabridge_decider")
    assert bytes.fromhex(decider_id) == decider.rm.decider_id
    assert version == 2
    decider.rm.hold(Owner("orders-1", b"\1" * 8, "a process"), 60, RMID)
    ((node, owner, process, until, floor, noted),) = query(
        harness, "SELECT node, incarnation, process, until, floor, noted FROM xabridge_owner"
    )
    assert (node, owner, process, floor) == ("orders-1", "01" * 8, "a process", 0)

    assert abs(until - time.time() - 60) < 30
    assert abs(noted - time.time()) < 30
    decider.rm.hold(Owner("orders-1", b"\1" * 8, ""), 0, RMID, 7)
    assert query(harness, "SELECT until, floor FROM xabridge_owner") == [(0.0, 7)]
    decided, undecided = decider.ended(new_key()), new_xid()
    decider.decide(decided, b"\0record")
    decider.settle(undecided)
    rows = query(harness, "SELECT gtrid, state, record FROM xabridge_decision ORDER BY state")
    assert rows == [(decided.gtrid.hex(), "decided", b"\0record"), (undecided.gtrid.hex(), "rolled back", None)]
    assert query(harness, "SELECT count(*) FROM xabridge_decision WHERE created IS NULL") == [(0,)]


@in_mariadb_too
@pytest.mark.parametrize("is_newer", [False, True], ids=["0.1.0", "newer"])
def test_tables_of_another_version_are_refused_by_its_name_and_none_is_made(harness: Any, *, is_newer: bool) -> None:
    client = Decider(harness)
    key = client.ended(new_key())
    client.decide(key, b"r")
    client.rm.close("", RMID)
    harness.admin("DROP TABLE xabridge_owner")
    if is_newer:
        harness.admin("UPDATE xabridge_decider SET version = 3")
    else:  # it had another column there, and no version
        harness.admin("ALTER TABLE xabridge_decider ADD COLUMN incarnation bigint DEFAULT 0 NOT NULL")
        harness.admin("ALTER TABLE xabridge_decider DROP COLUMN version")

    def stored() -> list[list[tuple[Any, ...]]]:
        return [query(harness, "SELECT * FROM xabridge_decider"), query(harness, "SELECT * FROM xabridge_decision")]

    before = stored()
    with pytest.raises(XaError, match="a newer version" if is_newer else r"0\.1\.0, which is not read") as refused:
        DecidingDatabase().open(harness.open_string, RMID)
    assert refused.value.code is Code.XAER_RMERR
    assert stored() == before
    with pytest.raises(Exception, match="xabridge_owner"):
        harness.admin("SELECT count(*) FROM xabridge_owner")


@in_mariadb_too
def test_the_latest_owners_of_each_node_are_kept(
    decider: Decider, harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_table, "KEPT_OWNERS", 3)
    decider.rm.hold(Owner("orders-2", b"\2" * 8, ""), 60, RMID)
    for number in range(1, 6):
        decider.rm.hold(Owner("orders-1", bytes((number,)) * 8, ""), 60, RMID, number)
        decider.rm.hold(Owner("orders-1", bytes((number,)) * 8, ""), 0, RMID, 2 * number)
        harness.admin("UPDATE xabridge_owner SET noted = noted - 1000")
    noted = {one.incarnation: one.floor for one in decider.rm.incarnations("orders-1", RMID)}
    assert noted == {bytes((number,)) * 8: 2 * number for number in (3, 4, 5)}

    decider.rm.hold(Owner("orders-1", b"\4" * 8, ""), 0, RMID, OVER, OVER)
    decider.rm.hold(Owner("orders-1", b"\6" * 8, ""), 60, RMID)
    left = {one.incarnation[0] for one in decider.rm.incarnations("orders-1", RMID)}
    assert left == {3, 5, 6}, "of whom nothing is left goes first"
    decider.rm.hold(Owner("orders-1", b"\6" * 8, ""), 0, RMID)
    assert {owner.node for owner in decider.owners()} == {"orders-2"}
    assert [one.floor for one in decider.rm.incarnations("orders-2", RMID)] == [0]
    decider.rm.hold(Owner("orders-2", b"\2" * 8, ""), 0, RMID)


@in_mariadb_too
def test_many_open_at_once(harness: Any) -> None:
    """Whoever is first makes the tables."""
    barrier = threading.Barrier(6)

    def open_it() -> Decider:
        client = Decider(harness, opened=False)
        barrier.wait(PATIENCE_S)
        client.reopen()
        return client

    with ThreadPoolExecutor(6) as pool:
        clients = [future.result() for future in [pool.submit(open_it) for _ in range(6)]]
    assert len({client.rm.decider_id for client in clients}) == 1
    for client in clients:
        client.rm.close("", RMID)


def test_a_table_that_is_not_ours(harness: Any) -> None:
    harness.admin("CREATE TABLE xabridge_decision (gtrid text, verdict text)")
    client = Decider(harness, opened=False)
    with refused(Code.XAER_RMERR) as raised:
        client.open()
    assert "xabridge_decision has no column" in raised.value.message
    harness.admin("DROP TABLE xabridge_decision")
    client.reopen()
    client.rm.close("", RMID)


def test_a_user_who_may_not_make_tables(postgres_harness: PostgresDeciderHarness) -> None:
    """... is told what to let somebody make who may; then it works."""
    harness = postgres_harness
    harness.admin("CREATE ROLE clerk LOGIN")
    harness.open_string = harness.url.replace("postgres@", "clerk@")
    client = Decider(harness, opened=False)
    with refused(Code.XAER_RMERR) as raised:
        client.open()
    message = raised.value.message
    assert "permission denied" in message

    for statement in message[message.index("CREATE TABLE") :].split(";"):
        harness.admin(statement)
    harness.admin("GRANT ALL ON xabridge_decider, xabridge_decision, xabridge_owner, work TO clerk")
    client.reopen()
    assert client.decide(client.ended(new_key())) is Code.XA_OK
    client.rm.close("", RMID)
    harness.admin("DROP OWNED BY clerk")
    harness.admin("DROP ROLE clerk")


# --- the decision is part of the work ---------------------------------------------------------------------------
def test_work_that_fails_at_its_commit_takes_the_decision_with_it(postgres_harness: PostgresDeciderHarness) -> None:
    harness = postgres_harness
    harness.admin("CREATE TABLE pair (a int PRIMARY KEY, b int REFERENCES pair DEFERRABLE INITIALLY DEFERRED)")
    client = Decider(harness)
    for commit in (client.decide, lambda xid: client.commit(xid, TMONEPHASE)):
        xid = client.begun(new_key())
        client.rm.session(RMID).execute(sa.text("INSERT INTO pair VALUES (1, 2)"))
        client.end(xid)
        with refused(Code.XA_RBINTEGRITY):
            commit(xid)
        assert client.decided() == {}
        assert harness.committed() == set()
    client.rm.close("", RMID)


def test_a_failed_statement(decider: Decider, harness: Any) -> None:
    key = new_key()
    decider.commit(decider.ended(key), TMONEPHASE)
    xid = decider.begun(second := new_key())
    with pytest.raises(sa.exc.IntegrityError):
        decider.write(key)

    if "sqlite" in harness.open_string:  # the statement is undone, and the transaction goes on: the caller's choice
        decider.end(xid)
        decider.decide(xid)
        assert second in harness.committed()
    else:
        with refused(Code.XA_RBINTEGRITY):
            decider.end(xid)
        with refused(Code.XA_RBINTEGRITY):
            decider.decide(xid)
        assert second not in harness.committed()
        assert decider.decided() == {}


def test_the_decision_goes_where_it_belongs(postgres_harness: PostgresDeciderHarness) -> None:
    """Also when the application has another search path, another role, and tables and functions of the same names."""
    harness = postgres_harness
    harness.admin("CREATE SCHEMA elsewhere")
    harness.admin("CREATE TABLE elsewhere.xabridge_decision (gtrid text, state text, record bytea)")
    harness.admin("CREATE FUNCTION elsewhere.decode(text, text) RETURNS bytea LANGUAGE sql AS 'SELECT null::bytea'")
    client = Decider(harness)
    xid = client.begun(key := new_key())
    shop = client.rm.session(RMID)
    shop.execute(sa.text("SET search_path = elsewhere, pg_catalog"))
    shop.execute(sa.text("SET standard_conforming_strings = off"))
    client.end(xid)
    client.decide(xid, b"\\'\0")
    assert client.settle(xid) == b"\\'\0"
    assert key in harness.committed()
    assert query(harness, "SELECT * FROM elsewhere.xabridge_decision") == []
    client.rm.close("", RMID)


def test_a_decision_is_durable_when_it_is_answered(postgres_harness: PostgresDeciderHarness) -> None:
    """synchronous_commit = off answers before it is; a decision turns that off, whoever turned it on."""
    harness = postgres_harness
    harness.admin("CREATE TABLE seen (setting text)")
    harness.admin(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO seen VALUES (current_setting(''synchronous_commit'')); RETURN NULL; END'"
    )
    harness.admin(
        "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION look()"
    )  # at the very end of the transaction
    name = harness.url.rpartition("/")[2]

    for everywhere in (False, True):
        if everywhere:
            harness.admin(f"ALTER DATABASE {name} SET synchronous_commit = off")
        client = Decider(harness)
        for commit in (client.decide, lambda xid, by=client: by.commit(xid, TMONEPHASE)):
            xid = client.begun(new_key())
            if everywhere:
                assert client.rm.session(RMID).scalar(sa.text("SHOW synchronous_commit")) == "off"
            else:
                client.rm.session(RMID).execute(sa.text("SET synchronous_commit = off"))
            client.end(xid)
            commit(xid)
        client.rm.close("", RMID)
    assert query(harness, "SELECT setting, count(*) FROM seen GROUP BY setting") == [("on", 4)]


# --- settle -----------------------------------------------------------------------------------------------------
@in_mariadb_too
def test_settle_waits_for_a_transaction_that_is_deciding_and_not_for_ever(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is inserted and not yet committed. In SQLite somebody writes, which may be a decision."""
    recovery = Decider(harness)
    table: Any = recovery.rm.driver.unit_driver.backend.table  # type: ignore[attr-defined]
    briefly = 1 if isinstance(harness, MariaDeciderHarness) else 0.05  # seconds, of whole ones in MariaDB
    monkeypatch.setattr(decision_table, "SETTLE_WAIT_S", briefly)
    for ends, record in (("ROLLBACK", None), ("COMMIT", b"late")):
        xid = new_xid()
        with table._engine.connect() as deciding:
            deciding.execute(table.insertion(xid.gtrid, b"late"))
            with refused(Code.XA_RETRY):
                recovery.settle(xid)
            deciding.commit() if ends == "COMMIT" else deciding.rollback()

        with ThreadPoolExecutor(1) as pool, table._engine.connect() as deciding:
            deciding.execute(table.insertion((late := new_xid()).gtrid, b"late"))
            monkeypatch.setattr(decision_table, "SETTLE_WAIT_S", PATIENCE_S)
            settling = pool.submit(table.settle, late.gtrid)
            deciding.commit() if ends == "COMMIT" else deciding.rollback()
            assert settling.result(PATIENCE_S) == record
            monkeypatch.setattr(decision_table, "SETTLE_WAIT_S", briefly)
        assert recovery.settle(xid) == record
        with table._engine.connect() as deciding:
            with pytest.raises(IntegrityError):
                deciding.execute(table.insertion(xid.gtrid, b"too late"))
            deciding.rollback()
    recovery.rm.close("", RMID)


# --- housekeeping -----------------------------------------------------------------------------------------------
def test_ended_decisions_are_deleted_in_batches(decider: Decider, harness: Any) -> None:
    xids = [new_xid() for _ in range(END_BATCH + 10)]
    tombstones = ", ".join(f"('{xid.gtrid.hex()}', 'rolled back')" for xid in xids)
    harness.admin(f"INSERT INTO xabridge_decision (gtrid, state) VALUES {tombstones}")  # noqa: S608 — of our own
    for xid in xids[: END_BATCH - 1]:
        decider.rm.end_decisions([xid.gtrid], RMID)
    assert query(harness, "SELECT count(*) FROM xabridge_decision") == [(len(xids),)]
    decider.rm.end_decisions([xids[END_BATCH].gtrid], RMID)
    assert query(harness, "SELECT count(*) FROM xabridge_decision") == [(len(xids) - END_BATCH,)]


def test_close_deletes_what_has_ended(harness: Any) -> None:
    client = Decider(harness)
    xid = client.ended(new_key())
    client.decide(xid)
    client.rm.end_decisions([xid.gtrid], RMID)
    client.rm.close("", RMID)
    assert query(harness, "SELECT count(*) FROM xabridge_decision") == [(0,)]


def test_what_has_ended_is_not_listed_even_when_it_can_not_be_deleted(
    sqlite_client: Decider, sqlite_harness: SqliteDeciderHarness
) -> None:
    """Somebody writes: the deletion is left to the next time, and keeps nobody waiting."""
    xid, other = new_xid(), new_xid()
    for each in (xid, other):
        sqlite_client.decide(sqlite_client.ended(new_key(), each))
    with closing(sqlite3.connect(sqlite_harness._path, isolation_level=None)) as writer:
        sqlite_client.rm.end_decisions([xid.gtrid], RMID)
        writer.execute("BEGIN IMMEDIATE")
        sqlite_client.rm.driver.unit_driver.backend.table.flush()  # type: ignore[attr-defined]
        writer.execute("ROLLBACK")
    assert query(sqlite_harness, "SELECT count(*) FROM xabridge_decision") == [(2,)]
    assert sqlite_client.decided().keys() == {other.gtrid}
    sqlite_client.rm.close("", RMID)
    assert query(sqlite_harness, "SELECT gtrid FROM xabridge_decision") == [(other.gtrid.hex(),)]


# --- SQLite -----------------------------------------------------------------------------------------------------
def test_one_writer_waits_for_the_other(sqlite_client: Decider, sqlite_harness: SqliteDeciderHarness) -> None:
    xid = sqlite_client.ended(first := new_key())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sqlite_client.ended, second := new_key())
        sqlite_client.decide(xid)
        sqlite_client.decide(waiting.result(PATIENCE_S))
    assert {first, second} <= sqlite_harness.committed()


def test_a_writer_that_waits_too_long(sqlite_harness: SqliteDeciderHarness) -> None:
    sqlite_harness.open_string += "?xa_pool_wait_s=0.05"
    client = Decider(sqlite_harness)
    xid = client.ended(key := new_key())
    with elsewhere(), refused(Code.XA_RETRY) as raised:
        client.start(new_xid())
    assert "locked" in raised.value.message
    client.decide(xid)
    assert key in sqlite_harness.committed()
    client.rm.close("", RMID)


CAN_NOT_DECIDE = {
    "sqlite://": "a database in memory can't decide",
    "sqlite:///:memory:": "a database in memory can't decide",
    "sqlite:///file::memory:?uri=true": "a database in memory can't decide",
    "sqlite:///file:shared?mode=memory&cache=shared&uri=true": "a database in memory can't decide",
    "sqlite:///file:?uri=true": "a database in memory can't decide",
    "sqlite:///file:/shared?vfs=memdb&uri=true": "a database in memory can't decide",
    "decider+sqlite+pysqlite:///:memory:": "a database in memory can't decide",
    "sqlite+aiosqlite:///x": "",
    "nonsense://x": "",
    "mysql+nodriver://x": "",
    # SQLite has no WAL mode without shared memory, does not fail, and goes on in another one.
    "sqlite:///file:{folder}/shop.db?vfs=unix-dotfile&uri=true": "SQLite has no WAL mode here",
    "sqlite:///file:{folder}/shop.db?nolock=1&uri=true": "SQLite has no WAL mode here",
}


def test_what_can_not_decide(tmp_path: Path) -> None:
    for url, why in CAN_NOT_DECIDE.items():
        with case(url), refused(Code.XAER_INVAL) as raised:
            DecidingDatabase().open(url.format(folder=tmp_path), RMID)
        assert why in raised.value.message, url
    with refused(Code.XAER_RMERR) as raised:
        DecidingDatabase().open(f"sqlite:///{tmp_path}/nowhere/shop.db", RMID)
    assert "unable to open" in raised.value.message


def test_a_file_by_uri_decides(tmp_path: Path) -> None:
    rm = DecidingDatabase()
    rm.open(f"sqlite:///file:{tmp_path}/shop.db?uri=true", RMID)
    rm.close("", RMID)
    assert (tmp_path / "shop.db").exists()


def test_what_is_done_behind_the_end_of_a_transaction_is_not_decided(
    sqlite_client: Decider, sqlite_harness: SqliteDeciderHarness
) -> None:
    """Where the error was swallowed each statement behind it commits itself, and the decision would too."""
    sqlite_harness.admin("INSERT INTO work VALUES ('there')")
    xid = new_xid()
    sqlite_client.start(xid)
    session = sqlite_client.rm.session(RMID)
    session.execute(sa.text("INSERT INTO work VALUES ('before')"))
    with suppress(sa.exc.DBAPIError):
        session.exec_driver_sql("INSERT OR ROLLBACK INTO work VALUES ('there')")
    session.execute(sa.text("INSERT INTO work VALUES ('behind')"))
    assert sqlite_client.end(xid) is Code.XA_OK
    with refused(Code.XA_RBPROTO) as raised:
        sqlite_client.decide(xid)
    assert "has ended the transaction" in raised.value.message
    assert sqlite_client.settle(xid) is None


CRASHES = """
import os, signal, sys
from rm_db import DecidingDatabase
from sqlalchemy import text
from xa import TMSUCCESS, Xid

rm = DecidingDatabase()
rm.open(sys.argv[1], 1)
number = 0
while True:
    number += 1
    xid = Xid(1, b"%08d" % number, b"")
    rm.start(xid, 1)
    rm.session(1).execute(text("INSERT INTO work VALUES (:key)"), {"key": str(number)})
    rm.end(xid, 1, TMSUCCESS)
    rm.decide(xid, 1, b"record")
    print(number, flush=True)
"""


def test_a_process_that_is_killed_while_it_decides(sqlite_harness: SqliteDeciderHarness) -> None:
    """kill -9, again and again: what was answered is there, and there is a row for every decision and none else.
    (PostgreSQL: tests/crash.)"""
    for _ in range(ROUNDS):
        process = subprocess.Popen(
            [sys.executable, "-c", CRASHES, sqlite_harness.open_string], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = 0
        while told < 20:
            told = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        told = max([told, *map(int, process.stdout.read().split())])

        process.wait()
        process.stdout.close()
        client = Decider(sqlite_harness)
        decided = {int(gtrid) for gtrid in client.decided()}
        late = client.settle(Xid(1, b"%08d" % (told + 1), b""))
        decided |= {told + 1} if late is not None else set()
        assert set(range(1, told + 1)) <= decided <= set(range(1, told + 2))
        assert {int(key) for key in sqlite_harness.committed()} == decided
        client.rm.end_decisions([b"%08d" % number for number in range(told + 2)], RMID)
        client.rm.close("", RMID)
        sqlite_harness.admin("DELETE FROM work")


# --- PostgreSQL as it is by default, behind a pooler ------------------------------------------------------------------
@pytest.fixture
def pooled(pooled_harness: PooledDeciderHarness) -> Iterator[Decider]:
    """An open DecidingDatabase."""
    client = Decider(pooled_harness)
    yield client
    client.rm.close("", RMID)


@pytest.mark.timeout(40)
def test_sqlalchemy_is_first_used_when_transactions_hold_all_connections_of_the_pooler(pooled: Decider) -> None:
    """... and the first use does not wait for a connection of its own, which nobody could give back."""
    transactions = [(new_xid(), ThreadOfControl()) for _ in range(8)]
    for xid, control in transactions:
        with entered(control):
            pooled.rm.start(xid, RMID)
            pooled.rm.session(RMID).psycopg.execute("SELECT 1")
    for xid, control in transactions:
        with entered(control):
            pooled.rm.session(RMID).execute(sa.text("SELECT 1"))
            pooled.rm.end(xid, RMID, TMSUCCESS)
            assert pooled.rm.commit(xid, RMID, TMONEPHASE) is Code.XA_OK


def test_more_clients_than_the_pooler_has_connections(pooled: Decider) -> None:
    """Transactions of many take turns on few sessions, and each decides for itself."""

    def work(number: int) -> list[str]:
        with entered(ThreadOfControl()):
            keys = [f"{number} {attempt}" for attempt in range(4)]
            for key in keys:
                xid = pooled.ended(key)
                assert pooled.decide(xid) is Code.XA_OK
                assert pooled.settle(xid) is not None
            return keys

    with ThreadPoolExecutor(3 * 8) as pool:
        keys = [key for some in pool.map(work, range(24), timeout=PATIENCE_S) for key in some]
    assert pooled.harness.committed() == set(keys)
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    until(lambda: 1 <= query(pooled.harness, sessions)[0][0] <= 8)  # one that was closed may be there for a moment
