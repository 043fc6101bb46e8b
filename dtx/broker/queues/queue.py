"""Queues: first in, first out by the order of commits; acquired and returned messages keep their place.

A message is an `Entry`. It is PENDING while the transaction that posts it is open, then AVAILABLE (DELAYED before,
if it says so), HELD by a delivery or a transaction, and GONE. What an outcome does to a held message is planned
first, which writes it into a batch of the store, and carried out when the batch is durable (or at once, where
nothing depends on that).
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Final

from dtx.broker.queues.entry import ORIGIN, Effect, Entry, Origin, State
from dtx.broker.queues.groups import Groups
from dtx.broker.queues.readers import Readers
from dtx.broker.rates import Meter
from dtx.broker.settings import WhenFull
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from dtx.broker.queues.entry import Browser, Consumer, Memory
    from dtx.broker.queues.message_times import Schedule
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.settings import QueueSettings
    from dtx.store.contract import Batch, StoredMessage


LOOKED_AT: Final = 1000
"""How many messages are looked at to find the one that waits for the longest time."""
FEW: Final = 1000
"""Messages that are gone and may wait until somebody would take them, before they are sorted out."""
LOST_TIMES: Final = 2
"""A connection that is lost, or a consumer that says why it has failed, makes a dead letter only at so many times the
limit of deliveries: a consumer that gets the message before can say why it is one, and has a limit of its own; and a
process that is killed has mostly nothing to do with the message."""


class Queue:
    """A queue. `lasting` ones are stored; the others live in memory, no longer than their connection.

    `positions` gives the next position, across all queues, `now_ms` the time; `dead_letter` gives the queue for dead
    messages, as long as that has room, and `has_dead_letter` says whether there is to be one; `on_available` is told
    when there is something for consumers, `on_overfull` when there is more than there may be; `schedule` has what is
    delayed; `memory` counts the octets of a queue that lives in memory.
    """

    def __init__(
        self,
        number: int,
        name: str,
        settings: QueueSettings,
        *,
        lasting: bool,
        positions: Callable[[], int],
        now_ms: Callable[[], int],
        dead_letter: Callable[[Queue], Queue | None],
        has_dead_letter: Callable[[Queue], bool],
        on_available: Callable[[Queue], None],
        on_overfull: Callable[[Queue], None],
        schedule: Schedule,
        memory: Memory | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.lasting = lasting
        self._memory = memory
        self.deleted = False
        self.closing = False
        """Whether it is just being deleted: it takes and gives no messages."""
        self.paused = ""
        """Who has paused it: no consumer gets messages of it; "" while nobody has."""
        self.configured = 0
        """The number of the store's record of settings that management has changed; 0: there is none."""
        self.origins: dict[int, Origin] = {}
        """Of its messages that are dead letters, by their numbers."""
        self.pending = 0
        self.pending_octets = 0
        """Messages that open transactions and prepared branches post."""
        self.held = 0
        """Messages that deliveries or transactions hold."""
        self.delayed = 0
        """Messages whose time has not come."""
        self.kept_octets = 0
        """Of those that are held or delayed."""
        self.attached = 0
        """Links that consume from it."""
        self.octets = 0
        """Of the messages in it."""
        self.came = 0
        self.went = 0
        """Messages that came into it, and that left it, since it is there or was restored."""
        self.dead_lettered = 0
        """Of those that left it: messages that became dead letters."""
        self.meter = Meter()
        self._positions = positions
        self._now_ms = now_ms
        self._dead_letter = dead_letter
        self._has_dead_letter = has_dead_letter
        self._on_available = on_available
        self._on_overfull = on_overfull
        self._schedule = schedule
        self._entries: dict[int, Entry] = {}
        self.readers = Readers(self._entries)
        self._ready: deque[Entry] = deque()
        self._returned: list[tuple[int, Entry]] = []
        self._expiring: list[tuple[int, int, Entry]] = []
        """Every message that can expire, and whose time has not come by `_expired_ms`."""
        self._expired_ms = 0
        self._willing: deque[Consumer] = deque()
        self._marked = False
        self._groups = Groups(self._line_up, self._freed) if settings.ordered_groups else None

    # -- what it holds
    @property
    def depth(self) -> int:
        """Messages in the queue, held ones included."""
        return len(self._entries)

    @property
    def available(self) -> int:
        """Messages that nobody holds, and whose time has come."""
        return len(self._entries) - self.held - self.delayed

    @property
    def consumers(self) -> int:
        """Consumers that could take a message now."""
        return len(self._willing)

    @property
    def quiet(self) -> bool:
        """Whether consumers get nothing now."""
        return self.closing or bool(self.paused)

    @property
    def oldest(self) -> Entry | None:
        """The message that is in it for the longest time."""
        return next(iter(self._entries.values()), None)

    @property
    def longest_waiting(self) -> Entry | None:
        """The message whose time has come and that is in it for the longest time, held ones included. If many in front
        are delayed, the next one that is available."""
        if not self.delayed:
            return self.oldest
        if self.delayed == len(self._entries):
            return None
        for entry in islice(self._entries.values(), LOOKED_AT):
            if entry.state is not State.DELAYED:
                return entry
        returned = [entry for _, entry in islice(self._returned, LOOKED_AT) if entry.state is State.AVAILABLE]
        return min(self.upcoming(LOOKED_AT) + returned, key=lambda entry: entry.position, default=None)

    @property
    def full(self) -> bool:
        """Whether no more may be posted."""
        return bool(self.refusal(0))

    def refusal(self, octets: int) -> str:
        """Why no message of so many octets may be posted, "" where it may. What transactions and prepared branches post
        counts from the moment at which it is posted, so that no commit has to be refused for lack of room. Where the
        oldest messages make room for others, those that can't do so count."""
        memory = self._memory
        if memory is not None and memory.octets >= memory.limit:
            return f"the queue {self.name} is full: {memory.octets} octets in memory"
        settings = self.settings
        depth, size, octets = len(self._entries), self.octets, octets + self.pending_octets
        if depth + self.pending < settings.max_depth and (
            not settings.max_octets or size + octets <= settings.max_octets
        ):
            return ""
        if settings.when_full == WhenFull.DEAD_LETTER and self._dead_letter(self) is not None:
            depth, size = self.held + self.delayed, self.kept_octets
        if depth + self.pending >= settings.max_depth:
            return f"the queue {self.name} is full: {depth} messages, and {self.pending} to come"
        if settings.max_octets and size + octets > settings.max_octets:
            return f"the queue {self.name} is full: {size} octets, and {octets} to come"
        return ""

    @property
    def overfull(self) -> bool:
        """Whether its oldest messages are to make room."""
        settings = self.settings
        return settings.when_full == WhenFull.DEAD_LETTER and (
            len(self._entries) > settings.max_depth or 0 < settings.max_octets < self.octets
        )

    def expect(self, entry: Entry) -> None:
        """A message is on its way into it, which has room from now on."""
        self.pending += 1
        self.pending_octets += entry.size

    def expect_no_more(self, entry: Entry) -> None:
        """Such a message is there, or will not come."""
        self.pending -= 1
        self.pending_octets -= entry.size

    def page(self, position: int, count: int) -> list[Entry]:
        """The first `count` messages behind `position`, in their order."""
        entries = self._entries.values()
        first = self.oldest
        if first is None or not self.reaches_beyond(position):
            return []
        if position >= (first.position + next(reversed(entries)).position) // 2:  # nearer to the end
            return self.entries_from(position)[:count]
        return list(islice(dropwhile(lambda entry: entry.position <= position, entries), count))

    def find(self, numbers: Collection[int]) -> list[Entry]:
        """The messages with these numbers, in their order."""
        return [entry for entry in self._entries.values() if entry.number in numbers]

    def unpause(self) -> None:
        """Consumers get messages again."""
        self.paused = ""
        self.look()

    def entries_from(self, position: int) -> list[Entry]:
        """The messages behind `position`, in their order."""
        found = []
        for entry in reversed(self._entries.values()):
            if entry.position <= position:
                break
            found.append(entry)
        found.reverse()
        return found

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    # -- in
    def append(self, entry: Entry) -> None:
        """A message becomes available at its position, which is behind all others; a delayed one when it is due."""
        self._entries[entry.position] = entry
        self.readers.came(entry)
        if entry.due_ms and self._is_early(entry, self._now_ms()):
            self._delay(entry)
        else:
            entry.state = State.AVAILABLE
            if entry.group and self._groups is not None:
                self._groups.add(entry)
            else:
                self._ready.append(entry)
        self.came += 1
        self.octets += entry.size
        if self._memory is not None:
            self._memory.octets += entry.size
        if entry.expires_ms:
            heappush(self._expiring, (entry.expires_ms, entry.position, entry))
        if self.overfull:
            self._on_overfull(self)
        if not self._marked:
            self._mark()

    def take_place(self, entry: Entry) -> None:
        """A message gets its position, behind all others, because it is posted or committed now. The time of a delay
        begins."""
        entry.position = self._positions()
        if entry.due_ms < 0:
            entry.due_ms = self._now_ms() - entry.due_ms

    def _is_early(self, entry: Entry, now_ms: int) -> bool:
        """Whether a message is to wait; where it is not, its time has come for good, whatever the clock says later."""
        if entry.due_ms > now_ms:
            return True
        entry.due_ms = 0
        return False

    def _delay(self, entry: Entry) -> None:
        entry.state = State.DELAYED
        self.delayed += 1
        self.kept_octets += entry.size
        self._schedule.add(entry)

    def come_due(self, entry: Entry) -> None:
        """The time of a delayed message has come."""
        entry.state, entry.due_ms = State.AVAILABLE, 0
        self.delayed -= 1
        self.kept_octets -= entry.size
        if entry.group and self._groups is not None:
            self._groups.come_due(entry)
        else:
            heappush(self._returned, (entry.position, entry))
        for browser in self.readers:
            browser.came_due(entry)
        if not self._marked:
            self._mark()

    def _line_up(self, entry: Entry) -> None:
        """The message of a group that is in front may be taken by everybody."""
        ready = self._ready
        if ready and ready[-1].position > entry.position:
            heappush(self._returned, (entry.position, entry))
        else:
            ready.append(entry)
        if not self._marked:
            self._mark()

    def _freed(self, group: str) -> None:
        for browser in self.readers:
            browser.group_freed(group)
        if not self._marked:
            self._mark()

    def restore(self, messages: Iterable[StoredMessage], locked: Collection[int]) -> dict[int, Entry]:
        """Messages from the store, in the order of positions. Those that prepared branches have `locked` are held:
        they are given back, by their numbers."""
        held: dict[int, Entry] = {}
        entries, ready, groups = self._entries, self._ready, self._groups
        now_ms, octets = self._now_ms(), 0
        names: dict[str, str] = {}
        """The names of groups, each of them once in memory."""
        for number, _, position, size, count, expires_ms, due_ms, name in messages:
            group = names.setdefault(name, name) if name else ""
            entry = entries[position] = Entry(self, number, size, expires_ms, None, position, count, due_ms, group)
            octets += size
            if number in locked:
                entry.state = State.HELD
                entry.due_ms = 0
                held[number] = entry
                self.kept_octets += size
                if group and groups is not None:
                    groups.restore(entry)
            elif due_ms and self._is_early(entry, now_ms):
                self._delay(entry)
            else:
                entry.state = State.AVAILABLE
                if group and groups is not None:
                    groups.add(entry)
                else:
                    ready.append(entry)
            if expires_ms:
                heappush(self._expiring, (expires_ms, position, entry))
        self.held = len(held)
        self.octets += octets
        return held

    def next_position(self) -> int:
        """A position behind all others."""
        return self._positions()

    # -- out
    def take(self, now_ms: int, consumer: Consumer) -> Entry | None:
        """The first available message that `consumer` may have and has not given back as undeliverable, HELD from now
        on; None when there is none. Expired ones are left out."""
        without = consumer.undeliverable
        passed: list[Entry] = []
        entry = self._next(now_ms)
        while entry is not None and entry in without:
            passed.append(entry)
            entry = self._next(now_ms)
        for one in passed:
            heappush(self._returned, (one.position, one))
        if self._groups is not None and self._groups.reserved:
            own = self._next_own(now_ms, consumer, self._groups)
            if own is not None and (entry is None or own.position < entry.position):
                if entry is not None:
                    heappush(self._returned, (entry.position, entry))
                entry = own
        if entry is not None:
            self.hold(entry, consumer)
        return entry

    def _next_own(self, now_ms: int, consumer: Consumer, groups: Groups) -> Entry | None:
        """The first message that is for `consumer` only."""
        entry = groups.next_own(consumer)
        while entry is not None and entry.expires_ms and entry.expires_ms <= now_ms:
            groups.pass_over(entry)
            entry = groups.next_own(consumer)
        return None if entry in consumer.undeliverable else entry

    def _next(self, now_ms: int) -> Entry | None:
        """The first message that everybody may take, which stands nowhere in the order any more."""
        ready, returned = self._ready, self._returned
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].position):
                entry = heappop(returned)[1]
            else:
                entry = ready.popleft()
            if entry.state is not State.AVAILABLE or entry.queue is not self:  # or it is a dead letter by now
                continue
            groups = self._groups
            if entry.group and groups is not None and not groups.offers(entry):
                continue
            if entry.expires_ms and entry.expires_ms <= now_ms:
                if entry.group and groups is not None:
                    groups.pass_over(entry)
                continue
            return entry
        return None

    def hold(self, entry: Entry, consumer: Consumer | None = None) -> None:
        """A message is HELD from now on by `consumer`, or by somebody who takes no more; also one that is delayed, or
        not the first one."""
        if entry.state is State.DELAYED:
            self.delayed -= 1
            self._schedule.left()
        else:
            self.kept_octets += entry.size
        entry.state = State.HELD
        self.held += 1
        if entry.group and self._groups is not None and not entry.due_ms:
            self._groups.taken(entry, consumer)

    def allows(self, entry: Entry, consumer: Consumer) -> bool:
        """Whether `consumer` may take this available message out of turn."""
        return not entry.group or self._groups is None or self._groups.allows(entry, consumer)

    def prepared(self, entry: Entry) -> None:
        """A prepared branch holds a message of it."""
        if entry.group and self._groups is not None:
            self._groups.prepared(entry)

    def decided(self, entry: Entry) -> None:
        """The branch is decided, and the message is held by its consumer still."""
        if entry.group and self._groups is not None:
            self._groups.decided(entry)

    def reaches_beyond(self, position: int) -> bool:
        """Whether there are messages behind `position`."""
        return next(reversed(self._entries), 0) > position

    def upcoming(self, count: int) -> list[Entry]:
        """Messages that will be taken soon: the first `count` that wait, as far as they are available."""
        return [entry for entry in islice(self._ready, count) if entry.state is State.AVAILABLE]

    def plan(self, entry: Entry, outcome: Outcome, batch: Batch) -> Effect:
        """The effect of `outcome` on a held message of this queue, written into `batch`."""
        if outcome.code == ACCEPTED:
            return self._plan_to_go(entry, batch)
        count, dead, reason = entry.count, outcome.code == REJECTED, "rejected"
        if outcome.code == MODIFIED:
            count += outcome.failed
            limit = self.settings.max_deliveries * (LOST_TIMES if outcome.lost or outcome.reason else 1)
            dead = outcome.undeliverable or (limit > 0 and count >= limit)
            reason = "undeliverable" if outcome.undeliverable else f"delivery-count reached {count}"
        if dead:
            target = self._dead_letter(self)
            if target is not None:
                return self._plan_to_die(entry, target, reason, count, batch)
            if outcome.code == REJECTED:
                return self._plan_to_go(entry, batch)
        if count != entry.count and self.lasting:
            batch.place(entry.number, self.number, entry.position, count, entry.expires_ms)
        return Effect(entry, self, entry.position, count)

    def _plan_to_die(self, entry: Entry, target: Queue, reason: str, count: int, batch: Batch) -> Effect:
        """A message goes to the dead letters, where it lives as long as their settings say."""
        position = target.next_position()
        ttl_ms = target.settings.ttl_ms
        expires_ms = self._now_ms() + ttl_ms if ttl_ms else 0
        batch.place(entry.number, target.number, position, count, expires_ms)
        origin = Origin(self.name, reason)
        batch.record(entry.number, ORIGIN, origin.encode())
        return Effect(entry, target, position, count, origin, expires_ms)

    def _plan_to_go(self, entry: Entry, batch: Batch) -> Effect:
        if self.lasting:
            batch.dequeue(entry.number, entry.size)
            if self.origins and entry.number in self.origins:
                batch.drop_record(entry.number)
        return Effect(entry, None, 0, 0)

    def carry_out(self, effect: Effect) -> None:
        """Does what was planned for a held message of this queue."""
        entry, target, position, count, origin, expires_ms, _ = effect
        if target is self:
            entry.count = count
            self.give_back(entry)
            return
        self._entries.pop(entry.position, None)
        self.held -= 1
        self.kept_octets -= entry.size
        self._leaves(entry)
        if entry.group and self._groups is not None and not entry.due_ms:
            self._groups.gone(entry)
        if target is None or target.deleted:
            entry.state = State.GONE
            entry.payload = None
            return
        if origin is not None:
            target.origins[entry.number] = origin
            self.dead_lettered += 1
        entry.apart = False
        entry.queue, entry.position, entry.count, entry.expires_ms = target, position, count, expires_ms
        target.append(entry)

    def move(self, effect: Effect) -> None:
        """Does what was planned for a message that was held out of turn. Another object stands in the target: this one
        may still stand in an order of this queue."""
        entry, target, position, count, origin, expires_ms, due_ms = effect
        self.carry_out(Effect(entry, None, 0, 0))
        if target is None:
            return
        target.expect_no_more(entry)
        if origin is not None:
            target.origins[entry.number] = origin
            self.dead_lettered += 1
        size, number = entry.size, entry.number
        target.append(Entry(target, number, size, expires_ms, None, position, count, due_ms, entry.group))

    def give_back(self, entry: Entry) -> None:
        """A held message is available again, at its place."""
        if self.deleted:
            entry.state = State.GONE
            return
        self.held -= 1
        self.kept_octets -= entry.size
        if entry.expires_ms and entry.expires_ms <= self._expired_ms:
            heappush(self._expiring, (entry.expires_ms, entry.position, entry))
        if entry.due_ms and self._is_early(entry, self._now_ms()):
            self._delay(entry)
            return
        entry.state = State.AVAILABLE
        if entry.group and self._groups is not None:
            self._groups.given_back(entry)
        else:
            heappush(self._returned, (entry.position, entry))
        for browser in self.readers:
            browser.returned(entry)
        if self.overfull:
            self._on_overfull(self)
        if not self._marked:
            self._mark()

    def _leaves(self, entry: Entry) -> None:
        """A message is in it no more."""
        self.went += 1
        self.octets -= entry.size
        if self.origins:
            self.origins.pop(entry.number, None)
        if self._memory is not None:
            self._memory.octets -= entry.size

    # -- by itself
    def has_expired(self, now_ms: int) -> bool:
        """Whether there may be messages whose time has passed."""
        return bool(self._expiring) and self._expiring[0][0] <= now_ms

    def plan_expired(self, now_ms: int, most: int, batch: Batch) -> list[Effect]:
        """What becomes of at most so many messages whose time has passed, and which nobody holds, written into `batch`;
        they are held until that is carried out."""
        effects: list[Effect] = []
        self._expired_ms = max(now_ms, self._expired_ms)
        while len(effects) < most and self.has_expired(now_ms):
            entry = self._expiring[0][2]
            if entry.queue is self and (entry.state is State.AVAILABLE or entry.state is State.DELAYED):
                effect = self._plan_to_leave(entry, "expired", batch)
                if effect is None:
                    break
                effects.append(effect)
            heappop(self._expiring)
        return effects

    def plan_overfull(self, now_ms: int, most: int, batch: Batch) -> list[Effect]:
        """The same for the oldest messages, where there are more than there may be."""
        effects: list[Effect] = []
        if not self.overfull or most <= 0:
            return effects
        settings = self.settings
        messages = len(self._entries) - settings.max_depth
        octets = self.octets - settings.max_octets if settings.max_octets else 0
        oldest: list[Entry] = []
        for entry in self._entries.values():
            if (messages <= 0 and octets <= 0) or len(oldest) >= most:
                break
            if entry.state is State.AVAILABLE and not 0 < entry.expires_ms <= now_ms:
                oldest.append(entry)
                messages -= 1
                octets -= entry.size
        for entry in oldest:
            if self._dead_letter(self) is None:
                break
            effect = self._plan_to_leave(entry, "queue full", batch)
            if effect is None:
                break
            effects.append(effect)
        return effects

    def _plan_to_leave(self, entry: Entry, reason: str, batch: Batch) -> Effect | None:
        """A message that nobody holds leaves for the dead letters, where there are to be any; None: they are full, and
        it stays."""
        target = self._dead_letter(self)
        if target is None and self._has_dead_letter(self):
            return None
        if target is not None and target.refusal(entry.size):
            return None
        self.hold(entry)
        if target is None:
            return self._plan_to_go(entry, batch)
        target.expect(entry)
        return self._plan_to_die(entry, target, reason, entry.count, batch)

    def tidy(self) -> None:
        """Forgets messages that went while they stood in the order."""
        if len(self._ready) + len(self._returned) > 2 * len(self._entries) + FEW:
            self._ready = deque(entry for entry in self._ready if entry.state is State.AVAILABLE)
            self._returned = [item for item in self._returned if item[1].state is State.AVAILABLE]
            heapify(self._returned)

    # -- consumers
    def wake(self, consumer: Consumer) -> None:
        """`consumer` may take messages again."""
        if not consumer.willing:
            consumer.willing = True
            self._willing.append(consumer)
        if not self._marked:
            self._mark()

    def look(self) -> None:
        """Those who read the queue in its order may go on."""
        if not self._marked:
            self._mark()

    def look_for(self, browser: Browser) -> None:
        """One of those may go on."""
        if self.readers.look_again(browser):
            self._on_available(self)

    def forget(self, consumer: Consumer) -> None:
        """`consumer` takes no more."""
        if consumer.willing:
            consumer.willing = False
            self._willing.remove(consumer)

    def _mark(self) -> None:
        if self._willing or self.readers:
            self._marked = True
            self._on_available(self)

    def dispatch(self, now_ms: int) -> None:
        """Hands available messages to willing consumers, in turn."""
        news, self._marked = self._marked, False
        self.readers.look(news=news)
        if self.quiet:
            return
        willing = self._willing
        passed = 0  # consumers in a row for whom there is nothing but what is undeliverable there
        while passed < len(willing):
            consumer = willing[0]
            if not consumer.wants():
                consumer.willing = False
                willing.popleft()
                continue
            entry = self.take(now_ms, consumer)
            if entry is None:
                if not consumer.undeliverable and not (self._groups is not None and self._groups.reserved):
                    return
                willing.rotate(-1)
                passed += 1
                continue
            passed = 0
            if len(willing) > 1:
                willing.rotate(-1)
            consumer.deliver(entry)

    def delete(self) -> None:
        """The queue goes, with what stands in it. Who holds messages of it finds them GONE."""
        self.deleted = True
        if self._memory is not None:
            self._memory.octets -= self.octets
        self.octets = 0
        for entry in self._entries.values():
            entry.state = State.GONE
            entry.payload = None
        self._entries.clear()
        self.held = 0
        self.readers.clear()
        self._ready.clear()
        self._returned.clear()
        self._expiring.clear()
        self._schedule.left(self.delayed)
        self.delayed = self.kept_octets = 0
        if self._groups is not None:
            self._groups.clear()
        self.origins.clear()
        for consumer in tuple(self._willing):
            self.forget(consumer)
