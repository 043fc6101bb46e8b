"""TimerQueue: what is due later, and is often called off before. A timer that was called off costs nothing for long:
a branch that lives a millisecond does not leave its timeout behind for ten minutes."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_DEAD: Final = 256
"""Timers that were called off and are still kept, where they are not fewer than those that stand."""


class Timer:
    """One call that is to come, unless it is called off."""

    __slots__ = ("call", "timers")

    def __init__(self, timers: TimerQueue, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call
        self.timers = timers

    def cancel(self) -> None:
        """It will not come."""
        if self.call is not None:
            self.call = None
            self.timers.cancelled()


class TimerQueue:
    """Timers by the moment at which they are due."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, call: Callable[[], None]) -> Timer:
        """Calls `call` in a later `run`, not before `due`."""
        timer = Timer(self, call)
        self._number += 1
        heappush(self._heap, (due, self._number, timer))
        return timer

    def run(self, now: float) -> None:
        """Calls what is due."""
        while self._heap and self._heap[0][0] <= now:
            timer = heappop(self._heap)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._dead -= 1
            else:
                call()

    def next_in(self, now: float) -> float | None:
        """In how many seconds something is due; None: nothing is to come."""
        return max(0.0, self._heap[0][0] - now) if self._heap else None

    def cancelled(self) -> None:
        """One more was called off."""
        self._dead += 1
        if self._dead > MOST_DEAD and 2 * self._dead >= len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._dead = 0
