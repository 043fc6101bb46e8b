"""StatementLock: one statement at a time on a branch's connection, among the threads and tasks that share the branch.

A thread waits while another thread is in a statement. On the thread of an event loop there is no wait, because the
statement may be that of another task of the same loop, which could not go on before the waiting task returns. There the
second task is refused before it has sent anything, and the first one is not disturbed.

All connections of one association share one lock. psycopg takes it in place of its own lock: around each statement, and
around a stream or COPY from its beginning to its end. psycopg's own lock would block an event loop for good. One lock
for each psycopg connection would not do either: psycopg cleans up after a refused statement by cancelling whatever runs
on the connection, which would be the other task's statement.
"""

from __future__ import annotations

import os
import threading
from asyncio import _get_running_loop, current_task
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rm_db.sessions.errors import busy_error, forked_error, unfinished_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import Xid


class StatementLock:
    """Taken by `with` or `async with` for one statement, and by `hold` for several. When `is_ending` is set, the
    association ends, no other thread should be at work any more, and the lock is refused instead of waited for."""

    __slots__ = ("_holder", "_holds", "_in_statement", "_lock", "_pid", "_xid", "is_ending")

    def __init__(self, xid: Xid) -> None:
        self.is_ending = False
        self._xid = xid
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._holder: object = None
        self._holds = False
        self._in_statement = False

    @property
    def is_held(self) -> bool:
        """Whether the caller holds it for several statements."""
        return self._holds and self._holder == caller()

    def check(self) -> None:
        """Refuses what `with` would refuse."""
        if self._lock.locked():
            if self._holder == caller():
                if self._in_statement:
                    raise unfinished_error(self._xid)
            elif self.is_ending or on_event_loop():
                raise busy_error(self._xid)

    def __enter__(self) -> None:
        if self.is_held:
            self.check()
        elif not self._lock.acquire(blocking=False):
            if os.getpid() != self._pid:  # its holder does not exist here
                raise forked_error(self._xid)
            self.check()
            self._lock.acquire()
        self._holder = caller()
        self._in_statement = True

    def __exit__(self, *_: object) -> None:
        self._in_statement = False
        if not self._holds:
            self._holder = None
            self._lock.release()

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Around several statements that belong together: no statement of another thread or task comes between them."""
        if self.is_held:
            yield
            return
        self.__enter__()
        self._holds, self._in_statement = True, False
        try:
            yield
        finally:
            self._holds = False
            self.__exit__()


def caller() -> object:
    """The calling task, or else the calling thread, to be compared with another."""
    loop = _get_running_loop()
    task = current_task(loop) if loop is not None else None
    return task if task is not None else threading.get_ident()


def on_event_loop() -> bool:
    """Whether the calling thread runs an event loop at this moment."""
    return _get_running_loop() is not None
