"""Processes of a pipeline that a test kills, forked from one that has imported the core: imports would be most of what
they cost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Any

from xabridge.pipeline.core import Attempt, Batch
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from xabridge.pipeline.core import Once, Settings, SinkPlan, SinkReport, TableTarget

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__, "psycopg", "pymysql", "sqlalchemy.dialects.postgresql"])


def started(function: Callable[..., None], *arguments: Any) -> Any:
    """A process that calls it."""
    process = FORKED.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def commit(settings: Settings, plan: SinkPlan, reports: list[SinkReport]) -> None:
    """A driver commits its batch."""
    SinkCoordinator(settings, "driver-1").commit(plan, Batch("q", 0), reports)


def write_once(plan: SinkPlan, once: Once, rows: TableTarget, when: str, told: Connection) -> None:
    """A task of two rows is killed when it has claimed, written or prepared them. It tells what it has prepared."""
    with SinkTask(plan, Attempt(0, 0), resources=Resources()) as task:
        assert task.first_ones(once, ["1", "2"]) == {"1", "2"}
        if when != "claimed":
            task.write_rows(rows, ("body",), [("1",), ("2",)])
        if when == "prepared":
            told.send(task.prepare())
        os.kill(os.getpid(), signal.SIGKILL)
