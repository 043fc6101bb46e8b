"""Removals: messages that leave a queue because of their age, or because it is too full.

An expired message, and the oldest one of a queue whose setting `when_full` says so, goes to the dead letters, or
vanishes where there are none. What a delivery, a transaction or a prepared branch holds is never touched: it is judged
when it comes back. Some hundred go at a time, over all queues. A step

1. holds the messages, so that no consumer gets them,
2. writes a batch in which they go, or get their place among the dead letters, with the reason,
3. waits until the batch is durable, and carries it out only then. If the store did not take it, they are given back.

So a crash finds each message in exactly one queue, and a step that is begun again finds only what is still there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.store.contract import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dtx.broker.queues.entry import MessageMove
    from dtx.broker.queues.queue import Queue
    from dtx.store.contract import NotStored

STEP: Final = 500
"""Messages of one step."""


class AutomaticRemoval:
    """What goes by itself. `now_ms` tells the time, `submit` makes a batch durable."""

    def __init__(
        self, now_ms: Callable[[], int], submit: Callable[[Batch, Callable[[NotStored | None], None]], None]
    ) -> None:
        self._now_ms = now_ms
        self._submit = submit
        self._queues: dict[Queue, None] = {}
        """Those that have something to remove."""
        self._writing = False
        self._refused = False
        """Whether the store did not take the last step: the next look tries again."""

    def look(self, queues: Iterable[Queue]) -> None:
        """Looks which of the queues have something to remove. To be called now and then: what expires is known when it
        does, and this finds what could not go then, and what a clock that was set has changed."""
        now_ms = self._now_ms()
        self._refused = False
        for queue in queues:
            queue.tidy()
            if queue.has_expired(now_ms) or queue.overfull:
                self._queues[queue] = None
            else:
                queue.note_expiry(now_ms)

    def add(self, queue: Queue) -> None:
        """A queue has more messages than it may have, or one whose time has passed."""
        self._queues[queue] = None

    def go_on(self) -> None:
        """The next step, unless one is being forced or there is nothing to do."""
        if self._writing or self._refused or not self._queues:
            return
        batch, now_ms = Batch(), self._now_ms()
        effects: list[MessageMove] = []
        for queue in tuple(self._queues):
            if not queue.deleted and not queue.closing:
                effects += queue.plan_expired(now_ms, STEP - len(effects), batch)
                effects += queue.plan_overfull(now_ms, STEP - len(effects), batch)
            if len(effects) >= STEP:
                break
            del self._queues[queue]  # all of it is planned, or can't go now: then it is looked at again later
            if not queue.deleted:
                queue.note_expiry(now_ms)

        if not effects:
            return
        if not batch.rows:  # of queues that live in memory
            self._carry_out(effects)
            return
        self._writing = True
        self._submit(batch, lambda error: self._written(effects, error))

    def _written(self, effects: list[MessageMove], error: NotStored | None) -> None:
        self._writing = False
        if error is None:
            self._carry_out(effects)
            return
        self._refused = True
        for effect in effects:
            if effect.target is not None:
                effect.target.expect_no_more(effect.entry)
            effect.entry.queue.give_back(effect.entry)

    def _carry_out(self, effects: list[MessageMove]) -> None:
        for effect in effects:
            effect.entry.queue.move(effect)
