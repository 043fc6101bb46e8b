"""Parts of statements that each database writes in its own way, and what tables lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import inspect

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table
    from sqlalchemy.dialects import postgresql, sqlite

SECONDS_1970: Final = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "mysql": "UNIX_TIMESTAMP(NOW(6))",
    "mariadb": "UNIX_TIMESTAMP(NOW(6))",
    "oracle": "((CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - DATE '1970-01-01') * 86400)",
    "mssql": "(DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) / 1000000.0)",
}
"""Dialect → the present time by the database's clock, in seconds since 1970."""


def upsert(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can have an ON CONFLICT; LookupError: the dialect has none."""
    if dialect == "sqlite":
        from sqlalchemy.dialects import sqlite  # noqa: PLC0415 — a process uses one dialect

        return sqlite.insert(table)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # noqa: PLC0415

        return postgresql.insert(table)
    raise LookupError(f"{dialect} has no ON CONFLICT")


def missing_columns(connection: Connection, table: Table) -> str:
    """The columns that `table` should have and lacks in the database, sorted, with commas; "" when it has all."""
    present = {column["name"] for column in inspect(connection).get_columns(table.name, schema=table.schema)}
    return ", ".join(sorted({column.name for column in table.columns} - present))
