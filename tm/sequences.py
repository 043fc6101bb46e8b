"""Sequences: the numbers of one manager's transactions; its floor: every transaction below that is over everywhere; and
its ceiling: no transaction reaches that.

The decision log keeps the floor of each incarnation. A branch in doubt below it, without a decision, can only be in an
old copy of its resource's data: it was finished before, and its decision may have been forgotten since. So recovery
presumes nothing about it (`tm.recovery.ownership`).

The floor passes a transaction only when none of its branches can be prepared, now or later:

 - All of them have answered what they were asked last: they were committed, or rolled back, or had nothing to commit.
   The resource managers have forgotten them.
 - None of them was ever asked to prepare, or to commit in one phase, and the transaction was rolled back. Whether the
   rollback was answered makes no difference: work that was not prepared is in no data in doubt, of whatever age.
 - Otherwise a branch that gave no answer to prepare, commit or rollback, or that was completed on its own, may be
   prepared or listed. Its transaction is doubtful until a recovery pass has scanned its resources and met none of its
   branches. The pass has to begin LATE_S after the transaction has ended, because a request to prepare may wait so long
   in the buffer of a server whose connection is broken. A later request than that is not known to exist; should there
   be one, people have to decide about the branch.

The transactions that a process has under way when it dies, also with requests in the buffers of its sockets, were never
passed: a floor does not move without its process. A floor that is too low costs protection only. One that is too high
would keep recovery from a branch for ever. So a number of which nothing is known any more stays: one that an
interruption has lost, and those beyond MOST doubtful ones.

The ceiling is noted durably before a transaction takes a number that reaches it (`extend`). A copy of the log that is
older than a transaction shows by it that it is (`tm.log.incarnations`), unless the transaction was below the ceiling
by then. So the ceiling stays close to what is begun: it leaves space for about two seconds of work (`adjust`).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

LATE_S: Final = 600.0
AHEAD: Final = 16
"""At least so many numbers lie between what is begun and a new ceiling."""
TOO_FAR: Final = 4
"""A ceiling that is so many times as far away as a new one would be is lowered."""
MOST: Final = 10_000
"""So many doubtful transactions are remembered."""
SEQUENCE_SIZE: Final = 8
BATCH: Final = 1000
"""So many transactions that are over wait before they are sorted in."""


@dataclass(frozen=True, slots=True)
class _UncertainTransaction:
    """A transaction that has ended, and may have branches at `resources`."""

    resources: frozenset[str]
    ended_at: float


class Sequences:
    """Those of one incarnation. Safe to use from many threads; `over` never waits."""

    def __init__(self, clock: Callable[[], float], late_s: float = LATE_S, ahead: int = AHEAD) -> None:
        self.take: Callable[[], int] = itertools.count(1).__next__
        """Gives the next number to a transaction."""
        self._clock = clock
        self._late_s = late_s
        self._lock = threading.Lock()
        self._ended: deque[bytes] = deque()
        self._highest = 0
        self._open: set[int] = set()
        """The numbers up to `_highest` that are not known to be over."""
        self._limit: int | None = None
        """A number that nothing can be known about any more: what comes behind it makes no difference."""
        self._doubtful: dict[bytes, _UncertainTransaction] = {}

        self.ceiling = 1
        """A number that reaches it is not begun with before `extend` has returned."""
        self._extending = threading.Lock()
        self._least_ahead = self._ahead = ahead
        self._adjusted_at = 0

    def skip(self) -> int:
        """Takes a number that no transaction gets."""
        number = self.take()
        self.over(number.to_bytes(SEQUENCE_SIZE, "big"))
        return number

    def extend(self, number: int, note: Callable[[int], None]) -> None:
        """Has `note` make a ceiling durable that `number` does not reach, unless that has been done meanwhile; raises
        what it raises."""
        with self._extending:
            if number >= self.ceiling:
                ceiling = number + self._ahead
                note(ceiling)
                self.ceiling = ceiling
                self._ahead *= 2  # a pause of `adjust` is longer than these numbers last

    def adjust(self, note: Callable[[int], None]) -> bool:
        """Has `note` make another ceiling durable, if this one will be reached soon, or is too far away by now; whether
        it was called. Called now and then; raises what it raises."""
        with self._extending:
            with self._lock:
                self._sort_in()
                highest = self._highest
            self._ahead = max(self._least_ahead, 2 * (highest - self._adjusted_at))
            self._adjusted_at = highest
            ahead = self.ceiling - highest - 1
            if self.ceiling > 1 and ahead <= self._ahead // 2:
                note(highest + 1 + self._ahead)
                self.ceiling = highest + 1 + self._ahead
                return True
            return ahead > TOO_FAR * self._ahead and self._lower(note)

    def _lower(self, note: Callable[[int], None]) -> bool:
        former, self.ceiling = self.ceiling, 0  # from now on, a thread that takes a number waits
        ceiling = min(former, self.skip() + self._ahead)  # all that were taken before are below
        try:
            if ceiling < former:
                note(ceiling)
        finally:
            self.ceiling = ceiling  # whether it is durable or not
        return ceiling < former

    def over(self, gtrid: bytes) -> None:
        """Notes that a transaction has no branch anywhere, and never will have one again."""
        self._ended.append(gtrid)
        if len(self._ended) >= BATCH and self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def doubt(self, gtrid: bytes, resources: Iterable[str]) -> None:
        """Notes that a transaction has ended, and that a branch of it may be left at these resources."""
        with self._lock:
            if len(self._doubtful) < MOST:
                self._doubtful[gtrid] = _UncertainTransaction(frozenset(resources), self._clock())
                return
            self._limit = min(_sequence(gtrid), self._limit or _sequence(gtrid))
            self._open = {number for number in self._open if number <= self._limit}

    def passed(self, began_at: float, met: Collection[bytes], unreachable: Collection[str]) -> None:
        """Notes that a recovery pass, which began at `began_at`, has met branches of these transactions, and has
        scanned all resources but these."""
        with self._lock:
            for gtrid, doubtful in tuple(self._doubtful.items()):
                late = began_at < doubtful.ended_at + self._late_s
                if not (late or gtrid in met or not doubtful.resources.isdisjoint(unreachable)):
                    del self._doubtful[gtrid]
                    self._ended.append(gtrid)

    def floor(self) -> int:
        """The lowest number that is not over, or that was not given yet."""
        with self._lock:
            self._sort_in()
            return min(self._open, default=self._highest + 1)

    def _sort_in(self) -> None:
        while self._ended:
            number = _sequence(self._ended.popleft())
            if number > self._highest:
                end = number if self._limit is None else min(number, self._limit + 1)
                self._open.update(range(self._highest + 1, end))
                self._highest = number
            else:
                self._open.discard(number)


def _sequence(gtrid: bytes) -> int:
    return int.from_bytes(gtrid[-SEQUENCE_SIZE:], "big")
