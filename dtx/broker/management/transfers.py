"""Transfer: moves messages of a queue, or deletes them, some hundred at a time.

It takes what is not held, and only that: what a consumer or a prepared branch has is left as it is. A step of it

1. holds the messages, so that no one else gets them,
2. writes a batch in which they go, or get their place in another queue, together with the audit log's entry,
3. waits until the batch is durable, and only then carries it out. If the store did not take it, they are given back.

So a crash finds each message in exactly one queue, and the entry says how many were moved.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.values import Ulong
from dtx.broker.queues.entry import Entry, MessageMove, State, write_removal
from dtx.store.contract import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dtx.amqp.values import Map
    from dtx.broker.access.audit import Actor
    from dtx.broker.container import Container
    from dtx.broker.queues.queue import Queue
    from dtx.store.contract import NotStored

STEP: Final = 500
HELD: Final = "held by a consumer or a transaction"
LOOKED_AT: Final = 2_000
"""Messages that one step looks at, to find those that are meant."""


class TransferRefused(Exception):
    """A message stays where it is; the text says why."""


class Transfer:
    """One transfer. `target` says where a message goes, None: nowhere; it raises TransferRefused for one that stays.
    `anew`: it counts as never delivered. `asked_for` is how many were named by their ids, if they were. `answer` is
    called with how many went, and why others did not. Of `messages` only those are meant of which `is_meant` says
    so when their turn comes, and at most `most` of them go. What another transfer has taken meanwhile is not left.
    It ends where `is_awaited` says that the one who asked is gone: what is done stays done."""

    def __init__(
        self,
        container: Container,
        queue: Queue,
        messages: Iterable[Entry],
        target: Callable[[Entry], Queue | None],
        answer: Callable[[Map], None],
        *,
        actor: Actor,
        user: str,
        what: str,
        details: dict[str, Any],
        anew: bool = False,
        asked_for: int = 0,
        is_meant: Callable[[Entry], bool] = lambda _: True,
        most: int = 0,
        is_awaited: Callable[[], bool],
    ) -> None:
        self._container = container
        self._resource = container.resource
        self._queue = queue
        self._left = deque(messages)
        self._target = target
        self._answer = answer
        self._actor = actor
        self._user = user
        self._what = what
        self._details = details
        self._anew = anew
        self._asked_for = asked_for

        self._is_meant = is_meant
        self._most = most
        self._is_awaited = is_awaited
        self._entry = 0
        self._done = 0
        self._unmoved: dict[str, int] = {}
        self._held: list[Entry] = []
        """Those that were held when their turn came."""

    def go_on(self) -> None:
        """One step; the last one, if the one who has asked is gone."""
        if not self._is_awaited():
            self._left.clear()
        batch = Batch()
        effects: list[MessageMove] = []
        looked_at = 0
        while self._left and len(effects) < STEP and looked_at < LOOKED_AT:
            entry = self._left.popleft()
            looked_at += 1
            if entry.queue is not self._queue or entry.state is State.GONE or not self._is_meant(entry):
                continue  # somebody took it meanwhile
            if entry.state is State.HELD:
                self._held.append(entry)
                continue
            try:
                effects.append(self._plan(entry, batch))
                if self._done + len(effects) == self._most:
                    self._left.clear()
            except TransferRefused as why:
                self._unmoved[str(why)] = self._unmoved.get(str(why), 0) + 1

        if not effects:
            self._end_step()
            return
        details = {**self._details, "messages": self._done + len(effects)}
        self._entry = self._container.audit.write(batch, self._actor, self._what, details, self._entry)
        self._resource.submit(batch, lambda error: self._written(effects, error))

    def _end_step(self) -> None:
        if self._left:
            self._container.continue_later(self, self._user)
            return
        left = sum(entry.queue is self._queue and entry.state is not State.GONE for entry in self._held)
        unmoved = {**({HELD: left} if left else {}), **self._unmoved}
        self._answer(result(self._done, unmoved, self._asked_for))

    def _plan(self, entry: Entry, batch: Batch) -> MessageMove:
        queue, target = self._queue, self._target(entry)
        if target is None:
            queue.hold(entry)
            write_removal(batch, entry)
            position = count = 0
        else:
            if target.deleted or target.closing:
                raise TransferRefused(f"{target.name} is gone")
            if target.refusal(entry.size):
                raise TransferRefused(f"{target.name} is full")
            queue.hold(entry)
            target.expect(entry)
            position, count = target.next_position(), 0 if self._anew else entry.count
            batch.place(entry.number, target.number, position, count, entry.expires_ms, entry.due_ms)

        origin = None if target is None or self._anew else entry.known_origin
        if entry.has_record and origin is None:
            batch.drop_record(entry.number)
        return MessageMove(entry, target, position, count, origin, entry.expires_ms, entry.due_ms)

    def _written(self, effects: list[MessageMove], error: NotStored | None) -> None:
        for effect in effects:
            if error is None:
                self._queue.move(effect)
                continue
            if effect.target is not None:
                effect.target.expect_no_more(effect.entry)
            self._queue.give_back(effect.entry)

        if error is None:
            self._done += len(effects)
        else:
            self._left.clear()
            self._unmoved[f"the store did not take it: {error}"] = len(effects)
            self._container.audit.failed(self._entry, str(error), messages=self._done)
        self._end_step()


def result(done: int, left: Mapping[str, int], asked_for: int = 0) -> Map:
    """What is answered: how many messages were done, and why others were not. Of those that were asked for by their
    ids, the rest was not in the queue, or not any more."""
    missing = asked_for - done - sum(left.values())
    if missing > 0:
        left = {**left, "not in the queue": missing}
    return {"done": Ulong(done), "left": {why: Ulong(count) for why, count in left.items()}}
