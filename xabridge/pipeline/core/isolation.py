"""Isolation: which messages the next try reads, when batches fail. Decisions without I/O.

A batch that failed is no reason to blame any of its messages: all of them go back, and none is counted as delivered in
vain. But one of them may be what makes it fail. So the next try reads half of them, from the head of the queue, until
one is left that fails alone:

    suspects  aside   what the next try reads
    0         0       what it may: nothing is suspected
    n         0       the first half of the n
    1         a       one message, and before it a messages that failed alone, which are set aside: they are taken and
                      not yielded

When a try with messages set aside is decided, others worked where they failed: the commit counts each of them as
delivered in vain (so that the broker dead-letters it in the end), and then the first message has its turn again. Where
there are no others, nothing is proven and nothing is counted, and the next try reads what it may.

Of several sources of a query one is looked at, and the others are not read meanwhile. When nothing is suspected of it
any more and batches fail still, the next one has its turn.

A try says nothing where its failure is known to come from elsewhere: a resource was away, a task could not write, the
decision could not be made. Then the next one reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

UNKNOWN: Final = -1
"""The try is not known to have failed."""
EXCUSED: Final = -2
"""It failed, and no message is to blame."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How the try `gtrid` was planned, and what came of it: `failed` is how many messages of the suspected source it
    had when it failed, or UNKNOWN, or EXCUSED. `place`: which of the query's sources is suspected, or was last."""

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
        """How the next try is planned, which goes by `gtrid`."""
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
        """The try `gtrid` failed: with so many messages of the source at `place`, unless it is excused, or with
        EXCUSED."""
        known = self if self.gtrid == gtrid else Isolation(gtrid, place=self.place)
        if known.failed == EXCUSED:
            return known
        if messages == EXCUSED:
            return replace(known, failed=EXCUSED)
        return replace(known, failed=messages, place=place)

    def suspected(self, messages: Mapping[int, int]) -> int:
        """Of a try with so many messages of each source, which one is suspected: the same, or the next one."""
        if self.suspects:
            return self.place
        places = sorted(place for place, count in messages.items() if count)
        return next((place for place in places if place > self.place), places[0] if places else self.place)
