"""The asyncio shell: steps over a line, waiting in the event loop instead of in the thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rm_amqp.core import Steps
    from rm_amqp.line import Line, Running

T = TypeVar("T")


async def run_async(line: Line, steps: Steps[T], *, later: bool = False) -> T:
    """Runs steps to their end, and returns or raises what comes of them."""
    running = line.begin(steps, later=later)
    try:
        while not running.done:
            await _happens(line, running)
            line.resume(running)
    finally:
        if not running.done:
            line.cancel(running)
    return running.result


async def _happens(line: Line, running: Running[T]) -> None:
    """Waits until the socket is ready, or the time has come."""
    loop = asyncio.get_running_loop()
    descriptor = line.fileno()
    happened = asyncio.Event()
    if descriptor < 0:
        return
    loop.add_reader(descriptor, happened.set)
    if running.writes:
        loop.add_writer(descriptor, happened.set)
    try:
        async with asyncio.timeout(max(0.0, running.deadline - line.core.clock())):
            await happened.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(descriptor)
        if running.writes:
            loop.remove_writer(descriptor)
