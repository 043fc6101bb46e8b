"""Queues: first in, first out by the order of commits; acquired and returned messages keep their place.

A message is an `Entry`. It is PENDING while the transaction that posts it is open, then AVAILABLE, HELD by a
delivery or a transaction, and GONE. What an outcome does to a held message is planned first, which writes
it into a batch of the store, and carried out when the batch is durable (or at once, where nothing depends
on that).
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dtx.broker.rates import Meter
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.settings import QueueSettings
    from dtx.store.contract import Batch, StoredMessage


FEW: Final = 1000
"""Messages that are gone and may wait until somebody would take them, before they are sorted out."""


class State(Enum):
    """Where a message is in its life."""

    PENDING = "pending"
    AVAILABLE = "available"
    HELD = "held"
    GONE = "gone"


class Entry:
    """A message of a queue. `payload` is there while the store has not got it, and always in a queue that
    does not last; `count` is how often it was delivered in vain."""

    __slots__ = ("count", "expires_ms", "number", "payload", "position", "queue", "size", "state")

    def __init__(
        self,
        queue: Queue,
        number: int,
        size: int,
        expires_ms: int,
        payload: bytes | None = None,
        position: int = 0,
        count: int = 0,
    ) -> None:
        self.queue = queue
        self.number = number
        self.position = position
        self.size = size
        self.count = count
        self.expires_ms = expires_ms
        self.payload = payload
        self.state = State.PENDING


class Memory:
    """Octets of the messages in queues that live in memory only; `limit` bounds them."""

    __slots__ = ("limit", "octets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0


class Consumer(Protocol):
    """A taker of a queue's messages."""

    willing: bool
    """Whether the queue has this consumer on its round; the queue's to write."""

    @property
    def undeliverable(self) -> Collection[Entry]:
        """Messages that it gave back as undeliverable here: others may have them."""
        ...

    def wants(self) -> bool:
        """Whether it takes one more now."""
        ...

    def deliver(self, entry: Entry) -> None:
        """Takes a message, which is HELD from now on."""
        ...

    def queue_deleted(self) -> None:
        """The queue is gone."""
        ...


class Browser(Protocol):
    """A reader of a queue in its order."""

    def returned(self, entry: Entry) -> None:
        """A message that was held is available again."""
        ...

    def advance(self) -> None:
        """There may be something new."""
        ...


class Origin(NamedTuple):
    """Where a dead letter comes from, and why it is one."""

    queue: str
    reason: str

    def encode(self) -> str:
        """As the store remembers it."""
        return f"{self.reason}\n{self.queue}"

    @classmethod
    def decode(cls, text: str) -> Origin:
        """What `encode` made."""
        reason, _, queue = text.partition("\n")
        return cls(queue, reason)


ORIGIN: Final = "origin"
"""The kind of the records with origins, which have the numbers of their messages."""


class Effect(NamedTuple):
    """The effect of an outcome on a message: it goes (`target` None), or stands in `target` with this count; `origin`
    where it becomes a dead letter."""

    entry: Entry
    target: Queue | None
    position: int
    deliveries: int
    origin: Origin | None = None


class Queue:
    """A queue. `lasting` ones are stored; the others live in memory, no longer than their connection.

    `positions` gives the next position, across all queues; `dead_letter` gives the queue for dead messages;
    `on_available` is told when there is something for consumers; `memory` counts the octets of a queue that lives in
    memory.
    """

    def __init__(
        self,
        number: int,
        name: str,
        settings: QueueSettings,
        *,
        lasting: bool,
        positions: Callable[[], int],
        dead_letter: Callable[[Queue], Queue | None],
        on_available: Callable[[Queue], None],
        memory: Memory | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.lasting = lasting
        self._memory = memory
        self.deleted = False
        self.closing = False
        """Whether it is just being deleted: it takes and gives no messages."""
        self.paused = ""
        """Who has paused it: no consumer gets messages of it; "" while nobody has."""
        self.origins: dict[int, Origin] = {}
        """Of its messages that are dead letters, by their numbers."""
        self.pending = 0
        """Messages that open transactions and prepared branches post."""
        self.held = 0
        """Messages that deliveries or transactions hold."""
        self.attached = 0
        """Links that consume from it."""
        self.octets = 0
        """Of the messages in it."""
        self.came = 0
        self.went = 0
        """Messages that came into it, and that left it, since it is there or was restored."""
        self.meter = Meter()
        self._positions = positions
        self._dead_letter = dead_letter
        self._on_available = on_available
        self._entries: dict[int, Entry] = {}
        self._ready: deque[Entry] = deque()
        self._returned: list[tuple[int, Entry]] = []
        self._expiring: list[tuple[int, int, Entry]] = []
        """Every message that can expire, and whose time has not come by `_expired_ms`."""
        self._expired_ms = 0
        self._willing: deque[Consumer] = deque()
        self.browsers: dict[Browser, None] = {}
        self._marked = False

    # -- what it holds
    @property
    def depth(self) -> int:
        """Messages in the queue, held ones included."""
        return len(self._entries)

    @property
    def available(self) -> int:
        """Messages that nobody holds."""
        return len(self._entries) - self.held

    @property
    def consumers(self) -> int:
        """Consumers that could take a message now."""
        return len(self._willing)

    @property
    def quiet(self) -> bool:
        """Whether consumers get nothing now."""
        return self.closing or bool(self.paused)

    @property
    def oldest(self) -> Entry | None:
        """The message that is in it for the longest time."""
        return next(iter(self._entries.values()), None)

    @property
    def full(self) -> bool:
        """Whether no more may be posted: what open transactions post counts."""
        memory = self._memory
        if memory is not None and memory.octets >= memory.limit:
            return True
        return len(self._entries) + self.pending >= self.settings.max_depth

    def page(self, position: int, count: int) -> list[Entry]:
        """The first `count` messages behind `position`, in their order."""
        entries = self._entries.values()
        first = self.oldest
        if first is None or not self.reaches_beyond(position):
            return []
        if position >= (first.position + next(reversed(entries)).position) // 2:  # nearer to the end
            return self.entries_from(position)[:count]
        return list(islice(dropwhile(lambda entry: entry.position <= position, entries), count))

    def find(self, numbers: Collection[int]) -> list[Entry]:
        """The messages with these numbers, in their order."""
        return [entry for entry in self._entries.values() if entry.number in numbers]

    def unpause(self) -> None:
        """Consumers get messages again."""
        self.paused = ""
        self.look()

    def entries_from(self, position: int) -> list[Entry]:
        """The messages behind `position`, in their order."""
        found = []
        for entry in reversed(self._entries.values()):
            if entry.position <= position:
                break
            found.append(entry)
        found.reverse()
        return found

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    # -- in
    def append(self, entry: Entry) -> None:
        """A message becomes available at its position, which is behind all others."""
        entry.state = State.AVAILABLE
        self._entries[entry.position] = entry
        self._ready.append(entry)
        self.came += 1
        self.octets += entry.size
        if self._memory is not None:
            self._memory.octets += entry.size
        if entry.expires_ms:
            heappush(self._expiring, (entry.expires_ms, entry.number, entry))
        if not self._marked:
            self._mark()

    def restore(self, messages: Iterable[StoredMessage], locked: Collection[int]) -> dict[int, Entry]:
        """Messages from the store, in the order of positions. Those that prepared branches have `locked` are held:
        they are given back, by their numbers."""
        held: dict[int, Entry] = {}
        entries, ready = self._entries, self._ready
        for number, _, position, size, count, expires_ms in messages:
            entry = entries[position] = Entry(self, number, size, expires_ms, None, position, count)
            self.octets += size
            if number in locked:
                entry.state = State.HELD
                held[number] = entry
            else:
                entry.state = State.AVAILABLE
                ready.append(entry)
            if expires_ms:
                heappush(self._expiring, (expires_ms, number, entry))
        self.held = len(held)
        return held

    def next_position(self) -> int:
        """A position behind all others."""
        return self._positions()

    # -- out
    def take(self, now_ms: int, without: Collection[Entry] = ()) -> Entry | None:
        """The first available message that is not one of `without`, HELD from now on; None when there is none. Expired
        ones are left out."""
        passed: list[Entry] = []
        entry = self._next(now_ms)
        while entry is not None and entry in without:
            passed.append(entry)
            entry = self._next(now_ms)
        for one in passed:
            heappush(self._returned, (one.position, one))
        if entry is not None:
            self.hold(entry)
        return entry

    def _next(self, now_ms: int) -> Entry | None:
        """The first message that can be taken, which stands nowhere in the order any more."""
        ready, returned = self._ready, self._returned
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].position):
                entry = heappop(returned)[1]
            else:
                entry = ready.popleft()
            if entry.state is not State.AVAILABLE or entry.queue is not self:  # or it is a dead letter by now
                continue
            if entry.expires_ms and entry.expires_ms <= now_ms:
                continue
            return entry
        return None

    def hold(self, entry: Entry) -> None:
        """Takes an available message out of turn; it is HELD from now on."""
        entry.state = State.HELD
        self.held += 1

    def reaches_beyond(self, position: int) -> bool:
        """Whether there are messages behind `position`."""
        return next(reversed(self._entries), 0) > position

    def upcoming(self, count: int) -> list[Entry]:
        """Messages that will be taken soon: the first `count` that wait, as far as they are available."""
        return [entry for entry in islice(self._ready, count) if entry.state is State.AVAILABLE]

    def plan(self, entry: Entry, outcome: Outcome, batch: Batch) -> Effect:
        """The effect of `outcome` on a held message of this queue, written into `batch`."""
        if outcome.code == ACCEPTED:
            return self._plan_to_go(entry, batch)
        count, dead, reason = entry.count, outcome.code == REJECTED, "rejected"
        if outcome.code == MODIFIED:
            count += outcome.failed
            limit = self.settings.max_deliveries
            dead = outcome.undeliverable or (limit > 0 and count >= limit)
            reason = "undeliverable" if outcome.undeliverable else f"delivery-count reached {count}"
        if dead:
            target = self._dead_letter(self)
            if target is not None:
                position = target.next_position()
                batch.place(entry.number, target.number, position, count)
                origin = Origin(self.name, reason)
                batch.record(entry.number, ORIGIN, origin.encode())
                return Effect(entry, target, position, count, origin)
            if outcome.code == REJECTED:
                return self._plan_to_go(entry, batch)
        if count != entry.count and self.lasting:
            batch.place(entry.number, self.number, entry.position, count)
        return Effect(entry, self, entry.position, count)

    def _plan_to_go(self, entry: Entry, batch: Batch) -> Effect:
        if self.lasting:
            batch.dequeue(entry.number, entry.size)
            if self.origins and entry.number in self.origins:
                batch.drop_record(entry.number)
        return Effect(entry, None, 0, 0)

    def carry_out(self, effect: Effect) -> None:
        """Does what was planned for a held message of this queue."""
        entry, target, position, count, origin = effect
        if target is self:
            entry.count = count
            self.give_back(entry)
            return
        self._entries.pop(entry.position, None)
        self.held -= 1
        self._leaves(entry)
        if target is None or target.deleted:
            entry.state = State.GONE
            entry.payload = None
            return
        if origin is not None:
            target.origins[entry.number] = origin
        entry.queue, entry.position, entry.count = target, position, count
        target.append(entry)

    def give_back(self, entry: Entry) -> None:
        """A held message is available again, at its place."""
        if self.deleted:
            entry.state = State.GONE
            return
        entry.state = State.AVAILABLE
        self.held -= 1
        heappush(self._returned, (entry.position, entry))
        for browser in self.browsers:
            browser.returned(entry)
        if entry.expires_ms and entry.expires_ms <= self._expired_ms:
            heappush(self._expiring, (entry.expires_ms, entry.number, entry))
        if not self._marked:
            self._mark()

    def remove(self, entry: Entry) -> None:
        """A message goes."""
        if self._entries.pop(entry.position, None) is not None:
            self._leaves(entry)
        entry.state = State.GONE
        entry.payload = None

    def _leaves(self, entry: Entry) -> None:
        """A message is in it no more."""
        self.went += 1
        self.octets -= entry.size
        if self.origins:
            self.origins.pop(entry.number, None)
        if self._memory is not None:
            self._memory.octets -= entry.size

    def drop_expired(self, now_ms: int, batch: Batch) -> int:
        """Drops the available messages whose time has passed; how many."""
        dropped = 0
        self._expired_ms = max(now_ms, self._expired_ms)
        while self._expiring and self._expiring[0][0] <= now_ms:
            entry = heappop(self._expiring)[2]
            if entry.state is State.AVAILABLE and entry.queue is self:
                self._plan_to_go(entry, batch)
                self.remove(entry)
                dropped += 1
        if len(self._ready) + len(self._returned) > 2 * len(self._entries) + FEW:
            self._ready = deque(entry for entry in self._ready if entry.state is State.AVAILABLE)
            self._returned = [item for item in self._returned if item[1].state is State.AVAILABLE]
            heapify(self._returned)
        return dropped

    # -- consumers
    def wake(self, consumer: Consumer) -> None:
        """`consumer` may take messages again."""
        if not consumer.willing:
            consumer.willing = True
            self._willing.append(consumer)
        if not self._marked:
            self._mark()

    def look(self) -> None:
        """Those who read the queue in its order may go on."""
        if not self._marked:
            self._mark()

    def forget(self, consumer: Consumer) -> None:
        """`consumer` takes no more."""
        if consumer.willing:
            consumer.willing = False
            self._willing.remove(consumer)

    def _mark(self) -> None:
        if self._willing or self.browsers:
            self._marked = True
            self._on_available(self)

    def dispatch(self, now_ms: int) -> None:
        """Hands available messages to willing consumers, in turn."""
        self._marked = False
        for browser in tuple(self.browsers):
            browser.advance()
        if self.quiet:
            return
        willing = self._willing
        passed = 0  # consumers in a row for whom there is nothing but what is undeliverable there
        while passed < len(willing):
            consumer = willing[0]
            if not consumer.wants():
                consumer.willing = False
                willing.popleft()
                continue
            entry = self.take(now_ms, consumer.undeliverable)
            if entry is None:
                if not consumer.undeliverable:
                    return
                willing.rotate(-1)
                passed += 1
                continue
            passed = 0
            if len(willing) > 1:
                willing.rotate(-1)
            consumer.deliver(entry)

    def delete(self) -> None:
        """The queue goes, with what stands in it. Who holds messages of it finds them GONE."""
        self.deleted = True
        if self._memory is not None:
            self._memory.octets -= self.octets
        self.octets = 0
        for entry in self._entries.values():
            entry.state = State.GONE
            entry.payload = None
        self._entries.clear()
        self.held = 0
        self._ready.clear()
        self._returned.clear()
        self._expiring.clear()
        self.origins.clear()
        for consumer in tuple(self._willing):
            self.forget(consumer)
