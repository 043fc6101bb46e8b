"""History: depth and rates of each queue during the last hour, in the console's memory.

An hour has 120 slots of 30 seconds. A slot keeps the latest depth, and the mean of the rates. What nobody saw is a gap.
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


@dataclass(frozen=True, slots=True)
class Line:
    """The values of the last hour, the oldest first; NaN where there is none."""

    depth: tuple[float, ...]
    rate_in: tuple[float, ...]
    rate_out: tuple[float, ...]


class _Ring:
    """The slots of one queue."""

    __slots__ = ("depth", "latest", "rate_in", "rate_out", "samples")

    def __init__(self) -> None:
        self.depth = array("f", [nan]) * SLOTS
        self.rate_in = array("f", [nan]) * SLOTS
        self.rate_out = array("f", [nan]) * SLOTS
        self.latest = -1
        self.samples = 0

    def note(self, slot: int, depth: float, rate_in: float, rate_out: float) -> None:
        if slot != self.latest:
            for passed in range(max(self.latest + 1, slot - SLOTS + 1), slot + 1):
                self.depth[passed % SLOTS] = self.rate_in[passed % SLOTS] = self.rate_out[passed % SLOTS] = nan
            self.latest, self.samples = slot, 0
        at, count = slot % SLOTS, self.samples
        self.depth[at] = depth
        for values, value in ((self.rate_in, rate_in), (self.rate_out, rate_out)):
            values[at] = value if not count else (values[at] * count + value) / (count + 1)
        self.samples += 1

    def line(self, slot: int) -> Line:
        def told(values: array[float]) -> tuple[float, ...]:
            return tuple(
                values[one % SLOTS] if self.latest - SLOTS < one <= self.latest and one >= 0 else nan
                for one in range(slot - SLOTS + 1, slot + 1)
            )

        return Line(told(self.depth), told(self.rate_in), told(self.rate_out))


class History:
    """Of one broker. The name "" stands for all of its queues together."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rings: dict[str, _Ring] = {}

    def note(self, queues: Iterable[Mapping[str, Any]]) -> None:
        """Takes in what the broker tells of its queues now. Queues that went leave nothing."""
        slot = self._slot()
        depth = rate_in = rate_out = 0.0
        seen = {""}
        for one in queues:
            depth += one["depth"]
            rate_in += one["rate-in"]
            rate_out += one["rate-out"]
            if one["lasting"]:
                seen.add(one["name"])
                ring = self._rings.setdefault(one["name"], _Ring())
                ring.note(slot, one["depth"], one["rate-in"], one["rate-out"])
        self._rings.setdefault("", _Ring()).note(slot, depth, rate_in, rate_out)
        for gone in self._rings.keys() - seen:
            del self._rings[gone]

    def of(self, queue: str = "") -> Line | None:
        """The last hour of a queue; None if nothing is known of it."""
        ring = self._rings.get(queue)
        return None if ring is None else ring.line(self._slot())

    def _slot(self) -> int:
        return int(self._clock() // SLOT_S)


def known(values: Iterable[float]) -> list[float]:
    """The values that there are."""
    return [value for value in values if not isnan(value)]
