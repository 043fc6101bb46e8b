"""Figures: how a broker is at one moment, as numbers.

They are taken on the event loop, from what its parts have counted anyway, STEP things at a time, so that no one waits
for them for long. Nothing is counted while no one asks.

At most `most` queues are listed by their names, so that ten thousand queues don't make ten thousand series: those that
were there first, as long as they exist. All others are one, OTHER. A queue that is counted there remains there, and
what came into queues that are deleted is still counted there, because a counter must not fall. Queues that live in
memory are always there: clients make and drop them as they like, under names that are not used again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from xa.state_tables import BranchState
from xa.telemetry.metric import OTHER

if TYPE_CHECKING:
    from dtx.broker.conditions import ConditionFound
    from dtx.broker.container import Container
    from dtx.broker.queues.queue import Queue

STEP: Final = 200
"""The queues or branches that are looked at in one turn of the loop: a fraction of a millisecond."""
STATES: Final = {
    BranchState.S1: "active",
    BranchState.S2: "idle",
    BranchState.S3: "prepared",
    BranchState.S4: "rollback_only",
    BranchState.S5: "heuristic",
}


@dataclass(slots=True)
class QueueFigures:
    """One queue, or several in one. `oldest_s` is None where no message waits, or it is not known when it came."""

    depth: int = 0
    octets: int = 0
    held: int = 0
    delayed: int = 0
    oldest_s: float | None = None
    consumers: int = 0
    came: int = 0
    went: int = 0
    dead_lettered: int = 0
    dead_letters: int = 0
    unreadable: int = 0

    def count(self, queue: Queue) -> None:
        """Adds what `queue` has counted since it is there."""
        self.came += queue.counters.came
        self.went += queue.counters.went
        self.dead_lettered += queue.counters.dead_lettered


@dataclass(slots=True)
class BrokerFigures:
    """The broker at one moment."""

    queues: dict[str, QueueFigures] = field(default_factory=dict)
    queue_count: int = 0
    connections: int = 0
    sessions: int = 0
    branches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATES.values(), 0))
    in_doubt_s: float = 0.0
    waiting_octets: int = 0
    long_turns: int = 0
    settled_and_refused: int = 0
    store_octets: int | None = None
    store_full: bool = False
    conditions: list[ConditionFound] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """How a queue is listed: whether by its name, and whether all that is in it are dead letters."""

    named: bool
    dead: bool


class FigureReader:
    """Takes the figures of one broker, again and again. `most` bounds the queues that are listed by their names."""

    def __init__(self, container: Container, most: int) -> None:
        self._container = container
        self._most = most
        self._places: dict[Queue, _Place] = {}
        self._named = 0
        self._gone = QueueFigures()
        """What the queues had counted that were listed as OTHER, and are deleted."""

    async def take(self) -> BrokerFigures:
        """The figures now."""
        container = self._container
        resource = container.resource
        figures = BrokerFigures(
            queue_count=len(resource.queues),
            connections=len(container.connections),
            sessions=sum(len(connection.sessions) for connection in container.connections.values()),
            waiting_octets=resource.store.waiting_octets,
            long_turns=container.long_turns,
            settled_and_refused=container.settled_and_refused,
            conditions=[found if self._most else replace(found, worst=()) for found in container.conditions.found],
        )
        await self._drop_deleted()
        now_ms = resource.clock.wall_ms()
        for number, queue in enumerate(list(resource.queues.values()), start=1):
            self._add(figures, queue, now_ms)
            if not number % STEP:
                await asyncio.sleep(0)

        other = figures.queues.get(OTHER)
        if other is not None or self._gone.came:
            other = figures.queues.setdefault(OTHER, QueueFigures())
            other.came += self._gone.came
            other.went += self._gone.went
            other.dead_lettered += self._gone.dead_lettered
        await self._add_branches(figures, now_ms)
        return figures

    async def _drop_deleted(self) -> None:
        queues = self._container.resource.queues
        for number, (queue, place) in enumerate(list(self._places.items()), start=1):
            if queues.get(queue.name) is not queue:
                del self._places[queue]
                if place.named:
                    self._named -= 1
                else:
                    self._gone.count(queue)
            if not number % STEP:
                await asyncio.sleep(0)

    def _add(self, figures: BrokerFigures, queue: Queue, now_ms: int) -> None:
        place = self._places.get(queue) or self._new_place(queue)
        name = queue.name if place.named else OTHER
        target = figures.queues.get(name)
        if target is None:
            target = figures.queues[name] = QueueFigures()
        target.depth += queue.depth
        target.octets += queue.counters.octets

        target.held += queue.counters.held
        target.delayed += queue.counters.delayed
        target.consumers += queue.attached
        target.unreadable += len(queue.unreadable)
        target.dead_letters += queue.depth if place.dead else queue.dead_letters.count
        target.count(queue)
        oldest = queue.longest_waiting
        since_ms = self._container.resource.ages.since_ms(oldest.number) if oldest is not None else 0
        if since_ms:
            target.oldest_s = max(target.oldest_s or 0.0, (now_ms - since_ms) / 1000)

    def _new_place(self, queue: Queue) -> _Place:
        named = queue.lasting and self._named < self._most and queue.name != OTHER
        self._named += named
        place = self._places[queue] = _Place(named, self._container.resource.takes_dead_letters(queue))
        return place

    async def _add_branches(self, figures: BrokerFigures, now_ms: int) -> None:
        for number, branch in enumerate(list(self._container.registry), start=1):
            state = STATES.get(branch.state)
            if state is not None:
                figures.branches[state] += 1
                if branch.state in {BranchState.S3, BranchState.S5}:
                    figures.in_doubt_s = max(figures.in_doubt_s, (now_ms - branch.since_ms) / 1000)
            if not number % STEP:
                await asyncio.sleep(0)
