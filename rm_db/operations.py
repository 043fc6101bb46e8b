"""Operations: what was begun with TMASYNC and waits for `complete`.

An operation holds its connection until its reply is there. Where connections are short, whoever needs one finishes an
operation first, its own or another thread's (`Operations.finish_one`); what it came to is kept for `complete`. Steps
take a connection before they wait for the first time and never again later, so that finishing one needs no other.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rm_db.postgres.libpq import Steps, Wait
from rm_db.postgres.steps import attempt, drive, is_ready
from xa import TMMULTIPLE, TMNOWAIT, Code, Completion, Handle, XaError, thread_of_control, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from xa import ThreadOfControl, Xid

MAX_OUTSTANDING: Final = 4096
"""Operations that one instance may have outstanding; who begins one looks first."""


class Operation:
    """One verb under way: `wait` is what its steps wait for, `answer` what it came to. Whoever carries the steps on
    holds `lock`."""

    __slots__ = ("answer", "control", "lock", "steps", "verb", "wait", "xid")

    def __init__(self, control: ThreadOfControl, verb: str, xid: Xid | None, steps: Steps[Code]) -> None:
        self.control = control
        self.verb = verb
        self.xid = xid
        self.steps = steps
        self.wait: Wait | None = None
        self.answer: Code | XaError | None = None
        self.lock = threading.Lock()
        self.advance()

    def advance(self) -> None:
        """As far as it goes without waiting. Called with `lock` held, but for the first time."""
        if self.answer is not None:
            return
        try:
            reached = attempt(self.steps)
        except XaError as error:
            self.answer = error
            return
        if isinstance(reached, Wait):
            self.wait = reached
        else:
            self.answer = reached

    def finish(self, timeout_s: float) -> Code | XaError:
        """To its end. Called with `lock` held."""
        if self.answer is None:
            try:
                self.answer = drive(self._rest(), timeout_s)
            except XaError as error:
                self.answer = error
            except BaseException:  # an interruption, which has closed the connection
                told = f"{self.verb} was interrupted while its reply was on its way"
                self.answer = xa_error(Code.XAER_RMFAIL, told, self.xid)
                raise
        return self.answer

    def _rest(self) -> Generator[Wait, None, Code]:
        if self.wait is not None:
            yield self.wait
        return (yield from self.steps)


class Operations:
    """The outstanding operations of one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._outstanding: dict[Handle, Operation] = {}
        self._begun: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._outstanding)

    def begin(self, control: ThreadOfControl, verb: str, xid: Xid | None, steps: Steps[Code]) -> Handle:
        """Begins `steps`; the handle tells `take` which."""
        operation = Operation(control, verb, xid, steps)
        with self._lock:
            handle = Handle(next(self._numbers))
            self._outstanding[handle] = operation
        if operation.answer is None and self._begun is not None:
            self._begun()
        return handle

    # --- who needs a connection -----------------------------------------------------------------------------

    def watch(self, begun: Callable[[], None]) -> None:
        self._begun = begun

    def finish_one(self, timeout_s: float) -> bool:
        """As `rm_db.postgres.pool.Outstanding` says. One of the calling thread of control, if there is one, and of
        those the one whose reply comes first."""
        control = thread_of_control()
        with self._lock:
            under_way = [held for held in self._outstanding.values() if held.answer is None]
        for own in (True, False):
            with _carried(held for held in under_way if (held.control is control) is own) as ours:
                if ours:
                    _finish_first(ours, timeout_s)
                    return True
        return False

    # --- who collects ---------------------------------------------------------------------------------------

    def take(
        self, control: ThreadOfControl, handle: Handle | None, flags: int, timeout_s: float
    ) -> tuple[Operation, Completion]:
        """As `complete` of `xa.ResourceManager` says; the operation that was completed, and how."""
        if flags & TMMULTIPLE:
            handle = self._any(control, handle, flags, timeout_s)
        with self._lock:
            operation = self._outstanding.get(handle) if handle is not None else None
            if handle is None or operation is None:
                raise xa_error(Code.XAER_INVAL, f"complete: no operation {handle} is outstanding")
            if flags & TMNOWAIT:
                _look(operation)
                if operation.answer is None:
                    raise xa_error(Code.XA_RETRY, f"complete: {operation.verb} has not completed", operation.xid)
            del self._outstanding[handle]
        with operation.lock:
            answer = operation.finish(timeout_s)
        if isinstance(answer, XaError):
            return operation, Completion(handle, answer.code, answer)
        return operation, Completion(handle, answer)

    def _any(self, control: ThreadOfControl, handle: Handle | None, flags: int, timeout_s: float) -> Handle:
        """An operation of the thread's, one that has completed if there is one."""
        if handle is not None:
            raise xa_error(Code.XAER_INVAL, "complete: TMMULTIPLE goes with no handle")
        with self._lock:
            mine = {number: held for number, held in self._outstanding.items() if held.control is control}
        if not mine:
            raise xa_error(Code.XAER_INVAL, "complete: this thread has no operation outstanding")
        under_way = [held for held in mine.values() if held.answer is None]
        if not flags & TMNOWAIT and len(under_way) == len(mine):
            with _carried(under_way) as ours:  # what another thread is at will be over in a moment
                if len(ours) == len(under_way):
                    _finish_first(ours, timeout_s)
        for number, held in mine.items():
            _look(held)
            if held.answer is not None:
                return number
        return next(iter(mine))


@contextmanager
def _carried(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Those of the operations that no other thread carries on at this moment: inside, this one does."""
    ours = [operation for operation in operations if operation.lock.acquire(blocking=False)]
    try:
        yield ours
    finally:
        for operation in ours:
            operation.lock.release()


def _finish_first(ours: Sequence[Operation], timeout_s: float) -> None:
    """Finishes whichever of these is answered first. Called with their locks held."""
    waits = [operation.wait for operation in ours if operation.answer is None and operation.wait is not None]
    if len(waits) == len(ours):
        is_ready(waits, timeout_s)
    for operation in ours:
        operation.advance()
    if all(operation.answer is None for operation in ours):
        ours[0].finish(timeout_s)


def _look(operation: Operation) -> None:
    """Carries an operation on as far as it goes without waiting, unless another thread is at it."""
    with _carried((operation,)) as ours:
        for one in ours:
            one.advance()
