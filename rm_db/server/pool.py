"""ConnectionPool: a bounded pool of connections to a database, for work and for commands.

Work (a branch from its start to its vote) may hold `size` connections. Commands (commit and rollback of prepared
branches, recovery) may take `RESERVE` more, so that a command which frees a lock never waits for the work that waits
for that lock. Where the server refuses further connections, the pool works with those that it has for `FULL_S` seconds.

A caller that finds no connection free does three things, in this order:

1. It finishes an operation that holds a connection and whose answer nobody has collected yet (`Outstanding`). So no
   thread waits for a connection which it holds itself.
2. It waits in a queue, so that a thread with hundreds of commands does not pass the others by.
3. After `wait_s` it gets XA_RETRY: the server was asked nothing.

A connection returns to the pool only when it is known to be usable: in no transaction, and its session state reset. A
thread gets the connection that it used last, where that is free.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from xa import Code, TryAgain, xa_error
from xa.connection_usage import Connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import XaError

RESERVE: Final = 4
CHECK_AFTER_S: Final = 30.0
"""A connection that was idle for longer is tested before it is used."""
FULL_S: Final = 5.0
"""How long no further connection is tried after the server refused one."""


class PooledConnection(Protocol):
    """One connection, as the pool has it. `reusable` is cleared when the session can't be brought back to where it
    began, `is_cut` is set when another thread has to close it. `working`, `affinity` and `idle_since` are the pool's.
    """

    reusable: bool
    is_cut: bool
    working: bool
    affinity: int
    idle_since: float

    @property
    def is_free(self) -> bool:
        """Whether it is in no transaction, or will be once the replies that it owes are there."""
        ...

    def is_ready(self) -> bool:
        """Whether an idle connection owes no reply, and its other side has not closed it, as far as is known without
        asking."""
        ...

    def is_usable(self, timeout_s: float, *, test: bool) -> bool:
        """Whether an idle connection can be used: the other side has not closed it, and its last reply was a success.
        With `test` the server is asked."""
        ...

    def close(self) -> None:
        """Closes the connection, whatever happens on it."""
        ...

    def break_off(self) -> None:
        """Shuts the connection down, as a network does that fails. Any thread may call this at any moment."""
        ...


C = TypeVar("C", bound=PooledConnection)


class Outstanding(Protocol):
    """Operations that hold connections until their answers are collected."""

    def finish_one(self) -> bool:
        """Finishes one of them, so that it returns its connection; False where there is none."""
        ...

    def watch(self, begun: Callable[[], None]) -> None:
        """From now on `begun` is called when another operation has begun."""
        ...


class ConnectionPool(Generic[C]):
    """Connections that `connect` makes; it raises XA_RETRY where the server, or a pooler before it, allows no further
    one at this moment. `wait_s` bounds the wait for a free one, `reply_s` that for a reply; `outstanding` are the
    operations that hold some of them."""

    def __init__(
        self,
        connect: Callable[[], C],
        size: int,
        wait_s: float,
        reply_s: float,
        outstanding: Outstanding,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self._connect = connect
        self._wait_s = wait_s
        self._reply_s = reply_s
        self._clock = clock
        self._outstanding = outstanding
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._idle: dict[C, None] = {}
        self._in_use: set[C] = set()
        self._by_thread: dict[int, C] = {}
        self._open = 0
        self._working = 0
        self._most = size + RESERVE
        self._most_until = 0.0
        self._queue: list[_Waiter] = []
        self._events = 0
        self._closed = False
        outstanding.watch(self._operation_begun)

    @property
    def opened(self) -> int:
        """How many connections are open."""
        return self._open

    @property
    def usage(self) -> Connections:
        """How it is now."""
        idle = len(self._idle)
        return Connections(idle, max(0, self._open - idle), self.size, len(self._queue))

    @property
    def inherited(self) -> bool:
        """Whether the pool was made in the process that forked this one, whose connections must not be used here."""
        return os.getpid() != self._pid

    @property
    def is_idle(self) -> bool:
        """Whether `acquire` would return a connection of the pool for work now, without asking the server."""
        with self._lock:
            if self._closed or self._queue or not self._idle or not self._has_room(work=True):
                return False
            connection = self._by_thread.get(threading.get_ident())
            if connection is None or connection not in self._idle:
                connection = next(reversed(self._idle))
            if self._clock() - connection.idle_since > CHECK_AFTER_S:
                return False
            return connection.is_ready()  # else another one would have to be made

    def acquire(self, *, work: bool, wait: bool = True) -> C:
        """A connection in no transaction. XA_RETRY: none is free and `wait` is False, or none became free in time, or
        the server has none left; else what `connect` raises."""
        deadline = self._clock() + self._wait_s if wait else None
        while True:
            connection = self._reserve(work=work, deadline=deadline)
            if connection is None:
                try:
                    connection = self._connect()
                except TryAgain:
                    if not self._is_full(work=work):
                        raise
                    continue
                except BaseException:
                    self._give_up(work=work)
                    raise
                break
            if self._is_usable(connection):
                break
            connection.close()
            self._give_up(work=work)
        connection.working = work
        self._in_use.add(connection)
        return connection

    def release(self, connection: C) -> None:
        """Gives a connection back, or closes it where it can't be used again. Replies that are still owed may only
        be those of commands that leave it in no transaction."""
        keep = connection.reusable and not connection.is_cut and not self._closed and connection.is_free
        if not keep and not connection.is_cut:  # one that was cut is closed by the thread that still waits on it
            connection.close()
        self._in_use.discard(connection)
        with self._lock:
            self._working -= connection.working
            if keep and not self._closed:
                connection.affinity = threading.get_ident()
                connection.idle_since = self._clock()
                self._idle[connection] = None
                self._by_thread[connection.affinity] = connection
            else:
                self._open -= 1
            self._event()

    def park(self, connection: C) -> None:
        """The connection does no work any more, and is not free either."""
        with self._lock:
            self._working -= connection.working
            connection.working = False
            self._event()

    def close(self) -> None:
        """Closes the idle connections now, and the others when they are released."""
        with self._lock:
            self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Closes the connections that nobody uses at this moment."""
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            self._by_thread.clear()
            self._open -= len(idle)
            self._event()
        for connection in idle:
            connection.close()

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        for connection in tuple(self._in_use):
            connection.break_off()

    # --- inside ---------------------------------------------------------------------------------------------

    def _reserve(self, *, work: bool, deadline: float | None) -> C | None:
        """An idle connection, or None for the right to open one."""
        with self._lock:
            if (not self._queue or self._first() is None) and self._has_room(work=work):
                return self._taken(work=work)
            if deadline is None:
                self._check_open()
                raise xa_error(Code.XA_RETRY, f"all {self.size} connections are in use")
            place = _Waiter(work)
            self._queue.append(place)
        try:
            while True:
                with self._lock:
                    events = self._events
                    if self._first() is place:
                        return self._taken(work=work)
                if self._outstanding.finish_one():
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
        if work and self._working >= min(self.size, max(1, limit - 1)):
            return False
        return bool(self._idle) or self._open < limit

    def _limit(self) -> int:
        """How many connections may be open, after the server has refused one."""
        if self._clock() >= self._most_until:
            self._most, self._most_until = self.size + RESERVE, 0.0
        return self._most

    def _first(self) -> _Waiter | None:
        """The first in the queue that can have a connection."""
        return next((place for place in self._queue if self._has_room(work=place.work)), None)

    def _taken(self, *, work: bool) -> C | None:
        if self._closed:
            self._check_open()
        connection = self._take_idle()
        self._open += connection is None
        self._working += work
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise xa_error(Code.XAER_PROTO, "the resource manager was closed")

    def _waited(self) -> XaError:
        self._check_open()
        if self._most_until:
            why = f"the server lets us have {self._most}"
        else:
            mend = "raise xa_pool_size, or look for transactions that hang"
            why = f"{self._working} are at work, {self.size} may be; {mend}"
        return xa_error(Code.XA_RETRY, f"no connection became free within {self._wait_s:g} s: {why}")

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

    def _take_idle(self) -> C | None:
        if not self._idle:
            return None
        mine = self._by_thread.get(threading.get_ident())
        if mine is not None and mine in self._idle:
            del self._idle[mine]
            return mine
        connection, _ = self._idle.popitem()
        if self._by_thread.get(connection.affinity) is connection:
            del self._by_thread[connection.affinity]
        return connection

    def _give_up(self, *, work: bool) -> None:
        with self._lock:
            self._open -= 1
            self._working -= work
            self._event()

    def _is_usable(self, connection: C) -> bool:
        test = self._clock() - connection.idle_since > CHECK_AFTER_S
        return connection.is_usable(self._reply_s, test=test)


class _Waiter:
    """A caller in the queue."""

    __slots__ = ("work",)

    def __init__(self, work: bool) -> None:
        self.work = work
