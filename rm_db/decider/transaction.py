"""SqlTransaction: one branch's local transaction in a database of any kind, through SQLAlchemy.

The transaction belongs to a SQLAlchemy connection of ours. The application works through a second one over the same
driver connection, which ends with its association.

The text of statements does not show every end of a transaction: a procedure may commit, a deadlock or a full disk makes
the database roll back, and later statements are then in another transaction or in none. Therefore a savepoint is set
before the first statement, and a commit or a decision begins with its release. The savepoint exists exactly as long as
the transaction does.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rm_db.decider.engine import unlimited
from rm_db.decider.errors import is_loss, is_transient, rollback_reason, said
from rm_db.decider.session import SqlSession
from rm_db.sessions.errors import busy_error, expired_error, forked_error, settled_error
from rm_db.sessions.session import INTERRUPT_S, SessionUnitOfWork
from rm_db.sessions.statement_lock import on_event_loop
from rm_db.statements import LINGERS, SETS
from xa import Code, xa_error
from xa.sql import mariadb, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine, Insert

    from xa import XaError, Xid
    from xa.driver import SessionContext


_MARK: Final = "xabridge_begin"
_WITH_SAVEPOINTS: Final = mariadb.DIALECTS | {"sqlite", "postgresql"}
"""Where a savepoint that is not there can't be released."""


class SqlTransaction(SessionUnitOfWork):
    """One branch's transaction. The session notes here what the end of the work needs: `rollback_only` is the reason
    for which it can only be rolled back, `lost` how its connection broke, and `effects` the effects of the statements'
    texts (`rm_db.statements`). `commands` is an engine of the same database whose connections do no work."""

    def __init__(self, xid: Xid, engine: Engine, commands: Engine, *, wait: bool) -> None:
        self.xid = xid
        self.effects = 0
        self.rollback_only: str | None = None
        self.lost: str | None = None
        self._engine = engine
        self._commands = commands
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._given_up = False
        self._marked = False
        self._last_error: DBAPIError | None = None
        pool: Any = engine.pool
        if not wait and pool.checkedout() >= pool.size():
            raise xa_error(Code.XA_RETRY, f"all {pool.size()} connections are in use", xid)

        connection = None
        try:
            connection = engine.connect()
            connection.begin()
        except PoolTimeout as error:
            raise xa_error(Code.XA_RETRY, f"no connection became free: {error}", xid) from None
        except DBAPIError as error:
            if connection is not None:
                connection.close()
            code = Code.XAER_RMFAIL if is_loss(error) else Code.XA_RETRY if is_transient(error) else Code.XAER_RMERR
            raise xa_error(code, said(error), xid) from None
        self._connection: Connection | None = connection

    def session(self, context: SessionContext[Any]) -> Any:
        del context  # a session asks the transaction itself before each operation
        if self._session is None:
            self._session = SqlSession(self, self._engine, self._open.connection.dbapi_connection)
        return self._session.facade

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that has it."""
        return os.getpid() != self._pid

    @contextmanager
    def statement(self, session: SqlSession) -> Iterator[None]:
        """Around a statement of the session, or several that belong together. It waits for another thread's statement,
        except on the thread of an event loop, where it is refused. So it is in a fork of the process."""
        if self.is_forked:
            raise forked_error(self.xid)
        if not self._lock.acquire(blocking=not on_event_loop()):
            raise busy_error(self.xid)

        try:
            if session.is_over or self._connection is None:
                raise expired_error(self.xid)
            try:
                self._mark(self._connection)
                with unlimited(self._connection.connection.dbapi_connection):
                    yield
            except DBAPIError as error:
                self._last_error = error
                self._note_unseen_end(self._connection, error)
                raise
            finally:
                if self._given_up:  # another thread has given the transaction up and could not wait for this statement
                    self._roll_back()
        finally:
            self._lock.release()

    def set_isolation(self, session: SqlSession, level: str) -> None:
        """Of this transaction, before its first statement."""
        statement = f"SET TRANSACTION ISOLATION LEVEL {level}"
        if self._marked:
            session.facade.exec_driver_sql(statement)  # the database refuses it, because it comes too late
            return
        self._marked = True  # a savepoint would be the first statement
        try:
            session.facade.exec_driver_sql(statement)
        finally:
            self._marked = False

    def _note_unseen_end(self, connection: Connection | None, error: DBAPIError) -> None:
        """Where the savepoint does not tell it, an error may have ended the transaction, and what follows would be in
        another one. There the branch becomes rollback-only. Oracle undoes the statement only that violates a
        constraint; SQL Server also does so, unless XACT_ABORT is on."""
        name = connection.dialect.name if connection is not None else ""
        if not name or name in _WITH_SAVEPOINTS or (name == "oracle" and isinstance(error, IntegrityError)):
            return
        self.rollback_only = self.rollback_only or (
            f"a statement failed, and {name} does not tell whether it has ended the transaction"
        )

    def _mark(self, connection: Connection) -> None:
        """The savepoint before the first statement."""
        if self._marked or connection.dialect.name not in _WITH_SAVEPOINTS:
            return
        try:
            connection.dialect.do_savepoint(connection, _MARK)
        except DBAPIError as error:
            self.lost = self.lost or said(error)
            raise
        self._marked = True

    def _check(self, *, looks: bool = True) -> XaError | None:
        del looks  # it knows of no connection but what statements have said
        if not self._lock.acquire(blocking=False):
            return xa_error(Code.XA_RBPROTO, "another thread is still in a statement of this branch", self.xid)
        self._lock.release()
        if self.lost is not None:
            return xa_error(Code.XAER_RMFAIL, self.lost, self.xid)
        if self.rollback_only is not None:
            last = self._last_error
            if last is None:
                return xa_error(Code.XA_RBROLLBACK, self.rollback_only, self.xid)
            why = f"{self.rollback_only}; the last error was: {said(last)}"  # otherwise no message names the cause
            return xa_error(rollback_reason(last, self.xid).code, why, self.xid)
        return None

    def commit(self, *, later: bool) -> Code:
        del later
        return self._commit(None)

    def decide(self, insertion: Insert) -> Code:
        """One-phase commit with a decision in it, which `insertion` writes."""
        return self._commit(insertion)

    def _commit(self, insertion: Insert | None) -> Code:
        connection = self._open
        self._check_whole(connection)
        try:
            if connection.dialect.name == "postgresql":
                postgres.force_commit(connection)
            if insertion is not None:
                # It waits for the process that settles the same transaction, and fails after that.
                connection.execute(insertion)
        except IntegrityError:
            self._roll_back()
            raise settled_error(self.xid) from None
        except DBAPIError as error:
            self._roll_back()
            raise rollback_reason(error, self.xid) from None

        try:
            connection.commit()
        except IntegrityError as error:  # a constraint that was deferred
            self._roll_back()
            raise rollback_reason(error, self.xid) from None
        except DBAPIError as error:  # whether it was committed is not known, whatever else the error says
            self.abandon()
            message = f"the branch was to be committed, and the database said: {said(error)}"
            raise xa_error(Code.XAER_RMFAIL, message, self.xid) from None
        self._give_back()
        return Code.XA_OK

    def _check_whole(self, connection: Connection) -> None:
        """Checks that the transaction is the same one in which the first statement was carried out."""
        if not self._marked:
            return

        try:
            connection.dialect.do_release_savepoint(connection, _MARK)
        except DBAPIError as error:
            self._roll_back()
            last = self._last_error
            if is_loss(error):
                raise rollback_reason(error, self.xid) from None
            if last is not None and is_transient(last):
                raise rollback_reason(last, self.xid) from None
            why = f"; the last error was: {said(last)}" if last is not None else ""
            raise xa_error(
                Code.XA_RBPROTO,
                "the database, or a statement that only the transaction manager may issue, has ended the transaction "
                f"before it was to be committed{why}. What came before that may be committed, and what came behind it "
                f"was on its own ({said(error)})",
                self.xid,
            ) from None

    def start_rollback(self) -> None:
        self._expire_session()
        if not self._lock.acquire(blocking=False) and not self._interrupt():
            self._given_up = True
            return
        try:
            self._roll_back()
        finally:
            self._lock.release()

    def rollback(self, *, later: bool) -> Code:
        del later
        self.start_rollback()
        return Code.XA_OK

    def abandon(self) -> None:
        self._expire_session()
        connection = self._connection
        if connection is not None and not self._given_up:
            connection.invalidate()
            self._give_back()

    # --- inside ---------------------------------------------------------------------------------------------

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise xa_error(Code.XAER_NOTA, "the work was abandoned", self.xid)
        return self._connection

    def _interrupt(self) -> bool:
        """Another thread is in a statement: asks the server, or the driver, to interrupt it, and waits for its end."""
        driver: Any = self._open.connection.dbapi_connection
        if self._engine.dialect.name in mariadb.DIALECTS:  # its drivers only go away, and the server goes on
            mariadb.kill_query(self._commands, driver)
            if self._lock.acquire(timeout=INTERRUPT_S):
                return True
        cut_short = getattr(driver, "interrupt", None) or getattr(driver, "cancel", None)
        if cut_short is not None:
            cut_short()
        return self._lock.acquire(timeout=INTERRUPT_S)

    def _roll_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.rollback()
        except DBAPIError:
            connection.invalidate()  # what was not committed does not survive the connection
        self._give_back()

    def _give_back(self) -> None:
        connection = self._connection
        if connection is None:
            return
        self._connection = None
        if self.lost is not None or self.effects & (LINGERS | SETS):
            connection.invalidate()  # broken, or something was set in its session
        connection.close()
