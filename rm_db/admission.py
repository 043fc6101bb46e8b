"""Admission: what a branch's connection allows to whoever works on it, by threads or by tasks: one view at a time,
until the association ends; no commit, rollback, close or autocommit. Who waits for whom is `rm_db.turn`'s.

`ManagersOwn` is what the views have in common: what is refused there, and the settings of the transaction.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import psycopg

from rm_db.refusal import busy, managers, over
from rm_db.statements import ENDS, WRITES, classify
from rm_db.turn import Turn, on_event_loop
from rm_db.wire import IDLE, ConnectionLost, Steps
from rm_db.work import ENDED
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import IsolationLevel

    from rm_db.wire import Wire
    from rm_db.work import PgWork
    from xa import Xid


class Admission:
    """Who may use a branch's connection: one view at a time, until its association ends."""

    __slots__ = ("_over", "turn", "work")

    def __init__(self, work: PgWork) -> None:
        self.work = work
        self.turn = Turn(work.xid)
        self._over = False

    @property
    def xid(self) -> Xid:
        """The branch."""
        return self.work.xid

    @property
    def is_over(self) -> bool:
        """Whether the association has ended."""
        return self._over

    def expire(self) -> None:
        """The association has ended."""
        self._over = True

    def doom(self, why: str) -> None:
        """Makes the branch rollback-only."""
        self.work.misused = self.work.misused or why

    def lose(self, why: str) -> None:
        """SQLAlchemy takes the connection for broken: what libpq thinks of it counts, and the work is not trusted."""
        self.doom(why)

    def enter(self) -> Wire:
        """Takes the connection for one operation of libpq's."""
        wire = self.work.wire
        if self._over or wire is None:
            raise over(self.work.xid)
        if not wire.lock.acquire(blocking=False):
            if self.turn.is_ending or on_event_loop():
                raise busy(self.work.xid)
            wire.lock.acquire()
        if self._over or self.work.wire is not wire:
            wire.lock.release()
            raise over(self.work.xid)
        return wire

    @contextmanager
    def hold(self) -> Iterator[None]:
        """As `rm_db.alchemy.Owner` says."""
        with self.turn.hold():
            yield

    def begun(self, wire: Wire) -> Steps[None]:
        """Makes sure that the transaction has begun, and goes on."""
        work = self.work
        if wire.owes:
            reply = yield from wire.collect()
            if reply.failure is not None:
                work.misused = f"BEGIN failed: {reply.failure}"
        if wire.status == IDLE and wire.alive:
            work.misused = work.misused or ENDED
            raise xa_error(Code.XAER_PROTO, work.misused, work.xid)
        work.used = True

    def failed(self, error: psycopg.Error | ConnectionLost) -> psycopg.Error:
        """Notes what an operation raised; what to raise for it."""
        if isinstance(error, ConnectionLost):
            error = psycopg.OperationalError(str(error))
        self.work.failed(error)
        return error

    def succeeded(self) -> None:
        """An operation went well: if a savepoint was rolled back to, what failed before it is made good."""
        self.work.failure = None

    def leave(self, wire: Wire) -> None:
        """Lets go of the connection."""
        if wire.doomed:
            wire.close()
        wire.lock.release()

    def admit(self, query: Any, view: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> int:
        """What a query does (`rm_db.statements`); refuses one that would begin or end a transaction."""
        effects = classify(_text(query, view))
        if effects & ENDS:
            raise managers(f"{_text(query, view).strip()[:60]!r}", self.work.xid)
        self.work.effects |= effects
        return effects

    def done(self, effects: int, rowcount: int) -> None:
        """A query with these effects was carried out."""
        if effects & WRITES and rowcount > 0:
            self.work.wrote = True

    def refuse(self, what: str) -> NoReturn:
        """`what` is the transaction manager's."""
        if self._over:
            raise over(self.work.xid)
        raise managers(what, self.work.xid)


def _text(query: Any, view: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    """The words of a query, in any of the forms that psycopg takes."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("latin-1")
    if isinstance(query, psycopg.sql.Composable):
        return query.as_string(view)
    return "".join(getattr(query, "strings", ()))  # a template string


class ManagersOwn:
    """What a view refuses, whether it is awaited or not: it belongs to the transaction manager."""

    admission: Admission

    def commit(self) -> NoReturn:
        """Refused."""
        self.admission.refuse("commit()")

    def rollback(self) -> NoReturn:
        """Refused."""
        self.admission.refuse("rollback()")

    def close(self) -> NoReturn:
        """Refused."""
        self.admission.refuse("close()")

    def tpc_begin(self, xid: object) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_begin()")

    def tpc_prepare(self) -> NoReturn:
        """Refused."""
        self.admission.refuse("tpc_prepare()")

    def tpc_commit(self, xid: object = None) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_commit()")

    def tpc_rollback(self, xid: object = None) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_rollback()")

    def __del__(self, *_: object) -> None:
        """The connection is not a view's to close, nor to complain of."""


def isolation(level: IsolationLevel | int) -> bytes:
    """The statement that sets the isolation level of this transaction, before its first one."""
    name = psycopg.IsolationLevel(level).name.replace("_", " ")
    return f"SET TRANSACTION ISOLATION LEVEL {name}".encode("ascii")


def access(*, read_only: bool) -> bytes:
    """The statement that sets whether this transaction may write."""
    return b"SET TRANSACTION READ ONLY" if read_only else b"SET TRANSACTION READ WRITE"


def deferral(*, deferrable: bool) -> bytes:
    """The statement that sets whether this transaction may wait for a safe snapshot."""
    return b"SET TRANSACTION DEFERRABLE" if deferrable else b"SET TRANSACTION NOT DEFERRABLE"
