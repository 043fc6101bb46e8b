"""TransactionLock: lets one thread at a time work inside a transaction, as the transaction's thread of control."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from tm.concurrency.uninterrupted import left_by_its_caller
from tm.errors import ProtocolMisuse
from tm.outcome import named
from xa import switch_control, thread_of_control
from xa.threads_of_control import CURRENT

if TYPE_CHECKING:
    from xa import ThreadOfControl

_LOOK_AGAIN_S: Final = 0.01


class TransactionLock:
    """The lock of one transaction, a context manager, for threads in which no signal handler runs
    (`tm.concurrency.uninterrupted`).

    A second thread is refused while one is inside, because a transaction belongs to one at a time. There are two
    exceptions. While the reaper is inside, the thread waits, so that it learns that the transaction took too long.
    While a call is carried out whose caller does not wait for it any more, it waits for the end of that call.
    """

    __slots__ = ("_before", "_busy", "_control", "_gtrid", "_inside", "_reaping")

    def __init__(self, gtrid: bytes, control: ThreadOfControl) -> None:
        self._gtrid = gtrid
        self._control = control
        self._busy = threading.Lock()
        self._reaping = False
        self._inside = 0
        """The thread that is inside. 0: none, or one that has only just entered."""
        self._before: ThreadOfControl | None = None
        """The thread of control that the thread inside gets back when it leaves."""

    @property
    def is_held(self) -> bool:
        """Whether a thread is inside at this moment, for which another one may have to wait."""
        return self._busy.locked()

    def __enter__(self) -> None:
        thread = threading.get_ident()
        if not self._busy.acquire(self._reaping) and not self._wait_for_a_left_call():
            raise ProtocolMisuse(
                f"transaction {named(self._gtrid)} is in use by another thread or task at this moment: "
                "a transaction belongs to one at a time"
            )
        self._inside = thread
        if CURRENT.get(None) is not self._control:
            thread_of_control()  # to be given back
            self._before = switch_control(self._control)

    def __exit__(self, *_: object) -> None:
        self._reaping = False
        if self._before is not None:
            switch_control(self._before)
            self._before = None
        self._inside = 0
        self._busy.release()

    def _wait_for_a_left_call(self) -> bool:
        """Waits as long as a call is inside whose caller does not wait for it any more. Whether the lock was taken
        then."""
        while not self._busy.acquire(timeout=_LOOK_AGAIN_S):
            inside = self._inside
            if inside and not left_by_its_caller(inside):
                return False
        return True

    def enter_as_reaper(self) -> bool:
        """Enters if no thread is inside; whether it did. `__exit__` leaves again."""
        self._reaping = True
        if not self._busy.acquire(blocking=False):
            self._reaping = False
            return False
        thread_of_control()  # to be given back
        self._before = switch_control(self._control)
        return True
