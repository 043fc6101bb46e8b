"""SQLite as a database that decides: what is different there.

A transaction takes the write lock when it begins (BEGIN IMMEDIATE). One that takes it later can find that its snapshot
is old, and then no waiting helps.

How every commit is forced, and why a database without WAL mode is refused, stands in `xa.sql.sqlite`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

from rm_db.sessions.connection import BranchConnection
from xa import Code, XaError, xa_error
from xa.sql.sqlite import force_commits

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

WAIT_OPTION: Final = "xabridge_wait_s"
"""Execution option: how long the transaction that begins next waits for the write lock."""

IN_MEMORY: Final = "a database in memory can't decide: nothing of it survives a crash"

_OPENING_S: Final = 5.0
"""How long a new file may be locked by others that open it."""


def listen(engine: Engine, wait_s: float) -> None:
    """Sets up the engine's connections, and begins its transactions, which wait `wait_s` for the write lock unless they
    have the option WAIT_OPTION."""
    event.listen(engine, "connect", _begin_explicitly)
    force_commits(engine, _OPENING_S, _no_write_ahead_log)
    event.listen(engine, "begin", _Begin(wait_s))


def _begin_explicitly(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say


def _no_write_ahead_log(mode: str) -> XaError:
    if mode == "memory":
        return xa_error(Code.XAER_INVAL, f"open: {IN_MEMORY}")
    return xa_error(
        Code.XAER_INVAL,
        f"open: SQLite has no WAL mode here, only {mode}: its file system can't share memory between processes (a "
        "network's can't), or the URL's settings forbid it. Put the file on a local disk",
    )


class _Begin:
    """Begins a transaction on SQLite."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def __call__(self, connection: Connection) -> None:
        if isinstance(connection, BranchConnection):
            return  # SQLAlchemy's bookkeeping only: the branch's transaction has begun
        wait_s = connection.get_execution_options().get(WAIT_OPTION, self._wait_s)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
