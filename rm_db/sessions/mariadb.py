"""MariaSession: what the application works with in a branch of MariaDB or MySQL, during one association.

Its `facade` is a SQLAlchemy connection, from which the ORM session, the PyMySQL connection and the asyncio forms of
SQLAlchemy's are reached. Each of them is made at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_db.sessions.errors import check_greenlet, expired_error
from rm_db.sessions.lazy_connection import LazyBranchConnection
from rm_db.sessions.mariadb_access import MariaAccess
from rm_db.sessions.pymysql_connection import PymysqlConnection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Engine

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.mariadb.transaction import MariaTransaction
    from rm_db.sessions.asyncio_connection import BranchAsyncConnection
    from rm_db.sessions.session_engine import SessionEngine


class MariaBranchConnection(LazyBranchConnection):
    """A branch's SQLAlchemy connection; `orm` and `pymysql` are other ways to the same transaction."""

    engine_driver = "pymysql"

    def __init__(self, session: MariaSession, *, greenlet: bool = False) -> None:
        super().__init__(session.access)
        self._session = session
        self._greenlet = greenlet
        """Whether its PyMySQL connection waits in the event loop, for SQLAlchemy's asyncio connection above it."""

    def _make(self) -> tuple[Engine, PymysqlConnection]:
        session = self._session
        return session.engine, session.new_greenlet_pymysql() if self._greenlet else session.pymysql

    @property
    def pymysql(self) -> PymysqlConnection:
        """The PyMySQL connection."""
        return self._session.pymysql

    @property
    def access(self) -> MariaAccess:
        """The rules for the use of the branch's connection."""
        return self._session.access

    def driver_for(self, engine: Engine) -> PymysqlConnection:
        """The branch's PyMySQL connection; it is the same for every engine."""
        del engine
        return self._session.pymysql

    def execute_for_engine(self, connection: PymysqlConnection, statements: Sequence[str]) -> None:
        """Executes each statement by itself, because MariaDB takes one at a time."""
        for statement in statements:
            connection.query(statement)

    @property
    def asyncio(self) -> BranchAsyncConnection:
        """The same transaction for asyncio, with an `orm` of its own. XAER_PROTO: greenlet is not installed."""
        return self._session.asyncio

    def _set_isolation(self, level: str) -> None:
        self._session.access.set_isolation(level)


class MariaSession:
    """One association's session."""

    __slots__ = ("_asyncio", "_engine", "_facade", "_greenlet_connection", "_pymysql", "access")

    def __init__(self, engine: SessionEngine, work: MariaTransaction) -> None:
        self._engine = engine
        self._facade: MariaBranchConnection | None = None
        self._pymysql: PymysqlConnection | None = None
        self._greenlet_connection: MariaBranchConnection | None = None
        self._asyncio: BranchAsyncConnection | None = None
        self.access = MariaAccess(work)

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine."""
        return self._engine.made

    @property
    def facade(self) -> MariaBranchConnection:
        """The SQLAlchemy connection."""
        if self._facade is None:
            self._facade = MariaBranchConnection(self)
        return self._facade

    @property
    def pymysql(self) -> PymysqlConnection:
        """The PyMySQL connection."""
        if self._pymysql is None:
            self._pymysql = PymysqlConnection(self.access, self._connection.driver)
        return self._pymysql

    @property
    def asyncio(self) -> BranchAsyncConnection:
        """The asyncio SQLAlchemy connection."""
        if self._asyncio is None:
            check_greenlet(self.access.xid)
            from rm_db.sessions.asyncio_connection import BranchAsyncConnection  # noqa: PLC0415 — needs greenlet

            if self._greenlet_connection is None:
                self._greenlet_connection = MariaBranchConnection(self, greenlet=True)
            self._asyncio = BranchAsyncConnection(self._greenlet_connection)
        return self._asyncio

    def new_greenlet_pymysql(self) -> PymysqlConnection:
        """A PyMySQL connection that waits in the event loop."""
        from rm_db.sessions.greenlet_pymysql import GreenletPymysqlConnection  # noqa: PLC0415 — needs greenlet

        return GreenletPymysqlConnection(self.access, self._connection)

    @property
    def _connection(self) -> MariaConnection:
        connection = self.access.work.connection
        if connection is None or self.access.is_over:
            raise expired_error(self.access.xid)
        return connection

    def finish(self) -> None:
        self.access.statement_lock.is_ending = True
        for connection in (self._facade, self._greenlet_connection):
            if connection is not None:
                connection.finish()

    def expire(self) -> None:
        self.access.expire()
