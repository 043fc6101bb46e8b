"""This module makes random histories of a broker, as the batches that it would submit."""

from __future__ import annotations

import random

from dtx.store.contract import CHUNK, PENDING, Batch
from xa import Code, Xid


class History:
    """Makes batches that name what earlier ones left, whether those were forced by then or not."""

    def __init__(self, dice: random.Random, first: int) -> None:
        self._dice = dice
        self._next = first
        self._queues: list[int] = []
        self._standing: dict[int, tuple[int, int]] = {}
        self._shares: dict[int, int] = {}
        self.sizes: dict[int, int] = {}
        """Of the messages that were ever posted."""
        self._branches: dict[int, tuple[list[int], list[int]]] = {}
        self._completed: list[int] = []
        self._gtrids = [bytes((octet,)) * 3 for octet in range(4)]

    def _number(self) -> int:
        self._next += 1
        return self._next

    def batch(self) -> Batch:
        """The next one."""
        batch = Batch()
        changes = (self._enqueue, self._dequeue, self._place, self._prepare, self._finish, self._complete)
        rare = (self._forget, self._fence, self._queue)
        for change in self._dice.choices((*changes, *rare), (3, 1, 1, 2, 1, 1, 1, 1, 1), k=self._dice.randrange(1, 4)):
            change(batch)
        return batch

    def _queue(self, batch: Batch) -> None:
        if self._queues and self._dice.random() < 0.4:
            queue = self._queues.pop(self._dice.randrange(len(self._queues)))
            batch.delete_queue(queue)
            for message in [message for message, (where, _) in self._standing.items() if where == queue]:
                del self._standing[message]
        else:
            self._queues.append(self._number())
            batch.create_queue(self._queues[-1], f"queue {self._queues[-1]}", "{}")

    def _post(self, batch: Batch, *, pending: bool) -> int:
        if not self._queues:
            self._queue(batch)
        message, queue = self._number(), self._dice.choice(self._queues)
        size = self._dice.choice([0, 5, 700, CHUNK + 3])
        position = PENDING if pending else message
        due_ms, group = self._dice.choice([0, 0, 5, -7 if pending else 7]), self._dice.choice(["", "", "a", "ä"])
        payload = self._dice.randbytes(size)
        batch.enqueue(message, queue, position, payload, self._number(), due_ms=due_ms, group=group)
        self._standing[message] = queue, size
        self.sizes[message] = size
        return message

    def _enqueue(self, batch: Batch) -> None:
        self._post(batch, pending=False)

    def _free(self) -> list[int]:
        held = {message for _, messages in self._branches.values() for message in messages}
        return [message for message in self._standing if message not in held]

    def _dequeue(self, batch: Batch) -> None:
        free = self._free()
        if free:
            self._retire(batch, self._dice.choice(free))

    def _retire(self, batch: Batch, message: int) -> None:
        size = self._standing.pop(message, (0, CHUNK + 1))[1]
        if message in self._shares:
            batch.dequeue_copy(message, self._shares[message])
        else:
            batch.dequeue(message, size)

    def _publish(self, batch: Batch, message: int) -> None:
        """A posted message goes to some queues."""
        batch.unpost(message)
        for queue in self._dice.sample(self._queues, self._dice.randint(1, len(self._queues))):
            copy = self._number()
            batch.copy(copy, message, queue, copy, self.sizes[message], due_ms=self._dice.choice([0, 5]))
            self._standing[copy] = queue, self.sizes[message]
            self._shares[copy] = message

    def _place(self, batch: Batch) -> None:
        free = self._free()
        if free and self._queues:
            message, queue = self._dice.choice(free), self._dice.choice(self._queues)
            batch.place(
                message, queue, self._number(), self._dice.randrange(5), self._number(), self._dice.randrange(3)
            )
            self._standing[message] = queue, self._standing[message][1]

    def _prepare(self, batch: Batch) -> None:
        free = self._free()
        retired = self._dice.sample(free, min(len(free), self._dice.randrange(3)))
        posted = [self._post(batch, pending=True) for _ in range(self._dice.randrange(3))]
        for message in posted:  # they stand nowhere yet
            del self._standing[message]
        branch = self._number()
        xid = Xid(branch % 3, self._dice.choice(self._gtrids), branch.to_bytes(8, "big"))
        outcomes = [(message, self._dice.randbytes(self._dice.randrange(3))) for message in retired]
        batch.prepare(branch, xid, "owner", self._number(), enqueues=posted, dequeues=outcomes)
        self._branches[branch] = posted, retired

    def _settle(self, batch: Batch, branch: int) -> None:
        posted, retired = self._branches.pop(branch)
        commits = self._dice.random() < 0.6
        for message in posted:
            if commits and self._queues and self._dice.random() < 0.5:
                self._publish(batch, message)
            elif commits and self._queues:
                queue = self._dice.choice(self._queues)
                batch.place(message, queue, self._number(), 0)
                self._standing[message] = queue, self.sizes[message]
            else:
                batch.dequeue(message, CHUNK + 1)
        if commits:
            for message in retired:
                self._retire(batch, message)

    def _finish(self, batch: Batch) -> None:
        if self._branches:
            branch = self._dice.choice(list(self._branches))
            batch.finish(branch)
            self._settle(batch, branch)

    def _complete(self, batch: Batch) -> None:
        if self._branches:
            branch = self._dice.choice(list(self._branches))
            batch.complete(branch, self._dice.choice([Code.XA_HEURCOM, Code.XA_HEURRB]), self._number())
            self._settle(batch, branch)
            self._completed.append(branch)

    def _forget(self, batch: Batch) -> None:
        if self._completed:
            batch.finish(self._completed.pop())

    def _fence(self, batch: Batch) -> None:
        gtrid = self._dice.choice(self._gtrids)
        if self._dice.random() < 0.6:
            batch.fence(gtrid, "node", self._number())
        else:
            batch.lift_fence(gtrid)
