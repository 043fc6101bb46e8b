"""Processes of a pipeline that a test kills, forked from one that has imported the core: imports would be most of what
they cost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from inspect import iscoroutinefunction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from rm_delta import lake
from rm_delta.lake import Lake
from tm.log import Branch
from tm.log.sql import SqlLog
from tm.two_phase.ports import Answer
from tm.two_phase.return_codes import Verb
from xabridge.pipeline.core import Attempt, Batch, OnceSettings, Settings, SinkPlan, SinkReport, TableTarget
from xabridge.pipeline.core.driver import upsert_branch
from xabridge.pipeline.core.driver.open_pipeline import BlockingBranches
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.ledger.sql_ledger import SqlLedger
from xabridge.pipeline.core.resources import Resources, ask_branches
from xabridge.pipeline.core.task.sink_task import SinkTask

FORKED = multiprocessing.get_context("forkserver")
PRELOADED: Final = ("psycopg", "pymysql", "sqlalchemy.dialects.postgresql")
FORKED.set_forkserver_preload([__name__, *PRELOADED])
EFFECTS: Final[tuple[tuple[Any, str], ...]] = (
    *((SqlLog, "decide"), (SqlLog, "abort"), (SqlLedger, "bind_batch"), (SqlLedger, "mark_logged")),
    *((SqlLedger, "mark_finished"), (upsert_branch, "vote"), (lake, "_write_version"), (Lake, "prepare")),
    *((Lake, "_moved"), (Lake, "_link"), (Lake, "remove")),
    *((BlockingBranches, "write_staged"), (BlockingBranches, "fence")),
)
"""What a driver does when it commits, besides the verbs of branches."""


def started(function: Callable[..., None], *arguments: Any) -> Any:
    """A process that calls it."""
    process = FORKED.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def commit(settings: Settings, plan: SinkPlan, reports: list[SinkReport]) -> None:
    """A driver commits its batch."""
    SinkCoordinator(settings, "driver-1").commit(plan, Batch("q", 0), reports)


def commit_until(least: int, told: Path, settings: Settings, driver: str, *what: Any) -> None:
    """A driver commits its batch, and is killed behind so many effects, of which it tells in a file."""
    passed: list[str] = []

    def point(name: str) -> None:
        passed.append(name)
        if len(passed) == least:
            told.write_text("\n".join(passed))
            os.kill(os.getpid(), signal.SIGKILL)

    def stop_behind(owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            result = whole(*arguments, **options)
            point(name)
            return result

        async def call_awaited(*arguments: Any, **options: Any) -> Any:
            result = await whole(*arguments, **options)
            point(name)
            return result

        setattr(owner, name, call_awaited if iscoroutinefunction(whole) else call)

    async def ask(self: BlockingBranches, verb: Verb, branches: list[Branch]) -> list[Answer]:
        answers: list[Answer] = []
        for branch in branches:
            answers += ask_branches(self._resources, verb, [branch])
            point(f"{verb.name.lower().partition('_')[0]} {branch.resource}")
        return answers

    for owner, name in EFFECTS:
        stop_behind(owner, name)
    BlockingBranches.ask = ask  # type: ignore[method-assign, assignment]  # branch by branch
    point("begun")
    SinkCoordinator(settings, driver).commit(*what)
    told.write_text("\n".join(passed))


def write_once(plan: SinkPlan, once: OnceSettings, rows: TableTarget, when: str, told: Connection) -> None:
    """A task of two rows is killed when it has claimed, written or prepared them. It tells what it has prepared."""
    with SinkTask(plan, Attempt(0, 0), resources=Resources()) as task:
        assert task.first_ones(once, ["1", "2"]) == {"1", "2"}
        if when != "claimed":
            task.write_rows(rows, ("body",), [("1",), ("2",)])
        if when == "prepared":
            told.send(task.prepare())
        os.kill(os.getpid(), signal.SIGKILL)
