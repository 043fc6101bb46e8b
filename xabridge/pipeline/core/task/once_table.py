"""The table of the rows that were written: what makes a backfill write each row once.

    CREATE TABLE enriched_once (id text PRIMARY KEY, written_at timestamptz NOT NULL DEFAULT now())

A row is identified by a value, like the id of its message. The value goes into the table under the branch that writes
the row, so both are committed, or neither. A value that is there was written before: the row is left out. Queries that
share the table share its values, like a live query and a backfill.

If another transaction has just written a value, PostgreSQL waits for its outcome. A batch that waits for another one
holds values itself, for which the other may wait. So it waits for a bounded time, then the attempt fails. One batch
must not have a value in two tasks, because the second would wait for the decision, and the decision for it. So rows of
one value come to one task (`xabridge.pipeline.spark.backfill.together`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from rm_db.address import Address
from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tm.resources import Resource
    from xabridge.pipeline.core.values import Once

DDL: Final = "CREATE TABLE IF NOT EXISTS {} (id text PRIMARY KEY, written_at timestamptz NOT NULL DEFAULT now())"
_LOCK: Final = 0x786162_6F6E6365
"""Two that create the table at the same time take this lock one after the other."""


def make_table(url: str, name: str) -> None:
    """Makes the table where it is missing. psycopg.Error."""
    with psycopg.connect(Address.parse(url).url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,):
            return
        connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        connection.execute(sql.SQL(DDL).format(_identifier(name)))


def claim(resource: Resource, once: Once, values: Iterable[str], orphans: Callable[[], int]) -> frozenset[str]:
    """Adds the values under the branch that is at work, and returns those that were not there. `orphans` rolls back
    what earlier attempts at this task have prepared, and returns how many branches these were. BatchRefused: another
    transaction holds one of them. psycopg.Error."""
    cursor = resource.rm.session(resource.rmid).psycopg.cursor()
    # In their order, so that two writers don't deadlock.
    statement = sql.SQL("INSERT INTO {} (id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING RETURNING id").format(
        _identifier(once.values.table)
    )
    given = [sorted(set(values))]
    cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(round(once.values.lock_timeout_s * 1000)))
    cursor.execute("SAVEPOINT xabridge_once")
    try:
        cursor.execute(statement, given)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        cursor.execute("ROLLBACK TO SAVEPOINT xabridge_once")
        if not orphans():
            raise BatchRefused(
                f"{once.values.table}: rows with the same {once.column} are just being written by another batch, or by "
                f"another task of this one: {error}"
            ) from error
        cursor.execute(statement, given)
    found = frozenset(row[0] for row in cursor.fetchall())
    cursor.execute("RELEASE SAVEPOINT xabridge_once")
    return found


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))
