"""A thread of control is X/Open's word for a piece of code that works for a transaction. A resource manager associates
a branch only with the thread of control that called `start`.

A thread of control is carried by the context of `contextvars`, so that threads and asyncio tasks can both be one. A
thread gets one of its own at the first call of `thread_of_control`. `entered` gives a piece of code another one. The
transaction manager does that for as long as an outermost transaction lasts: then asyncio tasks with transactions of
their own are distinct, and a worker thread that acts for a task counts as that task.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class ThreadOfControl:
    """An identity and no more. Resource managers keep what they know of it behind a weak reference."""

    __slots__ = ("__weakref__",)


CURRENT: Final[ContextVar[ThreadOfControl | None]] = ContextVar("xabridge_thread_of_control")
"""The calling thread of control; None, or nothing, before the first call of `thread_of_control`."""


def thread_of_control() -> ThreadOfControl:
    """The calling thread of control."""
    control = CURRENT.get(None)
    if control is None:
        control = ThreadOfControl()
        CURRENT.set(control)
    return control


def switch_control(control: ThreadOfControl | None) -> ThreadOfControl | None:
    """Makes `control` the calling thread of control until the next call of this function (None: a new one, at the first
    call of `thread_of_control`). Returns the one that it was before, if any."""
    before = CURRENT.get(None)
    CURRENT.set(control)
    return before


class entered:  # noqa: N801 — used as a context manager, named for how it reads
    """Inside the block, `control` is the calling thread of control."""

    __slots__ = ("_before", "_control")

    def __init__(self, control: ThreadOfControl) -> None:
        self._control = control

    def __enter__(self) -> ThreadOfControl:
        self._before = switch_control(self._control)
        return self._control

    def __exit__(self, *_: object) -> None:
        switch_control(self._before)
