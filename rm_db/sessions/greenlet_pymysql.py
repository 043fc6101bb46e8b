"""GreenletPymysqlConnection: a branch's PyMySQL connection for SQLAlchemy's asyncio extension.

PyMySQL can't be awaited, and an asyncio driver could not take its session over: a branch has one, and asyncio is only
one of the ways to it. So PyMySQL stays, in the greenlet in which SQLAlchemy's extension calls it. Where it would wait
for the socket, the greenlet hands over to the event loop, and PyMySQL goes on when the socket is ready.

A task that is cancelled in a statement ends the session of its branch: the statement stops, its locks are free, and
the branch can only be rolled back.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from pymysql.cursors import SSCursor
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from rm_db.sessions.pymysql_connection import PymysqlConnection
from rm_db.sessions.statement_lock import on_event_loop

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rm_db.mariadb.connection import MariaConnection
    from rm_db.sessions.mariadb_access import MariaAccess


class GreenletPymysqlConnection(PymysqlConnection):
    """A PyMySQL connection that waits in the event loop, where one runs. The flush at the end of an association has no
    greenlet. It runs in a thread of its own or, when a transaction is suspended, on the event loop's thread, and blocks
    as elsewhere."""

    def __init__(self, access: MariaAccess, connection: MariaConnection) -> None:
        super().__init__(access, connection.driver)
        self._connection = connection
        self._has_awaited = False
        access.end_session = self._end_session

    def cursor(self, cursor: Any = None) -> Any:
        return _greenlet_cursor(cursor or self._driver.cursorclass)(self)

    @contextmanager
    def _statement(self) -> Iterator[MariaConnection]:
        waiting = self.waiting()
        with super()._statement() as connection, waiting:
            yield connection
            self._await_once()

    @contextmanager
    def _further_result(self) -> Iterator[MariaConnection]:
        waiting = self.waiting()
        with super()._further_result() as connection, waiting:
            yield connection
            self._await_once()

    def waiting(self) -> AbstractContextManager[None]:
        """Meanwhile PyMySQL waits in the event loop. MissingGreenlet: that needs `await`."""
        if self.access.statement_lock.is_ending or not on_event_loop():
            return nullcontext()
        if not in_greenlet():
            await_only(_nothing())  # raises
        self._has_awaited = False
        return self._connection.waiting(self._wait)

    def _wait(self, connected: socket.socket, events: int, timeout_s: float | None) -> None:
        self._has_awaited = True
        await_only(_ready(connected, events, timeout_s))

    def _await_once(self) -> None:
        """SQLAlchemy takes a statement for which nothing was awaited for one of a driver that blocks. Here the reply
        may have come at once."""
        if not self._has_awaited and on_event_loop() and in_greenlet():
            self._has_awaited = True
            await_only(asyncio.sleep(0))

    def _end_session(self, thread_id: int) -> object:
        end_session = self.access.work.end_session
        if on_event_loop() and in_greenlet():
            return await_only(asyncio.to_thread(end_session, thread_id))
        return end_session(thread_id)


class _GreenletCursor:
    """A mixin for a cursor of PyMySQL's, before PyMySQL's class."""

    async def _async_soft_close(self) -> None:
        """SQLAlchemy awaits this on an asyncio driver's cursor that has all its rows; here is nothing to wait for."""


class _GreenletUnbufferedCursor(_GreenletCursor):
    """The same for one that reads its rows when they are asked for."""

    connection: GreenletPymysqlConnection | None

    def read_next(self) -> Any:
        assert self.connection is not None  # noqa: S101 — PyMySQL has checked it
        with self.connection.waiting():
            return super().read_next()  # type: ignore[misc]  # PyMySQL's

    def close(self) -> None:
        with self.connection.waiting() if self.connection is not None else nullcontext():
            super().close()  # type: ignore[misc]  # PyMySQL's


@cache
def _greenlet_cursor(cursor: type[Any]) -> type[Any]:
    """The class of PyMySQL's, or of the application's, for a greenlet."""
    before = _GreenletUnbufferedCursor if issubclass(cursor, SSCursor) else _GreenletCursor
    return type(f"Greenlet{cursor.__name__}", (before, cursor), {})


async def _ready(connected: socket.socket, events: int, timeout_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    number = connected.fileno()
    add, remove = (
        (loop.add_reader, loop.remove_reader) if events == select.POLLIN else (loop.add_writer, loop.remove_writer)
    )
    add(number, _tell, ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        remove(number)


def _tell(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _nothing() -> None:
    pass
