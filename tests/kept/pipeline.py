"""A pipeline whose micro-batch is decided and not carried out: python -m tests.kept.pipeline LEDGER BROKER
QUEUE

It moves the messages of QUEUE to the queue `alerts` in one micro-batch, in two tasks, and kills itself
when the batch is decided and no branch is committed. Spark's next driver does the same batch again.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rm_amqp import AmqpResource
from tests.kept.processes import die
from xabridge.pipeline.core import AddressTarget, Attempt, Batch, Messages, Offset, Query, Settings, Source
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.shards import Shard
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.source_task import read

if TYPE_CHECKING:
    from xabridge.pipeline.core.driver.sink_coordinator import BatchResult

END = Offset(1)
EVERY = 1_000_000
"""A batch that no checkpoint reaches."""


def settings_of(ledger: str, broker: str) -> Settings:
    """What the pipeline knows."""
    return Settings("kept", ledger, (("broker", f"{broker}/?timeout=20"),))


def batch(settings: Settings, queue: str, driver: str, run: str, end: Offset | None = None) -> BatchResult:
    """The micro-batch, by a driver; `end` where Spark has noted it before."""
    source = Source((Shard("broker", (queue,)),), partitions=2, rows=100)
    resources = Resources()
    bind(settings, driver, Query("q", run, EVERY), (source,), resources=resources)
    reader = SourcePlanner(settings, source, driver, streaming=True, resources=resources)
    partitions = reader.plan(Offset(), end or reader.latest(Offset()))
    writer = SinkCoordinator(settings, driver, resources=resources)
    plan = writer.plan()
    reports = []
    for partition in partitions:
        found = [body for chunk in read(partition, resources=resources) for body in chunk.body]
        with SinkTask(plan, Attempt(partition.index, partition.index), resources=resources) as task:
            if found:
                task.send(AddressTarget("broker", "alerts"), Messages(found))
            reports.append(task.prepare())

    try:
        result = writer.commit(plan, Batch("q", 0), reports)
        reader.logged(END)  # as Spark has it: the messages that were read are finished
        return result
    finally:
        writer.close()
        reader.close()
        resources.close()


if __name__ == "__main__":
    AmqpResource.commit = die  # type: ignore[method-assign, assignment]
    batch(settings_of(sys.argv[1], sys.argv[2]), sys.argv[3], "driver-1", "run-1")
