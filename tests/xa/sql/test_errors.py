"""These tests cover the classification of errors: the meaning of each database's codes, and that the classification
loads neither a driver nor SQLAlchemy.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg
import pymysql
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError

from tests.programs import loaded_by
from xa.sql.errors import (
    IN_THE_WAY,
    MARIADB,
    SQLITE,
    SQLSTATES,
    ErrorKind,
    kind_of,
    kind_of_sqlstate,
    mariadb_number,
    sqlstate_of,
)


def of_postgres(sqlstate: str | None) -> psycopg.Error:
    error: Any = psycopg.OperationalError("no")
    error.sqlstate = sqlstate
    return error  # type: ignore[no-any-return]


def of_sqlite(code: int | None, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error: Any = kind("no")
    if code is not None:
        error.sqlite_errorcode = code
    return error  # type: ignore[no-any-return]


EXPECTED: list[tuple[Exception, ErrorKind]] = [
    (of_postgres(None), ErrorKind.UNTOLD),
    (of_postgres("08006"), ErrorKind.LOST),
    (of_postgres("57P01"), ErrorKind.LOST),
    (of_postgres("57P05"), ErrorKind.LOST),
    (of_postgres("25P03"), ErrorKind.LOST),
    (of_postgres("25P04"), ErrorKind.LOST),
    (of_postgres("25006"), ErrorKind.UNAVAILABLE),
    (of_postgres("25001"), ErrorKind.REFUSED),
    (of_postgres("40001"), ErrorKind.SERIALIZATION),
    (of_postgres("40003"), ErrorKind.FAILED),
    (of_postgres("40P01"), ErrorKind.DEADLOCK),
    (of_postgres("55P03"), ErrorKind.LOCKED),
    (of_postgres("55006"), ErrorKind.REFUSED),
    (of_postgres("57014"), ErrorKind.CANCELLED),
    (of_postgres("53200"), ErrorKind.EXHAUSTED),
    (of_postgres("53300"), ErrorKind.EXHAUSTED),
    (of_postgres("53400"), ErrorKind.EXHAUSTED),
    (of_postgres("53100"), ErrorKind.FULL),
    (of_postgres("23505"), ErrorKind.INVALID),
    (of_postgres("22001"), ErrorKind.INVALID),
    (of_postgres("54000"), ErrorKind.INVALID),
    (of_postgres("42501"), ErrorKind.DENIED),
    (of_postgres("42P01"), ErrorKind.DENIED),
    (of_postgres("58030"), ErrorKind.FAILED),
    (of_postgres("XX000"), ErrorKind.FAILED),
    (of_postgres("P0001"), ErrorKind.REFUSED),
    (of_sqlite(sqlite3.SQLITE_FULL), ErrorKind.FULL),
    (of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT), ErrorKind.LOCKED),
    (of_sqlite(sqlite3.SQLITE_LOCKED), ErrorKind.LOCKED),
    (of_sqlite(sqlite3.SQLITE_IOERR_FSYNC), ErrorKind.LOST),
    (of_sqlite(sqlite3.SQLITE_CANTOPEN), ErrorKind.FAILED),
    (of_sqlite(sqlite3.SQLITE_NOMEM), ErrorKind.EXHAUSTED),
    (of_sqlite(sqlite3.SQLITE_INTERRUPT), ErrorKind.EXHAUSTED),
    (of_sqlite(sqlite3.SQLITE_PROTOCOL), ErrorKind.UNAVAILABLE),
    (of_sqlite(sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.IntegrityError), ErrorKind.INVALID),
    (of_sqlite(sqlite3.SQLITE_NOTADB, sqlite3.DatabaseError), ErrorKind.DAMAGED),
    (of_sqlite(sqlite3.SQLITE_CORRUPT, sqlite3.DatabaseError), ErrorKind.DAMAGED),
    (of_sqlite(sqlite3.SQLITE_READONLY), ErrorKind.REFUSED),
    (of_sqlite(None), ErrorKind.UNTOLD),
    (of_sqlite(None, sqlite3.ProgrammingError), ErrorKind.REFUSED),
    (pymysql.err.OperationalError(1213, "Deadlock"), ErrorKind.DEADLOCK),
    (pymysql.err.OperationalError(1205, "Lock wait timeout"), ErrorKind.LOCKED),
    (pymysql.err.OperationalError(1020, "Record has changed"), ErrorKind.SERIALIZATION),
    (pymysql.err.OperationalError(2013, "Lost connection"), ErrorKind.LOST),
    (pymysql.err.OperationalError(1158, "Got an error reading"), ErrorKind.LOST),
    (pymysql.err.IntegrityError(1062, "Duplicate entry"), ErrorKind.INVALID),
    (pymysql.err.OperationalError(1040, "Too many connections"), ErrorKind.EXHAUSTED),
    (pymysql.err.OperationalError(1021, "Disk full"), ErrorKind.FULL),
    (pymysql.err.OperationalError(1114, "The table 'orders' is full"), ErrorKind.FULL),
    (pymysql.err.OperationalError(1290, "running with the --read-only option"), ErrorKind.UNAVAILABLE),
    (pymysql.err.OperationalError(1969, "max_statement_time exceeded"), ErrorKind.CANCELLED),
    (pymysql.err.ProgrammingError(1146, "Table 'x' doesn't exist"), ErrorKind.DENIED),
    (pymysql.err.OperationalError(1399, "XAER_RMFAIL: in the ACTIVE state"), ErrorKind.REFUSED),
    (pymysql.err.InterfaceError(0, ""), ErrorKind.UNTOLD),
    (ConnectionResetError(1213, "not a number of MariaDB's"), ErrorKind.UNTOLD),
]


def test_what_an_error_means_bare_and_as_sqlalchemy_raises_it() -> None:
    for error, kind in EXPECTED:
        assert kind_of(error) is kind, repr(error)
        assert kind_of(OperationalError("INSERT", {}, error)) is kind, repr(error)
        assert kind_of(IntegrityError("INSERT", {}, error)) is kind, repr(error)


def test_a_connection_that_sqlalchemy_has_given_up_is_lost_whatever_else_the_error_says() -> None:
    error: DBAPIError = InterfaceError("SELECT", {}, of_postgres("40001"), connection_invalidated=True)
    assert kind_of(error) is ErrorKind.LOST


def test_what_the_error_says_itself() -> None:
    assert sqlstate_of(OperationalError("INSERT", {}, of_postgres("40001"))) == "40001"
    assert sqlstate_of(of_sqlite(5)) is None
    assert mariadb_number(OperationalError("INSERT", {}, pymysql.err.OperationalError(1213, "Deadlock"))) == 1213
    assert mariadb_number(of_sqlite(5)) == 0
    assert mariadb_number(of_postgres("40001")) == 0


def test_the_tables_name_what_can_be() -> None:
    assert all(2 <= len(prefix) <= 5 and prefix.isalnum() for prefix in SQLSTATES)
    assert all(0 < code < 256 for code in SQLITE)
    assert all(1000 <= number < 5000 for number in MARIADB)
    assert kind_of_sqlstate("") is ErrorKind.REFUSED
    assert {kind_of_sqlstate(state) for state in ("40001", "40P01", "55P03")} == IN_THE_WAY


def test_it_loads_no_driver_and_not_sqlalchemy() -> None:
    assert not {"sqlalchemy", "psycopg", "pymysql"} & loaded_by("import xa.sql.errors")
