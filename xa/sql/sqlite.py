"""Opening a file of SQLite so that every commit is durable when it returns.

That is so with the write-ahead log (WAL) and `synchronous = FULL`: a commit then appends to the log and forces it.
Without WAL mode a database is in memory, where nothing survives, or in a file system that can't share memory between
processes, where two processes would not see each other's locks. So a store of decisions or messages refuses that.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sqlalchemy import URL, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

_PAUSE_S: Final = 0.005

_MAGIC: Final = b"SQLite format 3\0"
_HEADER: Final = struct.Struct(">16sHBB4xII60xI4x")
"""Of the file: the magic, the size of a page, the versions that may write and read it, how often it was changed, its
pages, and for which change these are right."""
_WRITE_AHEAD: Final = 2
"""The highest of these versions."""
_LOG_HEADER: Final = struct.Struct(">8xI4x8s8x")
"""Of the write-ahead log: the size of a page, and what all valid frames have."""
_LOG_OCTETS: Final = 32
"""Of that header."""
_CELLS: Final = slice(103, 105)
"""Of the first page: how many entries the root of the schema has."""
_FRAME: Final = struct.Struct(">II8s8x")
"""Of a page in the log: its number, how many pages the file has after the commit that ends with it, and that."""

_DESCRIPTORS: Final[dict[tuple[int, int], int]] = {}
"""Device and inode → a descriptor of that file. It belongs to the process, as the locks do that it is about."""
_DESCRIPTORS_LOCK: Final = threading.Lock()


def force_commits(engine: Engine, wait_s: float, refusal: Callable[[str], Exception]) -> None:
    """Makes every connection of `engine` use the write-ahead log and force its commits. Where the database stays in
    another journal mode, connecting raises what `refusal` makes of that mode. `wait_s`: how long the file may be locked
    by others while it is opened."""

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        mode = _write_ahead(connection, wait_s)
        if mode != "wal":
            raise refusal(mode)
        connection.execute("PRAGMA synchronous = FULL")

    event.listen(engine, "connect", set_up)


def _write_ahead(connection: sqlite3.Connection, wait_s: float) -> str:
    """Asks for the write-ahead log, and answers the mode. When several open a new file at the same time, SQLite refuses
    all but one with "database is locked"; it does not wait as it does elsewhere, so this waits for it."""
    until = time.monotonic() + wait_s
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)
        except UnicodeDecodeError:
            raise _no_text() from None
        else:
            return str(mode).lower()


def check_schemas(engine: Engine) -> None:
    """Makes every connection of `engine` read the schema at once, which a damaged file may have no text of."""

    def set_up(connection: sqlite3.Connection, _record: object) -> None:
        try:
            connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        except UnicodeDecodeError:
            raise _no_text() from None

    event.listen(engine, "connect", set_up)


def _no_text() -> sqlite3.DatabaseError:
    """In place of what the driver raises, because SQLite quotes in its error what it has found in the file."""
    damaged = sqlite3.DatabaseError("database disk image is malformed: its schema is no text")
    damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return damaged


@contextmanager
def looked_at(url: URL) -> Iterator[URL]:
    """The URL for a look at the file that changes nothing, and leaves no file beside it.

    SQLite reads a write-ahead log by its index, "-shm", which it makes where there is none. So a file that has a log
    without an index, as a copy may, is copied for the look. No process has it open then, because one that has makes
    the index. A file without a log is read as one that does not change.
    """
    path = Path(str(url.database)).absolute()
    log, index = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    if not log.exists():
        yield _read_only(url, path, immutable="1")
    elif index.exists():
        yield _read_only(url, path)
    else:
        with TemporaryDirectory() as folder:
            for file in (path, log):
                shutil.copyfile(file, Path(folder) / file.name)
            yield _read_only(url, Path(folder) / path.name)


def visible_damage(path: Path) -> str:
    """What the file of a database and its log show, before SQLite reads them, that SQLite would take for nothing or for
    something else, in words; "" for no damage. A database that is just being changed may look damaged once, not twice.
    """
    header = os.pread(descriptor_of(str(path)), _HEADER.size, 0)
    size = path.stat().st_size
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        return ""  # SQLite says so
    _, octets, written_by, read_by, changes, pages, right_for = _HEADER.unpack(header)
    if max(written_by, read_by) > _WRITE_AHEAD:
        return f"its header asks for version {max(written_by, read_by)} of SQLite's format"

    page = 65536 if octets == 1 else octets
    if not page:
        return ""
    logged, last = _pages_of_log(path.with_name(path.name + "-wal"), page)
    expected = last or (pages if changes == right_for else 0)
    missing = expected * page - size
    if missing <= 0 or all(number in logged for number in range(size // page + 1, expected + 1)):
        return ""
    return f"it is cut off: it has {size} of {expected * page} octets"


def _pages_of_log(log: Path, page: int) -> tuple[set[int], int]:
    """The pages that are committed in the write-ahead log, and how many the file has after the last commit; 0: there is
    none."""
    committed: set[int] = set()
    last = 0
    try:
        file = log.open("rb")
    except FileNotFoundError:
        return committed, last

    with file:
        header = file.read(_LOG_OCTETS)
        if len(header) < _LOG_OCTETS:
            return committed, last
        of_page, mark = _LOG_HEADER.unpack(header)
        begun: set[int] = set()
        while of_page == page and len(frame := file.read(_FRAME.size)) == _FRAME.size:
            number, pages, of_frame = _FRAME.unpack(frame)
            if of_frame != mark or len(file.read(page)) < page:
                break
            begun.add(number)
            if pages:
                committed |= begun
                last = pages
                begun.clear()
    return committed, last


def may_lack_tables(path: Path) -> bool:
    """Whether the file of a database shows no table by itself: its log may have some, or the file is damaged."""
    front = os.pread(descriptor_of(str(path)), _CELLS.stop, 0)
    return len(front) < _CELLS.stop or not any(front[_CELLS])


def has_tables(path: Path) -> bool:
    """Whether SQLite finds a table in a file and its log; also where it can't say. The look changes nothing."""
    with looked_at(URL.create("sqlite", database=str(path))) as url:
        engine = create_engine(url, poolclass=NullPool)
        try:
            with engine.connect() as connection:
                return connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first() is not None
        except (SQLAlchemyError, sqlite3.Error):
            return True


def commits_in_log(path: Path) -> int:
    """How many commits the frames of a write-ahead log are marked with, in the generation that has most of them. They
    are counted also where the log has become invalid; and where power was lost, the last one may not have been forced.
    """
    header = os.pread(descriptor_of(str(path)), _HEADER.size, 0)
    of_page = 0 if len(header) < _HEADER.size else _HEADER.unpack(header)[1]
    page = 65536 if of_page == 1 else of_page
    marked: Counter[bytes] = Counter()
    with suppress(FileNotFoundError), path.with_name(path.name + "-wal").open("rb") as log:
        at = _LOG_OCTETS
        while page and len(frame := os.pread(log.fileno(), _FRAME.size, at)) == _FRAME.size:
            _, pages, of_frame = _FRAME.unpack(frame)
            marked[of_frame] += pages > 0
            at += _FRAME.size + page
    return max(marked.values(), default=0)


def _read_only(url: URL, path: Path, **more: str) -> URL:
    return url.set(database=f"file:{quote(str(path))}", query={"mode": "ro", "uri": "true", **more})


def is_in_memory(url: URL) -> bool:
    """Whether the URL names no file, as far as it tells that; `force_commits` refuses the others."""
    return (url.database or "").removeprefix("file:") in ("", ":memory:") or url.query.get("mode") == "memory"


def descriptor_of(path: str) -> int:
    """A descriptor of a database's file, for reading. It is never closed: that would cost the process its locks.

    SQLite's locks are POSIX locks: when a process closes any descriptor of a file, it loses all the locks that it has
    on that file. Another process that closes its last connection would then take itself for the only one, and delete
    the write-ahead log. What this process commits from then on would be in a file that has no name any more.
    """
    with _DESCRIPTORS_LOCK:
        known = Path(path).stat()
        descriptor = _DESCRIPTORS.get((known.st_dev, known.st_ino))
        if descriptor is None:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            opened = os.fstat(descriptor)
            _DESCRIPTORS[opened.st_dev, opened.st_ino] = descriptor
        return descriptor
