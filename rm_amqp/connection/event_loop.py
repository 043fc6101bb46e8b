"""Runs steps on a connection from an asyncio task, which waits in the event loop instead of in the thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.connection import Connection, StepsRun
    from rm_amqp.connection.endpoint import Steps

T = TypeVar("T")


async def run_async(connection: Connection, steps: Steps[T], *, later: bool = False) -> T:
    """Runs steps to their end, and returns or raises what comes of them; `later` as in `Connection.run`."""
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits there
            loop.call_soon_threadsafe(happened.set)

    run = connection.begin(steps, wake, later=later)
    try:
        while not run.done:
            await _wait(connection, run, happened)
            happened.clear()  # before `resume` looks: what happens from now on sets it again
            connection.resume(run)
    finally:
        if not run.done:
            connection.cancel(run)
    return run.result


async def _wait(connection: Connection, run: StepsRun[T], happened: asyncio.Event) -> None:
    """Waits until something happened, or the time has come.

    Only the run that reads, or writes, watches the socket, because an event loop has one watcher for a descriptor."""
    loop = asyncio.get_running_loop()
    descriptor = connection.fileno()
    watched: list[Callable[[int], object]] = []
    try:
        if run.reads and descriptor >= 0:
            loop.add_reader(descriptor, happened.set)
            watched.append(loop.remove_reader)
        if run.writes and descriptor >= 0:
            loop.add_writer(descriptor, happened.set)
            watched.append(loop.remove_writer)
        async with asyncio.timeout(max(0.0, run.deadline - connection.endpoint.clock())):
            await happened.wait()
    except (TimeoutError, OSError):  # the latter: it was closed at this moment, which the steps will notice
        pass
    finally:
        for stop_watching in watched:
            stop_watching(descriptor)
