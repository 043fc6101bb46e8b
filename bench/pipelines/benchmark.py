"""`python -m bench pipeline` makes a row in PostgreSQL and a message to another queue of each message of 200 bytes.

Embedded broker on its durable store, PostgreSQL at its default durability, Spark on local[2] with a session that
a run of each job has warmed up; everything on this machine. A round is each job once, on a queue of its own.

exactly_once_rows_per_s    `amqp` and `xa`: one decision per micro-batch (the median of the rounds)
at_least_once_rows_per_s   the same job without distributed transactions: accept after write, COPY, pipelined sends,
                           with the engine of our own AMQP client, so that nothing else is different
proton_rows_per_s          the same with python-qpid-proton, the ordinary client
ratio, ratio_to_proton     the first by these, the median of those within one round
batch_ms                   milliseconds of a micro-batch of one message per task, the median over all rounds;
                           `spark`: with a source that makes rows of nothing, and a sink that drops them
batch_overhead_ms          `exact` beyond `spark`
many_tasks_ms              milliseconds of a batch of a message for each of 200 tasks that write (the median; `spark` as
                           above): each of them prepares a branch at the broker and one in the database
workers_2_over_1           exactly once on a standalone cluster of two workers with one core each, by one of one
cpu_us                     processor time of one message, by process
branches                   milliseconds of the decision and the finish of a batch by its branches, without Spark, and
                           of each further branch (`bench.pipelines.branches`)
brokers_rows_per_s         exactly once with one broker, and with two that have half of the messages each
brokers_cpu_us             processor time of one message with one broker and with two, over all processes: the median
                           of the rounds
brokers_cpu_2_over_1       the second by the first
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bench.pipelines.branches import measure_branches
from bench.pipelines.job import Job, Spark
from xabridge.demo.pipeline.cluster import Cluster
from xabridge.demo.pipeline.servers import PipelineServers
from xabridge.testing.broker import cpu_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.pipelines.job import Kind, Run

SUMMARY: Final = "the pipeline on Spark, exactly once against at least once"
FOLDER: Final = Path(".bench")
SIZE: Final = 200
MANY: Final = 200
"""Tasks: as many as Spark makes behind a shuffle."""
_TABLE: Final = b"CREATE TABLE copied (number bigint NOT NULL, content text NOT NULL)"
_COUNTS: Final = b"SELECT count(*), count(DISTINCT number) FROM copied"
_EMPTIED: Final = b"TRUNCATE copied"
KINDS: Final[tuple[Kind, ...]] = ("exact", "lean", "proton")


def measure(*, quick: bool) -> dict[str, Any]:
    messages, per_batch, small, rounds = (6_000, 3_000, 6, 1) if quick else (100_000, 25_000, 15, 3)
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))).absolute()
        bench = _Bench(stack.enter_context(PipelineServers(folder, 2)), folder, messages, per_batch)
        local, spent = _rates(bench, rounds)
        batches = _batches(bench, small, rounds)
        many = _many_tasks(bench, 2 if quick else 4)
        brokers = _brokers(bench, rounds)
        bench.close()
        branches = bench.branches((2, 20) if quick else (2, 50, 100), rounds)
        workers = {count: bench.on_cluster(count) for count in (1, 2)}

    return {
        "messages": messages,
        "rows_per_batch": per_batch,
        "exactly_once_rows_per_s": round(statistics.median(local["exact"])),
        "at_least_once_rows_per_s": round(statistics.median(local["lean"])),
        "proton_rows_per_s": round(statistics.median(local["proton"])),
        "ratio": _ratio(local, "lean"),
        "ratio_to_proton": _ratio(local, "proton"),
        "cpu_us": spent,
        "batch_ms": batches,
        "batch_overhead_ms": batches["exact"] - batches["spark"],
        "many_tasks_ms": many,
        **brokers,
        "workers_rows_per_s": {str(count): round(rate) for count, rate in workers.items()},
        "branches": branches,
        "workers_2_over_1": round(workers[2] / workers[1], 2),
    }


def _ratio(rates: dict[str, list[float]], other: Kind) -> float:
    pairs = zip(rates["exact"], rates[other], strict=True)
    return round(statistics.median(exact / plain for exact, plain in pairs), 3)


def _rates(bench: _Bench, rounds: int) -> tuple[dict[str, list[float]], dict[str, dict[str, float]]]:
    """Rows a second of each job, by round, and the processor time of a message in the last one. The first run warms."""
    bench.open("local[2]")
    for kind in KINDS:
        bench.run(kind)
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    spent: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for kind in KINDS if number % 2 == 0 else reversed(KINDS):
            rate = bench.run(kind).rows_per_s
            found[kind].append(rate)
            spent[kind] = bench.cpu_us
            print(f"  round {number + 1}: {kind}: {rate:,.0f} rows/s", file=sys.stderr)
    return found, spent


def _brokers(bench: _Bench, rounds: int) -> dict[str, Any]:
    """The exact job with one broker and with two: rows a second, and the processor time of a message."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    spent: dict[int, list[float]] = {1: [], 2: []}
    bench.run("exact", brokers=2)  # warms what only that one needs
    for number in range(rounds):
        for brokers in (1, 2) if number % 2 == 0 else (2, 1):
            rates[brokers].append(bench.run("exact", brokers=brokers).rows_per_s)
            spent[brokers].append(sum(bench.cpu_us.values()))
            shown = f"{rates[brokers][-1]:,.0f} rows/s, {spent[brokers][-1]:.1f} us"
            print(f"  brokers {number + 1}: {brokers}: {shown}", file=sys.stderr)
    return {
        "brokers_rows_per_s": {str(count): round(statistics.median(some)) for count, some in rates.items()},
        "brokers_cpu_us": {str(count): round(statistics.median(some), 1) for count, some in spent.items()},
        "brokers_cpu_2_over_1": round(statistics.median(spent[2]) / statistics.median(spent[1]), 2),
    }


def _batches(bench: _Bench, small: int, rounds: int) -> dict[Kind, float]:
    """Milliseconds of a batch with one row per task: the median over all rounds, without the first three of each."""
    kinds: tuple[Kind, ...] = (*KINDS, "spark")
    found: dict[Kind, list[int]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            ms = bench.run(kind, messages=2 * (small + 3), rows=2).ms[3:]
            found[kind] += ms
            print(f"  small batches {number + 1}: {kind}: {statistics.median(ms):,.0f} ms", file=sys.stderr)
    return {kind: round(statistics.median(ms), 1) for kind, ms in found.items()}


def _many_tasks(bench: _Bench, batches: int) -> dict[Kind, float]:
    """Milliseconds of a batch with one row per task, of many tasks: the median without the first one."""
    found: dict[Kind, float] = {}
    for kind in ("exact", "spark"):
        ms = bench.run(kind, messages=MANY * (batches + 1), rows=MANY, tasks=MANY).ms[1:]
        found[kind] = round(statistics.median(ms), 1)
        print(f"  {MANY} tasks: {kind}: {found[kind]:,.0f} ms", file=sys.stderr)
    return found


class _Bench:
    """Runs over the brokers and one PostgreSQL."""

    def __init__(self, servers: PipelineServers, folder: Path, messages: int, rows: int) -> None:
        self._servers = servers
        self._folder = folder
        self._messages = messages
        self._rows = rows
        self._numbers = itertools.count(1)
        self._log = servers.postgres.create_database("decisions")
        self._spark: Spark | None = None
        self.cpu_us: dict[str, float] = {}
        """Of a message of the latest run, by process."""
        with psycopg.connect(servers.database, autocommit=True) as database:
            database.execute(_TABLE)

    def open(self, master: str) -> None:
        """Starts the application on `master`."""
        self._spark = Spark(self._folder, master)

    def close(self) -> None:
        """Ends it."""
        if self._spark is not None:
            self._spark.close()

    def branches(self, tasks: Sequence[int], rounds: int) -> dict[str, Any]:
        """The driver's part of batches of so many tasks."""
        return measure_branches(self._servers, self._log, tasks, rounds)

    def on_cluster(self, workers: int) -> float:
        """Rows a second of the exact job on so many workers."""
        with Cluster(self._folder / f"cluster-{workers}", workers) as cluster:
            self.open(cluster.url)
            try:
                self.run("exact", partitions=workers)
                rate = self.run("exact", partitions=workers).rows_per_s
            finally:
                self.close()
        print(f"  {workers} workers: {rate:,.0f} rows/s", file=sys.stderr)
        return rate

    def run(
        self, kind: Kind, *, messages: int = 0, rows: int = 0, partitions: int = 2, tasks: int = 0, brokers: int = 1
    ) -> Run:
        """One run over a queue of its own; what it wrote is counted."""
        if self._spark is None:
            raise RuntimeError("there is no Spark")
        messages, rows, name = messages or self._messages, rows or self._rows, f"{kind}-{next(self._numbers)}"
        for broker in range(brokers) if kind != "spark" else ():
            self._servers.post(name, itertools.islice(_bodies(messages), broker, None, brokers), broker)

        second = f"127.0.0.1:{self._servers.ports[1]}" if brokers == 2 else ""
        job = Job(
            kind, name, f"{name}-copied", rows, partitions, self._servers.address, self._servers.database, self._log,
            str(self._folder / name), messages // rows, tasks, second,
        )  # fmt: skip
        before = self._cpu_s()
        done = self._spark.run(job)
        self.cpu_us = {name: round((after - before[name]) / messages * 1e6, 1) for name, after in self._cpu_s().items()}
        if kind != "spark":
            self._check(name, messages, brokers)
        return done

    def _cpu_s(self) -> dict[str, float]:
        """The processor time of each part so far."""
        spark = self._spark.cpu_s() if self._spark is not None else 0.0
        postgres = cpu_s(self._servers.postgres.pid)
        brokers = sum(broker.cpu_s() for broker in self._servers.brokers)
        return {"spark": spark, "broker": brokers, "database": postgres}

    def _check(self, name: str, messages: int, brokers: int) -> None:
        """RuntimeError: not everything was written once. (Nothing was killed: at least once is once.)"""
        with psycopg.connect(self._servers.database, autocommit=True) as database:
            row = database.execute(_COUNTS).fetchone()
            database.execute(_EMPTIED)
        if brokers == 1:
            sent = self._servers.depth(f"{name}-copied")
        else:
            sent = sum(self._servers.depth(f"{name}-copied#{broker}", broker) for broker in range(brokers))
        if row != (messages, messages) or sent != messages:
            raise RuntimeError(f"{name}: of {messages} messages came {row} rows, and {sent} messages")


def _bodies(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield (b"%08d" % number).ljust(SIZE, b"x")
