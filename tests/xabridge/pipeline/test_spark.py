"""Pipelines on real Spark, without faults: what is read, what is written, and what is refused when a query starts."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.pipeline.stage import BEGAN_S, DriverFailed, Stage

if TYPE_CHECKING:
    from tests.xabridge.pipeline.stage import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
N = 250
COMPLETE = [(BEGAN_S + start, 10) for start in range(0, 80, 10)]
"""A window is complete when a message has come that is ten seconds younger than its end."""


def test_a_row_and_a_message_for_each_message(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="shop:rows", address="broker:out")
    ran = spark.call("stream", query="copied", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    assert ran == {"errors": [], "batches": 2}, "maxRowsPerBatch is 100"
    stage.check_copies(Counter(range(N)))
    assert stage.rows("SELECT text FROM rows WHERE id = 7") == [("v7",)]


def test_a_second_run_goes_on_where_the_first_one_ended(spark: Driver, stage: Stage) -> None:
    for numbers in (range(50), range(50, 90)):
        stage.send(numbers)
        sink = stage.sink(table="rows")
        spark.call("stream", query="copied_rows", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    stage.check_copies(Counter(range(90)), address=False)


def test_only_an_address_and_several_queues(spark: Driver, stage: Stage) -> None:
    stage.send(range(30))
    stage.send(range(30, 50), "second")
    source = stage.source(queue="in, second", partitions="3")
    spark.call(
        "stream", query="copied_body", source=source, sink=stage.sink(address="out"), checkpoint=stage.checkpoint
    )
    stage.check_copies(Counter(range(50)), table=False)


def test_totals_by_key(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="totals", key="product")
    arguments = {"source": stage.source(), "sink": sink, "checkpoint": stage.checkpoint, "mode": "complete"}
    spark.call("stream", query="totals", **arguments)
    stage.check_totals(range(N))


def test_what_comes_twice_is_written_once(spark: Driver, stage: Stage) -> None:
    stage.send([*range(120), *range(60, 160)])
    sink = stage.sink(table="rows", address="out")
    spark.call("stream", query="distinct", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    stage.check_copies(Counter(range(160)))


def test_windows_are_written_when_they_are_complete(spark: Driver, stage: Stage) -> None:
    """The last ones by a batch that reads nothing."""
    stage.send(range(100))
    sink = stage.sink(table="windows")
    spark.call("stream", query="windows", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    stage.settle()
    assert stage.rows("SELECT second, n FROM windows ORDER BY second") == COMPLETE
    assert stage.left() == []


def test_a_stream_that_is_used_twice_is_read_once(spark: Driver, stage: Stage) -> None:
    stage.send(range(50))
    sink = stage.sink(table="rows")
    spark.call("stream", query="doubled", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    stage.check_copies(Counter([*range(50), *range(50)]), address=False)


def test_foreach_batch_writes_several_frames(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    spark.call("foreach", source=stage.source(), shared=stage.shared, checkpoint=stage.checkpoint)
    assert stage.rows("SELECT sum(n) FROM counts") == [(N,)]
    stage.check_copies(Counter(range(N)))


def test_jobs_without_streaming(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="rows", address="out")
    assert spark.call("jobs", source=stage.source(), sink=sink) == 3
    stage.check_copies(Counter(range(N)))


def test_a_message_is_shown_as_it_is(spark: Driver, stage: Stage) -> None:
    stage.send([5])
    (row,) = spark.call("taken", source=stage.source(body="text"))
    told = {name: row[name] for name in ("body", "address", "message_id", "application_properties", "delivery_count")}
    assert told == {
        "body": "5",
        "address": "in",
        "message_id": "m5",
        "application_properties": {"product": "p5"},
        "delivery_count": 0,
    }


@pytest.mark.parametrize(
    ("query", "sink", "mode", "message"),
    [
        ("totals", {"table": "totals"}, "complete", "output mode complete gives every row again"),
        ("copied", {"table": "rows"}, "append", "it has no column 'body'"),
        ("copied", {"table": "rows", "adress": "out"}, "append", r"adress: unknown \(did you mean address\?\)"),
        ("copied", {"address": "out"}, "append", "a message has no id"),
        ("totals", {"table": "totals"}, "update", "output mode update gives a row again"),
        ("spread", {"table": "rows"}, "append", "max_prepared_transactions is"),
    ],
)
def test_what_is_refused_when_the_query_starts(
    spark: Driver, stage: Stage, query: str, sink: dict[str, str], mode: str, message: str
) -> None:
    stage.send(range(3))
    source = stage.source(partitions="200" if query == "spread" else "2")
    arguments = {"source": source, "sink": stage.sink(**sink), "checkpoint": stage.checkpoint, "mode": mode}
    with pytest.raises(DriverFailed, match=f"^PipelineError: .*{message}"):  # of start(), not of the query
        spark.call("stream", query=query, **arguments)


def test_update_mode_by_key(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="totals", key="product")
    arguments = {"source": stage.source(), "sink": sink, "checkpoint": stage.checkpoint, "mode": "update"}
    spark.call("stream", query="totals", **arguments)
    stage.check_totals(range(N))


def test_one_key_in_every_row_of_every_task(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    update = "total = totals.total + excluded.total, n = totals.n + excluded.n"
    sink = stage.sink(table="totals", key="product", update=update)
    spark.call("stream", query="ones", source=stage.source(), sink=sink, checkpoint=stage.checkpoint)
    stage.settle()
    assert stage.rows("SELECT product, total, n FROM totals") == [("one", N, N)]
    assert stage.left() == []


def test_state_by_transform_with_state(spark: Driver, stage: Stage) -> None:
    stage.send(range(N))
    sink = stage.sink(table="counts", key="product")
    arguments = {"source": stage.source(), "sink": sink, "checkpoint": stage.checkpoint, "mode": "update"}
    spark.call("stream", query="counted", **arguments)
    stage.settle()
    assert stage.rows("SELECT sum(n) FROM counts") == [(N,)]
    assert stage.left() == []


def test_a_poison_row_is_found_by_restarts_and_keeps_nothing_else(spark: Driver, stage: Stage) -> None:
    """The user's code fails on 37. A supervisor starts the query again whenever it fails."""
    stage.send(range(N))
    sink = stage.sink(table="rows")
    arguments = {"source": stage.source(), "sink": sink, "checkpoint": stage.checkpoint, "restarts": 14}
    with pytest.raises(DriverFailed, match="poison"):
        spark.call("stream", query="poisoned", **arguments)
    assert sorted(number for (number,) in stage.rows("SELECT id FROM rows")) == [n for n in range(N) if n != 37]
    assert stage.received("in.dead") == []


def test_a_broker_that_is_started_again_fails_no_query(spark: Driver, stage: Stage) -> None:
    """Between batches, and in the middle of them."""
    stage.send(range(N))
    sink = stage.sink(table="rows", address="broker:out")
    source = stage.source(maxRowsPerBatch="25")
    spark.ask("stream", query="copied", source=source, sink=sink, checkpoint=stage.checkpoint)
    for rows in (20, 120):
        stage.await_rows(rows)
        stage.broker.kill()
        time.sleep(2.0)  # it is away for a while
        stage.broker.start()
    assert spark.answer()["errors"] == []
    stage.check_copies(Counter(range(N)))


def test_a_source_with_an_unknown_option_is_not_built(spark: Driver, stage: Stage) -> None:
    with pytest.raises(DriverFailed, match=r"maxrowsperbach: unknown \(did you mean maxRowsPerBatch\?\)"):
        spark.call("built", source=stage.source(maxRowsPerBach="1"))
