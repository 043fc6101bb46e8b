"""What an error of the database means for the statement that got it, and whether to try that again."""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tm.log.decision import DecisionRefused, LogFull, LogStopped

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""How long to wait before each further attempt."""


class Trouble(Enum):
    """The decisions that follow from an error."""

    LOST = "the statement may have had its effect or not; try again, it is made so that this harms nothing"
    AGAIN = "it had no effect, and may have one when tried again"
    FULL = "it had no effect: there is no space"
    REFUSED = "it had no effect, and won't have one when tried again"


SQLSTATES: Final[dict[str, Trouble]] = {
    "08": Trouble.LOST,  # connection exception
    "25006": Trouble.AGAIN,  # read-only: the server is a standby, the other one is not there yet
    "40": Trouble.AGAIN,  # serialization failure, deadlock
    "40003": Trouble.LOST,  # statement completion unknown
    "53": Trouble.AGAIN,  # insufficient resources
    "53100": Trouble.FULL,  # disk full
    "55P03": Trouble.AGAIN,  # lock not available
    "57": Trouble.AGAIN,  # operator intervention, such as statement_timeout
    "57P": Trouble.LOST,  # the server goes down
    "58": Trouble.LOST,  # system error
    "XX": Trouble.LOST,  # internal error
}
"""The beginning of an SQLSTATE → its meaning; the longest one counts. What is missing is refused."""

SQLITE: Final[dict[int, Trouble]] = {
    sqlite3.SQLITE_BUSY: Trouble.AGAIN,
    sqlite3.SQLITE_LOCKED: Trouble.AGAIN,
    sqlite3.SQLITE_PROTOCOL: Trouble.AGAIN,
    sqlite3.SQLITE_NOMEM: Trouble.AGAIN,
    sqlite3.SQLITE_INTERRUPT: Trouble.AGAIN,
    sqlite3.SQLITE_FULL: Trouble.FULL,
    sqlite3.SQLITE_IOERR: Trouble.LOST,
    sqlite3.SQLITE_CANTOPEN: Trouble.LOST,
}
"""SQLite's primary result code → its meaning. What is missing is refused."""


def trouble_of(error: SQLAlchemyError) -> Trouble:
    """What `error` means. One that did not come from the driver came before a statement was sent: there was no
    connection to be had."""
    if not isinstance(error, DBAPIError):
        return Trouble.AGAIN
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        return Trouble.REFUSED if code is None else SQLITE.get(code & 0xFF, Trouble.REFUSED)
    sqlstate: str | None = getattr(original, "sqlstate", None)
    if sqlstate is None:
        return Trouble.LOST
    for length in range(len(sqlstate), 1, -1):
        if sqlstate[:length] in SQLSTATES:
            return SQLSTATES[sqlstate[:length]]
    return Trouble.REFUSED


def persistently(action: Callable[[], T], what: str, sleep: Callable[[float], None]) -> T:
    """The result of `action`, which is done again while there is hope, and must be harmless when done twice.

    LogFull, DecisionRefused: it had no effect. LogStopped: that is unknown.
    """
    doubt = False
    for pause_s in (*PAUSES_S, None):
        try:
            return action()
        except SQLAlchemyError as error:
            last = error
        trouble = trouble_of(last)
        if trouble is Trouble.LOST:
            doubt = True
        elif trouble is not Trouble.AGAIN and not doubt:
            break
        if pause_s is not None:
            sleep(pause_s)
    if doubt:
        raise LogStopped(
            f"{what}: whether it was written is unknown, the database can't be reached: {_text(last)}"
        ) from last
    if trouble is Trouble.FULL:
        raise LogFull(f"{what}: the database has no space: {_text(last)}") from last
    raise DecisionRefused(f"{what}: the database refuses it: {_text(last)}") from last


def told(action: Callable[[], T], what: str, sleep: Callable[[float], None]) -> T:
    """The result of `action`, which only reads. LogStopped: it can't be told."""
    try:
        return persistently(action, what, sleep)
    except (LogFull, DecisionRefused) as error:
        raise LogStopped(str(error)) from error


def _text(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error).strip()
