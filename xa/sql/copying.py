"""Copying a file of SQLite while others write to it: `copy_file`.

1. SQLite copies the pages into DESTINATION.part, in one transaction that reads: writers are not held up, and the copy
   is the database at one moment.
2. `finish` writes into the copy what it has to know of itself.
3. The copy is checked, made one plain file, forced, and gets its name. So a file of that name is whole, whenever this
   is killed, and a part that was left behind is overwritten by the next copy.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from xa.durable_files import force
from xa.sql.errors import explained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_S: Final = 30.0
_BESIDES: Final = ("", "-wal", "-shm", "-journal")


class CopyFailed(Exception):
    """There is no copy. The message says why."""


def copy_file(source: Path, destination: Path, finish: Callable[[sqlite3.Connection], None]) -> None:
    """Copies the database in the file `source`. CopyFailed: also where there is something at the destination."""
    part = destination.with_name(destination.name + ".part")
    try:
        _check_names(source, destination)
        _remove(part)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        _copy(source, part, finish)
        force(part)
        part.rename(destination)
        force(destination.parent)
    except BaseException as error:
        with suppress(OSError):
            _remove(part)
        if isinstance(error, (sqlite3.Error, OSError)):
            raise CopyFailed(f"{source} can't be copied to {destination}: {explained(error)}") from error
        raise


def _check_names(source: Path, destination: Path) -> None:
    if not source.is_file():
        raise CopyFailed(f"there is no file {source}")
    if destination.exists():
        raise CopyFailed(f"{destination} is there already: name a file that is not")


def _copy(source: Path, part: Path, finish: Callable[[sqlite3.Connection], None]) -> None:
    from_file = f"file:{quote(str(source.absolute()))}?mode=rw"  # which makes no file where there is none
    with (
        closing(sqlite3.connect(from_file, uri=True, timeout=WAIT_S)) as reading,
        closing(sqlite3.connect(part, isolation_level=None)) as writing,
    ):
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode = DELETE").fetchall()
        writing.execute("BEGIN")
        finish(writing)
        writing.execute("COMMIT")
        (verdict,) = writing.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged, and so is probably what was copied: {verdict}")


def _remove(part: Path) -> None:
    for ending in _BESIDES:
        part.with_name(part.name + ending).unlink(missing_ok=True)
