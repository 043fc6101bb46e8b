"""Who is inside a transaction: one thread at a time, and as the transaction's thread of control."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, TypeVar

from tm.outcome import ProtocolMisuse, named
from tm.uninterrupted import Waited, left_by_its_caller
from xa import switch_control, thread_of_control

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import ThreadOfControl

_T = TypeVar("_T")

_LOOK_AGAIN_S: Final = 0.01


class Guard:
    """A transaction's guard, a context manager, for threads in which no signal handler runs (`tm.uninterrupted`).

    A second thread that comes while one is inside is refused; while the reaper is inside, it waits, to hear that the
    transaction took too long. So does who comes while a call is carried out that its own caller has left.
    """

    __slots__ = ("_before", "_busy", "_control", "_gtrid", "_inside", "_reaping")

    def __init__(self, gtrid: bytes, control: ThreadOfControl) -> None:
        self._gtrid = gtrid
        self._control = control
        self._busy = threading.Lock()
        self._reaping = False
        self._inside = 0
        """The thread that is inside; 0: none, or one that has just come."""
        self._before: ThreadOfControl | None = None
        """What the thread that is inside has to be given back."""

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if not self._busy.acquire(self._reaping) and not self._wait_for_a_left_call():
            raise ProtocolMisuse(
                f"transaction {named(self._gtrid)} is in use by another thread or task at this moment: "
                "a transaction belongs to one at a time"
            )
        self._inside = thread
        control = thread_of_control()
        if control is not self._control:
            self._before = switch_control(self._control)

    def __exit__(self, *_: object) -> None:
        self._reaping = False
        if self._before is not None:
            switch_control(self._before)
            self._before = None
        self._inside = 0
        self._busy.release()

    def _wait_for_a_left_call(self) -> bool:
        """Whether it has become free, where a call was inside whose caller does not wait for it any more."""
        while not self._busy.acquire(timeout=_LOOK_AGAIN_S):
            inside = self._inside
            if inside and not left_by_its_caller(inside):
                return False
        return True

    def enter_as_reaper(self) -> bool:
        """Enters if nobody is inside; whether it did. To be left like any other block."""
        self._reaping = True
        if not self._busy.acquire(blocking=False):
            self._reaping = False
            return False
        thread_of_control()  # to be given back
        self._before = switch_control(self._control)
        return True


async def finish_in_thread(work: Callable[[], _T]) -> _T:
    """Runs `work` in a thread and waits for its end, also when the waiting task is cancelled meanwhile. It is carried
    out whatever becomes of the task and of its event loop."""
    waited = Waited()
    loop = asyncio.get_running_loop()
    try:
        # no task, which the end of the loop would cancel before a thread has begun it
        future = loop.run_in_executor(None, copy_context().run, waited.carry_out, work)
    except RuntimeError:  # the loop's threads are shut down already
        return work()
    waited.left = False
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # the coroutine is closed
            waited.left = True
            raise
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()
