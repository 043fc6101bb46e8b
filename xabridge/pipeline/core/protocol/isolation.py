"""Isolation: the search, by halving, for messages that make batches fail.

When a batch fails, none of its messages is blamed: all of them go back to the queue, and their delivery counts stay as
they are. But one of them may be the cause. So the next try reads half of them, from the head of the queue, and so on
until one message is left that fails alone:

    suspects  aside   what the next try reads
    0         0       what it may: nothing is suspected
    n         0       the first half of the n
    1         a       one message, and before it a messages that failed alone. Those are set aside: they are taken, but
                      not yielded

When a try that has set messages aside is decided, other messages worked where these had failed. Then the commit counts
each of them as delivered in vain, so that the broker dead-letters it in the end, and the message now first in the queue
is read alone. Where there were no other messages, nothing is proven: nothing is counted, and the next try reads what it
may.

If a query has several sources, one of them is searched at a time, and the others are not read meanwhile. The next one
is searched when nothing is suspected of this one any more and batches still fail.

A try proves nothing when its failure is known to have another cause: a resource could not be reached, a task could not
write, or the decision could not be made. Then the next try reads the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = -1
"""The try is not known to have failed."""
EXCUSED: Final = -2
"""The try failed, and no message is to blame."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How the try `gtrid` was planned, and what came of it. `failed` is how many messages of the suspected source it
    had when it failed, or UNKNOWN, or EXCUSED. `place` says which of the query's sources is suspected, or was the last
    to be."""

    gtrid: bytes
    suspects: int = 0
    aside: int = 0
    failed: int = UNKNOWN
    place: int = -1

    def share(self, rows: int) -> int:
        """How many messages the try may take, where batches may have `rows`."""
        if not self.suspects:
            return rows
        return min(rows, self._half) if self.suspects > 1 else self.aside + 1

    @property
    def _half(self) -> int:
        return (self.suspects + 1) // 2

    def following(self, gtrid: bytes, *, decided: bool) -> Isolation:
        """How the next try is planned, whose global transaction is `gtrid`."""
        suspects, aside = self.suspects, self.aside
        if decided:
            suspects, aside = (1, 0) if aside else (suspects - self._half, 0)
        elif self.failed > 0:
            if suspects == 0:
                suspects = self.failed
            elif suspects > 1:
                suspects = min(self._half, self.failed)
            elif self.failed > aside:
                aside += 1
        return Isolation(gtrid, suspects, aside, place=self.place)

    def after(self, gtrid: bytes, messages: int, place: int) -> Isolation:
        """The same after the try `gtrid` has failed: with so many messages of the source at `place`, unless it is
        excused, or with EXCUSED."""
        known = self if self.gtrid == gtrid else Isolation(gtrid, place=self.place)
        if known.failed == EXCUSED:
            return known
        if messages == EXCUSED:
            return replace(known, failed=EXCUSED)
        return replace(known, failed=messages, place=place)

    def suspected(self, messages: Mapping[int, int]) -> int:
        """Which source is suspected after a try with so many messages of each: the same one as before, or the next
        one."""
        if self.suspects:
            return self.place
        places = sorted(place for place, count in messages.items() if count)
        return next((place for place in places if place > self.place), places[0] if places else self.place)
