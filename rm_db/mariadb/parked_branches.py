"""ParkedBranches: prepared branches whose session is kept, because MariaDB lets no other session complete them until
that one has ended.

Completing a branch in its own session costs nothing more. When another branch needs the connection, or this resource
manager is closed, a parked session is ended; its branch can be completed by any other session then.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.server.pending import OutstandingSteps
    from xa import Xid
    from xa.pool import ConnectionPool

MAX_GIVEN_UP: Final = 1000
"""So many branches are remembered whose connection was lost over XA PREPARE."""


class ParkedBranches:
    """Xid → the connection that prepared it. It is what the pool asks for a connection when none is free: an
    `xa.pool.Outstanding`. `pool` is set by the maker of both."""

    pool: ConnectionPool[MariaConnection]

    def __init__(self, outstanding: OutstandingSteps) -> None:
        self._outstanding = outstanding
        self._lock = threading.Lock()
        self._parked: dict[Xid, MariaConnection] = {}
        self._given_up: dict[Xid, None] = {}
        self._begun: Callable[[], None] | None = None

    def park(self, xid: Xid, connection: MariaConnection) -> None:
        """The branch is prepared on this connection."""
        self.pool.park(connection)
        with self._lock:
            self._parked[xid] = connection
        if self._begun is not None:
            self._begun()

    def take(self, xid: Xid) -> MariaConnection | None:
        """The connection on which the branch was prepared, to complete it. None: any session may."""
        with self._lock:
            connection = self._parked.pop(xid, None)
        if connection is not None and connection.went_away():
            self._end(connection)
            return None
        return connection

    def let_go(self, xid: Xid) -> None:
        """Ends the session that is kept for the branch: any other session can complete it then."""
        with self._lock:
            connection = self._parked.pop(xid, None)
        if connection is not None:
            self._end(connection)

    def give_up(self, xid: Xid) -> None:
        """The connection was lost over XA PREPARE, which its session may still carry out."""
        with self._lock:
            self._given_up[xid] = None
            while len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]

    def is_given_up(self, xid: Xid) -> bool:
        """Whether a session that we have lost may be preparing the branch."""
        return xid in self._given_up

    def settled(self, xid: Xid) -> None:
        """Notes that nothing is asked about the branch any more."""
        with self._lock:
            self._given_up.pop(xid, None)

    def close(self) -> None:
        """Ends every parked session."""
        while self._end_one():
            pass

    # --- for the pool ---------------------------------------------------------------------------------------

    def finish_one(self) -> bool:
        return self._outstanding.finish_one() or self._end_one()

    def watch(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._outstanding.watch(begun)

    def _end_one(self) -> bool:
        with self._lock:
            if not self._parked:
                return False
            connection = self._parked.pop(next(iter(self._parked)))
        self._end(connection)
        return True

    def _end(self, connection: MariaConnection) -> None:
        connection.reusable = False
        self.pool.release(connection)
