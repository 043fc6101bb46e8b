"""The admission of messages: how much a micro-batch may read, and whether it is time to read.

A source may ask for a minimum of waiting messages. Fewer are read all the same once they have waited for the maximum
delay, counted from the moment at which this process first saw one of them. A driver that starts anew counts anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The limits that Spark sets for one micro-batch, below those of the source's options. None: it sets none.
    `at_once`: no minimum holds, because the query is to end when it has read what there was."""

    rows: int | None = None
    octets: int | None = None
    least: int | None = None
    at_once: bool = False


class Delay:
    """How long messages wait for the minimum."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None

    def is_over(self, waiting: int, least: int, longest_s: float) -> bool:
        """Whether `waiting` messages are read now: they are `least` or more, or the first of them has waited for
        `longest_s` (0: without end)."""
        if not waiting:
            self._since = None
            return False
        if self._since is None:
            self._since = self._clock()
        return waiting >= least or 0 < longest_s <= self._clock() - self._since

    def begin(self) -> None:
        """The messages are read: those that come from now on wait anew."""
        self._since = None


def smaller(limit: int, other: int | None) -> int:
    """The smaller one of two limits, where 0 and None set none."""
    if not other:
        return limit
    return min(limit, other) if limit else other


def shares_of(rows: int, waiting: Sequence[int]) -> list[int]:
    """How many of `rows` messages each queue may give: `rows` in all, and at least one each; there are no more queues
    than rows. Short queues give all that is `waiting` in them, so that they never wait for long ones, and the others
    share evenly what they leave. If more may be read than waits, what is over is shared evenly too, for messages that
    come meanwhile."""
    shares = [max(count, 1) for count in waiting]
    left = rows
    shortest_first = sorted(range(len(shares)), key=shares.__getitem__)
    for done, place in enumerate(shortest_first):
        shares[place] = min(shares[place], left // (len(shares) - done))
        left -= shares[place]
    return [share + left // len(shares) + (place < left % len(shares)) for place, share in enumerate(shares)]
