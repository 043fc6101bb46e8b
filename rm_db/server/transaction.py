"""ServerTransaction: one branch's transaction on a connection of its own to a server, from its begin until it is
prepared, committed or rolled back: what PostgreSQL, MariaDB and MySQL have in common.

A branch that is known to have written (the words of its statements and their row counts say so) is prepared at once.
Otherwise the server is asked whether it has; a branch that only read is committed instead, and votes read-only, because
the server would write a prepared one to disk for nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rm_db.server.connection import ServerConnection
from rm_db.server.steps import ConnectionLost, drive
from rm_db.sessions.session import INTERRUPT_S, SessionUnitOfWork
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from rm_db.server.database import ServerDatabase
    from rm_db.server.steps import Failure, Steps
    from rm_db.sessions.session import Session
    from rm_db.sessions.session_engine import SessionEngine
    from xa import XaError, Xid
    from xa.driver import Pending, SessionContext


C = TypeVar("C", bound=ServerConnection)


class ServerTransaction(SessionUnitOfWork, Generic[C]):
    """One branch's transaction, on a `connection` of the pool. When it has ended, `connection` is None, and the
    connection is in the pool again, or kept for the prepared branch.

    The session notes here what the vote needs: `failure` is the error for which the work can only be rolled back,
    `misused` the reason for which the session made the branch rollback-only, `used` whether any statement was carried
    out, `wrote` whether one wrote rows, and `effects` the effects of the statements' texts (`rm_db.statements`).
    """

    def __init__(
        self,
        xid: Xid,
        database: ServerDatabase[C, Any],
        connection: C,
        make_session: Callable[[SessionEngine, Any], Session],
    ) -> None:
        self.xid = xid
        self._pool = database.pool
        self._outstanding = database.outstanding
        self._reply_s = database.address.reply_s
        self._session_engine = database.session_engine
        self._make_session = make_session
        self._ending = False
        self.failure: Failure | None = None
        self.misused: str | None = None
        self.effects = 0
        self.used = False
        self.wrote = False
        self.connection: C | None = connection

    def begin(self) -> Self:
        """Begins it, and returns it. With any error the connection is given up."""
        try:
            self._begin(self._connected())
        except ConnectionLost as lost:
            self._close_connection()
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", self.xid) from None
        except BaseException:
            self._close_connection()
            raise
        return self

    @abstractmethod
    def _begin(self, connection: C) -> None:
        """Begins the transaction."""

    @abstractmethod
    def _fault(self, connection: C, *, looks: bool) -> XaError | None:
        """What `_check` finds on the connection, which is not used otherwise meanwhile. ConnectionLost: it is lost."""

    @abstractmethod
    def _must_prepare(self) -> bool:
        """Whether it is known that the server has to vote."""

    @abstractmethod
    def _has_only_read(self, connection: C) -> Steps[bool]:
        """Asks the server whether a transaction that was used has written nothing."""

    @abstractmethod
    def _vote_read_only(self, connection: C) -> Steps[Code]:
        """Ends a transaction that has written nothing."""

    @abstractmethod
    def _vote(self, connection: C) -> Steps[Code]:
        """Has the server prepare the branch."""

    @abstractmethod
    def _commit(self) -> Steps[Code]:
        """Commits in one phase."""

    @abstractmethod
    def _start_rollback(self) -> Steps[Any]:
        """Has the server roll back. A lost connection is no error here, because what was not prepared does not survive
        it."""

    @abstractmethod
    def _rollback(self) -> Steps[Code]:
        """The same, until nothing is left of the transaction."""

    @abstractmethod
    def _cancel(self, connection: C) -> bool:
        """Asks the server to interrupt the statement that another thread is in; False where that can't be asked."""

    @abstractmethod
    def _rolled_back(self, failure: Failure) -> XaError:
        """The XA_RB* that `failure` stands for."""

    # --- verbs --------------------------------------------------------------------------------------------------

    def session(self, context: SessionContext[Any]) -> Any:
        del context  # a session asks the transaction itself before each operation
        if self._session is None:
            self._session = self._make_session(self._session_engine, self)
        return self._session.facade

    def prepare(self, *, later: bool) -> Code | Pending:
        connection = self._connected()
        steps = self._vote(connection) if self._must_prepare() else self._vote_of_a_reader(connection)
        return self._outstanding.begin(self.xid, steps) if later else drive(steps, self._reply_s)

    def commit(self, *, later: bool) -> Code | Pending:
        steps = self._commit()
        return self._outstanding.begin(self.xid, steps) if later else drive(steps, self._reply_s)

    def start_rollback(self) -> None:
        self._expire_session()
        self._outstanding.run(self._start_rollback())

    def rollback(self, *, later: bool) -> Code | Pending:
        self._expire_session()
        steps = self._rollback()
        return self._outstanding.begin(self.xid, steps) if later else drive(steps, self._reply_s)

    def abandon(self) -> None:
        self._expire_session()
        self._close_connection()

    # --- steps ------------------------------------------------------------------------------------------------------

    def _check(self, *, looks: bool = True) -> XaError | None:
        connection = self._connected()
        if not connection.lock.acquire(blocking=False):
            return xa_error(Code.XA_RBPROTO, "another thread is still in a statement of this branch", self.xid)
        try:
            return self._fault(connection, looks=looks)
        except ConnectionLost as lost:
            return xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}", self.xid)
        finally:
            connection.lock.release()

    async def _vote_of_a_reader(self, connection: C) -> Code:
        """The vote of a branch that is not known to have written."""
        try:
            if not self.used or (await self._has_only_read(connection)):
                return await self._vote_read_only(connection)
        except ConnectionLost as lost:  # nothing was prepared, nothing can be committed
            self._close_connection()
            raise self._rolled_back(lost.failure) from None
        return await self._vote(connection)

    # --- for subclasses -------------------------------------------------------------------------------------------

    def _connected(self) -> C:
        if self.connection is None:
            raise xa_error(Code.XAER_NOTA, "the work was abandoned", self.xid)
        return self.connection

    def _connection_to_roll_back(self) -> C | None:
        """The connection, with its lock held; None where there is nothing more to roll back."""
        connection = self.connection
        if connection is None or self._ending:
            return None
        if not connection.lock.acquire(blocking=False) and not self._interrupt(connection):
            self._close_connection()
            return None
        self._ending = True
        return connection

    def _interrupt(self, connection: C) -> bool:
        """Another thread is in a statement: interrupts that and takes the connection, or cuts the connection."""
        if self._cancel(connection) and connection.lock.acquire(timeout=INTERRUPT_S):
            return True
        connection.cut()
        return False

    def _lost_while(self, what: str, lost: ConnectionLost) -> XaError:
        """The connection was lost while the server did this, or did not."""
        self._close_connection()
        return xa_error(Code.XAER_RMFAIL, f"the connection was lost while the branch was {what}: {lost}", self.xid)

    def _close_connection(self) -> None:
        connection = self.connection
        if connection is not None:
            connection.reusable = False
            self._release(connection)

    def _release(self, connection: C) -> None:
        self.connection = None
        self._pool.release(connection, keep=connection.is_reusable)
