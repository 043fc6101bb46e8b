"""What a batch costs its driver by the number of branches, without Spark: every task writes one row and one message, so
it prepares two branches. They are prepared before the clock starts; `decide` checks all of them and forces the
decision, `finish` commits them and looks for orphans.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

import psycopg

from xabridge.pipeline.core import AddressTarget, Attempt, Messages, Settings, TableTarget
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.ledger.status import look
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xabridge.demo.pipeline.servers import PipelineServers

_TABLE: Final = b"CREATE TABLE branched (number bigint NOT NULL)"
PIPELINE: Final = "branches"


def measure_branches(servers: PipelineServers, log: str, tasks: Sequence[int], rounds: int) -> dict[str, Any]:
    """Milliseconds of `decide` and `finish` for batches of so many tasks, the medians, and those of each further
    branch."""
    resources = Resources()
    settings = Settings(PIPELINE, log, (("broker", f"amqp://{servers.address}/"), ("shop", servers.database)))
    with psycopg.connect(servers.database, autocommit=True) as database:
        database.execute(_TABLE)
    writer = SinkCoordinator(settings, "bench", resources=resources)
    try:
        for _ in range(rounds + 1):  # the first one warms
            for count in tasks:
                _batch(writer, resources, count)
        found = look(log, (), PIPELINE, last=rounds * len(tasks))[0].results
    finally:
        writer.close()
        resources.close()

    by_branches: dict[str, Any] = {}
    for count in tasks:
        of_count = [one for one in found if one.branches == 2 * count]
        decide = statistics.median(one.decide_s for one in of_count) * 1000
        finish = statistics.median(one.finish_s for one in of_count) * 1000
        by_branches[str(2 * count)] = {"decide_ms": round(decide, 1), "finish_ms": round(finish, 1)}
    few, many = 2 * min(tasks), 2 * max(tasks)
    beyond = sum(by_branches[str(many)].values()) - sum(by_branches[str(few)].values())
    return {"by_branches": by_branches, "of_a_branch_ms": round(beyond / (many - few), 3)}


def _batch(writer: SinkCoordinator, resources: Resources, tasks: int) -> None:
    plan = writer.plan(streaming=False)
    reports = []
    for number in range(tasks):
        with SinkTask(plan, Attempt(number, number), resources=resources) as task:
            task.write_rows(TableTarget("shop", "branched"), ("number",), [(number,)])
            task.send(AddressTarget("broker", "branched"), Messages([b"%d" % number]))
            reports.append(task.prepare())
    writer.commit(plan, None, reports)
