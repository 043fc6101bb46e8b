"""The thread that writes for a SQL store: group commit.

1. It takes everything that waits at this moment, up to GROUP_OCTETS, and carries it out in one transaction.
2. It commits: this is the force, and the only one.
3. It delivers the completion of the group to the event loop, which answers the batches in their order.

The event loop carries a small group out itself (`write_now`) while the thread has nothing to do and forces are quick
(`dtx.store.sql.fsync_latency`): this saves both changes of thread. Whatever is not plain remains the thread's: a group
that was refused, a disk without space, and what keeps the file in order (`maintain`). A lock excludes one while the
other is at work.

When the database takes nothing before step 2 (it is locked), the group is refused. When there is no space, only what
takes some is refused, and the rest is carried out with the space that was kept for this (`dtx.store.sql.disk_reserve`).
When the database does not take what one of the batches says, they are carried out one by one, so that the others are
kept. Any other failure stops the store.
"""

from __future__ import annotations

import logging
import threading
import time
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from dtx.store.contract import Batch, NotStored, Step, StoreError, StoreFull, StoreRefused, StoreStopped
from dtx.store.sql.batches import carry_out
from dtx.store.sql.database import LOCKED_MS, not_stored
from dtx.store.sql.fsync_latency import ForcePace
from xa.sql.errors import explained, is_of_one_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dtx.store.sql.database import DiskHeadroom, Transactions
    from dtx.store.sql.statements import Statements

    Submitted: TypeAlias = tuple[Batch, Callable[[StoreError | None], None]]
    Completed: TypeAlias = Callable[[list[Submitted], StoreError | None], None]

LOG: Final = logging.getLogger("xabridge.broker")
TIGHT: Final = "no space in the store: only what frees some is taken"
LOOK_AGAIN_S: Final = 1.0
TELL_AGAIN_S: Final = 60.0
FULL_S: Final = 60.0
"""So long after the last refusal the store is not full any more, if there is space for what was refused."""
EASE: Final = 1024 * 1024
"""With space for so much more than twice what was refused, it is not full at once."""
GROUP_OCTETS: Final = 16 * 1024 * 1024
GROUP_BATCHES: Final = 4096
SMALL_ROWS: Final = 1000
"""A group of so many rows is small: it takes a millisecond or two beside the force."""
SMALL_OCTETS: Final = 256 * 1024


class Writer:
    """The thread. `completed(group, error)` is delivered once per group; `forced` is called with how long each force
    took, with what was written for it, and how many batches it made durable."""

    def __init__(
        self,
        transactions: Transactions,
        space: DiskHeadroom,
        statements: Statements,
        hook: Callable[[Step], None],
        completed: Completed,
        forced: Callable[[float, int], None],
    ) -> None:
        self._transactions = transactions
        self._space = space
        self._statements = statements
        self._hook = hook
        self._completed = completed
        self._forced = forced
        self._waiting: SimpleQueue[list[Submitted] | None] = SimpleQueue()
        self._stopped: StoreStopped | None = None
        self._clock = time.monotonic
        self._pace = ForcePace(self._clock)

        self.promised = 0
        """Octets that are kept free for commits of prepared branches."""
        self._at_work = threading.Lock()
        """Held by the thread that uses the connection."""
        self._closed = False
        self._look_at = 0.0
        self._untidy = True
        """Whether there may be space to give back; also what an earlier process left."""
        self._is_short = False
        """Whether something was refused for lack of space, and there was none since."""
        self._is_full = False
        """Whether something was refused lately, and there is not yet space enough for much of the kind."""
        self._is_reported = False
        """Whether the log says that there is no space, and not yet that there is some."""
        self._refused_at = 0.0
        self._refused_octets = 0
        """The most that was refused since there was space enough, in one group."""
        self._tell_at = 0.0
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether what takes space is refused, or was lately: large messages may be, while small ones are taken."""
        return self._is_full or self._is_short or self._space.tight

    def submit(self, batches: list[Submitted]) -> None:
        """Queues batches."""
        self._waiting.put(batches)

    def write_now(
        self, group: list[Submitted], completed: Callable[[list[Submitted], StoreError | None], None]
    ) -> bool:
        """Makes a group durable on the calling thread and calls `completed`, where both take a moment only. False:
        nothing happened, and the thread is to be asked. Not to be called while the thread has a group."""
        if not (self._transactions.prompt and self._pace.quick) or self._stopped is not None:
            return False
        batches = [batch for batch, _ in group]
        size = _size(batches)
        if not _is_small(size) or any(batch.queues_deleted for batch in batches):  # they may have a million messages
            return False
        if not self._at_work.acquire(blocking=False):  # the thread keeps the file in order
            return False

        error: StoreError | None = None
        foreseen = False
        try:
            if self._closed or self._is_short or not self._has_room(size[0]):
                foreseen = True
                return False
            error = self._force(batches, size, 0)
            foreseen = True
        finally:
            self._at_work.release()
            if not foreseen:  # a defect of ours: it is reported, and no caller waits for ever
                completed(group, self._stop("a write ended unexpectedly"))
        if isinstance(error, NotStored):  # it is undone: the thread finds out what can be taken
            return False
        if self._space.log_is_long:
            self._waiting.put([])
        completed(group, error)
        return True

    def maintain(self) -> None:
        """Has the thread keep the file in order, where there is something to do. To be called now and then."""
        if self._untidy or self._space.log_is_long or self.full:
            self._waiting.put([])

    def close(self) -> None:
        """Writes what waits, and ends the thread."""
        self._waiting.put(None)
        self._thread.join()
        with self._at_work:
            self._closed = True

    def _run(self) -> None:
        group: list[Submitted] = []
        ended = False
        try:
            while not ended:
                group, ended = self._next_group()
                if group:
                    with self._at_work:
                        self._write(group)
                    group = []
        finally:
            if not ended:  # something unforeseen: it is reported, and no caller waits for ever
                self._answer_all(group)

    def _next_group(self) -> tuple[list[Submitted], bool]:
        """The batches that wait now, at least one; and whether it is the last."""
        entry = self._next()
        group: list[Submitted] = []
        octets = 0
        while entry is not None:
            group += entry
            octets += sum(batch.octets for batch, _ in entry)
            if octets >= GROUP_OCTETS or len(group) >= GROUP_BATCHES:
                return group, False
            try:
                entry = self._waiting.get_nowait()
            except Empty:
                return group, False
        return group, True

    def _next(self) -> list[Submitted] | None:
        """The next batches; while there are none, the file is kept in order."""
        more = True
        while more:
            try:
                return self._waiting.get_nowait()
            except Empty:
                more = self._maintained()
        return self._waiting.get()

    def _maintained(self) -> bool:
        """Gives back some unused space and shortens the log, where there is a reason; whether there is more to do."""
        if self._stopped is not None or not (self._untidy or self._space.log_is_long or self.full):
            return False
        with self._at_work:
            if self._space.log_is_long:
                self._space.shorten_log()
            if self._untidy:
                self._untidy = self._tidied()
            if not self._untidy and self.full:
                self._look_for_room(self._refused_octets)
                self._is_short = self._is_short and not self._has_room(self._refused_octets)
                self._look_whether_full()
            return self._untidy

    def _tidied(self) -> bool:
        try:
            return self._space.tidy()
        except self._transactions.failures:  # a reader is in the way, or there is no space for it
            return False

    def _write(self, group: list[Submitted]) -> None:
        """Makes the group durable, or at least what the database takes of it, and answers it."""
        octets = sum(batch.octets for batch, _ in group)
        if not self._has_room(octets):
            self._look_for_room(octets)
            if not self._has_room(octets):
                self._write_what_frees(group, StoreFull(TIGHT))
                return
        error = self._force([batch for batch, _ in group])
        if error is None and octets:
            self._is_short = False

        if isinstance(error, StoreFull):
            self._write_what_frees(group, error)
            return
        if not isinstance(error, StoreRefused) or len(group) == 1:
            self._completed(group, error)
            return
        while group:
            self._write(group[:1])
            del group[:1]

    def _has_room(self, octets: int) -> bool:
        return not self._space.tight and self._space.has_room(octets + self.promised if octets else 0)

    def _write_what_frees(self, group: list[Submitted], full: StoreFull) -> None:
        """Refuses what takes space, and carries out the rest; answers all in their order."""
        error: StoreError | None = None
        while group:
            takes, same = next(groupby(group, lambda one: one[0].takes_space))
            alike = list(same)
            if takes:
                error = full
                self._refused(len(alike), sum(batch.octets for batch, _ in alike), full)
            else:
                batches = [batch for batch, _ in alike]
                error = self._force(batches)
                if isinstance(error, StoreFull):
                    if self._space.make_room():
                        LOG.error("the disk is full: nothing is taken any more but what frees space (%s)", full)
                    error = self._force(batches)
                if isinstance(error, StoreFull) and len(alike) > 1:  # less at a time may fit
                    alike = alike[:1]
                    error = self._force([alike[0][0]])
            self._completed(alike, error)
            del group[: len(alike)]

        if self._space.tight:
            self._look_for_room(0)

    def _look_whether_full(self) -> None:
        """It is full no more when there is space for more than was refused, or nothing was refused for some time: what
        fits just now may not fit in the next moment."""
        if not self._is_full or self._is_short or self._space.tight:
            return
        if self._clock() >= self._refused_at + FULL_S or self._has_room(2 * self._refused_octets + EASE):
            self._is_full, self._refused_octets = False, 0
            if not self._is_reported:
                return
            self._is_reported = False
            LOG.warning("there is space again: what takes space is taken")

    def _refused(self, count: int, octets: int, full: StoreFull) -> None:
        """Says now and then that something is refused for lack of space."""
        now = self._clock()
        self._is_short = self._is_full = True
        self._refused_at, self._refused_octets = now, max(self._refused_octets, octets)
        if now >= self._tell_at:
            self._tell_at, self._is_reported = now + TELL_AGAIN_S, True
            LOG.error("%d changes that take space were refused: %s (logged once in %.0f s)", count, full, TELL_AGAIN_S)

    def _look_for_room(self, octets: int) -> None:
        """Now and then, while it is tight, or there is no room for so much."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_AGAIN_S
        self._space.keep_room(octets)

    def _force(
        self,
        batches: list[Batch],
        size: tuple[int, int] | None = None,
        wait_ms: int = LOCKED_MS,
        *,
        leave_payloads: bool = False,
    ) -> StoreError | None:
        """Makes the group, of this size, durable; the error that its batches get, or None. `wait_ms`: how long
        somebody else may have locked the database. Where payloads of messages that go are damaged, they stay
        (`leave_payloads`): a message whose payload can't be read has to be able to go, and others with it."""
        if self._stopped is not None:
            return self._stopped
        try:
            self._hook(Step.BEFORE_WRITE)
            began = self._clock()
            self._transactions.begin(wait_ms)
            carry_out(batches, self._transactions, self._statements, leave_payloads=leave_payloads)
            self._hook(Step.WRITTEN)
        except self._transactions.failures as error:
            if leave_payloads or not is_of_one_place(error) or not any(map(_drops_payloads, batches)):
                return self._not_written(error)
            undone = self._undone(error)
            if undone is not None:
                return undone
            LOG.warning("payloads of messages that are gone stay in the store: %s", explained(error))
            return self._force(batches, size, wait_ms, leave_payloads=True)

        try:
            self._transactions.commit()  # the force: what the batches tell is durable from here on
        except self._transactions.failures as error:
            if self._space.is_undone(error):
                return self._not_written(error)
            return self._stop(f"a force failed: {explained(error)}")
        took = self._clock() - began
        self._hook(Step.FORCED)
        self._forced(took, len(batches))
        size = size or _size(batches)
        if _is_small(size):
            self._pace.took(took)
        self._space.written(*size)
        self._untidy = self._untidy or any(map(_drops_payloads, batches))
        return None

    def _not_written(self, error: Exception) -> StoreError:
        """The answer to a group that failed before its force."""
        refusal = not_stored(error)
        if refusal is None:
            return self._stop(f"a write failed: {explained(error)}")
        return self._undone(error) or refusal

    def _undone(self, error: Exception) -> StoreStopped | None:
        """Rolls the transaction back in which `error` was raised; None: it has left no trace."""
        try:
            self._transactions.rollback()
        except self._transactions.failures as failure:
            return self._stop(f"after {error}: {failure}")
        return None

    def _stop(self, reason: str) -> StoreStopped:
        self._stopped = StoreStopped(f"the store has stopped, open it again: {reason}")
        return self._stopped

    def _answer_all(self, group: list[Submitted]) -> None:
        stopped = self._stop("its writing thread ended unexpectedly")
        entry: list[Submitted] | None = None
        while True:
            self._completed(group, stopped)
            entry = self._waiting.get()
            if entry is None:
                return
            group = entry


def _drops_payloads(batch: Batch) -> bool:
    return bool(batch.dequeues or batch.unshared or batch.queues_deleted)


def _size(batches: Iterable[Batch]) -> tuple[int, int]:
    """The octets and rows of a group."""
    octets = rows = 0
    for batch in batches:
        octets += batch.octets
        rows += batch.rows
    return octets, rows


def _is_small(size: tuple[int, int]) -> bool:
    """Whether the event loop may carry out a group of this size."""
    octets, rows = size
    return rows <= SMALL_ROWS and octets <= SMALL_OCTETS
