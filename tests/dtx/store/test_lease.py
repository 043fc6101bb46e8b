"""The lease on a store in PostgreSQL. A process that is paused at any step, while another one takes the store, writes
nothing and tells nothing when it wakes up; two stores stand for the processes.

Then random schedules of three processes that want one store, in a model of the server, with a pause, a jump of time or
a lost connection between any two steps. `Lease` is the real one. Each mutant has to be caught. XABRIDGE_SCHEDULES sets
how many schedules run, XABRIDGE_SEED runs one again."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest
from sqlalchemy import make_url

from dtx.store.contract import Step, StoreError, StoreLocked, StoreStopped
from dtx.store.sql import SqlStore, lease, postgres
from dtx.store.sql.lease import Lease
from tests.dtx.store.stores import WAIT_S, Clock, Loop, Opened, enqueued
from tests.postgres import Postgres
from tests.simulation.seeds import few, many
from tests.waiting import until

# -- stores
QUEUE = 1
LEASE_S = 1.0
BEFORE, DURING = 1, 2


class Process:
    """A process with the store at `url`, which can be paused at a step of its store, as SIGSTOP does."""

    def __init__(self, url: str) -> None:
        self.runs = threading.Event()
        self.runs.set()
        self.renews = threading.Event()
        self.renews.set()
        self.pause_at: Step | None = None
        self.paused = threading.Event()
        self.lost: list[StoreStopped] = []
        self.loop = Loop()
        self.store = SqlStore(url, self.loop.deliver, self._step, lease_s=LEASE_S, lost=self.lost.append)
        self.answers: list[StoreError | None] = []

    def open(self) -> Opened:
        """Opens the store; the lease is renewed as long as the process runs."""
        opened = Opened(self.store, self.loop)
        held = self.lease
        ask = held._ask

        def renew() -> bool:
            self.renews.wait(WAIT_S)
            return ask()

        held._ask = renew
        return opened

    def pause(self) -> None:
        """Stops both of its threads."""
        self.runs.clear()
        self.renews.clear()

    @property
    def lease(self) -> Lease:
        """What it holds the store by."""
        assert self.store._opened is not None
        assert self.store._opened.lease is not None
        return self.store._opened.lease

    @property
    def may_tell(self) -> bool:
        """Whether it may, at this moment."""
        return self.store.may_tell

    def _step(self, step: Step) -> None:
        if step is self.pause_at:
            self.pause_at = None
            self.pause()
            self.paused.set()
        self.runs.wait(WAIT_S)


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.create_database()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Process, Process]]:
    """Two processes that want one store."""
    both = Process(url), Process(url)
    yield both
    for process in both:
        process.runs.set()
        process.renews.set()
        process.store.close()


def violations(pair: tuple[Process, Process], step: Step) -> list[str]:
    """What goes wrong when the first process is paused at `step` of a write, the second one takes the store, and the
    first one wakes up."""
    first, second = pair
    opened = first.open()
    opened.keep(enqueued([BEFORE], QUEUE))
    first.pause_at = step
    first.store.submit(enqueued([DURING], QUEUE), first.answers.append)
    assert first.paused.wait(WAIT_S)
    taken = second.open()
    found = ["it may tell something while another one has the store"] if first.may_tell else []
    restored = {message.number for message in taken.restored.messages()}
    if restored != ({BEFORE, DURING} if step is Step.FORCED else {BEFORE}):
        found.append(f"{restored} was restored")
    first.runs.set()  # the thread that writes wakes up first
    opened.loop.until(lambda: first.answers)
    if first.may_tell:
        found.append("it may tell something that it has found out since")
    first.renews.set()
    opened.loop.until(lambda: first.lost)
    if first.may_tell:
        found.append("it may tell something after it has lost the store")
    if step is not Step.FORCED and first.answers == [None]:
        found.append("it has written")
    if not found:
        assert isinstance(first.answers[0], StoreStopped) is (step is not Step.FORCED)
        taken.keep(enqueued([second.store.first_number], QUEUE))

    second.store.close()
    third = Opened(SqlStore(str(second.store._url), Loop().deliver), Loop())
    written = {message.number for message in third.restored.messages()} - {second.store.first_number}
    third.store.close()
    if written != restored:
        found.append(f"{written} was stored at last")
    return found


@pytest.mark.parametrize("step", list(Step))
def test_a_process_that_is_paused_neither_writes_nor_tells(pair: tuple[Process, Process], step: Step) -> None:
    assert violations(pair, step) == []


def test_without_the_epoch_it_would_write(pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.PostgresTransactions, "begin", lambda *_: None)
    assert "it has written" in violations(pair, Step.BEFORE_WRITE)


def test_without_looking_at_the_lease_it_would_tell(
    pair: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "lasts", True)
    assert "it may tell something while another one has the store" in violations(pair, Step.BEFORE_WRITE)


def test_who_is_paused_and_replaced_by_nobody_goes_on(url: str) -> None:
    process = Process(url)
    opened = process.open()
    process.pause()
    process.lease._until = float("-inf")  # it was paused for so long
    told = process.may_tell
    process.runs.set()
    process.renews.set()
    until(lambda: process.may_tell)
    assert (told, process.lost) == (False, [])
    opened.keep(enqueued([BEFORE], QUEUE))
    process.store.close()


def test_while_the_lock_of_an_opening_is_held_nobody_takes_the_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_OPENING_S", 0.0)
    database = postgres.PostgresDatabase(make_url(url), LEASE_S)
    try:
        other = database.reader()
        other.exec_driver_sql(postgres._OPENING.replace("_xact_", "_"))
        with pytest.raises(StoreLocked, match="advisory lock"):
            SqlStore(url, Loop().deliver, lease_s=LEASE_S).open()
    finally:
        database.close()


class Told:
    """What a lease tells."""

    def __init__(self) -> None:
        self.lost: list[StoreStopped] = []
        self.broken = 0

    def break_off(self) -> None:
        """Counts."""
        self.broken += 1


def made(clock: Clock, told: Told, answers: list[bool | Exception], takes_s: float = 0.0) -> Lease:
    """A lease of ten seconds over a server that gives these answers, each after some time."""

    def ask() -> bool:
        clock.now += takes_s
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Lease(ask, (OSError,), told.lost.append, told.break_off, lease_s=10.0, sent=clock.now, clock=clock)


def test_it_lasts_from_before_it_was_asked_for() -> None:
    clock, told = Clock(), Told()
    held = made(clock, told, [True, True], takes_s=9.0)
    assert held.renew() == 0.0  # again, at once
    assert not held.lasts
    assert not told.lost
    clock.now -= 8.5
    assert held.lasts


def test_errors_are_overcome_as_long_as_it_lasts() -> None:
    clock, told = Clock(), Told()
    held = made(clock, told, [OSError("no route"), True, OSError("no route")], takes_s=1.0)
    assert held.renew() == lease.AGAIN_S
    assert held.renew() == 10.0 / lease.RENEWALS
    clock.now += 8.0
    assert held.renew() is None
    assert told.broken == 1
    assert "ran out, and could not be renewed: no route" in str(told.lost)


def test_a_server_that_does_not_answer_is_given_up() -> None:
    clock, told = Clock(), Told()
    held = made(clock, told, [])
    held.watch()
    clock.now += 60.0  # it was paused
    held.watch()
    clock.now += 5.0
    held.watch()
    broken = [told.broken]
    clock.now += 0.1
    held.watch()
    assert [*broken, told.broken] == [0, 1]


# -- schedules
LASTS_S = 10.0
STEPS = 120
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "0"))


class Unreachable(Exception):
    """The connection was lost."""


class Server:
    """The rows of the server, and its clock, which is true time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.epoch = 0
        self.until = 0.0
        self.writing: Candidate | None = None
        """Who holds the lock on the epoch's row."""


class Candidate:
    """A process: it takes the store, writes, and answers questions from memory."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self._rate = rate
        """How fast its clock is."""
        self.epoch = 0
        self.lease: Lease | None = None
        self.inside = False
        """Whether one of its steps is going on."""
        self.steps = self._life()

    def clock(self) -> float:
        """Its own."""
        return 1000.0 + self._rate * self._world.server.now

    def _life(self) -> Iterator[None]:
        world = self._world
        while True:
            if self.lease is None:
                yield from self._take()
                continue
            action = world.random.choice((self._write, self._answer, self._renew))
            yield from action()

    def _take(self) -> Iterator[None]:
        server = self._world.server
        sent = self.clock()
        yield
        if server.until > server.now or (server.writing is not None and self._world.random.random() < 0.5):
            return  # refused, or it waits for the lock
        server.writing = None  # the server has ended that transaction
        server.epoch += 1
        server.until = server.now + LASTS_S
        self.epoch = server.epoch
        yield
        self.lease = self._world.make_lease(self._ask, self._lost, sent, self.clock)

    def _ask(self) -> bool:
        world = self._world
        world.meanwhile()
        if world.random.random() < 0.1:
            raise Unreachable
        renewed = world.server.epoch == self.epoch
        if renewed:
            world.server.until = world.server.now + LASTS_S
        world.meanwhile()
        if world.random.random() < 0.1:
            raise Unreachable
        return renewed

    def _renew(self) -> Iterator[None]:
        if self.lease is not None:
            self.lease.renew()
        yield

    def _lost(self, _error: StoreStopped) -> None:
        self._stop()

    def _write(self) -> Iterator[None]:
        server = self._world.server
        if server.writing is not None:
            return
        if not self._world.fenced(server.epoch == self.epoch):
            self._stop()
            return
        server.writing = self
        epoch = self.epoch
        yield
        if server.writing is not self:  # the server has ended the transaction
            self._stop()
            return
        server.writing = None
        if server.epoch != epoch:
            self._world.found.append(f"epoch {epoch} wrote under epoch {server.epoch}")

    def _stop(self) -> None:
        self.lease, self.epoch = None, 0

    def _answer(self) -> Iterator[None]:
        yield  # something was found out
        if self.lease is not None and self._world.may_tell(self.lease) and self._world.server.epoch != self.epoch:
            self._world.found.append(f"epoch {self.epoch} answered under epoch {self._world.server.epoch}")


class World:
    """Everything, with what went wrong in `found`; what a mutant does otherwise stands in its methods."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.server = Server()
        self.found: list[str] = []
        self.processes = [Candidate(self, rate) for rate in (1.0, 0.9, 1.1)]

    def make_lease(
        self, ask: Callable[[], bool], lost: Callable[[StoreStopped], None], sent: float, clock: Callable[[], float]
    ) -> Lease:
        """A lease."""
        return Lease(ask, (Unreachable,), lost, lambda: None, lease_s=LASTS_S, sent=sent, clock=clock)

    def fenced(self, same: bool) -> bool:
        """Whether a write goes on."""
        return same

    def may_tell(self, lease: Lease) -> bool:
        """Whether an answer is given."""
        return lease.lasts

    def meanwhile(self) -> None:
        """Some time passes, sometimes much, and others do something."""
        self.server.now += self.random.choice((0.0, 0.01, 0.5, 3.0, 8.5, 30.0))
        for _ in range(self.random.randrange(4)):
            self.step()

    def step(self) -> None:
        """Somebody does one thing."""
        process = self.random.choice(self.processes)
        if not process.inside:
            process.inside = True
            next(process.steps)
            process.inside = False

    def run(self) -> list[str]:
        """A schedule."""
        for _ in range(STEPS):
            self.server.now += self.random.choice((0.0, 0.1, 1.0, 2.5, 11.0))
            self.step()
        return self.found


class WithoutTheEpoch(World):
    def fenced(self, same: bool) -> bool:  # noqa: ARG002
        return True


class TellsAfterTheLease(World):
    def may_tell(self, lease: Lease) -> bool:  # noqa: ARG002
        return True


class FromAfterTheAnswer(Lease):
    """It counts from when the answer has come."""

    def renew(self) -> float | None:
        pause_s = super().renew()
        if pause_s is not None:
            self._until = self._clock() + lease.SHARE * self._lease_s
        return pause_s


class CountsFromTheAnswer(World):
    def make_lease(
        self, ask: Callable[[], bool], lost: Callable[[StoreStopped], None], sent: float, clock: Callable[[], float]
    ) -> Lease:
        return FromAfterTheAnswer(ask, (Unreachable,), lost, lambda: None, lease_s=LASTS_S, sent=sent, clock=clock)


class GoesOnWithoutAsking(World):
    """A lease that can't be renewed is taken for one that lasts."""

    def may_tell(self, lease: Lease) -> bool:
        return lease.lasts or self.random.random() < 0.01


def test_no_schedule_writes_or_tells_for_another() -> None:
    for seed in (*few(400), *many(0, 1, SCHEDULES)):
        assert World(seed).run() == [], f"seed {seed}"


@pytest.mark.parametrize("mutant", [WithoutTheEpoch, TellsAfterTheLease, CountsFromTheAnswer, GoesOnWithoutAsking])
def test_every_mutant_is_caught(mutant: type[World]) -> None:
    assert any(mutant(seed).run() for seed in range(2000))


def test_a_whole_lease_would_not_do_where_clocks_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SHARE", 1.05)
    assert any(World(seed).run() for seed in range(2000))
