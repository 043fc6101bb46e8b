"""These tests check what the library concludes from the words of an SQL statement about its effect."""

from __future__ import annotations

import pytest

from rm_db.statements import DEFINES, ENDS, LINGERS, MAX_CACHED_CHARS, NOTIFIES, SETS, WRITES, classify
from tests.cases import each

TEXTS = {
    "SELECT 1": 0,
    "  commit": ENDS,
    "COMMIT AND CHAIN": ENDS,
    "end": ENDS,
    "ABORT": ENDS,
    "begin": ENDS,
    "START TRANSACTION READ ONLY": ENDS,
    "PREPARE TRANSACTION 'x'": ENDS | LINGERS,
    "COMMIT PREPARED 'x'": ENDS,
    "ROLLBACK PREPARED 'x'": ENDS,
    "rollback": ENDS,
    "ROLLBACK TO SAVEPOINT a": 0,
    "ROLLBACK WORK TO a": 0,
    "rollback transaction to savepoint a": 0,
    "SAVEPOINT a; RELEASE a": 0,
    "-- a comment\ncommit": ENDS,
    "/* a /* nested */ comment */ commit": ENDS,
    "/* commit": 0,
    "SELECT 1; COMMIT": ENDS,
    "SELECT ';COMMIT;'": 0,
    "SELECT 'it''s; commit'": 0,
    "SELECT E'\\'; commit; \\''": 0,
    'SELECT 1 AS "; commit;"': 0,
    "SELECT `; commit;`": 0,
    "SELECT $$; commit; $$": 0,
    "SELECT $tag$; $$ commit; $tag$; COMMIT": ENDS,
    "SELECT '; commit": 0,
    "DO $$ BEGIN PERFORM 1; END $$": 0,
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC; SELECT 1; END": DEFINES,
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN DELETE FROM b; END": DEFINES,
    "INSERT INTO t VALUES (1)": WRITES,
    "update t set a = 1": WRITES,
    "DELETE FROM t": WRITES,
    "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE": WRITES,
    "SELECT 1; INSERT INTO t VALUES (1)": 0,
    "WITH a AS (INSERT INTO t VALUES (1) RETURNING 1) SELECT * FROM a": 0,
    "SELECT pg_notify('a', 'b')": NOTIFIES,
    "LISTEN a": NOTIFIES,
    "NOTIFY a": NOTIFIES,
    "PREPARE p AS SELECT 1": LINGERS,
    "LOAD 'auto_explain'": LINGERS,
    "SET search_path TO x": SETS,
    "PRAGMA foreign_keys = on": SETS,
    "ATTACH 'x' AS y": SETS,
    "CREATE TEMP TABLE t (a int)": DEFINES | SETS,
    "CREATE TEMPORARY TABLE t (a int)": DEFINES | SETS,
    "DROP TABLE t": DEFINES,
    "SET autocommit=1": ENDS | SETS,
    "SET @@session.autocommit = ON": ENDS | SETS,
    "SET a = 1, b = 2, c = 3, autocommit = 1": ENDS | SETS,
    "SELECT autocommit FROM t": 0,
    "/*!50000 COMMIT */": ENDS,
    "/*! SELECT 1; COMMIT */": ENDS,
    "/*M!100100 ROLLBACK */": ENDS,
    "SELECT /*!40001 SQL_NO_CACHE */ 1": 0,
    "ANALYZE TABLE t": DEFINES,
    "ANALYZE SELECT 1": 0,
    "FLUSH TABLES": DEFINES,
    "": 0,
    ";;": 0,
}


@each(("sql", "effects"), TEXTS.items())
def test_effects(sql: str, effects: int) -> None:
    assert classify(sql) == effects


def test_long_texts_are_read_too() -> None:
    text = "INSERT INTO t VALUES ('{}')"
    text = text.format("x" * MAX_CACHED_CHARS + ";")
    assert classify(text) == WRITES
    assert classify(text + "; COMMIT") == WRITES | ENDS


@pytest.mark.parametrize(
    "sql", ["'" * 100_001, "$$" * 50_000, "/*" * 50_000, '"' * 100_001, "e'\\" * 40_000, "a$" * 50_000]
)
def test_hostile_texts_take_no_time(sql: str) -> None:
    """Linear in the length: quadratic ones would run into the test's timeout."""
    classify(sql * 2)
