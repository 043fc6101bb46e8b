"""ForcePace: whether forces are so quick at present that the event loop may carry them out itself.

A hand-over to the writing thread and back costs more processor time than a small force. But the thread that forces
waits for the disk, and on the event loop every peer waits as well. So the loop forces only while forces take a few
milliseconds on average, as long as a peer's turn may take. After one that took much longer, the thread forces for
FOR_EACH times as long as that took. So such forces hold the loop up for at most one part in FOR_EACH of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK_S: Final = 0.004
"""What a force may take on average: one peer may keep the others waiting for as long (`TURN_S` of connections)."""
SLOW_S: Final = 0.025
FOR_EACH: Final = 20
SHARE: Final = 16
"""A force counts as one part in so many of the average."""


class ForcePace:
    """The measured pace of one disk. The first force has to be the thread's, because nothing is known before it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._average_s: float | None = None
        self._quick_from = 0.0

    @property
    def quick(self) -> bool:
        """Whether the event loop may force."""
        average_s = self._average_s
        return average_s is not None and average_s <= QUICK_S and self._clock() >= self._quick_from

    def took(self, seconds: float) -> None:
        """A small force took so long, on whatever thread."""
        if seconds > SLOW_S:
            self._quick_from = self._clock() + FOR_EACH * seconds
        before_s = seconds if self._average_s is None else self._average_s
        self._average_s = before_s + (min(seconds, SLOW_S) - before_s) / SHARE
