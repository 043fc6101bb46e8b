"""Replies that the server has not given yet: what a verb with TMASYNC leaves to `complete`.

`OutstandingSteps.begin` sends a request and returns a `PendingSteps`, whose result is collected later. Until then the
request holds its connection. When connections are short, a caller that needs one finishes such a request first, its
own or another thread's (`finish_one`). The answer is kept until it is collected.

Steps take a connection before they wait for the first time, and never a second one later. Therefore finishing them
needs no further connection, and waiting for connections can't go round in circles (decision 0014).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from rm_db.server.steps import Wait, attempt, drive, is_ready
from xa import Code, XaError, thread_of_control, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rm_db.server.steps import Steps
    from xa import Xid

T = TypeVar("T")


class PendingSteps:
    """Steps under way: an `xa.driver.Pending`. `wait` is what they wait for, and `answer` their result once it is
    there. The thread that runs them holds `lock`."""

    __slots__ = ("_outstanding", "_steps", "_xid", "answer", "control", "lock", "wait")

    def __init__(self, xid: Xid, steps: Steps[Code], wait: Wait, outstanding: OutstandingSteps) -> None:
        self._xid = xid
        self._steps = steps
        self._outstanding = outstanding
        self.control = thread_of_control()
        self.wait = wait
        self.answer: Code | XaError | None = None
        self.lock = threading.Lock()

    def ready(self) -> bool:
        with _held((self,)) as ours:
            for one in ours:
                one.advance()
        return self.answer is not None

    def result(self) -> Code:
        with self.lock:
            self.finish()
        self._outstanding.remove(self)
        if isinstance(self.answer, XaError):
            raise self.answer
        assert self.answer is not None  # noqa: S101 — `finish` sets it or raises
        return self.answer

    def advance(self) -> None:
        """Runs the steps as far as they go without waiting. The caller holds `lock`."""
        if self.answer is not None:
            return
        try:
            reached = attempt(self._steps)
        except XaError as error:
            self.answer = error
            return
        if isinstance(reached, Wait):
            self.wait = reached
        else:
            self.answer = reached

    def finish(self) -> None:
        """Runs the steps to their end. The caller holds `lock`."""
        if self.answer is not None:
            return
        try:
            self.answer = drive(self._steps, self._outstanding.timeout_s, self.wait)
        except XaError as error:
            self.answer = error
        except BaseException:  # an interruption, after which `drive` has closed the connection
            why = "the thread was interrupted while the reply was on its way"
            self.answer = xa_error(Code.XAER_RMFAIL, why, self._xid)
            raise


class OutstandingSteps:
    """The steps of one database whose results have not been collected: an `xa.pool.Outstanding`."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._under_way: dict[PendingSteps, None] = {}
        self._begun: Callable[[], None] | None = None

    def run(self, steps: Steps[T]) -> T:
        """Runs `steps` to their end."""
        return drive(steps, self.timeout_s)

    def begin(self, xid: Xid, steps: Steps[Code]) -> Code | PendingSteps:
        """Runs `steps` until they wait for the first time."""
        try:
            wait = steps.send(None)
        except StopIteration as stop:
            answer: Code = stop.value
            return answer
        pending = PendingSteps(xid, steps, wait, self)
        with self._lock:
            self._under_way[pending] = None
        if self._begun is not None:
            self._begun()
        return pending

    def remove(self, pending: PendingSteps) -> None:
        """The result was collected."""
        with self._lock:
            self._under_way.pop(pending, None)

    def watch(self, begun: Callable[[], None]) -> None:
        self._begun = begun

    def finish_one(self) -> bool:
        # of the calling thread of control, if it has one, and of those the one whose reply comes first
        control = thread_of_control()
        with self._lock:
            under_way = [pending for pending in self._under_way if pending.answer is None]
        for own in (True, False):
            with _held(pending for pending in under_way if (pending.control is control) is own) as ours:
                if ours:
                    self._finish_first(ours)
                    return True
        return False

    def first(self, pending: Sequence[PendingSteps]) -> PendingSteps:
        """Waits until one of these is answered; returns it."""
        under_way = [one for one in pending if one.answer is None]
        if len(under_way) == len(pending):
            with _held(under_way) as ours:
                if len(ours) == len(under_way):  # otherwise another thread finishes one of them in a moment
                    self._finish_first(ours)
        return next((one for one in pending if one.ready()), pending[0])

    def _finish_first(self, ours: Sequence[PendingSteps]) -> None:
        """Finishes whichever of these is answered first. The caller holds their locks."""
        waits = [pending.wait for pending in ours if pending.answer is None]
        if len(waits) == len(ours):
            is_ready(waits, self.timeout_s)
        for pending in ours:
            pending.advance()
        if all(pending.answer is None for pending in ours):
            ours[0].finish()


@contextmanager
def _held(several: Iterable[PendingSteps]) -> Iterator[list[PendingSteps]]:
    """Takes the locks of those that no other thread runs at this moment."""
    ours = [pending for pending in several if pending.lock.acquire(blocking=False)]
    try:
        yield ours
    finally:
        for pending in ours:
            pending.lock.release()
