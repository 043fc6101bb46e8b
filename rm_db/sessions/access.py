"""BranchAccess: the rules for the use of a branch's connection by the application.

The sessions of one association can reach the same connection in several ways: SQLAlchemy, the ORM, the driver, each
with and without asyncio. All of them ask one `BranchAccess` before and after each operation. It lets one in at a time
and none after the association has ended, refuses statements that would begin or end a transaction, and notes what the
vote has to know (errors, rows written). `rm_db.sessions.statement_lock` says who waits for whom.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Generic, NoReturn, TypeVar

from rm_db.server.connection import ServerConnection
from rm_db.sessions.errors import busy_error, expired_error, forked_error, refuse
from rm_db.sessions.statement_lock import StatementLock, on_event_loop
from rm_db.statements import ENDS, WRITES, classify

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rm_db.server.transaction import ServerTransaction
    from xa import Xid

C = TypeVar("C", bound=ServerConnection)

BEGIN_S: Final = 60.0
"""How long the server may take to answer the begin of the transaction."""


class BranchAccess(Generic[C]):
    """The rules of one association, until it ends: a `rm_db.sessions.connection.ConnectionAccess`."""

    __slots__ = ("_over", "_pid", "statement_lock", "work")

    forbidden = ENDS
    """Effects of statements that are refused (`rm_db.statements`)."""

    def __init__(self, work: ServerTransaction[C]) -> None:
        self.work = work
        self.statement_lock = StatementLock(work.xid)
        self._over = False
        self._pid = os.getpid()

    @property
    def xid(self) -> Xid:
        return self.work.xid

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def is_forked(self) -> bool:
        return os.getpid() != self._pid

    def expire(self) -> None:
        """The association has ended."""
        self._over = True

    def set_rollback_only(self, why: str) -> None:
        self.work.misused = self.work.misused or why

    def note_lost(self, why: str) -> None:
        """SQLAlchemy considers the connection broken. Whether it is, the driver knows; the work is rolled back in any
        case."""
        self.set_rollback_only(why)

    def check(self) -> None:
        self.work.check()

    def enter(self) -> C:
        """Takes the connection for one operation of the driver."""
        connection = self.work.connection
        self.check_process()
        if self._over or connection is None:
            raise expired_error(self.work.xid)
        if not connection.lock.acquire(blocking=False):
            if self.statement_lock.is_ending or on_event_loop():
                raise busy_error(self.work.xid)
            connection.lock.acquire()
        if self._over or self.work.connection is not connection:
            connection.lock.release()
            raise expired_error(self.work.xid)
        return connection

    def check_process(self) -> None:
        """XAER_PROTO in a fork of the process that has the transaction."""
        if os.getpid() != self._pid:
            raise forked_error(self.work.xid)

    def leave(self, connection: C) -> None:
        """Releases the connection."""
        if connection.is_cut:
            connection.close()
        connection.lock.release()

    def hold(self) -> AbstractContextManager[None]:
        return self.statement_lock.hold()

    def admit(self, statement: str) -> int:
        """The effects of a statement (`rm_db.statements`). One that would begin or end a transaction is refused."""
        effects = classify(statement)
        if effects & self.forbidden:
            self.refuse(repr(statement.strip()[:60]))
        self.work.effects |= effects
        return effects

    def done(self, effects: int, rowcount: int) -> None:
        """A statement with these effects was carried out."""
        if effects & WRITES and rowcount > 0:
            self.work.wrote = True

    def refuse(self, what: str) -> NoReturn:
        """Raises the error for `what`, which is reserved to the transaction manager."""
        refuse(what, self)
