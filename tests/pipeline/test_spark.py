"""Pipelines on real Spark, without faults: what is read, what is written, and what is refused when a query starts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.stage import BEGAN_S, DriverFailed, Stage

if TYPE_CHECKING:
    from tests.pipeline.stage import Driver

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
        ("totals", {"table": "totals", "key": "product"}, "update", "does not support Update mode"),
    ],
)
def test_what_is_refused_when_the_query_starts(
    spark: Driver, stage: Stage, query: str, sink: dict[str, str], mode: str, message: str
) -> None:
    stage.send(range(3))
    arguments = {"source": stage.source(), "sink": stage.sink(**sink), "checkpoint": stage.checkpoint, "mode": mode}
    with pytest.raises(DriverFailed, match=message):
        spark.call("stream", query=query, **arguments)


def test_a_source_with_an_unknown_option_is_not_built(spark: Driver, stage: Stage) -> None:
    with pytest.raises(DriverFailed, match=r"maxrowsperbach: unknown \(did you mean maxRowsPerBatch\?\)"):
        spark.call("built", source=stage.source(maxRowsPerBach="1"))
