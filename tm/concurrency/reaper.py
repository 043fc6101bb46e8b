"""Reaper: one thread that rolls back the transactions that take longer than their timeout, and notes which are over.

It never touches a transaction that is prepared or being committed: the transaction's `expire` checks that.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger("xabridge.tm")

INTERVAL_S: Final = 0.25
NOTED_EVERY: Final = 4
"""So many intervals lie between two notes of what is over."""


class ExpiringTransaction(Protocol):
    """The interface of a transaction that the reaper uses."""

    deadline: float
    """When it has taken too long."""

    def expire(self, now: float) -> bool:
        """Rolls back if the deadline has passed and nothing is prepared. Whether nothing is left to do."""
        ...


class Reaper:
    """Looks at the live transactions every `INTERVAL_S`, and calls `note` now and then."""

    def __init__(
        self,
        live: Mapping[bytes, ExpiringTransaction],
        clock: Callable[[], float],
        note: Callable[[], None] = lambda: None,
    ) -> None:
        self._live = live
        self._clock = clock
        self._note = note
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread."""
        self._thread = threading.Thread(target=self._run, name="xabridge-reaper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def reap(self) -> None:
        """Looks at every live transaction once."""
        now = self._clock()
        for transaction in tuple(self._live.values()):
            if now >= transaction.deadline:
                try:
                    transaction.expire(now)
                except Exception:
                    logger.exception("%s: rolling it back after its timeout failed; recovery takes it", transaction)

    def _run(self) -> None:
        looks = 0
        while not self._stopping.wait(INTERVAL_S):
            self.reap()
            looks += 1
            if looks % NOTED_EVERY == 0:
                self._note()
