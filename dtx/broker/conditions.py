"""ConditionWatch: which conditions (`xa.telemetry.conditions`) hold at this broker, over all its queues and branches.

It looks again and again, STEP queues or branches at a time, and at counters only: with ten thousand queues a look costs
what a few hundred messages cost, and no peer waits for it for longer than a fraction of a millisecond. Between two
looks, an answer is that of the last look that was complete; before the first one nothing is known yet.

A queue has one of three: it is paused, or it has messages and no consumer, or its messages are old. The first that
holds is the cause of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappush, heapreplace, nlargest
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from dtx.broker.queues.entry import State
from dtx.broker.queues.queue import LOOKED_AT
from xa import NULL_XID
from xa.telemetry.conditions import (
    BRANCH_IN_DOUBT,
    CERTIFICATE_ENDS,
    DEAD_LETTERS,
    GROWING_BACKLOG,
    LEASE_LOST,
    MESSAGES_UNREADABLE,
    NO_CONSUMERS,
    OLD_MESSAGES,
    QUEUE_PAUSED,
    STORE_FULL,
    Condition,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.branches import Registry
    from xa import Xid

STEP: Final = 200
"""The queues or branches that are looked at in one turn of the loop."""
STEP_S: Final = 0.02
"""Between two of these turns."""
PAUSE_S: Final = 5.0
"""Between the end of a look and the next one."""
WORST: Final = 5
"""So many of those that a condition is about are named."""
COUNTED: Final = 1000
"""Of the dead letters of one queue that are new when it is seen for the first time, so many are counted."""
GROWN: Final = 100
"""A backlog of fewer messages more is none that grows."""
THIRDS: Final = 3

OF_QUEUES: Final = (
    DEAD_LETTERS, OLD_MESSAGES, NO_CONSUMERS, QUEUE_PAUSED, GROWING_BACKLOG, MESSAGES_UNREADABLE,
)  # fmt: skip
OF_THE_BROKER: Final = (LEASE_LOST, STORE_FULL, CERTIFICATE_ENDS)
MEASURED: Final = (*OF_QUEUES, BRANCH_IN_DOUBT, *OF_THE_BROKER)
"""The conditions that a broker looks for."""


class Affected(NamedTuple):
    """What a condition is about: how bad it is (seconds for what is old or in doubt, else messages), and the name of
    the queue or the xid of the branch."""

    value: float
    name: str


@dataclass(frozen=True, slots=True)
class ConditionFound:
    """How many queues or branches a condition is about, and the worst of them. For the broker as a whole: 1."""

    condition: Condition
    count: int
    worst: tuple[Affected, ...] = ()


class _Tally:
    """Counts what a condition is about, and keeps the worst."""

    __slots__ = ("count", "heap")

    def __init__(self) -> None:
        self.count = 0
        self.heap: list[Affected] = []

    def add(self, value: float, name: str) -> None:
        self.count += 1
        one = Affected(float(value), name)
        if len(self.heap) < WORST:
            heappush(self.heap, one)
        elif one > self.heap[0]:
            heapreplace(self.heap, one)


class _Course:
    """What has to be known of a queue from one look to the next."""

    __slots__ = ("came", "dead", "letters", "low", "lows", "third_at", "unconsumed_at", "went")

    def __init__(self, now: float, *, dead: bool) -> None:
        self.dead = dead
        """Whether it is a queue of dead letters."""
        self.came: int | None = None
        self.letters = 0
        """How many dead letters came lately, and what the queue had counted when the last one was seen."""

        self.unconsumed_at = now
        self.went = 0
        """Since when no one has consumed what waits, and what had left the queue by then."""
        self.low: int | None = None
        self.third_at = now
        self.lows: tuple[int, ...] = ()
        """The fewest messages in the third that runs since then, and in those before."""

    def new_letters(self, queue: Queue, recent: int) -> int:
        """How many dead letters have come lately, and are there: one after the other, the last of them at the position
        `recent` or later. At the first look, also after a restart, the positions say it."""
        came = queue.counters.came
        if not queue.count_from(recent, 1):
            self.letters = 0
        elif self.came is None:
            self.letters = queue.count_from(recent, COUNTED)
        else:
            self.letters += came - self.came
        self.came = came
        return min(self.letters, queue.depth)

    def unconsumed_s(self, queue: Queue, now: float) -> float:
        """For how long messages have waited for a consumer, as far as looks have seen it."""
        went = queue.counters.went
        if queue.attached or queue.available <= 0 or went != self.went:
            self.unconsumed_at, self.went = now, went
        return now - self.unconsumed_at

    def grown(self, depth: int, now: float, third_s: float) -> int:
        """By how many messages its low has risen, where it rose from each third of the time to the next; else 0."""
        self.low = depth if self.low is None else min(self.low, depth)
        if now - self.third_at >= third_s:
            self.lows = (*self.lows[-THIRDS:], self.low)
            self.low, self.third_at = depth, now
        if len(self.lows) <= THIRDS or any(later <= before for before, later in pairwise(self.lows)):
            return 0
        return max(depth - self.lows[0], 0)


class ConditionWatch:
    """Of one broker. `begin` is called when the store is restored. What is about the broker as a whole, its shell
    knows: `holds` says of a condition whether it does."""

    def __init__(self, resource: TransactionalResource, registry: Registry) -> None:
        self._resource = resource
        self._registry = registry
        self.holds: dict[str, Callable[[], bool]] = {}
        self.looked_ms = 0
        """When the last look was complete; 0: none was."""
        self._found: dict[str, ConditionFound] = {}
        self._courses: dict[Queue, _Course] = {}
        self._next_courses: dict[Queue, _Course] = {}
        self._tallies: dict[str, _Tally] = {}
        self._queues: list[Queue] = []
        self._at = 0
        self._xid: Xid | None = None
        self._began = False

    def begin(self) -> None:
        """From now on it looks."""
        self._began = True
        self._begin_look()

    @property
    def found(self) -> list[ConditionFound]:
        """Every condition that a broker looks for, with how often it holds. Of queues and branches only those are
        counted that the last look has seen."""
        nothing = (ConditionFound(condition, 0) for condition in (*OF_QUEUES, BRANCH_IN_DOUBT))
        seen = [self._found.get(one.condition.name, one) for one in nothing]
        return seen + [
            ConditionFound(one, int(self._began and one.name in self.holds and self.holds[one.name]()))
            for one in OF_THE_BROKER
        ]

    # -- a look
    def _begin_look(self) -> None:
        self._queues = list(self._resource.queues.values())
        self._at = 0
        self._xid = NULL_XID
        self._tallies = {condition.name: _Tally() for condition in (*OF_QUEUES, BRANCH_IN_DOUBT)}
        self._next_courses = {}
        self._step()

    def _step(self) -> None:
        now, now_ms = self._resource.clock.monotonic(), self._resource.now_ms
        step = self._queues[self._at : self._at + STEP]
        for queue in step:
            if queue.lasting and not queue.deleted:
                self._look_at(queue, now, now_ms)
        self._at += STEP
        if len(step) < STEP and self._xid is not None:  # an idle broker is not woken once more for its branches
            self._look_at_branches(self._xid, now_ms)

        if self._at < len(self._queues) or self._xid is not None:
            self._resource.after(STEP_S, self._step)
        else:
            self._end_look(now_ms)

    def _end_look(self, now_ms: int) -> None:
        self._found = {
            name: ConditionFound(_BY_NAME[name], tally.count, tuple(nlargest(WORST, tally.heap)))
            for name, tally in self._tallies.items()
        }
        self._courses, self._next_courses, self._queues = self._next_courses, {}, []
        self.looked_ms = now_ms
        self._resource.after(PAUSE_S, self._begin_look)

    def _look_at_branches(self, behind: Xid, now_ms: int) -> None:
        patience_ms = self._resource.settings.in_doubt_s * 1000
        self._xid = None
        for number, branch in enumerate(islice(self._registry.in_doubt(behind, b""), STEP), start=1):
            age_ms = now_ms - branch.since_ms
            if age_ms >= patience_ms:
                self._tallies[BRANCH_IN_DOUBT.name].add(age_ms / 1000, str(branch.xid))
            if number == STEP:
                self._xid = branch.xid

    def _look_at(self, queue: Queue, now: float, now_ms: int) -> None:
        tallies, settings = self._tallies, queue.settings
        if queue.unreadable:
            tallies[MESSAGES_UNREADABLE.name].add(len(queue.unreadable), queue.name)
        course = self._courses.get(queue)
        if course is None:
            course = _Course(now, dead=self._resource.takes_dead_letters(queue))
            course.unconsumed_at -= self._waits_s(queue, now_ms)
        self._next_courses[queue] = course
        if queue.paused:
            tallies[QUEUE_PAUSED.name].add(queue.depth, queue.name)
        if course.dead:
            recent_ms = round(self._resource.settings.dead_letters_s * 1000)
            letters = course.new_letters(queue, self._resource.ages.first_since(now_ms - recent_ms))
            if letters:
                tallies[DEAD_LETTERS.name].add(letters, queue.name)
            return

        unconsumed_s = course.unconsumed_s(queue, now)
        grown = course.grown(queue.depth, now, settings.growing_backlog_s / THIRDS)
        if grown >= GROWN and settings.growing_backlog_s:
            tallies[GROWING_BACKLOG.name].add(grown, queue.name)
        if queue.paused:
            return
        if settings.no_consumers_s and unconsumed_s >= settings.no_consumers_s:
            tallies[NO_CONSUMERS.name].add(queue.available, queue.name)
        elif settings.old_messages_s and (queue.attached or queue.depth > queue.dead_letters.count):
            age_s = self._oldest_s(queue, now_ms)
            if age_s >= settings.old_messages_s:
                tallies[OLD_MESSAGES.name].add(age_s, queue.name)

    def _waits_s(self, queue: Queue, now_ms: int) -> float:
        """For how long the first message that a consumer could have is in the queue. One that is there after a restart
        has waited for a consumer since then, as long as there is none: so what was said of the queue
        before is said again."""
        entries = islice(queue, LOOKED_AT)
        first = next((entry for entry in entries if entry.state is State.AVAILABLE), None)
        since_ms = self._resource.ages.since_ms(first.position) if first is not None else 0
        return (now_ms - since_ms) / 1000 if since_ms else 0.0

    def _oldest_s(self, queue: Queue, now_ms: int) -> float:
        """For how long its oldest message has waited, as far as that is known."""
        oldest = queue.longest_waiting
        since_ms = self._resource.ages.since_ms(oldest.number) if oldest is not None else 0
        return (now_ms - since_ms) / 1000 if since_ms else 0.0


_BY_NAME: Final = {condition.name: condition for condition in MEASURED}
