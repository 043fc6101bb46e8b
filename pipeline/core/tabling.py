"""Tabling: rows into a table of PostgreSQL, under a branch: by COPY, or with a key by INSERT … ON CONFLICT.

An attempt that is gone may have left rows behind, prepared, that this one's would wait for. Each write stands behind a
savepoint and waits for locks a bounded time; then what earlier attempts at the same task have prepared is rolled back,
and the write is made again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from psycopg import sql

from pipeline.core.errors import BatchRefused, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pipeline.core.values import TableTarget

COPIED: Final = 1 << 20
"""Octets that are given to COPY at a time."""
_CELL: Final = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|\Z)')
UPSERTED: Final = 5_000
"""Rows of one INSERT."""


class Connection(Protocol):
    """What is needed of psycopg's connection."""

    def cursor(self) -> Any:
        """A cursor."""
        ...


class Table:
    """One table under one branch. `orphans` rolls back what earlier attempts have prepared, and tells how many."""

    def __init__(self, connection: Connection, target: TableTarget, orphans: Callable[[], int]) -> None:
        self._connection = connection
        self._target = target
        self._orphans = orphans
        self._types: dict[str, str] = {}
        self._name = sql.Identifier(*target.table.split("."))
        self._execute(sql.SQL("SET LOCAL lock_timeout = {}").format(round(target.lock_timeout_s * 1000)))

    def csv(self, columns: Sequence[str], octets: bytes) -> None:
        """Rows in CSV form."""
        if self._target.key:
            self.rows(columns, csv_rows(octets.decode("utf-8")))
            return
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self._name, names)

        def copy(cursor: Any) -> None:
            with cursor.copy(statement) as copying:
                for first in range(0, len(octets), COPIED):
                    copying.write(octets[first : first + COPIED])

        self._write(copy)

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows of Python values."""
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        if self._target.key:
            self._upsert(columns, names, list(rows))
            return
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name, names)
        kept = list(rows)

        def copy(cursor: Any) -> None:
            with cursor.copy(statement) as copying:
                for row in kept:
                    copying.write_row(row)

        self._write(copy)

    def _upsert(self, columns: Sequence[str], names: sql.Composed, rows: list[Sequence[object]]) -> None:
        """The last row of a key counts, as if they were written one after the other."""
        key = self._target.key
        missing = [name for name in key if name not in columns]
        if missing:
            raise PipelineError(
                f"{self._target.table}: the rows have no column {', '.join(missing)}, which is in the key"
            )
        places = [columns.index(name) for name in key]
        last = {tuple(row[place] for place in places): row for row in rows}
        ordered = sorted(last.values(), key=lambda row: tuple(str(row[place]) for place in places))  # against deadlocks
        types = self._column_types(columns)
        arrays = sql.SQL(", ").join(sql.SQL("%s::text[]::{}[]").format(sql.SQL(kind)) for kind in types)
        statement = sql.SQL("INSERT INTO {} ({}) SELECT * FROM unnest({}) ON CONFLICT ({}) DO {}").format(
            self._name, names, arrays, sql.SQL(", ").join(map(sql.Identifier, key)), self._change(columns)
        )
        for first in range(0, len(ordered), UPSERTED):
            some = ordered[first : first + UPSERTED]
            values = [[_text(row[place]) for row in some] for place in range(len(columns))]
            self._write(lambda cursor, values=values: cursor.execute(statement, values))  # type: ignore[misc]

    def _change(self, columns: Sequence[str]) -> sql.Composable:
        if self._target.update:
            return sql.SQL("UPDATE SET {}").format(sql.SQL(self._target.update))
        others = [name for name in columns if name not in self._target.key]
        if not others:
            return sql.SQL("NOTHING")
        pairs = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
        return sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(pairs))

    def _column_types(self, columns: Sequence[str]) -> list[str]:
        if not self._types:
            cursor = self._connection.cursor()
            cursor.execute(
                "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [self._name.as_string()],
            )
            self._types = dict(cursor.fetchall())
        missing = [name for name in columns if name not in self._types]
        if missing:
            raise PipelineError(f"{self._target.table} has no column {', '.join(missing)}")
        return [self._types[name] for name in columns]

    # --- writing ------------------------------------------------------------------------------------------------
    def _execute(self, statement: sql.Composable | str) -> None:
        self._connection.cursor().execute(statement)

    def _write(self, write: Callable[[Any], None]) -> None:
        self._execute("SAVEPOINT xabridge")
        try:
            write(self._connection.cursor())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            self._execute("ROLLBACK TO SAVEPOINT xabridge")
            if not self._orphans():
                raise BatchRefused(
                    f"{self._target.table} is locked, and by no earlier attempt at this task: {error}"
                ) from error
            write(self._connection.cursor())
        self._execute("RELEASE SAVEPOINT xabridge")


def csv_rows(text: str) -> list[list[str | None]]:
    """The rows in CSV as PostgreSQL has it: what is empty and not quoted is null."""
    rows: list[list[str | None]] = []
    row: list[str | None] = []
    at = 0
    while at < len(text):
        found = _CELL.match(text, at)
        if found is None:
            raise PipelineError(f"what stands at {at} is no CSV: {text[at : at + 20]!r}")
        quoted, plain, end = found.groups()
        row.append(quoted.replace('""', '"') if quoted is not None else plain or None)
        at = found.end()
        if end != ",":
            rows.append(row)
            row = []
    if row:  # the text ends behind a comma
        rows.append([*row, None])
    return rows


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "\\x" + bytes(value).hex()
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str)
    return str(value)
