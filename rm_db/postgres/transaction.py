"""PostgresTransaction: one branch's local transaction on a PostgreSQL connection, from BEGIN until it is prepared,
committed or rolled back.

Every command that ends the transaction is followed by a reset of the session in the same message
(`rm_db.postgres.database.EndCommands`). So settings, role, advisory locks, cursors, LISTEN, temporary tables and
sequence caches do not reach the next transaction, and the reset costs no round trip of its own. Prepared statements are
kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from rm_db.postgres.database import RESET
from rm_db.postgres.gid import encode_gid
from rm_db.postgres.libpq import ACTIVE, IDLE, IN_ERROR, LibpqConnection, Reply
from rm_db.server.steps import ConnectionLost, Failure
from rm_db.server.transaction import ServerTransaction
from rm_db.sessions.errors import settled_error
from rm_db.sessions.session import INTERRUPT_S
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.postgres.database import PostgresDatabase
    from rm_db.sessions.session import Session
    from rm_db.sessions.session_engine import SessionEngine
    from xa import XaError, Xid

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


class PostgresTransaction(ServerTransaction[LibpqConnection]):
    """One branch's transaction. The session also notes in `refused` the error of BEGIN."""

    def __init__(
        self,
        xid: Xid,
        database: PostgresDatabase,
        connection: LibpqConnection,
        make_session: Callable[[SessionEngine, PostgresTransaction], Session],
    ) -> None:
        self._end_commands = database.end_commands
        self._outcomes = database.outcomes
        self.refused: Failure | None = None
        super().__init__(xid, database, connection, make_session)

    def _begin(self, connection: LibpqConnection) -> None:
        connection.send(b"BEGIN")  # the reply is collected before the first statement, or at the end

    def failed(self, error: psycopg.Error) -> None:
        """Notes, for the session, a statement that raised `error`."""
        connection = self.connection
        if connection is not None and connection.alive and connection.status != IN_ERROR:
            return  # the statement was never sent, or was in a savepoint of its own
        if self.failure is None:
            diagnosis = error.diag
            parts = [diagnosis.message_primary or str(error).strip(), diagnosis.message_detail]
            self.failure = Failure(error.sqlstate, " · ".join(filter(None, parts)), diagnosis.constraint_name)

    def decide(self, insertion: bytes) -> Code:
        """One-phase commit with a decision in it, which the command `insertion` writes."""
        return self._outstanding.run(self._commit(insertion))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _fault(self, connection: LibpqConnection, *, looks: bool) -> XaError | None:
        if connection.owed:
            self.refused = self._outstanding.run(connection.collect()).failure
        status, pipelined = connection.status, connection.pipelined
        gone = looks and status != ACTIVE and not pipelined and connection.went_away()

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

    def _must_prepare(self) -> bool:
        """True also where a statement contained NOTIFY or LISTEN, about which only PREPARE TRANSACTION can decide."""
        return self.wrote or bool(self.effects & NOTIFIES)

    async def _has_only_read(self, connection: LibpqConnection) -> bool:
        reply = await connection.exchange(b"SELECT pg_current_xact_id_if_assigned() IS NULL")
        return reply.failure is None and reply.rows() == [(b"t",)]

    async def _vote_read_only(self, connection: LibpqConnection) -> Code:
        """Commits, because what a serializable transaction has read is valid only if its commit succeeds."""
        reply = await connection.exchange(self._end_commands.ending(b"COMMIT"))
        committed = connection.took_effect(reply, 0, b"COMMIT")
        self._release(connection, reply, ended=committed)
        if committed:
            return Code.XA_RDONLY
        raise self._rolled_back(reply.failure or _FAILED_BEFORE)

    async def _vote(self, connection: LibpqConnection) -> Code:
        place = connection.place
        commands = self._end_commands.preparing(encode_gid(self.xid), noting=bool(place))
        try:
            reply = await connection.exchange(commands)
            # the command tag is the vote: a transaction that had failed answers ROLLBACK, with success
            prepared = connection.took_effect(reply, 1 if place else 0, b"PREPARE TRANSACTION")
        except ConnectionLost as lost:
            raise self._lost_while("prepared", lost) from None

        if prepared and place:
            self._outcomes.add(self.xid, place, reply)
        self._release(connection, reply, ended=prepared)
        if prepared:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        raise self._rolled_back(failure, _VOTE_HINTS.get(failure.sqlstate or ""))

    async def _commit(self, insertion: bytes = b"") -> Code:
        connection = self._connected()
        try:
            # one message: the insertion waits for the process that settles the same transaction, and fails after it
            reply = await connection.exchange(self._end_commands.durable_commit(insertion))
            committed = connection.took_effect(reply, 2 if insertion else 1, b"COMMIT")
        except ConnectionLost as lost:
            raise self._lost_while("committed", lost) from None
        self._release(connection, reply, ended=committed)
        if committed:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        if insertion and not reply.results and failure.sqlstate == UNIQUE_VIOLATION:
            raise settled_error(self.xid)
        raise self._rolled_back(failure)

    async def _start_rollback(self) -> None:
        """Sends the rollback, so that locks are freed; `_rollback` waits for the reply."""
        connection = self._connection_to_roll_back()
        if connection is None:
            return
        try:
            if connection.owed:
                await connection.collect()
            if connection.status == ACTIVE or connection.pipelined:
                self._close_connection()
            else:
                self._send_rollback(connection)
        except ConnectionLost:
            self._close_connection()
        finally:
            connection.lock.release()

    async def _rollback(self) -> Code:
        await self._start_rollback()
        connection = self.connection
        if connection is None:
            return Code.XA_OK
        try:
            if connection.owed:
                reply = await connection.collect()
                connection.reusable &= reply.failure is None
        except ConnectionLost:
            connection.reusable = False
        self._release(connection)
        return Code.XA_OK

    # --- inside ---------------------------------------------------------------------------------------------

    def _send_rollback(self, connection: LibpqConnection) -> None:
        """Sends the rollback; where there is no transaction any more, only the reset. ConnectionLost: they were not
        sent."""
        if connection.status != IDLE:
            connection.send(self._end_commands.ending(b"ROLLBACK"))
        elif self._end_commands.reset:
            connection.send(RESET)

    def _release(self, connection: LibpqConnection, reply: Reply | None = None, *, ended: bool = True) -> None:
        """Gives the connection back. `reply` is the server's to the end of the transaction: if that did not end as
        asked, the server has skipped the reset after it."""
        if reply is not None and reply.failure is not None:
            if ended or not connection.alive:
                connection.reusable = False
            else:
                try:
                    self._send_rollback(connection)
                except ConnectionLost:
                    connection.reusable = False
        self.connection = None
        keep = connection.is_reusable and not self.effects & LINGERS
        self._pool.release(connection, keep=keep)

    def _cancel(self, connection: LibpqConnection) -> bool:
        try:
            connection.psycopg_connection.cancel_safe(timeout=INTERRUPT_S)
        except psycopg.Error:
            return False  # the server can't be reached or is too slow
        return True

    def _rolled_back(self, failure: Failure, hint: str | None = None) -> XaError:
        code = lookup(ROLLED_BACK, failure.sqlstate) if failure.sqlstate else Code.XA_RBCOMMFAIL
        return xa_error(code, f"{failure} ({hint})" if hint else str(failure), self.xid)
