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
from dtx.store.reserve import BESIDES, LEAST, Reserve
from xa.secrets import masked, with_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import URL, Connection

    from dtx.store.contract import NotStored

PAGE_SIZE: Final = 8192
INCREMENTAL: Final = 2
"""The mode of auto_vacuum in which pages are given back when somebody asks for it."""
WORTH_PAGES: Final = 1024
"""So many unused pages are worth giving back, usually."""
FEW_PAGES: Final = 16
"""The same where the disk is short of space."""
TIDY_PAGES: Final = 256
TIGHT_PAGES: Final = 32
"""So many are given back at a time then: what this writes to the log has to find space, too."""
MOST_TIMES: Final = 64
"""So often at most while somebody waits."""
MARGIN: Final = 256 * 1024
LITTLE: Final = 1024 * 1024
"""With less free, a store is opened without its reserve."""
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

    @property
    def tight(self) -> bool:
        """Whether there is so little space that nothing is taken but what frees some."""
        return False

    def is_undone(self, error: Exception) -> bool:  # noqa: ARG002 — of a database that tells it of no error
        """Whether a commit that failed with `error` has certainly left no trace."""
        return False

    def has_room(self, octets: int) -> bool:  # noqa: ARG002 — nobody knows of another machine's disk
        """Whether what takes so much may be tried; otherwise it is refused as if the disk were full."""
        return True

    def written(self, octets: int) -> None:
        """So much was made durable."""

    def make_room(self) -> bool:
        """There is no space: uses what was kept for this; whether there was any."""
        return False

    def keep_room(self, octets: int) -> None:
        """Keeps some space again, where there is, and makes room for what takes so much. To be called now and then
        while it is tight, or there is no room."""

    def tidy(self) -> bool:
        """Gives a part of the space that is not used any more back to the system; whether there may be more. To be
        called when there is nothing else to do."""
        return False


class SqliteTransactions(Transactions):
    """Those on a file in WAL mode."""

    def __init__(self, connection: Connection, reserve: Reserve) -> None:
        super().__init__(connection, "BEGIN IMMEDIATE")
        self._reserve = reserve
        self._gives_back = self._pragma("auto_vacuum") == INCREMENTAL
        self._tight = not reserve.hold()
        self._limit_log()
        if self._tight:
            self.keep_room(0)

    @property
    def tight(self) -> bool:
        return self._tight

    def is_undone(self, error: Exception) -> bool:
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL  # of a write, before the force

    def has_room(self, octets: int) -> bool:
        if octets == 0:
            return True
        free = self._reserve.free - MARGIN
        if free > 2 * octets:  # in the log, and then in the file
            return True
        return free > octets + max(0, octets - self._unused)

    def written(self, octets: int) -> None:
        if octets > self._reserve.octets // 4:
            self._checkpoint("PASSIVE")

    def make_room(self) -> bool:
        self._tight = True
        released = self._reserve.release()
        self._checkpoint()
        return released

    def keep_room(self, octets: int) -> None:
        self._checkpoint()
        enough = max(BESIDES * LEAST, 2 * octets + MARGIN) + LEAST
        with contextlib.suppress(*self.failures):  # there is not even space to give some back
            for _ in range(MOST_TIMES):
                if self._reserve.free >= enough or not self._gave_back():
                    break
        self._tight = not self._reserve.hold(self._unused)
        self._limit_log()

    def tidy(self) -> bool:
        if self._tight or self._reserve.free < BESIDES * LEAST:
            return self._gave_back()
        if not self._gives_back or self._pragma("freelist_count") < WORTH_PAGES:
            return False
        self._cursor.execute(f"PRAGMA incremental_vacuum({TIDY_PAGES})").fetchall()
        return True

    def _gave_back(self) -> bool:
        """Gives a few unused pages back, because the disk is short of space; whether there were some."""
        if not self._gives_back or self._pragma("freelist_count") < FEW_PAGES:
            return False
        self._cursor.execute(f"PRAGMA incremental_vacuum({TIGHT_PAGES})").fetchall()
        self._checkpoint()  # the file gets smaller only now
        return True

    @property
    def _unused(self) -> int:
        """Octets that are free inside of the file, as far as it can be read just now."""
        with contextlib.suppress(*self.failures):
            return self._pragma("freelist_count") * PAGE_SIZE
        return 0

    def _limit_log(self) -> None:
        """What is in the log only, and not in the file, has to fit into the reserve when nothing else is left."""
        self._cursor.execute(f"PRAGMA wal_autocheckpoint = {max(1, self._reserve.octets // 2 // PAGE_SIZE)}")

    def _checkpoint(self, mode: str = "TRUNCATE") -> None:
        """Takes over what is in the log, so that its space can be had."""
        with contextlib.suppress(*self.failures):  # somebody reads at this moment; there will be another one
            self._cursor.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _pragma(self, name: str) -> int:
        return int(self._cursor.execute(f"PRAGMA {name}").fetchone()[0])


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
        url = with_password(url)
    except ValueError as error:
        raise StoreError(f"the store can't be opened: {error}") from None
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise StoreError(f"{masked(url)!r} is no URL of a store, such as sqlite:///path or postgresql://…") from error
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
            _make_folder(path.parent)
            self._lock = _locked(path.with_name(path.name + ".lock"))
            self._reserve = Reserve(path.with_name(path.name + ".reserve"))
            if _free(path.parent) < LITTLE:
                self._reserve.release()
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
        return SqliteTransactions(writer, self._reserve)

    def close(self) -> None:
        _close_all(self._connections)
        os.close(self._lock)


def _set_pragmas(connection: Any, _record: object) -> None:
    for pragma in (
        f"page_size = {PAGE_SIZE}",
        f"auto_vacuum = {INCREMENTAL}",  # of a new file; of another one `compact` changes it
        "synchronous = FULL",
        "secure_delete = FAST",  # some builds write zeros over what is deleted: then it would take space to free some
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
    with contextlib.suppress(OSError):  # where the disk is full, it is not said who holds it
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _make_folder(path: Path) -> None:
    """Makes a folder, and those above it, each of which is in the one above it durably."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _force_directory(path.parent)


def _free(folder: Path) -> int:
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize


def compact(url: str) -> tuple[int, int]:
    """Gives the space that a store in SQLite does not use back, which nobody may have open; octets before and after.
    It takes as much space as the store will have, for a moment. From then on the store gives it back by itself."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise StoreError("only a store in SQLite is made smaller; PostgreSQL does so by itself, or by VACUUM FULL")
    path = Path(str(parsed.database))
    if not path.exists():
        raise StoreError(f"there is no store {path}")
    database = _Sqlite(parsed)
    try:
        before = path.stat().st_size
        connection = database.writer().connection
        cursor = connection.cursor()
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        cursor.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return before, path.stat().st_size
    except OPENING_FAILURES as error:
        raise StoreError(f"the store {path} can't be made smaller: {error}") from error
    finally:
        database.close()


def _force_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Postgres:
    """Tables in the first schema of the search path; an advisory lock of the writer keeps others out."""

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            paramstyle="format",
            poolclass=NullPool,
            pool_reset_on_return=None,  # it is closed, which undoes as much, and does not complain of one that broke
        )
        self._connections: list[Connection] = []

    def writer(self) -> Connection:
        connection = self.reader()
        _check_durable(connection)
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


def _check_durable(connection: Connection) -> None:
    for setting in ("fsync", "full_page_writes"):
        if connection.exec_driver_sql(f"SHOW {setting}").scalar() != "on":
            raise StoreError(f"this PostgreSQL has {setting} = off: a crash would lose messages. Set it to on")


def _close_all(connections: Sequence[Connection]) -> None:
    """Closes connections, those that broke too; what was not committed is rolled back."""
    for connection in connections:
        with contextlib.suppress(DBAPIError):
            connection.close()
