"""Opening a file of SQLite so that every commit is durable when it returns.

That is so with the write-ahead log (WAL) and `synchronous = FULL`: a commit then appends to the log and forces it.
Without WAL mode a database is in memory, where nothing survives, or in a file system that can't share memory between
processes, where two processes would not see each other's locks. So a store of decisions or messages refuses that.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from sqlalchemy import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL, Engine

_PAUSE_S: Final = 0.005

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
