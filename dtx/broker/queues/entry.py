"""Entry: a message of a queue, and what stands around it: who takes messages, and what an outcome does to a message."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dtx.broker.queues.dead_letters import NOTHING_NOTED, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Collection

    from dtx.broker.queues.dead_letters import Origin
    from dtx.broker.queues.queue import Queue
    from dtx.store.contract import Batch


class State(Enum):
    """Where a message is in its life."""

    PENDING = "pending"
    DELAYED = "delayed"
    AVAILABLE = "available"
    HELD = "held"
    GONE = "gone"


class Entry:
    """A message of a queue. `payload` is there while the store has not got it, and always in a queue that
    does not last; `count` is how often it was delivered in vain. `due_ms` is when it may be delivered: 0 at once, a
    negative one says how long after it is committed. `group` is the name of its group, "" for none.
    `origin` is that of a dead letter, also of one that is still to come into its queue, or that an operator has moved.
    `source` is the number under which the store has its payload: its own, unless it shares that with others.
    `apart`, which is known until the broker stops, says that its next consumer is to handle it alone."""

    __slots__ = (
        "apart",
        "count",
        "due_ms",
        "expires_ms",
        "group",
        "number",
        "origin",
        "payload",
        "position",
        "queue",
        "size",
        "source",
        "state",
    )

    def __init__(
        self,
        queue: Queue,
        number: int,
        size: int,
        expires_ms: int,
        payload: bytes | None = None,
        position: int = 0,
        count: int = 0,
        due_ms: int = 0,
        group: str = "",
    ) -> None:
        self.queue = queue
        self.number = number
        self.source = number
        self.position = position
        self.size = size
        self.count = count
        self.expires_ms = expires_ms
        self.payload = payload
        self.due_ms = due_ms
        self.group = group
        self.apart = False
        self.origin: Origin | None = None
        self.state = State.PENDING

    @property
    def has_record(self) -> bool:
        """Whether the store has a record of its origin."""
        return self.origin is not None and self.origin != NOTHING_NOTED

    @property
    def known_origin(self) -> Origin | None:
        """What is known of its origin; None: nothing is."""
        return self.origin if self.has_record else None


def write_post(batch: Batch, entry: Entry) -> None:
    """Writes a message that is posted into a batch, at its position."""
    number, queue, position, payload = entry.number, entry.queue.number, entry.position, entry.payload or b""
    batch.enqueue(number, queue, position, payload, entry.expires_ms, 0, entry.due_ms, entry.group)
    if entry.has_record and entry.origin is not None:
        batch.record(number, ORIGIN, entry.origin.encode())


def write_removal(batch: Batch, entry: Entry) -> None:
    """Writes that a message is gone from the store."""
    if entry.source == entry.number:
        batch.dequeue(entry.number, entry.size)
    else:
        batch.dequeue_copy(entry.number, entry.source)


class Consumer(Protocol):
    """A taker of a queue's messages."""

    willing: bool
    """Whether the queue has this consumer on its round; the queue's to write."""
    own: list[tuple[int, Entry]]
    """Messages that only this consumer may have, by position; the queue's to write."""

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


class ResumableWork(Protocol):
    """Something that takes more than one turn."""

    def go_on(self) -> None:
        """Does one turn's worth of it."""
        ...


class Browser(Protocol):
    """A reader of a queue in its order."""

    @property
    def user(self) -> str:
        """Whose it is, who pays for its time."""
        ...

    def continue_later(self, one: ResumableWork) -> None:
        """Has `one` go on in another turn, at the cost of that user."""
        ...

    def returned(self, entry: Entry) -> None:
        """A message that was held is available again."""
        ...

    def came_due(self, entry: Entry) -> None:
        """A message that was delayed is available."""
        ...

    def group_freed(self, group: str) -> None:
        """Others may have messages of this group again."""
        ...

    def advance(self) -> None:
        """There may be something new."""
        ...


class MessageMove(NamedTuple):
    """What becomes of a message: it goes (`target` None), or stands in `target` with this count and these times;
    `origin` where it becomes a dead letter."""

    entry: Entry
    target: Queue | None
    position: int
    deliveries: int
    origin: Origin | None = None
    expires_ms: int = 0
    due_ms: int = 0
