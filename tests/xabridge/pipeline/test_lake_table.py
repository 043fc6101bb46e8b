"""These tests check which columns of a query fit a Delta table, which is found out when the query starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import LakeTarget
from xabridge.pipeline.spark.database_table import check_rows
from xabridge.pipeline.spark.lake_table import look_up

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = pa.schema(
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
FITTING = {
    "n": "int",
    "cents": "decimal(10,1)",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "octets": "binary",
    "lines": "array<struct<product:string,count:int>>",
    "tags": "map<string,string>",
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A lake with a table."""
    DeltaTable.create(tmp_path / "orders", COLUMNS)
    return f"delta://{tmp_path}"


def check(url: str, columns: dict[str, str], table: str = "orders") -> None:
    """Whether they fit."""
    target = LakeTarget("lake", table)
    check_rows(target, look_up(target, url), columns)


def test_columns_that_fit(url: str) -> None:
    check(url, FITTING)
    check(url, {"n": "bigint"})


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"n": "string"}, "the column n is bigint, and can't hold every string; cast it"),
        ({"n": "bigint", "cents": "decimal(12,3)"}, r"the column cents is decimal\(12,2\), and can't hold every"),
        ({"n": "bigint", "at": "timestamp_ntz"}, "the column at is timestamp, and can't hold every timestamp_ntz"),
        ({"n": "bigint", "tags": "map<string,int>"}, "can't hold every map"),
        ({"n": "bigint", "tag": "string"}, r"it has no column 'tag' \(did you mean tags\?\)"),
        ({"cents": "decimal(12,2)"}, "n must have a value, and the query gives none"),
    ],
)
def test_columns_that_do_not_fit(url: str, columns: dict[str, str], told: str) -> None:
    with pytest.raises(PipelineError, match=f"table lake:orders: .*{told}"):
        check(url, columns)


@pytest.mark.parametrize(
    ("table", "url", "told"),
    [("gone", "delta:///tmp", "there is no Delta table"), ("orders", "delta://host/x", "with three slashes")],
)
def test_a_table_that_is_not_there(table: str, url: str, told: str) -> None:
    with pytest.raises(PipelineError, match=told):
        check(url, {"n": "int"}, table)
