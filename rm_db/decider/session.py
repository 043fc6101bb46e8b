"""SqlSession: what the application works with in a branch of a database of any kind."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from sqlalchemy import event

from rm_db.decider.driver_connection import LentConnection
from rm_db.sessions.connection import BranchConnection
from rm_db.sessions.errors import forked_error, no_asyncio_error
from rm_db.statements import DEFINES, ENDS, classify
from xa.sql import mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import Connection, Engine

    from rm_db.decider.transaction import SqlTransaction

FORBIDDEN: Final = dict.fromkeys([*mariadb.DIALECTS, "oracle"], ENDS | DEFINES)
"""What a statement must not do where one of the data definition language commits what was done before it."""


class SqlBranchConnection(BranchConnection):
    """A branch's SQLAlchemy connection. Its statements hold the transaction's lock, so that no other thread rolls back
    meanwhile."""

    is_executing = False
    """Whether SQLAlchemy is at work, and not the application past it."""

    def __init__(self, session: SqlSession, engine: Engine, connection: Any) -> None:
        super().__init__(session)
        self._session = session
        self._forbidden = FORBIDDEN.get(engine.dialect.name, ENDS)
        self._connect(engine, LentConnection(connection, self, session))

    @property
    def asyncio(self) -> NoReturn:
        """Refused: only PostgreSQL's driver can be awaited."""
        raise no_asyncio_error(self.dialect.name, self._session.xid)

    def execute(self, *arguments: Any, **options: Any) -> Any:
        with self._executing():
            return super().execute(*arguments, **options)

    def exec_driver_sql(self, *arguments: Any, **options: Any) -> Any:
        with self._executing():
            return super().exec_driver_sql(*arguments, **options)

    @contextmanager
    def _executing(self) -> Iterator[None]:
        with self._session.work.statement(self._session):
            before, self.is_executing = self.is_executing, True
            try:
                yield
            finally:
                self.is_executing = before

    def _set_isolation(self, level: str) -> None:
        self._session.work.set_isolation(self._session, level)

    @contextmanager
    def admitted(self, statement: str) -> Iterator[None]:
        """Around a statement that does not come through SQLAlchemy."""
        with self._session.work.statement(self._session):
            self.admit(statement)
            yield

    def check_process(self) -> None:
        """XAER_PROTO in a fork of the process that has the transaction."""
        if self._session.is_forked:
            raise forked_error(self._session.xid)

    def admit(self, statement: str) -> None:
        """Refuses a statement that would end the transaction, and notes its other effects (`rm_db.statements`)."""
        effects = classify(statement)
        work = self._session.work
        if effects & self._forbidden:
            self.refuse(repr(statement.strip()[:60]))
        work.effects |= effects


class SqlSession:
    """One association's session; its `facade` is the SQLAlchemy connection."""

    def __init__(self, work: SqlTransaction, engine: Engine, connection: Any) -> None:
        self.work = work
        self.xid = work.xid
        self.is_over = False
        self.facade = SqlBranchConnection(self, engine, connection)

    @property
    def is_forked(self) -> bool:
        return self.work.is_forked

    def set_rollback_only(self, why: str) -> None:
        self.work.rollback_only = self.work.rollback_only or why

    def note_lost(self, why: str) -> None:
        self.work.lost = self.work.lost or why

    def hold(self) -> AbstractContextManager[None]:
        return self.work.statement(self)

    def check(self) -> None:
        self.work.check()

    def finish(self) -> None:
        self.facade.finish()

    def expire(self) -> None:
        self.is_over = True


def guard(engine: Engine) -> None:
    """Refuses statements in a branch that would end its transaction."""

    def admit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if isinstance(connection, SqlBranchConnection):
            connection.admit(statement)

    event.listen(engine, "before_cursor_execute", admit)
