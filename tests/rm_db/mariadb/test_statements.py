"""These tests try what would end or leave a branch, in every form that is known, on a real server.

What the words show is refused before it is sent (tests/rm_db/sessions/test_every_kind.py). What they don't show, the
server refuses, or the vote does.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pymysql
import pytest

from tests.rm_db.harness import MariaHarness
from xa import TMONEPHASE, BranchRolledBack, Code, XaMisuse, Xid
from xabridge.testing.contract.client import RMID, Client, case, new_xid, refused


def begin(client: Client, xid: Xid | None = None) -> tuple[Xid, Any]:
    """A branch that has written, and its session."""
    xid = xid or new_xid()
    client.start(xid)
    session = client.rm.session(RMID)
    session.pymysql.query("UPDATE account SET amount = 77 WHERE id = 1")
    return xid, session


def commit(client: Client, xid: Xid) -> None:
    """Two-phase."""
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    client.commit(xid)


def amounts(harness: MariaHarness) -> list[tuple[int, int]]:
    """What is committed."""
    return harness.admin("SELECT id, amount FROM account ORDER BY id")


BEFORE = [(1, 100), (2, 100)]
AFTER = [(1, 77), (2, 100)]

BY_THE_SERVER = [
    "EXECUTE IMMEDIATE 'COMMIT'",
    "EXECUTE IMMEDIATE 'ROLLBACK'",
    "EXECUTE IMMEDIATE 'CREATE TABLE more (a integer)'",
    "CALL commits()",
    "CALL defines()",
    "IF 1 THEN COMMIT; END IF",
    "# a comment\nCOMMIT",
    "SELECT 'it\\'s'; COMMIT",
    "BACKUP STAGE START",
]
"""Nothing in the first words of these is refused here, and they would all end the branch."""

HARMLESS = [
    "SELECT 1",
    "SHOW TABLES",
    "EXPLAIN SELECT * FROM account",
    "ANALYZE SELECT * FROM account",
    "SAVEPOINT a",
    "SET @a = 1",
    "SET NAMES utf8mb4",
    "DO SLEEP(0)",
    "HANDLER account OPEN",
    "SELECT * FROM account FOR UPDATE",
    "KILL QUERY CONNECTION_ID()",
    "PREPARE s FROM 'COMMIT'",
]


@pytest.fixture(autouse=True)
def procedures(harness: MariaHarness) -> None:
    """Procedures and a function that do what their callers' words don't show."""
    harness.admin("CREATE OR REPLACE PROCEDURE commits() BEGIN UPDATE account SET amount = 5; COMMIT; END")
    harness.admin("CREATE OR REPLACE PROCEDURE defines() BEGIN CREATE TABLE more (a integer); END")
    harness.admin(
        "CREATE OR REPLACE PROCEDURE ends() BEGIN XA END 'known','to them',7;"
        " XA COMMIT 'known','to them',7 ONE PHASE; END"
    )
    harness.admin("CREATE OR REPLACE PROCEDURE selects() BEGIN SELECT 1; SELECT 2; END")


def test_refused_by_the_server(client: Client, harness: MariaHarness) -> None:
    for statement in BY_THE_SERVER:
        with case(statement):
            xid, session = begin(client)
            with pytest.raises((pymysql.MySQLError, XaMisuse)):
                session.pymysql.query(statement)
            assert amounts(harness) == BEFORE
            with suppress(BranchRolledBack):
                client.end(xid)
            client.rollback(xid)
            assert amounts(harness) == BEFORE


def test_what_leaves_the_branch_alone(client: Client, harness: MariaHarness) -> None:
    for statement in HARMLESS:
        with case(statement):
            harness.admin("UPDATE account SET amount = 100")
            xid, session = begin(client)
            try:
                session.pymysql.cursor().execute(statement)
            except pymysql.MySQLError as error:
                assert error.args[0] == 1317  # noqa: PT017 — the one that interrupts itself
            assert amounts(harness) == BEFORE
            commit(client, xid)
            assert amounts(harness) == AFTER


@pytest.mark.parametrize("one_phase", [False, True])
def test_a_procedure_that_ends_the_branch_is_noticed(client: Client, harness: MariaHarness, one_phase: bool) -> None:
    """Only who knows the xid can do that: it is committed, and nobody is told that it was rolled back without a word of
    it."""
    xid, session = begin(client, Xid(7, b"known", b"to them"))
    session.pymysql.query("CALL ends()")
    client.end(xid)
    with pytest.raises(BranchRolledBack, match="may be committed") as told:
        client.commit(xid, TMONEPHASE) if one_phase else client.prepare(xid)
    assert told.value.code is Code.XA_RBPROTO
    assert amounts(harness) == AFTER


def test_results_that_nobody_reads(client: Client) -> None:
    """Those of a procedure are read to their end; rows that the application streams have to be read by itself."""
    xid, session = begin(client)
    session.pymysql.cursor().execute("CALL selects()")
    cursor = session.pymysql.cursor()
    cursor.execute("CALL selects()")
    assert cursor.fetchall() == ((1,),)
    assert cursor.nextset()
    assert cursor.fetchall() == ((2,),)
    stream = session.pymysql.cursor(pymysql.cursors.SSCursor)
    stream.execute("SELECT id FROM account")

    with refused(Code.XAER_PROTO):
        session.pymysql.query("SELECT 1")
    assert stream.fetchall() == [(1,), (2,)]
    session.pymysql.query("SELECT 1")
    session.pymysql.cursor().execute("CALL selects()")
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    client.rollback(xid)
    xid, session = begin(client)
    stream = session.pymysql.cursor(pymysql.cursors.SSCursor)
    stream.execute("SELECT id FROM account")
    with refused(Code.XA_RBPROTO):
        client.end(xid)
    client.retrying("rollback", xid)


def test_the_drivers_own_socket_is_not_passed_on(client: Client) -> None:
    xid, session = begin(client)
    with pytest.raises(AttributeError):
        session.pymysql._sock  # noqa: B018 — what is tested
    client.end(xid)
    client.rollback(xid)
