"""The meaning of a database's errors: one classification for every database and driver.

`kind_of` takes an error as SQLAlchemy raises it, or as the driver does, and answers its `ErrorKind`. It looks only at
what the driver noted in the error: an SQLSTATE (PostgreSQL), a result code (SQLite), a number (MariaDB and MySQL). What
follows from a kind is for the caller to say, in a table of its own: a log tries again where a message store stops.

Nothing of SQLAlchemy or of a driver is imported here.
"""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class ErrorKind(Enum):
    """The kinds of errors that callers treat differently. The value says what is known."""

    LOST = "the connection is lost: the statement had its effect or not"
    FAILED = "the database had an internal error: the statement had its effect or not"
    DEADLOCK = "two transactions waited for each other, and this one was rolled back"
    SERIALIZATION = "the transaction was rolled back because of a concurrent one"
    LOCKED = "the transaction did not get a lock in time"
    CANCELLED = "the statement took too long, or was cancelled"
    EXHAUSTED = "memory, connections or the like ran out, or this process interrupted the statement"
    UNAVAILABLE = "changes are not taken at the moment: the server is a standby, or an operator intervened"
    FULL = "there is no space"
    INVALID = "the data violate a constraint or a limit, or are no values of their columns"
    DENIED = "a right, a table or a function is missing"
    DAMAGED = "the file is no database, or damaged"
    REFUSED = "the database refuses it for another reason, and will do so again"
    UNTOLD = "the driver notes no code in its error"


IN_THE_WAY: Final = frozenset({ErrorKind.DEADLOCK, ErrorKind.SERIALIZATION, ErrorKind.LOCKED})
"""Another transaction was in the way: the same work may succeed in a new transaction."""

SQLSTATES: Final[dict[str, ErrorKind]] = {
    "08": ErrorKind.LOST,  # connection exception
    "22": ErrorKind.INVALID,  # data exception
    "23": ErrorKind.INVALID,  # integrity constraint violation
    "25006": ErrorKind.UNAVAILABLE,  # read-only transaction: the server is a standby
    "25P03": ErrorKind.LOST,  # idle in transaction for too long: the server ends the connection
    "25P04": ErrorKind.LOST,  # transaction_timeout: likewise
    "40": ErrorKind.SERIALIZATION,  # transaction rollback
    "40003": ErrorKind.FAILED,  # statement completion unknown
    "40P01": ErrorKind.DEADLOCK,
    "42": ErrorKind.DENIED,  # syntax error or access rule violation
    "53": ErrorKind.EXHAUSTED,  # insufficient resources
    "53100": ErrorKind.FULL,  # disk full
    "54": ErrorKind.INVALID,  # program limit exceeded
    "55P03": ErrorKind.LOCKED,  # lock not available: lock_timeout, or NOWAIT
    "57": ErrorKind.UNAVAILABLE,  # operator intervention
    "57014": ErrorKind.CANCELLED,  # statement_timeout, or cancelled
    "57P": ErrorKind.LOST,  # the server, or this backend, is shut down; the database was dropped
    "58": ErrorKind.FAILED,  # system error
    "XX": ErrorKind.FAILED,  # internal error
}
"""The beginning of an SQLSTATE → its kind; the longest one counts. What is missing is REFUSED. (PostgreSQL, appendix
A.)"""

SQLITE: Final[dict[int, ErrorKind]] = {
    sqlite3.SQLITE_BUSY: ErrorKind.LOCKED,
    sqlite3.SQLITE_LOCKED: ErrorKind.LOCKED,
    sqlite3.SQLITE_NOMEM: ErrorKind.EXHAUSTED,
    sqlite3.SQLITE_INTERRUPT: ErrorKind.EXHAUSTED,
    sqlite3.SQLITE_PROTOCOL: ErrorKind.UNAVAILABLE,  # the write-ahead log could not be locked
    sqlite3.SQLITE_FULL: ErrorKind.FULL,
    sqlite3.SQLITE_IOERR: ErrorKind.LOST,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.FAILED,
    sqlite3.SQLITE_CONSTRAINT: ErrorKind.INVALID,
    sqlite3.SQLITE_MISMATCH: ErrorKind.INVALID,
    sqlite3.SQLITE_TOOBIG: ErrorKind.INVALID,
    sqlite3.SQLITE_CORRUPT: ErrorKind.DAMAGED,
    sqlite3.SQLITE_NOTADB: ErrorKind.DAMAGED,
}
"""SQLite's primary result code → its kind. What is missing is REFUSED."""

_UNREAD: Final = frozenset({sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS})
"""SQLite's result codes after a disk did not give what is stored."""
_CORRUPTED: Final = frozenset({"XX001", "XX002"})
"""PostgreSQL's SQLSTATEs of data and indexes that are damaged."""

_ADVICE: Final[dict[int, str]] = {
    sqlite3.SQLITE_BUSY: "end the process that has locked the file, such as a shell of SQLite",
    sqlite3.SQLITE_CANTOPEN: "let this user read and write the file, those beside it (-wal, -shm) and their folder",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy",
    sqlite3.SQLITE_FULL: "make room on its disk",
    sqlite3.SQLITE_IOERR: "look for errors of the disk in the system's log, and make room if it is full",
    sqlite3.SQLITE_NOTADB: "correct its name, or restore it from a copy",
    sqlite3.SQLITE_READONLY: "let this user write the file, those beside it (-wal, -shm) and their folder",
}
"""SQLite's primary result code → what to do, which SQLite does not say."""

_NO_TEXT: Final = "Could not decode to UTF-8"
"""What the module says, without a code, of text in a file that is none."""
_PRIMARY: Final = 0xFF
"""The bits of a result code of SQLite that are its primary one; the others say more about it."""


def _kinds(*of: tuple[Iterable[int], ErrorKind]) -> dict[int, ErrorKind]:
    return {number: kind for numbers, kind in of for number in numbers}


MARIADB: Final[dict[int, ErrorKind]] = _kinds(
    ((1213,), ErrorKind.DEADLOCK),
    ((1020,), ErrorKind.SERIALIZATION),  # the record was changed since the snapshot
    ((1205,), ErrorKind.LOCKED),  # lock wait timeout
    ((1317, 1969, 3024), ErrorKind.CANCELLED),  # interrupted; max_statement_time, max_execution_time
    ((1037, 1038, 1040, 1041, 1135, 1203, 1226), ErrorKind.EXHAUSTED),  # memory, threads, connections, limits of a user
    ((1021, 1114), ErrorKind.FULL),  # the disk; a table
    ((1290, 1836), ErrorKind.UNAVAILABLE),  # it is read-only: a replica, or an operator has made it so
    ((1022, 1048, 1062, 1169, 1216, 1217, 1264, 1292, 1366, 1406, 1451, 1452, 3819, 4025), ErrorKind.INVALID),
    ((1044, 1045, 1049, 1054, 1064, 1142, 1143, 1146, 1227, 1305, 1370), ErrorKind.DENIED),
    ((1053, 1077, 1079, 1080, 1153, 1927, 3169, 4031), ErrorKind.LOST),  # the server ended it, or is shut down
    (range(1156, 1162), ErrorKind.LOST),  # errors of the network
    (range(2000, 3000), ErrorKind.LOST),  # errors that the client itself reports
    ((2026, 2059, 2061), ErrorKind.REFUSED),  # of these: TLS, or a way to log in, that one side does not have or want
)
"""The number of an error of MariaDB or MySQL → its kind; their SQLSTATE, mostly HY000, says nothing. What is missing
is REFUSED."""


def kind_of(error: BaseException) -> ErrorKind:
    """The kind of `error`, as SQLAlchemy or the driver raised it."""
    if getattr(error, "connection_invalidated", False):  # SQLAlchemy has seen the connection end
        return ErrorKind.LOST
    original = _original(error)

    code = getattr(original, "sqlite_errorcode", None)
    if code is not None:
        return SQLITE.get(code & _PRIMARY, ErrorKind.REFUSED)
    if isinstance(original, sqlite3.Error):
        if _NO_TEXT in str(original):
            return ErrorKind.DAMAGED
        no_code = isinstance(original, sqlite3.OperationalError | sqlite3.InterfaceError)
        return ErrorKind.UNTOLD if no_code else ErrorKind.REFUSED  # the module refused it before SQLite saw it

    number = mariadb_number(original)
    if number:
        return MARIADB.get(number, ErrorKind.REFUSED)

    return kind_of_sqlstate(sqlstate_of(original))


def is_of_one_place(error: BaseException) -> bool:
    """Whether what was asked for can't be read because it is damaged, or the disk does not give it: what is elsewhere
    may be readable."""
    code = getattr(_original(error), "sqlite_errorcode", None)
    return code in _UNREAD or sqlstate_of(error) in _CORRUPTED or kind_of(error) is ErrorKind.DAMAGED


def is_no_database(error: BaseException) -> bool:
    """Whether a file is not one of SQLite's, or has lost the beginning that says so."""
    code = getattr(_original(error), "sqlite_errorcode", None)
    return code is not None and code & _PRIMARY == sqlite3.SQLITE_NOTADB


def explained(error: BaseException) -> str:
    """What the database said, and what to do where it does not say that itself."""
    original = _original(error)
    said = str(original).strip()
    code = getattr(original, "sqlite_errorcode", None)
    if code is None and _NO_TEXT in said and isinstance(original, sqlite3.Error):
        code = sqlite3.SQLITE_CORRUPT
    advice = None if code is None else _ADVICE.get(code & _PRIMARY)
    return said if advice is None else f"{said}: {advice}"


def kind_of_sqlstate(sqlstate: str | None) -> ErrorKind:
    """The kind of an error with this SQLSTATE; None: it has none."""
    if sqlstate is None:
        return ErrorKind.UNTOLD
    for length in range(len(sqlstate), 1, -1):
        kind = SQLSTATES.get(sqlstate[:length])
        if kind is not None:
            return kind
    return ErrorKind.REFUSED


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE, where the driver notes it."""
    original = _original(error)
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return state if isinstance(state, str) else None


def mariadb_number(error: BaseException) -> int:
    """The number that drivers of MariaDB and MySQL put first; 0 from others, and from these where they have none."""
    original = _original(error)
    number = next(iter(original.args), 0)
    if not isinstance(number, int) or hasattr(original, "sqlite_errorcode"):
        return 0
    is_builtin = type(original).__module__ == "builtins"  # OSError puts a number first, too
    return 0 if is_builtin else int(number)


def _original(error: BaseException) -> BaseException:
    """The driver's own error, where SQLAlchemy has put another one around it."""
    original = getattr(error, "orig", None)
    return original if isinstance(original, BaseException) else error
