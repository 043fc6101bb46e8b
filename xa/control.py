"""Thread of control: who does work for a transaction, carried by the contextvars context.

A thread has a thread of control of its own, made when somebody first asks. `entered` gives a piece of code
another one: the transaction manager does so for the length of an outermost transaction, so that asyncio tasks
with transactions of their own are apart, and a worker thread that acts for a task is that task.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final


class ThreadOfControl:
    """An identity, no more; resource managers may hang what they know of it on a weak reference."""

    __slots__ = ("__weakref__",)


_CURRENT: Final[ContextVar[ThreadOfControl | None]] = ContextVar("xabridge_thread_of_control")


def thread_of_control() -> ThreadOfControl:
    """The calling thread of control."""
    control = _CURRENT.get(None)
    if control is None:
        control = ThreadOfControl()
        _CURRENT.set(control)
    return control


def switch_control(control: ThreadOfControl | None) -> ThreadOfControl | None:
    """Makes `control` the calling thread of control until further notice (None: a new one, when somebody asks);
    the one it was before, if any."""
    before = _CURRENT.get(None)
    _CURRENT.set(control)
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
