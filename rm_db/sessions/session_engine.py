"""SessionEngine: SQLAlchemy's engine for the sessions of one database."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from rm_db.server.steps import understood
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Engine


class SessionEngine:
    """The engine of sessions. It is made when a session first needs it, and then asks the server for what it has to
    know, on a connection that `connect` makes. After that it makes no connection of its own."""

    def __init__(self, drivername: str, connect: Callable[[], Any]) -> None:
        self._drivername = drivername
        self._connect = connect
        self._lock = threading.Lock()
        self._made: Engine | None = None

    @property
    def made(self) -> Engine:
        """The engine. XAER_RMFAIL: what the server says of itself can't be understood."""
        if self._made is None:
            with self._lock:
                if self._made is None:  # no other thread has made it meanwhile
                    engine = create_engine(URL.create(self._drivername), poolclass=NullPool, creator=self._create)
                    with understood(), engine.connect():
                        self._made = engine
        return self._made

    def _create(self) -> Any:
        if self._made is not None:
            raise xa_error(
                Code.XAER_PROTO,
                "connecting through a session's engine would leave the transaction: use the session itself",
            )
        return self._connect()
