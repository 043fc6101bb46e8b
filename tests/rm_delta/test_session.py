"""These tests use a lake as applications do: rows of several kinds, rows that don't fit, and the names of rm_delta,
which are known without its library.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

import rm_delta
from rm_delta.errors import plain
from tests.programs import check_exports, loaded_by
from tests.rm_delta.test_contract import rows_of
from tm import ResourceConfig, TransactionManager
from xa import Code, TryAgain, XaMisuse

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


def test_a_log_that_another_writer_is_cleaning_up(tm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was listed is gone when it is read. The next load finds the new state."""
    for number in (1, 2):
        with tm.begin() as tx:
            tx["lake"].append("rows", [{"n": number}])
    first = tmp_path / "lake" / "rows" / "_delta_log" / f"{0:020}.json"
    gone = first.rename(tmp_path / "gone")
    pauses: list[float] = []

    def cleaned(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 2:
            gone.rename(first)

    monkeypatch.setattr("rm_delta.table.time.sleep", cleaned)
    with tm.begin() as tx:
        tx["lake"].append("rows", [{"n": 3}])
    assert len(pauses) == 2
    assert sorted(row["n"] for row in rows_of(tmp_path / "lake" / "rows")) == [1, 2, 3]


def test_a_log_that_can_not_be_read(tm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no misuse, and the message is one line without colours."""
    monkeypatch.setattr("rm_delta.table.PAUSES_S", (0.0,))
    first = tmp_path / "lake" / "rows" / "_delta_log" / f"{0:020}.json"
    good = first.read_bytes()
    first.write_bytes(b"{ no json\n")
    with tm.begin() as tx:
        for verb, rows in (("append", ([{"n": 1}],)), ("schema", ())):
            with pytest.raises(TryAgain, match="rows: the table can't be read: ") as raised:
                getattr(tx["lake"], verb)("rows", *rows)
            assert raised.value.code is Code.XA_RETRY
            assert str(raised.value).isprintable()
        first.write_bytes(good)
        tx["lake"].append("rows", [{"n": 1}])  # the transaction goes on
    assert [row["n"] for row in rows_of(tmp_path / "lake" / "rows")] == [1]


def test_what_the_library_says_has_no_colours_and_no_line_breaks() -> None:
    error = DeltaError("\x1b[31mKernel error\x1b[0m:\n  File not found: \x1b[1;4m7.json\x1b[0m\n")
    assert plain(error) == "Kernel error: File not found: 7.json"


FORKING = """
import os, sys
from tm import RolledBack, TransactionManager

folder = sys.argv[1]

def append(node, *numbers):
    with TransactionManager(node, f"file://{folder}/{node}", {"lake": f"delta://{folder}/lake"}) as tm:
        for number in numbers:
            with tm.begin() as tx:
                tx["lake"].append("rows", [{"n": number}])

def child(node, number):
    child = os.fork()
    if not child:
        try:
            append(node, number)
            print("done", flush=True)
        except RolledBack as error:
            print(error, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

child("early", 1)  # nobody has used a table before
append("parent", 2)
child("late", 3)
append("parent", 4)
"""


@pytest.mark.slow
def test_a_child_that_is_forked_after_a_table_was_used(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "lake" / "rows", COLUMNS)
    words = [sys.executable, "-c", FORKING, str(tmp_path)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "panic" not in ended.stderr
    early, late = ended.stdout.splitlines()
    assert early == "done"
    assert "forked after its parent had used a Delta table" in late
    assert sorted(row["n"] for row in rows_of(tmp_path / "lake" / "rows")) == [1, 2, 4]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("rm_delta.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(rm_delta), "DeltaResource", raising=False)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ImportError, match=r"pip install .*\[delta\]'"):
        _ = rm_delta.DeltaResource


# --- what is imported -------------------------------------------------------------------------------------------------
def test_public_names() -> None:
    check_exports(rm_delta, "DeltaResource DeltaSession NAME")


@pytest.mark.slow
def test_importing_it_loads_nothing_else() -> None:
    assert not {"deltalake", "pyarrow"} & loaded_by("import rm_delta, xabridge.pipeline.core.resources")
