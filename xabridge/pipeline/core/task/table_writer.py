"""TableWriter: writes rows into a table of PostgreSQL, under a branch, by COPY. (For rows by key see
`xabridge.pipeline.core.task.staging_table`.)

An attempt that died may have prepared rows whose locks this attempt would wait for. So each write has a savepoint and
waits for locks a bounded time. After that, the branches that earlier attempts at the same task have prepared are rolled
back, and the write is repeated.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from psycopg import sql

from xabridge.pipeline.core.errors import BatchRefused, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from xabridge.pipeline.core.values import TableTarget

COPIED: Final = 1 << 20
"""Octets that are given to COPY at a time."""
_CELL: Final = re.compile(r'(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|\Z)')


class Connection(Protocol):
    """The part of psycopg's connection that a TableWriter needs."""

    def cursor(self) -> Any:
        """A cursor."""
        ...


class TableWriter:
    """Writes one table under one branch. `orphans` rolls back the branches that earlier attempts have prepared, and
    returns how many these were."""

    def __init__(self, connection: Connection, target: TableTarget, orphans: Callable[[], int]) -> None:
        self._connection = connection
        self._target = target
        self._orphans = orphans
        self._name = sql.SQL(target.table)  # options have checked that it is a name
        self._execute(sql.SQL("SET LOCAL lock_timeout = {}").format(round(target.lock_timeout_s * 1000)))

    def csv(self, columns: Sequence[str], octets: bytes) -> None:
        """Rows in CSV form."""
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
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(self._name, names)
        kept = list(rows)

        def copy(cursor: Any) -> None:
            with cursor.copy(statement) as copying:
                for row in kept:
                    copying.write_row(row)

        self._write(copy)

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
                    f"a transaction other than an earlier attempt of this task has locked {self._target.table}: {error}"
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
            raise PipelineError(f"the data at {at} are not CSV: {text[at : at + 20]!r}")
        quoted, plain, end = found.groups()
        row.append(quoted.replace('""', '"') if quoted is not None else plain or None)
        at = found.end()
        if end != ",":
            rows.append(row)
            row = []

    if row:  # the text ends behind a comma
        rows.append([*row, None])
    return rows
