"""Sessions of MariaDB and MySQL for a sink, and values and names in their statements.

Each session first sets what makes the server refuse what it would otherwise change without a word: values that don't
fit are errors, 0 is no request for a new number, times are UTC. The names of tables and columns are quoted as in
standard SQL.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from rm_db.address import Address
from rm_db.mariadb.database import arguments, new_connection
from xabridge.pipeline.core.task.table_version import refuse_other_version

if TYPE_CHECKING:
    import pymysql

    from rm_db.sessions.pymysql_connection import PymysqlConnection
    from tm.resources import Resource

MODE: Final = "ANSI_QUOTES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES,STRICT_ALL_TABLES"
LOCKED: Final = 1205
"""The number of a lock wait timeout."""


def settings_of(timeout_s: float) -> str:
    """The statement that a session begins with; locks are waited for so long."""
    wait_s = max(1, math.ceil(timeout_s))
    return f"SET SESSION time_zone = '+00:00', sql_mode = '{MODE}', innodb_lock_wait_timeout = {wait_s}"


def connect(url: str) -> pymysql.Connection[Any]:
    """A connection beside the branches, which does not commit by itself. pymysql.MySQLError."""
    address = Address.parse(url)
    connection = new_connection({**arguments(address), "autocommit": False}, address.reply_s)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute(settings_of(1))
    return connection


def session_of(resource: Resource) -> PymysqlConnection:
    """The connection of the branch. Its isolation keeps the gaps between staged rows free for other writers."""
    session = resource.rm.session(resource.rmid)
    connection: PymysqlConnection = session.pymysql
    if not connection.access.work.used:
        session.execution_options(isolation_level="READ COMMITTED")
    return connection


def asked(connection: Any, query: str) -> tuple[tuple[Any, ...], ...]:
    """The rows that a query finds."""
    with connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(cursor.fetchall())


def check_version(connection: Any, name: str, schema: str, table: str) -> None:
    """PipelineError: another version has made the table; `schema` and `table` as in a statement."""
    found = asked(
        connection,
        "SELECT column_default FROM information_schema.columns "  # noqa: S608 — literals
        f"WHERE table_schema = {schema} AND table_name = {table} AND column_name = 'version'",
    )
    refuse_other_version(name, found[0][0] if found else None)


def literal(value: object) -> str:
    """The value in a statement, under the session's settings: only the quote has to be doubled."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"X'{bytes(value).hex()}'"
    return "'" + text_of(value).replace("'", "''") + "'"


def text_of(value: object) -> str:
    """The value as text that the server reads as the same."""
    if isinstance(value, dt.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(dt.UTC).replace(tzinfo=None)
        return value.isoformat(sep=" ")
    if isinstance(value, dict | list):
        return json.dumps(value, default=str, ensure_ascii=False)
    return str(value)


def quoted(name: str) -> str:
    """A column's name in a statement."""
    return '"' + name.replace('"', '""') + '"'
