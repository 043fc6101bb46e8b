"""These tests check rows as MariaDB reads them, and the check before the first row, over a real MariaDB."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import TableTarget
from xabridge.pipeline.core.task.mariadb import inserts
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.pipeline.spark.database_table import check_rows
from xabridge.pipeline.spark.mariadb_table import look_up, rows_of

if TYPE_CHECKING:
    from xabridge.testing.mariadb import MariaDB

DDL = """
CREATE TABLE wide (
    id bigint PRIMARY KEY, small smallint, real_ double, text_ varchar(40) NOT NULL, flag bool, price decimal(10, 2),
    day date, at timestamp(6) NULL, wall datetime(6), octets varbinary(20), doc json, twice bigint AS (id * 2) STORED,
    mood varchar(10) NOT NULL DEFAULT 'fine', coarse datetime, UNIQUE (small, text_)
) ENGINE = InnoDB"""
ROWS: dict[str, tuple[Any, pa.DataType, str]] = {
    "id": ([1, 2], pa.int64(), "bigint"),
    "small": ([-5, None], pa.int16(), "smallint"),
    "real_": ([1e300, 0.1], pa.float64(), "double"),
    "text_": (["a \"b\", 'c'; COMMIT \\' \n\\0\0ü", ""], pa.string(), "string"),
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
SPARK = {name: spark for name, (_, _, spark) in ROWS.items()}


@pytest.fixture
def database(mariadb: MariaDB) -> str:
    """A database with some tables."""
    url = mariadb.create_database("mariadb")
    name = url.rpartition("/")[2]
    mariadb.admin(
        f"USE {name}",
        DDL,
        "CREATE TABLE numbered (nr int AUTO_INCREMENT PRIMARY KEY, code varchar(20) NOT NULL UNIQUE, n bigint)",
        "CREATE TABLE prefixed (code varchar(20) PRIMARY KEY, n text, UNIQUE (n(5)))",
        "CREATE TABLE at_once (id bigint) ENGINE = Aria",
        'CREATE TABLE `Odd.Na"me` (id bigint)',
    )
    return url


def test_every_type_arrives_as_it_was(database: str) -> None:
    target = TableTarget("shop", "wide")
    check_rows(target, look_up(target, database), SPARK)
    batch = pa.RecordBatch.from_arrays([pa.array(v, t) for v, t, _ in ROWS.values()], names=list(ROWS))
    with connect(database) as connection, connection.cursor() as cursor:
        for statement in inserts(connection, "wide", list(ROWS), rows_of(batch, list(ROWS)), ""):
            connection.query(statement)
        cursor.execute(f"SELECT {', '.join(ROWS)} FROM wide ORDER BY id")  # noqa: S608 — our own names
        first, second = cursor.fetchall()
    expected = [values[0] for values, _, _ in ROWS.values()]
    expected[7] = dt.datetime(2024, 2, 29, 12, 0, 0, 5)  # noqa: DTZ001 — the session's zone is UTC
    expected[-1] = '{"a": 1, "b": "ü\'"}'
    assert list(first) == expected
    assert second[3] == "", "empty text is not null"
    assert [*second[4:]] == [None] * 7


@pytest.mark.parametrize(
    ("table", "rows", "key", "message"),
    [
        ("wide", {"id": "bigint", "txt_": "string"}, (), r"no column 'txt_' \(did you mean text_\?\)"),
        ("wide", {"id": "bigint"}, (), "text_ must have a value, and the query gives none"),
        ("wide", {"id": "double", "text_": "string"}, (), r"id is bigint\(20\), and can't hold every double; cast it"),
        ("wide", {"id": "bigint", "text_": "binary"}, (), r"text_ is varchar\(40\), and can't hold every binary"),
        ("wide", {"text_": "string", "twice": "bigint"}, (), "the database makes the column twice itself"),
        ("wide", {"text_": "string", "coarse": "timestamp_ntz"}, (), "coarse is datetime, and can't hold every"),
        ("wide", {"text_": "string", "at": "timestamp_ntz"}, (), r"at is timestamp\(6\), and can't hold every"),
        ("wide", {"text_": "string", "price": "decimal(12,3)"}, (), r"price is decimal\(10,2\), and can't hold every"),
        ("wide", {"text_": "string", "price": "bigint"}, (), r"price is decimal\(10,2\), and can't hold every bigint"),
        ("wide", {"text_": "string", "price": "double"}, (), r"price is decimal\(10,2\), and can't hold every double"),
        (
            "wide",
            {"id": "bigint", "text_": "string"},
            ("text_",),
            "no unique constraint has exactly .* id; small, text_",
        ),
        (
            "wide",
            {"id": "bigint", "text_": "string", "small": "smallint"},
            ("id",),
            r"another unique constraint \(small, text_\), by which MariaDB would also find rows to update",
        ),
        ("numbered", {"nr": "int", "code": "string"}, ("code",), r"another unique constraint \(nr\)"),
        ("prefixed", {"code": "string", "n": "string"}, ("code",), r"another unique constraint \(n\)"),
        ("at_once", {"id": "bigint"}, (), "its engine is Aria, which can't roll back"),
        ("nowhere", {"id": "bigint"}, (), "there is no such table in this database$"),
        ("WIDE", {"id": "bigint"}, (), "There is wide: this server tells capitals in names of tables$"),
    ],
)
def test_what_does_not_fit_is_refused(
    database: str, table: str, rows: dict[str, str], key: tuple[str, ...], message: str
) -> None:
    target = TableTarget("shop", table, key)
    with pytest.raises(PipelineError, match=message):
        check_rows(target, look_up(target, database), rows)


def test_a_number_that_the_server_gives_is_no_second_key(database: str) -> None:
    target = TableTarget("shop", "numbered", ("code",))
    check_rows(target, look_up(target, database), {"code": "string", "n": "int"})
    optional = TableTarget("shop", "wide", ("id",))
    check_rows(optional, look_up(optional, database), {"id": "bigint", "text_": "string"})


def test_names_are_quoted_as_in_standard_sql(database: str) -> None:
    name = database.rpartition("/")[2]
    target = TableTarget("shop", f'"{name}"."Odd.Na""me"')
    check_rows(target, look_up(target, database), {"id": "bigint"})
    with connect(database) as connection, connection.cursor() as cursor:
        for statement in inserts(connection, target.table, ("id",), [(1,)], ""):
            connection.query(statement)
        cursor.execute(f"SELECT id FROM {target.table}")  # noqa: S608 — our own name
        assert cursor.fetchall() == ((1,),)


def test_a_server_that_is_away() -> None:
    with pytest.raises(PipelineError, match="its columns can't be read"):
        look_up(TableTarget("shop", "t"), "mariadb://nobody@127.0.0.1:1/x")
