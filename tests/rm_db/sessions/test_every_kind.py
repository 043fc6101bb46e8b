"""These tests cover what a session of any kind of database, in two phases or deciding, refuses: what would end the
transaction, and use after its end. And nothing of a session reaches the next one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tests.rm_db.sessions.conftest import EVERYWHERE
from tests.rm_db.sessions.shops import Made, MariaDBShop, Order, PostgresShop, Shop
from tm import RolledBack, TransactionManager
from xa import XaMisuse
from xabridge.testing.contract.client import case

# --- what ends the transaction ----------------------------------------------------------------------------------
ENDS: dict[str, Callable[[Any], object]] = {
    "commit": lambda shop: shop.commit(),
    "rollback": lambda shop: shop.rollback(),
    "close": lambda shop: shop.close(),
    "begin": lambda shop: shop.begin(),
    "autocommit": lambda shop: shop.execution_options(isolation_level="AUTOCOMMIT"),
    "text": lambda shop: shop.execute(sa.text("COMMIT")),
    "driver text": lambda shop: shop.exec_driver_sql("/* or */ rollback"),
    "orm commit": lambda shop: shop.orm.commit(),
    "orm rollback": lambda shop: shop.orm.rollback(),
    "orm close": lambda shop: shop.orm.close(),
    "orm begin": lambda shop: shop.orm.begin(),
    "raw commit": lambda shop: shop.connection.commit(),
    "the driver's commit": lambda shop: shop.connection.dbapi_connection.commit(),
    "the driver's rollback": lambda shop: shop.connection.driver_connection.rollback(),
    "the driver's close": lambda shop: shop.connection.dbapi_connection.close(),
    "the driver's with": lambda shop: shop.connection.dbapi_connection.__enter__(),
    "a cursor": lambda shop: shop.connection.cursor().execute("COMMIT"),
    "the driver's cursor": lambda shop: shop.connection.dbapi_connection.cursor().execute("/* or */ rollback"),
    "a cursor's connection": lambda shop: shop.connection.dbapi_connection.cursor().connection.commit(),
}
OF_POSTGRES: dict[str, Callable[[Any], object]] = {
    "begin_twophase": lambda shop: shop.begin_twophase(),
    "detach": lambda shop: shop.detach(),
    "commit of the root transaction": lambda shop: shop.get_transaction().commit(),
    "END": lambda shop: shop.exec_driver_sql("END"),
    "psycopg commit": lambda shop: shop.psycopg.commit(),
    "psycopg rollback": lambda shop: shop.psycopg.rollback(),
    "psycopg close": lambda shop: shop.psycopg.close(),
    "psycopg autocommit": lambda shop: setattr(shop.psycopg, "autocommit", True),
    "psycopg set_autocommit": lambda shop: shop.psycopg.set_autocommit(True),
    "psycopg with": lambda shop: shop.psycopg.__enter__(),
    "psycopg text": lambda shop: shop.psycopg.execute("COMMIT"),
    "psycopg bytes": lambda shop: shop.psycopg.execute(b"COMMIT"),
    "psycopg composed": lambda shop: shop.psycopg.execute(
        psycopg.sql.SQL("SELECT 1; {}").format(psycopg.sql.SQL("END"))
    ),
    "psycopg several": lambda shop: shop.psycopg.execute("SELECT 1; COMMIT; SELECT 2"),
    "psycopg prepare": lambda shop: shop.psycopg.execute("PREPARE TRANSACTION 'mine'"),
    "psycopg executemany": lambda shop: shop.psycopg.cursor().executemany("COMMIT", [()]),
    "psycopg tpc": lambda shop: shop.psycopg.tpc_begin("mine"),
    "psycopg tpc prepare": lambda shop: shop.psycopg.tpc_prepare(),
    "psycopg tpc commit": lambda shop: shop.psycopg.tpc_commit(),
    "psycopg tpc rollback": lambda shop: shop.psycopg.tpc_rollback(),
}
OF_SQLITE: dict[str, Callable[[Any], object]] = {
    "executescript": lambda shop: shop.connection.dbapi_connection.executescript("SELECT 1"),
    "a cursor's executescript": lambda shop: shop.connection.dbapi_connection.cursor().executescript("SELECT 1"),
    "the driver's execute": lambda shop: shop.connection.dbapi_connection.execute("COMMIT"),
    "isolation_level": lambda shop: setattr(shop.connection.dbapi_connection, "isolation_level", None),
}
PYMYSQL: dict[str, Callable[[Any], object]] = {
    "begin": lambda pymysql: pymysql.begin(),
    "autocommit": lambda pymysql: pymysql.autocommit(True),
    "query": lambda pymysql: pymysql.query("COMMIT"),
    "commit": lambda pymysql: pymysql.commit(),
    "rollback": lambda pymysql: pymysql.rollback(),
    "close": lambda pymysql: pymysql.close(),
    "with": lambda pymysql: pymysql.__enter__(),
}
PYMYSQL_TWO_PHASE: dict[str, Callable[[Any], object]] = {
    "connect": lambda pymysql: pymysql.connect(),
    "select_db": lambda pymysql: pymysql.select_db("mysql"),
    "kill": lambda pymysql: pymysql.kill(1),
    "set_charset": lambda pymysql: pymysql.set_charset("latin1"),
}
MARIADB_WORDS = [
    "COMMIT",
    "commit and chain",
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
    "ALTER TABLE orders ADD COLUMN z int",
    "DROP TABLE orders",
    "TRUNCATE orders",
    "RENAME TABLE orders TO others",
    "GRANT SELECT ON orders TO somebody",
    "SET PASSWORD = PASSWORD('x')",
    "FLUSH TABLES",
    "ANALYZE TABLE orders",
    "OPTIMIZE TABLE orders",
    "REPAIR TABLE orders",
    "CHECK TABLE orders",
    "LOCK TABLES orders WRITE",
    "LOCK TABLES orders READ",
    "UNLOCK TABLES",
    "RESET QUERY CACHE",
    "INSTALL SONAME 'x'",
    "BEGIN NOT ATOMIC COMMIT; END",
]
"""What ends a transaction of MariaDB, and shows it. What does not: tests/rm_db/mariadb/test_statements.py."""


def ends_of(shop: Shop) -> dict[str, Callable[[Any], object]]:
    """What would end a transaction of this shop."""
    if isinstance(shop, PostgresShop):
        return ENDS | OF_POSTGRES
    if not isinstance(shop, MariaDBShop):
        return ENDS | OF_SQLITE
    ends = dict(ENDS)
    for name, use in (PYMYSQL | PYMYSQL_TWO_PHASE if shop.driver else PYMYSQL).items():
        ends[f"pymysql {name}"] = partial(_by_pymysql, use)
    for words in MARIADB_WORDS:
        ends[words] = partial(_by_words, words)
        ends[f"a cursor: {words}"] = partial(_by_pymysql, partial(_by_cursor, words))
    return ends


def _by_pymysql(use: Callable[[Any], object], session: Any) -> None:
    """A two-phase session has its own way to PyMySQL's connection."""
    use(session.pymysql if hasattr(session, "pymysql") else session.connection.dbapi_connection)


def _by_cursor(words: str, pymysql: Any) -> None:
    pymysql.cursor().execute(words)


def _by_words(words: str, session: Any) -> None:
    session.exec_driver_sql(words)


def test_the_end_of_the_transaction_is_the_managers(shop: Shop) -> None:
    """Refused before it is sent; and the branch says no, because the error may be hidden."""
    for way, end in ends_of(shop).items():
        with case(way):
            with pytest.raises(RolledBack, match="was refused"), shop.tm.begin() as tx:
                tx["shop"].execute(sa.insert(Order).values(id=1))
                with pytest.raises(XaMisuse, match=r"transaction manager|the session's"):
                    end(tx["shop"])
                assert shop.rows() == []
                tx["shop"].execute(sa.insert(Order).values(id=2))
            assert shop.rows() == []


def test_reading_by_the_drivers_connection_is_free(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        cursor = tx["shop"].connection.dbapi_connection.cursor()
        cursor.execute("SELECT 1")
        assert list(cursor.fetchall()) == [(1,)]
        tx["shop"].execute(sa.insert(Order).values(id=1))
    assert shop.ids() == [1]


# --- after the association ------------------------------------------------------------------------------------
def test_a_session_that_is_over_is_refused(shop: Shop) -> None:
    """... even while the same connection already serves somebody else."""
    stray = "INSERT INTO orders (id) VALUES (3)"
    with shop.tm.begin() as tx:
        old = tx["shop"]
        old.execute(sa.insert(Order).values(id=1))
        orm, cursor = old.orm, old.connection.dbapi_connection.cursor()
        uses: list[Callable[[], object]] = [
            lambda: old.execute(sa.text(stray)),
            old.begin_nested,
            old.commit,
            lambda: orm.execute(sa.text(stray)),
            lambda: cursor.execute(stray),
        ]
        if shop.driver is not None:
            own = getattr(old, shop.driver)
            uses += [lambda: own.cursor().execute(stray), own.commit]

    with shop.tm.begin() as tx:
        tx["shop"].execute(sa.insert(Order).values(id=2))
        for number, use in enumerate(uses):
            with case("use", number), pytest.raises(XaMisuse):
                use()
        assert old.closed
    assert shop.ids() == [1, 2]


def test_a_statement_is_cut_short_when_its_transaction_takes_too_long(shop: Shop, tmp_path: Path) -> None:
    """The manager's reaper rolls back from a thread of its own, while the application is in a statement."""
    log = None if shop.kind.endswith("decider") else f"file://{tmp_path}/other"
    with TransactionManager("node-2", log, shop.addresses) as manager:
        with pytest.raises(RolledBack, match="longer than its"), manager.begin(timeout_s=0.5) as tx:
            tx["shop"].execute(sa.insert(Order).values(id=1))
            with suppress(DBAPIError):  # MariaDB's SLEEP raises none
                tx["shop"].execute(sa.text(shop.sleep))
            with pytest.raises((XaMisuse, DBAPIError)):
                tx["shop"].execute(sa.insert(Order).values(id=2))
        with manager.begin() as tx:
            tx["shop"].execute(sa.insert(Order).values(id=3))  # nothing is locked any more
    assert shop.ids() == [3]


@pytest.mark.parametrize("shop", EVERYWHERE, indirect=True)
def test_a_statement_that_ctrl_c_interrupts_ends_in_the_server(shop: Shop) -> None:
    """Its locks are free, and the transaction is rolled back, whatever the application makes of the interruption."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background, which is deaf to it
    drivers: list[Callable[[Any], object]] = [lambda session: session.execute(sa.text(shop.sleep))]
    drivers.append(lambda session: getattr(session, str(shop.driver)).cursor().execute(shop.sleep))
    try:
        for use in drivers:

            def press() -> None:
                while not shop.at_work(*shop.asleep):
                    pass
                os.kill(os.getpid(), signal.SIGINT)

            presses = threading.Thread(target=press)
            with pytest.raises(RolledBack), shop.tm.begin() as tx:
                tx["shop"].execute(sa.insert(Order).values(id=1))
                presses.start()
                with pytest.raises(KeyboardInterrupt):
                    use(tx["shop"])
                presses.join()
                assert not shop.at_work(*shop.asleep)
                with shop.plain.begin() as somebody:
                    somebody.execute(sa.insert(Order).values(id=1))  # would wait for the lock
            assert shop.ids() == [1]
            shop.empty()
    finally:
        signal.signal(signal.SIGINT, before)


# --- nothing leaks into the next transaction --------------------------------------------------------------------
STATE_OF_POSTGRES: list[tuple[str, str, Any]] = [
    ("SET work_mem = '7MB'", "SHOW work_mem", "4MB"),
    ("SET search_path = pg_catalog", "SHOW search_path", '"$user", public'),
    ("SET statement_timeout = '1h'", "SHOW statement_timeout", "0"),
    (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SHOW transaction_isolation",
        "read committed",
    ),
    (
        "SELECT pg_advisory_lock(4711)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711",
        0,
    ),
    ("PREPARE mine AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements WHERE name = 'mine'", 0),
]
ROLES: list[tuple[str, str, Any]] = [
    ("SET ROLE pg_monitor", "SELECT current_user", "postgres"),
    ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user", "postgres"),
]
"""Their user may not decide."""
NOT_PREPARED: list[tuple[str, str, Any]] = [
    ("CREATE TEMPORARY TABLE scratch (a int)", "SELECT to_regclass('scratch') IS NULL", True),
    ("DECLARE held CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors WHERE name = 'held'", 0),
    ("LISTEN somebody", "SELECT count(*) FROM pg_listening_channels()", 0),
]
"""What PostgreSQL can't prepare."""
STATE_OF_MARIADB: list[tuple[str, str, Any]] = [
    ("SET @a = 1", "SELECT @a", None),
    ("SET sql_mode = 'ANSI'", "SELECT @@sql_mode LIKE '%%ANSI%%'", 0),
    ("SET time_zone = '+05:00'", "SELECT @@time_zone", "SYSTEM"),
    ("SET SESSION innodb_lock_wait_timeout = 1", "SELECT @@innodb_lock_wait_timeout", 50),
    ("USE information_schema", "SELECT DATABASE() = 'information_schema'", 0),
    ("SET NAMES latin1", "SELECT @@character_set_client", "utf8mb4"),
    ("SELECT 5 INTO @a", "SELECT @a", None),
    ("SELECT @a := 5", "SELECT @a", None),
    ("SELECT GET_LOCK('mine', 0)", "SELECT IS_FREE_LOCK('mine')", 1),
]
STATE_OF_SQLITE: list[tuple[str, str, Any]] = [
    ("PRAGMA cache_size = 77", "PRAGMA cache_size", -2000),
    ("CREATE TEMP TABLE scratch (a int)", "SELECT count(*) FROM sqlite_temp_master", 0),
]
"""What a transaction leaves, the question for it, and the answer that the next one hears."""
ENDINGS = ("with another", "alone", "rolled back", "read-only")


def leave(shop: Shop, statement: str, ending: str) -> None:
    """A transaction that leaves something in its session, and ends so."""
    with suppress(LookupError), shop.tm.begin() as tx:
        if ending != "read-only":
            tx["shop"].execute(sa.insert(Order).values(id=1))
        tx["shop"].exec_driver_sql(statement)
        if ending == "rolled back":
            raise LookupError
        if ending != "alone":
            tx["other"].execute(sa.insert(Made).values(id=1))


def test_nothing_of_a_session_reaches_the_next(shop: Shop) -> None:
    if isinstance(shop, PostgresShop):
        state = STATE_OF_POSTGRES + (ROLES if shop.kind.endswith("two-phase") else [])
    elif isinstance(shop, MariaDBShop):
        state = STATE_OF_MARIADB
    else:
        state = STATE_OF_SQLITE
    cases = [*product(state, ENDINGS)]
    if isinstance(shop, PostgresShop):
        cases += product(NOT_PREPARED, ["alone"])
    for (statement, look, found), ending in cases:
        with case(statement, ending):
            shop.empty()
            leave(shop, statement, ending)
            with shop.tm.begin() as tx:
                assert tx["shop"].exec_driver_sql(look).scalar() == found
