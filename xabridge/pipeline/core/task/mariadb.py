"""MariaDB and MySQL as the database of a sink: a `xabridge.pipeline.core.task.databases.Database`.

Rows are written by INSERTs of many rows, because the server has no COPY, and LOAD DATA LOCAL needs a setting that many
servers refuse. Each session first sets what makes the server refuse what it would otherwise change without a word:
values that don't fit are errors, 0 is no request for a new number, times are UTC. The names of tables and columns are
quoted as in standard SQL.

Rows by key are staged as JSON in a table of the same database. The driver reads them there, and writes them in their
order by INSERT … ON DUPLICATE KEY UPDATE, which takes a key that comes twice.

    xabridge_staged
        gtrid, attempt, number    whose rows they are, and their order; `attempt` is random
        cells                     the values: JSON, octets as a list with their hexadecimal digits
        version                   `xabridge.pipeline.core.task.table_version`

MariaDB binds a prepared branch to the session that prepared it. The driver completes the branches of all tasks, so that
a task ends its session when its branch is prepared.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import pymysql

from rm_db.mariadb.connection import failure_of, is_loss
from xa import XaError
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.retry import OUTAGE_CODES
from xabridge.pipeline.core.task import once_mariadb
from xabridge.pipeline.core.task.databases import DatabaseFault, StagedRowsLost
from xabridge.pipeline.core.task.mariadb_session import (
    LOCKED,
    asked,
    check_version,
    connect,
    literal,
    quoted,
    session_of,
    settings_of,
    text_of,
)
from xabridge.pipeline.core.task.staged_rows import StagedCounts, in_order
from xabridge.pipeline.core.task.table_version import COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rm_db import MariaResource
    from rm_db.sessions.pymysql_connection import PymysqlConnection
    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.task.databases import OnceTable
    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import TableTarget

NAME: Final = "xabridge_staged"
DDL: Final = (
    f"CREATE TABLE IF NOT EXISTS {NAME} (gtrid varbinary(64) NOT NULL, attempt varchar(64) CHARACTER SET ascii "
    "COLLATE ascii_bin NOT NULL, number bigint NOT NULL, cells longtext CHARACTER SET utf8mb4 NOT NULL, "
    f"{COLUMN}, PRIMARY KEY (gtrid, attempt, number)) ENGINE = InnoDB"
)
SENT: Final = 1 << 20
"""So many characters an INSERT has, or a row more."""
PAGE: Final = 5000
"""So many staged rows are read at a time."""
_ROW_ERRORS: Final = frozenset(
    {1022, 1048, 1062, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1451, 1452, 1526, 1557, 1586, 1644, 1690}
    | {3819, 4025, 4078}
)
"""A value does not fit its column, or a constraint or a trigger refuses it."""
_FULL: Final = frozenset({1040, 1203, 1226})
"""The server has no connection left."""
_IN_THE_WAY: Final = frozenset({LOCKED, 1213, 1020})
"""A lock wait timeout, a deadlock, a row that was changed since the snapshot."""


def make_table(connection: pymysql.Connection[Any]) -> None:
    """Makes the table for staged rows where it is missing. pymysql.MySQLError; PipelineError: it is another
    version's."""
    with connection.cursor() as cursor:
        there = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %s"
        cursor.execute(there, (NAME,))
        if cursor.fetchone() is None:
            cursor.execute(DDL)
            return
    check_version(connection, NAME, "DATABASE()", literal(NAME))


class MariaWriter:
    """Writes one table under one branch."""

    def __init__(self, connection: PymysqlConnection, target: TableTarget, orphans: Callable[[], int]) -> None:
        self._connection = connection
        self._target = target
        self._orphans = orphans
        begin(connection, target)

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows of Python values. Errors are PyMySQL's. BatchRefused: another transaction has locked rows, or a row is
        longer than the server takes."""
        for statement in inserts(self._connection, self._target.table, columns, rows, ""):
            try:
                self._connection.insert(statement)
            except pymysql.MySQLError as error:
                if failure_of(error).number != LOCKED:
                    raise
                if not self._orphans():  # the statement alone was undone
                    raise BatchRefused(
                        "a transaction other than an earlier attempt of this task has locked "
                        f"{self._target.table}: {error}"
                    ) from error
                self._connection.insert(statement)


def begin(connection: PymysqlConnection, target: TableTarget) -> None:
    """Sets what rows for `target` need."""
    connection.query(settings_of(target.lock_timeout_s))


def inserts(
    connection: Any, table: str, columns: Sequence[str], rows: Iterable[Sequence[object]], behind: str
) -> Iterator[str]:
    """The statements that insert the rows, with `behind` at their end. BatchRefused: a row is longer than the server
    takes."""
    most = int(asked(connection, "SELECT @@max_allowed_packet")[0][0]) - (1 << 10)
    head = f"INSERT INTO {table} ({', '.join(map(quoted, columns))}) VALUES "  # noqa: S608 — options have checked it
    fixed = len(head.encode()) + len(behind.encode()) + 1
    some: list[str] = []
    octets = 0
    for row in rows:
        one = f"({','.join(map(literal, row))})"
        length = len(one.encode()) + 1
        if fixed + length > most:
            raise BatchRefused(
                f"{table}: a row has {length} octets, and the server takes {most} (max_allowed_packet)", of_rows=True
            )

        if some and (octets + length > SENT or fixed + octets + length > most):
            yield head + ",".join(some) + behind
            some, octets = [], 0
        some.append(one)
        octets += length
    if some:
        yield head + ",".join(some) + behind


class MariaStaging:
    """The rows that one attempt stages in one database."""

    def __init__(self, url: str, gtrid: bytes, place: int, attempt: str) -> None:
        self._url = url
        self._gtrid = gtrid
        self._counts = StagedCounts(place, attempt)
        self._connection: pymysql.Connection[Any] | None = None

    def add(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        attempt, number = self._counts.begin(target, columns)
        connection = self._opened()
        cells = [(self._gtrid, attempt, at, _cells(row)) for at, row in enumerate(rows, number)]
        for statement in inserts(connection, NAME, ("gtrid", "attempt", "number", "cells"), cells, ""):
            connection.query(statement)
        self._counts.set(target, columns, number + len(cells))

    def _opened(self) -> pymysql.Connection[Any]:
        if self._connection is None:
            self._connection = connect(self._url)
            make_table(self._connection)
        return self._connection

    def commit(self) -> tuple[StagedRows, ...]:
        if self._connection is not None:
            self._connection.commit()
        self.close()
        return self._counts.staged()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(pymysql.MySQLError):
                connection.close()


def _cells(row: Sequence[object]) -> str:
    return json.dumps([_cell(value) for value in row], ensure_ascii=False)


def _cell(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return [bytes(value).hex()]
    return text_of(value)


def _values(cells: str) -> list[object]:
    return [bytes.fromhex(one[0]) if isinstance(one, list) else one for one in json.loads(cells)]


# --- the driver's side ------------------------------------------------------------------------------------------------
def upsert(connection: PymysqlConnection, gtrid: bytes, staged: Sequence[StagedRows]) -> None:
    """Upserts what was staged, under the branch of `connection`. pymysql.MySQLError, StagedRowsLost, BatchRefused."""
    for one in in_order(staged):
        begin(connection, one.target)
        behind = _on_duplicate(one.target, one.columns)
        found = _staged(connection, gtrid, one)
        for statement in inserts(connection, one.target.table, one.columns, found, behind):
            connection.insert(statement)


def _staged(connection: PymysqlConnection, gtrid: bytes, staged: StagedRows) -> Iterable[list[object]]:
    found: list[list[object]] = []
    while True:
        page = asked(
            connection,
            f"SELECT cells FROM {NAME} WHERE gtrid = {literal(gtrid)} AND attempt = {literal(staged.attempt)} "  # noqa: S608 — literals
            f"AND number >= {len(found)} ORDER BY number LIMIT {PAGE}",
        )
        found += [_values(cells) for (cells,) in page]
        if len(page) < PAGE:
            break
    if len(found) != staged.rows:
        raise StagedRowsLost(f"{staged.target.table}: {staged.rows} rows were staged, but only {len(found)} are there")
    return found


def _on_duplicate(target: TableTarget, columns: Sequence[str]) -> str:
    if not target.key:
        return ""
    change = target.update
    if not change:
        others = [name for name in columns if name not in target.key]
        pairs = [f"{quoted(name)} = VALUES({quoted(name)})" for name in others]
        key = quoted(target.key[0])
        change = ", ".join(pairs) or f"{key} = {key}"
    return f" ON DUPLICATE KEY UPDATE {change}"


class Maria:
    """MariaDB and MySQL."""

    errors: tuple[type[Exception], ...] = (pymysql.MySQLError,)
    once: OnceTable = once_mariadb.TABLE

    def fault(self, error: Exception) -> DatabaseFault:
        if isinstance(error, XaError):
            return DatabaseFault(outage=error.code in OUTAGE_CODES)
        failure = failure_of(error)
        outage = is_loss(failure) or failure.number in _FULL
        return DatabaseFault(failure.number in _ROW_ERRORS, outage, failure.number in _IN_THE_WAY)

    def writer(self, resource: Resource, target: TableTarget, orphans: Callable[[], int]) -> MariaWriter:
        return MariaWriter(session_of(resource), target, orphans)

    def staging(self, url: str, gtrid: bytes, place: int, attempt: str) -> MariaStaging:
        return MariaStaging(url, gtrid, place, attempt)

    def prepared(self, resource: Resource, xid: Xid) -> None:
        cast("MariaResource", resource.rm).let_go(xid)

    def before_upsert(self, resource: Resource, url: str, gtrid: bytes, pipeline: bytes) -> None:
        """Deletes what earlier global transactions of the pipeline have staged. They are decided, and their rows are in
        a branch; or they never will be. It is no part of the branch, whose locks a later deletion would wait for."""
        del resource
        connection = connect(url)
        try:
            with connection.cursor() as cursor:
                old = f"gtrid >= {literal(pipeline)} AND gtrid < {literal(gtrid)}"
                cursor.execute(f"DELETE FROM {NAME} WHERE {old}")  # noqa: S608 — literals
            connection.commit()
        except pymysql.MySQLError as error:
            if failure_of(error).number != LOCKED:  # by an attempt that is still at work: the next batch deletes it
                raise
        finally:
            connection.close()

    def upsert(self, resource: Resource, gtrid: bytes, staged: Sequence[StagedRows], pipeline: bytes) -> None:
        del pipeline
        upsert(session_of(resource), gtrid, staged)


DATABASE: Final = Maria()
