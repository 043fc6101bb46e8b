"""These tests try what would end or leave a branch, in every form that is known, on a real server.

What the words show is refused before it is sent. What they don't show, the server refuses, or the vote does.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import pymysql
import pytest
import sqlalchemy as sa

from xa import TMONEPHASE, BranchRolledBack, Code, XaMisuse, Xid
from xabridge.testing.contract.client import RMID, Client, case, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rm_db.harness import MariaHarness


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

BY_THEIR_WORDS = [
    "COMMIT",
    "commit and chain",
    "ROLLBACK",
    "ROLLBACK WORK",
    "BEGIN",
    "BEGIN WORK",
    "START TRANSACTION READ ONLY",
    "SET autocommit=1",
    "SET autocommit = 0",
    "SET @@autocommit = ON",
    "SET @@session.autocommit=1, sql_mode=''",
    "/*!50000 COMMIT */",
    "/*! COMMIT */",
    "/*M!100100 COMMIT */",
    "/*!50000 SET */ autocommit = 1",
    "/* a comment */ COMMIT",
    "XA END 'r'",
    "XA END X'00' SUSPEND",
    "XA PREPARE 'r'",
    "XA COMMIT 'r' ONE PHASE",
    "XA ROLLBACK 'r'",
    "XA START 'r'",
    "CREATE TABLE more (a integer)",
    "CREATE TEMPORARY TABLE more (a integer)",
    "CREATE VIEW v AS SELECT 1",
    "ALTER TABLE account ADD COLUMN z int",
    "DROP TABLE account",
    "TRUNCATE account",
    "RENAME TABLE account TO accounts",
    "GRANT SELECT ON account TO somebody",
    "SET PASSWORD = PASSWORD('x')",
    "FLUSH TABLES",
    "ANALYZE TABLE account",
    "OPTIMIZE TABLE account",
    "REPAIR TABLE account",
    "CHECK TABLE account",
    "LOCK TABLES account WRITE",
    "LOCK TABLES account READ",
    "UNLOCK TABLES",
    "RESET QUERY CACHE",
    "INSTALL SONAME 'x'",
    "BEGIN NOT ATOMIC COMMIT; END",
]

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


def test_refused_by_its_words(client: Client, harness: MariaHarness) -> None:
    for statement in BY_THEIR_WORDS:
        with case(statement):
            xid, session = begin(client)
            for way in (session.pymysql.query, session.pymysql.cursor().execute, session.exec_driver_sql):
                with pytest.raises(XaMisuse, match="transaction manager"):
                    way(statement)
            says_no(client, xid)
            assert amounts(harness) == BEFORE


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


METHODS: list[Callable[[Any], object]] = [
    lambda session: session.pymysql.commit(),
    lambda session: session.pymysql.rollback(),
    lambda session: session.pymysql.begin(),
    lambda session: session.pymysql.close(),
    lambda session: session.pymysql.connect(),
    lambda session: session.pymysql.select_db("mysql"),
    lambda session: session.pymysql.kill(1),
    lambda session: session.pymysql.autocommit(True),
    lambda session: session.pymysql.set_charset("latin1"),
    lambda session: session.pymysql.__enter__(),
    lambda session: session.commit(),
    lambda session: session.rollback(),
    lambda session: session.begin(),
    lambda session: session.close(),
    lambda session: session.orm.commit(),
    lambda session: session.orm.rollback(),
    lambda session: session.execution_options(isolation_level="AUTOCOMMIT"),
]


def test_methods_that_are_refused(client: Client, harness: MariaHarness) -> None:
    for number, use in enumerate(METHODS):
        with case("the method at", number):
            xid, session = begin(client)
            with pytest.raises(XaMisuse):
                use(session)
            says_no(client, xid)
            assert amounts(harness) == BEFORE


def says_no(client: Client, xid: Xid) -> None:
    """The branch was refused something, which the application may have hidden."""
    with refused(Code.XA_RBPROTO):
        client.end(xid)
    client.rollback(xid)


def test_a_session_after_its_association(client: Client) -> None:
    xid, session = begin(client)
    with pytest.raises(AttributeError):
        session.pymysql._sock  # noqa: B018 — the driver's own socket is not passed on
    cursor = session.pymysql.cursor()
    client.end(xid)
    for use in (
        lambda: session.execute(sa.text("SELECT 1")),
        lambda: session.pymysql.query("SELECT 1"),
        lambda: cursor.execute("SELECT 1"),
        lambda: session.orm.execute(sa.text("SELECT 1")),
        session.pymysql.commit,
    ):
        with refused(Code.XAER_PROTO):
            use()
    assert not session.pymysql.open
    client.rollback(xid)


def test_the_isolation_level_is_set_before_the_first_statement(client: Client, harness: MariaHarness) -> None:
    xid = new_xid()
    client.start(xid)
    session = client.rm.session(RMID)
    session.execution_options(isolation_level="READ COMMITTED")
    for amount in (100, 101):
        harness.admin("UPDATE account SET amount = %s WHERE id = 2", amount)
        assert session.scalar(sa.text("SELECT amount FROM account WHERE id = 2")) == amount
    with refused(Code.XAER_PROTO):
        session.execution_options(isolation_level="SERIALIZABLE")
    session.execute(sa.text("UPDATE account SET amount = 1 WHERE id = 1"))
    commit(client, xid)
    assert amounts(harness) == [(1, 1), (2, 101)]
    xid = new_xid()
    client.start(xid)
    session = client.rm.session(RMID)
    with pytest.raises(ValueError, match="no isolation level"):
        session.execution_options(isolation_level="X; DROP TABLE account")
    assert session.scalar(sa.text("SELECT @@tx_isolation")) == "REPEATABLE-READ"
    client.end(xid)
    client.rollback(xid)


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


STATE: list[tuple[str, str, Any]] = [
    ("SET @a = 1", "SELECT @a", None),
    ("SELECT 5 INTO @a", "SELECT @a", None),
    ("SET sql_mode = 'ANSI'", "SELECT @@sql_mode LIKE '%ANSI%'", 0),
    ("SET time_zone = '+05:00'", "SELECT @@time_zone", "SYSTEM"),
    ("SELECT GET_LOCK('mine', 0)", "SELECT IS_FREE_LOCK('mine')", 1),
    ("SET SESSION innodb_lock_wait_timeout = 1", "SELECT @@innodb_lock_wait_timeout", 50),
    ("PREPARE s FROM 'SELECT 1'", "SELECT count(*) FROM information_schema.processlist WHERE command = 'x'", 0),
    ("USE information_schema", "SELECT DATABASE() = 'information_schema'", 0),
    ("SET NAMES latin1", "SELECT @@character_set_client", "utf8mb4"),
]
"""What a branch leaves, the question for it, and the answer that the next one hears."""


VERBS = ("commit", "rollback", "one phase", "read-only")


def test_nothing_of_a_session_reaches_the_next(client: Client) -> None:
    for number, ((leave, look, found), verb) in enumerate(product(STATE, VERBS)):
        if (number // len(VERBS) + number) % 2:
            continue  # each state meets two of the verbs, and each verb half of the states
        with case(leave, verb):
            xid = new_xid()
            client.start(xid)
            session = client.rm.session(RMID).pymysql
            thread = session.thread_id()
            if verb != "read-only":
                session.query("UPDATE account SET amount = amount + 1 WHERE id = 1")
            session.query(leave)
            client.end(xid)
            if verb == "one phase":
                client.commit(xid, TMONEPHASE)
            elif verb == "rollback":
                client.rollback(xid)
            elif client.prepare(xid) is Code.XA_OK:
                client.commit(xid)

            xid = new_xid()
            client.start(xid)
            session = client.rm.session(RMID).pymysql
            cursor = session.cursor()
            cursor.execute(look)
            assert cursor.fetchone() == (found,)
            if not leave.startswith("USE"):
                assert session.thread_id() == thread  # it is the same session
            client.end(xid)
            client.rollback(xid)
