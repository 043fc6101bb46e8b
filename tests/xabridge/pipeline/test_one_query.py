"""These tests check on real Spark that one query has one pipeline and one checkpoint: what belongs together shares one
decision. What does not belong together, or is older than what was decided, is refused before a message is taken.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.xabridge.pipeline.environment import DriverFailed

if TYPE_CHECKING:
    from tests.xabridge.pipeline.environment import Driver, SparkEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
N = 20


@pytest.mark.long
def test_a_source_and_a_sink_of_different_pipelines_are_refused(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    sink = env.sink(table="rows", pipeline="another")
    with pytest.raises(DriverFailed, match=r"pipeline 'test'.*pipeline 'another'"):
        spark.call("stream", query="copied_rows", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    assert len(env.received("in")) == N, "nothing was taken"
    assert env.rows("SELECT count(*) FROM rows") == [(0,)]


def test_a_checkpoint_one_batch_old_is_refused(spark: Driver, env: SparkEnvironment) -> None:
    """Of a stateful query: its state lacks a batch that is decided."""
    old = Path(f"{env.checkpoint}-old")
    sink = env.sink(table="totals", key="product")
    query: dict[str, Any] = {"query": "totals", "mode": "complete", "sink": sink, "checkpoint": env.checkpoint}
    env.send(range(20))
    spark.call("stream", source=env.source(), **query)
    shutil.copytree(env.checkpoint, old)
    env.send(range(20, 40))
    spark.call("stream", source=env.source(), **query)
    newest = Path(env.checkpoint).rename(f"{env.checkpoint}-newest")
    old.rename(env.checkpoint)
    env.send(range(40, 50))
    with pytest.raises(DriverFailed, match="older than what was decided"):
        spark.call("stream", source=env.source(), **query)
    shutil.rmtree(env.checkpoint)
    newest.rename(env.checkpoint)
    spark.call("stream", source=env.source(), **query)
    env.check_totals(range(50))


@pytest.mark.long
def test_a_new_checkpoint_is_adopted_or_refused(spark: Driver, env: SparkEnvironment) -> None:
    sink = env.sink(table="rows")
    query: dict[str, Any] = {"query": "copied_rows", "sink": sink, "checkpoint": env.checkpoint}
    env.send(range(20))
    spark.call("stream", source=env.source(), **query)
    first = env.query()
    shutil.rmtree(env.checkpoint)
    env.send(range(20, 40))
    with pytest.raises(DriverFailed, match=f"adopt.*{first}"):
        spark.call("stream", source=env.source(), **query)
    assert env.rows("SELECT count(*) FROM rows") == [(20,)]
    shutil.rmtree(env.checkpoint)
    spark.call("stream", source=env.source(adopt=first), **query)
    env.send(range(40, 60))
    spark.call("stream", source=env.source(adopt=first), **query)
    env.check_copies(Counter(range(60)), address=False)


MISUSED = {
    "epoch of another pipeline": "reads broker: in as pipeline 'test', and the epoch is of pipeline 'another'",
    "two epochs": "a micro-batch has one epoch",
    "job that writes": r"in foreachBatch, write by pipeline\.epoch",
    "job that reads": r"read it by spark\.readStream",
    "job beside the stream": r"reads the format amqp by spark\.read as well",
    "unannounced": r"In the driver, call pipeline\.register\(spark\)",
}


def test_what_a_query_must_not_do(spark: Driver, env: SparkEnvironment) -> None:
    """None of it takes or writes anything, but for the first of two epochs."""
    written = 0
    for number, (how, message) in enumerate(MISUSED.items()):
        env.send(range(5))
        env.pipeline = f"test-{number}" if number else "test"
        arguments = {"how": how, "source": env.source(), "shared": env.shared}
        told = spark.call("misused", **arguments, checkpoint=f"{env.checkpoint}-{number}")
        assert re.search(message, told), f"{how}: {told}"
        if how == "two epochs":
            ((written,),) = env.rows("SELECT count(*) FROM rows")
            assert written
        assert env.rows("SELECT count(*) FROM rows") == [(written,)], how
