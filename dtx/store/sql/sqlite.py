"""A SQL store in a file of SQLite, in WAL mode and forced at every commit.

A lock file beside it says which process has it, and a reserve keeps some space for when the disk is full.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool

from dtx.store.contract import StoreDamaged, StoreError, StoreLocked
from dtx.store.sql.database import ACCESS, LOCKED_MS, OPENING_FAILURES, Transactions, close_all, store_url
from dtx.store.sql.disk_reserve import BESIDES, LEAST, DiskReserve
from dtx.store.sql.tables import check_tables
from xa.durable_files import force
from xa.sql import sqlite
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL, Connection

    from dtx.store.contract import StoreStopped
    from dtx.store.sql.database import DiskHeadroom

LOG: Final = logging.getLogger("xabridge.broker")
PAGE_SIZE: Final = 8192
LEAST_PAGE: Final = 512
"""Octets of a page of SQLite at least."""
INCREMENTAL: Final = 2
"""The mode of auto_vacuum in which pages are given back on request."""
WORTH_PAGES: Final = 1024
"""So many unused pages are worth giving back, usually."""
FEW_PAGES: Final = 16
"""The same where the disk is short of space."""
TIDY_PAGES: Final = 256
TIGHT_PAGES: Final = 32
"""So many are given back at a time then: what this writes to the log has to find space, too."""
PAGES_OF_A_GROUP: Final = 4
ROWS_OF_A_PAGE: Final = 3
"""How many pages a group writes to the log: these, and one for so many rows, because those of a group share pages."""
MOST_TIMES: Final = 64
"""So often at most while a caller waits."""
MARGIN: Final = 256 * 1024
PLENTY: Final = 256 * 1024 * 1024
PLENTY_S: Final = 0.1
"""With so much free, the disk is not asked again before that: neither this nor others write so much meanwhile."""
LITTLE: Final = 1024 * 1024
"""With less free, a store is opened without its reserve."""
KEPT_TEXTS: Final = 512
OPENING_S: Final = 5.0
"""How long a file may be locked by others while it is opened: by people, since another broker has the lock file."""


class SqliteTransactions(Transactions):
    """Transactions of SQLite."""

    prompt = True

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._wait_ms = LOCKED_MS

    def begin(self, wait_ms: int) -> None:
        if wait_ms != self._wait_ms:
            self.cursor.execute(f"PRAGMA busy_timeout = {wait_ms}").fetchall()
            self._wait_ms = wait_ms
        self.cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self.cursor.execute("COMMIT")  # the driver's own way compiles the statement each time


class DiskSpace:
    """The `DiskHeadroom` of a file, as the connection sees it that writes."""

    def __init__(
        self, transactions: Transactions, reserve: DiskReserve, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._plenty_until = 0.0
        self._cursor = transactions.cursor
        self._failures = transactions.failures
        self._reserve = reserve
        self._gives_back = self._pragma("auto_vacuum") == INCREMENTAL
        self._tight = not reserve.hold()
        self._log_pages = 0
        """Pages in the log, estimated: nothing but a checkpoint tells their number."""

        self._limit_log()
        if self._tight:
            self.keep_room(0)
        if self._tight:
            LOG.error(
                "the store takes only what frees space: %d octets of its disk are free, and it needs %d",
                self._reserve.free,
                BESIDES * LEAST,
            )

    @property
    def tight(self) -> bool:
        return self._tight

    def is_undone(self, error: Exception) -> bool:
        return kind_of(error) is ErrorKind.FULL  # a write failed, before the force

    def has_room(self, octets: int) -> bool:
        now = self._clock()
        if octets == 0 or (now < self._plenty_until and 8 * octets <= PLENTY):
            return True
        free = self._reserve.free - MARGIN
        if free > PLENTY:
            self._plenty_until = now + PLENTY_S
        if free > 2 * octets:  # in the log, and then in the file
            return True
        return free > octets + max(0, octets - self._unused)

    def written(self, octets: int, rows: int) -> None:
        self._log_pages += PAGES_OF_A_GROUP + rows // ROWS_OF_A_PAGE + octets // PAGE_SIZE
        if octets > self._reserve.octets // 4:
            self._checkpoint("PASSIVE")

    @property
    def log_is_long(self) -> bool:
        return 4 * self._log_pages > 3 * self._log_limit

    def shorten_log(self) -> None:
        self._checkpoint("PASSIVE")

    def make_room(self) -> bool:
        self._tight = True
        released = self._reserve.release()
        self._checkpoint()
        return released

    def keep_room(self, octets: int) -> None:
        self._checkpoint()
        enough = max(BESIDES * LEAST, 2 * octets + MARGIN) + LEAST
        with contextlib.suppress(*self._failures):  # there is not even space to give some back
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
        with contextlib.suppress(*self._failures):
            return self._pragma("freelist_count") * PAGE_SIZE
        return 0

    def _limit_log(self) -> None:
        """What is in the log only, and not in the file, has to fit into the reserve when nothing else is left."""
        self._log_limit = max(1, self._reserve.octets // 2 // PAGE_SIZE)
        self._cursor.execute(f"PRAGMA wal_autocheckpoint = {self._log_limit}")

    def _checkpoint(self, mode: str = "TRUNCATE") -> None:
        """Takes over what is in the log, so that its space can be had."""
        self._log_pages = 0
        with contextlib.suppress(*self._failures):  # a reader is at work at this moment; there will be another chance
            self._cursor.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _pragma(self, name: str) -> int:
        return int(self._cursor.execute(f"PRAGMA {name}").fetchone()[0])


class SqliteDatabase:
    """A `Database`."""

    def __init__(self, url: URL) -> None:
        if sqlite.is_in_memory(url):
            raise StoreError("a store in SQLite needs a file: sqlite:///path")
        path = Path(str(url.database)).absolute()
        self._lock = -1
        try:
            _make_folder(path.parent)
            check_kinds(path)
            self._lock = _locked(path.with_name(path.name + ".lock"))
            check_files(path)
            self._reserve = DiskReserve(path.with_name(path.name + ".reserve"))
            if _free(path.parent) < LITTLE:
                self._reserve.release_for_opening()
            created = not path.exists()
            path.touch(mode=0o600)
            if created:
                force(path.parent)
        except BaseException as error:
            if self._lock >= 0:  # otherwise it stays locked as long as this process lives
                os.close(self._lock)
            if isinstance(error, OSError):
                raise StoreError(f"the store {path} can't be opened: {error}. {ACCESS}") from error
            raise

        self._engine = create_engine(
            url,
            poolclass=NullPool,
            connect_args={
                "isolation_level": None,
                "check_same_thread": False,
                "cached_statements": KEPT_TEXTS,
                "timeout": LOCKED_MS / 1000,
            },
        )
        sqlite.check_schemas(self._engine)
        event.listen(self._engine, "connect", _lay_out)  # before WAL mode, in which the layout can't be changed
        sqlite.force_commits(self._engine, OPENING_S, _no_write_ahead_log)
        self._connections: list[Connection] = []
        self._opened = False
        """Whether there is a store: of none, nothing lies beside it."""
        self._files = path, path.with_name(path.name + "-wal")

    def writer(self) -> Connection:
        return self.reader()

    def reader(self) -> Connection:
        self._connections.append(self._engine.connect())
        return self._connections[-1]

    def take(self, writer: Connection) -> None:
        """The lock file is the holder's until its process ends. The transaction is begun here, so that all of an
        opening is done, or nothing: the driver begins none."""
        writer.exec_driver_sql("BEGIN IMMEDIATE")

    def taken(self, writer: Connection, epoch: int) -> None:
        pass

    def hold(self, epoch: int, lost: Callable[[StoreStopped], None]) -> None:
        pass

    def transactions(self, writer: Connection, epoch: int) -> tuple[Transactions, DiskHeadroom]:  # noqa: ARG002 — as above
        self._opened = True
        transactions = SqliteTransactions(writer)
        return transactions, DiskSpace(transactions, self._reserve)

    @property
    def octets(self) -> int:
        size = 0
        for file in self._files:
            with contextlib.suppress(OSError):  # there is no log at this moment
                size += file.stat().st_size
        return size

    def close(self) -> None:
        close_all(self._connections)
        if self._opened:
            self._reserve.keep_for_opening()
        os.close(self._lock)


def check_kinds(path: Path) -> None:
    """StoreError: the store, or what lies beside it, is there and is not a file."""
    for name in (path.name, *(path.name + ending for ending in (".lock", ".reserve", "-wal", "-shm"))):
        one = path.with_name(name)
        if one.exists() and not one.is_file():
            raise StoreError(
                f"the store {path} can't be opened, because {one} is not a file: remove it, or move it away"
            )


def check_files(path: Path) -> None:
    """StoreDamaged: the file is not what it was, as far as that shows before SQLite opens it to write. SQLite would
    take a file that is empty, or has no table, for a new one, and delete its log."""
    size = path.stat().st_size if path.exists() else 0
    if size:
        damage = sqlite.visible_damage(path)
        if damage and damage == sqlite.visible_damage(path):  # not only because it is being written
            raise StoreDamaged(f"the store {path} is damaged: {damage}. Restore it from a copy")
        if not sqlite.may_lack_tables(path):
            return

    signs = _signs_of_use(path)  # before its tables are looked for: a first opening makes them first
    if signs and not (size and sqlite.has_tables(path)):
        state = "without any table" if size else "empty" if path.exists() else "gone"
        left = " and ".join(signs)
        raise StoreDamaged(
            f"the store {path} is {state}, but {left} beside it {'is' if len(signs) == 1 else 'are'} of one that was "
            f"in use: restore it from a copy. To begin with an empty one, remove {left}"
        )


def _signs_of_use(path: Path) -> list[str]:
    """The files beside a store that only one has that was opened. The reserve is made after the first commit, of the
    tables, and nothing is stored before. A log may be left by an opening that was killed before that commit, or in it:
    then it has one commit at most; and SQLite has written the first page of the file before it has a log."""
    reserve, log = (path.with_name(path.name + ending) for ending in (".reserve", "-wal"))
    signs = [reserve.name] if reserve.exists() and reserve.stat().st_size else []
    if log.exists() and log.stat().st_size:
        has_page = path.exists() and path.stat().st_size >= LEAST_PAGE
        if not has_page or sqlite.commits_in_log(path) > 1:
            signs.append(log.name)
    return signs


def _lay_out(connection: Any, _record: object) -> None:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    if pages == 0:  # in another file this would write, before it is known whether that is ours to open
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")  # of another one `compact` changes it
    # some builds write zeros over what is deleted: then it would take space to free some
    connection.execute("PRAGMA secure_delete = FAST")


def _no_write_ahead_log(mode: str) -> StoreError:
    return StoreError(f"this file system does not let SQLite use its WAL mode (it stays in {mode} mode)")


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
    force(path.parent)


def _free(folder: Path) -> int:
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize


def compact(url: str) -> tuple[int, int]:
    """Gives the space that a store in SQLite does not use back, which no process may have open; octets before and
    after. It takes as much space as the store will have, for a moment. From then on the store gives it back by
    itself."""
    parsed = store_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise StoreError("only a store in SQLite is made smaller; PostgreSQL does so by itself, or by VACUUM FULL")
    path = Path(str(parsed.database))
    if not path.exists():
        raise StoreError(f"there is no store {path}")

    database = SqliteDatabase(parsed)
    try:
        before = path.stat().st_size
        writer = database.writer()
        check_tables(writer)
        writer.rollback()  # VACUUM runs outside of transactions
        cursor = writer.connection.cursor()
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        cursor.execute(f"PRAGMA auto_vacuum = {INCREMENTAL}")
        cursor.execute("VACUUM")
        cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return before, path.stat().st_size
    except OPENING_FAILURES as error:
        raise StoreError(f"the store {path} can't be made smaller: {error}") from error
    finally:
        database.close()
