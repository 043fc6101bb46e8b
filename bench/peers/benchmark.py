"""`python -m bench peers` does the work of `bench e2e` with others, and with us, in turns: consume, write, produce.

narayana     Narayana (JTA; decisions in ArjunaCore's journal store, forced), ActiveMQ Artemis (its Core client over XA,
             its journal as `artemis create` sets it up, forced) and pgjdbc over XA. With one worker both branches are
             prepared at once (asyncPrepare), with 16 one after the other: each is faster there
outbox       psycopg and python-qpid-proton over our own broker: a row for the outbox in the database's transaction, the
             message accepted afterwards, and a relay, a process of its own, which sends what the rows say. At least
             once, not exactly once: a crash can repeat rows and invoices
two_phase, decider    ours, as in `bench e2e`; a batch comes to the handler at once (takes="batch")
fleet        ours in two phases, by two processes of one configuration (`xabridge run --workers 2`)
app_default  an App as the README shows it, which shares transactions among messages that wait

PostgreSQL is the same server with the same table for all, at its default durability. Everybody has connections that
stay open, and messages that come ahead (20, or two batches). The rounds measure everybody in turns. Before the first
one, Java has rounds that don't count, so that its code is compiled.

NAME.1, NAME.16, NAME.batch100       1 and 16 workers of one process; 1 worker with 100 messages in a transaction
two_phase.each100, two_phase.batch100x4  the handler is called for each of 100 messages; four workers
fleet.16, app_default.1, app_default.2x2  two processes of 8 workers; one worker; two processes of two workers
  per_s, per_s_lowest, …_highest     messages per second (without batches these are transactions): the median, the
                                     lowest and the highest of the rounds; of the outbox what was handled, or what was
                                     forwarded if that is less
  cpu_us                             processor time of one message, by process, in µs
ratio                                our rate by that of each other, the median of those within one round: in the
                                     same shape; each100 and batch100x4 to batch100; fleet and app_default to 16
                                     workers with one message per transaction
artemis_journal, artemis_timeout_ns  the type of Artemis' journal, and the time-out that was measured for its buffer
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from bench.e2e import Bench
from bench.e2e_client import WARM_S
from bench.peers.figures import AS_PEERS, ENTRIES, MANY, Sample, figures_of, table
from bench.peers.java import Artemis, Narayana, build
from bench.peers.outbox import CREATE, Job
from bench.peers.programs import Program, watched
from xabridge.demo.shop.embedded_servers import EmbeddedServers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.peers.figures import Shape
    from xabridge.testing.broker import BrokerProcess

SUMMARY: Final = "consume, write, produce: Narayana with Artemis, an outbox with proton, and us"
FOLDER: Final = Path(".bench")
BUILT: Final = FOLDER / "java"
FIRST_GUESS: Final = {1: 3_000, 100: 30_000}
"""Messages a second that wait for a first run, by the size of a batch."""
SPARE: Final = 2.0
"""How many times as many messages wait for a run as the fastest one before would handle."""


class Contestant(Protocol):
    """One that does the work."""

    def measure(self, shape: Shape, orders: int) -> Mapping[str, Any]:
        """Puts so many orders into a new queue, and handles them for some time: what was `done`, in how many `seconds`,
        and the processor time `cpu_s` of each process."""
        ...


class Ours:
    """Our transaction manager, in one of the ways of `bench.e2e`."""

    def __init__(self, bench: Bench, kind: str) -> None:
        self._bench = bench
        self._kind = kind

    def measure(self, shape: Shape, orders: int) -> Mapping[str, Any]:
        measured = self._bench.run(
            self._kind,
            workers=shape.workers,
            processes=shape.processes,
            batch=shape.batch,
            together=shape.batch > 1 and not shape.each,
            orders=orders,
        )
        cpu = {"client": "cpu_s", "broker": "broker_cpu_s", "database": "database_cpu_s"}
        return {**measured, "cpu_s": {name: measured[key] for name, key in cpu.items()}}


class InJava:
    """Narayana and Artemis. `one` is the client for one worker, `many` the one for several."""

    def __init__(
        self, one: Narayana, many: Narayana, artemis: Artemis, embedded: EmbeddedServers, seconds: float
    ) -> None:
        self._one, self._many = one, many
        self._servers = {"broker": artemis.pid, "database": embedded.postgres.pid}
        self._seconds = seconds
        self._queues = itertools.count(1)

    def measure(self, shape: Shape, orders: int) -> Mapping[str, Any]:
        return self._run(self._one if shape.workers == 1 else self._many, shape, orders)

    def warm(self, shape: Shape) -> None:
        """Work of this shape for the client that does not have it in the rounds."""
        client = self._many if shape.workers == 1 else self._one
        self._run(client, shape, int(_first_guess(shape) * (self._seconds + 2 * WARM_S)))

    def _run(self, client: Narayana, shape: Shape, orders: int) -> Mapping[str, Any]:
        queue = f"orders-{next(self._queues)}"
        client.tell(f"fill {queue} {orders}")
        client.expect("filled")
        client.tell(f"run {queue} {shape.workers} {shape.batch} {WARM_S} {self._seconds}")
        return watched(client, {"client": client.pid, **self._servers})


class Outbox:
    """The outbox, with its relay."""

    def __init__(self, bench: Bench, embedded: EmbeddedServers, folder: Path, seconds: float) -> None:
        self._bench = bench
        self._embedded = embedded
        self._errors = folder / "outbox.err"
        self._address = f"127.0.0.1:{embedded.port}"
        self._database = embedded.shop().database
        self._seconds = seconds
        with psycopg.connect(self._database) as connection:
            connection.execute(CREATE)

    def measure(self, shape: Shape, orders: int) -> Mapping[str, Any]:
        queue = self._bench.fill(orders)
        job = Job(self._address, self._database, queue, shape.workers, shape.batch, self._seconds)
        with self._program("relay", job) as relay, self._program("consume", job) as consumer:
            processes = {"client": consumer.pid, "relay": relay.pid}
            processes |= {"broker": self._embedded.broker.pid, "database": self._embedded.postgres.pid}
            forwarded: list[int] = []

            def count() -> None:
                relay.tell("?")
                forwarded.append(int(relay.hear()))

            measured = watched(consumer, processes, count)
        if measured["total"] >= orders:
            raise RuntimeError(f"the outbox handled all {orders} orders before the time was over: this is no rate")
        return {**measured, "done": min(measured["done"], forwarded[1] - forwarded[0])}

    def _program(self, part: str, job: Job) -> Program:
        return Program(
            f"the outbox ({part})", [sys.executable, "-m", "bench.peers.outbox", part, job.text()], self._errors
        )


def measure(*, quick: bool) -> dict[str, Any]:
    seconds, rounds, warming = (1.0, 1, 3) if quick else (3.0, 5, 8)
    FOLDER.mkdir(exist_ok=True)
    java = build(BUILT.absolute())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))).absolute()
        embedded = stack.enter_context(EmbeddedServers(folder))
        bench = Bench(embedded, folder, seconds)
        artemis = stack.enter_context(Artemis(java, folder / "artemis"))
        database = embedded.shop().database
        one = stack.enter_context(Narayana(java, folder / "one", artemis, database, "together"))
        many = stack.enter_context(Narayana(java, folder / "many", artemis, database, "in-turn"))
        in_java = InJava(one, many, artemis, embedded, seconds)
        contest = Contest(
            {
                "narayana": in_java,
                "outbox": Outbox(bench, embedded, folder, seconds),
                "two_phase": Ours(bench, "two_phase"),
                "decider": Ours(bench, "decider"),
                "fleet": Ours(bench, "two_phase"),
                "app_default": Ours(bench, "app"),
            },
            seconds,
        )
        for _ in range(warming):
            contest.round("warming up", ("narayana",))
            in_java.warm(MANY)

        collected = []
        for number in range(rounds):
            collected.append(contest.round(f"round {number + 1}", tuple(ENTRIES), number))
            _empty(embedded.broker, folder / "broker")

    figures = figures_of(collected)
    print(table(figures), file=sys.stderr)
    return {**figures, "artemis_journal": artemis.journal, "artemis_timeout_ns": int(artemis.nanoseconds)}


def _first_guess(shape: Shape) -> int:
    return FIRST_GUESS[1 if shape.batch == 1 and not shape.shared else 100]


def _empty(broker: BrokerProcess, folder: Path) -> None:
    """Starts our broker again, with an empty store. Queues can't be deleted, and a million messages of earlier rounds
    are a burden. (Artemis deletes its queues after each run.)"""
    broker.kill()
    for file in folder.glob("store.db*"):
        file.unlink()
    broker.start()


class Contest:
    """Everybody in turns."""

    def __init__(self, contestants: Mapping[str, Contestant], seconds: float) -> None:
        self._contestants = contestants
        self._seconds = seconds
        self._fastest: dict[tuple[str, Shape], float] = {}

    def round(self, title: str, names: Sequence[str], number: int = 0) -> list[Sample]:
        """Everybody once in each of their shapes, those that are compared to each other one after the other. Another
        one begins in each round."""
        first = number % len(names)
        samples = []
        for against in AS_PEERS:
            for who in (*names[first:], *names[:first]):
                for shape in ENTRIES[who].compared_to(against):
                    sample = self._run(who, shape)
                    samples.append(sample)
                    cpu = ", ".join(f"{name} {spent:,.0f}" for name, spent in sample.cpu_us.items())
                    print(
                        f"  {title}: {ENTRIES[who].name}, {shape.name}: {sample.per_s:,.0f}/s, µs: {cpu}",
                        file=sys.stderr,
                    )
        return samples

    def _run(self, who: str, shape: Shape) -> Sample:
        rate = max(_first_guess(shape), SPARE * self._fastest.get((who, shape), 0.0))
        sample = Sample.of(who, shape, self._contestants[who].measure(shape, int(rate * (self._seconds + 2 * WARM_S))))
        self._fastest[who, shape] = max(self._fastest.get((who, shape), 0.0), sample.per_s)
        return sample
