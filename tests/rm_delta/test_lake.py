"""These tests check what a lake promises: a branch's rows are in its tables once or not at all, whoever dies when, and
whoever else writes the tables.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from rm_delta import lake as lake_module
from rm_delta.errors import TableRefused
from rm_delta.lake import ABANDONED_S, CommitBegun, CompletionPostponed, Lake, LakeUnavailable, TableWork
from rm_delta.parquet_files import TableFiles
from tests.rm_delta.test_contract import rows_of
from xa import FORMAT_ID, Xid
from xabridge.testing.contract.client import case

ORDERS = pa.schema([pa.field("number", pa.int64(), nullable=False), pa.field("product", pa.string())])
SALES = pa.schema([pa.field("number", pa.int64()), pa.field("day", pa.date32()), pa.field("shop", pa.string())])
TABLES = {"orders": ORDERS, "sales/days": SALES}
DAY = date(2026, 11, 21)
EXPIRY = "delta.setTransactionRetentionDuration"


@pytest.fixture(scope="module")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables, to be copied."""
    folder = tmp_path_factory.mktemp("lake")
    DeltaTable.create(folder / "orders", ORDERS)
    (folder / "sales").mkdir()
    DeltaTable.create(folder / "sales" / "days", SALES, partition_by=["day", "shop"])
    return folder


@pytest.fixture
def folder(tmp_path: Path, empty_folder: Path) -> Path:
    """A folder with two tables."""
    shutil.copytree(empty_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path


def opened(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.open()
    return lake


def xid(number: int) -> Xid:
    return Xid(FORMAT_ID, b"transaction %d" % number, b"x")


def written(lake: Lake, number: int, *tables: str) -> list[TableWork]:
    """The files of a branch that appends a row with this number to each table."""
    found = []
    for name in tables or TABLES:
        files = lake.files(xid(number).gtrid, f"w{number}", name)
        row = {"number": number} if name == "orders" else {"number": number, "day": DAY, "shop": "Köln/Süd & co"}
        schema = pa.schema([pa.field(key, TABLES[name].field(key).type) for key in row])
        files.write(pa.Table.from_pylist([row], schema))
        found.append(work_of(files))
    return found


def work_of(files: TableFiles) -> TableWork:
    """What a branch has written into a table."""
    return lake_module.TableWork(files.table, tuple(files.finish()))


def prepared(lake: Lake, number: int, *tables: str) -> Xid:
    assert lake.prepare(xid(number), written(lake, number, *tables))
    return xid(number)


def numbers(folder: Path) -> tuple[list[int], list[int]]:
    """The numbers in both tables, read by other software."""
    orders, sales = (sorted(row["number"] for row in rows_of(folder / name)) for name in TABLES)
    return orders, sales


def files_left(folder: Path) -> list[str]:
    """The files of the lake that belong to branches."""
    home = folder / "_xabridge"
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path.name != "id")


def log_of(table: Path) -> list[dict[str, Any]]:
    """The actions in a table's log."""
    versions = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for version in versions for line in version.read_text().splitlines()]


# --- kills ------------------------------------------------------------------------------------------------------------
class Killed(BaseException):
    """The process is dead."""


def die_at(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Every effect on the disk counts, and the one at `place` is not carried out any more."""
    numbered = count()

    def counted(effect: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if next(numbered) >= place:
                raise Killed
            return effect(*args, **options)

        return run

    for name in ("force", "write_file", "_write_version"):
        monkeypatch.setattr(lake_module, name, counted(getattr(lake_module, name)))
    owners: list[tuple[Any, str]] = [(os, "link"), (os, "utime"), (os, "sync"), (shutil, "rmtree")]
    for owner, name in [*owners, (Path, "rename"), (Path, "unlink")]:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


ACTS: dict[str, Callable[[Lake, list[TableWork]], object]] = {
    "prepare": lambda lake, tables: lake.prepare(xid(1), tables),
    "commit": lambda lake, _: lake.commit(xid(1)),
    "rollback": lambda lake, _: lake.rollback(xid(1)),
    "one phase": lambda lake, tables: lake.prepare(xid(1), tables, one_phase=True),
}


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("act", ACTS)
def test_a_process_that_dies_before_any_effect(
    folder: Path, monkeypatch: pytest.MonkeyPatch, act: str, step: int
) -> None:
    """The short form dies before each eighth effect; a seed says before which it begins."""
    seed = int(os.environ.get("XABRIDGE_SEED", "0")) or random.SystemRandom().randrange(10**6)
    for place in count(seed % step, step):
        with case(f"before effect {place}, XABRIDGE_SEED={seed}"):
            if not dies_at(folder, monkeypatch, act, place):
                break
    assert place >= 3


def dies_at(folder: Path, monkeypatch: pytest.MonkeyPatch, act: str, place: int) -> bool:
    """Whether there is an effect at this place; the process died before it, and what it left was finished."""
    root = folder / f"at-{place}"
    for name in TABLES:
        shutil.copytree(folder / name, root / name)
    lake = opened(root)
    tables = written(lake, 1)
    if act in {"commit", "rollback"}:
        lake.prepare(xid(1), tables)
    died = True
    with monkeypatch.context() as patched:
        die_at(patched, place)
        try:
            ACTS[act](lake, tables)
            died = False
        except Killed:
            pass
    seen = numbers(root)
    assert seen in (([], []), ([1], []), ([1], [1]))

    # The transaction manager's next process: it knows the decision, and asks about what is listed.
    lake = opened(root)
    listed = lake.prepared()
    assert listed in ([], [xid(1)])
    if act == "prepare" and listed:
        assert lake.commit(xid(1))
    elif act == "commit":
        assert lake.commit(xid(1)) is bool(listed)
    elif act == "rollback" and listed:
        assert lake.rollback(xid(1))
    after = numbers(root)
    assert after[0] == after[1], "in both tables or in none"
    assert after[0] in ([], [1])
    if act == "commit" or (act == "prepare" and listed) or (act == "one phase" and (seen[0] or not died)):
        assert after == ([1], [1])
    if act == "rollback":
        assert after == ([], [])
    assert opened(root).prepared() == []
    assert not [name for name in files_left(root) if name.startswith("branches/")]
    if act in {"commit", "rollback"}:
        assert not [name for name in files_left(root) if name.startswith("work/")]

    prepared(lake, 2)  # the slot is free, and its next version follows
    assert lake.commit(xid(2))
    assert numbers(root) == ([*after[0], 2], [*after[1], 2])
    return died


CHILD = """
import os, signal, sys
from pathlib import Path
from rm_delta import lake as module
from tests.rm_delta.test_lake import opened, written, xid

lake, whole = opened(Path(sys.argv[1])), module._write_version
def _write_version(table, work, *args):
    os.kill(os.getpid(), signal.SIGKILL) if work.table.name != "orders" else whole(table, work, *args)
module._write_version = _write_version
lake.prepare(xid(1), written(lake, 1))
lake.commit(xid(1))
"""


@pytest.mark.slow
def test_a_real_process_is_killed_between_two_tables(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD, folder], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert numbers(folder) == ([1], [])
    lake = opened(folder)
    assert lake.prepared() == [xid(1)]
    with pytest.raises(CommitBegun):
        lake.rollback(xid(1))
    assert lake.commit(xid(1))
    assert numbers(folder) == ([1], [1])
    assert files_left(folder) == ["lock"]


# --- order, and several at once ---------------------------------------------------------------------------------------
def test_a_late_commit_comes_after_others_that_are_newer(folder: Path) -> None:
    lake = opened(folder)
    first = prepared(lake, 1)
    for number in range(2, 5):
        assert lake.commit(prepared(lake, number))
    second = prepared(lake, 5)
    assert lake.commit(first)
    for number in range(6, 8):
        assert lake.commit(prepared(lake, number))
    assert lake.rollback(second)
    assert not lake.commit(second)
    assert not lake.rollback(first)
    expected = [1, 2, 3, 4, 6, 7]
    assert numbers(folder) == (expected, expected)
    named = {action["txn"]["appId"] for action in log_of(folder / "orders") if "txn" in action}
    assert len(named) == 2, "as many as were prepared at a time"


def test_several_processes_complete_the_same_branches(folder: Path) -> None:
    lakes = [opened(folder) for _ in range(3)]
    xids = [prepared(lakes[0], number) for number in range(3)]
    told: list[bool | BaseException] = []

    def complete(lake: Lake) -> None:
        for one in xids:
            try:
                told.append(lake.commit(one))
            except Exception as error:  # noqa: BLE001 — none is expected
                told.append(error)

    threads = [threading.Thread(target=complete, args=(lake,)) for lake in lakes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {type(answer) for answer in told} == {bool}, told
    assert told.count(True) >= len(xids)
    assert numbers(folder) == ([0, 1, 2], [0, 1, 2])
    assert files_left(folder) == ["lock"]


def test_one_version_names_the_files_and_tells_the_xid(folder: Path) -> None:
    lake = opened(folder)
    lake.commit(prepared(lake, 1))
    table = DeltaTable(folder / "orders")
    assert table.version() == 1
    assert table.history(1)[0]["xid"] == str(xid(1))
    assert not [action for action in log_of(folder / "orders")[3:] if "metaData" in action or "protocol" in action]
    (added,) = [action["add"] for action in log_of(folder / "orders") if "add" in action]
    assert json.loads(added["stats"]) == {
        "numRecords": 1,
        "minValues": {"number": 1},
        "maxValues": {"number": 1},
        "nullCount": {"number": 0, "product": 1},
    }


# --- other writers ----------------------------------------------------------------------------------------------------
def test_others_append_compact_and_vacuum_while_it_is_prepared(folder: Path) -> None:
    lake = opened(folder)
    one = prepared(lake, 1)
    for path in (folder / "_xabridge" / "work").rglob("*"):
        os.utime(path, (0, 0))  # prepared for years
    for number in (7, 8):
        write_deltalake(folder / "orders", pa.table({"number": [number], "product": ["by hand"]}), mode="append")
    table = DeltaTable(folder / "orders")
    table.optimize.compact()
    DeltaTable(folder / "orders").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    DeltaTable(folder / "orders").create_checkpoint()
    assert opened(folder).prepared() == [one], "the lake does not take it for abandoned work"
    assert lake.commit(one)
    assert numbers(folder) == ([1, 7, 8], [1])
    DeltaTable(folder / "orders").vacuum(retention_hours=24, enforce_retention_duration=False, dry_run=False, full=True)
    assert numbers(folder) == ([1, 7, 8], [1])


def test_vacuum_between_the_link_and_the_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = opened(folder)
    one = prepared(lake, 1, "orders")
    with monkeypatch.context() as patched:
        patched.setattr(lake_module, "_write_version", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            lake.commit(one)
    assert len(list((folder / "orders").glob("*.parquet"))) == 1
    DeltaTable(folder / "orders").vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    assert list((folder / "orders").glob("*.parquet")) == []
    assert lake.commit(one)
    assert numbers(folder)[0] == [1]


def test_a_new_column_that_may_be_null(folder: Path) -> None:
    """One task has written before the column came, and another one after it: the table gets one version with both."""
    lake = opened(folder)
    one = prepared(lake, 2, "orders")
    before = written(lake, 1, "orders")
    DeltaTable(folder / "orders").alter.add_columns([Field("note", PrimitiveType("string"))])
    assert lake.commit(one)
    assert rows_of(folder / "orders") == [{"number": 2, "product": None, "note": None}]
    files = lake.files(xid(1).gtrid, "later", "orders")
    files.write(pa.table({"number": [3], "note": ["new"]}))

    assert lake.prepare(xid(1), [*before, work_of(files)])
    assert lake.commit(xid(1))
    assert sorted((row["number"], row["note"]) for row in rows_of(folder / "orders")) == [
        (1, None),
        (2, None),
        (3, "new"),
    ]
    assert DeltaTable(folder / "orders").version() == 3


def test_a_table_that_was_replaced_holds_the_branch_up(folder: Path) -> None:
    """Nothing is lost and nothing is written into another table: it stays prepared until somebody decides."""
    lake = opened(folder)
    one = prepared(lake, 1, "orders")
    (folder / "orders").rename(folder / "aside")
    with pytest.raises(CompletionPostponed, match="there is no Delta table"):
        lake.commit(one)
    DeltaTable.create(folder / "orders", ORDERS)
    with pytest.raises(CompletionPostponed, match="replaced by another one"):
        lake.commit(one)
    assert opened(folder).prepared() == [one]
    shutil.rmtree(folder / "orders")
    (folder / "aside").rename(folder / "orders")
    assert lake.commit(one)
    assert numbers(folder)[0] == [1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table.alter.add_constraint({"positive": "number > 0"}), "constraints"),
        (lambda table: table.alter.set_table_properties({EXPIRY: "interval 1 days"}), "append the rows twice"),
    ],
)
def test_a_table_that_demands_too_much(folder: Path, change: Callable[[DeltaTable], None], told: str) -> None:
    lake = opened(folder)
    before = written(lake, 1, "orders")
    held = prepared(lake, 2, "orders")
    change(DeltaTable(folder / "orders"))
    for refused, use in (
        (TableRefused, lambda: lake.files(b"g", "w", "orders")),
        (TableRefused, lambda: lake.prepare(xid(1), before)),
        (CompletionPostponed, lambda: lake.commit(held)),
    ):
        with pytest.raises(refused, match=told):
            use()


def test_a_name_that_is_none_of_a_table(folder: Path) -> None:
    for name in ("", ".", "..", "../orders", "/orders", "orders/", "_xabridge/work", "nothing", "sales"):
        with case(name), pytest.raises(TableRefused):
            opened(folder).files(b"g", "w", name)
    assert not (folder / "nothing").exists()


# --- files ------------------------------------------------------------------------------------------------------------
def test_partitions_of_every_kind(folder: Path) -> None:
    lake = opened(folder)
    shops: list[str | None] = ["a", "b/../c", "d=e %2F", "ü\n", "", None]
    rows = [{"number": place, "day": DAY if place % 2 else None, "shop": shop} for place, shop in enumerate(shops * 3)]
    files = lake.files(b"g", "w", "sales/days")
    for start in range(0, len(rows), 5):
        files.write(pa.Table.from_pylist(rows[start : start + 5], SALES))
    work = work_of(files)
    assert len(work.files) == 6
    lake.prepare(xid(1), [work])
    lake.commit(xid(1))
    expected = [{**row, "shop": row["shop"] or None} for row in rows]
    assert sorted(rows_of(folder / "sales/days"), key=lambda row: row["number"]) == expected
    found = DeltaTable(folder / "sales/days").to_pyarrow_table(filters=[("shop", "=", "b/../c")])
    assert sorted(found["number"].to_pylist()) == [1, 7, 13]


def test_more_partitions_than_files_are_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rm_delta.parquet_files.OPEN", 3)
    monkeypatch.setattr("rm_delta.parquet_files.LONGEST", 2000)
    lake = opened(folder)
    files = lake.files(b"g", "w", "sales/days")
    for start in range(0, 60, 10):
        files.write(pa.table({"number": range(start, start + 10), "shop": [f"{n % 7}" for n in range(10)]}))
    lake.prepare(xid(1), [work_of(files)])
    lake.commit(xid(1))
    assert sorted(row["number"] for row in rows_of(folder / "sales/days")) == [*range(60)]


def test_a_vote_without_a_file_or_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = opened(folder)
    gone, tables = written(lake, 1), written(lake, 2)
    (folder / "_xabridge" / "work" / gone[0].files[0].path).write_bytes(b"")
    with pytest.raises(TableRefused, match="is missing"):
        lake.prepare(xid(1), gone)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched, pytest.raises(TableRefused, match="No space left"):
        patched.setattr(lake_module, "write_file", full)
        lake.prepare(xid(2), tables)
    assert lake.prepared() == []
    assert lake.prepare(xid(2), tables)


def test_work_that_was_abandoned_long_ago_is_removed(folder: Path) -> None:
    lake = opened(folder)
    written(lake, 1)
    written(lake, 2)
    kept = prepared(lake, 3)
    old = folder.stat().st_mtime - ABANDONED_S - 60
    for number in (1, 3):
        for path in (folder / "_xabridge" / "work" / xid(number).gtrid.hex()).rglob("*"):
            os.utime(path, (old, old))
        os.utime(folder / "_xabridge" / "work" / xid(number).gtrid.hex(), (old, old))
    lake = opened(folder)
    left = {path.name for path in (folder / "_xabridge" / "work").iterdir()}
    assert left == {xid(2).gtrid.hex(), kept.gtrid.hex()}
    assert lake.commit(kept)


def test_two_lakes_over_the_same_tables(folder: Path) -> None:
    """Each has an id of its own, so that neither takes the other's commit for its own."""
    whole, part = opened(folder), opened(folder / "sales")
    one = prepared(whole, 1, "sales/days")
    files = TableFiles(part.root, part.work, f"{xid(2).gtrid.hex()}/w", "days")
    files.write(pa.table({"number": [2]}))
    part.prepare(xid(2), [work_of(files)])
    assert part.commit(xid(2))
    assert whole.commit(one)
    assert numbers(folder)[1] == [1, 2]


def test_a_lock_that_another_process_keeps_is_given_up(folder: Path) -> None:
    lake = opened(folder)
    with (folder / "_xabridge" / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LakeUnavailable, match=r"held the lock .* for 0\.2 s"):
            Lake(folder, lock_s=0.2).prepared()
    assert lake.prepared() == []
