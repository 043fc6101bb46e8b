"""`python -m bench e2e` consumes, writes and produces, with the durable broker and PostgreSQL at their defaults.

Everything is forced: SQLite's WAL at each group of the broker, PostgreSQL at its default durability, the decision log.
Broker, PostgreSQL and the client are processes of this machine, and share its processors.

two_phase, decider .{1,16}.tx_per_s   orders handled one in a transaction, by so many workers of one process, with the
                                      open string of docs/consumers.md (ahead, prefetch)
fleet, fleet_decider .16.tx_per_s     the same by two processes of one configuration with eight workers each
batch100.msgs_per_s                   100 in a transaction (two-phase), all for the handler at once (takes="batch"): an
                                      executemany, and a send_batch
batch100.each_msgs_per_s              the same with a handler that is called for each message
app_default.{1,2x2}.msgs_per_s        an application as README.md shows it, with the defaults of all: one worker; two
                                      processes with two workers each
openwire.{1,16}.tx_per_s              as two_phase, over Artemis and OpenWire; not with --quick, nor without its jars
floor.{1,16}.tx_per_s                 INSERT, PREPARE TRANSACTION, COMMIT PREPARED from as many threads, plain psycopg
two_phase_of_floor_1, decider_gain    the ratios, each the median of those within one round
breakdown                             one transaction of one worker, in µs: processor time of client, broker and
                                      database, time of each verb, and what waits for the force of the decision
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.e2e_client import WARM_S, Job
from bench.peers.artemis import OpenWireArtemis
from bench.peers.programs import Program
from tm import TransactionManager
from xabridge.demo.shop.embedded_servers import EmbeddedServers
from xabridge.demo.shop.orders import AT_ONCE, orders_from
from xabridge.demo.shop.shop import BROKER
from xabridge.testing.broker import cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUMMARY: Final = "consume, write, produce with broker and PostgreSQL, against PostgreSQL's prepared transactions alone"
FOLDER: Final = Path(".bench")
WORKERS: Final = (1, 16)
FLEET: Final = (2, 8)
"""Processes of one configuration, and workers in each."""
APPS: Final = {"1": (1, 1), "2x2": (2, 2)}
"""The same of applications."""
BATCH: Final = 100
FASTEST: Final = 3_000
"""Orders a second that no run will handle: so many wait for each second of one."""
FASTEST_IN_BATCHES: Final = 30_000
OPTIONS: Final = {1: "ahead=true&prefetch=20", BATCH: "ahead=true&prefetch=200"}
"""What docs/consumers.md says that a consumer of one message, or of many in a transaction, should ask for."""


def measure(*, quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.5, 1) if quick else (3.0, 3)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name, EmbeddedServers(Path(name).absolute()) as embedded:
        bench = Bench(embedded, Path(name).absolute(), seconds)
        collected: dict[str, list[float]] = {}
        for number in range(rounds):
            for key, value in bench.rates(others=not quick):
                collected.setdefault(key, []).append(value)
                print(f"  round {number + 1}: {key}: {value:,.0f}/s", file=sys.stderr)
        breakdown = {kind: bench.breakdown(kind) for kind in ("two_phase", "decider")}
    return {**_nested(collected), **_ratios(collected), "breakdown": breakdown}


def _nested(collected: dict[str, list[float]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for key, values in collected.items():
        *outer, last = key.split(".")
        place_of = figures
        for part in outer:
            place_of = place_of.setdefault(part, {})
        place_of[last] = round(statistics.median(values), 1)
    return figures


def _ratios(collected: dict[str, list[float]]) -> dict[str, Any]:
    def of(one: str, other: str) -> float:
        pairs = zip(collected[one], collected[other], strict=True)
        return round(statistics.median(a / b for a, b in pairs), 3)

    return {
        "two_phase_of_floor_1": of("two_phase.1.tx_per_s", "floor.1.tx_per_s"),
        "two_phase_of_floor_16": of("two_phase.16.tx_per_s", "floor.16.tx_per_s"),
        "decider_gain": {
            str(workers): of(f"decider.{workers}.tx_per_s", f"two_phase.{workers}.tx_per_s") for workers in WORKERS
        },
    }


class Bench:
    """Runs on one shop."""

    def __init__(self, embedded: EmbeddedServers, folder: Path, seconds: float) -> None:
        self._embedded = embedded
        self._shop = embedded.shop()
        self._seconds = seconds
        self._folder = folder
        self._log = f"file://{folder / 'log'}"
        self._manager_log = f"file://{folder / 'generator'}"
        self._numbers = orders_from(1)
        self._queues = itertools.count(1)

    def rates(self, *, others: bool) -> Iterator[tuple[str, float]]:
        """Every rate once; with `others` also over another broker, which takes long to start and to fill."""
        for workers in WORKERS:
            for kind in ("floor", "two_phase", "decider"):
                yield f"{kind}.{workers}.tx_per_s", _rate(self.run(kind, workers=workers))
        processes, workers = FLEET
        for key, kind in (("fleet", "two_phase"), ("fleet_decider", "decider")):
            yield f"{key}.{processes * workers}.tx_per_s", _rate(self.run(kind, workers=workers, processes=processes))
        artemis = OpenWireArtemis.if_there(self._folder / f"artemis-{next(self._queues)}") if others else None
        if artemis is not None:
            with artemis:
                for workers in WORKERS:
                    yield f"openwire.{workers}.tx_per_s", _rate(self.run("openwire", workers=workers, other=artemis))
        yield "batch100.msgs_per_s", _rate(self.run("two_phase", batch=BATCH, together=True))
        yield "batch100.each_msgs_per_s", _rate(self.run("two_phase", batch=BATCH))
        for key, (processes, workers) in APPS.items():
            yield f"app_default.{key}.msgs_per_s", _rate(self.run("app", workers=workers, processes=processes))

    def breakdown(self, kind: str) -> dict[str, Any]:
        """Where the time of one transaction of one worker goes, in µs."""
        found = self.run(kind, steps=True)
        each = 1e6 / found["done"]
        return {
            "transaction_us": round(found["seconds"] * each),
            "client_cpu_us": round(found["cpu_s"] * each),
            "broker_cpu_us": round(found["broker_cpu_s"] * each),
            "database_cpu_us": round(found["database_cpu_s"] * each),
            "force_us": round(found["steps"].get("force log", 0.0) * each),
            "steps_us": {step: round(spent * each) for step, spent in sorted(found["steps"].items())},
        }

    def run(
        self,
        kind: str,
        *,
        workers: int = 1,
        processes: int = 1,
        batch: int = 1,
        together: bool = False,
        steps: bool = False,
        orders: int | None = None,
        other: OpenWireArtemis | None = None,
    ) -> dict[str, Any]:
        """What one run measured, over our own broker or the `other` one, with so many workers in each process. So many
        orders wait for it; RuntimeError when it has handled all of them."""
        broker = self._shop.broker if other is None else other.url
        mode = "decider" if kind == "decider" else "two-phase"
        queue = ""
        if kind != "floor":
            fastest = FASTEST_IN_BATCHES if batch > 1 or kind == "app" else FASTEST
            orders = orders or int((self._seconds + 2 * WARM_S) * fastest)
            queue = self.fill(orders, broker)

        has_options = other is None and kind != "app"
        job = Job(
            kind if kind in {"app", "floor"} else "consume",
            f"{broker}{'&' if '?' in broker else '/?'}{OPTIONS[batch]}" if has_options else broker,
            self._shop.database,
            "" if mode == "decider" else self._log,
            queue,
            mode,  # type: ignore[arg-type]
            workers,
            batch,
            together,
            self._seconds,
            steps,
        )
        jobs = [replace(job, number=number) for number in range(1, processes + 1)]
        measured = self._clients(jobs, self._embedded.broker.pid if other is None else other.pid)
        if orders is not None and measured["total"] >= orders:
            raise RuntimeError(f"all {orders} orders were handled before the time was over: this is no rate: {job}")
        return measured

    def _clients(self, jobs: Sequence[Job], broker: int) -> dict[str, Any]:
        """Runs the clients, which all measure the same time, and takes what the broker of this process id, and the
        database, use meanwhile."""
        postgres = self._embedded.postgres.pid
        errors = self._folder / "clients.err"
        with ExitStack() as stack:
            clients = [stack.enter_context(_program(job, errors)) for job in jobs]
            for client in clients:
                client.expect("ready")
            for client in clients:
                client.tell("go")

            used = []
            for word in ("begin", "end"):
                for client in clients:
                    client.expect(word)
                used.append((cpu_s(broker), cpu_s(postgres)))
            answers: list[dict[str, Any]] = [json.loads(client.hear()) for client in clients]

        measured = {name: sum(answer[name] for answer in answers) for name in ("done", "total", "cpu_s")}
        measured["seconds"] = max(answer["seconds"] for answer in answers)
        measured["steps"] = answers[0]["steps"]
        measured["broker_cpu_s"], measured["database_cpu_s"] = (
            after - before for before, after in zip(*used, strict=True)
        )
        return measured

    def fill(self, wanted: int, broker: str = "") -> str:
        """The name of a queue with so many orders, at our own broker or this one. Each run has its own: what the one
        before gave back counts as delivered."""
        queue = f"orders-{next(self._queues)}"
        with TransactionManager("generator", self._manager_log, {BROKER: broker or self._shop.broker}) as manager:
            for start in range(0, wanted, AT_ONCE):
                with manager.begin() as tx:
                    for order in islice(self._numbers, min(AT_ONCE, wanted - start)):
                        tx[BROKER].send(queue, order.message())
        return queue


def _program(job: Job, errors: Path) -> Program:
    command = [sys.executable, "-m", "bench.e2e_client", job.as_json()]
    return Program(f"process {job.number} of {job.kind}", command, errors)


def _rate(measured: dict[str, Any]) -> float:
    return float(measured["done"] / measured["seconds"])
