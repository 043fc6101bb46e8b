"""PostgresTransaction: one branch's local transaction on a PostgreSQL connection, from BEGIN until it is prepared,
committed or rolled back.

Every command that ends the transaction is followed by a reset of the session in the same message. So settings, role,
advisory locks, cursors, LISTEN, temporary tables and sequence caches do not reach the next transaction, and the reset
costs no round trip of its own. Prepared statements are kept.

A read-only transaction is committed instead of prepared, because PostgreSQL would write a prepared one to disk twice
for nothing. A branch that is known to have written (the words of its statements and their row counts say so) is
prepared at once; otherwise the server is asked whether it has given the transaction an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from rm_db.connections.steps import ConnectionLost, Failure, Steps
from rm_db.postgres.gid import encode_gid
from rm_db.postgres.libpq import ACTIVE, IDLE, IN_ERROR, LibpqConnection, Reply
from rm_db.sessions.errors import settled_error
from rm_db.sessions.session import INTERRUPT_S, end_session
from rm_db.sqlstate import (
    DUPLICATE_OBJECT,
    FEATURE_NOT_SUPPORTED,
    OUT_OF_MEMORY,
    ROLLED_BACK,
    UNIQUE_VIOLATION,
    lookup,
)
from rm_db.statements import LINGERS, NOTIFIES
from xa import Code, xa_error
from xa.branches import Unit

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.connections.pending import OutstandingSteps
    from rm_db.connections.pool import ConnectionPool
    from rm_db.sessions.session import Session
    from xa import XaError, Xid
    from xa.driver import Pending, SessionContext

RESET: Final = (
    b"CLOSE ALL;RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;UNLISTEN *;"
    b"SELECT pg_advisory_unlock_all();DISCARD TEMP;DISCARD SEQUENCES"
)
"""DISCARD ALL without the prepared statements and plans, which are worth keeping."""
RESET_PREPARED: Final = (
    b"RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;SELECT pg_advisory_unlock_all();DISCARD SEQUENCES"
)
"""The same behind PREPARE TRANSACTION, which refuses held cursors, temporary tables and LISTEN: there are none."""

_VOTE_HINTS: Final = {
    FEATURE_NOT_SUPPORTED: "PostgreSQL can't prepare such work: keep it out of two-phase transactions",
    OUT_OF_MEMORY: "raise max_prepared_transactions, and look for orphans with xabridge recover list",
    DUPLICATE_OBJECT: "another transaction has this xid, and xids must be unique",
}
ENDED: Final = (
    "a statement of the session has ended the transaction, which only the transaction manager may: what came before it "
    "may be committed already"
)
_FAILED_BEFORE: Final = Failure("25P02", "the transaction had failed before")


@dataclass(frozen=True, slots=True)
class EndCommands:
    """The commands that end a transaction. `reset` is False behind a transaction pooler, where no session belongs to a
    client. `synchronous_commit` is the setting for one-phase commits, so that they are durable when they are
    answered."""

    reset: bool = True
    synchronous_commit: str = "on"

    def ending(self, command: bytes) -> bytes:
        """`command`, which ends a transaction, followed by the reset."""
        return command + b";" + RESET if self.reset else command

    def preparing(self, gid: bytes) -> bytes:
        """PREPARE TRANSACTION, followed by the reset."""
        command = b"PREPARE TRANSACTION '" + gid + b"'"
        return command + b";" + RESET_PREPARED if self.reset else command

    def durable_commit(self, insertion: bytes) -> bytes:
        """The commands that commit in one phase, with `insertion` before the commit unless it is empty."""
        setting = b"SET LOCAL synchronous_commit TO " + self.synchronous_commit.encode("ascii") + b";COMMIT"
        return self.ending(insertion + b";" + setting if insertion else setting)


class PostgresTransaction(Unit):
    """One branch's transaction. When it has ended, its connection is returned to the pool and `connection` is None.

    The session notes here what the vote needs: `refused` is the error of BEGIN, `failure` the one with which a
    statement left the transaction failed, `misused` the reason for which the session made it rollback-only, `used`
    whether any statement was carried out, `wrote` whether one wrote rows, and `effects` the effects of the statements'
    texts (`rm_db.statements`).
    """

    def __init__(
        self,
        xid: Xid,
        pool: ConnectionPool[LibpqConnection],
        end_commands: EndCommands,
        make_session: Callable[[PostgresTransaction], Session],
        outstanding: OutstandingSteps,
        *,
        wait: bool,
    ) -> None:
        self.xid = xid
        self._outstanding = outstanding
        self._session: Session | None = None
        self._pool = pool
        self._end_commands = end_commands
        self._make_session = make_session
        self._ending = False
        self.failure: Failure | None = None
        self.refused: Failure | None = None
        self.misused: str | None = None
        self.effects = 0
        self.used = False
        self.wrote = False
        connection = pool.acquire(work=True, wait=wait)
        try:
            connection.send(b"BEGIN")  # the reply is collected before the first statement, or at the end
        except ConnectionLost as lost:
            pool.release(connection)
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", xid) from None
        self.connection: LibpqConnection | None = connection

    def failed(self, error: psycopg.Error) -> None:
        """For the session: a statement raised `error`."""
        connection = self.connection
        if connection is not None and connection.alive and connection.status != IN_ERROR:
            return  # the statement was never sent, or was in a savepoint of its own
        if self.failure is None:
            diagnosis = error.diag
            parts = [diagnosis.message_primary or str(error).strip(), diagnosis.message_detail]
            self.failure = Failure(error.sqlstate, " · ".join(filter(None, parts)), diagnosis.constraint_name)

    # --- verbs --------------------------------------------------------------------------------------------------

    def session(self, context: SessionContext[Any]) -> Any:
        del context  # a session asks the transaction itself before each operation
        if self._session is None:
            self._session = self._make_session(self)
        return self._session.facade

    def end(self, *, fail: bool) -> None:
        session, self._session = self._session, None
        unflushed = None if session is None else end_session(session, self.xid, flush=not fail)
        fault = self._check() or unflushed
        if fault is not None:
            raise fault

    def prepare(self, *, later: bool) -> Code | Pending:
        return self._outstanding.carry_out(self.xid, self._prepare(encode_gid(self.xid)), later=later)

    def commit(self, *, later: bool) -> Code | Pending:
        return self._outstanding.carry_out(self.xid, self._commit(b""), later=later)

    def decide(self, insertion: bytes) -> Code:
        """One-phase commit with a decision in it, which the command `insertion` writes."""
        return self._outstanding.run(self._commit(insertion))

    def start_rollback(self) -> None:
        self._expire_session()
        self._outstanding.run(self._start_rollback())

    def rollback(self, *, later: bool) -> Code | Pending:
        self._expire_session()
        return self._outstanding.carry_out(self.xid, self._rollback(), later=later)

    def abandon(self) -> None:
        self._expire_session()
        self._close_connection()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _check(self) -> XaError | None:
        """The XA_RB* that makes the branch rollback-only, or XAER_RMFAIL, or None."""
        connection = self._connected()
        if not connection.lock.acquire(blocking=False):
            return xa_error(Code.XA_RBPROTO, "another thread is still in a statement of this branch", self.xid)
        try:
            if connection.owes:
                self.refused = self._outstanding.run(connection.collect()).failure
            status, pipelined = connection.status, connection.pipelined
            gone = status != ACTIVE and not pipelined and connection.went_away()
        except ConnectionLost as lost:
            return xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", self.xid)
        finally:
            connection.lock.release()
        if gone or not connection.alive:
            why = self.failure or "its other side has closed it"
            return xa_error(Code.XAER_RMFAIL, f"the connection was lost: {why}", self.xid)
        if status == IN_ERROR and not pipelined:
            return self._rolled_back(self.failure or _FAILED_BEFORE)
        if status == IDLE and self.refused is not None:
            return self._rolled_back(self.refused)
        if self.misused is not None:
            return xa_error(Code.XA_RBPROTO, self.misused, self.xid)
        if pipelined or status == ACTIVE:
            return xa_error(Code.XA_RBPROTO, "a statement, COPY, stream or pipeline was not finished", self.xid)
        if status == IDLE:
            return xa_error(Code.XA_RBPROTO, ENDED, self.xid)
        return None

    def _prepare(self, gid: bytes) -> Steps[Code]:
        connection = self._connected()
        try:
            if not self._must_prepare() and (yield from self._is_read_only(connection)):
                return (yield from self._vote_read_only(connection))
        except ConnectionLost as lost:  # nothing was prepared, nothing can be committed
            self._close_connection()
            raise self._rolled_back(lost.failure) from None
        try:
            reply = yield from connection.exchange(self._end_commands.preparing(gid))
            # the command tag is the vote: a transaction that had failed answers ROLLBACK, with success
            prepared = connection.took_effect(reply, 0, b"PREPARE TRANSACTION")
        except ConnectionLost as lost:
            self._close_connection()
            message = f"the connection was lost while the branch was prepared: {lost}"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid) from None
        self._leave(connection, reply, ended=prepared)
        if prepared:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        raise self._rolled_back(failure, _VOTE_HINTS.get(failure.sqlstate or ""))

    def _commit(self, insertion: bytes) -> Steps[Code]:
        connection = self._connected()
        try:
            # one message: the insertion waits for the process that settles the same transaction, and fails after it
            reply = yield from connection.exchange(self._end_commands.durable_commit(insertion))
            committed = connection.took_effect(reply, 2 if insertion else 1, b"COMMIT")
        except ConnectionLost as lost:
            self._close_connection()
            message = f"the connection was lost while the branch was committed: {lost}"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid) from None
        self._leave(connection, reply, ended=committed)
        if committed:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        if insertion and not reply.results and failure.sqlstate == UNIQUE_VIOLATION:
            raise settled_error(self.xid)
        raise self._rolled_back(failure)

    def _start_rollback(self) -> Steps[None]:
        """Sends the rollback, so that locks are freed; `rollback` waits for the reply. A lost connection is no error
        here, because what was not prepared does not survive it."""
        connection = self.connection
        if connection is None or self._ending:
            return
        if not connection.lock.acquire(blocking=False) and not self._interrupt(connection):
            self._close_connection()
            return
        self._ending = True
        try:
            if connection.owes:
                yield from connection.collect()
            if connection.status == ACTIVE or connection.pipelined:
                self._close_connection()
            elif connection.status != IDLE:
                connection.send(self._end_commands.ending(b"ROLLBACK"))
            elif self._end_commands.reset:
                connection.send(RESET)
        except ConnectionLost:
            self._close_connection()
        finally:
            connection.lock.release()

    def _rollback(self) -> Steps[Code]:
        yield from self._start_rollback()
        connection = self.connection
        if connection is None:
            return Code.XA_OK
        try:
            if connection.owes:
                reply = yield from connection.collect()
                connection.reusable &= reply.failure is None
        except ConnectionLost:
            connection.reusable = False
        self._give_back(connection)
        return Code.XA_OK

    # --- inside ---------------------------------------------------------------------------------------------

    def _expire_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.expire()

    def _close_connection(self) -> None:
        connection = self.connection
        if connection is not None:
            connection.reusable = False
            self._give_back(connection)

    def _connected(self) -> LibpqConnection:
        if self.connection is None:
            raise xa_error(Code.XAER_NOTA, "the work was abandoned", self.xid)
        return self.connection

    def _must_prepare(self) -> bool:
        """Rows were written, or a statement contained NOTIFY or LISTEN, about which only PREPARE TRANSACTION can
        decide."""
        return self.wrote or bool(self.effects & NOTIFIES)

    def _is_read_only(self, connection: LibpqConnection) -> Steps[bool]:
        if not self.used:
            return True
        reply = yield from connection.exchange(b"SELECT pg_current_xact_id_if_assigned() IS NULL")
        return reply.failure is None and reply.rows() == [(b"t",)]

    def _vote_read_only(self, connection: LibpqConnection) -> Steps[Code]:
        """Commits, because what a serializable transaction has read is valid only if its commit succeeds."""
        reply = yield from connection.exchange(self._end_commands.ending(b"COMMIT"))
        committed = connection.took_effect(reply, 0, b"COMMIT")
        self._leave(connection, reply, ended=committed)
        if committed:
            return Code.XA_RDONLY
        raise self._rolled_back(reply.failure or _FAILED_BEFORE)

    def _leave(self, connection: LibpqConnection, reply: Reply, *, ended: bool) -> None:
        """The transaction has ended. If it did not end as asked, the server has skipped the reset after it."""
        if reply.failure is not None:
            if ended or not connection.alive:
                connection.reusable = False
            else:
                try:
                    if connection.status != IDLE:
                        connection.send(self._end_commands.ending(b"ROLLBACK"))
                    elif self._end_commands.reset:
                        connection.send(RESET)
                except ConnectionLost:
                    connection.reusable = False
        self._give_back(connection)

    def _give_back(self, connection: LibpqConnection) -> None:
        self.connection = None
        if self.effects & LINGERS:
            connection.reusable = False
        self._pool.release(connection)

    def _interrupt(self, connection: LibpqConnection) -> bool:
        """Another thread is in a statement: cancels that and takes the connection, or cuts the connection."""
        try:
            connection.psycopg_connection.cancel_safe(timeout=INTERRUPT_S)
        except psycopg.Error:
            pass  # the server can't be reached or is too slow
        else:
            if connection.lock.acquire(timeout=INTERRUPT_S):
                return True
        connection.cut()
        return False

    def _rolled_back(self, failure: Failure, hint: str | None = None) -> XaError:
        """The XA_RB* that `failure` stands for."""
        code = lookup(ROLLED_BACK, failure.sqlstate) if failure.sqlstate else Code.XA_RBCOMMFAIL
        return xa_error(code, f"{failure} ({hint})" if hint else str(failure), self.xid)
