"""This process works on a store, writes to stdout what the store answered, and kills itself at one step of one force.

Its arguments are the URL, the name of the step, the number of the force (from 1) at which it dies, and which thread
forces: the store's (`thread`), or this process's own wherever the store lets it (`loop`). It writes the line
`first <number>`, then `kept <name>` for each batch that the store answered. The history is `WORK`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from dtx.store.contract import PENDING, Batch, Step, StoreError
from dtx.store.sql import SqlStore, fsync_latency
from tests.dtx.store.stores import Loop
from tests.waiting import until
from xa import Xid

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE: Final = 1
OTHER: Final = 2
XID: Final = Xid(7, b"gtrid", b"bqual")
BRANCH: Final = 50


def _posted(first: int) -> Batch:
    batch = Batch()
    batch.create_queue(QUEUE, "orders")
    for number in (1, 2):
        batch.enqueue(first + number, QUEUE, first + number, b"%d" % number)
    return batch


def _prepared(first: int) -> Batch:
    batch = Batch()
    for number in (3, 4):
        batch.enqueue(first + number, OTHER, PENDING, b"%d" % number)
    posted = [first + 3, first + 4]
    batch.prepare(first + BRANCH, XID, "me", 1, enqueues=posted, dequeues=[(first + 1, b"")])
    return batch


def _committed(first: int) -> Batch:
    batch = Batch()
    batch.finish(first + BRANCH)
    batch.dequeue(first + 1, 1)
    batch.place(first + 3, OTHER, first + 9, 0)
    batch.unpost(first + 4)
    for number in (5, 6):
        batch.copy(first + number, first + 4, QUEUE, first + number, 1)
    return batch


def _consumed(first: int) -> Batch:
    batch = Batch()
    batch.dequeue_copy(first + 5, first + 4)
    return batch


def _emptied(first: int) -> Batch:
    batch = Batch()
    batch.dequeue_copy(first + 6, first + 4)
    return batch


WORK: Final[tuple[Callable[[int], Batch], ...]] = (_posted, _prepared, _committed, _consumed, _emptied)


def say(*words: object) -> None:
    """One line."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Works until it dies."""
    url, step, last, thread = sys.argv[1:]
    force, forces = int(last), 0
    if thread == "loop":
        fsync_latency.QUICK_S = fsync_latency.SLOW_S = float("inf")  # type: ignore[misc]

    def hook(at: Step) -> None:
        nonlocal forces
        if at is Step.BEFORE_WRITE and forces > 0 and url.startswith("sqlite"):
            assert (threading.current_thread() is threading.main_thread()) is (thread == "loop")
        forces += at is Step.BEFORE_WRITE
        if forces == force and at is Step[step]:
            os.kill(os.getpid(), signal.SIGKILL)

    loop = Loop()
    later: list[Callable[[], None]] = []
    store = SqlStore(url, loop.deliver, hook, later.append, lease_s=1.0)
    store.open()
    say("first", store.first_number)
    for make in WORK:
        answers: list[StoreError | None] = []
        store.submit(make(store.first_number), answers.append)
        if thread == "loop":
            writer = store._open.writer  # its thread may be at the end of the last force
            until(lambda writer=writer: writer._waiting.empty() and not writer._at_work.locked())  # type: ignore[misc]
            store.write()
        else:
            later.pop()()
        loop.until(lambda answers=answers: answers)  # type: ignore[misc]
        assert answers == [None]
        say("kept", make.__name__)


if __name__ == "__main__":
    main()
