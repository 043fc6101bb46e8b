"""Pool: the connections of one resource manager instance.

A branch has a connection to itself from its first use until it is prepared or completed; `connections` of the open
string says how many may be at work. Commands (the completion of prepared branches, recovery) take an idle connection,
or open another one: they never wait for work, which may be waiting for them.

One thread keeps the connections alive while any is open.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final
from weakref import ref

from xa import Code, xa_error

if TYPE_CHECKING:
    from rm_openwire.connection import Connection, Connector

MAX_IDLE: Final = 16
"""Connections that are kept for the next caller."""


class Pool:
    """Connections that `connector` makes. `size` may be at work at a time; a caller waits for one for `wait_s`."""

    def __init__(self, connector: Connector, size: int, wait_s: float, idle_timeout_s: float) -> None:
        self._connector = connector
        self._size = size
        self._wait_s = wait_s
        self._idle_timeout_s = idle_timeout_s
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._used: set[Connection] = set()
        self._working = 0
        self._stopped = threading.Event()
        keeper = threading.Thread(
            target=_keep_alive,
            args=(ref(self), self._stopped, idle_timeout_s / 3),
            name="xabridge openwire",
            daemon=True,
        )
        keeper.start()

    @property
    def opened(self) -> list[Connection]:
        """Every connection that is open."""
        with self._changed:
            return [*self._idle, *self._used]

    @property
    def used(self) -> int:
        """How many connections are in use."""
        return len(self._used)

    def take_for_work(self, *, wait: bool) -> Connection:
        """A connection for a branch. XA_RETRY: none is free, at once or in time."""
        with self._changed:
            free = self._changed.wait_for(lambda: self._working < self._size, self._wait_s if wait else 0)
            if not free:
                told = f"all {self._size} connections are at work; end other work, or allow more with connections="
                raise xa_error(Code.XA_RETRY, f"start: {told} in the open string")
            self._working += 1
        try:
            return self.take()
        except BaseException:
            self._stop_work()
            raise

    def take(self) -> Connection:
        """A connection for a command."""
        while True:
            with self._changed:
                connection = self._idle.pop() if self._idle else None
                if connection is not None:
                    self._used.add(connection)
            if connection is None:
                break
            with connection.lock:
                connection.keep_alive()  # which notices that it is lost
            if connection.lost is None:
                return connection
            self._remove(connection)
        connection = self._connector.connect()
        with self._changed:
            self._used.add(connection)
        return connection

    def give(self, connection: Connection, *, work: bool = False) -> None:
        """Gives a connection back; with `work` one that a branch had. One that is lost is forgotten."""
        with self._changed:
            keep = connection.lost is None and len(self._idle) < MAX_IDLE and not self._stopped.is_set()
            self._used.discard(connection)
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()
        if work:
            self._stop_work()

    def _remove(self, connection: Connection) -> None:
        connection.drop("it was lost")
        with self._changed:
            self._used.discard(connection)

    def _stop_work(self) -> None:
        with self._changed:
            self._working -= 1
            self._changed.notify()

    def close(self) -> None:
        """Closes what is idle, and what is in use when it is given back."""
        self._stopped.set()
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def drop(self) -> None:
        """Closes every socket without a word."""
        self._stopped.set()
        for connection in self.opened:
            connection.drop("it was dropped")

    def break_off(self) -> None:
        """Breaks the connections that are in use."""
        for connection in tuple(self._used):
            connection.cut("the connection was broken off")

    def keep_alive(self) -> None:
        """Keeps the connections alive that no thread waits on at this moment; forgets idle ones that are lost."""
        for connection in self.opened:
            if connection.lock.acquire(blocking=False):
                try:
                    connection.keep_alive()
                finally:
                    connection.lock.release()
        with self._changed:
            lost = [connection for connection in self._idle if connection.lost is not None]
            for connection in lost:
                self._idle.remove(connection)


def _keep_alive(pool: ref[Pool], stopped: threading.Event, every_s: float) -> None:
    while not stopped.wait(every_s):
        open_pool = pool()
        if open_pool is None:
            return
        with contextlib.suppress(OSError):
            open_pool.keep_alive()
        del open_pool
