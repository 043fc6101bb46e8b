"""These tests run micro-batches that write Delta tables: every input is once in each table, and a batch is one version,
whoever is killed when.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from rm_delta import lake as lake_module
from tests.rm_delta.test_contract import rows_of
from tests.xabridge.pipeline.core.environment import ALERTS
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, LakeTarget, Messages, Offset
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from xabridge.pipeline.core import SinkPlan, SinkReport, SourcePartition
    from xabridge.pipeline.core.driver.source_planner import SourcePlanner

ROWS = [f"{number}" for number in range(10)]
ORDERS = LakeTarget("lake", "orders")
KINDS = LakeTarget("lake", "by/kind")
SCHEMA = pa.schema([("body", pa.string())])


@pytest.fixture
def folder(env: CoreEnvironment, tmp_path: Path) -> Path:
    """The resource `lake`, with two tables."""
    root = tmp_path / "lake"
    (root / "by").mkdir(parents=True)
    DeltaTable.create(root / "orders", SCHEMA)
    DeltaTable.create(root / "by" / "kind", pa.schema([*SCHEMA, ("kind", pa.string())]), partition_by=["kind"])
    env.others = (("lake", f"delta://{root}"),)
    return root


def write(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str], attempt: Attempt) -> SinkReport:
    """What a task writes: each row into both tables, and as a message."""
    with SinkTask(plan, attempt, resources=env.resources) as task:
        if rows:
            task.write_files(ORDERS, pa.table({"body": rows}), len(rows))
            task.write_files(KINDS, pa.table({"body": rows, "kind": [f"{int(row) % 3}" for row in rows]}), len(rows))
            task.send(ALERTS, Messages([row.encode() for row in rows]))
        return task.prepare()


def planned(
    env: CoreEnvironment, reader: SourcePlanner, start: Offset, end: Offset, driver: str = "driver-1"
) -> tuple[SinkPlan, list[SinkReport]]:
    """A batch whose tasks are done."""
    return written(env, reader.plan(start, end), driver)


def written(env: CoreEnvironment, parts: Sequence[SourcePartition], driver: str) -> tuple[SinkPlan, list[SinkReport]]:
    plan = env.writer(driver).plan()
    return plan, [write(env, plan, env.rows(part), Attempt(part.index, part.index)) for part in parts]


def check(env: CoreEnvironment, folder: Path, rows: Sequence[str], versions: int) -> None:
    """Every row once everywhere, in so many versions."""
    for name in ("orders", "by/kind"):
        assert sorted((row["body"] for row in rows_of(folder / name)), key=int) == list(rows)
        assert DeltaTable(folder / name).version() == versions
    assert sorted(env.queued("alerts"), key=int) == list(rows)


def work_left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_xabridge" / "work").rglob("*.parquet"))


def test_a_batch_is_one_version_of_each_table(env: CoreEnvironment, folder: Path) -> None:
    start = Offset()
    reader = env.reader()
    for number in range(3):
        env.put([f"{number * 10 + row}" for row in range(10)])
        end = reader.latest(start)
        plan, reports = planned(env, reader, start, end)
        assert sum(report.rows for report in reports) == 20
        write(env, plan, ["99"], Attempt(0, 77))  # an attempt that Spark did not accept
        decided = env.writer().commit(plan, Batch("q", number), reports)
        assert (decided.before, decided.left) == (False, 0)
        start = end
    assert reader.latest(start) == start
    check(env, folder, [f"{row}" for row in range(30)], versions=3)
    assert env.prepared() == []
    assert len(work_left(folder)) == 2, "those of the last batch that were not accepted"
    applications = set()
    for log in (folder / "orders" / "_delta_log").glob("*.json"):
        applications |= {json.loads(line).get("txn", {}).get("appId") for line in log.read_text().splitlines()}
    assert len(applications - {None}) == 1


def test_a_batch_that_is_aborted_leaves_nothing(env: CoreEnvironment, folder: Path) -> None:
    env.put(ROWS)
    reader = env.reader()
    end = reader.latest(Offset())
    plan, reports = planned(env, reader, Offset(), end)
    env.writer().abort(plan, None, reports)
    with pytest.raises(BatchRefused):
        env.writer().commit(plan, Batch("q", 0), reports)
    check(env, folder, [], versions=0)
    reader = env.reader()
    plan, reports = planned(env, reader, Offset(), end)
    env.writer().commit(plan, Batch("q", 0), reports)
    check(env, folder, ROWS, versions=1)


CHILD = """
import os, pickle, signal, sys
from rm_delta import lake
from rm_delta.resource_manager import DeltaUnit
from tm.log.sql import SqlLog
from xabridge.pipeline.core import Batch
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator

def dies_behind(owner, name, times=1):
    whole = getattr(owner, name)
    left = [times]
    def call(*args, **options):
        result = whole(*args, **options)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, call)

settings, plan, reports = pickle.load(sys.stdin.buffer)
owner, name, times = {
    "prepared": (DeltaUnit, "prepare", 1),
    "decided": (SqlLog, "decide", 1),
    "first table": (lake, "_write_version", 1),
    "second table": (lake, "_write_version", 2),
}[sys.argv[1]]
dies_behind(owner, name, times)
SinkCoordinator(settings, "driver-1").commit(plan, Batch("q", 0), reports)
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["prepared", "decided", "first table", "second table"])
def test_the_driver_is_killed(env: CoreEnvironment, folder: Path, point: str) -> None:
    env.put(ROWS)
    reader = env.reader()
    end = reader.latest(Offset())
    plan, reports = planned(env, reader, Offset(), end)
    given = pickle.dumps((env.settings, plan, reports))
    ended = subprocess.run([sys.executable, "-c", CHILD, point], input=given, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [name for name in env.prepared() if name.startswith("snk/key/")]
    env.put([f"{row}" for row in range(10, 15)])
    write_deltalake(folder / "orders", pa.table({"body": ["0"]}), mode="append")  # somebody else's

    reader = env.reader("driver-2")
    plan, reports = planned(env, reader, Offset(), end, "driver-2")
    assert plan.decided is (point != "prepared")
    decided = env.writer("driver-2").commit(plan, Batch("q", 0), reports)
    assert decided.before is plan.decided
    start, end = end, reader.latest(end)
    plan, reports = planned(env, reader, start, end, "driver-2")
    env.writer("driver-2").commit(plan, Batch("q", 1), reports)
    assert reader.latest(end) == end
    assert env.prepared() == []
    rows = [f"{row}" for row in range(15)]
    assert sorted((row["body"] for row in rows_of(folder / "orders")), key=int) == ["0", *rows]
    assert sorted((row["body"] for row in rows_of(folder / "by/kind")), key=int) == rows
    assert sorted(env.queued("alerts"), key=int) == rows


def test_phase_two_comes_after_the_next_batch(
    env: CoreEnvironment, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is away when its batch is decided: the query goes on, and nothing is lost when the table is back."""
    reader, start = env.reader(), Offset()
    for number in range(3):
        env.put([f"{number * 10 + row}" for row in range(10)])
        end = reader.latest(start)
        plan, reports = planned(env, reader, start, end)
        with monkeypatch.context() as patched:
            if number == 0:
                patched.setattr(lake_module.Lake, "_append", _away)
            decided = env.writer().commit(plan, Batch("q", number), reports)
        assert decided.left == (1 if number == 0 else 0)
        start = end
    assert reader.latest(start) == start
    check(env, folder, [f"{row}" for row in range(30)], versions=3)
    assert env.prepared() == []


def _away(*_: object) -> None:
    raise OSError("stale file handle")


def test_rows_that_do_not_fit_and_a_table_that_is_gone(env: CoreEnvironment, folder: Path) -> None:
    env.put(ROWS)
    reader = env.reader()
    reader.plan(Offset(), reader.latest(Offset()))
    plan = env.writer().plan()
    for target, rows, told, of_rows in (
        (ORDERS, pa.table({"bodi": ["1"]}), "has no column bodi", True),
        (LakeTarget("lake", "gone"), pa.table({"body": ["1"]}), "there is no Delta table", False),
    ):
        task = SinkTask(plan, Attempt(0, 0), resources=env.resources)
        with pytest.raises(BatchRefused, match=told) as refused, task:
            task.write_files(target, rows, 1)
        assert refused.value.of_rows is of_rows
    assert work_left(folder) == []
