"""Runs steps on a connection from an asyncio task, which waits in the event loop instead of in the thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.connection import Connection, RunningSteps
    from rm_amqp.connection.endpoint import Steps

T = TypeVar("T")


async def run_async(connection: Connection, steps: Steps[T], *, later: bool = False) -> T:
    """Runs steps to their end, and returns or raises what comes of them; `later` as in `Connection.run`."""
    wakeup = Wakeup()
    run = connection.begin(steps, wakeup.wake, later=later)
    try:
        while not run.done:
            await wakeup.wait(connection, run)
            connection.resume(run)
    finally:
        if not run.done:
            connection.cancel(run)
    return run.result


class Wakeup:
    """How a run of steps waits in the event loop of the task that makes this. It goes on when it is woken, when its
    time has come, or when the socket that it watches is ready. (A future and a timer: an event with a time-out takes
    three times as long.)"""

    __slots__ = ("_future", "_happened", "_loop", "_thread")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._future: asyncio.Future[None] | None = None
        self._happened = False
        """Whether something happened since it last waited."""

    def wake(self) -> None:
        """Something happened. Called from any thread."""
        if threading.get_ident() == self._thread:
            self._go_on()
            return
        with suppress(RuntimeError):  # the loop is closed, and no task waits there
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self._happened = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self, connection: Connection, run: RunningSteps[T]) -> None:
        """Waits. The steps look at everything when they are resumed: what happens from then on is waited for anew.

        Only the run that reads, or writes, watches the socket, because an event loop has one watcher for a
        descriptor."""
        loop, descriptor = self._loop, connection.fileno()
        watched: list[Callable[[int], object]] = []
        if not self._happened:
            future = self._future = loop.create_future()
            timer = loop.call_later(max(0.0, run.deadline - connection.endpoint.clock()), self._go_on)
            try:
                if run.reads and descriptor >= 0:
                    loop.add_reader(descriptor, self._go_on)
                    watched.append(loop.remove_reader)

                if run.writes and descriptor >= 0:
                    loop.add_writer(descriptor, self._go_on)
                    watched.append(loop.remove_writer)
                await future
            except OSError:  # it was closed at this moment, which the steps will notice
                pass
            finally:
                timer.cancel()
                self._future = None
                for stop_watching in watched:
                    stop_watching(descriptor)
        self._happened = False
