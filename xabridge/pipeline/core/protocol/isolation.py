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

If a query has several sources, or a source several shards, one of them is searched at a time, and the others are not
read meanwhile. The next one is searched when nothing is suspected of this one any more and batches still fail. A shard
is searched in the order of its queues; it keeps the queues that it had when the search began.

A try proves nothing when its failure is known to have another cause: a resource could not be reached, a task could not
write, or the decision could not be made. Then the next try reads the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xabridge.pipeline.core.shards import Shard

Searched: TypeAlias = "tuple[int, Shard | None]"
"""The place of a source, and one of its shards."""

UNKNOWN: Final = -1
"""The try is not known to have failed."""
EXCUSED: Final = -2
"""The try failed, and no message is to blame."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How the try `gtrid` was planned, and its result. `failed` is how many messages of the suspected source it
    had when it failed, or UNKNOWN, or EXCUSED. `place` says which of the query's sources is suspected, or was the last
    to be, and `shard` which of its shards; None: the only one."""

    gtrid: bytes
    suspects: int = 0
    aside: int = 0
    failed: int = UNKNOWN
    place: int = -1
    shard: Shard | None = None

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
        return replace(self, gtrid=gtrid, suspects=suspects, aside=aside, failed=UNKNOWN)

    def unsuspected(self, gtrid: bytes) -> Isolation:
        """The same for the try `gtrid`, where nothing is suspected of any source."""
        return Isolation(gtrid, place=self.place, shard=self.shard)

    def after(self, gtrid: bytes, messages: int, place: int, shard: Shard | None = None) -> Isolation:
        """The same after the try `gtrid` has failed: with so many messages of this shard of the source at `place`,
        unless it is excused, or with EXCUSED."""
        known = self if self.gtrid == gtrid else self.unsuspected(gtrid)
        if known.failed == EXCUSED:
            return known
        if messages == EXCUSED:
            return replace(known, failed=EXCUSED)
        return replace(known, failed=messages, place=place, shard=shard)

    def suspected(self, messages: Mapping[Searched, int]) -> Searched | None:
        """Which shard of which source is suspected after a try with so many messages of each: the same one as before,
        or the next one. None: there were none."""
        found = sorted((one for one, count in messages.items() if count), key=_order)
        mine = (self.place, self.shard)
        if self.suspects:
            return mine if self.shard is not None else next((one for one in found if one[0] == self.place), None)
        return next((one for one in found if _order(one) > _order(mine)), found[0] if found else None)


def _order(searched: Searched) -> tuple[int, str, tuple[str, ...]]:
    place, shard = searched
    return (place, "", ()) if shard is None else (place, shard.resource, shard.queues)
