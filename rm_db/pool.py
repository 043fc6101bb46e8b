"""WirePool: a bounded pool of PostgreSQL connections, for work and for commands.

Work (a branch from its start to its vote) may hold `size` connections. Commands (commit and rollback of prepared
branches, recovery) may take `RESERVE` more, so that what frees a lock never waits for the work that waits for it.
A connection goes back to the thread that used it last where it can, and to the pool only when it is known to be
whole: in no transaction, its session state reset.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from rm_db.wire import IDLE, ConnectionLost, Steps, Wire, drive
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable

RESERVE: Final = 4
CHECK_AFTER_S: Final = 30.0
"""A connection that was idle for longer is asked for a sign of life before it is used."""


class WirePool:
    """Connections that `connect` makes. `wait_s` bounds the wait for a free one, `reply_s` that for a reply."""

    def __init__(
        self,
        connect: Callable[[], Wire],
        size: int,
        wait_s: float,
        reply_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.size = size
        self._connect = connect
        self._wait_s = wait_s
        self._reply_s = reply_s
        self._clock = clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._idle: dict[Wire, None] = {}
        self._by_thread: dict[int, Wire] = {}
        self._open = 0
        self._working = 0
        self._closed = False

    @property
    def opened(self) -> int:
        """How many connections there are."""
        return self._open

    @property
    def inherited(self) -> bool:
        """Whether this process got the pool from the one that forked it: its connections are not ours to use."""
        return os.getpid() != self._pid

    def acquire(self, *, work: bool, wait: bool = True) -> Wire:
        """A connection in no transaction. XaError: XA_RETRY when none is free and `wait` is False, XAER_RMERR when
        none became free in time, else what `connect` raises."""
        while True:
            wire = self._reserve(work=work, wait=wait)
            if wire is None:
                try:
                    wire = self._connect()
                except BaseException:
                    self._give_up(work=work)
                    raise
                wire.working = work
                return wire
            if self._is_whole(wire):
                wire.working = work
                return wire
            wire.close()
            self._give_up(work=work)

    def release(self, wire: Wire) -> None:
        """Gives a connection back, or closes it where it can't be used again. Replies that are still owed may only
        be those of commands that leave it in no transaction."""
        keep = wire.reusable and not wire.doomed and wire.alive and not self._closed
        if keep and not wire.owes and (wire.status != IDLE or wire.pipelined):
            keep = False
        if not keep and not wire.doomed:  # a doomed one is closed by the thread that still waits on it
            wire.close()
        with self._lock:
            self._working -= wire.working
            if keep and not self._closed:
                wire.affinity = threading.get_ident()
                wire.idle_since = self._clock()
                self._idle[wire] = None
                self._by_thread[wire.affinity] = wire
            else:
                self._open -= 1
            self._changed.notify()

    def close(self) -> None:
        """Closes what is idle, and what is in use when it is given back."""
        with self._lock:
            self._closed = True
            idle = list(self._idle)
            self._idle.clear()
            self._by_thread.clear()
            self._open -= len(idle)
            self._changed.notify_all()
        for wire in idle:
            wire.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _reserve(self, *, work: bool, wait: bool) -> Wire | None:
        """An idle connection, or None for the right to open one."""
        deadline = None
        with self._lock:
            while True:
                if self._closed:
                    raise xa_error(Code.XAER_PROTO, "the resource manager was closed")
                if not work or self._working < self.size:
                    wire = self._take_idle()
                    if wire is not None or self._open < self.size + RESERVE:
                        self._open += wire is None
                        self._working += work
                        return wire
                if not wait:
                    raise xa_error(Code.XA_RETRY, f"all {self.size} connections are in use")
                now = self._clock()
                deadline = now + self._wait_s if deadline is None else deadline
                if now >= deadline or not self._changed.wait(deadline - now):
                    raise xa_error(
                        Code.XAER_RMERR,
                        f"no connection became free within {self._wait_s:g} s: {self._working} are at work, "
                        f"{self.size} may be; raise xa_pool_size, or look for transactions that hang",
                    )

    def _take_idle(self) -> Wire | None:
        if not self._idle:
            return None
        mine = self._by_thread.get(threading.get_ident())
        if mine is not None and mine in self._idle:
            del self._idle[mine]
            return mine
        wire, _ = self._idle.popitem()
        if self._by_thread.get(wire.affinity) is wire:
            del self._by_thread[wire.affinity]
        return wire

    def _give_up(self, *, work: bool) -> None:
        with self._lock:
            self._open -= 1
            self._working -= work
            self._changed.notify()

    def _is_whole(self, wire: Wire) -> bool:
        """Whether a connection from the pool can be used: the other side is there, its last reply was a success."""
        try:
            if wire.owes:
                reply = drive(wire.collect(), self._reply_s)
                if reply.failure is not None:
                    return False
            if wire.went_away():
                return False
            if self._clock() - wire.idle_since > CHECK_AFTER_S:
                drive(_sign_of_life(wire), self._reply_s)
        except ConnectionLost:
            return False
        return wire.status == IDLE


def _sign_of_life(wire: Wire) -> Steps[None]:
    yield from wire.exchange(b"")
