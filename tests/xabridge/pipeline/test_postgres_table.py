"""These tests check rows as PostgreSQL reads them, and the check before the first row, over a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import TableTarget
from xabridge.pipeline.core.task.table_writer import csv_rows
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.spark.database_table import check_rows
from xabridge.pipeline.spark.postgres_table import csv_of, look_up, look_up_deciding
from xabridge.pipeline.spark.task_writer import layout

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Postgres

DDL = """
CREATE TABLE wide (
    id bigint PRIMARY KEY, small smallint, real_ float8, text_ text NOT NULL, flag bool, price numeric(10, 2),
    day date, at timestamptz, wall timestamp, octets bytea, doc jsonb, list json, counted bigserial,
    twice bigint GENERATED ALWAYS AS (id * 2) STORED, mood varchar(10) DEFAULT 'fine', UNIQUE (small, text_)
)"""


@pytest.fixture
def database(postgres: Postgres) -> str:
    """A database with one table."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute(DDL)
    return url


ROWS: dict[str, tuple[Any, pa.DataType]] = {
    "id": ([1, 2], pa.int64()),
    "small": ([-5, None], pa.int16()),
    "real_": ([math.inf, 0.1], pa.float64()),
    "text_": (['a "b",\n\\.', ""], pa.string()),
    "flag": ([True, None], pa.bool_()),
    "price": ([Decimal("12.50"), None], pa.decimal128(10, 2)),
    "day": ([dt.date(2024, 2, 29), None], pa.date32()),
    "at": ([dt.datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=dt.UTC), None], pa.timestamp("us", tz="UTC")),
    "wall": ([dt.datetime(2024, 2, 29, 12, 30), None], pa.timestamp("us")),  # noqa: DTZ001 — a wall clock's
    "octets": ([b"\x00\xff\\", None], pa.binary()),
    "doc": ([[("k", [1, 2])], None], pa.map_(pa.string(), pa.list_(pa.int64()))),
    "list": ([[{"a": 1, "b": "ü"}], []], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))),
}
SPARK = {
    "id": "bigint",
    "small": "smallint",
    "real_": "double",
    "text_": "string",
    "flag": "boolean",
    "price": "decimal(10,2)",
    "day": "date",
    "at": "timestamp",
    "wall": "timestamp_ntz",
    "octets": "binary",
    "doc": "map<string,array<bigint>>",
    "list": "array<struct<a:bigint,b:string>>",
}


def test_every_type_arrives_as_it_was(database: str) -> None:
    target = TableTarget("shop", "wide")
    check_rows(target, look_up(target, database), SPARK)
    batch = pa.RecordBatch.from_arrays([pa.array(v, t) for v, t in ROWS.values()], names=list(ROWS))
    names = ", ".join(ROWS)
    select = f"SELECT {names} FROM wide ORDER BY id"  # noqa: S608 — our own names
    with psycopg.connect(database) as connection:
        with connection.cursor().copy(f"COPY wide ({names}) FROM STDIN (FORMAT csv)".encode()) as copy:
            copy.write(csv_of(batch, list(ROWS)))
        first, second = connection.execute(select.encode()).fetchall()
    expected = [values[0] for values, _ in ROWS.values()]
    expected[-2] = {"k": [1, 2]}
    assert list(first) == expected
    assert second[3] == "", "empty text is not null"
    assert [*second[4:11]] == [None] * 7


@pytest.mark.parametrize(
    ("rows", "key", "message"),
    [
        ({"id": "bigint", "txt_": "string"}, (), r"no column 'txt_' \(did you mean text_\?\)"),
        ({"id": "bigint"}, (), "text_ must have a value, and the query gives none"),
        ({"id": "double", "text_": "string"}, (), "the column id is int8, and can't hold every double; cast it"),
        ({"id": "bigint", "text_": "binary"}, (), "the column text_ is text, and can't hold every binary"),
        ({"id": "bigint", "text_": "string", "twice": "bigint"}, (), "the database makes the column twice itself"),
        ({"id": "bigint", "text_": "string"}, ("small",), "the query has no column small, which is in the key"),
        ({"id": "bigint", "text_": "string"}, ("text_",), r"no unique constraint has exactly .* id; small, text_"),
    ],
)
def test_what_does_not_fit_is_refused(database: str, rows: dict[str, str], key: tuple[str, ...], message: str) -> None:
    target = TableTarget("shop", "wide", key)
    with pytest.raises(PipelineError, match=message):
        check_rows(target, look_up(target, database), rows)


def test_octets_in_json_are_as_sparks_to_json_has_them() -> None:
    inner = pa.struct([("raw", pa.binary()), ("many", pa.list_(pa.binary()))])
    batch = pa.record_batch([pa.array([{"raw": b"\xff\x00", "many": [b"a", None]}], inner)], names=["doc"])
    (row,) = csv_rows(csv_of(batch, ["doc"]).decode())
    assert json.loads(row[0] or "") == {"raw": "/wA=", "many": ["YQ==", None]}


def test_a_key_is_a_unique_constraint_in_any_order(database: str) -> None:
    target = TableTarget("shop", "wide", ("text_", "small"))
    check_rows(target, look_up(target, database), {"id": "bigint", "text_": "string", "small": "smallint"})


def test_no_table_and_no_prepared_transactions(database: str) -> None:
    with pytest.raises(PipelineError, match="table shop:nowhere: there is no such table"):
        look_up(TableTarget("shop", "nowhere"), database)
    with pytest.raises(PipelineError, match="its columns can't be read"):
        look_up(TableTarget("shop", "t"), "postgresql://postgres@127.0.0.1:1/x")


@pytest.mark.parametrize(
    ("given", "there"),
    [
        ("Orders", '"Orders": capitals count, and PostgreSQL reads .* in small letters. Write shop:"Orders"$'),
        ("orders", 'Write shop:"Orders"$'),
        ("public.orders", r'Write shop:public."Orders"$'),
        ('"WIDE"', "Write shop:wide$"),
        ("sales.Revenue", r'Write shop:"Sales"."Revenue"$'),
        ("archived", r"There is old.archived, in a schema that is not in the search_path: write shop:old.archived$"),
        ('"Archived"', r"There is old.archived: capitals count.* Write shop:old.archived$"),
        ("wide.nowhere", "there is no such table in this database$"),
    ],
)
def test_a_table_of_another_case_or_schema_is_named(database: str, given: str, there: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute('CREATE SCHEMA "Sales"')
        connection.execute("CREATE SCHEMA old")
        for name in ('"Orders"', '"Sales"."Revenue"', "old.archived"):
            connection.execute(f"CREATE TABLE {name} (id bigint)")
    with pytest.raises(PipelineError, match=there):
        look_up(TableTarget("shop", given), database)


def test_a_column_of_another_case_is_named(database: str) -> None:
    wide = TableTarget("shop", "wide")
    with pytest.raises(PipelineError, match=r"it has no column 'TEXT_' \(did you mean text_\?\)"):
        check_rows(wide, look_up(wide, database), {"id": "bigint", "TEXT_": "string"})
    key = TableTarget("shop", "wide", ("ID",))
    with pytest.raises(PipelineError, match=r"the query has no column ID \(did you mean id\?\), which is in the key"):
        check_rows(key, look_up(key, database), {"id": "bigint", "text_": "string"})


def test_columns_of_messages_stay_out_of_the_table(database: str) -> None:
    given = {"pipeline": "p", "log": database, "resource.shop": database, "resource.broker": "amqp://x/"}
    rows = {"id": "bigint", "text_": "string", "body": "string", "subject": "string"}
    both = layout(sink_options({**given, "table": "wide", "address": "a"}), rows)
    assert both.tables.targets[0].columns == ("id", "text_")
    chosen = layout(sink_options({**given, "table": "wide", "address": "a", "columns": "id,text_"}), rows)
    assert chosen.tables.targets[0].columns == ("id", "text_")
    with pytest.raises(PipelineError, match="it has no column 'body'"):
        layout(sink_options({**given, "table": "wide"}), rows)
    with pytest.raises(PipelineError, match="a message has no id; drop the column, or make it an application property"):
        layout(sink_options({**given, "address": "a"}), rows)
    with pytest.raises(PipelineError, match="the query has no column body"):
        layout(sink_options({**given, "address": "a"}), {"subject": "string"})
    with pytest.raises(PipelineError, match="the column subject has to be string, not int"):
        layout(sink_options({**given, "address": "a"}), {"body": "binary", "subject": "int"})


MANY = {
    "table": "shop:orders, shop:returns",
    "table_column": "kind",
    "key.returns": "id",
    "address": "broker:out, broker:audit",
    "address_column": "to",
}


@pytest.fixture
def several(database: str) -> dict[str, str]:
    """The options of a sink with two tables and two addresses."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id bigint, kind text)")
        connection.execute("CREATE TABLE returns (id bigint PRIMARY KEY, why text)")
    given = {"pipeline": "p", "log": database, "resource.shop": database, "resource.broker": "amqp://x/"}
    return {**given, **MANY, "columns.orders": "id,kind"}


def test_each_table_is_checked_with_its_columns_and_key(several: dict[str, str]) -> None:
    """A routing column goes into the tables that have it."""
    rows = {"id": "bigint", "why": "string", "kind": "string", "to": "string", "body": "string"}
    orders, returns = layout(sink_options(several), rows).tables.targets
    assert (orders.columns, orders.target.key) == (("id", "kind"), ())
    assert (returns.columns, returns.target.key) == (("id", "why"), ("id",))
    without = {name: value for name, value in several.items() if name != "columns.orders"}
    wrong: list[tuple[dict[str, str], dict[str, str], str]] = [
        (without, rows, "table shop:orders: it has no column 'why'.* name it in the option columns.orders"),
        (several, {**rows, "kind": "int"}, "option table_column: the column kind has to be string, not int"),
        ({**several, "table_column": "kynd"}, rows, "option table_column: the query has no column 'kynd'"),
        ({**several, "key.returns": "why"}, rows, "table shop:returns: no unique constraint has exactly"),
        ({**several, "columns.returns": "nr"}, rows, r"option columns\.returns: the query has no column 'nr'"),
    ]
    for options, columns, message in wrong:
        with pytest.raises(PipelineError, match=message):
            layout(sink_options(options), columns)


def test_a_database_that_decides_has_the_log(database: str, postgres: Postgres) -> None:
    """And the two users find the same tables by the same names."""
    target = TableTarget("shop", "wide", ("id",))
    same = look_up_deciding(target, database, database.replace("postgresql://", "postgresql+psycopg://"))
    assert same.keys == look_up(target, database).keys
    with pytest.raises(PipelineError, match="the log of the pipeline is in another database"):
        look_up_deciding(target, database, postgres.create_database())
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA other; CREATE TABLE other.wide (id bigint PRIMARY KEY)")
    elsewhere = f"{database}{'&' if '?' in database else '?'}options=-csearch_path%3Dother,public"
    with pytest.raises(PipelineError, match="finds other tables by the names wide"):
        look_up_deciding(target, database, elsewhere)
    with pytest.raises(PipelineError, match="there is no such table"):
        look_up_deciding(TableTarget("shop", "nowhere"), database, database)


def test_what_can_not_decide_is_refused(database: str, tmp_path: Path) -> None:
    given = {"pipeline": "p", "resource.shop": database, "decider": "shop", "table": "wide"}
    for log, told in ((f"sqlite:///{tmp_path}/log.db", "with a log in sqlite"), (database, "")):
        options = sink_options({**given, "log": log})
        rows = {"id": "bigint", "text_": "string"}
        if told:
            with pytest.raises(PipelineError, match=told):
                layout(options, rows)
        else:
            assert layout(options, rows).tables.targets[0].columns == ("id", "text_")
