"""TransactionalResource: queues, store and time, without a connection and without I/O.

Everything happens in turns. In a turn changes that no transaction decides gather in one batch (`turn`),
queues that got messages are marked; `settle` ends the turn: it hands messages out, submits the batch, and
asks the store for payloads. No reply says that something is done before the store said that it is durable.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from dtx.amqp.conditions import Condition
from dtx.broker.queues.counters import UnstoredMemory
from dtx.broker.queues.dead_letters import ORIGIN, Origin
from dtx.broker.queues.entry import Entry, MessageMove, State, write_post
from dtx.broker.queues.message_times import ExpirySchedule, MessageAges, Schedule
from dtx.broker.queues.outcomes import FailureReasons
from dtx.broker.queues.payloads import Payloads
from dtx.broker.queues.queue import Queue
from dtx.broker.queues.removals import AutomaticRemoval
from dtx.broker.queues.topics import Topic, Topics, check_topic, restored_subscription, subscription_address
from dtx.broker.settings import QueueSettings, Settings, WhenFull
from dtx.broker.timer_queue import Timer, TimerQueue
from dtx.protocol.addresses import RESERVED
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import CHUNK, Batch, NotStored, StoreDamaged, StoreError, StoreRefused
from xa import Code
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.subscription import Subscription
    from dtx.broker.timer_queue import Timer
    from dtx.store.contract import MessageStore, Restored, StoredQueue
    from xa import Xid

LOG: Final = logging.getLogger("xabridge.broker")
MAX_NAME: Final = 255
_QUEUE: Final = itemgetter(1)
"""Of a stored message; by its name it would take twice as long."""
MARK: Final = "mark"
"""The kind of the records that say when their number was the next one."""
MARK_S: Final = 60.0
MOMENT: Final = "moment"
"""The kind of the record that says when the store was changed last, to MOMENT_S (`dtx.store.sql.inspection`)."""
MOMENT_S: Final = 1.0
LOOK_S: Final = 0.9
"""How often all queues are searched for messages that are to go by themselves, and did not go when their time came; a
tick comes each second."""
EXPIRY_S: Final = 0.03
"""How soon at most it is looked again for messages that expire: many that expire one after the other go together."""
MOST_MARKS: Final = 5000
"""The marks that the store keeps. Of more, every other one of the older half goes."""
ROW_OCTETS: Final = 16 * 1024
"""So many octets take the store about as long as a row."""
LOGGED: Final = 50
"""So many messages that can't be read are logged one by one; of more, each of so many."""
PAUSED: Final = "paused"
"""The kind of the records of paused queues, which have their numbers."""


CONFIGURED: Final = "configured"
"""The kind of the records of settings that management has changed, which name their queues."""
CONFIGURABLE: Final = ("max_depth", "max_octets", "when_full", "max_deliveries", "ttl_ms")
"""The settings of a queue that management can change."""


class Clock(Protocol):
    """The present time."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class GroupCommit:
    """Changes outside of transactions that become durable together: posts, and who waits for these (`answers`), or for
    what was `retired`."""

    __slots__ = ("answers", "batch", "posts", "retired")

    def __init__(self) -> None:
        self.batch = Batch()
        self.posts: list[Entry] = []
        self.answers: list[Callable[[Refusal | None], None]] = []
        self.retired: list[Callable[[Refusal | None], None]] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to submit."""
        batch = self.batch
        return not (
            self.posts or self.retired or batch.dequeues or batch.placements or batch.queues or batch.fences
        ) and not (batch.chunks or batch.finished or batch.records or batch.queues_deleted or batch.unshared)


class TransactionalResource:
    """Queues over a store. `stopped` is called once when the store can't say any more what is durable: no peer
    may be answered from then on."""

    def __init__(
        self, store: MessageStore, clock: Clock, settings: Settings, stopped: Callable[[StoreError], None]
    ) -> None:
        self.store = store
        self.clock = clock
        self.settings = settings
        self.limits = settings.limits
        self.payer = ""
        """Who causes what is done now."""
        self.waiting: dict[str, int] = {}
        """By payer: how much waits for the store, in rows and in ROW_OCTETS."""
        every = (settings.queue_defaults, *settings.queues.values())
        self._dead_letter_queues = frozenset(one.dead_letter for one in every)
        """Their names in the settings; those with * are patterns, which no queue is called."""
        self.queues: dict[str, Queue] = {}
        self._lasting = 0
        """How many of these are stored; the others are bounded by the links of their connections."""
        self.turn = GroupCommit()
        self.failed = False
        self._stopped = stopped
        self._number = 0
        self._marked: list[Queue] = []

        self.timers = TimerQueue()
        self.schedule = Schedule()
        self.expiries = ExpirySchedule()
        self.reasons = FailureReasons()
        self.removals = AutomaticRemoval(clock.wall_ms, self.submit)
        self._look_at = 0.0
        self.ages = MessageAges()
        self._marks_due: tuple[tuple[int, int], ...] = ()
        self._mark_at = 0.0
        self._marks: list[int] = []
        """The records of marks."""
        self._moment = 0
        self._moment_due = True
        self._moment_at = 0.0
        self.unreadable = 0
        """Messages whose payload could not be read since the start."""
        self.unstored = UnstoredMemory(self.limits.unstored_octets)
        """Of messages that came in part, or whose transactions are open."""
        self.payloads = Payloads(store, self.stop, self.set_aside, self.settle)
        self._owed: list[tuple[int, int]] = []
        """Messages that are gone, and could not be deleted from a store that took nothing."""
        self._owed_copies: list[tuple[int, int]] = []
        """Those of them that share a payload, with its number."""
        self._owed_answers: list[Callable[[Refusal | None], None]] = []
        """The answers that wait until such a message is deleted from a store that takes nothing now."""
        self._origins: dict[int, Origin] = {}
        """Those of the store, until their messages are restored."""
        self.topics = Topics(
            settings.topics,
            number=self.number,
            submit=self.submit,
            drop=self._drop_subscription,
            promise=self._promise,
        )
        self._unstored: dict[int, Queue] = {}
        """Queues that may not be stored yet: every batch has them, as it may bring messages of theirs, and an earlier
        one that had them may be refused."""

    # -- opening
    def restore(self, restored: Restored) -> None:
        """Takes what the store holds, which is open, but for the messages: the registry has them put into their queues
        (`restore_messages`)."""
        self._number = self.store.first_number
        for stored in restored.queues:
            self._restore_queue(stored)
        by_number = {queue.number: queue for queue in self.queues.values()}
        for record in restored.records:
            if record.kind == PAUSED and record.number in by_number:
                by_number[record.number].paused = record.text
            elif record.kind == CONFIGURED:
                settings = json.loads(record.text)
                configured = by_number.get(settings.pop("queue"))
                if configured is not None:
                    configured.settings = changed_settings(configured.settings, settings)
                    configured.configured = record.number
            elif record.kind == ORIGIN:
                self._origins[record.number] = Origin.decode(record.text)
            elif record.kind == MOMENT:
                self._moment = record.number
            elif record.kind == MARK:
                self.ages.mark(record.number, int(record.text))
                self._marks.append(record.number)

        self._moment = self._moment or self.number()
        self._marks_due = ((self.number(), self.now_ms),)
        self.ages.mark(self._number, self.now_ms)

    def restore_messages(self, restored: Restored, locked: set[int]) -> dict[int, Entry]:
        """Puts the stored messages into their queues; gives those that are `locked` by branches."""
        by_number = {queue.number: queue for queue in self.queues.values()}
        found: dict[int, Entry] = {}
        for queue_number, messages in groupby(restored.messages(), key=_QUEUE):
            queue = by_number.get(queue_number)
            if queue is None:
                raise StoreDamaged(
                    f"the store has messages of the queue with the number {queue_number}, and lacks that queue: "
                    "restore the store from a copy"
                )
            found.update(queue.restore(messages, locked))

        for queue in self.queues.values():
            if self._origins or queue.for_dead_letters:
                queue.restore_dead_letters(self._origins)
        if restored.shares:
            for entry in (entry for queue in self.queues.values() for entry in queue):
                entry.source = restored.shares.get(entry.number, entry.number)
        return found

    def _restore_queue(self, stored: StoredQueue) -> None:
        """A queue, a topic or a subscription."""
        subscription = restored_subscription(stored.name, stored.settings) if stored.settings else None
        if stored.settings and subscription is None:
            self.topics.make(stored.number, stored.name, self)
            self._lasting += 1
            return
        queue = self._make(stored.number, stored.name)
        if subscription is not None:
            self.topics.stands(queue, subscription)

    def end_subscriptions(self) -> None:
        """Those that do not last end, because their connections did. RefusedError: a queue that has messages is a topic
        by the configuration; one without any is gone."""
        for queue in tuple(self.queues.values()):
            subscription = queue.subscription
            if subscription is not None and not subscription.durable:
                self.topics.unsubscribe(queue)
            elif subscription is None and queue.lasting and self.topics.address(queue.name) is not None:
                self._end_queue(queue)

    def _end_queue(self, queue: Queue) -> None:
        counters = queue.counters
        if queue.depth or counters.pending:
            message = (
                f"the queue {queue.name!r} has {queue.depth + counters.pending} messages, and is a topic by the "
                "configuration (broker.topics): empty and delete it first"
            )
            raise StoreError(message)
        batch = Batch()
        queue.write_deletion(batch)
        self.drop_lasting(queue)
        self.submit(batch, lambda _: None)

    def restore_origin(self, entry: Entry) -> None:
        """A message that a prepared branch posts gets its origin, if it is a dead letter."""
        entry.origin = self._origins.pop(entry.number, None)

    def drop_origins(self) -> None:
        """Every message is restored: what is left is of none, because another version of the broker has deleted it."""
        for number in self._origins:
            self.turn.batch.drop_record(number)
        self._origins.clear()

    def make_configured(self) -> None:
        """The queues that the settings name."""
        for name in self.settings.queues:
            if name not in self.queues and subscription_address(name) is None:
                self.create(name)

    # -- numbers and time
    def number(self) -> int:
        """A number that was never used and never will be again."""
        self._number += 1
        return self._number - 1

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Calls `call` in a later `tick`, not before `delay_s` have passed, unless the timer is called off."""
        return self.timers.add(self.clock.monotonic() + delay_s, call)

    @property
    def now_ms(self) -> int:
        """The time, for what is delivered later, expires or is shown to people."""
        return self.clock.wall_ms()

    def tick(self) -> float:
        """Does what is due; in how many seconds there is something again, at most one."""
        now = self.clock.monotonic()
        now_ms = self.now_ms
        self.timers.run(now)
        self._mark_ages(now, now_ms)
        if now >= self._moment_at:
            self._moment_at, self._moment_due = now + MOMENT_S, True
        self.schedule.release(now_ms)
        for queue in self.expiries.take_due(now_ms):
            self.removals.add(queue)
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self.removals.look(self.queues.values())

        for number, size in self._owed:
            self.turn.batch.dequeue(number, size)
        self._owed.clear()
        self.turn.batch.unshared += self._owed_copies
        self._owed_copies.clear()
        self.turn.retired += self._owed_answers
        self._owed_answers.clear()
        self._tell_queues(self.turn.batch)
        self.topics.go_on()
        self.settle()
        due_in = self.timers.next_in(now)
        return min(1.0, 1.0 if due_in is None else due_in, self.next_due_in())

    @property
    def is_due_sooner(self) -> bool:
        """Whether there is a message that is due, or expires, before what `next_due_in` has said."""
        return self.schedule.sooner or self.expiries.sooner

    def next_due_in(self) -> float:
        """In how many seconds a delayed message is due, or another one expires; at most one, because the clock may be
        set meanwhile."""
        self.schedule.sooner = self.expiries.sooner = False
        due_ms, expires_ms, now_ms = self.schedule.next_ms, self.expiries.next_ms, self.now_ms
        due_in = 1.0 if due_ms is None else max(0, due_ms - now_ms) / 1000
        expires_in = 1.0 if expires_ms is None else max(EXPIRY_S, (expires_ms - now_ms) / 1000)
        return min(1.0, due_in, expires_in)

    def _mark_ages(self, now: float, now_ms: int) -> None:
        """Notes how far the numbers are. A mark that is still to be stored, with none given out since, moves on: so
        what comes after a quiet time is not taken for as old as that."""
        due = self._marks_due
        if due and due[-1][0] == self._number - 1:
            self._marks_due = (*due[:-1], (due[-1][0], now_ms))
        elif now >= self._mark_at:
            self._mark_at = now + MARK_S
            self._marks_due = (*due, (self.number(), now_ms))
        self.ages.mark(self._number, now_ms)

    def _remember_marks(self, batch: Batch) -> None:
        """How old messages are, and the store itself, is to be known also after a restart. A mark goes with the next
        change, and is no reason to force one."""
        if self._moment_due:
            self._moment_due = False
            batch.record(self._moment, MOMENT, str(self.now_ms))
        due, self._marks_due = self._marks_due, ()
        for number, at_ms in due:
            batch.record(number, MARK, str(at_ms))
            self._marks.append(number)
        if len(self._marks) > MOST_MARKS:
            half = MOST_MARKS // 2
            for number in self._marks[1:half:2]:
                batch.drop_record(number)
            self._marks[:half] = self._marks[:half:2]

    # -- queues
    def _make(self, number: int, name: str, *, lasting: bool = True, memory: UnstoredMemory | None = None) -> Queue:
        settings = self.settings.queues.get(name, self.settings.queue_defaults)
        queue = Queue(
            number,
            name,
            settings if lasting else QueueSettings(max_depth=1000, max_deliveries=0, dead_letter=""),
            self,
            lasting=lasting,
            memory=memory,
        )
        queue.for_dead_letters = self.takes_dead_letters(queue)
        self.queues[name] = queue
        self._lasting += lasting
        return queue

    def create(self, name: str) -> Queue:
        """A new lasting queue."""
        self._check_count()
        queue = self._make(self.number(), name)
        self._unstored[queue.number] = queue
        queue.write(self.turn.batch)
        return queue

    def _check_count(self) -> None:
        if self._lasting >= self.limits.queues:
            raise refused(Code.XAER_RMERR, f"there are {self._lasting} queues", condition=Condition.RESOURCE_LIMIT)

    def find_topic(self, name: str) -> Queue:
        """The topic with this address, made on demand where the settings say so; RefusedError when there is none."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        check_topic(name)
        if not self.settings.create_on_demand:
            raise refused(Code.XAER_NOTA, f"there is no topic {name!r}")
        self._check_count()
        topic = self.topics.make(self.number(), name, self)
        self._lasting += 1
        self._unstored[topic.number] = topic
        topic.write(self.turn.batch)
        return topic

    def subscribe(self, name: str, subscription: Subscription) -> Queue:
        """The subscription whose queue is to have this name, made where there is none. RefusedError: there is another
        one with this name."""
        queue = self.queues.get(name)
        if queue is not None:
            _check_same(queue, subscription)
            return queue
        if name in self.topics.deleting:
            message = f"the subscription {name!r} is being deleted: try again"
            raise refused(Code.XAER_PROTO, message, condition=Condition.RESOURCE_LOCKED)
        self._check_count()
        if self._names_dead_letters(name):
            raise refused(Code.XAER_INVAL, f"{name!r} is a queue of dead letters by its name: name it otherwise")
        queue = self._make(self.number(), name)
        self.topics.stands(queue, subscription)
        self._unstored[queue.number] = queue
        queue.write(self.turn.batch)
        return queue

    def is_subscription(self, address: str) -> bool:
        """Whether an address is that of a subscription, and not of its dead letters, which is to be there or not."""
        queue = self.queues.get(address)
        if queue is not None:
            return queue.subscription is not None
        return subscription_address(address) is not None and not self._names_dead_letters(address)

    def _names_dead_letters(self, name: str) -> bool:
        before, star, behind = self.settings.queues.get(name, self.settings.queue_defaults).dead_letter.partition("*")
        return name.startswith(before) and name.endswith(behind) if star else name in self._dead_letter_queues

    def check_is_no_topic(self, name: str) -> None:
        """RefusedError where a name is that of a topic, or of a subscription that is not there."""
        if self.topics.address(name) is not None:
            raise refused(Code.XAER_NOTA, f"{name!r} is a topic, and no queue")
        if self.is_subscription(name):
            raise refused(
                Code.XAER_NOTA, f"there is no subscription {name!r}; it is a topic's, and made by who receives from it"
            )

    def is_stored(self, queue: Queue) -> bool:
        """Whether the store is known to have a queue that lasts."""
        return queue.number not in self._unstored

    def when_stored(self, queue: Queue, done: Callable[[NotStored | None], None]) -> bool:
        """Calls `done` when a queue is stored, or can't be; False: it is."""
        if self.is_stored(queue):
            return False
        self.submit(Batch(), done)
        return True

    def find(self, name: str) -> Queue:
        """The queue `name`, made on demand where the settings say so; RefusedError when there is none."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        if not self.settings.create_on_demand or name.startswith(RESERVED):
            raise refused(Code.XAER_NOTA, f"there is no queue {name!r}")
        self.check_is_no_topic(name)
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise refused(Code.XAER_INVAL, f"a queue's name has 1 to {MAX_NAME} printable characters")
        return self.create(name)

    def make_dynamic(self, name: str, memory: UnstoredMemory) -> Queue:
        """A queue that is not stored; its owner deletes it with `drop_dynamic`."""
        return self._make(self.number(), name, lasting=False, memory=memory)

    def drop_dynamic(self, queue: Queue) -> None:
        """The queue goes, with what it holds."""
        if self.queues.pop(queue.name, None) is not None:
            queue.delete()

    def forget_unstored(self, queue: Queue) -> bool:
        """A queue is being deleted: no batch tells it any more. Whether it may not have been stored yet."""
        return self._unstored.pop(queue.number, None) is not None

    def remember_unstored(self, queue: Queue) -> None:
        """A queue is not deleted after all, and may not be stored yet."""
        self._unstored[queue.number] = queue

    def drop_lasting(self, queue: Queue) -> None:
        """A queue is gone from the store."""
        if self.queues.get(queue.name) is queue:
            del self.queues[queue.name]
            self._lasting -= 1
        queue.delete()

    def _drop_subscription(self, queue: Queue) -> None:
        self.forget_unstored(queue)
        self.drop_lasting(queue)

    def _promise(self, octets: int) -> None:
        self.store.promised += octets

    def takes_dead_letters(self, queue: Queue) -> bool:
        """Whether the settings make `queue` one of dead letters, by its name or by the pattern that it fits. A
        consumer sends its dead letters there, too, of which the broker knows nothing else."""
        return queue.lasting and (_is_of_dead_letters(queue) or queue.name in self._dead_letter_queues)

    def source_of_dead_letters(self, queue: Queue) -> Queue | None:
        """The lasting queue whose dead letters have the name of `queue`; None: there is none."""
        if not queue.lasting or not _is_of_dead_letters(queue):
            return None
        before, _, behind = queue.settings.dead_letter.partition("*")
        found = self.queues.get(queue.name[len(before) : len(queue.name) - len(behind)])
        return found if found is not None and self._dead_letter_name(found) == queue.name else None

    def _dead_letter_name(self, queue: Queue) -> str:
        before, star, behind = queue.settings.dead_letter.partition("*")
        if not queue.lasting or _is_of_dead_letters(queue):
            return ""
        room = MAX_NAME - len(before) - len(behind)
        name = f"{before}{queue.name[:room]}{behind}" if star else before
        return "" if name == queue.name else name

    # -- what queues ask
    def has_dead_letters(self, queue: Queue) -> bool:
        return bool(self._dead_letter_name(queue))

    def failure_of(self, entry: Entry) -> tuple[str, str]:
        return self.reasons.of(entry.number)

    def is_available(self, queue: Queue) -> None:
        self._marked.append(queue)

    def has_to_remove(self, queue: Queue) -> None:
        self.removals.add(queue)

    def dead_letter_queue(self, queue: Queue) -> Queue | None:
        name = self._dead_letter_name(queue)
        if not name:
            return None
        target = self.queues.get(name)
        if target is None and self._lasting < self.limits.queues:
            target = self.create(name)
        return None if target is None or target.full or target.closing else target

    # -- messages outside of transactions
    def post(self, entry: Entry, answer: Callable[[Refusal | None], None] | None) -> None:
        """Posts a message; it becomes available, and `answer` is called, when it is durable."""
        turn = self.turn
        queue = entry.queue
        if type(queue) is Topic:
            self._publish(queue, entry, answer)
            return
        entry.queue.take_place(entry)

        if entry.queue.lasting:
            entry.queue.expect(entry)
            write_post(turn.batch, entry)
            turn.posts.append(entry)
            if answer is not None:
                turn.answers.append(answer)
            return
        entry.queue.append(entry)
        if answer is not None:
            answer(None)

    def _publish(self, topic: Topic, entry: Entry, answer: Callable[[Refusal | None], None] | None) -> None:
        turn = self.turn
        topic.expect(entry)
        copies = topic.write_copies(turn.batch, entry, stored=False)
        topic.expect_no_more(entry)
        for copy in copies:
            copy.queue.expect(copy)
        turn.posts += copies
        if answer is None:
            return
        if copies:
            turn.answers.append(answer)
        else:
            answer(None)

    def retire(self, entry: Entry, outcome: Outcome, answer: Callable[[Refusal | None], None] | None) -> None:
        """Applies an outcome to a held message at once; `answer` is called when that is durable, or when the store did
        not take it: then the message may come again after a restart."""
        turn = self.turn
        if entry.state is State.HELD:
            entry.queue.carry_out(entry.queue.plan(entry, outcome, turn.batch))
        if answer is not None:
            turn.retired.append(answer)

    def apply(self, effects: list[MessageMove]) -> None:
        """Carries planned effects out."""
        for effect in effects:
            effect.entry.queue.carry_out(effect)

    # -- payloads
    def fetch_piece(self, entry: Entry, number: int, done: Callable[[bytes | None], None]) -> None:
        """Reads a piece of a message that is larger than one."""

        def fetched(piece: bytes | None, error: StoreError | None) -> None:
            if error is not None:
                self.stop(error)
                return
            if piece is not None and len(piece) != min(CHUNK, entry.size - number * CHUNK):
                piece = None
            if piece is None and entry.state is State.AVAILABLE:  # as in Payloads
                self.set_aside(entry)
            done(piece)
            self.settle()

        self.store.fetch_chunk(entry.source, number, fetched)

    def fetch_message(
        self, entry: Entry, done: Callable[[bytes | None], None], is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Reads a whole stored message, piece by piece as long as it is wanted; None when it is not there any more."""
        if fits_one_piece(entry):
            self.payloads.fetch(entry, done)
            return
        pieces: list[bytes] = []

        def fetched(piece: bytes | None) -> None:
            if piece is None:
                done(None)
                return
            pieces.append(piece)
            if len(pieces) * CHUNK >= entry.size:
                done(b"".join(pieces))
            elif is_wanted():
                self.fetch_piece(entry, len(pieces), fetched)

        self.fetch_piece(entry, 0, fetched)

    def set_aside(self, entry: Entry) -> None:
        """The store lacks the payload of a message, or can't read it. The message stays in its queue, and is given to
        no one from now on: a person has to restore the store."""
        queue = entry.queue
        if entry.state is State.GONE or entry.number in queue.unreadable:
            return
        if entry.state is State.AVAILABLE:
            queue.hold(entry)
        queue.set_aside(entry)

        self.unreadable += 1
        if self.unreadable <= LOGGED or self.unreadable % LOGGED == 0:
            LOG.error(
                "message %d of the queue %s can't be read from the store, and is given to no one: `xabridge check` "
                "says what is damaged; restore the store from a copy (%d so far)",
                entry.number,
                queue.name,
                self.unreadable,
                extra=about(queue=queue.name, message=str(entry.number)),
            )

    # -- the store
    def submit(self, batch: Batch, done: Callable[[NotStored | None], None]) -> None:
        """Makes `batch` durable, after the turn so far. `done` is called with None, or with the reason why it never
        will be durable."""
        self._submit_turn()
        self._submit(batch, done)

    def _submit(self, batch: Batch, done: Callable[[NotStored | None], None]) -> None:
        self._tell_queues(batch)
        if self._moment_due or self._marks_due:
            self._remember_marks(batch)
        payer = self.payer
        weight = max(batch.rows + batch.octets // ROW_OCTETS, 1)  # an empty batch waits as well
        self.waiting[payer] = self.waiting.get(payer, 0) + weight

        def answered(error: StoreError | None) -> None:
            left = self.waiting[payer] - weight
            if left:
                self.waiting[payer] = left
            else:
                del self.waiting[payer]
            if error is not None and not isinstance(error, NotStored):
                self.stop(error)
            elif not self.failed:
                if error is None and self._unstored:
                    for number in batch.queues:
                        self._unstored.pop(number, None)
                done(error)
                self.settle()

        self.store.submit(batch, answered)

    def _tell_queues(self, batch: Batch) -> None:
        for queue in self._unstored.values():
            queue.write(batch)

    def _submit_turn(self) -> None:
        turn = self.turn
        if turn.empty:
            return
        self.turn = GroupCommit()
        self._submit(turn.batch, partial(self._turned, turn))

    def _turned(self, turn: GroupCommit, error: NotStored | None) -> None:
        refusal = None
        if error is None:
            for entry in turn.posts:
                queue = entry.queue
                queue.expect_no_more(entry)
                entry.payload = None
                if queue.deleted:  # a subscription waits for no posts
                    entry.state = State.GONE
                else:
                    queue.append(entry)
        else:
            refusal = not_stored(error, Code.XAER_RMERR)
            for entry in turn.posts:
                entry.queue.expect_no_more(entry)
                entry.state = State.GONE
                entry.payload = None
            chunked = set(turn.batch.chunked_dequeues)
            self._owed += [(number, CHUNK + (number in chunked)) for number in turn.batch.dequeues]
            self._owed_copies += turn.batch.unshared
            if not isinstance(error, StoreRefused):
                self._owed_answers += turn.retired
                turn.retired = []

        for answer in turn.answers:
            answer(refusal)
        turn.answers.clear()  # so that nothing is seen to wait any more
        for answer in turn.retired:
            answer(refusal)

    def stop(self, error: StoreError) -> None:
        """The store can't say any more what is durable, or is another process's."""
        if not self.failed:
            self.failed = True
            self._stopped(error)

    # -- turns
    def settle(self) -> None:
        """Ends the turn."""
        if self.failed:
            return
        marked = self._marked
        while marked:
            queues = marked[:]
            marked.clear()
            now_ms = self.now_ms
            for queue in queues:
                queue.dispatch(now_ms)
        self.removals.go_on()
        self.payloads.send()
        self._submit_turn()


def _check_same(queue: Queue, subscription: Subscription) -> None:
    known = queue.subscription
    if known is None:
        raise refused(Code.XAER_INVAL, f"{queue.name!r} is a queue, and no subscription")
    if known.shared is not subscription.shared:
        how = "is shared" if known.shared else "is for one consumer"
        raise refused(Code.XAER_INVAL, f"the subscription {queue.name!r} {how}", condition=Condition.NOT_ALLOWED)
    if known.selector != subscription.selector:
        message = (
            f"the subscription {queue.name!r} has the selector {str(known.selector or '')!r}, and not "
            f"{str(subscription.selector or '')!r}: delete it first"
        )
        raise refused(Code.XAER_INVAL, message, condition=Condition.NOT_ALLOWED)


def changed_settings(settings: QueueSettings, details: dict[str, Any]) -> QueueSettings:
    """The settings with these in place of theirs. RefusedError for a value that is none."""
    try:
        when_full = WhenFull(details.get("when_full", settings.when_full))
    except ValueError:
        raise refused(Code.XAER_INVAL, f"when_full is one of {', '.join(WhenFull)}") from None
    return replace(settings, **{**details, "when_full": when_full})


def not_stored(error: NotStored, code: Code, xid: Xid | None = None) -> Refusal:
    """Nothing happened: the store takes nothing now, or never this."""
    condition = Condition.INTERNAL_ERROR if isinstance(error, StoreRefused) else Condition.RESOURCE_LIMIT
    return Refusal(condition, f"nothing happened: {error}", code, xid)


def fits_one_piece(entry: Entry) -> bool:
    """Whether the payload is stored in one piece."""
    return entry.size <= CHUNK or not entry.queue.lasting


def _is_of_dead_letters(queue: Queue) -> bool:
    before, star, behind = queue.settings.dead_letter.partition("*")
    return bool(star) and queue.name.startswith(before) and queue.name.endswith(behind)
