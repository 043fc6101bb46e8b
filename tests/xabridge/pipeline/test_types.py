"""These tests walk the table of types in docs/pipeline.md: each value arrives where the table says so, as what it says,
and is refused where it says nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest

from rm_amqp import Message
from tests.docs.guide import ROOT
from tests.postgres import Postgres
from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import TableTarget
from xabridge.pipeline.core.task.message_encoder import encode_messages
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.spark.database_table import check_rows
from xabridge.pipeline.spark.json_bodies import json_reader
from xabridge.pipeline.spark.message_rows import messages_of
from xabridge.pipeline.spark.postgres_table import csv_of, look_up
from xabridge.pipeline.spark.task_writer import layout

AT: Final = dt.datetime(2026, 11, 21, 23, 12, 7, 123456, tzinfo=dt.UTC)
WALL: Final = AT.replace(tzinfo=None)
VALUES: Final[dict[str, tuple[pa.DataType, list[Any]]]] = {
    "tinyint": (pa.int8(), [-128, 127]),
    "smallint": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float": (pa.float32(), [0.5, -1.25]),
    "double": (pa.float64(), [0.1, 1e100]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("12.50"), Decimal("-99999999.99")]),
    "boolean": (pa.bool_(), [True, False]),
    "string": (pa.string(), ['ü "{},\\\n', ""]),
    "binary": (pa.binary(), [b"\x00\xff\\", b""]),
    "date": (pa.date32(), [dt.date(2026, 11, 21), dt.date(1, 1, 1)]),
    "timestamp": (pa.timestamp("us", tz="UTC"), [AT]),
    "timestamp_ntz": (pa.timestamp("us"), [WALL]),
    "array<int>": (pa.list_(pa.int32()), [[1, None, -3], []]),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("ü", None)], []]),
    "struct<a:int>": (pa.struct([("a", pa.int32())]), [{"a": 1}, {"a": None}]),
}
JSON: Final = ("json", "jsonb")
POSTGRES: Final = (
    "smallint", "integer", "bigint", "real", "double precision", "numeric", "boolean", "bytea", "date", "timestamp",
    "timestamptz", "integer[]", "bigint[]", "json", "jsonb",
)  # fmt: skip
"""Types that the table names; where it does not name them, they are refused."""


def table_of_the_page() -> dict[str, tuple[list[str], str, str]]:
    """Type → types of PostgreSQL, kind of application property, kind of JSON."""
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    lines = page.split("| type in Spark |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    found = {}
    for line in lines:
        spark, postgres, simple, inside = (cell.strip() for cell in line.strip("|").split("|"))
        for name in re.findall(r"`([^`]+)`", spark):
            found[name] = re.findall(r"`([^`]+)`", postgres), simple, inside
    return found


TABLE: Final = table_of_the_page()


def test_the_table_has_every_type() -> None:
    assert set(TABLE) == set(VALUES)


def batch_of_one(name: str, spark: str) -> pa.RecordBatch:
    kind, values = VALUES[spark]
    return pa.record_batch([pa.array([*values, None], kind)], names=[name])


@pytest.fixture
def database(postgres: Postgres) -> str:
    """A database with a table for each type."""
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        for number, name in enumerate((*POSTGRES, "text", "text[]")):
            connection.execute(f"CREATE TABLE t{number} (v {name}, n serial)".encode())
    return url


def stored(database: str, table: str, spark: str) -> list[Any]:
    """What PostgreSQL has of the values."""
    target = TableTarget("shop", table)
    found = look_up(target, database)
    check_rows(target, found, {"v": spark})
    batch = batch_of_one("v", spark)
    with psycopg.connect(database) as connection:
        with connection.cursor().copy(f"COPY {table} (v) FROM STDIN (FORMAT csv)".encode()) as copy:
            copy.write(csv_of(batch, ["v"], found.arrays({"v": spark})))
        rows = [value for (value,) in connection.execute(f"SELECT v FROM {table} ORDER BY n".encode())]  # noqa: S608 — ours
        connection.rollback()
    return rows


@pytest.mark.parametrize("spark", [name for name in TABLE if name != "string"])
def test_into_tables(database: str, spark: str) -> None:
    named, _, _ = TABLE[spark]
    _, values = VALUES[spark]
    for number, name in enumerate(POSTGRES):
        if name not in named:
            with pytest.raises(PipelineError, match=r"the column v is .*, and can't hold every"):
                stored(database, f"t{number}", spark)
            continue
        *found, null = stored(database, f"t{number}", spark)
        assert null is None
        expected: list[Any] = [dict(value) for value in values] if spark.startswith("map") else list(values)
        if name in {"timestamp", "timestamptz"} and spark == "date":
            found = [value.date() for value in found]
        if name == "numeric" and spark in {"float", "double"}:
            found = [float(value) for value in found]
        assert found == expected, name


def test_text_goes_into_any_column(database: str) -> None:
    assert TABLE["string"][0] == []
    numbers = [f"t{number}" for number in range(len(POSTGRES))]
    for table in numbers:
        target = TableTarget("shop", table)
        check_rows(target, look_up(target, database), {"v": "string"})
    assert stored(database, f"t{len(POSTGRES)}", "string") == [*VALUES["string"][1], None]


def test_arrays_of_other_elements(database: str) -> None:
    target = TableTarget("shop", f"t{len(POSTGRES) + 1}")
    found = look_up(target, database)
    texts = [['a"b', "c\\d", "", None, "NULL", "{,}"], None]
    batch = pa.record_batch([pa.array(texts)], names=["v"])
    with psycopg.connect(database) as connection:
        with connection.cursor().copy(f"COPY {target.table} (v) FROM STDIN (FORMAT csv)".encode()) as copy:
            copy.write(csv_of(batch, ["v"], found.arrays({"v": "array<string>"})))
        assert [v for (v,) in connection.execute(f"SELECT v FROM {target.table} ORDER BY n".encode())] == texts  # noqa: S608 — ours
    for nested in ("array<array<string>>", "array<struct<a:int>>", "array<binary>"):
        with pytest.raises(PipelineError, match="can't hold every"):
            check_rows(target, found, {"v": nested})


KINDS: Final[dict[str, Any]] = {"long": int, "double": float, "boolean": bool, "text": str, "binary": bytes}


@pytest.mark.parametrize("spark", TABLE)
def test_as_application_properties(spark: str) -> None:
    kind, values = VALUES[spark]
    _, told, _ = TABLE[spark]
    options = {"pipeline": "p", "log": "sqlite:///x", "resource.broker": "amqp://x/", "address": "a"}
    if not told:
        with pytest.raises(PipelineError, match="has to be a map from string, or a struct, of simple values"):
            layout(sink_options(options), {"body": "binary", "application_properties": f"struct<v:{spark}>"})
        return

    for shape in (f"struct<v:{spark},w:string>", f"map<string,{spark}>"):
        layout(sink_options(options), {"body": "binary", "application_properties": shape})
    rows = [{"v": value, "w": "other"} for value in values]
    properties = pa.array(rows, pa.struct([("v", kind), ("w", pa.string())]))
    batch = pa.record_batch([pa.array([b"x"] * len(rows)), properties], names=["body", "application_properties"])
    sent = [Message.from_octets(octets).properties or {} for octets in encode_messages(messages_of(batch))]
    assert [one["w"] for one in sent] == ["other"] * len(rows)
    for value, one in zip(values, sent, strict=True):
        if told == "timestamp":
            assert one["v"] == 1795302727123
            assert type(one["v"]).__name__.lower() == "timestamp"
        elif told == "text":
            assert one["v"] == (value.isoformat() if isinstance(value, dt.date) else str(value))
        else:
            assert one["v"] == value
            assert isinstance(one["v"], KINDS[told])


@pytest.mark.parametrize("spark", TABLE)
def test_in_json_and_back(spark: str) -> None:
    """A body of a struct becomes JSON of the kind that the table says, and is read again as it was."""
    kind, values = VALUES[spark]
    _, _, told = TABLE[spark]
    type_ = pa.struct([("v", kind)])
    batch = pa.record_batch([pa.array([*({"v": value} for value in values), None], type_)], names=["body"])
    messages = messages_of(batch)
    assert messages.content_type == ["application/json"] * len(values), "a null is no message"
    read = json_reader(type_)
    for value, body in zip(values, messages.body, strict=True):
        assert read(body)["v"] == value
        found = json.loads(body or "")["v"]
        kinds: dict[str, Any] = {"number": (int, float), "array": list, "object": dict}
        assert isinstance(found, kinds.get(told, str if told.startswith("text") else bool))
        if told == "text with its zone":
            assert dt.datetime.fromisoformat(found).tzinfo is not None


def test_a_content_type_of_the_query_is_kept_and_json_has_no_nan() -> None:
    body = pa.array([{"v": float("nan"), "d": {"k": Decimal("1.20")}}])
    batch = pa.record_batch([body, pa.array(["text/x"])], names=["body", "content_type"])
    messages = messages_of(batch)
    assert messages.content_type == ["text/x"]
    assert json.loads(str(messages.body[0])) == {"v": "nan", "d": {"k": "1.20"}}
