"""History: depth and rates of each queue during the last hour, in the console's memory.

An hour has 120 slots of 30 seconds. A slot keeps the latest depth, and the mean of the rates. A slot that was not
observed is a gap.

While less than five minutes are known, an hour would show next to nothing. Then the line is of the last minute, or of
two to five, in slots of 5 seconds.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SLOT_S: Final = 30.0
SLOTS: Final = 120
FINE_S: Final = 5.0
FINE_SLOTS: Final = 60
_MINUTE: Final = 12
"""Fine slots of a minute."""


@dataclass(frozen=True, slots=True)
class QueueTrend:
    """The values of a time (`span`, in words), the oldest first; NaN where there is none."""

    depth: tuple[float, ...]
    rate_in: tuple[float, ...]
    rate_out: tuple[float, ...]
    span: str = "last hour"


class _Ring:
    """Slots of one queue."""

    __slots__ = ("depth", "latest", "rate_in", "rate_out", "samples", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.depth = array("f", [nan]) * size
        self.rate_in = array("f", [nan]) * size
        self.rate_out = array("f", [nan]) * size
        self.latest = -1
        self.samples = 0

    def note(self, slot: int, depth: float, rate_in: float, rate_out: float) -> None:
        if slot != self.latest:
            for passed in range(max(self.latest + 1, slot - self.size + 1), slot + 1):
                at = passed % self.size
                self.depth[at] = self.rate_in[at] = self.rate_out[at] = nan
            self.latest, self.samples = slot, 0
        at, count = slot % self.size, self.samples
        self.depth[at] = depth
        for values, value in ((self.rate_in, rate_in), (self.rate_out, rate_out)):
            values[at] = value if not count else (values[at] * count + value) / (count + 1)
        self.samples += 1

    def line(self, slot: int, count: int, span: str) -> QueueTrend:
        def values_of(values: array[float]) -> tuple[float, ...]:
            return tuple(
                values[one % self.size] if self.latest - self.size < one <= self.latest and one >= 0 else nan
                for one in range(slot - count + 1, slot + 1)
            )

        return QueueTrend(values_of(self.depth), values_of(self.rate_in), values_of(self.rate_out), span)


class _Rings:
    """A queue's hour, and its last minutes."""

    __slots__ = ("fine", "hour")

    def __init__(self) -> None:
        self.hour = _Ring(SLOTS)
        self.fine = _Ring(FINE_SLOTS)

    def note(self, now: float, depth: float, rate_in: float, rate_out: float) -> None:
        self.hour.note(int(now // SLOT_S), depth, rate_in, rate_out)
        self.fine.note(int(now // FINE_S), depth, rate_in, rate_out)


class History:
    """Of one broker. The name "" stands for all of its queues together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rings: dict[str, _Rings] = {}
        self._began: float | None = None

    def note(self, queues: Iterable[Mapping[str, Any]]) -> None:
        """Takes in what the broker tells of its queues now. Queues that went leave nothing."""
        now = self._clock()
        if self._began is None:
            self._began = now
        depth = rate_in = rate_out = 0.0
        seen = {""}
        for one in queues:
            depth += one["depth"]
            rate_in += one["rate-in"]
            rate_out += one["rate-out"]
            if one["lasting"]:
                seen.add(one["name"])
                rings = self._rings.setdefault(one["name"], _Rings())
                rings.note(now, one["depth"], one["rate-in"], one["rate-out"])

        self._rings.setdefault("", _Rings()).note(now, depth, rate_in, rate_out)
        for gone in self._rings.keys() - seen:
            del self._rings[gone]

    @property
    def minutes(self) -> int:
        """The minutes that a line shows: 60, or fewer while not more is known."""
        known_s = 0.0 if self._began is None else self._clock() - self._began
        minutes = int(known_s // (_MINUTE * FINE_S)) + 1
        return minutes if minutes * _MINUTE <= FINE_SLOTS else 60

    @property
    def span(self) -> str:
        """The same in words."""
        minutes = self.minutes
        return {1: "last minute", 60: "last hour"}.get(minutes, f"last {minutes} minutes")

    def of(self, queue: str = "") -> QueueTrend | None:
        """The line of a queue; None if nothing is known of it."""
        rings = self._rings.get(queue)
        if rings is None:
            return None
        now, minutes = self._clock(), self.minutes
        if minutes == 60:
            return rings.hour.line(int(now // SLOT_S), SLOTS, self.span)
        return rings.fine.line(int(now // FINE_S), minutes * _MINUTE, self.span)


def known(values: Iterable[float]) -> list[float]:
    """The values that there are."""
    return [value for value in values if not isnan(value)]
