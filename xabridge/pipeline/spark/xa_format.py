"""The Spark format `xa`: rows into a table and to an address, decided with what was read for them.

Spark makes a writer where it plans the sink, and pickles it to the tasks. It makes another writer, in another process,
to commit or abort. So the sink is planned when a writer is pickled, which happens in the planning process only. The
plan comes back to the driver with the tasks' reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from xabridge.pipeline.core import Attempt, Batch, BatchRefused, PipelineError
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.process_ids import driver_id
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.spark.amqp_format import QUERY
from xabridge.pipeline.spark.start_check import COMPLETE, check_mode
from xabridge.pipeline.spark.task_writer import TaskWriter, layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from xabridge.pipeline.core import Settings, SinkPlan, SinkReport
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.spark.task_writer import SinkLayout


@dataclass(frozen=True, slots=True)
class TaskReport(WriterCommitMessage):
    """A task's report to the driver, with the plan and the query that it worked for."""

    report: SinkReport
    plan: SinkPlan
    query: str


class XaSink(DataSource):
    """`writeStream.format("xa")` and `write.format("xa")`. Options: `xabridge.pipeline.options.SINK`."""

    @classmethod
    def name(cls) -> str:
        return "xa"

    def streamWriter(self, schema: StructType, overwrite: bool) -> XaStreamWriter:
        # Spark calls this for each micro-batch, and again to commit or abort. `overwrite` means output mode complete.
        options = sink_options(self.options)
        if overwrite:
            check_mode(options, COMPLETE)
        if options.once is not None:
            raise PipelineError("format xa, option once: call pipeline.register(spark) before you start the query")
        return XaStreamWriter(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> XaBatchWriter:
        if overwrite:
            raise PipelineError("format xa: it can't empty a table; write with mode('append')")
        return XaBatchWriter(sink_options(self.options), schema)


@lru_cache(maxsize=64)
def _fitting(options: SinkOptions, rows: tuple[tuple[str, str], ...]) -> SinkLayout:
    """The layout. It is checked only once in each planning process, although Spark plans every micro-batch there. Rows
    that do not fit are checked again each time."""
    return layout(options, dict(rows))


@cache
def _writer(settings: Settings, driver: str) -> SinkCoordinator:
    """The coordinator, kept for the next micro-batch: Spark keeps the processes in which it plans and commits, and each
    does one thing at a time."""
    return SinkCoordinator(settings, driver)


class _PlannedWriter:
    """A writer that makes its plan when it is pickled."""

    streaming = True

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._tasks: TaskWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._tasks is None:
            rows = tuple((field.name, field.dataType.simpleString()) for field in self._schema.fields)
            fitting = _fitting(self._options, rows)
            self._tasks = TaskWriter(fitting, self.decider().plan(streaming=self.streaming))
        return {"_options": self._options, "_schema": self._schema, "_tasks": self._tasks}

    def decider(self) -> SinkCoordinator:
        """The coordinator of the sink, on the driver's host."""
        return _writer(self._options.settings, driver_id())

    def run(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        """One attempt of one task."""
        if self._tasks is None:
            raise PipelineError("format xa: Spark used a writer without a plan for it")
        context = TaskContext.get()
        if context is None:
            raise PipelineError("format xa: this is not a task of Spark")
        query = context.getLocalProperty(QUERY) or ""
        self._tasks.plan.check(query)
        attempt = Attempt(context.partitionId(), context.taskAttemptId())
        report = self._tasks.write(iterator, attempt)
        return TaskReport(report, self._tasks.plan, query)


class XaStreamWriter(_PlannedWriter, DataSourceStreamArrowWriter):
    """The writer of one micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        # Every task has written: the micro-batch is decided here.
        decide(self.decider(), messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        # A task failed for good, or `commit` raised.
        give_up(self.decider(), messages, batchId)


class XaBatchWriter(_PlannedWriter, DataSourceArrowWriter):
    """The writer of a job without streaming."""

    streaming = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        return self.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Every task has written: the job is decided here.
        decide(self.decider(), messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        give_up(self.decider(), messages, None)


def decide(writer: SinkCoordinator, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
    """Decides what the tasks have written. BatchRefused: it is not decided."""
    written = [message for message in messages if isinstance(message, TaskReport)]
    if not written:
        raise BatchRefused("no task has reported, so nothing was decided: run the query again")
    first = written[0]
    writer.commit(first.plan, _batch(first, number), [one.report for one in written])


def give_up(writer: SinkCoordinator, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
    """Rolls back what the tasks have written, unless it is decided. Where no task has reported, the sink that is
    planned now is the one that failed."""
    written = [message for message in messages if isinstance(message, TaskReport)]
    plan = written[0].plan if written else writer.plan(streaming=number is not None)
    reports = [one.report if isinstance(one, TaskReport) else None for one in messages]
    writer.abort(plan, _batch(written[0], number) if written else None, reports)


def _batch(written: TaskReport, number: int | None) -> Batch | None:
    return None if number is None or not written.query else Batch(written.query, number)
