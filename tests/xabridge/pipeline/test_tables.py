"""These tests check the columns of a query against tables of PostgreSQL, MariaDB and Delta Lake, which is done when it
starts; and that every value of a row arrives as it was, over real databases.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.postgres import Postgres
from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import LakeTarget, TableTarget
from xabridge.pipeline.core.task.mariadb import inserts
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.pipeline.core.task.table_writer import csv_rows
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.spark import lake_table, mariadb_table, postgres_table
from xabridge.pipeline.spark.database_table import check_rows
from xabridge.pipeline.spark.postgres_table import csv_of, look_up_deciding
from xabridge.pipeline.spark.task_writer import layout
from xabridge.testing.mariadb import MariaDB

POSTGRES = """
CREATE TABLE wide (
    id bigint PRIMARY KEY, small smallint, real_ float8, text_ text NOT NULL, flag bool, price numeric(10, 2),
    day date, at timestamptz, wall timestamp, octets bytea, doc jsonb, list json, counted bigserial,
    twice bigint GENERATED ALWAYS AS (id * 2) STORED, mood varchar(10) DEFAULT 'fine', UNIQUE (small, text_)
);
CREATE SCHEMA "Sales"; CREATE SCHEMA old;
CREATE TABLE "Orders" (id bigint); CREATE TABLE "Sales"."Revenue" (id bigint); CREATE TABLE old.archived (id bigint);
CREATE TABLE bought (id bigint, kind text); CREATE TABLE returns (id bigint PRIMARY KEY, why text);
"""
MARIADB = (
    """
    CREATE TABLE wide (
        id bigint PRIMARY KEY, small smallint, real_ double, text_ varchar(40) NOT NULL, flag bool,
        price decimal(10, 2), day date, at timestamp(6) NULL, wall datetime(6), octets varbinary(20), doc json,
        twice bigint AS (id * 2) STORED, mood varchar(10) NOT NULL DEFAULT 'fine', coarse datetime,
        UNIQUE (small, text_)
    ) ENGINE = InnoDB""",
    "CREATE TABLE numbered (nr int AUTO_INCREMENT PRIMARY KEY, code varchar(20) NOT NULL UNIQUE, n bigint)",
    "CREATE TABLE prefixed (code varchar(20) PRIMARY KEY, n text, UNIQUE (n(5)))",
    "CREATE TABLE at_once (id bigint) ENGINE = Aria",
    'CREATE TABLE `Odd.Na"me` (id bigint)',
)
LAKE = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        pa.field("cents", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("octets", pa.binary()),
        pa.field("lines", pa.list_(pa.struct([("product", pa.string()), ("count", pa.int32())]))),
        pa.field("tags", pa.map_(pa.string(), pa.string())),
    ]
)
ROWS: dict[str, tuple[Any, pa.DataType, str]] = {
    "id": ([1, 2], pa.int64(), "bigint"),
    "small": ([-5, None], pa.int16(), "smallint"),
    "real_": ([1e300, 0.1], pa.float64(), "double"),
    "text_": (["a \"b\", 'c'; COMMIT \\' \n\\.ü", ""], pa.string(), "string"),
    "flag": ([True, None], pa.bool_(), "boolean"),
    "price": ([Decimal("12.50"), None], pa.decimal128(10, 2), "decimal(10,2)"),
    "day": ([dt.date(2024, 2, 29), None], pa.date32(), "date"),
    "at": (
        [dt.datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=dt.UTC), None],
        pa.timestamp("us", tz="Europe/Berlin"),
        "timestamp",
    ),
    "wall": ([dt.datetime(2024, 2, 29, 12, 30, 0, 7), None], pa.timestamp("us"), "timestamp_ntz"),  # noqa: DTZ001
    "octets": ([b"\x00\xff\\'", None], pa.binary(), "binary"),
    "doc": (
        [{"a": 1, "b": "ü'"}, None],
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        "struct<a:bigint,b:string>",
    ),
}
KEPT = [values[0] for values, _, _ in ROWS.values()]
SPARK = {name: spark for name, (_, _, spark) in ROWS.items()}
BATCH = pa.RecordBatch.from_arrays([pa.array(values, type_) for values, type_, _ in ROWS.values()], names=list(ROWS))
SELECT = f"SELECT {', '.join(ROWS)} FROM wide ORDER BY id"  # noqa: S608 — our own names


@pytest.fixture
def postgresql(postgres: Postgres) -> str:
    """A database with tables."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        connection.execute(POSTGRES)
    return url


@pytest.fixture
def maria(mariadb: MariaDB) -> str:
    """A database with tables."""
    url = mariadb.create_database("mariadb")
    mariadb.admin(f"USE {url.rpartition('/')[2]}", *MARIADB)
    return url


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A lake with the table `orders`."""
    DeltaTable.create(tmp_path / "orders", LAKE)
    return f"delta://{tmp_path}"


def check(url: str, table: str, rows: dict[str, str], key: tuple[str, ...] = ()) -> None:
    """Whether the columns fit, as the start of a query finds it."""
    if url.startswith("delta"):
        lake = LakeTarget("lake", table)
        check_rows(lake, lake_table.look_up(lake, url), rows)
    else:
        target = TableTarget("shop", table, key)
        look_up = mariadb_table.look_up if url.startswith("mariadb") else postgres_table.look_up
        check_rows(target, look_up(target, url), rows)


def refuses(url: str, table: str, rows: dict[str, str], message: str, key: tuple[str, ...] = ()) -> None:
    with pytest.raises(PipelineError, match=message):
        check(url, table, rows, key)


def of(names: str) -> dict[str, str]:
    """Columns, by the types that they have in `wide`."""
    return {name: SPARK[name] for name in names.split()}


BOTH = of("id text_")


# --- PostgreSQL -------------------------------------------------------------------------------------------------------
def test_every_type_arrives_in_postgresql_as_it_was(postgresql: str) -> None:
    check(postgresql, "wide", {**SPARK, "list": "array<struct<a:bigint,b:string>>"})
    batch = BATCH.set_column(2, "real_", pa.array([math.inf, 0.1]))
    batch = batch.append_column("list", pa.array([[{"a": 1, "b": "ü"}], []]))
    names = ", ".join(batch.schema.names)
    with psycopg.connect(postgresql) as connection:
        with connection.cursor().copy(f"COPY wide ({names}) FROM STDIN (FORMAT csv)".encode()) as copy:
            copy.write(csv_of(batch, batch.schema.names))
        first, second = connection.execute(SELECT.encode()).fetchall()
        assert connection.execute("SELECT list FROM wide ORDER BY id").fetchall() == [([{"a": 1, "b": "ü"}],), ([],)]
    assert list(first) == [*KEPT[:2], math.inf, *KEPT[3:]]
    assert second[3] == "", "empty text is not null"
    assert [*second[4:]] == [None] * 7


def test_octets_in_json_are_as_sparks_to_json_has_them() -> None:
    inner = pa.struct([("raw", pa.binary()), ("many", pa.list_(pa.binary()))])
    batch = pa.record_batch([pa.array([{"raw": b"\xff\x00", "many": [b"a", None]}], inner)], names=["doc"])
    (row,) = csv_rows(csv_of(batch, ["doc"]).decode())
    assert json.loads(row[0] or "") == {"raw": "/wA=", "many": ["YQ==", None]}


def test_what_does_not_fit_postgresql_is_refused(postgresql: str) -> None:
    check(postgresql, "wide", of("id text_ small"), ("text_", "small"))
    for rows, key, message in (
        ({"id": "bigint", "txt_": "string"}, (), r"no column 'txt_' \(did you mean text_\?\)"),
        ({"id": "bigint", "TEXT_": "string"}, (), r"no column 'TEXT_' \(did you mean text_\?\)"),
        (of("id"), (), "text_ must have a value, and the query gives none"),
        ({**BOTH, "id": "double"}, (), "the column id is int8, and can't hold every double; cast it"),
        ({**BOTH, "text_": "binary"}, (), "the column text_ is text, and can't hold every binary"),
        ({**BOTH, "twice": "bigint"}, (), "the database makes the column twice itself"),
        (BOTH, ("small",), "the query has no column small, which is in the key"),
        (BOTH, ("ID",), r"the query has no column ID \(did you mean id\?\), which is in the key"),
        (BOTH, ("text_",), r"no unique constraint has exactly .* id; small, text_"),
    ):
        refuses(postgresql, "wide", rows, message, key)

    for given, there in (
        ("nowhere", "table shop:nowhere: there is no such table"),
        ("Orders", '"Orders": capitals count, and PostgreSQL reads .* in small letters. Write shop:"Orders"$'),
        ("orders", 'Write shop:"Orders"$'),
        ("public.orders", r'Write shop:public."Orders"$'),
        ('"WIDE"', "Write shop:wide$"),
        ("sales.Revenue", r'Write shop:"Sales"."Revenue"$'),
        ("archived", r"There is old.archived, in a schema that is not in the search_path: write shop:old.archived$"),
        ('"Archived"', r"There is old.archived: capitals count.* Write shop:old.archived$"),
        ("wide.nowhere", "there is no such table in this database$"),
    ):
        refuses(postgresql, given, BOTH, there)
    refuses("postgresql://postgres@127.0.0.1:1/x", "t", BOTH, "its columns can't be read")


def test_columns_of_messages_stay_out_of_the_table(postgresql: str) -> None:
    given = {"pipeline": "p", "log": postgresql, "resource.shop": postgresql, "resource.broker": "amqp://x/"}
    rows = {**BOTH, "body": "string", "subject": "string"}
    for options in ({}, {"columns": "id,text_"}):
        both = layout(sink_options({**given, "table": "wide", "address": "a", **options}), rows)
        assert both.tables.targets[0].columns == ("id", "text_")
    wrong: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({"table": "wide"}, rows, "it has no column 'body'"),
        ({"address": "a"}, rows, "a message has no id; drop the column, or make it an application property"),
        ({"address": "a"}, {"subject": "string"}, "the query has no column body"),
        ({"address": "a"}, {"body": "binary", "subject": "int"}, "the column subject has to be string, not int"),
    ]
    for options, columns, message in wrong:
        with pytest.raises(PipelineError, match=message):
            layout(sink_options({**given, **options}), columns)


def test_each_table_is_checked_with_its_columns_and_key(postgresql: str) -> None:
    """A routing column goes into the tables that have it."""
    several = {
        "pipeline": "p",
        "log": postgresql,
        "resource.shop": postgresql,
        "resource.broker": "amqp://x/",
        "table": "shop:bought, shop:returns",
        "table_column": "kind",
        "key.returns": "id",
        "address": "broker:out, broker:audit",
        "address_column": "to",
        "columns.bought": "id,kind",
    }

    rows = {"id": "bigint", "why": "string", "kind": "string", "to": "string", "body": "string"}
    bought, returns = layout(sink_options(several), rows).tables.targets
    assert (bought.columns, bought.target.key) == (("id", "kind"), ())
    assert (returns.columns, returns.target.key) == (("id", "why"), ("id",))
    without = {name: value for name, value in several.items() if name != "columns.bought"}
    wrong: list[tuple[dict[str, str], dict[str, str], str]] = [
        (without, rows, "table shop:bought: it has no column 'why'.* name it in the option columns.bought"),
        (several, {**rows, "kind": "int"}, "option table_column: the column kind has to be string, not int"),
        ({**several, "table_column": "kynd"}, rows, "option table_column: the query has no column 'kynd'"),
        ({**several, "key.returns": "why"}, rows, "table shop:returns: no unique constraint has exactly"),
        ({**several, "columns.returns": "nr"}, rows, r"option columns\.returns: the query has no column 'nr'"),
    ]
    for options, columns, message in wrong:
        with pytest.raises(PipelineError, match=message):
            layout(sink_options(options), columns)


def test_a_database_that_decides_has_the_log(postgresql: str, postgres: Postgres, tmp_path: Path) -> None:
    """And the two users find the same tables by the same names."""
    target = TableTarget("shop", "wide", ("id",))
    same = look_up_deciding(target, postgresql, postgresql.replace("postgresql://", "postgresql+psycopg://"))
    assert same.keys == postgres_table.look_up(target, postgresql).keys
    with psycopg.connect(postgresql) as connection:
        connection.execute("CREATE SCHEMA other; CREATE TABLE other.wide (id bigint PRIMARY KEY)")
    elsewhere = f"{postgresql}{'&' if '?' in postgresql else '?'}options=-csearch_path%3Dother,public"
    for table, log, message in (
        (target, postgres.create_database(), "the log of the pipeline is in another database"),
        (target, elsewhere, "finds other tables by the names wide"),
        (TableTarget("shop", "nowhere"), postgresql, "there is no such table"),
    ):
        with pytest.raises(PipelineError, match=message):
            look_up_deciding(table, postgresql, log)

    given = {"pipeline": "p", "resource.shop": postgresql, "decider": "shop", "table": "wide"}
    assert layout(sink_options({**given, "log": postgresql}), BOTH).tables.targets[0].columns == ("id", "text_")
    with pytest.raises(PipelineError, match="with a log in sqlite"):
        layout(sink_options({**given, "log": f"sqlite:///{tmp_path}/log.db"}), BOTH)


# --- MariaDB ----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_every_type_arrives_in_mariadb_as_it_was(maria: str) -> None:
    check(maria, "wide", SPARK)
    with connect(maria) as connection, connection.cursor() as cursor:
        for statement in inserts(connection, "wide", list(ROWS), mariadb_table.rows_of(BATCH, list(ROWS)), ""):
            connection.query(statement)
        cursor.execute(SELECT)
        first, second = cursor.fetchall()
    at = dt.datetime(2024, 2, 29, 12, 0, 0, 5)  # noqa: DTZ001 — the session's zone is UTC
    assert list(first) == [*KEPT[:7], at, *KEPT[8:-1], '{"a": 1, "b": "ü\'"}']
    assert second[3] == "", "empty text is not null"
    assert [*second[4:]] == [None] * 7


@pytest.mark.slow
def test_what_does_not_fit_mariadb_is_refused(maria: str) -> None:
    check(maria, "numbered", {"code": "string", "n": "int"}, ("code",))  # a number that the server gives is no key
    check(maria, "wide", BOTH, ("id",))
    text = of("text_")

    wrong: list[tuple[str, dict[str, str], tuple[str, ...], str]] = [
        ("wide", {"id": "bigint", "txt_": "string"}, (), r"no column 'txt_' \(did you mean text_\?\)"),
        ("wide", of("id"), (), "text_ must have a value, and the query gives none"),
        ("wide", {**BOTH, "id": "double"}, (), r"id is bigint\(20\), and can't hold every double; cast it"),
        ("wide", {**BOTH, "text_": "binary"}, (), r"text_ is varchar\(40\), and can't hold every binary"),
        ("wide", {**text, "twice": "bigint"}, (), "the database makes the column twice itself"),
        ("wide", {**text, "coarse": "timestamp_ntz"}, (), "coarse is datetime, and can't hold every"),
        ("wide", {**text, "at": "timestamp_ntz"}, (), r"at is timestamp\(6\), and can't hold every"),
        ("wide", {**text, "price": "decimal(12,3)"}, (), r"price is decimal\(10,2\), and can't hold every"),
        ("wide", {**text, "price": "bigint"}, (), r"price is decimal\(10,2\), and can't hold every bigint"),
        ("wide", {**text, "price": "double"}, (), r"price is decimal\(10,2\), and can't hold every double"),
        ("wide", BOTH, ("text_",), "no unique constraint has exactly .* id; small, text_"),
        ("wide", of("id text_ small"), ("id",), r"\(small, text_\), by which MariaDB would also find rows to update"),
        ("numbered", {"nr": "int", "code": "string"}, ("code",), r"another unique constraint \(nr\)"),
        ("prefixed", {"code": "string", "n": "string"}, ("code",), r"another unique constraint \(n\)"),
        ("at_once", of("id"), (), "its engine is Aria, which can't roll back"),
        ("nowhere", of("id"), (), "there is no such table in this database$"),
        ("WIDE", of("id"), (), "There is wide: this server tells capitals in names of tables$"),
    ]
    for table, rows, key, message in wrong:
        refuses(maria, table, rows, message, key)


@pytest.mark.slow
def test_names_are_quoted_as_in_standard_sql(maria: str) -> None:
    table = f'"{maria.rpartition("/")[2]}"."Odd.Na""me"'
    check(maria, table, of("id"))
    with connect(maria) as connection, connection.cursor() as cursor:
        for statement in inserts(connection, TableTarget("shop", table).table, ("id",), [(1,)], ""):
            connection.query(statement)
        cursor.execute(f"SELECT id FROM {TableTarget('shop', table).table}")  # noqa: S608 — our own name
        assert cursor.fetchall() == ((1,),)


def test_a_mariadb_that_is_away() -> None:
    refuses("mariadb://nobody@127.0.0.1:1/x", "t", BOTH, "its columns can't be read")


# --- Delta Lake -------------------------------------------------------------------------------------------------------
def test_columns_and_a_delta_table(lake: str) -> None:
    fitting = {
        "n": "int",
        "cents": "decimal(10,1)",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "octets": "binary",
        "lines": "array<struct<product:string,count:int>>",
        "tags": "map<string,string>",
    }
    check(lake, "orders", fitting)
    check(lake, "orders", {"n": "bigint"})

    for columns, told in (
        ({"n": "string"}, "the column n is bigint, and can't hold every string; cast it"),
        ({"n": "bigint", "cents": "decimal(12,3)"}, r"the column cents is decimal\(12,2\), and can't hold every"),
        ({"n": "bigint", "at": "timestamp_ntz"}, "the column at is timestamp, and can't hold every timestamp_ntz"),
        ({"n": "bigint", "tags": "map<string,int>"}, "can't hold every map"),
        ({"n": "bigint", "tag": "string"}, r"it has no column 'tag' \(did you mean tags\?\)"),
        ({"cents": "decimal(12,2)"}, "n must have a value, and the query gives none"),
    ):
        refuses(lake, "orders", columns, f"table lake:orders: .*{told}")
    refuses("delta:///tmp", "gone", {"n": "int"}, "there is no Delta table")
    refuses("delta://host/x", "orders", {"n": "int"}, "with three slashes")
