"""These tests check which rows of a task are left out with the option `once`, and what is refused when a query
starts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import Attempt, BatchRefused
from xabridge.pipeline.options import SinkOptions, sink_options
from xabridge.pipeline.spark.once_shuffle import check_shuffle
from xabridge.pipeline.spark.start_check import check_mode
from xabridge.pipeline.spark.task_writer import TaskWriter, layout
from xabridge.testing.mariadb import MariaDB

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")
ROWS = {"body": "string", "number": "int"}


def options(env: CoreEnvironment, **given: str) -> SinkOptions:
    resources = {f"resource.{name}": url for name, url in env.settings.resources}
    chosen = {"table": "shop:public.orders", "columns": "body", "once": "number", "once_table": "shop:seen", **given}
    return sink_options({"pipeline": env.pipeline, "log": env.log, **resources, **chosen})


def write(env: CoreEnvironment, monkeypatch: pytest.MonkeyPatch, *batches: list[int | None]) -> Any:
    """One task writes these batches."""
    monkeypatch.setattr("xabridge.pipeline.core.task.sink_task.PROCESS", env.resources)
    writer = env.writer()
    plan = writer.plan(streaming=False)
    rows = [
        pa.record_batch({"body": [f"v{number}" for number in batch], "number": pa.array(batch, pa.int32())})
        for batch in batches
    ]
    report = TaskWriter(layout(options(env), ROWS), plan).write(rows, Attempt(0, 0))
    writer.commit(plan, None, [report])
    return report


def test_a_value_is_written_once_in_a_batch_a_task_and_later(
    env: CoreEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert write(env, monkeypatch, [1, 2, 1], [2, 3]).rows == 3
    assert write(env, monkeypatch, [3, 1]).rows == 0
    assert write(env, monkeypatch, [3, 4]).rows == 1
    assert env.table() == ["v1", "v2", "v3", "v4"]
    assert env.ask("SELECT array_agg(id ORDER BY id) FROM seen") == [(["1", "2", "3", "4"],)]
    with pytest.raises(BatchRefused, match="number is null in 1 rows") as refused:
        write(env, monkeypatch, [1, None])
    assert refused.value.of_rows
    assert env.prepared() == []


def test_what_is_refused_when_a_query_starts(env: CoreEnvironment) -> None:
    administrator = r"(?s)can't be made: .*\. Ask an administrator"
    there = r"the table public.orders of .* is there, but can't tell values .* CREATE"
    for given, rows, message in (
        ({"once": "message_id"}, ROWS, "the query has no column 'message_id'"),
        ({}, {**ROWS, "number": "double"}, "number is double; cast it to string"),
        ({"once_table": "shop:nowhere.seen"}, ROWS, administrator),
        ({"once_table": "shop:public.orders"}, ROWS, there),
    ):
        with pytest.raises(PipelineError, match=message):
            layout(options(env, **given), rows)
    for mode in ("Update", "Complete"):
        with pytest.raises(PipelineError, match="the option once leaves it out"):
            check_mode(options(env), mode)
    check_mode(options(env), "Append")


def test_what_was_written_may_be_remembered_in_mariadb(env: CoreEnvironment, mariadb: MariaDB) -> None:
    """Where capitals count in names of tables."""
    url = mariadb.create_database("mariadb")
    name = make_url(url).database
    given = options(env, once_table=f"maria:{name}.Seen", **{"resource.maria": url})
    assert layout(given, ROWS).once == given.once
    layout(given, ROWS)  # it is there
    assert mariadb.ask(f"SELECT count(*) FROM {name}.Seen") == [(0,)]  # noqa: S608 — our own
    mariadb.admin(f"ALTER TABLE {name}.Seen MODIFY id varchar(100)")
    with pytest.raises(PipelineError, match=r"Seen of the option once_table is there, but .*id varbinary\(576\)"):
        layout(given, ROWS)
    with pytest.raises(PipelineError, match=r"(?s)can't be made: .*\. Ask an administrator"):
        layout(options(env, once_table="maria:nowhere.seen", **{"resource.maria": url}), ROWS)


def test_rows_that_spark_can_not_shuffle_are_refused(env: CoreEnvironment) -> None:
    kinds = {
        "int": types.IntegerType(),
        "string": types.StringType(),
        "map": types.MapType(types.StringType(), types.LongType()),
    }

    def check(schema: str, **given: str) -> None:
        rows: Any = SimpleNamespace(schema=types.StructType())
        for name, kind in (one.split() for one in schema.split("; ")):
            rows.schema.add(name, kinds[kind])
        check_shuffle(rows, options(env, **given))

    check("number int; body string")
    check("number int; body string", key="body")
    with pytest.raises(PipelineError, match="no column 'body', by which its rows are shuffled; it has number"):
        check("number int", key="body")
    with pytest.raises(PipelineError, match=r"can't shuffle rows by body, which is map<string,bigint>; cast it"):
        check("number int; body map", key="body")
