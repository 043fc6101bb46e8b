"""StopSignals: waits for SIGTERM, SIGINT, or to be woken."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_WAKE: Final = b"\0"
_ENDING: Final = {_WAKE, *(bytes([number]) for number in SIGNALS)}
_NO_READER: Final = -1
"""What `signal.set_wakeup_fd` answers where no reader is set."""


class StopSignals:
    """A context. In the main thread it takes the two signals over while it is entered; the first one that comes gives
    them back, so that a second one has its usual effect.

    A signal's handler may run at any instruction of the main thread, one that holds a lock included: it only writes
    into a pipe. And it may not run at all while the main thread waits: the system hands a signal to another thread
    where the main one has one to handle already, and that interrupts no wait. So the handler of Python itself, in any
    thread, writes the signal's number into the pipe (`signal.set_wakeup_fd`).
    """

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._woken = _NO_READER
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
            self._woken = signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back()
        with self._lock:
            self._closed = True
            for end in (self._in, self._out):
                os.close(end)

    def wait(self) -> None:
        """Waits until there is a signal, or `wake` was called."""
        while (octet := os.read(self._out, 1)) not in _ENDING:
            if self._woken != _NO_READER:  # it is for the reader that was set before
                with suppress(OSError):
                    os.write(self._woken, octet)

    def wake(self) -> None:
        """Ends `wait`, from any thread, as often as one likes."""
        with self._lock:
            if not self._closed:
                self._write()

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._give_back()
        self._write()

    def _write(self) -> None:
        with suppress(BlockingIOError):  # it is full of wake-ups
            os.write(self._in, _WAKE)

    def _give_back(self) -> None:
        if self._before:
            signal.set_wakeup_fd(self._woken)
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
