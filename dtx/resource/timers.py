"""Timers: what is to happen later, with the clock of the resource's ticks.

Nearly every timer is cancelled long before it is due: each branch and transaction has one. A cancelled timer lets go
of its call at once, and leaves the heap when cancelled ones are most of it.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SWEPT: Final = 1000
"""Cancelled timers that a heap may have anyway."""


class Timer:
    """One call that is to come. `cancel` may be called at any time, also afterwards."""

    __slots__ = ("_timers", "call")

    def __init__(self, timers: Timers, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        self._timers = timers

    def cancel(self) -> None:
        """It will not be called."""
        if self.call is not None:
            self.call = None
            self._timers.cancelled()


class Timers:
    """Timers by the time when they are due; those of the same time in the order in which they were set."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """All that are kept, with cancelled ones that have not left."""
        return len(self._heap)

    @property
    def live(self) -> int:
        """Those that are to be called."""
        return len(self._heap) - self._cancelled

    def add(self, due: float, call: Callable[[], None]) -> Timer:
        """Has `call` called by `run` from `due` on."""
        self._number += 1
        timer = Timer(self, call)
        heappush(self._heap, (due, self._number, timer))
        return timer

    def cancelled(self) -> None:
        """One more timer of the heap is cancelled."""
        self._cancelled += 1
        if self._cancelled > SWEPT and self._cancelled * 2 > len(self._heap):
            self._heap = [one for one in self._heap if one[2].call is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now: float) -> None:
        """Calls what is due."""
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
            else:
                call()

    def next_due(self) -> float | None:
        """When something is due again; None for never."""
        return self._heap[0][0] if self._heap else None
