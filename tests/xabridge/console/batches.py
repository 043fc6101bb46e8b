"""Batches: a pipeline with batches in every state, made as Spark's processes would make them, without Spark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rm_amqp import Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.console.scene import url
from tests.xabridge.traffic import post
from xabridge.console.settings import WatchedPipelines
from xabridge.pipeline.core import (
    AddressTarget,
    Attempt,
    Batch,
    Messages,
    Offset,
    Query,
    Settings,
    Shard,
    Source,
    SourcePartition,
)
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.process_ids import driver_id
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.source_task import read
from xabridge.testing.ports import free_port

QUEUE: Final = "clicks"
EVERY: Final = 1_000_000
"""A batch that a checkpoint has not planned yet."""


class Pipeline:
    """One pipeline, from the queue `clicks` to the queue `alerts`."""

    def __init__(
        self, broker: EmbeddedBroker, folder: Path, name: str = "revenue", *, queue: str = QUEUE, away: str = ""
    ) -> None:
        self.broker = broker
        self.name = name
        self.queue = queue
        resources = [("main", url(broker))]
        self._shards = [Shard("main", (queue,))]
        if away:
            resources.append((away, f"amqp://127.0.0.1:{free_port()}/?connect_timeout=1&timeout=1"))
            self._shards.append(Shard(away, (queue,)))

        self.watched = WatchedPipelines(f"sqlite:///{folder / 'pipelines.db'}", tuple(resources))
        self.resources = Resources()
        self.driver = driver_id()
        self._settings = Settings(name, self.watched.log, self.watched.resources)
        self._planner: SourcePlanner | None = None
        self._end = Offset()
        self._planned: Offset | None = None
        self.gtrid = b""
        self._number = -1
        self._query = ""

    def put(self, count: int) -> None:
        """Messages that wait."""
        post(url(self.broker), self.queue, *(Message(b"%d" % number, inferred=True) for number in range(count)))

    def start(self, query: str = "5f0c7be2-9d1b-4a57-b4cf-6a2f8a1c9e33") -> None:
        """A query starts."""
        self._query = query
        source = Source(tuple(self._shards), partitions=2, rows=3, skips=True)
        bind(self._settings, self.driver, Query(query, "run", EVERY), [source], resources=self.resources)
        self._planner = SourcePlanner(self._settings, source, self.driver, resources=self.resources)

    def batch(self, *, logged: bool = True, decided: bool = True) -> None:
        """A batch of three messages: carried out, or left where it stands when a driver dies."""
        planner = self._planner
        assert planner is not None
        end = self._planned = self._planned or planner.latest(self._end)
        partitions = planner.plan(self._end, end)
        writer = SinkCoordinator(self._settings, self.driver, resources=self.resources)
        plan = writer.plan()
        reports = []
        for partition in partitions:
            with SinkTask(plan, Attempt(partition.index, partition.index), resources=self.resources) as task:
                task.send(AddressTarget("main", "alerts"), Messages(self._rows(partition)))
                reports.append(task.prepare())

        if decided:
            self._number += 1
            writer.commit(plan, Batch(self._query, self._number), reports)
        writer.close()
        self.gtrid = plan.gtrid
        if logged:
            planner.logged(end)
            self._end, self._planned = end, None

    def give_up(self) -> None:
        """Aborts the batch that is under way; nobody tells the resource managers."""
        ledger = LedgerOpener(self.watched.log, self.name, sleep=time.sleep).join(self.driver)
        ledger.log.abort(self.gtrid)
        ledger.close()

    def _rows(self, partition: SourcePartition) -> list[bytes | str | None]:
        return [body for chunk in read(partition, resources=self.resources) for body in chunk.body]

    def close(self) -> None:
        """Ends it, as a driver ends."""
        if self._planner is not None:
            self._planner.close()
        self.resources.close()


@contextlib.contextmanager
def pipeline(
    broker: EmbeddedBroker, folder: Path, *, queue: str = QUEUE, query: str = "q", many: int = 4, away: str = ""
) -> Iterator[Pipeline]:
    """A pipeline whose last batch but one is decided and not logged, and whose last one is under way. It also reads a
    broker that is `away`."""
    made = Pipeline(broker, folder, queue=queue, away=away)
    made.put(3 * many + 5)
    made.start(query)
    for _ in range(many):
        made.batch()
    made.batch(logged=False, decided=False)
    try:
        yield made
    finally:
        made.close()
