"""A SQL store in PostgreSQL.

Its tables are in the first schema of the search path. A lease (`dtx.store.sql.lease`) keeps others out, and an advisory
lock a process that opens the store at the same moment.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sqlalchemy import Double, create_engine, delete, exists, insert, literal_column, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from dtx.store.contract import StoreError, StoreLeased, StoreLocked
from dtx.store.sql.database import OPENING_FAILURES, Transactions, UnknownHeadroom, close_all
from dtx.store.sql.lease import Lease, LeaseLost
from dtx.store.sql.tables import LEASE, META
from xa.lease import holder_name, since_boot
from xa.sql import postgres
from xa.sql.errors import ErrorKind, kind_of
from xa.sql.statements import SECONDS_1970

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL, Connection

    from dtx.store.contract import StoreStopped
    from dtx.store.sql.database import DiskHeadroom

_OPENING: Final = "SELECT pg_advisory_xact_lock(hashtextextended('xabridge message store ' || current_schema, 0))"
_OPENING_S: Final = 5.0
"""So much longer than a lease the opening waits for locks. A transaction that a paused holder has begun keeps its lock
until the server ends it, after the time of the holder's lease."""
OPENING_REPLY_S: Final = 60.0
"""How long the server may take to answer a statement until the store is held."""
REPLY_S: Final = 600.0
"""The same afterwards: all messages are read by one statement then. What waits while a broker works is broken off with
the lease, much earlier."""
MAX_REPLY: Final = 1 << 40
_FENCE: Final = "SELECT 1 FROM dtx_meta WHERE name = 'openings' AND value = %s FOR SHARE"
"""The lock is kept to the end of the transaction, and a process that takes the store has to wait for it."""
_NOW: Final = literal_column(SECONDS_1970["postgresql"], Double)


class PostgresTransactions(Transactions):
    """Transactions of the opening `epoch`."""

    def __init__(self, connection: Connection, epoch: int) -> None:
        super().__init__(connection)
        self.failures = (*self.failures, LeaseLost)
        self._epoch = epoch

    def begin(self, wait_ms: int) -> None:  # noqa: ARG002 — no other process locks the database
        self.cursor.execute(_FENCE, (self._epoch,))
        if self.cursor.fetchone() is None:
            raise LeaseLost("another process has taken the store")


class PostgresDatabase:
    """A `Database`."""

    def __init__(self, url: URL, lease_s: float) -> None:
        wait_s = max(2, round(lease_s))
        engine = create_engine(
            url.set(drivername=postgres.DRIVER),
            paramstyle="format",
            poolclass=NullPool,
            pool_reset_on_return=None,  # it is closed, which undoes as much, and does not complain of one that broke
            connect_args={
                "connect_timeout": wait_s,
                "keepalives_idle": wait_s,
                "keepalives_interval": 2,
                "keepalives_count": 3,
                "tcp_user_timeout": 1000 * wait_s,
            },
        )
        from xa.sql import psycopg_connection  # noqa: PLC0415 — loads psycopg, which a store in SQLite does not need

        self._engine = psycopg_connection.bound(engine, OPENING_REPLY_S, MAX_REPLY)
        self._reply_s = OPENING_REPLY_S
        self._lease_s = lease_s
        self._sent = 0.0
        """When the statement was sent that took or renewed the lease."""
        self._connections: list[Connection] = []
        self._renewing: Connection | None = None
        self._release: Callable[[], None] | None = None

    def writer(self) -> Connection:
        connection = self.reader()
        for setting in postgres.settings_off(connection, "fsync", "full_page_writes"):
            raise StoreError(f"this PostgreSQL has {setting} = off: a crash would lose messages. Set it to on")
        connection.exec_driver_sql(f"SET idle_in_transaction_session_timeout = {round(1000 * self._lease_s)}")
        connection.commit()
        return connection

    def reader(self) -> Connection:
        connection = self._engine.connect()
        connection.connection.driver_connection.reply_s = self._reply_s  # type: ignore[union-attr]
        self._connections.append(connection)
        postgres.force_commits(connection)
        connection.exec_driver_sql("SET application_name = 'xabridge store'")
        connection.commit()
        return connection

    def take(self, writer: Connection) -> None:
        postgres.limit_lock_waits(writer, self._lease_s + _OPENING_S)
        where = self._engine.url.render_as_string()
        try:
            writer.exec_driver_sql(_OPENING)
            LEASE.create(writer, checkfirst=True)
            row = writer.execute(
                select(LEASE.c.holder, LEASE.c.until_s, LEASE.c.until_s - _NOW).with_for_update()
            ).one_or_none()
        except DBAPIError as error:
            if kind_of(error) is not ErrorKind.LOCKED:
                raise
            raise StoreLocked(f"the store {where} is in use (its advisory lock is held; see pg_locks)") from error

        if row is None:
            return
        who, until_s, lasts_s = row
        if lasts_s > 0:
            raise StoreLeased(f"the store {where} is in use by {who}", until_s, lasts_s)

    def taken(self, writer: Connection, epoch: int) -> None:
        self._sent = since_boot()
        writer.execute(delete(LEASE))
        writer.execute(insert(LEASE).values(epoch=epoch, holder=holder_name(), until_s=_NOW + self._lease_s))

    def hold(self, epoch: int, lost: Callable[[StoreStopped], None]) -> Lease:
        self._reply_s = REPLY_S
        self._renewing = self.reader().execution_options(isolation_level="AUTOCOMMIT")
        latest = exists().where(META.c.name == "openings", META.c.value == epoch)
        renewing = update(LEASE).where(LEASE.c.epoch == epoch, latest).values(until_s=_NOW + self._lease_s)
        releasing = update(LEASE).where(LEASE.c.epoch == epoch).values(until_s=0.0, holder="nobody")

        def renew() -> bool:
            if self._renewing is None:
                self._renewing = self.reader().execution_options(isolation_level="AUTOCOMMIT")
            try:
                return self._renewing.execute(renewing).rowcount == 1
            except OPENING_FAILURES:
                self._renewing = None  # it is closed with the others
                raise

        def release() -> None:
            if lease.close() and self._renewing is not None:
                with suppress(*OPENING_FAILURES):  # then it runs out
                    self._renewing.execute(releasing)

        lease = Lease(renew, OPENING_FAILURES, lost, self.break_off, lease_s=self._lease_s, sent=self._sent)
        self._release = release
        lease.start()
        return lease

    def transactions(self, writer: Connection, epoch: int) -> tuple[Transactions, DiskHeadroom]:
        return PostgresTransactions(writer, epoch), UnknownHeadroom()

    def break_off(self) -> None:
        """Breaks every connection, as a network does that fails. For any thread, while others wait for an answer."""
        for connection in tuple(self._connections):
            with suppress(Exception):  # it is closed already
                number = os.dup(connection.connection.dbapi_connection.fileno())  # type: ignore[union-attr]
                with socket.socket(fileno=number) as duplicate:
                    duplicate.shutdown(socket.SHUT_RDWR)

    octets: Final = None

    def close(self) -> None:
        if self._release is not None:
            self._release()
        close_all(self._connections)
