"""The staging table in PostgreSQL: rows by key are staged by the tasks and upserted by the driver, as if they were
written one after the other.

Tasks can't upsert the same key under branches of their own: the second task would wait for the row lock of the first,
whose branch is prepared and keeps the lock until the decision. So no task upserts:

 1. Each attempt copies its rows into the staging table, in the database of the target. It does so in a transaction of
    its own, which it commits.
 2. When every task has reported, the driver upserts the rows of the reported attempts, in the order of the tasks and of
    the rows of each. It does so under one branch for each database, which it prepares. Then it decides.
 3. That branch also deletes what its pipeline has staged for this global transaction and for earlier ones, including
    the rows of attempts that Spark did not accept.

    xabridge_staged           unlogged: where a crash of the server empties it, the driver finds rows missing and
                              refuses the batch
        gtrid, attempt        whose rows they are; `attempt` is random
        place, number         the order: which task's, and which of its rows
        cells                 the values as text, in the order of the columns that the attempt reports
        version               `xabridge.pipeline.core.task.table_version`
"""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from rm_db.postgres.database import connect
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.task.databases import StagedRowsLost
from xabridge.pipeline.core.task.staged_rows import StagedCounts, in_order
from xabridge.pipeline.core.task.table_version import COLUMN, refuse_other_version

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import TableTarget

NAME: Final = "xabridge_staged"
DDL: Final = (
    f"CREATE UNLOGGED TABLE IF NOT EXISTS {NAME} "
    "(gtrid bytea NOT NULL, attempt text NOT NULL, place bigint NOT NULL, number bigint NOT NULL, "
    f"cells text[] NOT NULL, {COLUMN}); "
    f"CREATE INDEX IF NOT EXISTS {NAME}_gtrid ON {NAME} (gtrid, attempt)"
)
_DEFAULT: Final = """
SELECT pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = to_regclass(%s) AND a.attname = 'version' AND NOT a.attisdropped"""
_LOCK: Final = 0x78616272
"""The advisory lock under which the table is made, so that several processes that make it at once don't fail."""


def make_table(url: str) -> None:
    """Makes the table for staged rows where it is missing. psycopg.Error; PipelineError: it is another version's."""
    with connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass(%s) IS NOT NULL", [NAME]).fetchone() == (True,):
            check_version(connection, NAME)
            return
        connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        connection.execute(DDL)


def check_version(connection: psycopg.Connection[Any], name: str) -> None:
    """PipelineError: another version has made the table."""
    found = connection.execute(_DEFAULT, [name]).fetchone()
    refuse_other_version(name, None if found is None else found[0])


class PostgresStaging:
    """The rows that one attempt stages in one database."""

    def __init__(self, url: str, gtrid: bytes, place: int, attempt: str) -> None:
        self._url = url
        self._gtrid = gtrid
        self._place = place
        self._counts = StagedCounts(place, attempt)
        self._connection: psycopg.Connection[Any] | None = None

    def add(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        attempt, number = self._counts.begin(target, columns)
        statement = sql.SQL("COPY {} (gtrid, attempt, place, number, cells) FROM STDIN").format(sql.Identifier(NAME))
        with self._opened().cursor().copy(statement) as copying:
            for row in rows:
                copying.write_row((self._gtrid, attempt, self._place, number, list(map(_text, row))))
                number += 1
        self._counts.set(target, columns, number)

    def _opened(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            make_table(self._url)
            self._connection = connect(self._url)
        return self._connection

    def commit(self) -> tuple[StagedRows, ...]:
        if self._connection is not None:
            self._connection.commit()
        self.close()
        return self._counts.staged()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


# --- the driver's side ------------------------------------------------------------------------------------------------
def upsert(connection: Any, gtrid: bytes, staged: Sequence[StagedRows], pipeline: bytes) -> None:
    """Upserts what was staged (rows without a key are inserted), in the transaction of `connection`, and deletes what
    gtrids that begin with `pipeline` have staged. psycopg.Error, StagedRowsLost; PipelineError: the target has no such
    column."""
    cursor = connection.cursor()
    for (target, columns), group in groupby(in_order(staged), key=lambda one: (one.target, one.columns)):
        some = list(group)
        _Upsert(cursor, gtrid, target, columns, some).run()
    # Rows that another branch is about to delete are skipped: it is decided, and not committed yet.
    cursor.execute(
        f"DELETE FROM {NAME} WHERE ctid = ANY (ARRAY (SELECT ctid FROM {NAME} "  # noqa: S608 — a constant
        "WHERE gtrid >= %s AND gtrid < %s FOR UPDATE SKIP LOCKED))",
        [pipeline, pipeline + b"\xff" * 64],
    )


class _Upsert:
    """The rows of consecutive tasks for one target."""

    def __init__(
        self, cursor: Any, gtrid: bytes, target: TableTarget, columns: tuple[str, ...], staged: Sequence[StagedRows]
    ) -> None:
        self._cursor = cursor
        self._target = target
        self._columns = columns
        self._rows = sum(one.rows for one in staged)
        self._name = sql.SQL(target.table)  # options have checked that it is a name
        attempts = [one.attempt for one in staged]
        self._where = sql.SQL("gtrid = {} AND attempt = ANY ({})").format(gtrid, attempts)

    def run(self) -> None:
        """Upserts all rows by one statement. PostgreSQL refuses that where a key occurs twice; then row by row."""
        self._check()
        self._cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(round(self._target.lock_timeout_s * 1000)))
        types = self._types()
        values = sql.SQL(", ").join(
            sql.SQL("cells[{}]::{}").format(place, sql.SQL(kind)) for place, kind in enumerate(types, 1)
        )
        self._cursor.execute("SAVEPOINT xabridge")

        try:
            self._cursor.execute(
                sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} ORDER BY {} {}").format(
                    self._name,
                    self._names,
                    values,
                    sql.Identifier(NAME),
                    self._where,
                    self._order(types),
                    self._conflict,
                )
            )
        except psycopg.errors.CardinalityViolation:
            self._cursor.execute("ROLLBACK TO SAVEPOINT xabridge")
            self._row_by_row(types)
        self._cursor.execute("RELEASE SAVEPOINT xabridge")

    def _check(self) -> None:
        """StagedRowsLost: rows are missing. The table is unlogged, so nothing else would notice that."""
        self._cursor.execute(sql.SQL("SELECT count(*) FROM {} WHERE {}").format(sql.Identifier(NAME), self._where))
        (found,) = self._cursor.fetchone()
        if found != self._rows:
            raise StagedRowsLost(f"{self._target.table}: {self._rows} rows were staged, but only {found} are there")

    def _row_by_row(self, types: Sequence[str]) -> None:
        values = sql.SQL(", ").join(
            sql.SQL("xabridge_row.cells[{}]::{}").format(place, sql.SQL(kind)) for place, kind in enumerate(types, 1)
        )
        self._cursor.execute(
            sql.SQL(
                "DO $xabridge$ DECLARE xabridge_row record; BEGIN "
                "FOR xabridge_row IN SELECT cells FROM {} WHERE {} ORDER BY {} "
                "LOOP INSERT INTO {} ({}) VALUES ({}) {}; END LOOP; END $xabridge$"
            ).format(
                sql.Identifier(NAME), self._where, self._order(types), self._name, self._names, values, self._conflict
            )
        )

    @property
    def _names(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self._columns))

    def _order(self, types: Sequence[str]) -> sql.Composed:
        """Rows of one key in their own order; keys in the order of the index, so that two writers don't deadlock."""
        keys = [self._columns.index(name) for name in self._target.key]
        cells = (sql.SQL("cells[{}]::{}").format(place + 1, sql.SQL(types[place])) for place in keys)
        return sql.SQL(", ").join([*cells, sql.SQL("place"), sql.SQL("number")])

    @property
    def _conflict(self) -> sql.Composable:
        if not self._target.key:
            return sql.SQL("")
        key = sql.SQL(", ").join(map(sql.Identifier, self._target.key))
        return sql.SQL("ON CONFLICT ({}) DO {}").format(key, self._change())

    def _change(self) -> sql.Composable:
        if self._target.update:
            return sql.SQL("UPDATE SET {}").format(sql.SQL(self._target.update))
        others = [name for name in self._columns if name not in self._target.key]
        if not others:
            return sql.SQL("NOTHING")
        pairs = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(pairs))

    def _types(self) -> list[str]:
        """The types of the columns, without their lengths. A text that is too long is refused then, because it is
        assigned to the column; a cast to the full type would cut it off."""
        self._cursor.execute(
            "SELECT attname, format_type(atttypid, -1) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [self._target.table],
        )
        known = dict(self._cursor.fetchall())
        missing = [name for name in self._columns if name not in known]
        if missing:
            raise PipelineError(f"{self._target.table} has no column {', '.join(missing)}")
        return [known[name] for name in self._columns]


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "\\x" + bytes(value).hex()
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=_in_json)
    return str(value)


def _in_json(value: object) -> str:
    """Octets as Spark's to_json has them; dates and decimals as text."""
    return b64encode(value).decode("ascii") if isinstance(value, (bytes, bytearray, memoryview)) else str(value)
