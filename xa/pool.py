"""ConnectionPool: a bounded pool of connections to a server, for work and for commands.

Work (a branch from its start to its vote) may hold `size` connections. Commands (commit and rollback of prepared
branches, recovery) may take `reserve` more, so that a command which frees a lock never waits for the work that waits
for that lock. Where the server refuses further connections, the pool works with those that it has for `FULL_S` seconds.

A caller that finds no connection free does three things, in this order:

1. It finishes an operation that holds a connection and whose answer is not collected yet (`OutstandingOperations`). So
   no thread waits for a connection which it holds itself.
2. It waits in a queue, so that a thread with hundreds of commands does not pass the others by.
3. After a while it gets the error that the pool is busy: the server was asked nothing.

A connection returns to the pool only when it is known to be usable. A thread gets the connection that it used last,
where that is free, and else the one that was used last.

What a connection is, it says itself (`PooledConnection`): a session of a database, a transactional channel of a broker.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from xa.codes import Code
from xa.errors import TryAgain, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RESERVE: Final = 4
FULL_S: Final = 5.0
"""How long no further connection is tried after the server refused one."""


class PooledConnection(Protocol):
    """One connection, as the pool has it."""

    @property
    def is_reusable(self) -> bool:
        """Whether somebody else may have it, now that it is given back."""
        ...

    def is_ready(self, idle_s: float) -> bool:
        """Whether one that was idle for so long can be used, as far as is known without asking the server."""
        ...

    def is_usable(self, idle_s: float) -> bool:
        """Whether one that was idle for so long can be used. The server may be asked."""
        ...

    def discard(self) -> None:
        """The pool has it no more: closes it, whatever happens on it. It may be called again."""
        ...

    def break_off(self) -> None:
        """Shuts the connection down, as a network does that fails. Any thread may call this at any moment."""
        ...


C = TypeVar("C", bound=PooledConnection)


class Connections(NamedTuple):
    """A pool at one moment: connections that are `idle` and `used`, how many transactions may use at a time, and how
    many callers are `waiting` for one."""

    idle: int
    used: int
    most: int
    waiting: int


class OutstandingOperations(Protocol):
    """Operations that hold connections until their answers are collected."""

    def finish_one(self) -> bool:
        """Finishes one of them, so that it returns its connection; False where there is none."""
        ...

    def watch(self, begun: Callable[[], None]) -> None:
        """Has `begun` called from now on when another operation has begun."""
        ...


class ConnectionPool(Generic[C]):
    """Connections that `connect` makes, which gets the time until when it may take. It raises XA_RETRY where the
    server, or a pooler before it, allows no further one at this moment.

    A caller waits for `wait_s`, unless it says until when. `busy` makes what is raised then of a message; `advice` says
    what to do about it. `most_idle` are kept for the next caller. `outstanding` are the operations that hold some of
    the connections.
    """

    def __init__(
        self,
        connect: Callable[[float], C],
        size: int,
        wait_s: float,
        busy: Callable[[str], Exception],
        *,
        what: str = "connections",
        advice: str = "",
        reserve: int = RESERVE,
        most_idle: int | None = None,
        outstanding: OutstandingOperations | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self._connect = connect
        self._wait_s = wait_s
        self._busy = busy
        self._what = what
        self._advice = advice
        self._reserve = reserve
        self._kept_back = min(reserve, 1)
        """So many connections work leaves to commands where the server is full."""
        self._most_idle = most_idle
        self._outstanding = outstanding
        self._clock = clock
        self._lock = threading.Lock()

        self._changed = threading.Condition(self._lock)
        self._idle: dict[C, tuple[float, int]] = {}
        """Connection → since when it is idle, and the thread that used it last."""
        self._in_use: dict[C, bool] = {}
        """Connection → whether it is for work."""
        self._by_thread: dict[int, C] = {}
        self._open = 0
        self._working = 0
        self._most = size + reserve
        self._most_until = 0.0
        self._queue: list[_Waiter] = []
        self._events = 0
        self._closed = False
        if outstanding is not None:
            outstanding.watch(self._operation_begun)

    def __iter__(self) -> Iterator[C]:
        """The connections that are open now."""
        with self._lock:
            return iter([*self._idle, *self._in_use])

    @property
    def usage(self) -> Connections:
        """How it is now."""
        idle = len(self._idle)
        return Connections(idle, max(0, self._open - idle), self.size, len(self._queue))

    @property
    def is_idle(self) -> bool:
        """Whether `acquire` would return a connection of the pool for work now, without asking the server."""
        with self._lock:
            if self._closed or self._queue or not self._idle or not self._has_room(work=True):
                return False
            connection = self._by_thread.get(threading.get_ident())
            if connection is None or connection not in self._idle:
                connection = next(reversed(self._idle))
            since, _ = self._idle[connection]
            return connection.is_ready(self._clock() - since)  # else another one would have to be made

    def acquire(self, *, work: bool, wait: bool = True, deadline: float | None = None) -> C:
        """A connection for work, or for a command. What `busy` makes: none is free and `wait` is False, or none became
        free until `deadline`. XA_RETRY: the server has none left. Else what `connect` raises."""
        if deadline is None:
            deadline = self._clock() + self._wait_s
        while True:
            found = self._take_mine(work=work) or self._take(work=work, deadline=deadline if wait else None)
            if found is None:
                try:
                    connection = self._connect(deadline)
                except TryAgain:
                    if not self._is_full(work=work):
                        raise
                    continue
                except BaseException:
                    self._forget(work=work)
                    raise
                break
            connection, since = found
            try:
                usable = connection.is_usable(self._clock() - since)
            except BaseException:
                connection.discard()
                self._forget(work=work)
                raise

            if usable:
                break
            connection.discard()
            self._forget(work=work)
        self._in_use[connection] = work
        return connection

    def release(self, connection: C, *, keep: bool | None = None) -> None:
        """Gives a connection back. `keep`: whether it can be used again, which it says itself unless this is given;
        otherwise it is closed."""
        work = self._in_use.pop(connection, None)
        if keep is None:
            keep = connection.is_reusable
        if work is None or not keep or self._closed:
            connection.discard()
            keep = False
        if work is None:  # the pool has lost sight of it meanwhile
            return

        with self._lock:
            self._working -= work
            kept = keep and not self._closed and (self._most_idle is None or len(self._idle) < self._most_idle)
            if kept:
                thread = threading.get_ident()
                self._idle[connection] = self._clock(), thread
                self._by_thread[thread] = connection
            else:
                self._open -= 1
            if self._queue:
                self._event()
        if keep and not kept:
            connection.discard()

    def park(self, connection: C) -> None:
        """The connection does no work any more, and is not free either."""
        with self._lock:
            self._working -= self._in_use[connection]
            self._in_use[connection] = False
            self._event()

    @contextmanager
    def idle(self, chosen: Callable[[C], bool]) -> Iterator[list[C]]:
        """Those idle connections that `chosen` names, for the length of a block, in which no caller gets one. They
        are the last that will be used again."""
        with self._lock:
            taken = {connection: at for connection, at in self._idle.items() if chosen(connection)}
            for connection in taken:
                del self._idle[connection]
                self._in_use[connection] = False

        try:
            yield list(taken)
        finally:
            for connection in reversed(taken):
                if self._closed or not connection.is_reusable:
                    self.release(connection)
                    continue
                with self._lock:
                    if self._in_use.pop(connection, None) is not None:
                        self._idle = {connection: taken[connection], **self._idle}
                    self._event()

    def close(self) -> None:
        """Closes the idle connections now, and the others when they are released."""
        with self._lock:
            self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Closes the connections that are not in use at this moment."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            self._by_thread.clear()
            self._open -= len(idle)
            self._event()
        for connection in idle:
            connection.discard()

    def close_all(self) -> list[C]:
        """The pool is closed, and the caller closes these: those in use too."""
        with self._lock:
            self._closed = True
            connections = [*self._idle, *self._in_use]
            self._idle.clear()
            self._in_use.clear()
            self._by_thread.clear()
            self._open = self._working = 0
            self._event()
        return connections

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        for connection in tuple(self._in_use):
            connection.break_off()

    # --- inside ---------------------------------------------------------------------------------------------

    def _take_mine(self, *, work: bool) -> tuple[C, float] | None:
        """The connection that this thread used last, and since when it is idle, if it is free and nothing is in the
        way."""
        with self._lock:
            mine = self._by_thread.get(threading.get_ident())
            if mine is None or mine not in self._idle or self._queue or self._closed or self._most_until:
                return None
            if work:
                if self._working >= self.size:
                    return None
                self._working += 1
            since, _ = self._idle.pop(mine)
            return mine, since

    def _take(self, *, work: bool, deadline: float | None) -> tuple[C, float] | None:
        """An idle connection, and since when it is; or None for the right to open one."""
        with self._lock:
            if (not self._queue or self._first() is None) and self._has_room(work=work):
                return self._taken(work=work)
            if deadline is None:
                self._check_open()
                raise self._busy(f"all {self.size} {self._what} are in use")
            place = _Waiter(work)
            self._queue.append(place)

        try:
            while True:
                with self._lock:
                    events = self._events
                    if self._first() is place:
                        return self._taken(work=work)
                if self._outstanding is not None and self._outstanding.finish_one():
                    continue

                with self._lock:
                    now = self._clock()
                    if now >= deadline:
                        raise self._waited()
                    if events == self._events:
                        until = min(deadline, self._most_until or deadline)
                        self._changed.wait(max(0.0, until - now))
        finally:
            with self._lock:
                self._queue.remove(place)
                self._event()

    def _has_room(self, *, work: bool) -> bool:
        """Whether a caller can have a connection without waiting."""
        limit = self._limit() if self._most_until else self._most
        if self._closed:
            return True  # and gets the error that says so
        if work and self._working >= min(self.size, max(1, limit - self._kept_back)):
            return False
        return bool(self._idle) or self._open < limit

    def _limit(self) -> int:
        """How many connections may be open, after the server has refused one."""
        if self._clock() >= self._most_until:
            self._most, self._most_until = self.size + self._reserve, 0.0
        return self._most

    def _first(self) -> _Waiter | None:
        """The first in the queue that can have a connection."""
        return next((place for place in self._queue if self._has_room(work=place.work)), None)

    def _taken(self, *, work: bool) -> tuple[C, float] | None:
        if self._closed:
            self._check_open()
        self._working += work
        if not self._idle:
            self._open += 1
            return None
        mine = self._by_thread.get(threading.get_ident())
        if mine is not None and mine in self._idle:
            since, _ = self._idle.pop(mine)
            return mine, since
        connection, (since, thread) = self._idle.popitem()
        if self._by_thread.get(thread) is connection:
            del self._by_thread[thread]
        return connection, since

    def _check_open(self) -> None:
        if self._closed:
            raise xa_error(Code.XAER_PROTO, "the resource manager was closed")

    def _waited(self) -> Exception:
        self._check_open()
        if self._most_until:
            return self._busy(f"none of the {self._what} became free in time: the server lets us have {self._most}")
        return self._busy(f"all {self.size} {self._what} are in use: {self._working} are at work; {self._advice}")

    def _is_full(self, *, work: bool) -> bool:
        """The server refused a connection. Returns whether there are others, of which one may become free."""
        with self._lock:
            self._open -= 1
            self._working -= work
            if self._open:
                self._most, self._most_until = self._open, self._clock() + FULL_S
            self._event()
            return bool(self._open)

    def _operation_begun(self) -> None:
        """An operation has begun that holds a connection: a caller in the queue may finish it."""
        if self._queue:
            with self._lock:
                self._event()

    def _event(self) -> None:
        """Wakes the callers in the queue. Called with the lock held."""
        if self._queue:
            self._events += 1
            self._changed.notify_all()

    def _forget(self, *, work: bool) -> None:
        """A connection was not made, or can't be used."""
        with self._lock:
            self._open -= 1
            self._working -= work
            self._event()


class _Waiter:
    """A caller in the queue."""

    __slots__ = ("work",)

    def __init__(self, work: bool) -> None:
        self.work = work
