"""The times of messages: when those of all queues came (MessageAges), when the delayed ones are due (Schedule), and
when those of one queue expire (Expirations), and which queue is the next one in which that happens (ExpirySchedule).

There is one timer for all delayed messages, the resource's. A message that is due has its place by its position, which
it got when it was committed: in front of what was committed later. So the order is the same after a restart, nothing is
written when a message becomes due, and there is nothing that a crash could interrupt.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from dtx.broker.queues.entry import State

if TYPE_CHECKING:
    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.queue import Queue

RELEASED: Final = 1000
"""Messages that become available in one turn; the others in the next ones."""
FEW: Final = 1000
NO_NUMBER: Final = 1 << 63
"""Above all numbers."""
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
    """The messages of one queue that can expire, by the time at which they do. Those that are held are judged when they
    come back: they are set aside as soon as they are in front."""

    __slots__ = ("_aside", "_heap", "noted_ms")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Entry]] = []
        self._aside: set[int] = set()
        """The numbers of messages that are held, and not in the heap."""
        self.noted_ms = 0
        """The time at which the queue is to be looked at; 0: there is none. The ExpirySchedule's to write."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: Entry) -> None:
        """A message that can expire is in the queue."""
        heappush(self._heap, (entry.expires_ms, entry.position, entry))

    def add_again(self, entry: Entry) -> None:
        """A message that can expire, and that was held, is available again."""
        if entry.number in self._aside:
            self._aside.remove(entry.number)
            self.add(entry)

    def forget(self, entry: Entry) -> None:
        """A message that was held leaves the queue."""
        self._aside.discard(entry.number)

    def first(self, queue: Queue) -> Entry | None:
        """The one of the messages that are not held which expires first; `drop_first` takes it out."""
        heap = self._heap
        while heap:
            entry = heap[0][2]
            if entry.queue is queue and (entry.state is State.AVAILABLE or entry.state is State.DELAYED):
                return entry
            heappop(heap)
            if entry.queue is queue and entry.state is State.HELD:
                self._aside.add(entry.number)
        return None

    def drop_first(self) -> None:
        """That one is held, to be removed."""
        self._aside.add(heappop(self._heap)[2].number)

    def clear(self) -> None:
        """The queue is deleted."""
        self._heap.clear()
        self._aside.clear()


class ExpirySchedule:
    """When queues have messages that expire: one time for each queue, that of its first one, so that there is neither a
    timer for each message nor a search through all queues. `sooner` is set when a time comes in front of all others.

    A queue is noted when it gets a message that expires before the time for which it is noted. When that time has come,
    it is no longer noted: the next caller that looks at it notes it anew, for a time to come."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Queue]] = []
        self._gone = 0
        self.sooner = False

    def __len__(self) -> int:
        return len(self._heap)

    def note(self, queue: Queue, expires_ms: int) -> None:
        """A message of `queue` expires then."""
        noted_ms = queue.expirations.noted_ms
        if noted_ms and noted_ms <= expires_ms:
            return
        self.forget(queue)
        queue.expirations.noted_ms = expires_ms
        heappush(self._heap, (expires_ms, queue.number, queue))
        if self._heap[0][2] is queue:
            self.sooner = True

    def forget(self, queue: Queue) -> None:
        """A queue is deleted, or is to be noted for another time."""
        if queue.expirations.noted_ms:
            queue.expirations.noted_ms = 0
            self._gone += 1
            if self._gone > FEW and 2 * self._gone > len(self._heap):
                self._heap = [item for item in self._heap if item[2].expirations.noted_ms == item[0]]
                heapify(self._heap)
                self._gone = 0

    def take_due(self, now_ms: int) -> list[Queue]:
        """The queues whose time has come."""
        found: list[Queue] = []
        while self._heap and self._heap[0][0] <= now_ms:
            noted_ms, _, queue = heappop(self._heap)
            if queue.expirations.noted_ms == noted_ms:
                queue.expirations.noted_ms = 0
                found.append(queue)
            else:
                self._gone -= 1
        return found

    @property
    def next_ms(self) -> int | None:
        """When the next queue is to be looked at; None: there is nothing that expires."""
        heap = self._heap
        while heap and heap[0][2].expirations.noted_ms != heap[0][0]:
            heappop(heap)
            self._gone -= 1
        return heap[0][0] if heap else None


class MessageAges:
    """When a number was given out.

    Every message has a number that was given out when it came, and a position that was given out when it came into its
    queue. Both are of one counter that only grows. So it is enough to note now and then how far the counter was: a
    message with a smaller number is older than that. A message costs nothing for it, in memory or in the store.
    """

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._times_ms: list[int] = []

    def mark(self, number: int, now_ms: int) -> None:
        """`number` is the next one that will be given out."""
        if self._numbers and number == self._numbers[-1]:  # none was given out since
            self._times_ms[-1] = now_ms
            return
        self._numbers.append(number)
        self._times_ms.append(now_ms)
        if len(self._numbers) > MOST_MARKS:
            half = MOST_MARKS // 2
            self._numbers[:half] = self._numbers[:half:2]
            self._times_ms[:half] = self._times_ms[:half:2]

    def since_ms(self, number: int) -> int:
        """When `number` was given out, in milliseconds since the epoch: not before that, and hardly later. 0 where it
        is older than every mark."""
        found = bisect_right(self._numbers, number)
        return self._times_ms[found - 1] if found else 0

    def first_since(self, at_ms: int) -> int:
        """The first number that was given out then or later, by its `since_ms`; NO_NUMBER: none was."""
        found = bisect_left(self._times_ms, at_ms)
        return self._numbers[found] if found < len(self._numbers) else NO_NUMBER
