"""SqlSession: what the application works with in a branch of a database of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from rm_db.sessions.connection import BorrowedConnection, BranchConnection
from rm_db.sessions.errors import no_asyncio_error, reserved_error
from rm_db.statements import classify

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sqlalchemy import Engine

    from rm_db.decider.transaction import SqlTransaction


class SqlBranchConnection(BranchConnection):
    """A branch's SQLAlchemy connection. Its statements hold the transaction's lock, so that no other thread rolls back
    meanwhile."""

    def __init__(self, session: SqlSession, engine: Engine, connection: Any) -> None:
        super().__init__(session)
        self._session = session
        self._connect(engine, BorrowedConnection(connection, session))

    @property
    def asyncio(self) -> NoReturn:
        """Refused: only PostgreSQL's driver can be awaited."""
        raise no_asyncio_error(self.dialect.name, self._session.xid)

    def execute(self, *arguments: Any, **options: Any) -> Any:
        with self._session.work.statement(self._session):
            return super().execute(*arguments, **options)

    def exec_driver_sql(self, *arguments: Any, **options: Any) -> Any:
        with self._session.work.statement(self._session):
            return super().exec_driver_sql(*arguments, **options)

    def _set_isolation(self, level: str) -> None:
        self._session.work.set_isolation(self._session, level)

    def admit(self, statement: str, forbidden: int) -> None:
        """Refuses a statement with a forbidden effect (`rm_db.statements`), and notes its other effects."""
        effects = classify(statement)
        work = self._session.work
        if effects & forbidden:
            raise reserved_error(repr(statement.strip()[:60]), work.xid)
        work.effects |= effects


class SqlSession:
    """One association's session; its `facade` is the SQLAlchemy connection."""

    def __init__(self, work: SqlTransaction, engine: Engine, connection: Any) -> None:
        self.work = work
        self.xid = work.xid
        self.is_over = False
        self.facade = SqlBranchConnection(self, engine, connection)

    def set_rollback_only(self, why: str) -> None:
        self.work.rollback_only = self.work.rollback_only or why

    def note_lost(self, why: str) -> None:
        self.work.lost = self.work.lost or why

    def hold(self) -> AbstractContextManager[None]:
        return self.work.statement(self)

    def finish(self) -> None:
        self.facade.finish()

    def expire(self) -> None:
        self.is_over = True
