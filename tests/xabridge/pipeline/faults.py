"""This module causes faults at named points of a pipeline, inside of the processes that Spark starts.

A process belongs to the driver that XABRIDGE_DRIVER numbers; after a driver is killed, its remaining processes cause no
faults any more. The format classes here are registered in place of the product's. A process that unpickles one imports
this module, which wraps the steps that are points. A schedule says what happens at which of them. It is a file in the
folder that the environment variable XABRIDGE_FAULTS names. Its entries are carried out one after the other, each once,
wherever the point is reached next. The process that carries one out makes the file `fired-<number>`.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from rm_amqp import AmqpResource
from rm_db import MariaResource, PostgresResource
from tm.log.sql import SqlLog
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.source_task import read
from xabridge.pipeline.spark import amqp_format
from xabridge.pipeline.spark.amqp_format import AmqpSource
from xabridge.pipeline.spark.xa_format import XaBatchWriter, XaSink

VARIABLE = "XABRIDGE_FAULTS"
GENERATION = "XABRIDGE_DRIVER"
PATIENCE_S = 240.0


class Injected(RuntimeError):
    """A fault of the test's."""


class Schedule:
    """The faults that are still to come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: list[list[str]] = json.loads((folder / "schedule.json").read_text())

    def reach(self, point: str) -> None:
        """This process is at `point`."""
        if (self._folder / f"killed-{os.environ[GENERATION]}").exists():
            return
        for number, (wanted, action) in enumerate(self._entries):
            if (self._folder / f"fired-{number}").exists():
                continue
            if wanted == point and self._is_mine(number):
                self._fire(number, action)
            return

    def _is_mine(self, number: int) -> bool:
        try:
            (self._folder / f"fired-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _fire(self, number: int, action: str) -> None:
        if action == "raise":
            raise Injected(f"fault {number}")
        if action == "kill worker":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "kill executor":
            os.kill(java_above(), signal.SIGKILL)
        if action == "kill driver":
            (self._folder / f"killed-{os.environ[GENERATION]}").touch()
            for pid in (self._folder / "pids").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        if action.startswith("server"):
            self._ask(number, action)

    def _ask(self, number: int, action: str) -> None:
        """Waits until the test has done it."""
        wanted = self._folder / f"wanted-{number}"
        wanted.with_suffix(".new").write_text(action)
        wanted.with_suffix(".new").rename(wanted)
        await_until((self._folder / f"done-{number}").exists)


def await_until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Returns when it holds, or after minutes unless told otherwise."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def java_above() -> int:
    """The Java process that this one was started by."""
    pid = os.getpid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return pid


def reach(point: str) -> None:
    """This process is at `point`; what the schedule says happens."""
    folder = os.environ.get(VARIABLE)
    if folder and Path(folder, "schedule.json").exists():
        Schedule(Path(folder)).reach(point)


def _around(owner: Any, name: str, before: str, after: str) -> None:
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def call(*arguments: Any, **options: Any) -> Any:
        if before:
            reach(before)
        result = wrapped(*arguments, **options)
        if after:
            reach(after)
        return result

    setattr(owner, name, call)


def _read(partition: Any, **options: Any) -> Iterator[Any]:
    for number, messages in enumerate(read(partition, **options)):
        yield messages
        if number == 0:
            reach("yielded")
    reach("read")


POINTS = (
    (SourcePlanner, "latest", "latest", "looked"),
    (SourcePlanner, "plan", "plan", "planned"),
    (SourcePlanner, "logged", "logged", "finished"),
    (SinkCoordinator, "plan", "sink plan", "sink planned"),
    (SinkCoordinator, "commit", "commit", "committed"),
    (SinkCoordinator, "abort", "abort", "aborted"),
    (AmqpResource, "prepare_kept", "taken", "taken and prepared"),
    (AmqpResource, "prepare", "sent", "sent and prepared"),
    (PostgresResource, "prepare", "written", "written and prepared"),
    (MariaResource, "prepare", "written", "written and prepared"),
    (SinkTask, "prepare", "prepare", "prepared"),
    (SqlLog, "decide", "undecided", "decided"),
    (SqlLog, "decide_with", "undecided", "decided"),
    (AmqpResource, "commit", "broker commits", "broker committed"),
    (PostgresResource, "commit", "database commits", "database committed"),
    (MariaResource, "commit", "database commits", "database committed"),
)
"""What is wrapped: the point before it, and the point after it."""


def install() -> None:
    """Makes this process one in which faults happen."""
    for owner, name, before, after in POINTS:
        _around(owner, name, before, after)
    vars(amqp_format)["read"] = _read


class FaultySource(AmqpSource):
    """The format `amqp`, in processes that have faults."""


class FaultyBatchWriter(XaBatchWriter):
    """The writer of a job, in processes that have faults: Spark pickles the writer for them, and not the sink."""


class FaultySink(XaSink):
    """The format `xa`, in processes that have faults."""

    def writer(self, schema: StructType, overwrite: bool) -> FaultyBatchWriter:
        writer = super().writer(schema, overwrite)
        return FaultyBatchWriter(writer._options, writer._schema)


if VARIABLE in os.environ:
    install()
