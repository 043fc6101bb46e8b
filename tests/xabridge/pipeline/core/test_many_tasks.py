"""These tests run batches with many more write tasks than a driver may have connections to the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.postgres import Postgres
from tests.xabridge.pipeline.core.environment import TABLE, CoreEnvironment, new_environment
from xabridge.pipeline.core import Attempt, Batch, SinkPlan, SinkReport

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]
FEW_CONNECTIONS: Final = "?xa_pool_size=1&xa_pool_wait_s=1"


@pytest.fixture(scope="module")
def roomy() -> Iterator[Postgres]:
    """A server that lets thousands of transactions be prepared."""
    server = Postgres({"max_prepared_transactions": "5000"})
    server.start()
    yield server
    server.remove()


@pytest.fixture
def env(tmp_path: Path, roomy: Postgres) -> Iterator[CoreEnvironment]:
    """An environment over it."""
    with new_environment(roomy, tmp_path) as env:
        yield env


def write(env: CoreEnvironment, plan: SinkPlan, tasks: int, attempt: int = 0) -> list[SinkReport]:
    """What so many tasks write: a row each."""
    return [env.task(plan, Attempt(at, at + attempt * tasks), (TABLE, [str(at)])) for at in range(tasks)]


@pytest.mark.parametrize(
    ("tasks", "settings"),
    [
        pytest.param(200, "", id="200 tasks"),
        pytest.param(60, FEW_CONNECTIONS, id="60 tasks over few connections"),
        pytest.param(2000, "", id="2000 tasks", marks=pytest.mark.long),
    ],
)
def test_every_task_of_a_batch_is_committed(env: CoreEnvironment, tasks: int, settings: str) -> None:
    """Also what attempts have left that Spark did not take: as many again are swept."""
    database, env.database = env.database, env.database + settings
    env.start()
    writer = env.writer()
    plan = writer.plan()
    reports = write(env, plan, tasks)
    orphans = write(env, plan, min(tasks, 200), attempt=1)
    decided = writer.commit(plan, Batch("q", 0), reports)
    assert (decided.left, decided.before) == (0, False)
    writer.close()
    env.database = database
    assert sorted(map(int, env.table())) == list(range(tasks))
    assert env.prepared() == []
    assert len(orphans) == min(tasks, 200)


def test_a_driver_that_comes_back_to_many_tasks(env: CoreEnvironment) -> None:
    """It was killed right after the decision: the next one carries all of it out before it plans."""
    env.start()
    writer = env.writer()
    plan = writer.plan()
    reports = write(env, plan, 100)
    env.decide_and_die(writer, plan, reports)
    writer.close()
    assert len(env.prepared()) == 100
    env.start(driver="driver-2")
    again = env.writer("driver-2")
    again.plan()
    again.close()
    assert env.prepared() == []
    assert sorted(map(int, env.table())) == list(range(100))
