"""A SQL store in PostgreSQL.

Its tables are in the first schema of the search path. An advisory lock of the connection that writes keeps others out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from dtx.store.contract import StoreError, StoreLocked
from dtx.store.sql.database import Transactions, UnknownSpace, close_all
from xa.sql import postgres
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

    from dtx.store.sql.database import Space

_LOCK: Final = "SELECT pg_advisory_lock(hashtextextended('xabridge message store ' || current_schema, 0))"
_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '5s'"
"""A server notices only in a moment that the process that held the store was closed, or killed."""


class PostgresDatabase:
    """A `Database`."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(
            url.set(drivername=postgres.DRIVER),
            paramstyle="format",
            poolclass=NullPool,
            pool_reset_on_return=None,  # it is closed, which undoes as much, and does not complain of one that broke
        )
        self._connections: list[Connection] = []

    def writer(self) -> Connection:
        connection = self.reader()
        for setting in postgres.settings_off(connection, "fsync", "full_page_writes"):
            raise StoreError(f"this PostgreSQL has {setting} = off: a crash would lose messages. Set it to on")
        connection.exec_driver_sql(_LOCK_WAIT)
        try:
            connection.exec_driver_sql(_LOCK)
        except DBAPIError as error:
            if kind_of(error) is not ErrorKind.LOCKED:
                raise
            where = self._engine.url.render_as_string()
            raise StoreLocked(f"the store {where} is in use (its advisory lock is held; see pg_locks)") from error
        connection.commit()
        return connection

    def reader(self) -> Connection:
        connection = self._engine.connect()
        self._connections.append(connection)
        postgres.force_commits(connection)
        connection.exec_driver_sql("SET application_name = 'xabridge store'")
        connection.commit()
        return connection

    def transactions(self, writer: Connection) -> tuple[Transactions, Space]:
        return Transactions(writer), UnknownSpace()

    def close(self) -> None:
        close_all(self._connections)
