"""MariaAccess: the rules for the use of a branch's connection by the application, over MariaDB and MySQL."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rm_db.mariadb.connection import failure_of  # first, because its package says which extra has PyMySQL

# isort: split
import pymysql

from rm_db.server.steps import ConnectionLost, Failure, drive
from rm_db.sessions.access import BEGIN_S, BranchAccess
from rm_db.sessions.errors import unfinished_error
from rm_db.statements import DEFINES, ENDS
from xa import Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.mariadb.transaction import MariaTransaction

INTERRUPTED: Final = 1317
"""The server's number for it."""
FAILED: Final = 2000
"""The client's number for an unknown error."""
_LEVEL: Final = re.compile(r"[A-Z]+(?: [A-Z]+)*")


class MariaAccess(BranchAccess["MariaConnection"]):
    """The rules of one association, until it ends: no statement begins, ends or leaves the branch, and none defines
    something, before which the server would commit."""

    __slots__ = ("end_session",)

    work: MariaTransaction
    forbidden = ENDS | DEFINES

    def __init__(self, work: MariaTransaction) -> None:
        super().__init__(work)
        self.end_session: Callable[[int], object] = work.end_session
        """Ends a session that is not waited for any more."""

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
            connection = self.enter()

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
                self.leave(connection)

    def _break_off(self, connection: MariaConnection, error: BaseException) -> None:
        """Ends the session after a stop between a statement and the last octet of its reply, because what would be read
        next is not what was asked next. Nothing is left of the branch."""
        why = f"a statement was interrupted, and the session was ended: {type(error).__name__}"
        number = FAILED if isinstance(error, Exception) else INTERRUPTED
        self.work.failure = self.work.failure or Failure(None, why, None, number)
        connection.close()
        self.end_session(connection.thread_id)

    def set_isolation(self, level: str) -> None:
        """Of this branch, before its first statement: it is begun anew."""
        if not _LEVEL.fullmatch(level.upper()):
            raise ValueError(f"{level!r} is no isolation level")
        work = self.work
        if work.used:
            raise xa_error(Code.XAER_PROTO, "the isolation level can be set before the first statement only", self.xid)
        with self.statement_lock:
            connection = self.enter()
            try:
                drive(self._begin_anew(connection, level.upper().encode("ascii")), BEGIN_S)
            except ConnectionLost as lost:
                raise pymysql.OperationalError(2013, str(lost)) from None
            finally:
                connection.lock.release()

    async def _begin_anew(self, connection: MariaConnection, level: bytes) -> None:
        work = self.work
        lock, start = work.begin_commands()
        end, roll_back = (verb + start.removeprefix(b"XA START") for verb in (b"XA END", b"XA ROLLBACK"))
        results = await connection.exchange(end, roll_back, b"SET TRANSACTION ISOLATION LEVEL " + level, lock, start)
        if results[-1].failure is not None:
            work.misused = f"XA START: {results[-1].failure}"
        refused = results[2].failure or results[-1].failure
        if refused is not None:
            raise pymysql.OperationalError(refused.number, refused.message)
