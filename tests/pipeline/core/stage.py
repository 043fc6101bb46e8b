"""Stage: the embedded broker, PostgreSQL and a decision log, and a Spark that does only what the core is for."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from pipeline.core import (
    AddressTarget,
    Attempt,
    Batch,
    Messages,
    Offset,
    Settings,
    SinkPlan,
    SinkReport,
    Source,
    SourcePartition,
    TableTarget,
)
from pipeline.core.driver import Decided, Reader, Writer
from pipeline.core.resources import Resources
from pipeline.core.task import SinkTask, read
from rm_amqp import AmqpResource, Message
from xa import FORMAT_ID, TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, TMSUCCESS, Xid

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.postgres import Postgres
    from tests.rm_amqp.embedded import EmbeddedBroker

_NUMBERS: Final = itertools.count(1)
TABLE: Final = TableTarget("shop", "public.orders", lock_timeout_s=0.3)
_GIDS: Final = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
ALERTS: Final = AddressTarget("broker", "alerts")


@dataclass
class Stage:
    """The places, and what tests ask of them."""

    broker: EmbeddedBroker
    database: str
    log: str
    pipeline: str = "orders"
    resources: Resources = field(default_factory=Resources)
    outage_s: float = 60.0
    _random: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def settings(self) -> Settings:
        """What the pipeline knows."""
        broker = f"amqp://{self.broker.address}/?timeout=20"
        return Settings(self.pipeline, self.log, (("broker", broker), ("shop", self.database)), outage_s=self.outage_s)

    # --- the driver -------------------------------------------------------------------------------------------------
    def reader(self, driver: str = "driver-1", *, streaming: bool = True, **source: Any) -> Reader:
        """A reader of the queue `orders`."""
        wanted = Source("broker", **{"queues": ("orders",), "partitions": 2, "rows": 100, **source})
        return Reader(self.settings, wanted, driver, streaming=streaming, resources=self.resources)

    def writer(self, driver: str = "driver-1") -> Writer:
        """A writer."""
        return Writer(self.settings, driver, resources=self.resources)

    # --- the executors ----------------------------------------------------------------------------------------------
    def rows(self, partition: SourcePartition) -> list[str]:
        """What a task reads."""
        return [str(body) for chunk in read(partition, resources=self.resources) for body in bodies(chunk)]

    def write(self, plan: SinkPlan, rows: Sequence[str], attempt: Attempt | None = None) -> SinkReport:
        """What a task writes: each row into the table, and as a message."""
        with SinkTask(plan, attempt or Attempt(0, 0), resources=self.resources) as task:
            if rows:
                task.write_rows(TABLE, ("body",), [(row,) for row in rows])
                task.send(ALERTS, Messages([row.encode() for row in rows]))
            return task.prepare()

    # --- a whole batch ----------------------------------------------------------------------------------------------
    def batch(
        self,
        reader: Reader,
        start: Offset,
        number: int,
        *,
        driver: str = "driver-1",
        end: Offset | None = None,
    ) -> tuple[Offset, Decided]:
        """A micro-batch from its planning to its commit."""
        end = end or reader.latest(start)
        partitions = reader.plan(start, end)
        writer = self.writer(driver)
        plan = writer.plan()
        reports = [
            self.write(plan, self.rows(partition), Attempt(partition.index, partition.index))
            for partition in partitions
        ]
        writer.close()
        committer = self.writer(driver)
        decided = committer.commit(plan, Batch("q", number), reports)
        committer.close()
        return end, decided

    # --- what is there ----------------------------------------------------------------------------------------------
    def put(self, bodies: Iterable[str], queue: str = "orders", errors: str = "strict") -> None:
        """Messages that wait."""
        rm = AmqpResource()
        rm.open(f"amqp://{self.broker.address}/", 1)
        xid = Xid(FORMAT_ID, b"put %d" % next(_NUMBERS), b"x")
        rm.start(xid, 1)
        rm.session(1).post(queue, [Message(body.encode(errors=errors), inferred=True).encode() for body in bodies])
        rm.end(xid, 1, TMSUCCESS)
        rm.commit(xid, 1, TMONEPHASE)
        rm.close("", 1)

    def queued(self, queue: str = "orders") -> list[str]:
        """What waits in a queue."""
        rm = AmqpResource()
        rm.open(f"amqp://{self.broker.address}/", 1)
        found = [octets for page in rm._read("browse", queue, 1, 1000, None) for octets in page]
        rm.close("", 1)
        return [bodies_of(octets) for octets in found]

    def table(self) -> list[str]:
        """What stands in the table."""
        with psycopg.connect(self.database) as connection:
            return [row[0] for row in connection.execute("SELECT body FROM orders ORDER BY id")]

    def prepared(self) -> list[str]:
        """Every prepared branch, wherever it is."""
        rm = AmqpResource()
        rm.open(f"amqp://{self.broker.address}/", 1)
        found = [xid.bqual.decode() for xid in rm.recover(1, TMSTARTRSCAN | TMENDRSCAN)]
        rm.close("", 1)
        with psycopg.connect(self.database) as connection:
            gids = [row[0] for row in connection.execute(_GIDS)]
        return sorted(found + [Xid.parse(gid).bqual.decode() for gid in gids])


def bodies(chunk: Messages) -> list[str]:
    """The bodies as text."""
    return [body.decode() if isinstance(body, bytes) else str(body) for body in chunk.body]


def bodies_of(octets: bytes) -> str:
    """The body of a message."""
    message = Message()
    message.decode(octets)
    return (
        bytes(message.body).decode(errors="replace")
        if isinstance(message.body, (bytes, memoryview))
        else str(message.body)
    )


def new_stage(broker: EmbeddedBroker, postgres: Postgres, folder: Path) -> Stage:
    """A stage with queues, table and log of its own."""
    database = postgres.create_database()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, body text NOT NULL)")
        connection.execute("CREATE TABLE totals (product text PRIMARY KEY, total bigint, note text)")
    return Stage(broker, database, f"sqlite:///{folder / 'log.db'}")
