"""The times of messages: when those of all queues came (MessageAges), when the delayed ones are due (Schedule), and
when those of one queue expire (Expirations).

There is one timer for all delayed messages, the resource's. A message that is due has its place by its position, which
it got when it was committed: in front of what was committed later. So the order is the same after a restart, nothing is
written when a message becomes due, and there is nothing that a crash could interrupt.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from dtx.broker.queues.entry import State

if TYPE_CHECKING:
    from dtx.broker.queues.entry import Entry

RELEASED: Final = 1000
"""Messages that become available in one turn; the others in the next ones."""
FEW: Final = 1000
MOST_MARKS: Final = 20_000
"""The marks of ages that are kept. Of more, every other one of the older half goes."""


class Schedule:
    """Delayed messages. `sooner` is set when one comes that is due before all others."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._gone = 0
        self.sooner = False

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """A message is delayed."""
        heappush(self._heap, (entry.due_ms, entry.position, entry))
        if self._heap[0][2] is entry:
            self.sooner = True

    def left(self, count: int = 1) -> None:
        """Delayed messages have left their queues before their time."""
        self._gone += count
        if self._gone > FEW and 2 * self._gone > len(self._heap):
            self._heap = [item for item in self._heap if item[2].state is not State.GONE]
            heapify(self._heap)
            self._gone = 0

    def release(self, now_ms: int) -> None:
        """Makes available what is due, as far as one turn goes."""
        for _ in range(RELEASED):
            if not self._heap or self._heap[0][0] > now_ms:
                return
            due_ms, _, entry = heappop(self._heap)
            if entry.state is State.DELAYED and entry.due_ms == due_ms:
                entry.queue.come_due(entry)

    @property
    def next_ms(self) -> int | None:
        """When something is due; None: nothing is to come."""
        return self._heap[0][0] if self._heap else None


class Expirations:
    """The messages of one queue that can expire, by the time at which they do."""

    __slots__ = ("_heap", "_until_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        """Every message that can expire, and whose time has not come by `_until_ms`."""
        self._until_ms = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """A message that can expire is in the queue."""
        heappush(self._heap, (entry.expires_ms, entry.position, entry))

    def add_again(self, entry: Entry) -> None:
        """A message that can expire, and that was held, is available again."""
        if entry.expires_ms <= self._until_ms:
            self.add(entry)

    def are_due(self, now_ms: int) -> bool:
        """Whether there may be messages whose time has passed."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def first(self, now_ms: int) -> Entry:
        """The one whose time has passed first; `drop_first` is to follow. IndexError: there is none."""
        self._until_ms = max(now_ms, self._until_ms)
        return self._heap[0][2]

    def drop_first(self) -> None:
        """That one is dealt with."""
        heappop(self._heap)

    def clear(self) -> None:
        """The queue is deleted."""
        self._heap.clear()


class MessageAges:
    """When a number was given out.

    Every message has a number that was given out when it came, and a position that was given out when it came into its
    queue. Both are of one counter that only grows. So it is enough to note now and then how far the counter was: a
    message with a smaller number is older than that. A message costs nothing for it, in memory or in the store.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._times_ms: list[int] = []

    def mark(self, number: int, now_ms: int) -> bool:
        """`number` is the next one that will be given out; whether that is worth a mark."""
        if self._numbers and number <= self._numbers[-1] + 1:  # at most the mark's own timer has taken one
            return False
        self._numbers.append(number)
        self._times_ms.append(now_ms)
        if len(self._numbers) > MOST_MARKS:
            half = MOST_MARKS // 2
            self._numbers[:half] = self._numbers[:half:2]
            self._times_ms[:half] = self._times_ms[:half:2]
        return True

    def since_ms(self, number: int) -> int:
        """When `number` was given out, in milliseconds since the epoch: not before that, and hardly later. 0 where it
        is older than every mark."""
        found = bisect_right(self._numbers, number)
        return self._times_ms[found - 1] if found else 0
