"""These tests run micro-batches that write Delta tables: every input is once in each table, and a batch is one version,
whoever is killed when.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from rm_delta import lake as lake_module
from tests.postgres import Postgres
from tests.rm_delta.test_contract import rows_of
from tests.xabridge.pipeline.core import pipeline_child
from tests.xabridge.pipeline.core.environment import ALERTS, TABLE, TABLES, CoreEnvironment
from xabridge.pipeline.core import (
    Attempt,
    Batch,
    BatchRefused,
    LakeTarget,
    Offset,
    SinkPlan,
    SinkReport,
    SourcePartition,
    TableTarget,
)
from xabridge.pipeline.core.driver.source_planner import SourcePlanner

ROWS = [f"{number}" for number in range(10)]
ORDERS = LakeTarget("lake", "orders")
KINDS = LakeTarget("lake", "by/kind")
SCHEMA = pa.schema([("body", pa.string())])


@pytest.fixture
def env(request: pytest.FixtureRequest) -> CoreEnvironment:
    """With a database for a test that needs one besides."""
    env: CoreEnvironment = request.getfixturevalue("small")
    if "postgres" in request.fixturenames:
        env.database = request.getfixturevalue("postgres").create_database()
        env.change(*TABLES)
    return env


@pytest.fixture
def folder(env: CoreEnvironment, tmp_path: Path) -> Path:
    """The resource `lake`, with two tables."""
    root = tmp_path / "lake"
    (root / "by").mkdir(parents=True)
    DeltaTable.create(root / "orders", SCHEMA)
    DeltaTable.create(root / "by" / "kind", pa.schema([*SCHEMA, ("kind", pa.string())]), partition_by=["kind"])
    env.others = (("lake", f"delta://{root}"),)
    return root


def write(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str], attempt: Attempt, *more: Any) -> SinkReport:
    """What a task writes: each row into both tables, and as a message; and more."""
    kinds = pa.table({"body": rows, "kind": [f"{int(row) % 3}" for row in rows]})
    lake = ((ORDERS, pa.table({"body": rows})), (KINDS, kinds), *more, (ALERTS, rows)) if rows else ()
    return env.task(plan, attempt, *lake)


def planned(
    env: CoreEnvironment, reader: SourcePlanner, start: Offset, end: Offset, driver: str = "driver-1"
) -> tuple[SinkPlan, list[SinkReport]]:
    """A batch whose tasks are done."""
    parts = reader.plan(start, end)
    plan = env.writer(driver).plan()
    return plan, env.tasks(plan, parts, write=partial(write, env))


def check(env: CoreEnvironment, folder: Path, rows: Sequence[str], versions: int) -> None:
    """Every row once everywhere, in so many versions."""
    for name in ("orders", "by/kind"):
        assert sorted((row["body"] for row in rows_of(folder / name)), key=int) == list(rows)
        assert DeltaTable(folder / name).version() == versions
    assert sorted(env.queued("alerts"), key=int) == list(rows)


def work_left(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "_xabridge" / "work").rglob("*.parquet"))


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_a_batch_that_is_decided_is_written_once_and_one_that_is_not_is_run_again(
    env: CoreEnvironment, folder: Path
) -> None:
    """The driver dies, once right after its decision and once before it; Spark repeats the batch."""
    start = Offset()
    for number, decided in enumerate((True, False)):
        env.put([f"{number * 10 + row}" for row in range(10)])
        reader = env.reader(f"driver-{number}")
        end = reader.latest(start)
        plan, reports = planned(env, reader, start, end, f"driver-{number}")
        if decided:
            env.decide_and_die(env.writer(f"driver-{number}"), plan, reports)

        survivor = f"driver-{number}-b"
        again = env.reader(survivor)
        plan, reports = planned(env, again, start, end, survivor)
        assert plan.decided is decided
        assert env.writer(survivor).commit(plan, Batch("q", number), reports).before is decided
        check(env, folder, [f"{row}" for row in range(10 * (number + 1))], versions=number + 1)
        assert again.latest(end) == end
        assert env.prepared() == []
        start = end


EFFECTS = {"begun", "prepare", "vote", "write_staged", "bind_batch", "decide", "_moved", "_link", "_write_version"}
EFFECTS |= {"remove", "commit lake", "commit shop", "commit broker", "fence"}
TOTALS = TableTarget("shop", "public.totals", ("product",))


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.long)])
def test_drivers_are_killed_behind_their_effects(
    postgres: Postgres, env: CoreEnvironment, folder: Path, tmp_path: Path, step: int
) -> None:
    """Each batch writes two Delta tables, rows of PostgreSQL by task and by key, and messages. Its driver is killed one
    effect later than that of the batch before, or some, until one gets to the end. The next driver goes on, each time,
    and somebody else writes to one of the tables meanwhile."""

    def tasks(plan: SinkPlan, parts: Sequence[SourcePartition]) -> list[SinkReport]:
        return [
            write(env, plan, rows, Attempt(0, 0), (TABLE, rows), (TOTALS, ("product",), [(row,) for row in rows]))
            for rows in map(env.rows, parts)
        ]

    assert postgres
    seen, start, rows = list[str](), Offset(), list[str]()
    killed_behind = set[str]()
    for number in range(200):
        new = [f"{number * 2}", f"{number * 2 + 1}"]
        env.put(new)
        rows += new
        batch, killed = Batch("q", number), f"driver-{number}"
        reader = env.reader(killed, partitions=1)
        end = reader.latest(start)
        parts = reader.plan(start, end)
        plan = env.writer(killed).plan()
        reports = tasks(plan, parts)
        path, commits = tmp_path / f"points-{number}", pipeline_child.commit_until
        driver = pipeline_child.started(commits, 1 + number * step, path, env.settings, killed, plan, batch, reports)
        driver.join(60)
        assert driver.exitcode in {0, -signal.SIGKILL}
        seen = path.read_text().splitlines()

        write_deltalake(folder / "orders", pa.table({"body": ["-1"]}), mode="append")
        reader.close()
        survivor = f"driver-{number}-b"
        reader = env.reader(survivor, partitions=1)
        if driver.exitcode == -signal.SIGKILL:
            parts = reader.plan(start, end)
            plan = env.writer(survivor).plan()
            assert plan.decided is ("decide" in seen)
            killed_behind.add(seen[-1])
            result = env.writer(survivor).commit(plan, batch, tasks(plan, parts))
            assert result.before is plan.decided
        assert reader.latest(end) == end
        start = end
        for name, strange in (("orders", number + 1), ("by/kind", 0)):
            found = sorted((row["body"] for row in rows_of(folder / name)), key=int)
            assert found == ["-1"] * strange + rows, seen
        assert sorted(env.table(), key=int) == rows, seen
        assert sorted(env.queued("alerts"), key=int) == rows, seen
        assert env.prepared() == [], seen
        for opened in env._opened:
            opened.close()
        env._opened.clear()
        if driver.exitcode == 0:
            break
    assert set(seen) >= EFFECTS
    if step == 1:
        assert killed_behind == set(seen)


@pytest.mark.slow
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
    env.began()
    plan = env.writer().plan()
    for target, rows, told, of_rows in (
        (ORDERS, pa.table({"bodi": ["1"]}), "has no column bodi", True),
        (LakeTarget("lake", "gone"), pa.table({"body": ["1"]}), "there is no Delta table", False),
    ):
        with pytest.raises(BatchRefused, match=told) as refused:
            env.task(plan, Attempt(0, 0), (target, rows))
        assert refused.value.of_rows is of_rows
    assert work_left(folder) == []
