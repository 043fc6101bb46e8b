"""PgWork: the unit of work of one branch on one PostgreSQL connection, from BEGIN until it is prepared or over.

Every command that ends the transaction carries the reset of the session behind it, in the same message: settings,
role, advisory locks, cursors, LISTEN, temporary tables and sequence caches don't reach the next transaction, and
that costs no round trip. Prepared statements stay.

What is read-only is never prepared, but committed: PostgreSQL would write a prepared transaction to disk twice for
nothing. A branch that is known to have written (its statements' words and row counts say so) is prepared at once;
otherwise the server is asked whether it has given the transaction an id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from rm_db.sqlstate import (
    DUPLICATE_OBJECT,
    FEATURE_NOT_SUPPORTED,
    OUT_OF_MEMORY,
    ROLLED_BACK,
    UNIQUE_VIOLATION,
    is_lost,
    lookup,
)
from rm_db.statements import LINGERS, NOTIFIES
from rm_db.wire import ACTIVE, IDLE, IN_ERROR, ConnectionLost, Failure, Reply, Steps, Wire
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.branches import Session
    from rm_db.pool import WirePool
    from xa import XaError, Xid

RESET: Final = (
    b"CLOSE ALL;RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;UNLISTEN *;"
    b"SELECT pg_advisory_unlock_all();DISCARD TEMP;DISCARD SEQUENCES"
)
"""DISCARD ALL without the prepared statements and plans, which are worth keeping."""
RESET_PREPARED: Final = (
    b"RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;SELECT pg_advisory_unlock_all();DISCARD SEQUENCES"
)
"""The same behind PREPARE TRANSACTION, which refuses held cursors, temporary tables and LISTEN: there are none."""

INTERRUPT_S: Final = 5.0
"""How long a statement that runs while its branch is rolled back has to let itself be cancelled."""

_VOTE_HINTS: Final = {
    FEATURE_NOT_SUPPORTED: "PostgreSQL can't prepare such work: keep it out of two-phase transactions",
    OUT_OF_MEMORY: "raise max_prepared_transactions, and look for orphans with xabridge recover list",
    DUPLICATE_OBJECT: "another transaction has this xid, and xids must be unique",
}
ENDED: Final = (
    "a statement of the session has ended the transaction, which only the transaction manager may: what came before it "
    "may be committed already"
)
SETTLED: Final = "recovery has settled this transaction as rolled back, before it was decided"
_FAILED_BEFORE: Final = Failure("25P02", "the transaction had failed before")


@dataclass(frozen=True, slots=True)
class Manners:
    """How a server wants to be spoken to. `reset` is False behind a transaction pooler, where a session is nobody's;
    `synchronous_commit` is what one-phase commits set, so that they are durable when they are answered."""

    reset: bool = True
    synchronous_commit: str = "on"

    def ending(self, command: bytes) -> bytes:
        """`command`, which ends a transaction, with the reset behind it."""
        return command + b";" + RESET if self.reset else command

    def preparing(self, gid: bytes) -> bytes:
        """PREPARE TRANSACTION, with the reset behind it."""
        command = b"PREPARE TRANSACTION '" + gid + b"'"
        return command + b";" + RESET_PREPARED if self.reset else command

    def durable_commit(self, insertion: bytes) -> bytes:
        """The commands that commit in one phase, `insertion` (or nothing) first."""
        setting = b"SET LOCAL synchronous_commit TO " + self.synchronous_commit.encode("ascii") + b";COMMIT"
        return self.ending(insertion + b";" + setting if insertion else setting)


class PgWork:
    """One branch's work. Its connection is given back to the pool when the work is over; `wire` is None then.

    The session tells what it sees: `failure` is the error that a statement left the transaction with, `misused` says
    why the session made the work rollback-only, `used` and `wrote` whether there was any statement, and any row
    written; `effects` are those of its texts.
    """

    __slots__ = (
        "_ending",
        "_make_session",
        "_manners",
        "_pool",
        "effects",
        "failure",
        "misused",
        "used",
        "wire",
        "wrote",
        "xid",
    )

    def __init__(
        self,
        xid: Xid,
        pool: WirePool,
        manners: Manners,
        make_session: Callable[[PgWork], Session],
        *,
        wait: bool,
    ) -> None:
        self.xid = xid
        self._pool = pool
        self._manners = manners
        self._make_session = make_session
        self._ending = False
        self.failure: Failure | None = None
        self.misused: str | None = None
        self.effects = 0
        self.used = False
        self.wrote = False
        wire = pool.acquire(work=True, wait=wait)
        try:
            wire.send(b"BEGIN")  # the reply is collected before the first statement, or at the end
        except ConnectionLost as lost:
            pool.release(wire)
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", xid) from None
        self.wire: Wire | None = wire

    def session(self) -> Session:
        """What the application works with."""
        return self._make_session(self)

    def failed(self, error: psycopg.Error) -> None:
        """For the session: a statement raised `error`."""
        wire = self.wire
        if wire is not None and wire.alive and wire.status != IN_ERROR:
            return  # the statement was never sent, or it was in a savepoint of its own
        if self.failure is None:
            diagnosis = error.diag
            parts = [diagnosis.message_primary or str(error).strip(), diagnosis.message_detail]
            self.failure = Failure(error.sqlstate, " · ".join(filter(None, parts)), diagnosis.constraint_name)

    # --- verbs --------------------------------------------------------------------------------------------------

    def check(self) -> Steps[XaError | None]:
        """At the end of the work: the XA_RB* that makes it rollback-only, or XAER_RMFAIL, if anything does."""
        wire = self._wire()
        if not wire.lock.acquire(blocking=False):
            return xa_error(Code.XA_RBPROTO, "another thread is still in a statement of this branch", self.xid)
        try:
            if wire.owes:
                yield from wire.collect()
            gone = wire.status != ACTIVE and not wire.pipelined and wire.went_away()
        except ConnectionLost as lost:
            return xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", self.xid)
        finally:
            wire.lock.release()
        if gone or not wire.alive:
            why = self.failure or "its other side has closed it"
            return xa_error(Code.XAER_RMFAIL, f"the connection was lost: {why}", self.xid)
        if wire.status == IN_ERROR and not wire.pipelined:
            return self._rolled_back(self.failure or _FAILED_BEFORE)
        if self.misused is not None:
            return xa_error(Code.XA_RBPROTO, self.misused, self.xid)
        if wire.pipelined or wire.status == ACTIVE:
            return xa_error(Code.XA_RBPROTO, "a statement, COPY, stream or pipeline was not finished", self.xid)
        if wire.status == IDLE:
            return xa_error(Code.XA_RBPROTO, ENDED, self.xid)
        return None

    def prepare(self, gid: bytes) -> Steps[Code]:
        """The vote: XA_OK, XA_RDONLY, or the XaError that the contract names for it."""
        wire = self._wire()
        try:
            if not self._must_prepare() and (yield from self._is_read_only(wire)):
                return (yield from self._vote_read_only(wire))
        except ConnectionLost as lost:  # nothing was prepared, nothing can be committed
            self.abandon()
            raise self._rolled_back(lost.failure) from None
        try:
            reply = yield from wire.exchange(self._manners.preparing(gid))
        except ConnectionLost as lost:
            self.abandon()
            message = f"the connection was lost while the branch was prepared: {lost}"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid) from None
        # the command tag is the vote: a transaction that had failed answers ROLLBACK, with success
        prepared = reply.tag(0) == b"PREPARE TRANSACTION"
        self._leave(wire, reply, ended=prepared)
        if prepared:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        raise self._rolled_back(failure, _VOTE_HINTS.get(failure.sqlstate or ""))

    def commit(self) -> Steps[Code]:
        """One-phase commit."""
        return self._commit(b"")

    def decide(self, insertion: bytes) -> Steps[Code]:
        """One-phase commit with a decision in it, which the command `insertion` writes."""
        return self._commit(insertion)

    def _commit(self, insertion: bytes) -> Steps[Code]:
        wire = self._wire()
        try:
            # one message: the insertion waits for whoever settles the same transaction, and fails behind it
            reply = yield from wire.exchange(self._manners.durable_commit(insertion))
        except ConnectionLost as lost:
            self.abandon()
            message = f"the connection was lost while the branch was committed: {lost}"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid) from None
        told = reply.tag(2 if insertion else 1)
        if told is None and not wire.alive and (reply.failure is None or is_lost(reply.failure.sqlstate)):
            self.abandon()  # the commands before it were answered, the commit was not: it may have been carried out
            message = "the connection was lost while the branch was committed, in the middle of the reply"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid)
        committed = told == b"COMMIT"
        self._leave(wire, reply, ended=committed)
        if committed:
            return Code.XA_OK
        failure = reply.failure or _FAILED_BEFORE
        if insertion and not reply.results and failure.sqlstate == UNIQUE_VIOLATION:
            raise xa_error(Code.XA_RBROLLBACK, SETTLED, self.xid)
        raise self._rolled_back(failure)

    def start_rollback(self) -> Steps[None]:
        """Sends the rollback, so that locks are freed; `rollback` waits for it. Work that was not prepared can't
        survive, so that no loss of the connection is an error here."""
        wire = self.wire
        if wire is None or self._ending:
            return
        if not wire.lock.acquire(blocking=False) and not self._interrupt(wire):
            self.abandon()
            return
        self._ending = True
        try:
            if wire.owes:
                yield from wire.collect()
            if wire.status == ACTIVE or wire.pipelined:
                self.abandon()
            elif wire.status != IDLE:
                wire.send(self._manners.ending(b"ROLLBACK"))
            elif self._manners.reset:
                wire.send(RESET)
        except ConnectionLost:
            self.abandon()
        finally:
            wire.lock.release()

    def rollback(self) -> Steps[None]:
        """Rolls back, and waits until that is done."""
        yield from self.start_rollback()
        wire = self.wire
        if wire is None:
            return
        try:
            if wire.owes:
                reply = yield from wire.collect()
                wire.reusable &= reply.failure is None
        except ConnectionLost:
            wire.reusable = False
        self._give_back(wire)

    def abandon(self) -> None:
        """Gives the connection up."""
        wire = self.wire
        if wire is not None:
            wire.reusable = False
            self._give_back(wire)

    # --- inside ---------------------------------------------------------------------------------------------

    def _wire(self) -> Wire:
        if self.wire is None:
            raise xa_error(Code.XAER_NOTA, "the work was given up", self.xid)
        return self.wire

    def _must_prepare(self) -> bool:
        """Rows were written, or a text spoke of NOTIFY or LISTEN, of which only PREPARE itself can judge."""
        return self.wrote or bool(self.effects & NOTIFIES)

    def _is_read_only(self, wire: Wire) -> Steps[bool]:
        if not self.used:
            return True
        reply = yield from wire.exchange(b"SELECT pg_current_xact_id_if_assigned() IS NULL")
        return reply.failure is None and reply.rows()[0][0] == b"t"

    def _vote_read_only(self, wire: Wire) -> Steps[Code]:
        """Commits: in a serializable transaction, what was read is true only if that succeeds."""
        reply = yield from wire.exchange(self._manners.ending(b"COMMIT"))
        committed = reply.tag(0) == b"COMMIT"
        self._leave(wire, reply, ended=committed)
        if committed:
            return Code.XA_RDONLY
        raise self._rolled_back(reply.failure or _FAILED_BEFORE)

    def _leave(self, wire: Wire, reply: Reply, *, ended: bool) -> None:
        """The transaction is over. Where it did not end as asked, the reset behind it was skipped."""
        if reply.failure is not None:
            if ended or not wire.alive:
                wire.reusable = False
            else:
                try:
                    if wire.status != IDLE:
                        wire.send(self._manners.ending(b"ROLLBACK"))
                    elif self._manners.reset:
                        wire.send(RESET)
                except ConnectionLost:
                    wire.reusable = False
        self._give_back(wire)

    def _give_back(self, wire: Wire) -> None:
        self.wire = None
        if self.effects & LINGERS:
            wire.reusable = False
        self._pool.release(wire)

    def _interrupt(self, wire: Wire) -> bool:
        """Another thread is in a statement: cancels it and takes the connection over, or cuts the connection."""
        try:
            wire.connection.cancel_safe(timeout=INTERRUPT_S)
        except psycopg.Error:
            pass  # the server can't be reached, or is too slow
        else:
            if wire.lock.acquire(timeout=INTERRUPT_S):
                return True
        wire.doom()
        return False

    def _rolled_back(self, failure: Failure, hint: str | None = None) -> XaError:
        """The XA_RB* that `failure` stands for."""
        code = lookup(ROLLED_BACK, failure.sqlstate) if failure.sqlstate else Code.XA_RBCOMMFAIL
        return xa_error(code, f"{failure} ({hint})" if hint else str(failure), self.xid)
