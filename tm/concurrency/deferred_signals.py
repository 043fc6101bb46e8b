"""DeferredSignals: a piece of code of the main thread in which no handler of the application's for a signal runs.

CPython runs signal handlers in the main thread, between any two of its instructions. KeyboardInterrupt is raised there:
between a request and the place where its handle is kept, for example, or between the acquisition of a lock and the
block that releases it. No code can be correct at every instruction. So while the main thread carries out something that
must not be interrupted, handlers of ours stand in for those of the application. They note the signals, and the
application's handlers are called for them when it is done.

Who presses Ctrl-C a second time doesn't want to wait for a resource that doesn't answer. Then `break_off` is called, on
another thread: it breaks the connections that are waited for. The code is prepared for that at any moment, because a
network may fail at any moment; it is not prepared for an exception at any instruction.

An interruption may come while handlers are replaced or put back. A handler of ours that is left then finds that its
code is not being executed any more: it puts the application's back itself and calls it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as `signal`, without its enumerations, which cost more than the rest
import _thread
import logging
import os
import sys
import threading
import time
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import TypeAlias

    Handler: TypeAlias = "Callable[[int, FrameType | None], object]"

logger = logging.getLogger("xabridge.tm")

SIGNALS: Final = tuple(
    getattr(_signal, name)
    for name in (
        "SIGINT",
        "SIGTERM",
        "SIGALRM",
        "SIGHUP",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "SIGVTALRM",
        "SIGPROF",
    )
    if hasattr(_signal, name)
)
"""Those whose handlers may raise. Those that tell of children and windows are left alone."""
REPORTED_AFTER_S: Final = 0.3
"""How long after Ctrl-C the code may go on before a log message says that it does."""


_main = threading.main_thread().ident
"""The thread in which signal handlers run."""


def _forked() -> None:
    """Resets it in a child process, where signal handlers run in the thread that forked."""
    global _main  # noqa: PLW0603 — there is one in a process
    _main = get_ident()


os.register_at_fork(after_in_child=_forked)


def interruptible() -> bool:
    """Whether signal handlers run in the calling thread."""
    return get_ident() == _main


class DeferredSignals:
    """One piece of code, `about` which log messages are. `begin`, then the code, then `end` in any case."""

    __slots__ = ("_about", "_break_off", "_caller", "_over", "_replaced", "_waiting")

    def __init__(self, about: object, break_off: Callable[[], object]) -> None:
        self._about = about
        self._break_off = break_off
        self._over = False
        self._caller: FrameType | None = None
        self._replaced: list[tuple[int, Handler]] = []
        """Signals with the application's handlers."""
        self._waiting: list[int] = []
        """Signals that came, in their order."""

    def begin(self) -> None:
        """Called by the caller of the code. Inside of another piece of code, and in any thread but the main one,
        nothing is replaced. Interrupted: `end` puts back what was replaced."""
        if get_ident() != _main:
            return
        self._caller = sys._getframe(1)  # noqa: SLF001 — it is documented
        for number in SIGNALS:
            handler = _signal.getsignal(number)
            if not callable(handler):
                continue
            other = getattr(handler, "__self__", None)
            if type(other) is DeferredSignals:
                if other.is_executed(self._caller):
                    continue
                handler = other.application(number)
            self._replaced.append((number, handler))  # first, so that it is put back whatever happens
            _signal.signal(number, self._note)

    def end(self) -> None:
        """Puts the application's handlers back, and calls them for the signals that came. They may raise."""
        try:
            for number, application in self._replaced:
                if _signal.getsignal(number) == self._note:  # else the code has set another one
                    _signal.signal(number, application)
        finally:
            self._over = True
            self._caller = None
            if self._waiting:
                self._call()

    def _call(self) -> None:
        """Calls the application's handlers, once for each signal, also if one raises."""
        while self._waiting:
            number = self._waiting[0]
            self._waiting[:] = [other for other in self._waiting if other != number]
            try:
                self.application(number)(number, sys._getframe())  # noqa: SLF001 — it is documented
            finally:
                if self._waiting:
                    self._call()

    def is_executed(self, frame: FrameType | None) -> bool:
        """Whether the code is being executed, as the stack at `frame` says."""
        while frame is not None and not self._over:
            if frame is self._caller:
                return True
            frame = frame.f_back
        return False

    def application(self, number: int) -> Handler:
        """The application's handler for a signal."""
        return next(handler for replaced, handler in self._replaced if replaced == number)

    def _note(self, number: int, frame: FrameType | None) -> object:
        """The handler that stands in. It may be called at any instruction, and does nothing that takes a lock."""
        if not self.is_executed(frame):
            application = self.application(number)
            if _signal.getsignal(number) == self._note:
                _signal.signal(number, application)
            return application(number, frame)
        self._waiting.append(number)
        if number == _signal.SIGINT:
            times = self._waiting.count(number)
            impatient = self.application(number) is _signal.default_int_handler
            with suppress(RuntimeError):  # no thread can be had: it ends by itself, or in its time
                if times == 1:
                    _thread.start_new_thread(self._tell, (impatient,))
                elif times == 2 and impatient:  # nothing is left to do at the third
                    _thread.start_new_thread(self._leave_off, ())
        return None

    def _tell(self, impatient: bool) -> None:
        time.sleep(REPORTED_AFTER_S)
        if not self._over:
            logger.warning(
                "%s: interrupted, and waits for the end of the call that is being carried out%s",
                self._about,
                "; interrupt again to break the connections that it waits for" if impatient else "",
            )

    def _leave_off(self) -> None:
        if not self._over:
            logger.warning("%s: interrupted again; breaks its connections", self._about)
            try:
                self._break_off()
            except Exception:
                logger.exception("%s: connections could not be broken", self._about)
