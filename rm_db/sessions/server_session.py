"""LazyBranchConnection: a branch's SQLAlchemy connection whose SQLAlchemy part is made when it is first needed."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from rm_db.sessions.connection import BorrowedConnection, BranchConnection

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from rm_db.sessions.connection import ConnectionAccess


class LazyBranchConnection(BranchConnection):
    """SQLAlchemy's part is made when one of its attributes is first needed, so that an application that uses the
    driver never pays for it."""

    def __init__(self, access: ConnectionAccess) -> None:
        super().__init__(access)
        self._making = threading.RLock()
        self._is_made = False

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
