"""The databases that a SQL store may live in: each opened for one process alone, and set to be durable."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from dtx.store.contract import StoreBusy, StoreError, StoreFull, StoreLocked, StoreRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import URL, Connection

    from dtx.store.contract import NotStored

PAGE_SIZE: Final = 8192
CHECKPOINT_PAGES: Final = 4000
KEPT_TEXTS: Final = 512
POSTGRES_FULL: Final = "53100"
POSTGRES_BUSY: Final = ("40", "53200", "53400", "55P03", "57014")
POSTGRES_REFUSED: Final = ("22", "23", "54")
"""SQLSTATEs, or their first octets, of statements that leave the connection as good as before: a deadlock, no memory, a
lock that was not had in time, a cancelled statement; and wrong data, constraints, limits."""
SQLITE_BUSY: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_INTERRUPT}
)
SQLITE_REFUSED: Final = frozenset({sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH})
"""The same of SQLite's codes, without what they say beside."""
POSTGRES_LOCK: Final = "SELECT pg_advisory_lock(hashtextextended('xabridge message store ' || current_schema, 0))"
POSTGRES_LOCK_WAIT: Final = "SET LOCAL lock_timeout = '5s'"
"""A server notices only in a moment that the process that held the store was closed, or killed."""
POSTGRES_LOCKED: Final = "55P03"


OPENING_FAILURES: Final = (SQLAlchemyError, sqlite3.Error)
"""What opening a database raises, through SQLAlchemy and below it, in SQLite's pragmas."""


class Transactions:
    """Transactions on a connection's driver itself: every statement of a force is one of few texts, and
    SQLAlchemy's way with a statement would take longer than SQLite's."""

    def __init__(self, connection: Connection, begin: str = "") -> None:
        self._driver = connection.connection
        self._cursor = self._driver.cursor()
        self._begin = begin
        self.failures: tuple[type[Exception], ...] = (SQLAlchemyError, connection.dialect.loaded_dbapi.Error)
        """What these methods raise."""

    def begin(self) -> None:
        """Begins one; PostgreSQL's driver does so itself, at the first statement."""
        if self._begin:
            self._cursor.execute(self._begin)

    def execute(self, text: str, parameters: Sequence[Any]) -> None:
        """One statement."""
        self._cursor.execute(text, parameters)

    def commit(self) -> None:
        """Makes the transaction durable."""
        self._driver.commit()

    def rollback(self) -> None:
        """Leaves no trace of the transaction."""
        self._driver.rollback()


class Database(Protocol):
    """A database that this process has for itself."""

    def writer(self) -> Connection:
        """The connection that writes; where the lock is a session's, it is this one's."""
        ...

    def reader(self) -> Connection:
        """A further connection, that reads what was committed."""
        ...

    def transactions(self, writer: Connection) -> Transactions:
        """Transactions on the connection that writes, which is used for nothing else from now on."""
        ...

    def close(self) -> None:
        """Lets others open the database."""
        ...


def open_database(url: str) -> Database:
    """The database of a URL: sqlite:///path or postgresql://user@host/name."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"{url!r} is no URL of a store, such as sqlite:///path or postgresql://…") from error
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return _Sqlite(parsed)
    if kind == "postgresql":
        return _Postgres(parsed)
    raise StoreError(f"a store lives in sqlite or postgresql, not in {kind}")


def not_stored(error: Exception) -> NotStored | None:
    """What a statement failed of, where its transaction can be rolled back and the store can go on."""
    state = getattr(error, "sqlstate", None) or ""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if state == POSTGRES_FULL or code == sqlite3.SQLITE_FULL:
        return StoreFull(f"no space in the store: {error}")
    if state.startswith(POSTGRES_BUSY) or code in SQLITE_BUSY:
        return StoreBusy(f"the store takes nothing now: {error}")
    if state.startswith(POSTGRES_REFUSED) or code in SQLITE_REFUSED:
        return StoreRefused(f"the store does not take it: {error}")
    return None


class _Sqlite:
    """A file in WAL mode, forced at every commit; a lock file beside it says whose it is."""

    def __init__(self, url: URL) -> None:
        if url.database in {None, "", ":memory:"}:
            raise StoreError("a store in SQLite needs a file: sqlite:///path")
        path = Path(str(url.database)).absolute()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path.with_name(path.name + ".lock"))
            created = not path.exists()
            path.touch(mode=0o600)
            if created:
                _force_directory(path.parent)
        except OSError as error:
            raise StoreError(f"the store {path} can't be opened: {error}") from error
        self._engine = create_engine(
            url,
            poolclass=NullPool,
            connect_args={"isolation_level": None, "check_same_thread": False, "cached_statements": KEPT_TEXTS},
        )
        event.listen(self._engine, "connect", _set_pragmas)
        self._connections: list[Connection] = []

    def writer(self) -> Connection:
        return self.reader()

    def reader(self) -> Connection:
        self._connections.append(self._engine.connect())
        return self._connections[-1]

    def transactions(self, writer: Connection) -> Transactions:
        return Transactions(writer, "BEGIN IMMEDIATE")

    def close(self) -> None:
        _close_all(self._connections)
        os.close(self._lock)


def _set_pragmas(connection: Any, _record: object) -> None:
    for pragma in (
        f"page_size = {PAGE_SIZE}",
        "synchronous = FULL",
        f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreError(f"this file system does not let SQLite use its WAL mode (it stays in {mode} mode)")


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreLocked(f"the store is in use by process {holder or 'unknown'} ({path} is locked)") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _force_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Postgres:
    """Tables in the first schema of the search path; an advisory lock of the writer keeps others out."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url.set(drivername="postgresql+psycopg"), paramstyle="format", poolclass=NullPool)
        self._connections: list[Connection] = []

    def writer(self) -> Connection:
        connection = self.reader()
        connection.exec_driver_sql(POSTGRES_LOCK_WAIT)
        try:
            connection.exec_driver_sql(POSTGRES_LOCK)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != POSTGRES_LOCKED:
                raise
            where = self._engine.url.render_as_string()
            raise StoreLocked(f"the store {where} is in use (its advisory lock is held; see pg_locks)") from error
        connection.commit()
        return connection

    def reader(self) -> Connection:
        connection = self._engine.connect()
        self._connections.append(connection)
        connection.exec_driver_sql("SET synchronous_commit = on")
        connection.exec_driver_sql("SET application_name = 'xabridge store'")
        connection.commit()
        return connection

    def transactions(self, writer: Connection) -> Transactions:
        return Transactions(writer)

    def close(self) -> None:
        _close_all(self._connections)


def _close_all(connections: Sequence[Connection]) -> None:
    """Closes connections, those that broke too; what was not committed is rolled back."""
    for connection in connections:
        with contextlib.suppress(DBAPIError):
            connection.close()
