"""MessageStore: the contract of the place where the broker keeps messages and prepared branches.

The broker's event loop fills a `Batch` with changes and submits it; the store forces all that waits at that
moment in one transaction of its own (group commit), and then tells each batch that it is durable. Opening
gives back what must be restored: queues and the facts of their messages, never a payload.

Every thing in the store has a number of the broker's own that is never used twice, not even after a restart:
`MessageStore.first_number` begins a fresh range at each opening; one counter may serve messages, positions,
queues and branches. So creations, updates and deletions of one group can be carried out kind by kind.

Every message of a lasting queue is stored, whether its header says durable or not: memory stays bounded, and
a sender that forgot the header loses nothing. Queues that end with their connection need no store.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from xa import Code, Xid

CHUNK: Final = 256 * 1024
"""Octets of a piece. A message of at most this size has its payload in one piece; a larger one has pieces of
exactly this size, and a last one with the rest."""

PENDING: Final = 0
"""The position of a message that a prepared branch enqueued: it is not in its queue yet."""

NUMBERS_PER_OPENING: Final = 1 << 40
MOST_DELIVERIES: Final = 0xFFFFFFFF
"""The highest delivery count, which is a uint in AMQP."""
ENQUEUED: Final = 0xFFFFFFFF
"""In place of the length of an outcome: the branch enqueues the message."""
_HELD: Final = struct.Struct(">QI").pack


class StoreError(Exception):
    """An error of a message store. The message holds no password."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


class StoreOfOtherVersion(StoreError):
    """Another version of xabridge has made the store. The message says what to do."""


class StoreLocked(StoreError):
    """Another process holds the store. The message names it where that is known."""


class StoreLeased(StoreLocked):
    """Another process has a lease on the store: by the server's clock it ends at `until_s`, in `lasts_s`."""

    def __init__(self, message: str, until_s: float, lasts_s: float) -> None:
        super().__init__(message)
        self.until_s = until_s
        self.lasts_s = lasts_s


class StoreAway(StoreError):
    """The server that has the store can't be reached, is starting, or takes no connection now."""


class StoreDamaged(StoreError):
    """The store can't be opened: it is not one of ours, of another version, or damaged. The message says
    where."""


class NotStored(StoreError):
    """The batch was not written and never will be. The store goes on."""


class StoreFull(NotStored):
    """There is no space."""


class StoreBusy(NotStored):
    """The database can't write now: another session has locked it, a statement was cancelled, or memory is short."""


class StoreRefused(NotStored):
    """The database refuses this batch, and would refuse it later. Other batches of its group are kept."""


class StoreStopped(StoreError):
    """A write or force failed: whether the batch is durable is unknown until the store is opened again, and
    nothing more is written until then. Answer no peer, and stop the broker."""


class Step(Enum):
    """Where the store may crash: the hook that its constructor takes is called at each of these."""

    BEFORE_WRITE = "before write"
    WRITTEN = "after write, before force"
    FORCED = "after force, before reply"


class StoredMessage(NamedTuple):
    """The facts of a stored message. Times are milliseconds since the epoch; `expires_ms` 0 means never. `due_ms` is
    when it may be delivered: 0 at once, and a negative one, of a PENDING message only, says how long after the commit
    of the branch that posts it. `group` is what the broker calls its group, "" for none."""

    number: int
    queue: int
    position: int
    size: int
    delivery_count: int
    expires_ms: int
    due_ms: int = 0
    group: str = ""


class StoredDequeue(NamedTuple):
    """A message that a prepared branch retires, and the outcome as the broker encoded it."""

    message: int
    outcome: bytes


@dataclass(frozen=True, slots=True)
class StoredQueue:
    """A lasting queue; `settings` is the broker's own text."""

    number: int
    name: str
    settings: str


@dataclass(frozen=True, slots=True)
class StoredBranch:
    """A prepared branch (`outcome` None) with what it holds, or a heuristically completed one.

    `enqueues` have the position PENDING; what `dequeues` names is in its queue, and locked by this branch, unless it
    was deleted with its queue.
    Both are in the order in which `Batch.prepare` got them.
    """

    number: int
    xid: Xid
    owner: str
    prepared_ms: int
    outcome: Code | None
    completed_ms: int
    enqueues: tuple[StoredMessage, ...]
    dequeues: tuple[StoredDequeue, ...]


class StoredRecord(NamedTuple):
    """Something that the broker remembers beside its messages; `kind` and `text` are its own. The number is one that
    was not used, or that of the message or queue which it is about."""

    number: int
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class StoredFence:
    """A gtrid whose branches may not be prepared any more, who said so, and when."""

    gtrid: bytes
    owner: str
    fenced_ms: int


class Restored(Protocol):
    """The contents of an opened store. To be read once, at the start, before the first batch is submitted."""

    @property
    def queues(self) -> Sequence[StoredQueue]:
        """Every lasting queue."""
        ...

    @property
    def branches(self) -> Sequence[StoredBranch]:
        """Every prepared or heuristically completed branch, oldest first."""
        ...

    @property
    def fences(self) -> Sequence[StoredFence]:
        """Every fence."""
        ...

    @property
    def records(self) -> Sequence[StoredRecord]:
        """Every record, in the order of their numbers."""
        ...

    @property
    def shares(self) -> Mapping[int, int]:
        """By the number of each message that shares a payload: that of the payload."""
        ...

    def messages(self) -> Iterator[StoredMessage]:
        """Every message that stands in a queue, by queue number, then by position. Read lazily."""
        ...


def write_held_messages(held: Iterable[tuple[int, bytes | None]]) -> bytes:
    """What a branch holds, as one value of a store: of each message its number (8 octets), how long its outcome is (4
    octets, big-endian as the number; ENQUEUED where it has none), and the outcome."""
    parts = []
    for message, outcome in held:
        if outcome is None:
            parts.append(_HELD(message, ENQUEUED))
        else:
            parts += (_HELD(message, len(outcome)), outcome)
    return b"".join(parts)


def read_held_messages(octets: bytes) -> list[tuple[int, bytes | None]]:
    """The messages that a branch holds, with the outcome of those that it retires. ValueError: the value is damaged."""
    held: list[tuple[int, bytes | None]] = []
    at = 0
    while at < len(octets):
        message, size = int.from_bytes(octets[at : at + 8], "big"), int.from_bytes(octets[at + 8 : at + 12], "big")
        at += 12
        outcome = None
        if size != ENQUEUED:
            outcome = octets[at : at + size]
            at += size
        held.append((message, outcome))
    if at != len(octets):
        raise ValueError(f"what a branch holds has {len(octets)} octets, and should have {at}")
    return held


class Batch:
    """Changes that become durable together or not at all, in the order of submission.

    It is filled and submitted on the broker's event loop, then it belongs to the store. Within one batch, and
    among batches that wait for the same force, creations come first, then changes of existing things, then
    deletions; because numbers are never used twice, the result is that of the order in which they were made.
    A change that names a number that is not in the store does nothing.
    """

    __slots__ = (
        "branches",
        "chunked_dequeues",
        "chunks",
        "completions",
        "copies",
        "dequeues",
        "enqueues",
        "fences",
        "finished",
        "held",
        "octets",
        "payloads",
        "placements",
        "queues",
        "queues_deleted",
        "records",
        "shares",
        "unposted",
        "unshared",
    )

    def __init__(self) -> None:
        self.queues: dict[int, tuple[str, str]] = {}
        self.enqueues: list[tuple[int, int, int, int, int, int, int, str]] = []
        self.payloads: list[tuple[int, bytes]] = []
        self.chunks: list[tuple[int, int, bytes]] = []
        self.branches: list[tuple[int, int, bytes, bytes, str, int, bytes]] = []
        self.held = 0
        self.placements: dict[int, tuple[int, int, int, int, int]] = {}
        self.completions: list[tuple[int, int, int]] = []
        self.fences: dict[bytes, tuple[str, int] | None] = {}

        self.records: dict[int, tuple[str, str] | None] = {}
        self.dequeues: list[int] = []
        self.chunked_dequeues: list[int] = []
        self.finished: list[int] = []
        self.queues_deleted: list[int] = []
        self.copies: list[tuple[int, int, int, int, int, int, int, str]] = []
        self.shares: list[tuple[int, int]] = []
        self.unposted: list[int] = []
        self.unshared: list[tuple[int, int]] = []
        self.octets = 0

    @property
    def takes_space(self) -> bool:
        """Whether the store grows by it. A batch that only retires, places, decides or forgets needs almost no space,
        and frees some in the end; so does a branch that is prepared to retire. Copies of a message whose payload is
        stored have the space that was `promised` (`MessageStore`)."""
        return bool(self.enqueues or self.payloads or self.chunks or self.queues)

    @property
    def rows(self) -> int:
        """How many things it creates, changes or deletes."""
        return (
            len(self.enqueues)
            + len(self.placements)
            + len(self.dequeues)
            + len(self.branches)
            + self.held
            + len(self.finished)
            + len(self.completions)
            + len(self.fences)
            + len(self.records)
            + len(self.queues)
            + len(self.chunks)
            + len(self.copies)
            + len(self.unshared)
        )

    @classmethod
    def merged(cls, group: Iterable[Batch]) -> Batch:
        """One batch with the changes of all these, in their order."""
        merged = cls()
        for batch in group:
            for name in cls.__slots__:
                added, total = getattr(batch, name), getattr(merged, name)
                if not added:
                    continue
                if isinstance(total, dict):
                    total.update(added)
                elif isinstance(total, int):
                    setattr(merged, name, total + added)
                else:
                    total += added
        return merged

    def create_queue(self, queue: int, name: str, settings: str = "") -> None:
        """Creates a lasting queue. The broker makes sure that names are unique. A repeated call changes nothing."""
        self.queues[queue] = (name, settings)

    def delete_queue(self, queue: int) -> None:
        """Deletes the queue with every message in it, also those that a prepared branch would retire. Messages that
        prepared branches enqueue stay."""
        self.queues_deleted.append(queue)

    def enqueue(
        self,
        message: int,
        queue: int,
        position: int,
        payload: bytes,
        expires_ms: int = 0,
        delivery_count: int = 0,
        due_ms: int = 0,
        group: str = "",
    ) -> None:
        """A new message; `position` PENDING when it belongs to a branch that is prepared in this batch."""
        size = len(payload)
        self.octets += size
        self.enqueues.append((message, queue, position, size, delivery_count, expires_ms, due_ms, group))
        if size <= CHUNK:
            self.payloads.append((message, payload))
        else:
            for number in range((size + CHUNK - 1) // CHUNK):
                self.chunks.append((message, number, payload[number * CHUNK : (number + 1) * CHUNK]))

    def chunk(self, message: int, number: int, piece: bytes) -> None:
        """Piece `number` (from 0) of a message larger than CHUNK, ahead of its `enqueue_chunked`, in this or
        an earlier batch. Pieces without a message are dropped at the next opening, or by `dequeue`."""
        self.octets += len(piece)
        self.chunks.append((message, number, piece))

    def enqueue_chunked(
        self,
        message: int,
        queue: int,
        position: int,
        size: int,
        *,
        expires_ms: int = 0,
        delivery_count: int = 0,
        due_ms: int = 0,
        group: str = "",
    ) -> None:
        """Adds a message larger than CHUNK whose pieces were added by `chunk`."""
        self.enqueues.append((message, queue, position, size, delivery_count, expires_ms, due_ms, group))

    def place(
        self, message: int, queue: int, position: int, delivery_count: int, expires_ms: int = 0, due_ms: int = 0
    ) -> None:
        """Sets the place of a message, and its times: the end of its queue when the branch that enqueued it commits, a
        dead-letter queue, or the same place with another delivery count."""
        self.placements[message] = (queue, position, delivery_count, expires_ms, due_ms)

    def copy(
        self,
        message: int,
        payload: int,
        queue: int,
        position: int,
        size: int,
        *,
        expires_ms: int = 0,
        due_ms: int = 0,
        group: str = "",
    ) -> None:
        """A new message that shares the payload of the message `payload`, which `unpost` deletes in this batch. It is
        stored once, and goes with the last message that shares it."""
        self.copies.append((message, queue, position, size, 0, expires_ms, due_ms, group))
        self.shares.append((message, payload))

    def unpost(self, message: int) -> None:
        """Deletes a message that is PENDING, of this batch or an earlier one, and not its payload: `copy` names it."""
        self.unposted.append(message)

    def dequeue_copy(self, message: int, payload: int) -> None:
        """Deletes a message that shares a payload, and that where no other message does."""
        self.unshared.append((message, payload))

    def dequeue(self, message: int, size: int) -> None:
        """Deletes the message, or the pieces so far of a message larger than CHUNK that was never completed."""
        self.dequeues.append(message)
        if size > CHUNK:
            self.chunked_dequeues.append(message)

    def prepare(
        self,
        branch: int,
        xid: Xid,
        owner: str,
        prepared_ms: int,
        *,
        enqueues: Iterable[int] = (),
        dequeues: Iterable[tuple[int, bytes]] = (),
    ) -> None:
        """A branch is prepared: `enqueues` name messages of this batch with the position PENDING, `dequeues`
        messages in queues, each with the outcome to apply at commit. A branch may hold nothing."""
        held = [(message, None) for message in enqueues]
        held += dequeues  # type: ignore[arg-type]  # what has an outcome is what may have one
        self.held += len(held)
        self.branches.append(
            (branch, xid.format_id, xid.gtrid, xid.bqual, owner, prepared_ms, write_held_messages(held))
        )

    def finish(self, branch: int) -> None:
        """The branch has ended: it was committed, rolled back or forgotten. `place` and `dequeue` say separately what
        becomes of its messages."""
        self.finished.append(branch)

    def complete(self, branch: int, outcome: Code, completed_ms: int) -> None:
        """The branch is heuristically completed, and holds nothing any more; messages as in `finish`."""
        self.completions.append((branch, int(outcome), completed_ms))

    def fence(self, gtrid: bytes, owner: str, fenced_ms: int) -> None:
        """Branches of `gtrid` may not be prepared any more. A repeated call replaces the fence."""
        self.fences[gtrid] = (owner, fenced_ms)

    def record(self, number: int, kind: str, text: str) -> None:
        """Remembers something under this number, in place of what was remembered under it."""
        self.records[number] = (kind, text)

    def drop_record(self, number: int) -> None:
        """Forgets what was remembered under this number, if anything."""
        self.records[number] = None

    def lift_fence(self, gtrid: bytes) -> None:
        """Lifts the fence of `gtrid`."""
        self.fences[gtrid] = None


class MessageStore(Protocol):
    """A store. Every method but `open` and `close` is called on the broker's event loop and never blocks it;
    completions arrive there too, through the `deliver` that the constructor takes
    (`loop.call_soon_threadsafe`, or the test's own).
    """

    def open(self) -> Restored:
        """Makes the store usable, for this process alone, and returns its content. May block.

        StoreLocked, StoreAway, StoreDamaged; StoreError when it can't be opened: the message says how to correct it.
        """
        ...

    @property
    def first_number(self) -> int:
        """The broker may use the numbers from this one to NUMBERS_PER_OPENING further; positive."""
        ...

    def submit(self, batch: Batch, done: Callable[[StoreError | None], None]) -> None:
        """Makes `batch` durable, after all that were submitted before; `done(None)` is called once it is.

        `done(NotStored)`: it never will be; the store goes on, and what was submitted since may be durable all the
        same. `done(StoreStopped)`: unknown; so end all later ones. `done` is called in the order of submission, and
        never from within `submit` unless the store's `deliver` calls at once.
        """
        ...

    promised: int
    """Octets that commits of prepared branches will take beside what is stored: what else takes space has to leave them
    free. The broker's to write."""

    @property
    def waiting_octets(self) -> int:
        """Payload octets that were submitted and are not done. The broker reads no more from its peers while this is
        too much."""
        ...

    def cached(self, message: int) -> bytes | None:
        """The payload of a message of at most CHUNK octets, if the store has it in memory just now. A payload that is
        shared has a number of its own, here and where it is read."""
        ...

    def fetch(self, messages: Sequence[int], done: Callable[[Mapping[int, bytes], StoreError | None], None]) -> None:
        """Reads payloads of stored messages of at most CHUNK octets each; ask for many at once, `done` gets
        them by message number. What is not in the store, or is damaged, is missing there. Fetches are answered in
        order."""
        ...

    def fetch_chunk(self, message: int, number: int, done: Callable[[bytes | None, StoreError | None], None]) -> None:
        """Reads one piece, from 0, of a message larger than CHUNK; None when it is not in the store, or damaged."""
        ...

    def close(self) -> None:
        """Forces what waits and closes the store. Blocks. Completions may be delivered until it returns."""
        ...


class BrokerStore(MessageStore, Protocol):
    """A store as the broker uses it, turn by turn."""

    @property
    def waits(self) -> bool:
        """Whether it has something to write that this turn has not."""
        ...

    @property
    def busy(self) -> bool:
        """Whether its thread has batches, of which it will deliver the completion."""
        ...

    @property
    def may_tell(self) -> bool:
        """Whether what is known of the store may be sent to peers: no other process can have it now."""
        ...

    @property
    def full(self) -> bool:
        """Whether it refuses what takes space, or did so within the last minute."""
        ...

    @property
    def octets(self) -> int | None:
        """Its size; None where it is not known here."""
        ...

    forced: Callable[[float, int], None]
    """Called after every force, in the thread that does it, if set before `open`: how long it took, and how many
    batches it made durable."""

    def write(self) -> None:
        """Writes what was submitted in this turn."""
        ...

    def hand_over(self) -> None:
        """Gives its thread what was submitted, for the last time before `close`."""
        ...

    def maintain(self) -> None:
        """Called now and then, for work that may wait."""
        ...
