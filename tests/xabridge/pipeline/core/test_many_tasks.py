"""Batches with many more write tasks than a driver may have connections to the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest

from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.stage import TABLE, Stage, new_stage
from tm.effects import Force
from xabridge.pipeline.core import Attempt, Batch, deciding
from xabridge.pipeline.core.shell import run
from xabridge.pipeline.core.task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from xabridge.pipeline.core import SinkPlan, SinkReport

FEW_CONNECTIONS: Final = "?xa_pool_size=1&xa_pool_wait_s=1"


@pytest.fixture(scope="module")
def roomy() -> Iterator[Postgres]:
    """A server that lets thousands of transactions be prepared."""
    server = Postgres({"max_prepared_transactions": "5000"})
    server.start()
    yield server
    server.remove()


@pytest.fixture
def stage(tmp_path: Path, roomy: Postgres) -> Iterator[Stage]:
    """A stage over it."""
    broker = EmbeddedBroker(tmp_path)
    stage = new_stage(broker, roomy, tmp_path)
    try:
        yield stage
    finally:
        stage.close()
        broker.stop()


def write(stage: Stage, plan: SinkPlan, tasks: int, attempt: int = 0) -> list[SinkReport]:
    """What so many tasks write: a row each."""
    reports = []
    for index in range(tasks):
        with SinkTask(plan, Attempt(index, index + attempt * tasks), resources=stage.resources) as task:
            task.write_rows(TABLE, ("body",), [(str(index),)])
            reports.append(task.prepare())
    return reports


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("tasks", "settings"),
    [
        pytest.param(200, "", id="200 tasks"),
        pytest.param(60, FEW_CONNECTIONS, id="60 tasks over few connections"),
        pytest.param(2000, "", id="2000 tasks", marks=pytest.mark.slow),
    ],
)
def test_every_task_of_a_batch_is_committed(stage: Stage, tasks: int, settings: str) -> None:
    """Also what attempts have left that Spark did not take: as many again are swept."""
    database, stage.database = stage.database, stage.database + settings
    stage.start()
    writer = stage.writer()
    plan = writer.plan()
    reports = write(stage, plan, tasks)
    orphans = write(stage, plan, min(tasks, 200), attempt=1)
    decided = writer.commit(plan, Batch("q", 0), reports)
    assert (decided.left, decided.before) == (0, False)
    writer.close()
    stage.database = database
    with psycopg.connect(database) as connection:
        found = sorted(int(body) for (body,) in connection.execute("SELECT body FROM orders"))
    assert found == list(range(tasks))
    assert stage.prepared() == []
    assert len(orphans) == min(tasks, 200)


class KilledError(Exception):
    """The driver is."""


def test_a_driver_that_comes_back_to_many_tasks(stage: Stage) -> None:
    """It was killed right after the decision: the next one carries all of it out before it plans."""
    stage.start()
    writer = stage.writer()
    plan = writer.plan()
    reports = write(stage, plan, 100)
    shell = writer._shell(plan.incarnation)
    decided = False

    def perform(effect: Any) -> Any:
        nonlocal decided
        if decided:
            raise KilledError
        decided = isinstance(effect, Force)
        return shell.perform(effect)

    with pytest.raises(KilledError):
        run(deciding.commit(shell.own, plan, Batch("q", 0), reports, shell.names), perform)
    writer.close()
    assert len(stage.prepared()) == 100
    stage.start(driver="driver-2")
    again = stage.writer("driver-2")
    again.plan()
    again.close()
    assert stage.prepared() == []
    assert sorted(map(int, stage.table())) == list(range(100))
