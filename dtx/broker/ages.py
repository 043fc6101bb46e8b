"""Ages: when a number was given out.

Every message has a number that was given out when it came, and a position that was given out when it came into its
queue. Both are of one counter that only grows. So it is enough to note now and then how far the counter was: whatever
has a smaller number is older than that. A message costs nothing for it, neither in memory nor in the store.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

MOST: Final = 20_000
"""The marks that are kept. Of more, every other one of the older half goes."""


class Ages:
    """Marks: at a time, how far the counter was."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._times_ms: list[int] = []

    def mark(self, number: int, now_ms: int) -> bool:
        """`number` is the next one that will be given out; whether that is worth a mark."""
        if self._numbers and number <= self._numbers[-1] + 1:  # at most the mark's own timer has taken one
            return False
        self._numbers.append(number)
        self._times_ms.append(now_ms)
        if len(self._numbers) > MOST:
            half = MOST // 2
            self._numbers[:half] = self._numbers[:half:2]
            self._times_ms[:half] = self._times_ms[:half:2]
        return True

    def since_ms(self, number: int) -> int:
        """When `number` was given out, in milliseconds since the epoch: not before that, and hardly later. 0 where it
        is older than every mark."""
        found = bisect_right(self._numbers, number)
        return self._times_ms[found - 1] if found else 0
