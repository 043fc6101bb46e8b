"""These tests run transactions of the most common use case over a network in memory, from the first connection to the
end of recovery, with a fault at every boundary in turn, and with several from a seed; in threads and in asyncio.

After every fault all parts of a transaction must be done, or none; the application must have got that outcome, unless
it got "unknown"; no call may take longer than its timeout; and recovery must finish the transaction, so that nothing is
left.

A failing seed is printed; run it again with XABRIDGE_SEED=n. XABRIDGE_SCHEDULES sets how many are run.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from rm_amqp import AmqpResource, Message, NoMessage
from tests.rm_amqp.client import RMID
from tests.rm_amqp.decider.test_deciding_faults import MOST_PASSES, World
from tests.rm_amqp.event_loop import run
from tests.rm_amqp.network import Kind, Network, boundaries
from tests.simulation.log import Disk, SimulatedLog
from tests.simulation.seeds import few, many
from tests.tm.wrapped import VERBS, Wrapped
from tm import OutcomeUnknown, RolledBack
from xa import TMREGISTER, TMUSEASYNC, Registrar, XaError
from xabridge.testing.reference import ReferenceFactory

SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "100"))
QUICK = 12
PARTS = 2
TIMEOUT_S = 20
OPTIONS = [f"timeout={TIMEOUT_S}", f"timeout={TIMEOUT_S}&ahead=true&prefetch=10"]
SHELLS: dict[str, list[Kind]] = {
    "blocking": [kind for kind in Kind if kind is not Kind.CANCEL],
    "asyncio": list(Kind),
}
FAULTY_PASSES = 4


class Timed(Wrapped):
    """Takes note of calls that take longer than they may."""

    def __init__(self, rm: AmqpResource, network: Network, overdue: list[str]) -> None:
        super().__init__(rm)
        self._network = network
        self._overdue = overdue

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        return self._timed(name, method) if name in {*VERBS, "open", "recover"} else method

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = self._network.now - self._network.still_s
            try:
                return method(*arguments)
            finally:
                took_s = self._network.now - self._network.still_s - began
                if took_s > TIMEOUT_S + 0.01:
                    self._overdue.append(f"{name} took {took_s:.2f} s")

        return call


class Field(World):
    """A broker with two phases in place of the one that decides, and a manager. The first boundary is that of the
    manager's first connection."""

    mode = "two-phase"
    brokers = "amqp://here,there/"

    def __init__(
        self,
        options: str,
        shell: str,
        faults: Mapping[int, Kind],
        transactions: int = 1,
        takes: int = 1 << 30,
        flags: int = TMUSEASYNC,
    ) -> None:
        self.bodies = [f"M{number}" for number in range(transactions + 1)]
        super().__init__(self.bodies, options)
        self.told: list[str] = []
        self.overdue: list[str] = []
        self._shell = shell
        self._flags = flags
        self._transactions = transactions
        self.network.takes = takes
        self.network.boundaries, self.network.faults = 0, dict(faults)
        log = SimulatedLog(Disk(b"simulate"), "sim-1")
        self.manager = self.manager_of("sim-1", self._timed, ReferenceFactory(self.store), log)

    def _timed(self, registrar: Registrar) -> Any:
        return Timed(self.network.resource(registrar, self._flags), self.network, self.overdue)

    def client(self) -> AmqpResource:
        rm = self.network.resource()
        rm.open(self.url, RMID)
        return rm

    # --- the application ---------------------------------------------------------------------------------------
    def work(self) -> None:
        """The transactions, one after the other."""
        if self._shell == "asyncio":
            run(self.network, self._work_async())
            return
        for number in range(self._transactions):
            try:
                with self.manager.begin() as tx:
                    message = tx["broker"].receive("x", 5)
                    tx["shop"].write(f"t{number}", message.body)
                    tx["broker"].send("y", Message(f"t{number} {message.body}"))
            except (OutcomeUnknown, RolledBack, XaError, NoMessage) as error:
                self._hear(error)
            else:
                self._hear(None)

    async def _work_async(self) -> None:
        for number in range(self._transactions):
            task = asyncio.create_task(self._transaction_async(number))
            self.network.cancel = task.cancel
            try:
                await task
            except (OutcomeUnknown, RolledBack, XaError, NoMessage) as error:
                self._hear(error)
            except asyncio.CancelledError:
                self.told.append("cancelled")
            else:
                self._hear(None)

    async def _transaction_async(self, number: int) -> None:
        async with self.manager.begin() as tx:
            session = (await tx.aenlist("broker")).aio
            message = await session.receive("x", 5)
            (await tx.aenlist("shop")).write(f"t{number}", message.body)
            await session.send("y", Message(f"t{number} {message.body}"))

    def _hear(self, error: Exception | None) -> None:
        if error is None:
            self.told.append("committed")
        else:
            self.told.append("unknown" if isinstance(error, OutcomeUnknown) else "rolled back")

    # --- afterwards ---------------------------------------------------------------------------------------------
    def recover(self) -> None:
        """The manager recovers; what faults are left strike its first passes. Then everybody can be reached."""
        network = self.network
        for number in range(MOST_PASSES):
            if number == FAULTY_PASSES:
                network.faults.clear()
            report = self.manager.recover()
            network.sleep(62)
            if report.clean and not report.ended and not report.findings and not network.faults:
                break
            if report.clean and not report.ended and not report.findings:
                network.faults.clear()
        else:
            pytest.fail(f"still in doubt: {report}")

        network.sleep(5)
        for queue in network.container.resource.queues.values():
            assert queue.counters.held == 0, f"{queue.name}: a manager that has nothing to do keeps messages"
        self.pass_long(self.manager)

    def check(self, where: str) -> None:
        data = self.store.data
        for number, told in enumerate(self.told):
            assert told in {"unknown", "cancelled", "committed" if f"t{number}" in data else "rolled back"}, where
        sent, left = self.look_into("y", "x")
        assert sorted(sent) == sorted(f"{key} {body}" for key, body in data.items()), where
        assert left == [body for body in self.bodies if body not in data.values()], where
        assert len(set(data.values())) == len(data), where
        assert [str(branch) for branch in self.network.container.registry] == [], where
        for queue in self.network.container.resource.queues.values():
            assert (queue.counters.held, queue.counters.pending) == (0, 0), where
        assert not self.store.in_doubt, where
        assert not self.overdue, where
        assert not [end for end in self.network.ends if end.fileno() >= 0], f"{where}: sockets are open"


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(("shell", "kind"), [(shell, kind) for shell, kinds in SHELLS.items() for kind in kinds])
def test_a_fault_at_every_boundary(kind: Kind, options: str, shell: str) -> None:
    """Also while the first connections are made: TCP, SASL, open, begin, attach, and what recovery asks at start."""
    heard: Counter[str] = Counter()
    for at in boundaries(kind, options, shell):
        field = Field(options, shell, {at: kind})
        field.work()
        struck = not field.network.faults
        field.recover()
        field.check(f"{kind.name} at boundary {at}, {options}, {shell}")
        heard[field.told[0]] += 1
        if not struck:
            break
    assert field.told == ["committed"]
    assert at > 50, "there are boundaries"
    assert ("rolled back" in heard) == (kind not in {Kind.SLOW, Kind.CANCEL})
    assert ("cancelled" in heard) == (kind is Kind.CANCEL)


# --- schedules -------------------------------------------------------------------------------------------------------
def _run(seed: int) -> list[str]:
    """Some transactions, and some faults, of which the later ones strike soon after the ones before them: while they
    are got over. What was told."""
    dice = Random(seed)
    options, shell, takes = dice.choice(OPTIONS), dice.choice(list(SHELLS)), dice.choice((1 << 30, 1 << 30, 700, 50))
    flags = dice.choice((TMUSEASYNC, TMUSEASYNC, TMREGISTER | TMUSEASYNC, 0))
    faults: dict[int, Kind] = {}
    at = dice.randrange(1, 250)
    for _ in range(dice.randint(1, 5)):
        faults[at] = dice.choice(SHELLS[shell])
        at += 1 + int(dice.expovariate(1 / dice.choice((4, 20, 60))))

    struck = ", ".join(f"{kind.name} at {number}" for number, kind in faults.items())
    what = f"seed {seed}: {struck}; {options}; {shell}; {takes} octets at a time; flags {flags:#x}"
    try:
        field = Field(options, shell, faults, transactions=3, takes=takes, flags=flags)
        field.work()
        field.recover()
    except BaseException as error:
        error.add_note(what)
        raise
    field.check(what)
    return field.told


def test_one_seed_or_a_quick_walk() -> None:
    for seed in few(QUICK):
        _run(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int) -> None:
    heard: Counter[str] = Counter()
    for seed in many(part, PARTS, SCHEDULES):
        heard.update(_run(seed))
    assert min(heard["committed"], heard["rolled back"]) > 0
