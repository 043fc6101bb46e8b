"""Calls that no signal handler interrupts, so that Ctrl-C never leaves a transaction half way through a verb.

CPython runs signal handlers in the main thread, between any two of its instructions, and KeyboardInterrupt is raised
there: between the request and the place where its handle is kept, say, or between a lock and the block that gives it
back. No code can be correct against that at every instruction. So what must not be interrupted is carried out by a
thread of ours when the main thread asks for it. The main thread only waits, and only its waiting is interrupted.

 1. An interruption before the call is handed over: nothing has begun.
 2. The first one while it is carried out is kept until the call has come to its end, and raised then.
 3. A second one is raised at once; the call goes on by itself.

Every other thread carries its calls out itself, because no signal handler runs there.
"""

from __future__ import annotations

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
    """A call that somebody waits for, unless `left`: he may be interrupted before he begins to."""

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
"""The threads that carry out a call for somebody who waits elsewhere."""


def interruptible() -> bool:
    """Whether signal handlers run in the calling thread."""
    return threading.get_ident() == threading.main_thread().ident


def left_by_its_caller(thread: int) -> bool:
    """Whether that thread carries out a call for somebody who does not wait for it any more."""
    waited = _WAITED_FOR.get(thread)
    return waited is not None and waited.left


class StillGoingOn(Exception):
    """The call has not come to its end in the time that the caller gives it; it goes on."""


class _Call(Waited, Generic[T]):
    """One call: `over` once it has come to its end, with its `result` or `error`."""

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
        """To be called once, when it was carried out: whoever waits goes on."""
        if self.left and self.error is not None:
            logger.error("%s: a call that its caller has left failed", self.about, exc_info=self.error)
        self.over = True
        self.ended.release()


class UninterruptedCalls:
    """Those of one manager. Its threads are made when they are needed: one, unless somebody has left a call."""

    def __init__(self) -> None:
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pid = os.getpid()  # a forked child has none of the threads of its parent
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()
        self._threads: deque[threading.Thread] = deque()
        self._under_way: dict[_Call[Any], None] = {}

    def run(self, about: object, work: Callable[[], T]) -> T:
        """What `work` returns or raises, uninterrupted; `about` says in the log what it is about."""
        if not interruptible():
            return work()
        call = self._hand_over(about, work)
        call.left = False
        interruption: BaseException | None = None
        while not call.over:
            try:
                call.ended.acquire()
            except BaseException as error:
                if interruption is not None:
                    call.left = True
                    raise
                interruption = error
                logger.warning(
                    "%s: interrupted by %s: waits for the end of the call that is being carried out; "
                    "interrupt again to leave that to the background",
                    about,
                    type(error).__name__,
                )
        if interruption is not None:
            raise interruption from call.error
        return _outcome(call)

    def run_for(self, seconds: float, about: object, work: Callable[[], T]) -> T:
        """As `run`, from any thread, waiting for so long at most. StillGoingOn: it goes on."""
        call = self._hand_over(about, work)
        call.left = False
        if not call.ended.acquire(timeout=seconds) and not call.over:
            call.left = True
            raise StillGoingOn
        return _outcome(call)

    def wait(self) -> None:
        """Until every call that somebody has left has come to its end."""
        for call in tuple(self._under_way):
            while not call.over:  # its own caller may take the lock first
                if call.ended.acquire(timeout=LOOK_AGAIN_S):
                    call.ended.release()

    def close(self) -> None:
        """Ends the threads; one that carries out a call that was left ends behind it, and is not waited for."""
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
        """The call, to be carried out. Interrupted before the queue has it, nothing is carried out; at worst a thread
        more than necessary waits for calls."""
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
        """What a thread of ours does. It does not call `Call.carry_out`, to be no deeper than necessary."""
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
            idle.put(None)  # before its caller goes on, who may have another call
            call.tell()
            del call  # it holds what the application works with


def _outcome(call: _Call[T]) -> T:
    if call.error is not None:
        try:
            raise call.error
        finally:
            call.error = None  # its traceback holds this frame
    return call.result
