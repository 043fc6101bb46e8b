"""ServerSession: what the application works with in a branch of a server's database, during one association.

Its `facade` is a SQLAlchemy connection, from which the ORM session, the driver's connection and their asyncio forms are
reached. Each of them is made at its first use, so that an application which uses the driver never pays for SQLAlchemy.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rm_db.sessions.access import BranchAccess
from rm_db.sessions.connection import BorrowedConnection, BranchConnection
from rm_db.sessions.errors import check_greenlet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Engine

    from rm_db.sessions.asyncio_connection import BranchAsyncConnection
    from rm_db.sessions.connection import ConnectionAccess
    from rm_db.sessions.session_engine import SessionEngine


class ServerBranchConnection(BranchConnection):
    """A branch's SQLAlchemy connection. SQLAlchemy's part is made when one of its attributes is first needed."""

    engine_driver: str
    """The driver of engines that can take part in the branch (`rm_db.sessions.engine`)."""

    def __init__(self, session: ServerSession[Any, Any, Any], *, greenlet: bool = False) -> None:
        super().__init__(session.access)
        self._session = session
        self._greenlet = greenlet
        """Whether its driver's connection waits in the event loop, for SQLAlchemy's asyncio connection above it."""
        self._making = threading.RLock()
        self._is_made = False

    @property
    def access(self) -> ConnectionAccess:
        """The rules for the use of the branch's connection."""
        return self._access

    def _of_session(self) -> Sequence[BranchConnection]:
        return self._session.connections

    @abstractmethod
    def _make(self) -> tuple[Engine, Any]:
        """SQLAlchemy's engine, and a connection of the driver for it."""

    def __getattr__(self, name: str) -> Any:
        """Makes SQLAlchemy's part when one of its attributes is first needed."""
        with self._making:
            if name not in self.__dict__:  # no other thread has made it meanwhile
                if self._is_made:
                    raise AttributeError(f"{type(self).__name__} has no attribute {name}")
                engine, driver_connection = self._make()
                borrowed = BorrowedConnection(driver_connection, self._access)
                self._is_made = True  # after everything that may fail, so that the next use tries again
                self._connect(engine, borrowed)
        return getattr(self, name)


A = TypeVar("A", bound=BranchAccess[Any])
B = TypeVar("B", bound=ServerBranchConnection)
N = TypeVar("N", bound="BranchAsyncConnection")


class ServerSession(ABC, Generic[A, B, N]):
    """One association's session: its `access`, its connection, and the connection for asyncio."""

    __slots__ = ("_asyncio", "_engine", "_facade", "_greenlet_connection", "access")

    _connection_type: type[B]
    """Its SQLAlchemy connection."""

    def __init__(self, engine: SessionEngine, access: A) -> None:
        self.access = access
        self._engine = engine
        self._facade: B | None = None
        self._greenlet_connection: B | None = None
        self._asyncio: N | None = None

    @abstractmethod
    def _new_asyncio(self, connection: B) -> N:
        """SQLAlchemy's asyncio connection over this one."""

    @property
    def facade(self) -> B:
        """The SQLAlchemy connection."""
        if self._facade is None:
            self._facade = self._connection_type(self)
        return self._facade

    @property
    def asyncio(self) -> N:
        """The asyncio SQLAlchemy connection. XAER_PROTO: greenlet is not installed."""
        if self._asyncio is None:
            check_greenlet(self.access.xid)
            if self._greenlet_connection is None:
                self._greenlet_connection = self._connection_type(self, greenlet=True)
            self._asyncio = self._new_asyncio(self._greenlet_connection)
        return self._asyncio

    @property
    def connections(self) -> list[B]:
        """The SQLAlchemy connections that were made: for threads, and for asyncio."""
        return [one for one in (self._facade, self._greenlet_connection) if one is not None]

    def finish(self) -> None:
        self.access.statement_lock.is_ending = True
        for connection in self.connections:
            connection.finish()

    def expire(self) -> None:
        self.access.expire()
        # what it has made knows it, and should not wait for the garbage collector
        self._facade = self._greenlet_connection = self._asyncio = None
