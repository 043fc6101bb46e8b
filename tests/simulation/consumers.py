"""A seeded world of consumers: a broker and a database as models, and the consumers' own code over them.

Worker, Job, Failures and the receive loop are the real ones. The models suspend them before every answer, so that a
scheduler interleaves the workers of several processes, kills and restarts processes, loses connections, restarts the
broker, takes the database away, and lets transactions be in each other's way. Time is the scheduler's.

The law (`violations`): a message whose handler never raises is handled exactly once, and never a dead letter. One whose
handler always raises, or whose work can't be committed, is a dead letter once, with its own reason. No wait is longer
than documented, and no message waits, or has a reason, because of another one.

Messages that share a transaction: none that was delivered before; none is begun after the share's time, or ends after
the transaction's; none finds anything of the one before, nor an error that its handler has hidden; and after a conflict
a worker shares nothing for a while. Messages of a group come to their ends in their order, and with one worker all do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from psycopg import errors

from dtx.broker.queues import outcomes
from dtx.broker.queues.outcomes import LOST, LOST_TIMES
from dtx.protocol.replies import MODIFIED
from tm import ConsumerSettings, Outcome, ProtocolMisuse, RolledBack, Verdict
from tm.consumer.handler import Handler
from tm.consumer.history import UNTOLD
from tm.consumer.job import DeadLetter, Job, Postponement
from tm.consumer.receive_loop import receive_loop
from tm.consumer.statistics import Statistics
from tm.consumer.worker import Worker
from tm.errors import rolled_back_error
from tm.global_transaction import HandlerState
from tm.outcome import Reason
from tm.two_phase.states import GlobalState
from xa import Code, XaError, xa_error
from xa.coroutines import suspension

QUEUE = "orders"
TROUBLE_S = 40.0
"""For so long things go wrong; then everything has to come to its end."""
STEPS = 60_000
LIMIT = 10
"""The broker's limit of deliveries, unless configured."""
LOW_LIMIT = 4
"""One that lost connections bring messages above."""
UNPAUSED = 10
"""So many messages at least are handled alone after a conflict."""
TOLERANCE_S = 0.005


def lost() -> XaError:
    return xa_error(Code.XAER_RMFAIL, "the connection was lost")


@dataclass(eq=False)
class Entry:
    """A message as the broker has it. `number` is what it is, whatever its content."""

    number: int
    body: Any
    id: str | None
    annotations: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    due: float = 0.0
    count: int = 0
    apart: bool = False
    reason: str = ""
    holder: Transaction | Link | None = None


@dataclass(eq=False)
class Delivered:
    """A message as a handler gets it."""

    entry: Entry
    delivery_count: int
    annotations: dict[str, Any]
    instructions: dict[str, Any]
    id: str | None
    body: Any

    @property
    def number(self) -> int:
        return self.entry.number


@dataclass(eq=False)
class Said:
    """What a consumer has said of a delivery."""

    outcome: str = "taken"
    counted: bool = True
    apart: bool = False
    reason: str = ""


@dataclass(eq=False)
class Link:
    """The messages that a worker's channel has ahead of their receipt. `recall`: they go back first."""

    ahead: list[Entry] = field(default_factory=list)
    recall: bool = False

    def give_back(self) -> list[Entry]:
        """Gives them back; which they were."""
        given, self.ahead, self.recall = self.ahead, [], False
        for entry in given:
            entry.holder = None
        return given


class Shop:
    """The session of the database in one transaction."""

    holds_back = True

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self.loaded: list[int] = []
        """What an ORM session would know."""

    def renew(self) -> None:
        self.loaded.clear()
        if self._transaction.failed:
            raise xa_error(self._transaction.failed, "a statement has failed before")


class Session:
    """The session of the broker in one transaction."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        if transaction.world.exact:
            self.excuse = self._excuse
            self.explain = self._explain
        if transaction.world.keeps:
            self.put_back = self._put_back

    def _said(self, message: Delivered) -> Said:
        if self._transaction.is_lost:
            raise lost()
        return self._transaction.said[message.entry]

    def _excuse(self, messages: Sequence[Delivered], reason: str = "", _place: str = "") -> bool:
        for message in messages:
            said = self._said(message)
            said.counted, said.apart, said.reason = False, True, reason
        return True

    def _explain(self, message: Delivered, reason: str, _place: str) -> None:
        said = self._said(message)
        said.counted, said.reason = True, reason

    def _put_back(self, messages: Sequence[Delivered], *, stay: bool) -> None:
        link = self._transaction.link
        for message in reversed(messages):
            self._said(message)
            del self._transaction.said[message.entry]
            message.entry.holder = link
            link.ahead.insert(0, message.entry)
        link.recall = link.recall or not stay

    def release(self, message: Delivered) -> None:
        self._said(message).outcome = "released"

    def reject(self, message: Delivered) -> None:
        self._said(message).outcome = "rejected"

    def put_off(self, *_: object) -> None:
        """There is one: the calls know how."""


class Transaction:
    """A global transaction: of the broker's messages and of the database's rows, both or none."""

    is_left = False
    is_over = False
    status = GlobalState.ACTIVE
    suspended = False
    expired = False

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.said: dict[Entry, Said] = {}
        self.posts: list[tuple[Entry, Postponement | DeadLetter]] = []
        self.rows: list[int] = []
        self.used: dict[str, None] = {}
        self.outcome: Outcome | None = None
        self.lent: HandlerState | None = None
        self.is_lost = False
        self.prepared = False

        self.failed: Code | None = None
        """For which it can only be rolled back: a statement has failed in it."""
        self.link = Link()
        self.begun: list[tuple[float, Entry]] = []
        """The messages whose handler was called, and when."""
        self.began = world.now
        self.session = Session(self)
        self.shop = Shop(self)
        self.timeout_s = world.timeout_s

    def __getitem__(self, _: str) -> Session:
        return self.session

    @property
    def _live(self) -> Transaction:
        """What a consumer works with behind the handler's transaction: here it is the same."""
        return self

    def __str__(self) -> str:
        return "transaction"

    @property
    def resources(self) -> tuple[str, ...]:
        return tuple(self.used)

    @property
    def is_alone(self) -> bool:
        """Whether one message was begun, and the handler has no others."""
        return len(self.said if self.world.takes_batch else self.begun) == 1

    @property
    def enlisted(self) -> Transaction:
        """Its resources: here it is the same."""
        return self

    @property
    def sessions(self) -> list[Any]:
        return [self.session, self.shop] if "shop" in self.used else [self.session]

    def branch_of(self, _: Any) -> None:
        """That of a session: here none is named."""

    def refused(self, *reasons: Reason) -> RolledBack:
        return rolled_back_error(Outcome(b"", Verdict.ROLLED_BACK, decided=False, reasons=reasons))

    def check_active(self, what: str) -> None:
        if self.is_over:
            raise RolledBack(f"can't {what}")

    def commit(self) -> None:
        """A handler's own."""
        if self.lent is not None:
            self.lent = HandlerState.MISUSED
            raise ProtocolMisuse("it is the consumer's")
        self.world.commit(self)

    def end(self, verdict: Verdict, *said: Any) -> None:
        self.outcome = Outcome(b"", verdict, verdict is Verdict.COMMITTED, reasons=tuple(Reason(None, s) for s in said))
        self.is_over = True


class Process:
    """A process: its job, and its workers as coroutines. It is a manager, too, as far as they need one."""

    recorder = None

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.is_dead = False
        self.is_stopping = False
        self.timeout_s = world.timeout_s
        self.live: list[Transaction] = []
        self.job = world.mutant.job(
            self,
            world.settings,
            Handler(lambda *_: None),
            Statistics(QUEUE, None, lambda: world.now),
        )
        self.job.failures = type(self.job.failures)(lambda: world.now)
        self.runs = [Run(self, worker) for worker in range(world.settings.workers)]

    def begin(self, *_: object, **__: object) -> Transaction:
        transaction = Transaction(self.world, self)
        self.live.append(transaction)
        return transaction

    def has_work(self, *_: object) -> None:
        pass

    def current_or_none(self) -> Transaction | None:
        run = self.world.running
        return None if run is None or run.transaction is None or run.transaction.is_over else run.transaction


class Run:
    """One worker at work: its coroutine, when it goes on, and the calls that it makes."""

    def __init__(self, process: Process, number: int) -> None:
        self.process = process
        self.world = process.world
        self.wake = process.world.now
        self.transaction: Transaction | None = None
        self.link = Link()
        self.since_conflict = UNPAUSED
        """How many messages it has begun since a conflict."""
        worker = process.world.mutant.worker(number, process.job, self)
        self.steps: Coroutine[None, None, None] = receive_loop(
            worker, process.world.settings, process.world.timeout_s, self.is_stopping, process.world.dice.random
        )
        self.is_over = False

    def step(self) -> None:
        self.world.running = self
        try:
            self.steps.send(None)
        except StopIteration:
            self.is_over = True
        finally:
            self.world.running = None

    def is_stopping(self) -> bool:
        return self.process.is_stopping or self.process.is_dead

    async def _await(self, seconds: float = 0.0) -> None:
        if not self.process.is_dead:
            self.wake = self.world.now + seconds
            await suspension()

    # --- as `Calls`
    async def pause(self, seconds: float) -> None:
        settings, world = self.world.settings, self.world
        held = self.transaction.said if self.transaction is not None and not self.transaction.is_over else ()
        world.found += [f"message {entry.number} waits for others" for entry in held if world.is_innocent(entry.number)]
        if seconds > max(min(settings.retry_most_s, world.timeout_s / 4), 1.0):
            world.found.append(f"a worker waits for {seconds} s")
        await self._await(seconds)

    async def enlist(self, transaction: Transaction, name: str) -> Session:
        await self._await()
        transaction.used[name] = None
        transaction.link = self.link
        self.transaction = transaction
        if self.world.is_down(name):
            error = RolledBack("can't go on")
            raise error from lost()
        return transaction.session

    async def receive(self, session: Any, _: str, count: int, timeout_s: float) -> list[Delivered]:
        transaction: Transaction = session._transaction
        await self._await()
        found = self.world.receive(transaction, count)
        if not found:
            await self._await(timeout_s)
            found = self.world.receive(transaction, count)
        return found

    async def put_off(self, session: Any, message: Delivered, what: Postponement | DeadLetter) -> None:
        transaction: Transaction = session._transaction
        await self._await()
        if transaction.is_lost or self.world.is_down("broker"):
            raise lost()
        transaction.posts.append((message.entry, what))

    dead_letter = put_off

    async def renew(self, session: Any) -> None:
        await self._await()
        session.renew()

    async def handle(self, _: object, message: Any, transaction: Transaction) -> None:
        for one in message if isinstance(message, list) else (message,):
            await self._handle(one, transaction)

    async def _handle(self, message: Delivered, transaction: Transaction) -> None:
        world, number = self.world, message.number
        transaction.used["shop"] = None
        transaction.begun.append((world.now, message.entry))
        self.since_conflict += 1
        if len(transaction.begun) > 1:
            self._check_share(transaction)
        transaction.shop.loaded.append(number)
        await self._await(world.handler_s())

        world.calls[number] += 1
        if number in world.committing:
            transaction.commit()
        if world.is_down("shop"):
            raise errors.AdminShutdown
        if world.conflicts():
            self.since_conflict = 0
            raise RuntimeError("mine") from errors.SerializationFailure()
        if number in world.poison:
            world.failed_alone[number] += transaction.is_alone
            raise LookupError(f"poison {number}")
        if transaction.failed:
            raise errors.InFailedSqlTransaction
        if number in world.hiding:
            transaction.failed = Code.XA_RBINTEGRITY if number % 2 else Code.XA_RBOTHER
        transaction.rows.append(number)
        if len(transaction.begun) > 1 and world.now > transaction.began + world.timeout_s and not world.takes_batch:
            world.found.append(f"message {number} is handled when the time of its transaction is over")

    def _check_share(self, transaction: Transaction) -> None:
        """A message is begun behind another one."""
        world, begun = self.world, transaction.begun
        numbers = [entry.number for _, entry in begun]
        if transaction.is_lost or self.process.is_dead:
            return
        if any(entry.count or entry.apart for _, entry in begun):
            world.found.append(f"messages {numbers} share a transaction, and were not all new")
        if world.takes_batch:
            return
        if world.now - begun[0][0] > world.settings.share_s + TOLERANCE_S:
            world.found.append(f"messages {numbers} share a transaction for too long")
        if transaction.shop.loaded or transaction.failed:
            world.found.append(f"message {numbers[-1]} finds what another one has left")
        if self.since_conflict < UNPAUSED:
            world.found.append(f"messages {numbers} share a transaction soon after a conflict")

    async def within(self, transaction: Transaction, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except BaseException:
            await self.rollback(transaction)
            raise
        await self.commit(transaction)

    async def commit(self, transaction: Transaction) -> None:
        world = self.world
        await self._await()
        if self.process.is_dead or transaction.is_over:
            return
        refusals: list[Any] = []
        if transaction.is_lost or world.is_down("broker"):
            refusals.append(lost())
        elif transaction.rows and world.is_down("shop"):
            refusals.append(Code.XAER_RMFAIL)
        elif transaction.rows and world.conflicts():
            self.since_conflict = 0
            refusals.append(Code.XA_RBDEADLOCK)
        elif transaction.failed:
            world.failed_alone.update(transaction.rows if transaction.is_alone else ())
            refusals.append(transaction.failed)
        elif world.unfit.intersection(transaction.rows):
            world.failed_alone.update(transaction.rows if transaction.is_alone else ())
            refusals.append(Code.XA_RBINTEGRITY if min(world.unfit) % 2 else Code.XA_RBOTHER)

        if refusals:
            world.roll_back(transaction)
            transaction.end(Verdict.ROLLED_BACK, *refusals)
            error = RolledBack("refused")
            error.outcome = transaction.outcome
            raise error
        transaction.prepared = True
        await self._await()
        if not transaction.is_over:  # killed between the vote and the decision: recovery has rolled it back
            world.commit(transaction)

    async def rollback(self, transaction: Transaction) -> None:
        await self._await()
        if not self.process.is_dead and not transaction.is_over:
            self.world.roll_back(transaction)
            transaction.end(Verdict.ROLLED_BACK)


@dataclass(frozen=True)
class Mutant:
    """What is put in the place of the right thing; `seed` is a schedule that shows it soon."""

    name: str
    worker: Callable[..., Any] = Worker
    job: Callable[..., Any] = Job
    seed: int = 0
    recalls: bool = True
    """Whether what is ahead goes back after a rollback."""


RIGHT = Mutant("none")


class World:
    """One schedule."""

    def __init__(self, seed: int, mutant: Mutant = RIGHT) -> None:
        dice = self.dice = Random(seed)
        self.mutant = mutant
        self.now = 1000.0
        self.trace: list[str] = []
        self.found: list[str] = []
        self.timeout_s = dice.choice((0.3, 4.0, 60.0))
        waits: Any = dice.choice(("worker", "broker"))
        self.settings = ConsumerSettings(
            QUEUE, workers=dice.randrange(1, 5), batch=dice.choice((1, 2, 5, 20)), retry_waits=waits,
            max_deliveries=dice.choice((1, 1, 2, 3, 5, 10)), takes=dice.choice(("message", "message", "batch")),
            retry_for_s=dice.choice((None, None, 1.0)), retry_first_s=0.1, retry_most_s=dice.choice((0.3, 30.0)),
            share_s=dice.choice((0.02, 0.02, 0.2, 60.0)), idle_s=0.3,
        )  # fmt: skip
        self.takes_batch = self.settings.takes == "batch"
        self.usual_s = dice.choice((0.0, 0.001, 0.005, 0.05))
        """How long a handler takes."""
        self.exact = dice.random() < 0.8
        """Whether the broker counts only what it is told to count."""
        self.limit = dice.choice((LOW_LIMIT, LIMIT, 3 * LIMIT)) if self.exact else 0
        count = dice.randrange(2, 25)
        contents = dice.choice((count, count, 2)) if self.exact else count
        if self.limit == LOW_LIMIT:
            contents = count
        """How many different contents there are. A broker that counts everything does not say which message of one
        content has failed; and where a commit was refused, each of them is counted, up to the broker's limit."""
        numbers = range(count)
        share = dice.choice((0.0, 0.1, 0.5))
        bad = [number for number in numbers if dice.random() < share]
        self.poison = {number for number in bad if dice.random() < 0.7}
        self.unfit = {number for number in bad if number not in self.poison and dice.random() < 0.7}

        self.committing = set(bad) - self.poison - self.unfit
        self.bad = frozenset(bad)
        self.hiding = {number for number in self.unfit if dice.random() < 0.5}
        self.unfit -= self.hiding
        with_ids, groups = dice.random() < 0.5, dice.choice((0, 0, 1, 3))

        def group_of(number: int) -> int | None:
            return number % groups if groups else None

        self.queue = [
            Entry(number, number % contents, f"m-{number}" if with_ids else None, group=group_of(number))
            for number in numbers
        ]
        self.keeps = dice.random() < 0.8
        """Whether messages that are not begun can be put back."""
        self.prefetch = dice.choice((0, 0, 5)) if self.keeps else 0
        self.total = count
        self.has_own_content = with_ids or contents == count
        self.handled: Counter[int] = Counter()
        self.calls: Counter[int] = Counter()
        self.failed_alone: Counter[int] = Counter()
        self.untold: Counter[int] = Counter()
        self.dead: dict[int, list[str]] = {}
        self.ends: list[Entry] = []
        """The messages that were handled, or are dead letters, in this order."""
        self.down: dict[str, float] = {}
        self.conflict_share = dice.choice((0.0, 0.1, 0.5))
        self.outage_share = dice.choice((0.0, 0.002, 0.01))
        self.kill_share = dice.choice((0.0, 0.0, 0.005)) if self.exact else 0.0
        self.losses = 0
        self.most_losses = min(UNTOLD, LOST_TIMES * self.limit) - 1 if self.exact else 0
        """How many deliveries may end with a process or a connection without a dead letter of an innocent message."""
        self.running: Run | None = None
        self.ends_at = self.now + TROUBLE_S
        self.names = itertools.count(1)
        processes = dice.choice((1, 1, 2, 3)) if self.exact else 1
        self.processes = [Process(self, next(self.names)) for _ in range(processes)]
        self.buried: list[Process] = []

    # --- the database and other transactions
    def is_down(self, name: str) -> bool:
        return self.down.get(name, 0.0) > self.now

    def handler_s(self) -> float:
        """How long a handler takes this time; one that is slower than usual only where it can't take too long."""
        factors = (1.0, 1.0, 1.2, 10.0) if self.settings.share_s < 1 < self.timeout_s else (1.0, 1.2)
        return self.usual_s * self.dice.choice(factors)

    def is_innocent(self, number: int) -> bool:
        """Whether a message is good, was not lost with a process or a connection, and can't be taken for another."""
        return number not in self.bad and not self.untold[number] and self.has_own_content

    def conflicts(self) -> bool:
        return self.now < self.ends_at and self.dice.random() < self.conflict_share

    # --- the broker
    def receive(self, transaction: Transaction, count: int) -> list[Delivered]:
        if transaction.is_lost or self.is_down("broker"):
            raise lost()
        if transaction.process.is_dead:
            return []
        link = transaction.link
        if link.recall:
            link.give_back()
        link.ahead += self._available(transaction, count + self.prefetch - len(link.ahead))
        taken, link.ahead = link.ahead[:count], link.ahead[count:]

        found = []
        for entry in taken:
            entry.holder = transaction
            transaction.said[entry] = Said()
            notes: dict[str, Any] = {"x-opt-retry-apart": True} if entry.apart else {}
            if entry.reason and (entry.count or entry.apart):
                notes["x-opt-retry-reason"] = entry.reason
            found.append(Delivered(entry, entry.count, dict(entry.annotations), notes, entry.id, entry.body))
        return found

    def _available(self, transaction: Transaction, count: int) -> list[Entry]:
        """The next messages for the link of a transaction, which holds them from now on. Those of a group go to one
        link at a time."""
        link, found = transaction.link, list[Entry]()
        elsewhere = {entry.group for entry in self.queue if entry.holder not in (None, link, transaction)} - {None}
        for entry in self.queue:
            if len(found) < count and entry.holder is None and entry.due <= self.now and entry.group not in elsewhere:
                entry.holder = link
                found.append(entry)
        return found

    def commit(self, transaction: Transaction) -> None:
        self._note("commit", transaction)
        for entry, said in transaction.said.items():
            entry.holder = None
            if said.outcome == "taken":
                self.queue.remove(entry)
            elif said.outcome == "rejected":
                self._die(entry, "rejected by the consumer")

        for entry, what in transaction.posts:
            if isinstance(what, Postponement):
                due = self.now + what.delay_ms / 1000
                self.queue.append(Entry(entry.number, entry.body, entry.id, dict(what.annotations), entry.group, due))
                if self.is_innocent(entry.number):
                    self.found.append(f"message {entry.number} is put off for others")
            else:
                self.dead.setdefault(entry.number, []).append(str(what.annotations["reason"]))
        self.handled.update(transaction.rows)
        self.ends += [entry for entry, said in transaction.said.items() if said.outcome == "taken"]
        self._leave(transaction)
        transaction.end(Verdict.COMMITTED)

    def roll_back(self, transaction: Transaction, *, is_loss: bool = False) -> None:
        self._note("lost" if is_loss else "rollback", transaction)
        for entry, said in transaction.said.items():
            if entry.holder is not transaction:
                continue
            entry.holder = None

            counted = is_loss or said.counted or not self.exact
            entry.count += counted
            if is_loss:
                self.untold[entry.number] += 1
            elif self.exact:
                entry.apart = entry.apart or said.apart
                entry.reason = said.reason or entry.reason
                if said.reason and entry.number not in self.bad:
                    self.found.append(f"message {entry.number} has the reason {said.reason}")
            outcome = outcomes.Outcome(MODIFIED, failed=counted, reason="" if is_loss else said.reason, lost=is_loss)
            if outcome.exhausts(entry.count, self.limit):
                self._die(entry, entry.reason)
        transaction.link.recall = transaction.link.recall or self.mutant.recalls
        self._leave(transaction)

    def _lose_ahead(self, link: Link) -> None:
        """A connection is lost, with what was sent ahead over it, which counts as delivered."""
        for entry in link.give_back():
            entry.count += 1
            self.untold[entry.number] += 1
            if LOST.exhausts(entry.count, self.limit):
                self._die(entry, entry.reason)

    def _die(self, entry: Entry, reason: str) -> None:
        self.ends.append(entry)
        self.queue.remove(entry)
        self.dead.setdefault(entry.number, []).append(reason)

    @staticmethod
    def _leave(transaction: Transaction) -> None:
        if transaction in transaction.process.live:
            transaction.process.live.remove(transaction)

    def _note(self, what: str, transaction: Transaction) -> None:
        said = {entry.number: (s.outcome, s.counted, s.reason) for entry, s in transaction.said.items()}
        if said:
            self.trace.append(f"{self.now:.3f} {what} in process {transaction.process.number}: {said}")

    # --- what goes wrong
    def _trouble(self) -> None:
        dice = self.dice
        if dice.random() < self.outage_share:
            name = dice.choice(("shop", "shop", "broker"))
            self.down[name] = self.now + dice.choice((0.1, 1.0, 8.0))
            self.trace.append(f"{self.now:.3f} {name} is away until {self.down[name]:.3f}")
            if name == "broker":
                self._restart_broker()

        if self.losses < self.most_losses and dice.random() < self.kill_share:
            self.losses += 1
            process = dice.choice(self.processes)
            if dice.random() < 0.5 and process.live:
                transaction = dice.choice(process.live)
                if not transaction.prepared:
                    transaction.is_lost = True
                    self.roll_back(transaction, is_loss=True)
                    self._lose_ahead(transaction.link)
            else:
                self._kill(process)
        elif dice.random() < self.kill_share:
            dice.choice(self.processes).is_stopping = True

    def _restart_broker(self) -> None:
        """What it has in memory only is gone, and so are the connections."""
        for entry in self.queue:
            entry.apart, entry.reason = False, ""
        for process in self.processes:
            for run in process.runs:
                run.link.give_back()
            for transaction in tuple(process.live):
                if not transaction.prepared:
                    transaction.is_lost = True
                    for entry in transaction.said:
                        if entry.holder is transaction:
                            entry.holder = None

    def _kill(self, process: Process) -> None:
        self.trace.append(f"{self.now:.3f} process {process.number} is killed")
        process.is_dead = True
        for transaction in tuple(process.live):
            self.roll_back(transaction, is_loss=not transaction.prepared)
            transaction.end(Verdict.ROLLED_BACK)
        for run in process.runs:
            self._lose_ahead(run.link)
        self._replace(process)

    def _replace(self, process: Process) -> None:
        self.buried.append(process)
        self.processes[self.processes.index(process)] = Process(self, next(self.names))

    # --- running
    def run(self) -> None:
        """Until every message has come to an end, and no worker has anything in hand."""
        try:
            for _ in range(STEPS):
                if not self.queue:
                    return
                if self.now < self.ends_at:
                    self._trouble()
                for process in tuple(self.processes):
                    if process.is_stopping and all(run.is_over for run in process.runs):
                        for run in process.runs:
                            run.link.give_back()
                        self._replace(process)

                runs = [run for process in self.processes for run in process.runs if not run.is_over]
                ready = [run for run in runs if run.wake <= self.now]
                if not ready:
                    self.now = min(run.wake for run in runs)
                    continue
                self.now += 0.0001
                self.dice.choice(ready).step()
            self.found.append(f"it does not come to an end: {[entry.number for entry in self.queue]}")
        finally:
            for process in (*self.processes, *self.buried):
                process.is_dead = True
                for run in process.runs:
                    run.steps.close()

    @property
    def _says_attempts(self) -> bool:
        return self.exact and self.settings.retry_for_s is None

    def violations(self) -> list[str]:
        """What breaks the law."""
        found = [*self.found, *self._out_of_order()]
        bad = self.bad
        for number in range(self.total):
            handled, dead = self.handled[number], self.dead.get(number, [])
            if number not in bad:
                if handled != 1 or dead:
                    found.append(f"message {number} was handled {handled} times, and is a dead letter for {dead}")
                continue

            if handled or len(dead) != 1:
                found.append(f"bad message {number} was handled {handled} times, and is a dead letter for {dead}")
            elif "poison" in dead[0] and not dead[0].endswith(f"poison {number}") and self.has_own_content:
                found.append(f"bad message {number} is a dead letter with the reason of another one: {dead}")
            attempts = self.failed_alone[number] + self.untold[number]
            most = self.settings.max_deliveries
            if self.limit:
                most = min(most, LOST_TIMES * self.limit)
            if number in self.poison and attempts < most and self._says_attempts:
                found.append(f"bad message {number} had {attempts} attempts of its own")
        return found

    def _out_of_order(self) -> list[str]:
        """The groups whose messages did not come to their ends in their order, unless some were put off. With one
        worker all messages are like one group."""
        if self.settings.retry_waits == "broker":
            return []
        is_alone = self.settings.workers == len(self.processes) == 1
        ends: dict[int | None, list[int]] = {}
        for entry in self.ends:
            if entry.group is not None or is_alone:
                ends.setdefault(None if is_alone else entry.group, []).append(entry.number)
        return [f"out of order: {numbers}" for numbers in ends.values() if numbers != sorted(numbers)]
