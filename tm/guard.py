"""Who is inside a transaction: one thread at a time, and as the transaction's thread of control."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

from tm.outcome import ProtocolMisuse, named
from xa import switch_control, thread_of_control

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import ThreadOfControl

_T = TypeVar("_T")


class Guard:
    """A transaction's guard, a context manager. A second thread that comes while one is inside is refused; while the
    reaper is inside, it waits, to hear that the transaction took too long."""

    __slots__ = ("_before", "_busy", "_control", "_gtrid", "_reaping")

    def __init__(self, gtrid: bytes, control: ThreadOfControl) -> None:
        self._gtrid = gtrid
        self._control = control
        self._busy = threading.Lock()
        self._reaping = False
        self._before: ThreadOfControl | None = None
        """What the thread that is inside has to be given back."""

    def __enter__(self) -> None:
        if not self._busy.acquire(self._reaping):
            raise ProtocolMisuse(
                f"transaction {named(self._gtrid)} is in use by another thread or task at this moment: "
                "a transaction belongs to one at a time"
            )
        control = thread_of_control()
        if control is not self._control:
            self._before = switch_control(self._control)

    def __exit__(self, *_: object) -> None:
        self._reaping = False
        if self._before is not None:
            switch_control(self._before)
            self._before = None
        self._busy.release()

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
    """Runs `work` in a thread and waits for its end, also when the waiting task is cancelled meanwhile."""
    future = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from future.exception()
    return future.result()
