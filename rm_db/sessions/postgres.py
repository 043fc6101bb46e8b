"""PostgresSession: what the application works with in a PostgreSQL branch, during one association."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rm_db.sessions.postgres_access import PostgresAccess
from rm_db.sessions.psycopg_async_connection import PsycopgAsyncConnection
from rm_db.sessions.psycopg_connection import PsycopgConnection
from rm_db.sessions.server_session import ServerBranchConnection, ServerSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg.adapt import AdaptersMap
    from sqlalchemy.engine import Engine

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.postgres.transaction import PostgresTransaction
    from rm_db.sessions.asyncio_connection import PostgresAsyncConnection
    from rm_db.sessions.session_engine import SessionEngine

T = TypeVar("T")


class PostgresBranchConnection(ServerBranchConnection):
    """A branch's SQLAlchemy connection; `orm` and `psycopg` are other ways to the same transaction."""

    engine_driver = "psycopg"
    _session: PostgresSession

    def _make(self) -> tuple[Engine, PsycopgConnection]:
        session = self._session
        engine, adapters = session.engine
        return engine, (session.new_greenlet_psycopg if self._greenlet else session.new_psycopg)(adapters)

    @property
    def psycopg(self) -> PsycopgConnection:
        """The psycopg connection, with psycopg's own adapters and rows."""
        return self._session.psycopg

    def psycopg_with(self, adapters: AdaptersMap) -> PsycopgConnection:
        """A psycopg connection of its own over the branch's connection, with other adapters."""
        return self._session.new_psycopg(adapters)

    def driver_for(self, engine: Engine) -> PsycopgConnection:
        """A psycopg connection with the adapters that the dialect of another engine needs. It waits in the event loop
        if that engine is under an asyncio one."""
        return self._session.psycopg_for(engine)

    def execute_for_engine(self, connection: PsycopgConnection, statements: Sequence[str]) -> None:
        """Executes the statements in one message."""
        connection.execute("; ".join(statements), prepare=False)

    @property
    def asyncio(self) -> PostgresAsyncConnection:
        """The same transaction for asyncio, with an `orm` and a `psycopg` of its own. XAER_PROTO: greenlet is not
        installed."""
        return self._session.asyncio


class PostgresSession(ServerSession[PostgresAccess, PostgresBranchConnection, "PostgresAsyncConnection"]):
    """One association's session."""

    __slots__ = ("_async_psycopg", "_psycopg")
    _connection_type = PostgresBranchConnection

    def __init__(self, engine: SessionEngine, work: PostgresTransaction) -> None:
        super().__init__(engine, PostgresAccess(work))
        self._psycopg: PsycopgConnection | None = None
        self._async_psycopg: PsycopgAsyncConnection | None = None

    def _new_asyncio(self, connection: PostgresBranchConnection) -> PostgresAsyncConnection:
        from rm_db.sessions.asyncio_connection import PostgresAsyncConnection  # noqa: PLC0415 — needs greenlet

        return PostgresAsyncConnection(self, connection)

    @property
    def psycopg(self) -> PsycopgConnection:
        """A psycopg connection."""
        if self._psycopg is None:
            self._psycopg = self.new_psycopg(None)
        return self._psycopg

    @property
    def async_psycopg(self) -> PsycopgAsyncConnection:
        """An asyncio psycopg connection."""
        if self._async_psycopg is None:
            self._async_psycopg = self._made_by(lambda connection: PsycopgAsyncConnection(self.access, connection))
        return self._async_psycopg

    @property
    def engine(self) -> tuple[Engine, AdaptersMap | None]:
        """SQLAlchemy's engine, and the adapters that its dialect wants."""
        engine = self._engine.made
        return engine, _adapters(engine)

    def new_psycopg(self, adapters: AdaptersMap | None) -> PsycopgConnection:
        """A new psycopg connection; `adapters` are used instead of psycopg's own."""
        return self._made_by(lambda connection: PsycopgConnection(self.access, connection, adapters))

    def psycopg_for(self, engine: Engine) -> PsycopgConnection:
        """A psycopg connection as the dialect of another engine needs it."""
        adapters = _adapters(engine)
        return self.new_greenlet_psycopg(adapters) if engine.dialect.is_async else self.new_psycopg(adapters)

    def new_greenlet_psycopg(self, adapters: AdaptersMap | None) -> PsycopgConnection:
        from rm_db.sessions.asyncio_connection import GreenletPsycopgConnection  # noqa: PLC0415 — needs greenlet

        async_psycopg = self.async_psycopg
        return self._made_by(
            lambda connection: GreenletPsycopgConnection(self.access, connection, adapters, async_psycopg)
        )

    def _made_by(self, make: Callable[[LibpqConnection], T]) -> T:
        """What `make` makes of the branch's connection, which is not used otherwise meanwhile."""
        connection = self.access.enter()
        try:
            return make(connection)
        finally:
            self.access.leave(connection)

    def expire(self) -> None:
        super().expire()
        self._psycopg = self._async_psycopg = None


def _adapters(engine: Engine) -> AdaptersMap | None:
    """The adapters that the engine's dialect wants its connections to have."""
    _, options = engine.dialect.create_connect_args(engine.url)
    context = options.get("context")
    return context.adapters if context is not None else None
