"""This module makes stores of every kind for tests, with a queue in place of the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import psycopg

from dtx.store.contract import Batch, MessageStore, Restored, Step, StoredMessage, StoreError, StoreLeased
from dtx.store.memory import Disk, MemoryStore
from dtx.store.sql import SqlStore

WAIT_S: Final = 60


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Loop:
    """Runs what a store delivers, when the test says so and in the test's thread."""

    def __init__(self) -> None:
        self._delivered: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def deliver(self, call: Callable[[], None]) -> None:
        """What the store gets as `deliver`."""
        self._delivered.put(call)

    def until(self, reached: Callable[[], object]) -> None:
        """Runs deliveries until `reached` is true."""
        while not reached():
            self._delivered.get(timeout=WAIT_S)()


def _open(store: MessageStore) -> Restored:
    """Opens it, as soon as the lease of a process that was killed has run out."""
    seen_s: float | None = None
    while True:
        try:
            return store.open()
        except StoreLeased as leased:
            if seen_s not in {None, leased.until_s}:
                raise
            seen_s = leased.until_s
            time.sleep(max(leased.lasts_s, 0.02))


class Opened:
    """A store that is open, with calls that wait."""

    def __init__(self, store: MessageStore, loop: Loop) -> None:
        self.store = store
        self.loop = loop
        self.restored: Restored = _open(store)
        self.first = store.first_number

    def submit(self, *batches: Batch) -> list[StoreError | None]:
        """Submits all batches and waits until they are answered; the answers in the order they came."""
        answers: list[tuple[int, StoreError | None]] = []
        for index, batch in enumerate(batches):
            self.store.submit(batch, lambda error, index=index: answers.append((index, error)))  # type: ignore[misc]
        self.loop.until(lambda: len(answers) == len(batches))
        assert [index for index, _ in answers] == list(range(len(batches)))
        return [error for _, error in answers]

    def keep(self, *batches: Batch) -> None:
        """Submits, and expects success."""
        assert self.submit(*batches) == [None] * len(batches)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """A batch that is made in the block, and kept at its end."""
        made = Batch()
        yield made
        self.keep(made)

    def fetch(self, *messages: int) -> dict[int, bytes]:
        """Payloads."""
        found: list[dict[int, bytes]] = []

        def done(payloads: Any, error: StoreError | None) -> None:
            assert error is None
            found.append(payloads)

        self.store.fetch(messages, done)
        self.loop.until(lambda: found)
        return found[0]

    def fetch_chunk(self, message: int, number: int) -> bytes | None:
        """A piece."""
        found: list[bytes | None] = []

        def done(piece: bytes | None, error: StoreError | None) -> None:
            assert error is None
            found.append(piece)

        self.store.fetch_chunk(message, number, done)
        self.loop.until(lambda: found)
        return found[0]


class Place:
    """Where stores can be opened one after the other, with what was forced in it."""

    def __init__(self, url: str | Disk) -> None:
        self.where = url
        self.path = Path(str(url).removeprefix("sqlite:///"))
        """The file of SQLite."""
        self._opened: list[MessageStore] = []

    def make(self, loop: Loop, hook: Callable[[Step], None] = lambda _: None) -> MessageStore:
        """A store that is not open yet."""
        if isinstance(self.where, Disk):
            return MemoryStore(self.where, loop.deliver, hook)
        return SqlStore(self.where, loop.deliver, hook, lease_s=3.0)  # a killed one has it for so long

    def open(self, hook: Callable[[Step], None] = lambda _: None) -> Opened:
        """Opens the place, after closing it where it is open."""
        self.close()
        loop = Loop()
        store = self.make(loop, hook)
        self._opened.append(store)
        return Opened(store, loop)

    def let_lease_run_out(self) -> None:
        """As if its holder, which was killed, had been gone for that long."""
        if str(self.where).startswith("postgresql"):
            with psycopg.connect(str(self.where), autocommit=True) as connection:
                connection.execute("UPDATE dtx_lease SET until_s = 0")

    def close(self) -> None:
        """Closes what is open."""
        while self._opened:
            self._opened.pop().close()


def enqueued(numbers: Sequence[int], queue: int, payload: bytes = b"payload") -> Batch:
    """A batch that enqueues messages with these numbers, in this order."""
    batch = Batch()
    for number in numbers:
        batch.enqueue(number, queue, number, payload)
    return batch


def state(restored: Restored) -> tuple[Any, ...]:
    """Everything that was restored, in a form that compares."""
    messages: list[StoredMessage] = list(restored.messages())
    fences = sorted((fence.gtrid, fence.owner, fence.fenced_ms) for fence in restored.fences)
    queues = sorted((queue.number, queue.name, queue.settings) for queue in restored.queues)
    return queues, messages, list(restored.branches), fences, dict(restored.shares)
