"""MariaSession: what the application works with in a branch of MariaDB or MySQL, during one association.

This module can be imported without PyMySQL, because applications name `MariaBranchConnection` in annotations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_db.sessions.errors import expired_error
from rm_db.sessions.server_session import ServerBranchConnection, ServerSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Engine

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.mariadb.transaction import MariaTransaction
    from rm_db.sessions.asyncio_connection import BranchAsyncConnection
    from rm_db.sessions.mariadb_access import MariaAccess
    from rm_db.sessions.pymysql_connection import PymysqlConnection
    from rm_db.sessions.session_engine import SessionEngine


class MariaBranchConnection(ServerBranchConnection):
    """A branch's SQLAlchemy connection; `orm` and `pymysql` are other ways to the same transaction."""

    engine_driver = "pymysql"
    _session: MariaSession

    def _make(self) -> tuple[Engine, PymysqlConnection]:
        session = self._session
        return session.engine, session.new_greenlet_pymysql() if self._greenlet else session.pymysql

    @property
    def pymysql(self) -> PymysqlConnection:
        """The PyMySQL connection."""
        return self._session.pymysql

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


class MariaSession(ServerSession["MariaAccess", MariaBranchConnection, "BranchAsyncConnection"]):
    """One association's session."""

    __slots__ = ("_pymysql",)
    access: MariaAccess
    _connection_type = MariaBranchConnection

    def __init__(self, engine: SessionEngine, work: MariaTransaction) -> None:
        from rm_db.sessions.mariadb_access import MariaAccess  # noqa: PLC0415 — needs PyMySQL

        super().__init__(engine, MariaAccess(work))
        self._pymysql: PymysqlConnection | None = None

    def _new_asyncio(self, connection: MariaBranchConnection) -> BranchAsyncConnection:
        from rm_db.sessions.asyncio_connection import BranchAsyncConnection  # noqa: PLC0415 — needs greenlet

        return BranchAsyncConnection(connection)

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's engine."""
        return self._engine.made

    @property
    def pymysql(self) -> PymysqlConnection:
        """The PyMySQL connection."""
        from rm_db.sessions.pymysql_connection import PymysqlConnection  # noqa: PLC0415 — needs PyMySQL

        if self._pymysql is None:
            self._pymysql = PymysqlConnection(self.access, self._connection.driver)
        return self._pymysql

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
