"""These tests run random schedules of three processes that want one store, in a model of the server, with a pause, a
jump of time or a lost connection between any two steps. `Lease` is the real one. Each mutant of it has to be caught.

XABRIDGE_SCHEDULES sets how many schedules run, XABRIDGE_SEED runs one again.
"""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from dtx.store.sql import lease as leases
from dtx.store.sql.lease import Lease
from tests.simulation.seeds import few, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dtx.store.contract import StoreStopped

LEASE_S = 10.0
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
        self.writing: Process | None = None
        """Who holds the lock on the epoch's row."""


class Process:
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
        server.until = server.now + LEASE_S
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
            world.server.until = world.server.now + LEASE_S
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
        self.processes = [Process(self, rate) for rate in (1.0, 0.9, 1.1)]

    def make_lease(
        self, ask: Callable[[], bool], lost: Callable[[StoreStopped], None], sent: float, clock: Callable[[], float]
    ) -> Lease:
        """A lease."""
        return Lease(ask, (Unreachable,), lost, lambda: None, lease_s=LEASE_S, sent=sent, clock=clock)

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
            self._until = self._clock() + leases.SHARE * self._lease_s
        return pause_s


class CountsFromTheAnswer(World):
    def make_lease(
        self, ask: Callable[[], bool], lost: Callable[[StoreStopped], None], sent: float, clock: Callable[[], float]
    ) -> Lease:
        return FromAfterTheAnswer(ask, (Unreachable,), lost, lambda: None, lease_s=LEASE_S, sent=sent, clock=clock)


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
    monkeypatch.setattr(leases, "SHARE", 1.05)
    assert any(World(seed).run() for seed in range(2000))
