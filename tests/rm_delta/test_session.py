"""These tests use a lake as applications do: rows of several kinds, and rows that don't fit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import rm_delta
from tests.rm_delta.test_contract import rows_of
from tm import ResourceConfig, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.fixture
def tm(tmp_path: Path) -> Iterator[TransactionManager[Any]]:
    """A manager with one lake, which has one table."""
    DeltaTable.create(tmp_path / "lake" / "rows", COLUMNS)
    resources = {"lake": ResourceConfig(f"delta://{tmp_path}/lake")}
    with TransactionManager("node", f"file://{tmp_path}/log", resources) as manager:
        yield manager


def test_rows_of_every_kind_and_a_transaction_that_is_rolled_back(tm: Any, tmp_path: Path) -> None:
    with tm.begin() as tx:
        tx["lake"].append("rows", [{"n": 1}, {"n": 2, "name": "two"}])
        tx["lake"].append("rows", pa.table({"name": ["three"], "n": pa.array([3], pa.int8())}))
        tx["lake"].append("rows", pa.record_batch({"n": [4]}))
        tx["lake"].append("rows", [])
        assert tx["lake"].schema("rows") == COLUMNS
    with pytest.raises(KeyError), tm.begin() as tx:
        tx["lake"].append("rows", [{"n": 5}])
        raise KeyError
    found = {row["n"]: row["name"] for row in rows_of(tmp_path / "lake" / "rows")}
    assert found == {1: None, 2: "two", 3: "three", 4: None}
    assert DeltaTable(tmp_path / "lake" / "rows").version() == 1
    assert list((tmp_path / "lake" / "_xabridge" / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"n": "x"}], "the rows don't fit"),
        ([{"n": 2**70}], "the rows don't fit"),
        ([{"n": 1, "nmae": "x"}], "has no column nmae; it has n, name"),
        (pa.table({"m": [1]}), "has no column m"),
        ([{"name": "x"}], "the column n must have a value in every row"),
        (pa.table({"n": [1.5]}), "the column n can't hold the rows"),
    ],
)
def test_rows_that_do_not_fit(tm: Any, tmp_path: Path, rows: Any, told: str) -> None:
    with tm.begin() as tx:
        with pytest.raises(XaMisuse, match=told):
            tx["lake"].append("rows", rows)
        tx["lake"].append("rows", [{"n": 1}])  # the transaction goes on
    assert [row["n"] for row in rows_of(tmp_path / "lake" / "rows")] == [1]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rm_delta.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(rm_delta), "DeltaResource", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ImportError, match=r"pip install 'xabridge\[delta\]'"):
        _ = rm_delta.DeltaResource
