"""Operations: what was begun with TMASYNC and waits for `complete`."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from rm_db.wire import Steps, Wait, attempt, drive, is_ready
from xa import TMMULTIPLE, TMNOWAIT, Code, Completion, Handle, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Generator

    from xa import ThreadOfControl, Xid

MAX_OUTSTANDING: Final = 4096
"""Operations that one instance may have outstanding; who begins one looks first."""


class Operation:
    """One verb under way: `wait` is what its steps wait for, `answer` what it came to."""

    __slots__ = ("answer", "control", "steps", "verb", "wait", "xid")

    def __init__(self, control: ThreadOfControl, verb: str, xid: Xid | None, steps: Steps[Code]) -> None:
        self.control = control
        self.verb = verb
        self.xid = xid
        self.steps = steps
        self.wait: Wait | None = None
        self.answer: Code | XaError | None = None
        self.advance()

    def advance(self) -> None:
        """As far as it goes without waiting."""
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
        """To its end."""
        if self.answer is None:
            try:
                self.answer = drive(self._rest(), timeout_s)
            except XaError as error:
                self.answer = error
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

    def __len__(self) -> int:
        return len(self._outstanding)

    def begin(self, control: ThreadOfControl, verb: str, xid: Xid | None, steps: Steps[Code]) -> Handle:
        """Begins `steps`; the handle tells `take` which."""
        operation = Operation(control, verb, xid, steps)
        with self._lock:
            handle = Handle(next(self._numbers))
            self._outstanding[handle] = operation
        return handle

    def take(
        self, control: ThreadOfControl, handle: Handle | None, flags: int, timeout_s: float
    ) -> tuple[Operation, Completion]:
        """As `complete` of `xa.ResourceManager` says; the operation that was completed, and how."""
        with self._lock:
            if flags & TMMULTIPLE:
                handle = self._any(control, handle, flags, timeout_s)
            operation = self._outstanding.get(handle) if handle is not None else None
            if handle is None or operation is None:
                raise xa_error(Code.XAER_INVAL, f"complete: no operation {handle} is outstanding")
            if flags & TMNOWAIT:
                if operation.answer is None:
                    operation.advance()
                if operation.answer is None:
                    raise xa_error(Code.XA_RETRY, f"complete: {operation.verb} has not completed", operation.xid)
            del self._outstanding[handle]
        answer = operation.finish(timeout_s)
        if isinstance(answer, XaError):
            return operation, Completion(handle, answer.code, answer)
        return operation, Completion(handle, answer)

    def _any(self, control: ThreadOfControl, handle: Handle | None, flags: int, timeout_s: float) -> Handle:
        """An operation of the thread's, one that has completed if there is one."""
        if handle is not None:
            raise xa_error(Code.XAER_INVAL, "complete: TMMULTIPLE goes with no handle")
        mine = {number: held for number, held in self._outstanding.items() if held.control is control}
        if not mine:
            raise xa_error(Code.XAER_INVAL, "complete: this thread has no operation outstanding")
        if not flags & TMNOWAIT and all(held.answer is None for held in mine.values()):
            is_ready([held.wait for held in mine.values() if held.wait is not None], timeout_s)
        for number, held in mine.items():
            if held.answer is None:
                held.advance()
            if held.answer is not None:
                return number
        return next(iter(mine))
