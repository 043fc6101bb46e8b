"""Queues: first in, first out by the order of commits; acquired and returned messages keep their place.

A message is an `Entry`. It is PENDING while the transaction that posts it is open, then AVAILABLE (DELAYED before,
if it says so), HELD by a delivery or a transaction, and GONE. What an outcome does to a held message is planned
first, which writes it into a batch of the store, and carried out when the batch is durable (or at once, where
nothing depends on that).
"""

from __future__ import annotations

from collections import deque
from itertools import dropwhile, islice, takewhile
from typing import TYPE_CHECKING, Final, Protocol

from dtx.broker.queues.counters import Counters, UnstoredMemory
from dtx.broker.queues.dead_letters import ORIGIN, DeadLetters, origin_of
from dtx.broker.queues.entry import Entry, MessageMove, State
from dtx.broker.queues.message_times import Expirations
from dtx.broker.queues.order import AvailableMessages
from dtx.broker.queues.readers import Readers
from dtx.broker.settings import WhenFull
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED
from dtx.store.contract import MOST_DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from dtx.broker.queues.dead_letters import Origin
    from dtx.broker.queues.entry import Browser, Consumer
    from dtx.broker.queues.message_times import ExpirySchedule, Schedule
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.subscription import Subscription
    from dtx.broker.settings import QueueSettings
    from dtx.store.contract import Batch, StoredMessage


LOOKED_AT: Final = 1000
"""How many messages are looked at to find the one that waits for the longest time."""


class QueueOwner(Protocol):
    """What queues ask of the resource that has them all."""

    @property
    def schedule(self) -> Schedule:
        """The delayed messages of all queues."""
        ...

    @property
    def expiries(self) -> ExpirySchedule:
        """When the queues have messages that expire."""
        ...

    @property
    def now_ms(self) -> int:
        """The time."""
        ...

    def number(self) -> int:
        """A position behind all others, across all queues."""
        ...

    def dead_letter_queue(self, queue: Queue) -> Queue | None:
        """The queue for dead messages of `queue`, as long as it has room."""
        ...

    def has_dead_letters(self, queue: Queue) -> bool:
        """Whether there is to be one."""
        ...

    def failure_of(self, entry: Entry) -> tuple[str, str]:
        """What a message has failed with the last time, and where, as its consumer has said; "" if that is not
        known."""
        ...

    def is_available(self, queue: Queue) -> None:
        """There is something for consumers of `queue`."""
        ...

    def has_to_remove(self, queue: Queue) -> None:
        """`queue` has more than it may have, or a message whose time has passed."""
        ...


class Queue:
    """A queue. `lasting` ones are stored; the others live in memory, no longer than their connection: `memory` counts
    their octets."""

    def __init__(
        self,
        number: int,
        name: str,
        settings: QueueSettings,
        owner: QueueOwner,
        *,
        lasting: bool,
        memory: UnstoredMemory | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.lasting = lasting
        self.deleted = False
        self.closing = False
        """Whether it is just being deleted: it takes and gives no messages."""
        self.paused = ""
        """The user that has paused it: no consumer gets messages of it; "" while it is not paused."""
        self.configured = 0
        """The number of the store's record of settings that management has changed; 0: there is none."""

        self.for_dead_letters = False
        """Whether it is a queue of dead letters by the settings: each of its messages is one."""
        self.subscription: Subscription | None = None
        """What it is a subscription of."""
        self.kept = ""
        """What the store keeps with its name."""
        self.dead_letters = DeadLetters(owner.number)
        self.unreadable: dict[int, Entry] = {}
        """Messages of it whose payload the store can't read, by their numbers: held, and given to no one."""
        self.attached = 0
        """Links that consume from it."""
        self.counters = Counters(memory)
        self._owner = owner
        self._entries: dict[int, Entry] = {}
        self.readers = Readers(self._entries)
        self._order = AvailableMessages(self.look, self._freed, ordered_groups=settings.ordered_groups)
        self.expirations = Expirations()
        self._willing: deque[Consumer] = deque()
        self._marked = False

    # -- what it holds
    @property
    def depth(self) -> int:
        """Messages in the queue, held ones included."""
        return len(self._entries)

    @property
    def available(self) -> int:
        """Messages that are not held, and whose time has come."""
        counters = self.counters
        return len(self._entries) - counters.held - counters.delayed

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

    def count_from(self, position: int, most: int) -> int:
        """How many messages have this position or a later one, as far as that are no more than `most`."""
        newest = takewhile(lambda entry: entry.position >= position, reversed(self._entries.values()))
        return sum(1 for _ in islice(newest, most))

    @property
    def longest_waiting(self) -> Entry | None:
        """The message whose time has come and that is in it for the longest time, held ones included. If many in front
        are delayed, the next one that is available."""
        if not self.counters.delayed:
            return self.oldest
        if self.counters.delayed == len(self._entries):
            return None
        for entry in islice(self._entries.values(), LOOKED_AT):
            if entry.state is not State.DELAYED:
                return entry
        returned = [entry for _, entry in islice(self._order.returned, LOOKED_AT) if entry.state is State.AVAILABLE]
        return min(self.upcoming(LOOKED_AT) + returned, key=lambda entry: entry.position, default=None)

    @property
    def full(self) -> bool:
        """Whether no more may be posted."""
        return bool(self.refusal(0))

    @property
    def largest(self) -> int:
        """The octets of the largest message for which there could be room; 0: any."""
        return self.settings.max_octets

    def refusal(self, octets: int) -> str:
        """Why no message of so many octets may be posted, "" where it may. What transactions and prepared branches post
        counts from the moment at which it is posted, so that no commit has to be refused for lack of room. Where the
        oldest messages make room for others, those that can't do so count."""
        counters = self.counters
        memory = counters.memory
        if memory is not None and memory.octets >= memory.limit:
            return f"the queue {self.name} is full: {memory.octets} octets in memory"
        settings = self.settings
        depth, size, octets = len(self._entries), counters.octets, octets + counters.pending_octets
        if depth + counters.pending < settings.max_depth and (
            not settings.max_octets or size + octets <= settings.max_octets
        ):
            return ""

        if settings.when_full == WhenFull.DEAD_LETTER and self._owner.dead_letter_queue(self) is not None:
            depth, size = counters.held + counters.delayed, counters.kept_octets
        if depth + counters.pending >= settings.max_depth:
            return f"the queue {self.name} is full: {depth} messages, and {counters.pending} to come"
        if settings.max_octets and size + octets > settings.max_octets:
            return f"the queue {self.name} is full: {size} octets, and {octets} to come"
        return ""

    @property
    def overfull(self) -> bool:
        """Whether its oldest messages are to make room."""
        settings = self.settings
        return settings.when_full == WhenFull.DEAD_LETTER and (
            len(self._entries) > settings.max_depth or 0 < settings.max_octets < self.counters.octets
        )

    def expect(self, entry: Entry) -> None:
        """A message is on its way into it, which has room from now on."""
        counters = self.counters
        counters.pending += 1
        counters.pending_octets += entry.size

    def expect_no_more(self, entry: Entry) -> None:
        """Such a message is there, or will not come."""
        counters = self.counters
        counters.pending -= 1
        counters.pending_octets -= entry.size

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
        if entry.due_ms and self._is_early(entry, self._owner.now_ms):
            self._delay(entry)
        else:
            entry.state = State.AVAILABLE
            if entry.group and self._order.groups is not None:
                self._order.groups.add(entry)
            else:
                self._order.ready.append(entry)

        if self.is_dead_letter(entry):
            self.dead_letters.add(entry)
        counters = self.counters
        counters.came += 1
        counters.octets += entry.size
        if counters.memory is not None:
            counters.memory.octets += entry.size
        if entry.expires_ms:
            self.expirations.add(entry)
            self._owner.expiries.note(self, entry.expires_ms)
        if self.overfull:
            self._owner.has_to_remove(self)
        if not self._marked:
            self._mark()

    def is_dead_letter(self, entry: Entry) -> bool:
        """Whether a message of it is one. Where it came from, it is a message as before, if it is moved there."""
        return self.for_dead_letters or (entry.origin is not None and entry.origin.queue != self.name)

    def take_place(self, entry: Entry) -> None:
        """A message gets its position, behind all others, because it is posted or committed now. The time of a delay
        begins."""
        entry.position = self._owner.number()
        if entry.due_ms < 0:
            entry.due_ms = self._owner.now_ms - entry.due_ms

    def _is_early(self, entry: Entry, now_ms: int) -> bool:
        """Whether a message is to wait; where it is not, its time has come for good, whatever the clock says later."""
        if entry.due_ms > now_ms:
            return True
        entry.due_ms = 0
        return False

    def _delay(self, entry: Entry) -> None:
        entry.state = State.DELAYED
        self.counters.delayed += 1
        self.counters.kept_octets += entry.size
        self._owner.schedule.add(entry)

    def come_due(self, entry: Entry) -> None:
        """The time of a delayed message has come."""
        entry.state, entry.due_ms = State.AVAILABLE, 0
        self.counters.delayed -= 1
        self.counters.kept_octets -= entry.size
        if entry.group and self._order.groups is not None:
            self._order.groups.come_due(entry)
        else:
            self._order.put_back(entry)
        for browser in self.readers:
            browser.came_due(entry)
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
        entries, ready, groups = self._entries, self._order.ready, self._order.groups
        now_ms, octets = self._owner.now_ms, 0
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
                self.counters.kept_octets += size
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
                self.expirations.add(entry)

        self.counters.held = len(held)
        self.counters.octets += octets
        self.note_expiry(0)
        return held

    def restore_dead_letters(self, origins: dict[int, Origin]) -> None:
        """Takes the origins of its messages out of those of the store, by the numbers of messages."""
        for entry in self._entries.values():
            entry.origin = origins.pop(entry.number, None)
            if self.is_dead_letter(entry):
                self.dead_letters.add(entry)
        self.dead_letters.restored()

    def next_position(self) -> int:
        """A position behind all others."""
        return self._owner.number()

    # -- out
    def hold(self, entry: Entry, consumer: Consumer | None = None) -> None:
        """A message is HELD from now on by `consumer`, or by somebody who takes no more; also one that is delayed, or
        not the first one."""
        counters = self.counters
        if entry.state is State.DELAYED:
            counters.delayed -= 1
            self._owner.schedule.left()
        else:
            counters.kept_octets += entry.size
        entry.state = State.HELD
        counters.held += 1
        if entry.group and self._order.groups is not None and not entry.due_ms:
            self._order.groups.taken(entry, consumer)

    def allows(self, entry: Entry, consumer: Consumer) -> bool:
        """Whether `consumer` may take this available message out of turn."""
        return not entry.group or self._order.groups is None or self._order.groups.allows(entry, consumer)

    def set_aside(self, entry: Entry) -> None:
        """A held message can't be read. No one gets it any more, and none of its group, which is behind it."""
        self.unreadable[entry.number] = entry
        self.prepared(entry)

    def prepared(self, entry: Entry) -> None:
        """A prepared branch holds a message of it."""
        if entry.group and self._order.groups is not None:
            self._order.groups.prepared(entry)

    def decided(self, entry: Entry) -> None:
        """The branch is decided, and the message is held by its consumer still."""
        if entry.group and self._order.groups is not None:
            self._order.groups.decided(entry)

    @property
    def last_position(self) -> int:
        """The position of the message that came last; 0: there is none. What comes later is behind it."""
        return next(reversed(self._entries), 0)

    def reaches_beyond(self, position: int) -> bool:
        """Whether there are messages behind `position`."""
        return self.last_position > position

    def upcoming(self, count: int) -> list[Entry]:
        """Messages that will be taken soon: the first `count` that wait, as far as they are available."""
        return self._order.upcoming(count)

    def plan(self, entry: Entry, outcome: Outcome, batch: Batch) -> MessageMove:
        """The effect of `outcome` on a held message of this queue, written into `batch`."""
        if outcome.code == ACCEPTED:
            return self._plan_to_go(entry, batch)
        count, dead, reason = entry.count, outcome.code == REJECTED, "rejected"
        if outcome.code == MODIFIED:
            count = min(count + outcome.failed, MOST_DELIVERIES)
            dead = outcome.undeliverable or outcome.exhausts(count, self.settings.max_deliveries)
            reason = "undeliverable" if outcome.undeliverable else f"delivery-count reached {count}"

        if dead:
            target = self._owner.dead_letter_queue(self)
            if target is not None:
                return self._plan_to_die(entry, target, reason, count, batch, outcome)
            if outcome.code == REJECTED:
                return self._plan_to_go(entry, batch)
        if count != entry.count and self.lasting:
            batch.place(entry.number, self.number, entry.position, count, entry.expires_ms)
        return MessageMove(entry, self, entry.position, count)

    def _plan_to_die(
        self, entry: Entry, target: Queue, reason: str, count: int, batch: Batch, outcome: Outcome | None = None
    ) -> MessageMove:
        """A message goes to the dead letters, where it lives as long as their settings say. With `outcome` its consumer
        may say what it has failed with now."""
        position = target.next_position()
        ttl_ms = target.settings.ttl_ms
        expires_ms = self._owner.now_ms + ttl_ms if ttl_ms else 0
        batch.place(entry.number, target.number, position, count, expires_ms)
        error, place = self._owner.failure_of(entry)
        if outcome is not None and (outcome.error or outcome.reason):
            error, place = outcome.error or outcome.reason, outcome.place
        origin = origin_of(self.name, reason, error, place)
        batch.record(entry.number, ORIGIN, origin.encode())
        return MessageMove(entry, target, position, count, origin, expires_ms)

    def _plan_to_go(self, entry: Entry, batch: Batch) -> MessageMove:
        if self.lasting:
            if entry.source == entry.number:  # as `write_removal`, which costs a call for each message
                batch.dequeue(entry.number, entry.size)
            else:
                batch.dequeue_copy(entry.number, entry.source)
            if entry.has_record:
                batch.drop_record(entry.number)
        return MessageMove(entry, None, 0, 0)

    def carry_out(self, effect: MessageMove) -> None:
        """Does what was planned for a held message of this queue."""
        entry, target, position, count, origin, expires_ms, _ = effect
        if target is self:
            entry.count = count
            self.give_back(entry)
            return
        counters = self.counters
        self._entries.pop(entry.position, None)
        counters.held -= 1
        counters.kept_octets -= entry.size
        self._leaves(entry)
        if entry.group and self._order.groups is not None and not entry.due_ms:
            self._order.groups.gone(entry)
        if target is None or target.deleted:
            entry.state = State.GONE
            entry.payload = None
            return
        if origin is not None:
            counters.dead_lettered += 1

        entry.origin = origin
        entry.apart = False
        entry.queue, entry.position, entry.count, entry.expires_ms = target, position, count, expires_ms
        target.append(entry)

    def move(self, effect: MessageMove) -> None:
        """Does what was planned for a message that was held out of turn. Another object stands in the target: this one
        may still stand in an order of this queue."""
        entry, target, position, count, origin, expires_ms, due_ms = effect
        self.carry_out(MessageMove(entry, None, 0, 0))
        if target is None:
            return
        target.expect_no_more(entry)
        size, number = entry.size, entry.number
        moved = Entry(target, number, size, expires_ms, None, position, count, due_ms, entry.group)
        moved.source = entry.source
        moved.origin = origin
        if origin is not None and origin is not entry.origin:
            self.counters.dead_lettered += 1
        target.append(moved)

    def give_back(self, entry: Entry) -> None:
        """A held message is available again, at its place."""
        if self.deleted:
            entry.state = State.GONE
            return
        counters = self.counters
        counters.held -= 1
        counters.kept_octets -= entry.size
        if entry.expires_ms:
            self.expirations.add_again(entry)
            if entry.expires_ms > self._owner.now_ms:
                self._owner.expiries.note(self, entry.expires_ms)
            else:
                self._owner.has_to_remove(self)
        if entry.due_ms and self._is_early(entry, self._owner.now_ms):
            self._delay(entry)
            return
        entry.state = State.AVAILABLE
        if entry.group and self._order.groups is not None:
            self._order.groups.given_back(entry)
        else:
            self._order.put_back(entry)

        for browser in self.readers:
            browser.returned(entry)
        if self.overfull:
            self._owner.has_to_remove(self)
        if not self._marked:
            self._mark()

    def _leaves(self, entry: Entry) -> None:
        """A message is in it no more."""
        counters = self.counters
        counters.went += 1
        if entry.expires_ms:
            self.expirations.forget(entry)
        counters.octets -= entry.size
        if self.is_dead_letter(entry):
            self.dead_letters.remove(entry)
        if counters.memory is not None:
            counters.memory.octets -= entry.size

    # -- by itself
    def has_expired(self, now_ms: int) -> bool:
        """Whether there are messages whose time has passed."""
        entry = self.expirations.first(self)
        return entry is not None and entry.expires_ms <= now_ms

    def note_expiry(self, now_ms: int) -> None:
        """Notes when the next message expires, if that is to come."""
        entry = self.expirations.first(self)
        if entry is not None and entry.expires_ms > now_ms:
            self._owner.expiries.note(self, entry.expires_ms)

    def plan_expired(self, now_ms: int, most: int, batch: Batch) -> list[MessageMove]:
        """What becomes of at most so many messages whose time has passed, and which are not held, written into `batch`;
        they are held until that is carried out."""
        effects: list[MessageMove] = []
        while len(effects) < most:
            entry = self.expirations.first(self)
            if entry is None or entry.expires_ms > now_ms:
                break
            effect = self._plan_to_leave(entry, "expired", batch)
            if effect is None:
                break
            effects.append(effect)
            self.expirations.drop_first()
        return effects

    def plan_overfull(self, now_ms: int, most: int, batch: Batch) -> list[MessageMove]:
        """The same for the oldest messages, where there are more than there may be."""
        effects: list[MessageMove] = []
        if not self.overfull or most <= 0:
            return effects
        settings = self.settings
        messages = len(self._entries) - settings.max_depth
        octets = self.counters.octets - settings.max_octets if settings.max_octets else 0
        oldest: list[Entry] = []
        for entry in self._entries.values():
            if (messages <= 0 and octets <= 0) or len(oldest) >= most:
                break
            if entry.state is State.AVAILABLE and not 0 < entry.expires_ms <= now_ms:
                oldest.append(entry)
                messages -= 1
                octets -= entry.size

        for entry in oldest:
            if self._owner.dead_letter_queue(self) is None:
                break
            effect = self._plan_to_leave(entry, "queue full", batch)
            if effect is None:
                break
            effects.append(effect)
        return effects

    def _plan_to_leave(self, entry: Entry, reason: str, batch: Batch) -> MessageMove | None:
        """A message that is not held leaves for the dead letters, where there are to be any; None: they are full, and
        it stays."""
        target = self._owner.dead_letter_queue(self)
        if target is None and self._owner.has_dead_letters(self):
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
        self._order.tidy(len(self._entries))

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
            self._owner.is_available(self)

    def forget(self, consumer: Consumer) -> None:
        """`consumer` takes no more."""
        if consumer.willing:
            consumer.willing = False
            self._willing.remove(consumer)

    def _mark(self) -> None:
        if self._willing or self.readers:
            self._marked = True
            self._owner.is_available(self)

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
            entry = self._order.first(self, now_ms, consumer)
            if entry is None:
                if not consumer.undeliverable and not (self._order.groups is not None and self._order.groups.reserved):
                    return
                willing.rotate(-1)
                passed += 1
                continue
            self.hold(entry, consumer)
            passed = 0
            if len(willing) > 1:
                willing.rotate(-1)
            consumer.deliver(entry)

    def write(self, batch: Batch) -> None:
        """Writes it into a batch, where it may not be stored yet."""
        batch.create_queue(self.number, self.name, self.kept)

    def write_deletion(self, batch: Batch) -> None:
        """Writes that it goes, with what stands in it and what is remembered about it."""
        self.write(batch)  # if it is not stored yet: creations are carried out first
        for entry in self:
            if entry.has_record:
                batch.drop_record(entry.number)
        batch.drop_record(self.number)
        if self.configured:
            batch.drop_record(self.configured)
        batch.delete_queue(self.number)

    def delete(self) -> None:
        """The queue goes, with what stands in it. Who holds messages of it finds them GONE."""
        self.deleted = True
        for entry in self._entries.values():
            entry.state = State.GONE
            entry.payload = None
        self._entries.clear()
        self._owner.schedule.left(self.counters.delayed)
        self.counters.clear()
        self.readers.clear()
        self._order.clear()
        self._owner.expiries.forget(self)
        self.expirations.clear()
        self.unreadable.clear()
        self.dead_letters.clear()
        for consumer in tuple(self._willing):
            self.forget(consumer)
