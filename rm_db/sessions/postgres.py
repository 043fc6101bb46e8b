"""PostgresSession: what the application works with in a PostgreSQL branch, during one association.

Its `facade` is a SQLAlchemy connection, from which the ORM session, the psycopg connection and their asyncio forms are
reached. Each of them is made at its first use. `PostgresSessionFactory` makes the sessions of one database.
"""

from __future__ import annotations

import threading
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from rm_db.sessions.access import PostgresAccess
from rm_db.sessions.connection import BorrowedConnection, BranchConnection
from rm_db.sessions.psycopg_async_connection import PsycopgAsyncConnection
from rm_db.sessions.psycopg_connection import PsycopgConnection
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from psycopg.adapt import AdaptersMap
    from sqlalchemy.engine import Engine

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.postgres.transaction import PostgresTransaction
    from rm_db.sessions.asyncio_connection import BranchAsyncConnection

T = TypeVar("T")


class PostgresBranchConnection(BranchConnection):
    """A branch's SQLAlchemy connection; `orm` and `psycopg` are other ways to the same transaction. SQLAlchemy's part
    of it is made when one of its attributes is first needed, so that an application that uses psycopg never pays for
    it."""

    def __init__(self, session: PostgresSession, view: Callable[[AdaptersMap | None], PsycopgConnection]) -> None:
        super().__init__(session.access)
        self._session = session
        self._view = view
        self._making = threading.RLock()
        self._is_made = False

    def __getattr__(self, name: str) -> Any:
        """Makes SQLAlchemy's part when one of its attributes is first needed."""
        with self._making:
            if name not in self.__dict__:  # no other thread has made it meanwhile
                if self._is_made:
                    raise AttributeError(f"{type(self).__name__} has no attribute {name}")
                engine, adapters = self._session.engine
                lease = BorrowedConnection(self._view(adapters), self._access)
                self._is_made = True  # after everything that may fail, so that the next use tries again
                self._connect(engine, lease)
        return getattr(self, name)

    @property
    def psycopg(self) -> PsycopgConnection:
        """The psycopg connection, with psycopg's own adapters and rows."""
        return self._session.psycopg

    @property
    def access(self) -> PostgresAccess:
        """The rules for the use of the branch's connection."""
        return self._session.access

    def view_for(self, engine: Engine) -> PsycopgConnection:
        """A psycopg connection with the adapters that the dialect of another engine needs. It waits in the event loop
        if that engine is under an asyncio one."""
        return self._session.view_for(engine)

    @property
    def asyncio(self) -> BranchAsyncConnection:
        """The same transaction for asyncio, with an `orm` and a `psycopg` of its own. XAER_PROTO: greenlet is not
        installed."""
        return self._session.asyncio


class PostgresSession:
    """One association's session."""

    __slots__ = ("_apsycopg", "_asyncio", "_awaiting", "_facade", "_psycopg", "_sessions", "access")

    def __init__(self, sessions: PostgresSessionFactory, work: PostgresTransaction) -> None:
        self._sessions = sessions
        self._facade: PostgresBranchConnection | None = None
        self._psycopg: PsycopgConnection | None = None
        self._apsycopg: PsycopgAsyncConnection | None = None
        self._awaiting: PostgresBranchConnection | None = None
        self._asyncio: BranchAsyncConnection | None = None
        self.access = PostgresAccess(work)

    @property
    def psycopg(self) -> PsycopgConnection:
        """A psycopg connection."""
        if self._psycopg is None:
            self._psycopg = self.view(None)
        return self._psycopg

    @property
    def facade(self) -> PostgresBranchConnection:
        """The SQLAlchemy connection."""
        if self._facade is None:
            self._facade = PostgresBranchConnection(self, self.view)
        return self._facade

    @property
    def apsycopg(self) -> PsycopgAsyncConnection:
        """An asyncio psycopg connection."""
        if self._apsycopg is None:
            self._apsycopg = self._viewed(lambda connection: PsycopgAsyncConnection(self.access, connection))
        return self._apsycopg

    @property
    def awaiting(self) -> PostgresBranchConnection:
        """The SQLAlchemy connection under the asyncio one."""
        if self._awaiting is None:
            self._awaiting = PostgresBranchConnection(self, self._awaiting_view)
        return self._awaiting

    @property
    def asyncio(self) -> BranchAsyncConnection:
        """The asyncio SQLAlchemy connection."""
        if self._asyncio is None:
            if find_spec("greenlet") is None:
                raise xa_error(
                    Code.XAER_PROTO,
                    "SQLAlchemy's asyncio extension needs greenlet: install xabridge[asyncio]",
                    self.access.xid,
                )
            from rm_db.sessions.asyncio_connection import BranchAsyncConnection  # noqa: PLC0415 — needs greenlet

            self._asyncio = BranchAsyncConnection(self, self.awaiting)
        return self._asyncio

    @property
    def engine(self) -> tuple[Engine, AdaptersMap | None]:
        """As `PostgresSessionFactory.engine`."""
        return self._sessions.engine

    def view(self, adapters: AdaptersMap | None) -> PsycopgConnection:
        """A new psycopg connection; `adapters` are used instead of psycopg's own."""
        return self._viewed(lambda connection: PsycopgConnection(self.access, connection, adapters))

    def view_for(self, engine: Engine) -> PsycopgConnection:
        """As `PostgresBranchConnection.view_for`."""
        adapters = _adapters(engine)
        return self._awaiting_view(adapters) if engine.dialect.is_async else self.view(adapters)

    def _awaiting_view(self, adapters: AdaptersMap | None) -> PsycopgConnection:
        from rm_db.sessions.asyncio_connection import GreenletPsycopgConnection  # noqa: PLC0415 — needs greenlet

        in_the_loop = self.apsycopg
        return self._viewed(
            lambda connection: GreenletPsycopgConnection(self.access, connection, adapters, in_the_loop)
        )

    def _viewed(self, make: Callable[[LibpqConnection], T]) -> T:
        """A view."""
        connection = self.access.enter()
        try:
            return make(connection)
        finally:
            self.access.leave(connection)

    def finish(self) -> None:
        self.access.statement_lock.is_ending = True
        for connection in (self._facade, self._awaiting):
            if connection is not None:
                connection.finish()

    def expire(self) -> None:
        self.access.expire()


class PostgresSessionFactory:
    """Makes the sessions of one database. When the first session needs SQLAlchemy's engine, the engine is made and asks
    the server for what it has to know. It makes no connection of its own after that."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._initialized = False

    def make(self, work: PostgresTransaction) -> PostgresSession:
        """A session for the work's present association."""
        return PostgresSession(self, work)

    @cached_property
    def engine(self) -> tuple[Engine, AdaptersMap | None]:
        """SQLAlchemy's engine, and the adapters that its dialect wants."""
        with self._lock:
            engine = create_engine(URL.create("postgresql+psycopg"), poolclass=NullPool, creator=self._create)
            with engine.connect():
                self._initialized = True
            return engine, _adapters(engine)

    def _create(self) -> psycopg.Connection[Any]:
        if self._initialized:
            raise xa_error(
                Code.XAER_PROTO,
                "connecting through a session's engine would leave the transaction: use the session itself",
            )
        return self._connect()


def _adapters(engine: Engine) -> AdaptersMap | None:
    """The adapters that the engine's dialect wants its connections to have."""
    _, options = engine.dialect.create_connect_args(engine.url)
    context = options.get("context")
    return context.adapters if context is not None else None
