"""MariaAccess: the rules for the use of a branch's connection by the application, over MariaDB and MySQL.

SQLAlchemy and PyMySQL reach one connection, with and without asyncio. Both ask one `MariaAccess` before and after each
statement.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

from rm_db.mariadb.connection import failure_of  # first, because its package says which extra has PyMySQL

# isort: split
import pymysql

from rm_db.connections.steps import ConnectionLost, Failure, drive
from rm_db.sessions.errors import (
    busy_error,
    expired_error,
    forked_error,
    refuse,
    unfinished_error,
)
from rm_db.sessions.statement_lock import StatementLock, on_event_loop
from rm_db.statements import DEFINES, ENDS, WRITES, classify
from xa import Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_db.connections.steps import Steps
    from rm_db.mariadb.connection import MariaConnection
    from rm_db.mariadb.transaction import MariaTransaction
    from xa import Xid

INTERRUPTED: Final = 1317
"""The server's number for it."""
FAILED: Final = 2000
"""The client's number for an unknown error."""
BEGIN_S: Final = 60.0
"""How long the server may take to answer XA START."""
_LEVEL: Final = re.compile(r"[A-Z]+(?: [A-Z]+)*")


class MariaAccess:
    """The rules for the use of a branch's connection by the application, until the association ends: one statement at a
    time, and none that begins, ends or leaves the branch."""

    __slots__ = ("_over", "_pid", "end_session", "statement_lock", "work")

    def __init__(self, work: MariaTransaction) -> None:
        self.work = work
        self.end_session: Callable[[int], object] = work.end_session
        """Ends a session that is not waited for any more."""
        self.statement_lock = StatementLock(work.xid)
        self._over = False
        self._pid = os.getpid()

    @property
    def xid(self) -> Xid:
        return self.work.xid

    @property
    def is_over(self) -> bool:
        return self._over

    def expire(self) -> None:
        """The association has ended."""
        self._over = True

    def set_rollback_only(self, why: str) -> None:
        self.work.misused = self.work.misused or why

    def note_lost(self, why: str) -> None:
        """SQLAlchemy considers the connection broken; the work is rolled back in any case."""
        self.set_rollback_only(why)

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self.statement_lock.hold():
            yield

    def admit(self, statement: str | bytes) -> int:
        """The effects of a statement (`rm_db.statements`). One that would begin, end or leave the branch is refused."""
        text = statement if isinstance(statement, str) else statement.decode("latin-1")
        effects = classify(text)
        if effects & (ENDS | DEFINES):
            self.refuse(repr(text.strip()[:60]))
        return effects

    @contextmanager
    def statement(self) -> Iterator[MariaConnection]:
        """Around one statement: the connection."""
        with self.further_result() as connection:
            connection.drain()
            if connection.unfinished:
                raise unfinished_error(self.xid)
            self.work.used = True
            connection.begin_statement()
            yield connection

    @contextmanager
    def further_result(self) -> Iterator[MariaConnection]:
        """Around reading another result of the last statement: the connection."""
        with self.statement_lock:
            connection = self._enter()
            try:
                yield connection
            except ConnectionLost as lost:
                raise pymysql.OperationalError(2013, str(lost)) from None
            except pymysql.MySQLError as error:
                self.work.failed(failure_of(error))
                raise
            except XaError:
                raise
            except BaseException as error:
                if connection.in_statement or not isinstance(error, Exception):
                    self._break_off(connection, error)
                raise
            finally:
                if connection.is_cut:
                    connection.close()
                connection.lock.release()

    def _break_off(self, connection: MariaConnection, error: BaseException) -> None:
        """Somebody was stopped between a statement and the last octet of its reply. What would be read next is not what
        was asked next, so the session is ended, and nothing is left of the branch."""
        why = f"a statement was interrupted, and the session was ended: {type(error).__name__}"
        number = FAILED if isinstance(error, Exception) else INTERRUPTED
        self.work.failure = self.work.failure or Failure(None, why, None, number)
        connection.close()
        self.end_session(connection.thread_id)

    def _enter(self) -> MariaConnection:
        connection = self.work.connection
        if os.getpid() != self._pid:
            raise forked_error(self.xid)
        if self._over or connection is None:
            raise expired_error(self.xid)
        if not connection.lock.acquire(blocking=False):
            if self.statement_lock.is_ending or on_event_loop():
                raise busy_error(self.xid)
            connection.lock.acquire()
        if self._over or self.work.connection is not connection:
            connection.lock.release()
            raise expired_error(self.xid)
        return connection

    def done(self, effects: int, rowcount: int) -> None:
        """A statement with these effects was carried out."""
        self.work.effects |= effects
        if effects & WRITES and rowcount > 0:
            self.work.wrote = True

    def set_isolation(self, level: str) -> None:
        """Of this branch, before its first statement: it is begun anew."""
        if not _LEVEL.fullmatch(level.upper()):
            raise ValueError(f"{level!r} is no isolation level")
        work = self.work
        if work.used:
            raise xa_error(Code.XAER_PROTO, "the isolation level can be set before the first statement only", self.xid)
        with self.statement_lock:
            connection = self._enter()
            try:
                drive(self._begin_anew(connection, level.upper().encode("ascii")), BEGIN_S)
            except ConnectionLost as lost:
                raise pymysql.OperationalError(2013, str(lost)) from None
            finally:
                connection.lock.release()

    def _begin_anew(self, connection: MariaConnection, level: bytes) -> Steps[None]:
        work = self.work
        lock, start = work.begin_commands()
        end, roll_back = (verb + start.removeprefix(b"XA START") for verb in (b"XA END", b"XA ROLLBACK"))
        results = yield from connection.exchange(
            end, roll_back, b"SET TRANSACTION ISOLATION LEVEL " + level, lock, start
        )
        if results[-1].failure is not None:
            work.misused = f"XA START: {results[-1].failure}"
        refused = results[2].failure or results[-1].failure
        if refused is not None:
            raise pymysql.OperationalError(refused.number, refused.message)

    def refuse(self, what: str) -> NoReturn:
        """Raises the error for `what`, which is reserved to the transaction manager."""
        refuse(what, self)
