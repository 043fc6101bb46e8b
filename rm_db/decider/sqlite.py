"""SQLite as a database that decides: what is different there.

A transaction takes the write lock when it begins (BEGIN IMMEDIATE). One that takes it later can find that its snapshot
is old, and then no waiting helps.

The database is in WAL mode, and every commit is forced. A database that has no WAL mode is in memory, or in a file
system that can't share memory between processes. It is refused, because its decisions would not survive, or two
processes would not see each other's locks.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

from rm_db.decider.session import SqlBranchConnection
from xa import Code, xa_error

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

WAIT_OPTION: Final = "xabridge_wait_s"
"""Execution option: how long the transaction that begins next waits for the write lock."""

IN_MEMORY: Final = "a database in memory can't decide: nothing of it survives a crash"

_OPENING_S: Final = 5.0
"""How long a new file may be locked by others that open it."""


def is_in_memory(url: URL) -> bool:
    """Whether the URL says that the database is in memory. Others are found when they turn out to have no WAL mode."""
    return (url.database or "").removeprefix("file:") in ("", ":memory:") or url.query.get("mode") == "memory"


def listen(engine: Engine, wait_s: float) -> None:
    """Sets up the engine's connections, and begins its transactions, which wait `wait_s` for the write lock unless they
    have the option WAIT_OPTION."""
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _Begin(wait_s))


def _set_up(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say
    mode = _write_ahead(connection)
    if mode == "memory":
        raise xa_error(Code.XAER_INVAL, f"open: {IN_MEMORY}")
    if mode != "wal":
        raise xa_error(
            Code.XAER_INVAL,
            f"open: SQLite has no WAL mode here, only {mode}: its file system can't share memory between processes (a "
            "network's can't), or the URL's settings forbid it. Put the file on a local disk",
        )
    connection.execute("PRAGMA synchronous = FULL")


def _write_ahead(connection: sqlite3.Connection) -> str:
    """The mode that the database is in then. Of several that open a new file at once SQLite refuses all but one, and
    does not wait as it does elsewhere."""
    until = time.monotonic() + _OPENING_S
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.005)
        else:
            return str(mode).lower()


class _Begin:
    """Begins a transaction on SQLite."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def __call__(self, connection: Connection) -> None:
        if isinstance(connection, SqlBranchConnection):
            return  # SQLAlchemy's bookkeeping only: the branch's transaction has begun
        wait_s = connection.get_execution_options().get(WAIT_OPTION, self._wait_s)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
