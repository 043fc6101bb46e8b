"""The Spark format `xa`: rows into a table and to an address, decided with what was read for them.

Spark makes a writer where it plans the sink, pickles it to the tasks, and makes another one in another process to
commit or abort. The plan is therefore made when a writer is pickled, which happens in the planning process alone; it
comes back to the driver with what the tasks report.
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
from xabridge.pipeline.core.driver import Writer
from xabridge.pipeline.core.identity import driver_id
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.source import QUERY
from xabridge.pipeline.start import COMPLETE, check_mode
from xabridge.pipeline.writing import TaskWriter, layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from xabridge.pipeline.core import Settings, SinkPlan, SinkReport
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.writing import Layout


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task tells the driver: its report, and for which query and plan."""

    report: SinkReport
    plan: SinkPlan
    query: str


class XaSink(DataSource):
    """`writeStream.format("xa")` and `write.format("xa")`. Options: `xabridge.pipeline.options.SINK`."""

    @classmethod
    def name(cls) -> str:
        """As Spark knows it."""
        return "xa"

    def streamWriter(self, schema: StructType, overwrite: bool) -> XaStreamWriter:
        """As Spark calls it, for each micro-batch, and again to commit or abort. `overwrite`: output mode complete."""
        options = sink_options(self.options)
        if overwrite:
            check_mode(options, COMPLETE)
        return XaStreamWriter(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> XaBatchWriter:
        """As Spark calls it."""
        if overwrite:
            raise PipelineError("format xa: a table is never emptied; write with mode('append')")
        return XaBatchWriter(sink_options(self.options), schema)


@lru_cache(maxsize=64)
def _fitting(options: SinkOptions, rows: tuple[tuple[str, str], ...]) -> Layout:
    """The layout, checked once in each planning process: Spark plans every micro-batch. What does not fit is checked
    again whenever it is asked for."""
    return layout(options, dict(rows))


@cache
def _writer(settings: Settings, driver: str) -> Writer:
    """Spark plans and commits each in a process that it keeps, and that does one thing at a time."""
    return Writer(settings, driver)


class _Planned:
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

    def decider(self) -> Writer:
        """The core's writer, on the driver's host."""
        return _writer(self._options.settings, driver_id())

    def run(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One attempt of one task."""
        if self._tasks is None:
            raise PipelineError("format xa: Spark asked a writer to write that it did not plan")
        context = TaskContext.get()
        if context is None:
            raise PipelineError("format xa: this is no task of Spark's")
        query = context.getLocalProperty(QUERY) or ""
        self._tasks.plan.check(query)
        attempt = Attempt(context.partitionId(), context.taskAttemptId())
        report = self._tasks.write(iterator, attempt)
        return Written(report, self._tasks.plan, query)


class XaStreamWriter(_Planned, DataSourceStreamArrowWriter):
    """The writer of one micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """As Spark calls it, in a task."""
        return self.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        """As Spark calls it when every task has written: the micro-batch is decided here."""
        decide(self.decider(), messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        """As Spark calls it when a task failed for good, and also when `commit` raised."""
        give_up(self.decider(), messages, batchId)


class XaBatchWriter(_Planned, DataSourceArrowWriter):
    """The writer of a job without streaming."""

    streaming = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """As Spark calls it, in a task."""
        return self.run(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """As Spark calls it when every task has written: the job is decided here."""
        decide(self.decider(), messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """As Spark calls it when the job failed."""
        give_up(self.decider(), messages, None)


def decide(writer: Writer, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
    """Decides what the tasks have written. BatchRefused: it is not decided."""
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        raise BatchRefused("no task has reported anything: nothing was decided, and the query has to run again")
    first = written[0]
    writer.commit(first.plan, _batch(first, number), [one.report for one in written])


def give_up(writer: Writer, messages: Sequence[WriterCommitMessage | None], number: int | None) -> None:
    """Rolls back what the tasks have written, unless it is decided. Where no task has come so far, what is planned now
    is what failed."""
    written = [message for message in messages if isinstance(message, Written)]
    plan = written[0].plan if written else writer.plan(streaming=number is not None)
    reports = [one.report if isinstance(one, Written) else None for one in messages]
    writer.abort(plan, _batch(written[0], number) if written else None, reports)


def _batch(written: Written, number: int | None) -> Batch | None:
    return None if number is None or not written.query else Batch(written.query, number)
