"""These tests run pipelines on real Spark without faults: what is read, what is written, and what is refused. What the
core decides is tested without Spark in `tests.xabridge.pipeline.core`; one more case of that is marked `long` here.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from sqlalchemy import make_url

from tests.rm_delta.test_contract import rows_of
from tests.xabridge.pipeline.environment import BEGAN_S, Driver, DriverFailed, SparkEnvironment, difference
from xabridge.pipeline.core import Shard, Source
from xabridge.testing.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
long = pytest.mark.long
N = 150
BOTH = {"table": "shop:rows", "address": "broker:out"}
SOME = range(36, 44)
"""So many that others behind a poison message prove twice that it is at fault."""
COMPLETE = [(BEGAN_S + start, 10) for start in range(0, 80, 10)]
"""A window is complete when a message has come that is ten seconds younger than its end."""


def test_a_second_run_goes_on_where_the_first_one_ended(spark: Driver, env: SparkEnvironment) -> None:
    """Each message of two queues is a row and a message. In the second run limits in octets make more batches, and a
    minimum holds up no query that ends."""
    env.reads = (Source((Shard("broker", ("in", "second")),)),)
    env.send(range(100))
    env.send(range(100, N), "second")
    queues = {"queue": "in, second", "partitions": "3"}
    assert spark.call("stream", **env.asked("copied", BOTH, queues)) == {"errors": [], "batches": 1}, "100 rows in each"
    assert env.rows("SELECT text FROM rows WHERE id = 7") == [("v7",)]

    env.send(range(N, 2 * N))
    limits = {**queues, "max_octets": "4000", "min_messages": "90", "max_delay": "3600"}
    ran = spark.call("stream", **env.asked("copied", BOTH, limits))
    assert ran["errors"] == []
    assert ran["batches"] > 3, "as many as by maxRowsPerBatch alone"
    env.check_copies(Counter(range(2 * N)))


@long
def test_a_checkpoint_that_is_lost(spark: Driver, env: SparkEnvironment) -> None:
    """An older copy of it is refused, and a new one unless it adopts the pipeline."""
    env.send(range(20))
    env.stream(spark, "copied", BOTH)
    old = Path(f"{env.checkpoint}-old")
    shutil.copytree(env.checkpoint, old)
    env.send(range(20, 40))
    env.stream(spark, "copied", BOTH)
    first = env.query()
    shutil.rmtree(env.checkpoint)

    env.send(range(40, 60))
    with pytest.raises(DriverFailed, match="older than what was decided"):
        env.stream(spark, "copied", BOTH, checkpoint=str(old))
    with pytest.raises(DriverFailed, match=f"adopt.*{first}"):
        env.stream(spark, "copied", BOTH)
    assert env.rows("SELECT count(*) FROM rows") == [(40,)]
    shutil.rmtree(env.checkpoint)
    env.stream(spark, "copied", BOTH, source={"adopt": first})
    env.check_copies(Counter(range(60)))


def test_windows_are_written_when_they_are_complete(spark: Driver, env: SparkEnvironment) -> None:
    """The last ones by a batch that reads nothing."""
    env.send(range(100))
    env.stream(spark, "windows", {"table": "windows"})
    env.settle()
    assert env.rows("SELECT second, n FROM windows ORDER BY second") == COMPLETE
    assert env.left() == []


@long
def test_update_mode_by_key(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    env.stream(spark, "totals", {"table": "totals", "key": "product"}, mode="update")
    env.check_totals(range(N))


def test_a_stream_that_is_used_twice_is_read_once(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(50))
    env.stream(spark, "doubled", {"table": "rows"})
    env.check_copies(Counter([*range(50), *range(50)]), address=False)


def test_foreach_batch_writes_several_frames(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    spark.call("foreach", source=env.source(), shared=env.shared, checkpoint=env.checkpoint)
    assert env.rows("SELECT sum(n) FROM counts") == [(N,)]
    env.check_copies(Counter(range(N)))


def test_jobs_without_streaming(spark: Driver, env: SparkEnvironment) -> None:
    env.send(range(N))
    assert spark.call("jobs", source=env.source(), sink=env.sink(**BOTH)) == 2
    env.check_copies(Counter(range(N)))


ROWS, TOTALS = {"table": "rows"}, {"table": "totals"}
REFUSED: list[tuple[str, dict[str, str], dict[str, str], str, str]] = [
    ("totals", TOTALS, {}, "complete", "output mode complete gives every row again"),
    ("copied", ROWS, {}, "append", "it has no column 'body'"),
    ("copied", {**ROWS, "adress": "out"}, {}, "append", r"adress: unknown \(did you mean address\?\)"),
    ("copied", {"address": "out"}, {}, "append", "a message has no id"),
    ("totals", TOTALS, {}, "update", "output mode update gives a row again"),
    ("copied_rows", ROWS, {"partitions": "200"}, "append", "max_prepared_transactions is"),
]


def test_what_is_refused_when_the_query_starts(spark: Driver, env: SparkEnvironment) -> None:
    """Then the message is still there, and shown as it is."""
    env.send([5])
    for query, sink, source, mode, message in REFUSED:
        with pytest.raises(DriverFailed, match=f"^PipelineError: .*{message}"):  # of start(), not of the query
            env.stream(spark, query, sink, source=source, mode=mode)

    with pytest.raises(DriverFailed, match="belongs to pipeline 'test', and the sink to pipeline 'another'"):
        env.stream(spark, "copied_rows", {**ROWS, "pipeline": "another"})
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


MISUSED = {
    "two epochs": "a micro-batch has one epoch",
    "job beside the stream": r"reads the format amqp by spark\.read as well",
    "unannounced": r"In the driver, call pipeline\.register\(spark\)",
    "epoch of another pipeline": "reads broker: in as pipeline 'test-3', and the epoch is of pipeline 'another'",
    "job that writes": r"in foreachBatch, write by pipeline\.epoch",
    "job that reads": r"read it by spark\.readStream",
}


@long
def test_what_a_query_must_not_do(spark: Driver, env: SparkEnvironment) -> None:
    """None of it takes or writes anything, but for the first of two epochs."""
    written = 0
    for number, (how, message) in enumerate(MISUSED.items()):
        env.send(range(5))
        env.pipeline = f"test-{number}"
        arguments = {"how": how, "source": env.source(), "shared": env.shared}
        told = spark.call("misused", **arguments, checkpoint=f"{env.checkpoint}-{number}")
        assert re.search(message, told), f"{how}: {told}"
        if how == "two epochs":
            ((written,),) = env.rows("SELECT count(*) FROM rows")
            assert written
        assert env.rows("SELECT count(*) FROM rows") == [(written,)], how


@long
@pytest.mark.parametrize("ours", [True, False])
def test_a_query_that_reads_files_too_gives_the_pipeline_up(
    spark: Driver, env: SparkEnvironment, *, ours: bool
) -> None:
    """How far they were read stood in the lost checkpoint only. As a new pipeline, of a folder that has new files only,
    the query writes nothing again, as the message says."""
    folder = env.folder / "lines"
    folder.mkdir()
    (folder / "1").write_text("100\n101\n")
    written = Counter([100, 101])
    if ours:
        env.send(range(10))
        written += Counter(range(10))

    def run(**options: str) -> None:
        mine = {"source": env.source(**options)} if ours else {}
        sink = env.sink(**ROWS, **options)
        spark.call("with_files", folder=str(folder), sink=sink, checkpoint=env.checkpoint, **mine)

    run()
    lost = env.query()
    shutil.rmtree(env.checkpoint)
    with pytest.raises(
        DriverFailed, match=rf"once with the option adopt = \"{lost}\": .*FileSource\[.*lines\] had been"
    ):
        run()
    with pytest.raises(DriverFailed, match=r"is given up: .*Start it as a new pipeline: with the option once"):
        run(adopt=lost)
    assert env.left() == []
    env.pipeline = "after"
    (folder / "1").unlink()
    (folder / "2").write_text("102\n")
    run()
    assert Counter(number for (number,) in env.rows("SELECT id FROM rows")) == written + Counter([102])
    assert env.received("in") == []


@long
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


@long
def test_a_poison_row_is_found_by_restarts_and_keeps_nothing_else(spark: Driver, env: SparkEnvironment) -> None:
    """The user's code fails on 37. A supervisor starts the query again whenever it fails."""
    env.allow_deliveries(2)
    env.send(SOME)
    errors = env.stream(spark, "poisoned", {"table": "rows"}, source={"maxRowsPerBatch": "2"}, restarts=30)
    assert errors
    assert all("poison" in error for error in errors)
    assert sorted(number for (number,) in env.rows("SELECT id FROM rows")) == [n for n in SOME if n != 37]
    assert env.received("in.dead") == ["37"]
    assert env.left() == []


@long
@pytest.mark.parametrize("decider", ["shop", ""])
@pytest.mark.parametrize("killed", [False, True])
def test_tables_of_two_databases_and_two_addresses(
    spark: Driver, env: SparkEnvironment, mariadb: MariaDB, decider: str, *, killed: bool
) -> None:
    """By columns that name them. One of the databases has its rows with the decision; or nobody does. Or the
    driver is killed right after it; without Spark these points are in `tests.xabridge.pipeline.core`."""
    url = mariadb.create_database("mariadb")
    name = make_url(url).database
    mariadb.admin(f"CREATE TABLE {name}.copies (id bigint PRIMARY KEY, text varchar(20))")
    decides = {"decider": decider} if decider else {}
    sink = {
        "table": "shop:rows, maria:copies",
        "table_column": "kind",
        "table_default": "rows",
        "columns": "id, text",
        "address": "out0, broker:out1",
        "address_column": "to",
        "resource.maria": url,
        "key.copies": "id",
        **decides,
    }
    env.send(range(N))
    env.schedule(("decided", "kill driver"))
    if killed:
        env.kill("stream", **env.asked("routed", sink, decides))
    env.stream(spark, "routed", sink, source=decides)
    assert env.fired() == killed
    env.settle()
    copies = Counter(number for (number,) in mariadb.ask(f"SELECT id FROM {name}.copies"))  # noqa: S608 — our own
    rows = Counter(number for (number,) in env.rows("SELECT id FROM rows"))
    problems = difference("MariaDB", copies, Counter(n for n in range(N) if n % 3 == 1))
    problems += difference("PostgreSQL", rows, Counter(n for n in range(N) if n % 3 != 1))
    for odd in (0, 1):
        sent = Counter(map(int, env.received(f"out{odd}")))
        problems += difference(f"out{odd}", sent, Counter(n for n in range(N) if n % 2 == odd))

    assert not problems + env.left()
    assert mariadb.ask("XA RECOVER") == []
    if decider:
        assert env.rows("SELECT count(*) FROM xabridge_staged") == [(0,)]


@long
@pytest.mark.parametrize("place", ["shop", "maria"])
@pytest.mark.parametrize("points", [(), ("decided",), ("undecided", "decided")], ids=" and ".join)
def test_a_backfill_writes_what_the_live_query_has_not_written(
    spark: Driver, env: SparkEnvironment, mariadb: MariaDB, place: str, points: tuple[str, ...]
) -> None:
    """Once, and in the order of each key: its last state is the newest one, and its messages are in order. Rows of
    other keys with the same value of `once` don't keep their tasks waiting for each other. What was written is
    remembered in PostgreSQL, or in MariaDB beside the PostgreSQL of the rows."""
    env.send([*range(120), *range(90, 110)])  # some were sent twice
    url = mariadb.create_database("mariadb")
    sink = {
        "table": "shop:counts",
        "columns": "product, n",
        "key": "product",
        "address": "out",
        "shards": "3",
        "shard_key": "product",
        "once": "message_id",
        "once_table": f"{place}:seen",
        **({"resource.maria": url} if place == "maria" else {}),
    }
    live = {"order": "queue", "maxRowsPerBatch": "1000"}
    env.stream(spark, "newest", sink, source=live)
    check_newest(env, 120)

    env.schedule(*((point, "kill driver") for point in points))
    asked: dict[str, Any] = {"sink": env.sink(**sink), "numbers": 210}
    for _ in points:
        env.kill("newest_filled", **asked)
    for _ in range(2):  # the second one finds nothing that is left to write
        assert "pipeline 'test' belongs to query" in spark.call("newest_filled", **asked)
        check_newest(env, 210)
    assert env.fired() == len(points)

    env.send(range(200, 240))  # the live query goes on
    env.stream(spark, "newest", sink, source=live)
    check_newest(env, 240)
    if place == "shop":
        assert env.rows("SELECT count(*) FROM seen") == [(240,)]
    else:
        assert mariadb.ask(f"SELECT count(*) FROM {make_url(url).database}.seen") == [(240,)]  # noqa: S608 — our own
        assert mariadb.ask("XA RECOVER") == []
    shards = [[int(body) for body in env.received(f"out#{shard}")] for shard in range(3)]
    for product in range(7):
        (found,) = filter(None, ([number for number in shard if number % 7 == product] for shard in shards))
        assert found == list(range(product, 240, 7))
    env.settle()
    assert env.left() == []


def check_newest(env: SparkEnvironment, count: int) -> None:
    """The state of each product is the newest of so many numbers."""
    newest = sorted((f"p{number % 7}", number) for number in range(count - 7, count))
    assert env.rows("SELECT product, n FROM counts ORDER BY product") == newest
