"""PostgresAccess: the rules for the use of a PostgreSQL branch's connection by the application.

`ReservedMethods` are the methods of a psycopg connection that belong to the transaction manager and are refused.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any, Final, NoReturn

import psycopg
from psycopg.waiting import Wait

from rm_db.postgres.libpq import IDLE
from rm_db.postgres.transaction import ENDED
from rm_db.server.steps import ConnectionLost, Failure, Steps, drive
from rm_db.sessions.access import BEGIN_S, BranchAccess
from xa import Code, xa_error

if TYPE_CHECKING:
    from psycopg import IsolationLevel
    from psycopg.abc import PQGen

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.postgres.transaction import PostgresTransaction

_WAITS: Final = {select.POLLIN: Wait.R, select.POLLIN | select.POLLOUT: Wait.RW}


class PostgresAccess(BranchAccess["LibpqConnection"]):
    """The rules of one association, until it ends."""

    __slots__ = ()
    work: PostgresTransaction

    def ensure_begun(self, connection: LibpqConnection, _view: psycopg.Connection[Any]) -> None:
        """Makes sure that the transaction has begun: collects the reply to BEGIN where that is owed."""
        drive(self._collect_begin(connection), BEGIN_S)

    async def ensure_begun_async(self, connection: LibpqConnection, view: psycopg.AsyncConnection[Any]) -> None:
        """The same for asyncio: waits as psycopg waits on `view`. Cancelled, it cancels BEGIN first."""
        await psycopg.AsyncConnection.wait(view, _for_psycopg(self._collect_begin(connection)))

    async def _collect_begin(self, connection: LibpqConnection) -> None:
        work = self.work
        if connection.owed:
            work.refused = (await connection.collect(asked_before=True)).failure
        if connection.status == IDLE and connection.alive:
            if work.refused is not None:
                raise _error_of(work.refused)
            work.misused = work.misused or ENDED
            raise xa_error(Code.XAER_PROTO, work.misused, work.xid)
        work.used = True

    def failed(self, error: psycopg.Error | ConnectionLost) -> psycopg.Error:
        """Notes the error of an operation; returns the one to raise for it."""
        if isinstance(error, ConnectionLost):
            error = psycopg.OperationalError(str(error))
        self.work.failed(error)
        return error

    def succeeded(self) -> None:
        """An operation succeeded after one had failed: a savepoint was rolled back to, and the failure no longer
        counts."""
        self.work.failure = None


def _error_of(failure: Failure) -> psycopg.Error:
    """The error that psycopg would have raised for it."""
    try:
        kind = psycopg.errors.lookup(failure.sqlstate or "")
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(failure.message)


def statement_text(query: Any, view: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    """The text of a query, in any of the forms that psycopg takes."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("latin-1")
    if isinstance(query, psycopg.sql.Composable):
        return query.as_string(view)
    return "".join(getattr(query, "strings", ()))  # a template string


def _for_psycopg(steps: Steps[None]) -> PQGen[None]:
    """Steps of ours as a generator that psycopg waits for."""
    for wait in steps.__await__():
        while not (yield _WAITS[wait.events]):
            pass  # psycopg resumes it from time to time although nothing is ready


class ReservedMethods:
    """The methods of psycopg connections that are refused, because only the transaction manager may end the
    transaction."""

    access: PostgresAccess

    def commit(self) -> NoReturn:
        self.access.refuse("commit()")

    def rollback(self) -> NoReturn:
        self.access.refuse("rollback()")

    def close(self) -> NoReturn:
        self.access.refuse("close()")

    def tpc_begin(self, xid: object) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        self.access.refuse("tpc_begin()")

    def tpc_prepare(self) -> NoReturn:
        self.access.refuse("tpc_prepare()")

    def tpc_commit(self, xid: object = None) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        self.access.refuse("tpc_commit()")

    def tpc_rollback(self, xid: object = None) -> NoReturn:  # noqa: ARG002 — psycopg's signature
        self.access.refuse("tpc_rollback()")

    def _should_cancel(self) -> bool:
        """Whether there is something to cancel: psycopg asks before it does so over a connection of its own."""
        self.access.check_process()
        return bool(super()._should_cancel())  # type: ignore[misc]  # psycopg's

    def __del__(self, *_: object) -> None:
        """Neither closes the libpq connection nor warns that it is open: it belongs to the pool."""


def isolation_statement(level: IsolationLevel | int) -> bytes:
    """The statement that sets the isolation level of this transaction, before its first one."""
    name = psycopg.IsolationLevel(level).name.replace("_", " ")
    return f"SET TRANSACTION ISOLATION LEVEL {name}".encode("ascii")


def access_mode_statement(*, read_only: bool) -> bytes:
    """The statement that sets whether this transaction may write."""
    return b"SET TRANSACTION READ ONLY" if read_only else b"SET TRANSACTION READ WRITE"


def deferrable_statement(*, deferrable: bool) -> bytes:
    """The statement that sets whether this transaction may wait for a safe snapshot."""
    return b"SET TRANSACTION DEFERRABLE" if deferrable else b"SET TRANSACTION NOT DEFERRABLE"
