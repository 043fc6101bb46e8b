"""The one thread per process that maintains what is not in use: heartbeats of connections, and idle channels.

Heartbeats can't depend on the calls of an application, because it may compute for a long time. The thread calls each
object now and then, without waiting: a connection that is in use is asked again a little later. It ends when there is
nothing left to maintain, and begins again with the next object.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import Final, Protocol

LOGGER: Final = logging.getLogger("xabridge")
SOONEST_S: Final = 0.02


class Maintained(Protocol):
    """An object with a method that has to be called from time to time."""

    def maintain(self) -> float | None:
        """Does what is due, without waiting; when to call it again (on the monotonic clock), None for never."""
        ...


class MaintenanceThread:
    """Maintains an object as long as other code refers to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[weakref.ref[Maintained], float] = {}
        self._wake = threading.Event()
        self._process = 0

    def add(self, maintained: Maintained) -> None:
        """Maintains this from now on."""
        with self._lock:
            if self._process != os.getpid():  # the thread, and the connections, were the parent's
                self._due.clear()
            self._due[weakref.ref(maintained)] = 0.0
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="xabridge-maintenance", daemon=True).start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                due = [reference for reference, when in self._due.items() if when <= now]

            for reference in due:
                maintained = reference()
                again = None if maintained is None else _maintain(maintained)
                with self._lock:
                    if again is None:
                        self._due.pop(reference, None)
                    else:
                        self._due[reference] = again
                del maintained

            with self._lock:
                if not self._due:
                    self._process = 0
                    return
                next_s = min(self._due.values()) - time.monotonic()
            self._wake.wait(max(next_s, SOONEST_S))


def _maintain(maintained: Maintained) -> float | None:
    try:
        return maintained.maintain()
    except Exception:  # the thread is there for the others, too
        LOGGER.exception("what was idle could not be maintained, and is not any more")
        return None


MAINTENANCE: Final = MaintenanceThread()
"""The process's."""
