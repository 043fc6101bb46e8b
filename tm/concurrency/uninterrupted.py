"""UninterruptedCalls: calls that no signal handler interrupts, so that Ctrl-C never stops a transaction inside of a
verb.

CPython runs signal handlers in the main thread, between any two of its instructions. KeyboardInterrupt is raised there:
between a request and the place where its handle is kept, for example, or between the acquisition of a lock and the
block that releases it. No code can be correct at every instruction. So if the main thread asks for something that must
not be interrupted, a thread of ours carries it out. The main thread only waits, and only its waiting can be
interrupted:

 1. An interruption before the call is handed over: nothing has begun.
 2. The first interruption while the call is carried out: it is kept until the call is over, and raised then.
 3. A second one: it is raised at once, and the call goes on in the background.

Any other thread carries out its calls itself, because no signal handler runs there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

logger = logging.getLogger("xabridge.tm")

T = TypeVar("T")


class Waited:
    """A call that another thread or task waits for; `left`: it does not, because it was interrupted, or has not begun
    to."""

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


LOOK_AGAIN_S: Final = 0.05
_WAITED_FOR: Final[dict[int, Waited]] = {}
"""Thread → the call that it carries out for another thread or task."""


def interruptible() -> bool:
    """Whether signal handlers run in the calling thread."""
    return threading.get_ident() == threading.main_thread().ident


def left_by_its_caller(thread: int) -> bool:
    """Whether that thread carries out a call whose caller does not wait for it any more."""
    waited = _WAITED_FOR.get(thread)
    return waited is not None and waited.left


class StillGoingOn(Exception):
    """The call takes longer than its caller waits. It goes on."""


class _Call(Waited, Generic[T]):
    """One call. When it is `over`, it has a `result` or an `error`."""

    __slots__ = ("about", "context", "ended", "error", "over", "result", "work")

    def __init__(self, about: object, context: Context, work: Callable[[], T]) -> None:
        super().__init__()
        self.about = about
        self.context = context
        self.work = work
        self.ended = threading.Lock()
        self.ended.acquire()
        self.over = False
        self.error: BaseException | None = None
        self.result: T

    def tell(self) -> None:
        """To be called once, after it was carried out: the caller goes on."""
        if self.left and self.error is not None:
            logger.error("%s: a call that its caller has left failed", self.about, exc_info=self.error)
        self.over = True
        self.ended.release()


class UninterruptedCalls:
    """The calls of one manager. Its threads are made when they are needed: one, unless a caller has left its call."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()  # a forked child has none of the threads of its parent
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()
        self._threads: deque[threading.Thread] = deque()
        self._under_way: dict[_Call[Any], None] = {}

    def run(self, about: object, work: Callable[[], T]) -> T:
        """Carries out `work`, uninterrupted, and returns or raises what it does. `about` names it in log messages."""
        if not interruptible():
            return work()
        call = self._hand_over(about, work)
        call.left = False
        interruption: BaseException | None = None
        try:
            while not call.over:
                try:
                    call.ended.acquire()
                except BaseException as error:
                    if interruption is not None:
                        raise
                    interruption = error
                    logger.warning(
                        "%s: interrupted by %s: waits for the end of the call that is being carried out; "
                        "interrupt again to leave that to the background",
                        about,
                        type(error).__name__,
                    )
        except BaseException:  # the second one, wherever it came: while the first was logged, say
            call.left = True
            raise
        if interruption is not None:
            raise interruption from call.error
        return _outcome(call)

    def run_for(self, seconds: float, about: object, work: Callable[[], T]) -> T:
        """As `run`, for any thread, but waits no longer than `seconds`. StillGoingOn: it goes on."""
        call = self._hand_over(about, work)
        call.left = False
        if not call.ended.acquire(timeout=seconds) and not call.over:
            call.left = True
            raise StillGoingOn
        return _outcome(call)

    def wait(self) -> None:
        """Waits for the end of every call that its caller has left."""
        for call in tuple(self._under_way):
            while not call.over:  # its own caller may take the lock first
                if call.ended.acquire(timeout=LOOK_AGAIN_S):
                    call.ended.release()

    def close(self) -> None:
        """Ends the threads. A thread that carries out a call that was left ends after that, and is not waited for."""
        calls, threads, left = self._calls, tuple(self._threads), len(self._under_way)
        self._begin_anew()
        for _ in threads:
            calls.put(None)
        if not left:
            for thread in threads:
                if thread.ident is not None:  # its start may have been interrupted
                    thread.join()

    # --- inside -----------------------------------------------------------------------------------------------

    def _hand_over(self, about: object, work: Callable[[], T]) -> _Call[T]:
        """Hands the call over to a thread. If this is interrupted before the queue has the call, nothing is carried
        out; at worst there is one thread too many."""
        if self._pid != os.getpid():
            self._begin_anew()
        call = _Call(about, copy_context(), work)
        try:
            self._idle.get_nowait()
        except Empty:
            thread = threading.Thread(target=self._carry_out, name="xabridge-uninterrupted", daemon=True)
            self._threads.append(thread)  # first: one too many is told to end, not one too few
            thread.start()
        self._calls.put(call)
        return call

    def _carry_out(self) -> None:
        """The work of a thread of ours."""
        calls, idle, thread = self._calls, self._idle, threading.get_ident()
        while (call := calls.get()) is not None:
            self._under_way[call] = None
            _WAITED_FOR[thread] = call
            try:
                call.result = call.context.run(call.work)
            except BaseException as error:  # noqa: BLE001 — raised by who waits
                call.error = error
            finally:
                _WAITED_FOR.pop(thread, None)
            self._under_way.pop(call, None)
            idle.put(None)  # before the caller goes on, because it may have another call
            call.tell()
            del call  # it refers to objects of the application


def _outcome(call: _Call[T]) -> T:
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # its traceback holds this frame
    return call.result


async def finish_in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread and waits for its end, even if the waiting task is cancelled meanwhile. It is carried out
    whatever happens to the task and to its event loop."""
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
