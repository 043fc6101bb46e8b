"""This is the environment of the core in tests: the embedded broker, PostgreSQL, a decision log, and the calls that
Spark would make.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from sqlalchemy import text

from dtx.broker.settings import QueueSettings
from dtx.broker.settings import Settings as BrokerSettings
from rm_amqp import AmqpResource, Message
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tm.log import Decision, LogError
from tm.log.sql.database import Database
from xa import FORMAT_ID, TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Xid
from xa.coroutines import drive
from xabridge.pipeline.core import (
    AddressTarget,
    Attempt,
    Batch,
    BatchRefused,
    LakeTarget,
    Messages,
    Offset,
    PipelineError,
    Query,
    Settings,
    SinkPlan,
    SinkReport,
    Source,
    SourcePartition,
    TableTarget,
)
from xabridge.pipeline.core.driver.open_pipeline import BlockingLog
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.driver.sink_coordinator import BatchResult, SinkCoordinator
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.ledger.status import PipelineStatus, look
from xabridge.pipeline.core.protocol import batch_decision
from xabridge.pipeline.core.resources import Resources, prepared_branches
from xabridge.pipeline.core.shards import Shard
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.source_task import read
from xabridge.pipeline.core.task.staged_rows import StagedRows

_NUMBERS: Final = itertools.count(1)
TABLE: Final = TableTarget("shop", "public.orders", lock_timeout_s=0.3)
_GIDS: Final = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
TABLES: Final = (
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, body text NOT NULL)",
    "CREATE TABLE totals (product text PRIMARY KEY, total bigint, note text)",
)
EVERY: Final = 1_000_000
"""A batch that no test reaches."""
DELIVERIES: Final = 4
"""How often a message is delivered in vain before it is a dead letter."""
ALERTS: Final = AddressTarget("broker", "alerts")


@dataclass
class CoreEnvironment:
    """The places, and what tests ask of them."""

    broker: EmbeddedBroker
    database: str
    """Empty where there is none."""
    log: str
    pipeline: str = "orders"
    others: tuple[tuple[str, str], ...] = ()
    """Further resources."""
    resources: Resources = field(default_factory=Resources)
    outage_s: float = 60.0
    decides: bool = False
    """Whether the database of the log is `shop`, and decides."""
    _opened: list[SourcePlanner | SinkCoordinator] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        """What the pipeline knows."""
        broker = f"amqp://{self.broker.address}/?timeout=20"
        shop = (("shop", self.database),) if self.database else ()
        resources = (("broker", broker), *(() if self.decides else shop), *self.others)
        deciders = shop if self.decides else ()
        return Settings(self.pipeline, self.log, resources, deciders, outage_s=self.outage_s)

    # --- the driver -------------------------------------------------------------------------------------------------
    def reader(
        self,
        driver: str = "driver-1",
        *of: str,
        streaming: bool = True,
        query: Query | None = None,
        **source: Any,
    ) -> SourcePlanner:
        """A reader of the queue `orders`, or of others, which a query reads that starts now; or a job."""
        wanted = self.source(*of, **source)
        if streaming:
            self.start(wanted, driver=driver, query=query)
        return self.joined(wanted, driver, streaming=streaming)

    def joined(self, source: Source, driver: str = "driver-1", *, streaming: bool = True) -> SourcePlanner:
        """A source of the query that has started, or of a job."""
        reader = SourcePlanner(self.settings, source, driver, streaming=streaming, resources=self.resources)
        self._opened.append(reader)
        return reader

    def source(self, *resources: str, queues: tuple[str, ...] = ("orders",), **source: Any) -> Source:
        """What reads the queue `orders`, or these queues of each of these brokers."""
        shards = tuple(Shard(resource, queues) for resource in resources or ("broker",))
        return Source(shards, **{"partitions": 2, "rows": 100, **source})

    def start(self, *sources: Source, driver: str = "driver-1", query: Query | None = None) -> None:
        """What the driver does when it starts a query over these sources, whose checkpoint knows every batch."""
        start = query or Query("q", f"run-{next(_NUMBERS)}", EVERY)
        bind(self.settings, driver, start, sources, resources=self.resources)

    def writer(self, driver: str = "driver-1") -> SinkCoordinator:
        """A writer."""
        writer = SinkCoordinator(self.settings, driver, resources=self.resources)
        self._opened.append(writer)
        return writer

    def beside(self, pipeline: str) -> CoreEnvironment:
        """The same places, for another pipeline in another process."""
        return replace(self, pipeline=pipeline, resources=Resources(), _opened=[])

    def close(self) -> None:
        """Closes what was opened for it."""
        for opened in self._opened:
            opened.close()
        self.resources.close()

    # --- the executors ----------------------------------------------------------------------------------------------
    def rows(self, partition: SourcePartition) -> list[str]:
        """What a task reads."""
        return [str(body) for chunk in read(partition, resources=self.resources) for body in bodies(chunk)]

    def write(self, plan: SinkPlan, rows: Sequence[str], attempt: Attempt | None = None) -> SinkReport:
        """What a task writes: each row into the table, and as a message."""
        return self.task(plan, attempt or Attempt(0, 0), *[(TABLE, rows), (ALERTS, rows)] if rows else ())

    def task(self, plan: SinkPlan, attempt: Attempt, *writes: tuple[Any, ...]) -> SinkReport:
        """What an attempt writes: bodies into a table or to an address, or rows of some columns into a table."""
        with SinkTask(plan, attempt, resources=self.resources) as task:
            for target, *columns, what in writes:
                if isinstance(target, AddressTarget):
                    task.send(target, Messages([body.encode() for body in what]))
                elif isinstance(target, LakeTarget):
                    task.write_files(target, what, what.num_rows)
                elif isinstance(what, bytes):
                    task.write_csv(target, columns[0], what, what.count(b"\n"))
                elif columns:
                    task.write_rows(target, columns[0], what)
                else:
                    task.write_rows(target, ("body",), [(body,) for body in what])
            return task.prepare()

    def tasks(
        self, plan: SinkPlan, parts: Sequence[SourcePartition], *, write: Any = None, first: int = 0
    ) -> list[SinkReport]:
        """What the tasks of a batch have prepared; `write` is how one does it. Their attempts count from `first`."""
        one = write or self.write
        return [one(plan, self.rows(part), Attempt(at, first + at)) for at, part in enumerate(parts)]

    def job(self, *tasks: Sequence[tuple[Any, ...]], driver: str = "driver-1") -> None:
        """A batch of so many tasks, without streaming. PipelineError: it is given up."""
        writer = self.writer(driver)
        plan = writer.plan(streaming=False)
        try:
            writer.commit(plan, None, [self.task(plan, Attempt(at, at), *task) for at, task in enumerate(tasks)])
        except PipelineError:
            writer.abort(plan, None, [])
            raise

    def began(
        self, driver: str = "driver-1", *of: str, **source: Any
    ) -> tuple[SourcePlanner, Offset, Sequence[SourcePartition]]:
        """A reader, the end of its first batch, and what the tasks of that read."""
        reader = self.reader(driver, *of, **source)
        end = reader.latest(Offset())
        return reader, end, reader.plan(Offset(), end)

    def written(self, parts: Sequence[SourcePartition]) -> tuple[SinkCoordinator, SinkPlan, list[SinkReport]]:
        """A writer and its plan, and what each task of a batch has prepared."""
        writer = self.writer()
        plan = writer.plan()
        return writer, plan, self.tasks(plan, parts)

    def decide_and_die(self, writer: SinkCoordinator, plan: SinkPlan, reports: Sequence[SinkReport]) -> None:
        """The driver commits a batch, and is killed when its decision is durable."""
        pipeline = writer._opened(plan.incarnation)
        log: Any = pipeline.ports.log
        ports = replace(pipeline.ports, log=DyingLog(log._log, log._prefix))
        with suppress(KilledError):
            drive(batch_decision.commit(ports, pipeline.own, plan, Batch("q", 0), reports, pipeline.names))
            raise AssertionError("it was not killed")

    # --- a whole batch ----------------------------------------------------------------------------------------------
    def batch(
        self,
        reader: SourcePlanner,
        start: Offset,
        number: int,
        *,
        driver: str = "driver-1",
        end: Offset | None = None,
    ) -> tuple[Offset, BatchResult]:
        """A micro-batch from its planning to its commit."""
        end = end or reader.latest(start)
        return end, self.finish(reader.plan(start, end), number, driver=driver)

    def finish(self, partitions: Sequence[SourcePartition], number: int, *, driver: str = "driver-1") -> BatchResult:
        """A micro-batch that is planned, to its commit."""
        writer = self.writer(driver)
        plan = writer.plan()
        reports = self.tasks(plan, partitions)
        writer.close()
        committer = self.writer(driver)
        decided = committer.commit(plan, Batch("q", number), reports)
        committer.close()
        return decided

    # --- what is there ----------------------------------------------------------------------------------------------
    def put(
        self, bodies: Iterable[str], queue: str = "orders", broker: EmbeddedBroker | None = None, errors: str = "strict"
    ) -> None:
        """Messages that wait."""
        self.send([Message(body.encode(errors=errors), inferred=True) for body in bodies], queue, broker)

    def send(self, messages: Iterable[Message], queue: str = "orders", broker: EmbeddedBroker | None = None) -> None:
        """The same, of any kind."""
        rm = AmqpResource()
        rm.open(f"amqp://{(broker or self.broker).address}/", 1)
        xid = Xid(FORMAT_ID, b"put %d" % next(_NUMBERS), b"x")
        rm.start(xid, 1)
        rm.session(1).post(queue, [message.encode() for message in messages])
        rm.end(xid, 1, TMSUCCESS)
        rm.commit(xid, 1, TMONEPHASE)
        rm.close("", 1)

    def queued(self, queue: str = "orders", broker: EmbeddedBroker | None = None) -> list[str]:
        """What waits in a queue."""
        rm = AmqpResource()
        rm.open(f"amqp://{(broker or self.broker).address}/", 1)
        found = [octets for page in rm._read(queue, 1, 1000, None) for octets in page]
        rm.close("", 1)
        return [bodies_of(octets) for octets in found]

    def counts(self, queue: str = "orders") -> list[int]:
        """How often each message that waits there was delivered in vain."""
        return self.broker.inside(lambda one: [entry.count for entry in one.container.resource.find(queue)])

    def table(self) -> list[str]:
        """What stands in the table."""
        return [body for (body,) in self.ask("SELECT body FROM orders ORDER BY id")]

    def check(self, rows: Sequence[str]) -> None:
        """Each row is once in the table and once at the address."""
        assert sorted(self.table(), key=int) == list(rows)
        assert sorted(self.queued("alerts"), key=int) == list(rows)

    def ask(self, query: str) -> list[Any]:
        """The rows that PostgreSQL finds."""
        with psycopg.connect(self.database) as connection:
            return connection.execute(query.encode()).fetchall()

    def change(self, *statements: str) -> None:
        """Statements of an administrator there."""
        with psycopg.connect(self.database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def change_log(self, *statements: str) -> None:
        """The same, in the database of the log, of any kind."""
        database = Database(self.log)
        with database.engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        database.engine.dispose()

    def ask_log(self, query: str) -> list[Any]:
        """The rows that a query finds there."""
        database = Database(self.log)
        with database.engine.connect() as connection:
            found = list(connection.execute(text(query)))
        database.engine.dispose()
        return found

    def shown(self, **options: Any) -> PipelineStatus:
        """What `xabridge pipeline status` shows of the pipeline."""
        (shown,) = look(self.log, self.settings.resources, opened=self.resources, **options)
        return shown

    def prepared(self) -> list[str]:
        """Every prepared branch, wherever it is."""
        rm = AmqpResource()
        rm.open(f"amqp://{self.broker.address}/", 1)
        found = [xid.bqual.decode() for xid in rm.recover(1, TMSTARTRSCAN | TMENDRSCAN)]
        rm.close("", 1)
        for name, url in self.others:
            other = self.resources.get(name, url)
            found += [xid.bqual.decode() for xid in prepared_branches(other, b"")]
        gids = self.ask(_GIDS) if self.database else []
        return sorted(found + [Xid.parse(gid).bqual.decode() for (gid,) in gids])


class KilledError(Exception):
    """The driver is."""


class DyingLog(BlockingLog):
    """The driver is killed when its decision is durable."""

    async def force(self, decision: Decision) -> LogError | None:
        assert await super().force(decision) is None
        raise KilledError

    async def force_with_rows(self, decision: Decision, staged: Sequence[StagedRows]) -> LogError | BatchRefused | None:
        assert await super().force_with_rows(decision, staged) is None
        raise KilledError


def bodies(chunk: Messages) -> list[str]:
    """The bodies as text."""
    return [body.decode() if isinstance(body, bytes) else str(body) for body in chunk.body]


def bodies_of(octets: bytes) -> str:
    """The body of a message."""
    message = Message.from_octets(octets)
    return bytes(message.body).decode(errors="replace") if isinstance(message.body, bytes) else str(message.body)


def new_broker(folder: Path) -> EmbeddedBroker:
    """A broker that soon gives up a message that is delivered in vain."""
    return EmbeddedBroker(folder, settings=BrokerSettings(queue_defaults=QueueSettings(max_deliveries=DELIVERIES)))


@contextmanager
def new_environment(postgres: Postgres | None, folder: Path) -> Iterator[CoreEnvironment]:
    """An environment with a broker, queues, table and log of its own; without a server it has no table."""
    env = CoreEnvironment(new_broker(folder), "", f"sqlite:///{folder / 'log.db'}")
    if postgres is not None:
        env.database = postgres.create_database()
        env.change(*TABLES)
    try:
        yield env
    finally:
        env.close()
        env.broker.stop()
