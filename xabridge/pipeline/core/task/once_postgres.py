"""The table of the rows that were written, in PostgreSQL (`xabridge.pipeline.core.task.once_table`).

CREATE TABLE enriched_once (id text PRIMARY KEY, written_at timestamptz NOT NULL DEFAULT now(), version …)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from rm_db.postgres.database import connect
from xabridge.pipeline.core.task.once_table import key_of, refused
from xabridge.pipeline.core.task.staging_table import check_version
from xabridge.pipeline.core.task.table_version import COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tm.resources import Resource
    from xabridge.pipeline.core.values import OnceSettings

DDL: Final = (
    f"CREATE TABLE IF NOT EXISTS {{}} (id text PRIMARY KEY, written_at timestamptz NOT NULL DEFAULT now(), {COLUMN})"
)
_LOCK: Final = 0x786162_6F6E6365
"""Two that create the table at the same time take this lock one after the other."""
_FITS: Final = """
SELECT a.atttypid IN ('text'::regtype, 'varchar'::regtype) AND coalesce(c.collisdeterministic, true) AND EXISTS (
    SELECT FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indnkeyatts = 1
    AND i.indkey[0] = a.attnum AND i.indpred IS NULL)
FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(%s) AND a.attname = 'id' AND NOT a.attisdropped"""
"""Whether the column has every value once, and tells each from every other."""


class PostgresOnce:
    """Such tables of PostgreSQL."""

    def statement(self, name: str) -> str:
        return DDL.format(name)

    def make(self, url: str, name: str) -> bool:
        with connect(url, autocommit=True) as connection:
            if connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,):
                fits = connection.execute(_FITS, [name]).fetchone() == (True,)
                if fits:
                    check_version(connection, name)
                return fits
            connection.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
            connection.execute(sql.SQL(DDL).format(_identifier(name)))
        return True

    def claim(
        self, resource: Resource, once: OnceSettings, values: Iterable[str], orphans: Callable[[], int]
    ) -> frozenset[str]:
        cursor = resource.rm.session(resource.rmid).psycopg.cursor()
        statement = sql.SQL("INSERT INTO {} (id) SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING RETURNING id").format(
            _identifier(once.values.table)
        )
        keys = {key_of(value): value for value in values}
        given = [sorted(keys)]  # in their order, so that two writers don't deadlock
        cursor.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(round(once.values.lock_timeout_s * 1000)))
        cursor.execute("SAVEPOINT xabridge_once")

        try:
            cursor.execute(statement, given)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
            cursor.execute("ROLLBACK TO SAVEPOINT xabridge_once")
            if not orphans():
                raise refused(once, error) from error
            cursor.execute(statement, given)
        found = frozenset(keys[row[0]] for row in cursor.fetchall())
        cursor.execute("RELEASE SAVEPOINT xabridge_once")
        return found


def _identifier(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


TABLE: Final = PostgresOnce()
