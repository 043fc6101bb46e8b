"""The table of the rows that were written, in MariaDB or MySQL (`xabridge.pipeline.core.task.once_table`).

    CREATE TABLE enriched_once (id varbinary(576) PRIMARY KEY, written_at timestamp(6) …, version …)

`id` has the octets of the value in UTF-8, because the server takes texts for equal that differ in capitals, accents or
spaces at their end.

The server has no INSERT that leaves out what is there and says which rows these were, and no savepoint is needed:

 1. A SELECT without locks finds the values that were committed. The branch reads at READ COMMITTED, so it sees each of
    them at once.
 2. One INSERT adds the others, in their order. It waits for a transaction that holds one of them. If that is
    committed, the server refuses the whole INSERT as a duplicate, and undoes it alone: go on with 1. The value is found
    now, so at most as many rounds are made as there are values.

A deadlock makes the server roll back the branch of one of the two; that attempt fails, and the other goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pymysql

from rm_db.mariadb.connection import failure_of
from xabridge.pipeline.core.task.mariadb_session import (
    LOCKED,
    asked,
    check_version,
    connect,
    literal,
    quoted,
    session_of,
    settings_of,
)
from xabridge.pipeline.core.task.once_table import MOST, key_of, refused
from xabridge.pipeline.core.task.table_version import COLUMN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rm_db.sessions.pymysql_connection import PymysqlConnection
    from tm.resources import Resource
    from xabridge.pipeline.core.values import OnceSettings

DDL: Final = (
    f"CREATE TABLE IF NOT EXISTS {{}} (id varbinary({MOST}) NOT NULL PRIMARY KEY, "
    f"written_at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), {COLUMN}) ENGINE = InnoDB"
)
TOGETHER: Final = 200
"""Values that are asked for, and added, by one statement: even the longest are no quarter of a megabyte."""
_DUPLICATE: Final = 1062
_FITS: Final = """
SELECT t.engine, c.data_type, c.column_key, (
    SELECT count(*) FROM information_schema.statistics s
    WHERE s.table_schema = t.table_schema AND s.table_name = t.table_name AND s.index_name = 'PRIMARY')
FROM information_schema.tables t LEFT JOIN information_schema.columns c
    ON c.table_schema = t.table_schema AND c.table_name = t.table_name AND c.column_name = 'id'
WHERE t.table_schema = {schema} AND t.table_name = {table}"""


class MariaOnce:
    """Such tables of MariaDB and MySQL."""

    def statement(self, name: str) -> str:
        return DDL.format(name)

    def make(self, url: str, name: str) -> bool:
        *schema, table = name.split(".")
        names = {"schema": literal(schema[0]) if schema else "DATABASE()", "table": literal(table)}
        with connect(url) as connection:
            found = asked(connection, _FITS.format(**names))
            if found:
                fits = bool(found[0] == ("InnoDB", "varbinary", "PRI", 1))
                if fits:
                    check_version(connection, name, **names)
                return fits
            with connection.cursor() as cursor:
                cursor.execute(DDL.format(_quoted(name)))
        return True

    def claim(
        self, resource: Resource, once: OnceSettings, values: Iterable[str], orphans: Callable[[], int]
    ) -> frozenset[str]:
        connection = session_of(resource)
        connection.query(settings_of(once.values.lock_timeout_s))
        keys = {key_of(value).encode("utf-8"): value for value in values}
        ordered = sorted(keys)  # so that two writers don't deadlock
        added: list[bytes] = []
        for first in range(0, len(ordered), TOGETHER):
            added += _added(connection, once, ordered[first : first + TOGETHER], orphans)
        return frozenset(keys[key] for key in added)


def _added(
    connection: PymysqlConnection, once: OnceSettings, keys: Sequence[bytes], orphans: Callable[[], int]
) -> Sequence[bytes]:
    """Adds those of the keys that are not there, and returns them."""
    table = _quoted(once.values.table)
    missing = _missing(connection, table, keys)
    while missing:
        rows = ",".join(f"({literal(key)})" for key in missing)
        try:
            connection.insert(f"INSERT INTO {table} (id) VALUES {rows}")  # noqa: S608 — literals
        except pymysql.MySQLError as error:
            number = failure_of(error).number
            if number == LOCKED:
                if not orphans():  # the statement alone was undone
                    raise refused(once, error) from error
            elif number != _DUPLICATE:
                raise

            left = _missing(connection, table, missing)
            if number == _DUPLICATE and len(left) == len(missing):
                raise  # by another constraint
            missing = left
        else:
            break
    return missing


def _missing(connection: Any, table: str, keys: Sequence[bytes]) -> list[bytes]:
    """The keys that are not there."""
    given = ",".join(map(literal, keys))
    there = {bytes(key) for (key,) in asked(connection, f"SELECT id FROM {table} WHERE id IN ({given})")}  # noqa: S608 — literals
    return [key for key in keys if key not in there]


def _quoted(name: str) -> str:
    return ".".join(map(quoted, name.split(".")))


TABLE: Final = MariaOnce()
