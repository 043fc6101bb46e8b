"""These tests run real Spark with as many write tasks as it makes by default after a shuffle: far more than
connections. Without Spark they are in `tests.xabridge.pipeline.core.test_many_tasks`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.postgres import Postgres
from tests.xabridge.pipeline.environment import SparkEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.xabridge.pipeline.environment import Driver

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]
N = 400


@pytest.fixture
def roomy_stage(tmp_path: Path, java_home: Path) -> Iterator[SparkEnvironment]:
    """An environment whose PostgreSQL lets enough be prepared."""
    assert java_home.exists()
    server = Postgres({"max_prepared_transactions": "1000"})
    server.start()
    env = SparkEnvironment(tmp_path, server)
    yield env
    env.close()
    shutil.rmtree(tmp_path / "faults")
    server.remove()


def test_two_hundred_write_tasks(spark: Driver, roomy_stage: SparkEnvironment) -> None:
    env = roomy_stage
    env.send(range(N))
    source = env.source(maxRowsPerBatch=str(N))
    ran = spark.call("stream", query="scattered", source=source, sink=env.sink(table="rows"), checkpoint=env.checkpoint)
    assert ran["errors"] == []
    env.check_copies(Counter(range(N)), address=False)
    committed_apart = env.rows("SELECT count(DISTINCT xmin::text) FROM rows")
    assert committed_apart[0][0] > 150, "the rows were not written by many branches"
