"""BranchAsyncConnection: a branch's connection for SQLAlchemy's asyncio extension. The extension needs greenlet, which
our extra `asyncio` installs; this module can't be imported without it.

There is no second implementation here: under SQLAlchemy's asyncio proxies the same synchronous connection works as
elsewhere, in a greenlet. Only where the driver waits for the server, `GreenletPsycopgConnection` and
`rm_db.sessions.greenlet_pymysql` hand over to the event loop, so that no asyncio dialect is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.util import await_only

from rm_db.sessions.psycopg_connection import PsycopgConnection, PsycopgCursor
from rm_db.sessions.statement_lock import on_event_loop

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.adapt import AdaptersMap
    from sqlalchemy.engine import Engine

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.sessions.connection import BranchConnection
    from rm_db.sessions.postgres import PostgresBranchConnection, PostgresSession
    from rm_db.sessions.postgres_access import PostgresAccess
    from rm_db.sessions.psycopg_async_connection import PsycopgAsyncConnection

RV = TypeVar("RV")


class GreenletPsycopgCursor(PsycopgCursor):
    """A cursor that has all its rows once it was executed."""

    async def _async_soft_close(self) -> None:
        """SQLAlchemy awaits this on an asyncio driver's cursor; here is nothing to wait for."""


class GreenletPsycopgConnection(PsycopgConnection):
    """A psycopg connection that waits in the event loop, where one runs: SQLAlchemy's extension calls it in a greenlet.
    The flush at the end of an association has no greenlet. It runs in a thread of its own or, when a transaction is
    suspended, on the event loop's thread, and blocks as elsewhere."""

    def __init__(
        self,
        access: PostgresAccess,
        connection: LibpqConnection,
        adapters: AdaptersMap | None,
        async_psycopg: PsycopgAsyncConnection,
    ) -> None:
        super().__init__(access, connection, adapters)
        self._async_psycopg = async_psycopg
        self.cursor_factory = GreenletPsycopgCursor

    @property
    def driver_connection(self) -> PsycopgAsyncConnection:
        """The object that SQLAlchemy returns as the asyncio driver's own connection."""
        return self._async_psycopg

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        if self.access.statement_lock.is_ending or not on_event_loop():
            return super().wait(gen, *args, **kwargs)
        result: RV = await_only(self._async_psycopg.wait(gen, *args, **kwargs))
        return result


class BranchAsyncConnection(AsyncConnection):
    """An asyncio SQLAlchemy connection in the middle of a branch's transaction; `orm` is another way to the same
    transaction."""

    __slots__ = ("_branch", "_orm")

    def __init__(self, connection: BranchConnection) -> None:
        super().__init__(_SessionEngine(connection.engine), connection)
        self._branch = connection
        self._orm: AsyncSession | None = None

    @property
    def orm(self) -> AsyncSession:
        """The ORM session on this connection. It is made at the first use, and flushed when the association ends."""
        if self._orm is None or self._orm.sync_session is not self._branch.orm:
            self._orm = AsyncSession(sync_session_class=lambda **_: self._branch.orm)  # type: ignore[arg-type]  # a callable serves
        return self._orm


class PostgresAsyncConnection(BranchAsyncConnection):
    """The same on PostgreSQL, where `psycopg` is one more way."""

    __slots__ = ("_session",)

    def __init__(self, session: PostgresSession, connection: PostgresBranchConnection) -> None:
        super().__init__(connection)
        self._session = session

    @property
    def psycopg(self) -> PsycopgAsyncConnection:
        """The asyncio psycopg connection, with psycopg's own adapters and rows."""
        return self._session.async_psycopg


class _SessionEngine(AsyncEngine):
    """An engine that SQLAlchemy's proxies need; its dialect is the synchronous one."""

    __slots__ = ()

    def __init__(self, engine: Engine) -> None:
        self.sync_engine = self._assign_proxied(engine)
