"""Who calls: a task of asyncio, or else a thread; and whether the calling thread may wait for others."""

from __future__ import annotations

import threading
from asyncio import _get_running_loop, current_task


def caller() -> object:
    """The calling task, or else the calling thread, to be compared with another."""
    loop = _get_running_loop()
    task = current_task(loop) if loop is not None else None
    return task if task is not None else threading.get_ident()


def on_event_loop() -> bool:
    """Whether the calling thread runs an event loop at this moment. Nobody waits there for another one's statement: it
    may be that of a task of the same loop, which can't go on before the waiting one returns."""
    return _get_running_loop() is not None
