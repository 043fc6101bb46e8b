"""UninterruptedCalls: calls that no signal handler interrupts, so that Ctrl-C never stops a transaction inside of a
verb.

In the main thread the handlers wait until the call is over (`tm.concurrency.deferred_signals`). Any other thread
carries out its calls as they are, because no signal handler runs there. What comes of an interruption:

 1. Before the call has begun: it is raised, and nothing has begun.
 2. While the call is carried out: it is raised when the call is over.
 3. A second Ctrl-C: the connections that the call may be waiting for are broken, so that it is over soon.

`run_for` and `finish_in_thread` are for callers that must not wait, or not block: another thread carries the call out.
"""

from __future__ import annotations

import _thread
import asyncio
import logging
import os
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tm.concurrency.deferred_signals import DeferredSignals, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("xabridge.tm")

T = TypeVar("T")


class WaitedCall:
    """A call that another thread or task waits for; `left`: it does not, because it was cancelled, has waited long
    enough, or has not begun to."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = True

    def carry_out(self, work: Callable[[], T]) -> T:
        """Carries out `work` on this thread."""
        thread = threading.get_ident()
        _WAITED_FOR[thread] = self
        try:
            return work()
        finally:
            _WAITED_FOR.pop(thread, None)


_WAITED_FOR: Final[dict[int, WaitedCall]] = {}
"""Thread → the call that it carries out for another thread or task."""


def left_by_its_caller(thread: int) -> bool:
    """Whether that thread carries out a call whose caller does not wait for it any more."""
    waited = _WAITED_FOR.get(thread)
    return waited is not None and waited.left


class CallStillRunning(Exception):
    """The call takes longer than its caller waits. It goes on."""


class _Call(WaitedCall, Generic[T]):
    """A call that a thread of its own carries out. When it is `over`, it has a `result` or an `error`."""

    __slots__ = ("about", "error", "over", "result", "work")

    def __init__(self, about: object, work: Callable[[], T]) -> None:
        super().__init__()
        self.about = about
        self.work = work
        self.over = threading.Event()
        self.error: BaseException | None = None
        self.result: T

    def outcome(self) -> T:
        """Its result; raises its error."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # its traceback holds this frame
        return self.result


class UninterruptedCalls:
    """The calls of one manager. `break_off` breaks the connections that a call may be waiting for."""

    def __init__(self, break_off: Callable[[], object]) -> None:
        self.break_off = break_off
        self._idle = DeferredSignals(self, break_off)
        self._pid = os.getpid()
        self._under_way: dict[_Call[Any], None] = {}

    def run(self, about: object, work: Callable[[], T]) -> T:
        """Carries out `work`, uninterrupted, and returns or raises what it does. `about` names it in log messages."""
        signals = self.signals(about)
        try:
            signals.begin()
            return work()
        finally:
            signals.end()

    def signals(self, about: object) -> DeferredSignals:
        """The deferred signals, for callers that do by themselves what `run` does."""
        return DeferredSignals(about, self.break_off) if interruptible() else self._idle

    def run_for(self, seconds: float, about: object, work: Callable[[], T]) -> T:
        """Carries out `work` on a thread of its own, and waits no longer than `seconds`. CallStillRunning: it goes on.

        It may be called while garbage is collected, with any lock held, and takes none that others take."""
        call = _Call(about, work)
        call.left = False
        self._calls_of_this_process()[call] = None
        _thread.start_new_thread(copy_context().run, (self._carry_out, call))
        if not call.over.wait(seconds):
            call.left = True
            raise CallStillRunning
        return call.outcome()

    def _carry_out(self, call: _Call[Any]) -> None:
        try:
            call.result = call.carry_out(call.work)
        except BaseException as error:
            call.error = error
            if call.left:
                logger.exception("%s: a call that its caller has left failed", call.about)
        self._under_way.pop(call, None)
        call.over.set()

    def wait(self) -> None:
        """Waits for the end of every call that its caller has left."""
        for call in tuple(self._calls_of_this_process()):
            call.over.wait()

    def _calls_of_this_process(self) -> dict[_Call[Any], None]:
        """The calls that other threads carry out. A forked child has none of the threads of its parent."""
        if self._pid != os.getpid():
            self._pid, self._under_way = os.getpid(), {}
        return self._under_way


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread and waits for its end, even if the waiting task is cancelled meanwhile. It is carried out
    whatever happens to the task and to its event loop."""
    waited = WaitedCall()
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
