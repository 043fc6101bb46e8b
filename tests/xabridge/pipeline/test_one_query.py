"""One query, one pipeline, one checkpoint, on real Spark: what belongs together shares one decision, and what does not,
or is older than what was decided, is refused before a message is taken."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.xabridge.pipeline.stage import Died, DriverFailed

if TYPE_CHECKING:
    from tests.xabridge.pipeline.stage import Driver, Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
N = 100


def test_two_sources_share_one_decision_when_the_driver_dies_behind_it(stage: Stage) -> None:
    """At two brokers; the driver dies between the decision and Spark's log, and more messages wait when it is back."""
    with stage.second_broker() as second:
        stage.send(range(50))
        stage.send(range(N, N + 50), "in", second)
        stage.schedule(("decided", "kill driver"))
        sources = [stage.source(), stage.source(resource="second")]
        arguments: dict[str, Any] = {"sources": sources, "sink": stage.sink(table="rows", address="broker:out")}
        with stage.driver() as driver, pytest.raises(Died):
            driver.call("several", **arguments, checkpoint=stage.checkpoint)
        stage.send(range(50, N))
        stage.send(range(N + 50, 2 * N), "in", second)
        stage.run("several", **arguments, checkpoint=stage.checkpoint)
        stage.check_copies(Counter(range(2 * N)))


def test_a_source_and_a_sink_of_different_pipelines_are_refused(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="rows", pipeline="another")
    with pytest.raises(DriverFailed, match=r"pipeline 'test'.*pipeline 'another'"):
        spark.call("stream", query="copied_rows", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    assert len(stage.received("in")) == N, "nothing was taken"
    assert stage.rows("SELECT count(*) FROM rows") == [(0,)]


def test_a_checkpoint_one_batch_old_is_refused(spark: Driver, stage: Stage) -> None:
    """Of a stateful query: its state lacks a batch that is decided."""
    old = Path(f"{stage.checkpoint}-old")
    sink = stage.sink(table="totals", key="product")
    query: dict[str, Any] = {"query": "totals", "mode": "complete", "sink": sink, "checkpoint": stage.checkpoint}
    stage.send(range(20))
    spark.call("stream", source=stage.source(), **query)
    shutil.copytree(stage.checkpoint, old)
    stage.send(range(20, 40))
    spark.call("stream", source=stage.source(), **query)
    newest = Path(stage.checkpoint).rename(f"{stage.checkpoint}-newest")
    old.rename(stage.checkpoint)
    stage.send(range(40, 50))
    with pytest.raises(DriverFailed, match="older than what was decided"):
        spark.call("stream", source=stage.source(), **query)
    shutil.rmtree(stage.checkpoint)
    newest.rename(stage.checkpoint)
    spark.call("stream", source=stage.source(), **query)
    stage.check_totals(range(50))


def test_a_new_checkpoint_is_adopted_or_refused(spark: Driver, stage: Stage) -> None:
    sink = stage.sink(table="rows")
    query: dict[str, Any] = {"query": "copied_rows", "sink": sink, "checkpoint": stage.checkpoint}
    stage.send(range(20))
    spark.call("stream", source=stage.source(), **query)
    first = stage.query()
    shutil.rmtree(stage.checkpoint)
    stage.send(range(20, 40))
    with pytest.raises(DriverFailed, match=f"adopt.*{first}"):
        spark.call("stream", source=stage.source(), **query)
    assert stage.rows("SELECT count(*) FROM rows") == [(20,)]
    shutil.rmtree(stage.checkpoint)
    spark.call("stream", source=stage.source(adopt=first), **query)
    stage.send(range(40, 60))
    spark.call("stream", source=stage.source(adopt=first), **query)
    stage.check_copies(Counter(range(60)), address=False)


MISUSED = {
    "epoch of another pipeline": "reads broker: in as pipeline 'test', and the epoch is of pipeline 'another'",
    "two epochs": "a micro-batch has one epoch",
    "job that writes": r"in foreachBatch, write by pipeline\.epoch",
    "job that reads": r"read it by spark\.readStream",
    "job beside the stream": r"reads the format amqp by spark\.read as well",
    "unannounced": r"Call pipeline\.register\(spark\) in the driver",
}


def test_what_a_query_must_not_do(spark: Driver, stage: Stage) -> None:
    """None of it takes or writes anything, but for the first of two epochs."""
    written = 0
    for number, (how, message) in enumerate(MISUSED.items()):
        stage.send(range(5))
        stage.pipeline = f"test-{number}" if number else "test"
        arguments = {"how": how, "source": stage.source(), "shared": stage.shared}
        told = spark.call("misused", **arguments, checkpoint=f"{stage.checkpoint}-{number}")
        assert re.search(message, told), f"{how}: {told}"
        if how == "two epochs":
            ((written,),) = stage.rows("SELECT count(*) FROM rows")
            assert written
        assert stage.rows("SELECT count(*) FROM rows") == [(written,)], how
