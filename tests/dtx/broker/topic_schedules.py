"""Random schedules of a broker with topics, over a store in memory: subscriptions are made and deleted, branches
publish and consume, the store refuses, and the broker is killed at any step of a force. A checker knows what every
subscription has to have.

What is asked of the broker is answered later, when the store's jobs run. `Schedule.run` raises AssertionError where the
broker has done what it must not: `MUTANTS` are defects that it has to find.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from unittest import mock

from proton import Message

from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.container import Container
from dtx.broker.queues.entry import Entry, State
from dtx.broker.queues.outcomes import TAKEN
from dtx.broker.queues.queue import Queue
from dtx.broker.queues.selector import Selector
from dtx.broker.queues.subscription import Subscription
from dtx.broker.queues.topics import Topic, Topics
from dtx.broker.settings import Settings
from dtx.broker.transactional_resource import TransactionalResource
from dtx.broker.transactions.branches import Registry
from dtx.broker.transactions.transactional_work import HeldMessage, TransactionalWork
from dtx.protocol.conditions import RefusedError
from dtx.protocol.replies import Result
from dtx.store.contract import Batch, Step, StoreFull
from dtx.store.memory import Disk, MemoryStore
from tests.dtx.broker.peer import ManualClock
from xa import Code, Xid
from xa.state_tables import BranchVerb

TOPICS: Final = ("topic:a", "topic:a.b", "topic:c")
PATTERNS: Final = (*TOPICS, "topic:#", "topic:a.*", "topic:a.#")
RED: Final = "colour = 'red'"
STEPS: Final = 150


class KilledBroker(Exception):
    """The process is gone."""


@dataclass(eq=False)
class Subscriber:
    """A subscription, as its maker knows it."""

    name: str
    topic: str
    selects: bool
    number: int
    answered: bool = False
    leaves: bool = False
    """Whether its deletion was asked for."""
    free: bool = False
    """Whether no prepared branch held anything of it when it was, or later: it may be gone by now."""
    due: set[int] = field(default_factory=set)
    """The messages that have to be in it."""

    def wants(self, topic: str, number: int) -> bool:
        """Whether it is to have a message of a topic."""
        of, name = self.topic.removeprefix("topic:"), topic.removeprefix("topic:")
        fits = {"#": True, "a.*": name == "a.b", "a.#": name.startswith("a")}.get(of, of == name)
        return fits and (not self.selects or number % 2 == 1)


@dataclass(eq=False)
class Work:
    """What a branch does."""

    xid: Xid
    posts: list[tuple[str, int]] = field(default_factory=list)
    takes: list[tuple[Subscriber, int]] = field(default_factory=list)
    asked: str = "open"
    prepared: bool = False
    stood: list[Subscriber] = field(default_factory=list)
    """Who stood when it was to be committed."""


class Schedule:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk()
        self.clock = ManualClock()
        self.subscribers: list[Subscriber] = []
        self.works: list[Work] = []
        self.stored_as: dict[int, int] = {}
        """The message with each payload, by its number in the store."""
        self.numbers = 0
        self.crash_at: Step | None = None
        self.refuses = False
        self._open()

    # -- the broker
    def _open(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        store = MemoryStore(self.disk, self.jobs.append, self._hook, cached_size=0)
        everybody = Permissions({"anonymous": EVERYTHING})
        self.container = Container(store, self.clock, Settings(), everybody, self._stopped)
        self.container.open()
        self.resource, self.registry = self.container.resource, self.container.registry

    @staticmethod
    def _stopped(error: Exception) -> None:
        raise AssertionError(error)

    def _hook(self, step: Step) -> None:
        if step is self.crash_at:
            raise KilledBroker
        if step is Step.BEFORE_WRITE and self.refuses:
            raise StoreFull("no space")

    def pump(self, jobs: int) -> None:
        """Runs so many of the store's jobs."""
        for _ in range(jobs):
            if not self.jobs:
                break
            self.jobs.popleft()()
            self.resource.settle()

    def settled(self) -> None:
        """Everything is answered, as far as nothing waits for a branch."""
        self.refuses, self.crash_at = False, None
        for _ in range(3):
            self.clock.seconds += 1
            self.resource.tick()
            self.pump(1000)

    # -- steps
    def run(self) -> None:
        """The schedule; AssertionError where the broker has a defect."""
        steps = {
            self.subscribe: 4,
            self.unsubscribe: 2,
            self.publish: 3,
            self.begin: 6,
            self.decide: 8,
            self.consume: 4,
            self.force: 12,
            self.trouble: 1,
            self.crash: 1,
            self.check: 1,
        }
        chosen = self.dice.choices(list(steps), list(steps.values()), k=STEPS)

        for step in chosen:
            try:
                step()
                self.resource.settle()
            except KilledBroker:
                self.restart()
        self.finish()

    def trouble(self) -> None:
        """The store takes nothing for a while, or the next force is the last one."""
        self.refuses = self.dice.random() < 0.5
        self.crash_at = None if self.refuses else self.dice.choice(list(Step))

    def force(self) -> None:
        """The store does something."""
        self.pump(self.dice.choice([1, 1, 2, 1000]))
        if self.dice.random() < 0.3:
            self.clock.seconds += 1
            self.resource.tick()
            self.refuses = False

    def standing(self) -> list[Subscriber]:
        return [one for one in self.subscribers if self._queue(one) is not None]

    def _queue(self, one: Subscriber) -> Queue | None:
        queue = self.resource.queues.get(one.name)
        return queue if queue is not None and queue.number == one.number else None

    def subscribe(self) -> None:
        topic, name = self.dice.choice(PATTERNS), self.dice.choice("xy")
        selects = self.dice.random() < 0.4
        address = f"{topic}::{name}{'s' * selects}"
        is_there = address in self.resource.queues
        subscription = Subscription(topic, selector=Selector.parse(RED) if selects else None)
        try:
            queue = self.resource.subscribe(address, subscription)
        except RefusedError:
            if address in self.resource.topics.deleting:
                return
            raise
        if is_there:
            return
        one = Subscriber(address, topic, selects, queue.number)
        self.subscribers.append(one)

        def stored(error: Exception | None) -> None:
            if error is None:
                one.answered = True
            elif not self.resource.is_stored(queue):
                self.subscribers.remove(one)
                self.resource.topics.unsubscribe(queue)

        if not self.resource.when_stored(queue, stored):
            one.answered = True

    def unsubscribe(self) -> None:
        standing = self.standing()
        one = self.dice.choice(standing) if standing else None
        if one is None or one.leaves:
            return
        queue = self._queue(one)
        assert queue is not None
        one.leaves = True

        def answered(_: Any) -> None:
            assert not self._held(one), f"{one.name} was deleted, and a prepared branch has taken messages from it"
            if one in self.subscribers:
                self.subscribers.remove(one)

        one.free = not self._held(one)
        self.resource.topics.unsubscribe(queue, answered)

    def _held(self, one: Subscriber) -> bool:
        return any(work.prepared and any(who is one for who, _ in work.takes) for work in self.works)

    def _entry(self, topic: str) -> Entry:
        self.numbers += 1
        number = self.numbers
        octets = bytes(Message(body=number, properties={"colour": "red" if number % 2 else "blue"}).encode())
        entry = Entry(self.resource.find_topic(topic), self.resource.number(), len(octets), 0, octets)
        self.stored_as[entry.number] = number
        return entry

    def publish(self) -> None:
        """Without a transaction."""
        topic = self.dice.choice(TOPICS)
        entry = self._entry(topic)
        work = Work(Xid(1, b"none", str(self.numbers).encode()), [(topic, self.numbers)], asked="publish")
        work.stood = self.standing()
        self.works.append(work)
        self.resource.post(entry, lambda refusal: self._answered(work, committed=refusal is None))

    def begin(self) -> None:
        """A branch does its work, and is to be prepared or committed in one phase."""
        self.numbers += 1
        work = Work(Xid(1, b"g", str(self.numbers).encode()))
        branch = self.registry.make(work.xid, "")
        for _ in range(self.dice.randrange(3)):
            topic = self.dice.choice(TOPICS)
            branch.work.post(self._entry(topic))
            work.posts.append((topic, self.numbers))

        for one in self.dice.sample(self.standing(), min(len(self.standing()), self.dice.randrange(3))):
            entry = self._take(one)
            if entry is not None:
                branch.work.hold(HeldMessage(entry, TAKEN, None))
                work.takes.append((one, self._number(entry)))
        branch.move(BranchVerb.END)
        self.works.append(work)
        if self.dice.random() < 0.3:
            work.asked, work.stood = "commit", self.standing()
            self._ask(work, lambda answer: self.container.two_phase.commit(branch, answer, one_phase=True))
        else:
            work.asked = "prepare"
            self._ask(work, lambda answer: self.container.two_phase.prepare(branch, answer, keep=True))

    def _take(self, one: Subscriber) -> Entry | None:
        queue = self._queue(one)
        assert queue is not None
        entry = next((entry for entry in queue if entry.state is State.AVAILABLE), None)
        if entry is not None:
            queue.hold(entry)
        return entry

    def _ask(self, work: Work, operation: Callable[[Callable[[Any], None]], None]) -> None:
        branch, asked = self.registry.find(work.xid), work.asked

        def answer(reply: Any) -> None:
            done = isinstance(reply, Result) and reply.code in {Code.XA_OK, Code.XA_RDONLY}
            if asked == "prepare":
                work.prepared, work.asked = done, "" if done else "refused"
                if not done:
                    self._back(work)
            elif done or not work.prepared:
                work.prepared = False
                self._answered(work, committed=done and asked == "commit")
            else:
                work.asked = ""

        self.container.two_phase.in_turn(branch, answer, lambda: operation(answer))

    def _back(self, work: Work) -> None:
        """A prepare that the store has not taken: the branch is rolled back."""
        branch = self.registry.find(work.xid)
        self.container.two_phase.in_turn(
            branch, lambda _: None, lambda: self.container.two_phase.rollback(branch, lambda _: None)
        )
        self.works.remove(work)

    def decide(self) -> None:
        """A prepared branch is committed or rolled back."""
        works = [work for work in self.works if work.prepared and not work.asked]
        if not works:
            return
        work = self.dice.choice(works)
        branch = self.registry.find(work.xid)
        work.asked = "commit" if self.dice.random() < 0.7 else "rollback"
        work.stood = self.standing()
        two_phase = self.container.two_phase
        if work.asked == "commit":
            self._ask(work, lambda answer: two_phase.commit(branch, answer, one_phase=False))
        else:
            self._ask(work, lambda answer: two_phase.rollback(branch, answer))

    def consume(self) -> None:
        """Without a transaction."""
        standing = self.standing()
        one = self.dice.choice(standing) if standing else None
        entry = self._take(one) if one is not None else None
        if one is None or entry is None:
            return
        work = Work(Xid(1, b"none", b""), takes=[(one, self._number(entry))], asked="consume")
        self.works.append(work)
        self.resource.retire(entry, TAKEN, lambda _: self._answered(work, committed=True))

    # -- the checker
    def _answered(self, work: Work, *, committed: bool) -> None:
        """What a work does is certain."""
        self.works.remove(work)
        if not committed:
            return
        for one, number in work.takes:
            one.due.discard(number)
        there = {one: set(self.contents(one)) for one in self.standing()} if work.posts else {}
        for topic, number in work.posts:
            for one in self.standing():
                if one in work.stood:
                    if one.wants(topic, number):
                        one.due.add(number)
                elif number in there[one]:  # it came while the commit was begun
                    assert one.wants(topic, number)
                    one.due.add(number)

    def _number(self, entry: Entry) -> int:
        return self.stored_as[entry.source]

    def _stored(self, entry: Entry) -> int:
        pieces = self.disk.pieces.get(entry.source)
        assert pieces is not None, "a message has lost its payload"
        message = Message()
        message.decode(pieces[0])
        assert isinstance(message.body, int)
        return message.body

    def contents(self, one: Subscriber) -> list[int]:
        """The messages that are in it."""
        queue = self._queue(one)
        return [] if queue is None else [self._number(entry) for entry in queue]

    def check(self) -> None:
        """Everything that can be answered is, and every subscription has what it has to have."""
        self.settled()
        for work in self.works:
            assert work.prepared, f"{work.asked} was not answered"
            assert not work.asked
        for one in self.subscribers:
            assert self._queue(one) is not None, f"{one.name} is gone"
            found = self.contents(one)
            assert found == [self._stored(entry) for entry in self._queue(one) or ()]
            assert len(found) == len(set(found)), f"{one.name} has a message twice"
            assert set(found) == one.due, f"{one.name} has {sorted(found)}, and not {sorted(one.due)}"

    def crash(self) -> None:
        raise KilledBroker

    def restart(self) -> None:
        """Another process has the store: what was not answered is looked up."""
        self.refuses, self.crash_at = False, None
        self._open()
        for one in tuple(self.subscribers):
            if self._queue(one) is None:
                one.free = one.free or (one.leaves and not self._held(one))
                assert one.free or not one.answered, f"{one.name} was promised, and is gone"
                self.subscribers.remove(one)
        for one in self.subscribers:
            one.answered = True

        for work in tuple(self.works):
            is_there = any(branch.xid == work.xid for branch in self.registry)
            if is_there:
                assert work.prepared or work.asked == "prepare"
                work.prepared, work.asked = True, ""
            elif work.prepared:
                assert work.asked in {"commit", "rollback"}, "a prepared branch is gone"
                self._look_up(work, work.asked == "commit")
            elif work.asked in {"commit", "publish", "consume"}:
                self._look_up(work, None)
            else:
                assert work.asked in {"prepare", "refused"}
                self.works.remove(work)
        for one in self.subscribers:
            if one.leaves and one.free:  # what came since its deletion was carried out has passed it
                one.due &= set(self.contents(one))
            one.leaves = one.free = False

    def _look_up(self, work: Work, committed: bool | None) -> None:
        """What was not answered, and is certain now: all of it, or nothing."""
        signs = []
        for topic, number in work.posts:
            takers = [one for one in self.standing() if one in work.stood and one.wants(topic, number) and not one.free]
            signs += [number in self.contents(one) for one in takers]
        for one, number in work.takes:
            if self._queue(one) is not None:
                signs.append(number not in self.contents(one))
        assert len(set(signs)) < 2, f"{work.asked}: {signs}, a part of it happened"
        if committed is not None:
            assert set(signs) <= {committed}, f"{work.asked}: {signs}"
        if committed is None:
            posted = {number for _, number in work.posts}
            committed = True in signs or any(not posted.isdisjoint(self.contents(one)) for one in self.standing())
        self._answered(work, committed=committed)

    def finish(self) -> None:
        """All branches are decided and all messages consumed: nothing is left."""
        self.settled()
        known = {one.number for one in self.subscribers}
        for queue in tuple(self.resource.queues.values()):
            if queue.number not in known:  # its maker was refused, and a crash has come before its deletion
                self.resource.topics.unsubscribe(queue)
        for work in [work for work in self.works if work.prepared and not work.asked]:
            branch = self.registry.find(work.xid)
            work.asked, work.stood = "commit", self.standing()
            two_phase = self.container.two_phase
            self._ask(work, partial(two_phase.commit, branch, one_phase=False))
        self.check()

        for one in self.standing():
            while (entry := self._take(one)) is not None:
                self.resource.retire(entry, TAKEN, None)
                self.resource.settle()
        self.settled()
        assert not self.disk.messages, "messages are left"
        assert not self.disk.pieces, "payloads are left"
        assert not self.disk.shares, "shares are left"
        assert self.resource.store.promised == 0, "space is promised to nothing"


# --- mutants
def _drops_last_copy(batch: Batch) -> None:
    if len(batch.copies) > 1:
        del batch.copies[-1], batch.shares[-1]


@contextmanager
def _set_at_prepare() -> Iterator[None]:
    """The set of subscriptions is taken when a message is posted."""
    original = Topic.write_copies

    def write_copies(self: Topic, batch: Batch, entry: Entry, *, stored: bool) -> list[Entry]:
        with mock.patch.object(Topic, "_undecided", return_value=()):
            return original(self, batch, entry, stored=stored)

    with mock.patch.object(Topic, "write_copies", write_copies):
        yield


@contextmanager
def _copy_lost() -> Iterator[None]:
    """One of the copies is not stored."""
    original = Topic.write_copies

    def write_copies(self: Topic, batch: Batch, entry: Entry, *, stored: bool) -> list[Entry]:
        copies = original(self, batch, entry, stored=stored)
        _drops_last_copy(batch)
        return copies

    with mock.patch.object(Topic, "write_copies", write_copies):
        yield


@contextmanager
def _payload_freed_early() -> Iterator[None]:
    """A payload goes with the first message that shares it."""

    def drop(self: Disk, message: int) -> None:
        self.messages.pop(message, None)
        self.pieces.pop(self.shares.pop(message, message), None)

    with mock.patch.object(Disk, "_drop", drop):
        yield


@contextmanager
def _payload_kept() -> Iterator[None]:
    """A payload stays when the last message that shares it goes."""

    def drop(self: Disk, message: int) -> None:
        self.messages.pop(message, None)
        if self.shares.pop(message, message) == message:
            self.pieces.pop(message, None)

    with mock.patch.object(Disk, "_drop", drop):
        yield


@contextmanager
def _copies_of_a_failed_commit() -> Iterator[None]:
    """A commit that is tried again has the copies of the first attempt as well."""
    original = TransactionalWork.write_commit

    def write_commit(self: TransactionalWork, batch: Batch, *, stored: bool) -> Any:
        before = list(self._copies)
        effects = original(self, batch, stored=stored)
        self._copies = before + self._copies
        return effects

    with mock.patch.object(TransactionalWork, "write_commit", write_commit):
        yield


MUTANTS: Final[dict[str, Callable[[], Any]]] = {
    "the set is taken at the post": _set_at_prepare,
    "a copy is lost": _copy_lost,
    "a payload is freed too early": _payload_freed_early,
    "a payload is never freed": _payload_kept,
    "copies of a failed commit": _copies_of_a_failed_commit,
    "a deletion ignores a prepared consumer": lambda: mock.patch.object(Registry, "holds", return_value=False),
    "a deletion ignores who is being prepared": lambda: mock.patch.object(Registry, "unprepared", return_value=[]),
    "a subscriber is answered too early": lambda: mock.patch.object(
        TransactionalResource, "when_stored", return_value=False
    ),
    "a deleted subscription gets messages": lambda: mock.patch.object(Topics, "_stands_no_more"),
    "a selector that came late is not asked": lambda: mock.patch.object(
        TransactionalWork, "to_be_read", return_value=[]
    ),
    "what is promised is not given back": lambda: mock.patch.object(Topic, "remove", _remove_without_promise),
}


def _remove_without_promise(self: Topic, queue: Queue) -> None:
    self.subscriptions.pop(queue, None)


def fails(seed: int) -> str:
    """What the checker says of a schedule; "" if nothing."""
    try:
        Schedule(seed).run()
    except AssertionError as error:
        return str(error) or "an assertion"
    return ""
