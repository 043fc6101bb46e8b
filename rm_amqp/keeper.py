"""Keeper: the one thread per process that keeps idle connections alive.

Heartbeats can't depend on the calls of an application that computes. The keeper looks after every line now and then,
without waiting: a line whose lock somebody has is in use, and is asked again a little later. It ends when there is
nothing left to keep, and begins again with the next line.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Final, Protocol

SOONEST_S: Final = 0.02


class Kept(Protocol):
    """What is looked after."""

    def keep(self) -> float | None:
        """Looks after it, without waiting; when to do so again (on the monotonic clock), None for never."""
        ...


class Keeper:
    """Looks after what it was given, until that is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[weakref.ref[Kept], float] = {}
        self._wake = threading.Event()
        self._process = 0

    def keep(self, kept: Kept) -> None:
        """Looks after this from now on."""
        with self._lock:
            if self._process != os.getpid():  # the thread, and the connections, were the parent's
                self._due.clear()
            self._due[weakref.ref(kept)] = 0.0
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="xabridge-keeper", daemon=True).start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                due = [reference for reference, when in self._due.items() if when <= now]
            for reference in due:
                kept = reference()
                again = None if kept is None else kept.keep()
                with self._lock:
                    if again is None:
                        self._due.pop(reference, None)
                    else:
                        self._due[reference] = again
                del kept
            with self._lock:
                if not self._due:
                    self._process = 0
                    return
                next_s = min(self._due.values()) - time.monotonic()
            self._wake.wait(max(next_s, SOONEST_S))


KEEPER: Final = Keeper()
"""The process's."""
