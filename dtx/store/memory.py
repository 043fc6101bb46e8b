"""MemoryStore: a store in memory, for tests and simulations. What is durable stands in its `Disk`.

A crash is to leave the store and open another one on the same disk: what waited is lost, what was forced is
there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dtx.store.contract import (
    CHUNK,
    NUMBERS_PER_OPENING,
    PENDING,
    Batch,
    Step,
    StoredBranch,
    StoredDequeue,
    StoredFence,
    StoredMessage,
    StoredQueue,
    StoredRecord,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreStopped,
    read_held_messages,
)
from xa import Code, Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(slots=True)
class _Branch:
    xid: Xid
    owner: str
    prepared_ms: int
    held: list[tuple[int, bytes | None]]
    outcome: Code | None = None
    completed_ms: int = 0


@dataclass(slots=True)
class Disk:
    """The forced state."""

    openings: int = 0
    queues: dict[int, StoredQueue] = field(default_factory=dict)
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    pieces: dict[int, dict[int, bytes]] = field(default_factory=dict)
    branches: dict[int, _Branch] = field(default_factory=dict)
    fences: dict[bytes, StoredFence] = field(default_factory=dict)
    records: dict[int, StoredRecord] = field(default_factory=dict)
    shares: dict[int, int] = field(default_factory=dict)

    def apply(self, batch: Batch) -> None:
        """Carries out one batch."""
        self._create(batch)
        for message, (queue, position, count, expires_ms, due_ms) in batch.placements.items():
            if message in self.messages:
                self.messages[message] = self.messages[message]._replace(
                    queue=queue, position=position, delivery_count=count, expires_ms=expires_ms, due_ms=due_ms
                )
        for number, outcome, completed_ms in batch.completions:
            branch = self.branches.get(number)
            if branch is not None:
                branch.outcome, branch.completed_ms, branch.held = Code(outcome), completed_ms, []

        for gtrid, fence in batch.fences.items():
            if fence is None:
                self.fences.pop(gtrid, None)
            else:
                self.fences[gtrid] = StoredFence(gtrid, *fence)
        for number, record in batch.records.items():
            if record is None:
                self.records.pop(number, None)
            else:
                self.records[number] = StoredRecord(number, *record)
        self._delete(batch)

    def _create(self, batch: Batch) -> None:
        for number, (name, settings) in batch.queues.items():
            self.queues.setdefault(number, StoredQueue(number, name, settings))
        for facts in (*batch.enqueues, *batch.copies):
            self.messages[facts[0]] = StoredMessage(*facts)
        self.shares.update(batch.shares)
        for message, payload in batch.payloads:
            self.pieces[message] = {0: payload}
        for message, number, piece in batch.chunks:
            self.pieces.setdefault(message, {})[number] = piece
        for branch, format_id, gtrid, bqual, owner, prepared_ms, held in batch.branches:
            xid = Xid(format_id, gtrid, bqual)
            self.branches[branch] = _Branch(xid, owner, prepared_ms, read_held_messages(held))

    def _delete(self, batch: Batch) -> None:
        for queue in batch.queues_deleted:
            self.queues.pop(queue, None)
            for facts in [facts for facts in self.messages.values() if facts.queue == queue and facts.position]:
                self._drop(facts.number)
        for message in batch.dequeues:
            self._drop(message)
        for message in batch.unposted:
            self.messages.pop(message, None)
        for message, _ in batch.unshared:
            self._drop(message)
        for branch in batch.finished:
            self.branches.pop(branch, None)

    def _drop(self, message: int) -> None:
        self.messages.pop(message, None)
        payload = self.shares.pop(message, message)
        if payload == message or payload not in self.shares.values():
            self.pieces.pop(payload, None)

    def drop_orphans(self) -> None:
        """Pieces of messages that never came to be."""
        used = {*self.messages, *self.shares.values()}
        for message in [message for message in self.pieces if message not in used]:
            del self.pieces[message]


class _Restored:
    """A `dtx.store.contract.Restored`."""

    def __init__(self, disk: Disk) -> None:
        self.queues: Sequence[StoredQueue] = list(disk.queues.values())
        self.fences: Sequence[StoredFence] = list(disk.fences.values())
        self.records: Sequence[StoredRecord] = sorted(disk.records.values())
        self.shares: Mapping[int, int] = dict(disk.shares)

        self.branches: Sequence[StoredBranch] = [
            StoredBranch(
                number,
                branch.xid,
                branch.owner,
                branch.prepared_ms,
                branch.outcome,
                branch.completed_ms,
                tuple(disk.messages[message] for message, outcome in branch.held if outcome is None),
                tuple(StoredDequeue(message, outcome) for message, outcome in branch.held if outcome is not None),
            )
            for number, branch in sorted(disk.branches.items())
        ]
        self._messages = [facts for facts in disk.messages.values() if facts.position != PENDING]

    def messages(self) -> Iterator[StoredMessage]:
        return iter(sorted(self._messages, key=lambda facts: (facts.queue, facts.position)))


class MemoryStore:
    """A `dtx.store.contract.MessageStore`. What waits is forced when `deliver` calls back; a `deliver`
    that calls at once makes every batch a group of its own. `hook` may raise `StoreStopped` to fail a
    force, and `StoreFull` before the write; a disk may refuse a batch with `StoreRefused`.
    `cached` tells the payloads of up to `cached_size` octets."""

    def __init__(
        self,
        disk: Disk,
        deliver: Callable[[Callable[[], None]], object],
        hook: Callable[[Step], None] = lambda _: None,
        cached_size: int = CHUNK,
    ) -> None:
        self._cached_size = cached_size
        self._disk = disk
        self._deliver = deliver
        self._hook = hook
        self._waiting: list[tuple[Batch, Callable[[StoreError | None], None]]] = []
        self._stopped: StoreStopped | None = None
        self.waiting_octets = 0
        self.promised = 0
        self.first_number = 0
        self.groups = 0
        self.forced: Callable[[float, int], None] = lambda _took_s, _batches: None

    def open(self) -> _Restored:
        self._disk.openings += 1
        self._disk.drop_orphans()
        self.first_number = self._disk.openings * NUMBERS_PER_OPENING
        return _Restored(self._disk)

    def submit(self, batch: Batch, done: Callable[[StoreError | None], None]) -> None:
        self._waiting.append((batch, done))
        self.waiting_octets += batch.octets
        if len(self._waiting) == 1:
            self._deliver(self._force)

    def _force(self) -> None:
        group, self._waiting = self._waiting, []
        if not group:
            return

        failure: StoreError | None = self._stopped
        refused: dict[Batch, StoreRefused] = {}
        if failure is None:
            try:
                self._hook(Step.BEFORE_WRITE)
                self._hook(Step.WRITTEN)
                for batch, _ in group:
                    try:
                        self._disk.apply(batch)
                    except StoreRefused as error:
                        refused[batch] = error
                self._hook(Step.FORCED)
                self.groups += 1
            except StoreStopped as error:
                failure = self._stopped = error
            except StoreFull as error:
                failure = error
        self.waiting_octets -= sum(batch.octets for batch, _ in group)
        for batch, done in group:
            done(failure or refused.get(batch))

    def cached(self, message: int) -> bytes | None:
        payload = self._payload(message)
        return payload if payload is not None and len(payload) <= self._cached_size else None

    def _payload(self, message: int) -> bytes | None:
        pieces = self._disk.pieces.get(message, {})
        return pieces[0] if pieces.keys() == {0} and len(pieces[0]) <= CHUNK else None

    def fetch(self, messages: Sequence[int], done: Callable[[Mapping[int, bytes], StoreError | None], None]) -> None:
        found = {message: payload for message in messages if (payload := self._payload(message)) is not None}
        self._deliver(lambda: done(found, None))

    def fetch_chunk(self, message: int, number: int, done: Callable[[bytes | None, StoreError | None], None]) -> None:
        piece = self._disk.pieces.get(message, {}).get(number)
        self._deliver(lambda: done(piece, None))

    # -- for a broker over it
    waits: Final = False
    busy: Final = False
    may_tell: Final = True
    full: Final = False
    octets: Final = None

    def write(self) -> None:
        """It is written when `deliver` calls back."""

    hand_over = maintain = write

    def close(self) -> None:
        self._force()
