"""These tests run pipelines on real Spark without faults: what is read, what is written, and what is refused when a
query starts.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.rm_delta.test_contract import rows_of
from tests.xabridge.pipeline.environment import BEGAN_S, DriverFailed, SparkEnvironment

if TYPE_CHECKING:
    from tests.xabridge.pipeline.environment import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
N = 150
SOME = range(36, 44)
"""So many that others behind a poison message prove twice that it is at fault."""
COMPLETE = [(BEGAN_S + start, 10) for start in range(0, 80, 10)]
"""A window is complete when a message has come that is ten seconds younger than its end."""


def test_a_second_run_goes_on_where_the_first_one_ended(spark: Driver, env: SparkEnvironment) -> None:
    """Each message is a row and a message. In the second run limits in octets make more batches, and a minimum holds up
    no query that ends."""
    env.send(range(N))
    sink = env.sink(table="shop:rows", address="broker:out")
    arguments = {"query": "copied", "sink": sink, "checkpoint": env.checkpoint}
    assert spark.call("stream", source=env.source(), **arguments) == {"errors": [], "batches": 1}, "100 rows in each"
    assert env.rows("SELECT text FROM rows WHERE id = 7") == [("v7",)]
    env.send(range(N, 2 * N))
    ran = spark.call("stream", source=env.source(max_octets="4000", min_messages="90", max_delay="3600"), **arguments)
    assert ran["errors"] == []
    assert ran["batches"] > 3, "as many as by maxRowsPerBatch alone"
    env.check_copies(Counter(range(2 * N)))


@pytest.mark.long
def test_only_an_address_and_several_queues(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(30))
    env.send(range(30, 50), "second")
    source = env.source(queue="in, second", partitions="3")
    spark.call("stream", query="copied_body", source=source, sink=env.sink(address="out"), checkpoint=env.checkpoint)
    env.check_copies(Counter(range(50)), table=False)


@pytest.mark.long
def test_what_comes_twice_is_written_once(spark: Driver, env: SparkEnvironment) -> None:
    env.send([*range(120), *range(60, 160)])
    sink = env.sink(table="rows", address="out")
    spark.call("stream", query="distinct", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    env.check_copies(Counter(range(160)))


def test_windows_are_written_when_they_are_complete(spark: Driver, env: SparkEnvironment) -> None:
    """The last ones by a batch that reads nothing."""
    env.send(range(100))
    sink = env.sink(table="windows")
    spark.call("stream", query="windows", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    env.settle()
    assert env.rows("SELECT second, n FROM windows ORDER BY second") == COMPLETE
    assert env.left() == []


def test_a_stream_that_is_used_twice_is_read_once(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(50))
    sink = env.sink(table="rows")
    spark.call("stream", query="doubled", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    env.check_copies(Counter([*range(50), *range(50)]), address=False)


def test_foreach_batch_writes_several_frames(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    spark.call("foreach", source=env.source(), shared=env.shared, checkpoint=env.checkpoint)
    assert env.rows("SELECT sum(n) FROM counts") == [(N,)]
    env.check_copies(Counter(range(N)))


def test_jobs_without_streaming(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    sink = env.sink(table="rows", address="out")
    assert spark.call("jobs", source=env.source(), sink=sink) == 2
    env.check_copies(Counter(range(N)))


REFUSED = [
    ("totals", {"table": "totals"}, "complete", "output mode complete gives every row again"),
    ("copied", {"table": "rows"}, "append", "it has no column 'body'"),
    ("copied", {"table": "rows", "adress": "out"}, "append", r"adress: unknown \(did you mean address\?\)"),
    ("copied", {"address": "out"}, "append", "a message has no id"),
    ("totals", {"table": "totals"}, "update", "output mode update gives a row again"),
    ("spread", {"table": "rows"}, "append", "max_prepared_transactions is"),
]


def test_what_is_refused_when_the_query_starts(spark: Driver, env: SparkEnvironment) -> None:
    """Then the message is still there, and shown as it is."""
    env.send([5])
    for query, sink, mode, message in REFUSED:
        source = env.source(partitions="200" if query == "spread" else "2")
        arguments = {"source": source, "sink": env.sink(**sink), "checkpoint": env.checkpoint, "mode": mode}
        with pytest.raises(DriverFailed, match=f"^PipelineError: .*{message}"):  # of start(), not of the query
            spark.call("stream", query=query, **arguments)
    with pytest.raises(DriverFailed, match=r"maxrowsperbach: unknown \(did you mean maxRowsPerBatch\?\)"):
        spark.call("built", source=env.source(maxRowsPerBach="1"))
    (row,) = spark.call("taken", source=env.source(body="text"))
    told = {name: row[name] for name in ("body", "address", "message_id", "application_properties", "delivery_count")}
    assert told == {
        "body": "5",
        "address": "in",
        "message_id": "m5",
        "application_properties": {"product": "p5"},
        "delivery_count": 0,
    }


@pytest.mark.long
def test_json_bodies_by_a_schema_that_gets_a_column(spark: Driver, env: SparkEnvironment) -> None:
    """The bodies are numbers here, which are no objects: bad, until they are dead letters."""
    env.configure_broker("[broker.queue_defaults]\nmax_deliveries = 1\n")
    env.send([1])
    env.send_json('{"id": 2}', '{"id": 3, "amount": 1.50, "at": "2026-11-21T23:12:07Z"}')
    schemas = ["id bigint NOT NULL", "id bigint NOT NULL, amount decimal(10,2), at timestamp"]
    sink = env.sink(table="rows")
    arguments = {"schemas": schemas[:1], "source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    spark.call("by_schema", **arguments)
    env.send_json('{"id": 4, "amount": 1.50}')
    (type_,) = spark.call("by_schema", **{**arguments, "schemas": schemas[1:]})
    assert type_ == "struct<id:bigint,amount:decimal(10,2),at:timestamp>"
    env.settle()
    assert env.rows("SELECT id, text FROM rows ORDER BY id") == [
        (2, '{"id":2}'),
        (3, '{"id":3}'),
        (4, '{"id":4,"amount":1.50}'),
    ]
    assert env.received("in.dead") == ["1"]
    assert env.left() == []


def test_a_delta_table_gets_a_column_with_the_same_checkpoint(spark: Driver, env: SparkEnvironment) -> None:
    """Bad messages are rows of the query, which sends them on with the reason."""
    lake = env.folder / "lake"
    lake.mkdir()
    table = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("price", pa.decimal128(10, 2))])
    DeltaTable.create(lake / "orders", table, partition_by=["kind"])
    env.send_json('{"id": 1, "kind": "a/b", "price": 12.50}', "no json", '{"id": 2, "kind": "c", "at": "x"}')
    sink = env.sink(table="lake:orders", address="out", **{"resource.lake": f"delta://{lake}"})
    arguments = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    schema, columns = "id bigint, kind string, price decimal(10,2)", "body.id; body.kind; body.price"
    spark.call("into_lake", schema=schema, columns=columns, **arguments)
    DeltaTable(lake / "orders").alter.add_columns([Field("at", PrimitiveType("timestamp"))])
    env.send_json('{"id": 3, "kind": "c", "at": "2026-11-21T23:12:07Z"}', '{"id": 4, "kind": "c", "at": "never"}')
    spark.call("into_lake", schema=f"{schema}, at timestamp", columns=f"{columns}; body.at", **arguments)
    env.settle()
    rows = sorted((row for row in rows_of(lake / "orders") if row["id"]), key=lambda row: row["id"])
    at = datetime(2026, 11, 21, 23, 12, 7, tzinfo=UTC)
    assert [tuple(row[name] for name in ("id", "kind", "price", "at")) for row in rows] == [
        (1, "a/b", Decimal("12.50"), None),
        (2, "c", None, None),
        (3, "c", None, at),
    ]
    assert sorted(env.received()) == ["no json", '{"id": 4, "kind": "c", "at": "never"}']
    assert env.left() == []
    with pytest.raises(DriverFailed, match=r"the column price is decimal.* can't hold every double; cast it"):
        spark.call("into_lake", schema="id bigint, kind string, price double", columns=columns, **arguments)


@pytest.mark.long
def test_update_mode_by_key(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    sink = env.sink(table="totals", key="product")
    arguments = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint, "mode": "update"}
    spark.call("stream", query="totals", **arguments)
    env.check_totals(range(N))


@pytest.mark.long
def test_one_key_in_every_row_of_every_task(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    update = "total = totals.total + excluded.total, n = totals.n + excluded.n"
    sink = env.sink(table="totals", key="product", update=update)
    spark.call("stream", query="ones", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    env.settle()
    assert env.rows("SELECT product, total, n FROM totals") == [("one", N, N)]
    assert env.left() == []


@pytest.mark.long
def test_state_by_transform_with_state(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    sink = env.sink(table="counts", key="product")
    arguments = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint, "mode": "update"}
    spark.call("stream", query="counted", **arguments)
    env.settle()
    assert env.rows("SELECT sum(n) FROM counts") == [(N,)]
    assert env.left() == []


@pytest.mark.long
def test_a_poison_row_is_found_by_restarts_and_keeps_nothing_else(spark: Driver, env: SparkEnvironment) -> None:
    """The user's code fails on 37. A supervisor starts the query again whenever it fails."""
    env.configure_broker("[broker.queue_defaults]\nmax_deliveries = 2\n")
    env.send(SOME)
    sink, source = env.sink(table="rows"), env.source(maxRowsPerBatch="2")
    arguments = {"source": source, "sink": sink, "checkpoint": env.checkpoint, "restarts": 30}
    errors = spark.call("stream", query="poisoned", **arguments)["errors"]
    assert errors
    assert all("poison" in error for error in errors)
    assert sorted(number for (number,) in env.rows("SELECT id FROM rows")) == [n for n in SOME if n != 37]
    assert env.received("in.dead") == ["37"]
    assert env.left() == []


@pytest.mark.long
def test_a_broker_that_is_started_again_fails_no_query(spark: Driver, env: SparkEnvironment) -> None:
    """Between batches, and in the middle of them."""
    env.send(range(N))
    sink = env.sink(table="rows", address="broker:out")
    source = env.source(maxRowsPerBatch="25")
    spark.ask("stream", query="copied", source=source, sink=sink, checkpoint=env.checkpoint)
    for rows in (20, 80):
        env.await_rows(rows)
        env.broker.kill()
        time.sleep(1.0)  # it is away for a while
        env.broker.start()
    assert spark.answer()["errors"] == []
    env.check_copies(Counter(range(N)))
