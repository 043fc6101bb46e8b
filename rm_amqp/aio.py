"""The asyncio shell: steps over a line, waiting in the event loop instead of in the thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.core import Steps
    from rm_amqp.line import Line, Running

T = TypeVar("T")


async def run_async(line: Line, steps: Steps[T], *, later: bool = False) -> T:
    """Runs steps to their end, and returns or raises what comes of them."""
    loop = asyncio.get_running_loop()
    happened = asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody waits there
            loop.call_soon_threadsafe(happened.set)

    running = line.begin(steps, wake, later=later)
    try:
        while not running.done:
            await _happens(line, running, happened)
            happened.clear()  # before it looks: what happens from now on is told again
            line.resume(running)
    finally:
        if not running.done:
            line.cancel(running)
    return running.result


async def _happens(line: Line, running: Running[T], happened: asyncio.Event) -> None:
    """Waits until something happened, or the time has come. The socket is watched for whom reads, or writes, alone: an
    event loop tells one of several who watch for the same."""
    loop = asyncio.get_running_loop()
    descriptor = line.fileno()
    watched: list[Callable[[int], object]] = []
    try:
        if running.reads and descriptor >= 0:
            loop.add_reader(descriptor, happened.set)
            watched.append(loop.remove_reader)
        if running.writes and descriptor >= 0:
            loop.add_writer(descriptor, happened.set)
            watched.append(loop.remove_writer)
        async with asyncio.timeout(max(0.0, running.deadline - line.core.clock())):
            await happened.wait()
    except (TimeoutError, OSError):  # the latter: it was closed at this moment, which its steps will hear
        pass
    finally:
        for stop_watching in watched:
            stop_watching(descriptor)
