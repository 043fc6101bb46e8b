"""Thread of control: who does work for a transaction, carried by the contextvars context.

A thread has a thread of control of its own, made when somebody first asks. `entered` gives a piece of code
another one: the transaction manager does so for the length of an outermost transaction, so that asyncio tasks
with transactions of their own are apart, and a worker thread that acts for a task is that task.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator


class ThreadOfControl:
    """An identity, no more; resource managers may hang what they know of it on a weak reference."""

    __slots__ = ("__weakref__",)


_CURRENT: Final[ContextVar[ThreadOfControl]] = ContextVar("xabridge_thread_of_control")


def thread_of_control() -> ThreadOfControl:
    """The calling thread of control."""
    control = _CURRENT.get(None)
    if control is None:
        control = ThreadOfControl()
        _CURRENT.set(control)
    return control


@contextmanager
def entered(control: ThreadOfControl) -> Iterator[ThreadOfControl]:
    """Inside the block, `control` is the calling thread of control."""
    token = _CURRENT.set(control)
    try:
        yield control
    finally:
        _CURRENT.reset(token)
