"""An epoch for `foreachBatch`: it writes several DataFrames under one decision."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from pyspark import TaskContext

from xabridge.pipeline.core import Attempt, Batch, PipelineError
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.options import SHARED, shared_settings, sink_options
from xabridge.pipeline.spark.amqp_format import QUERY
from xabridge.pipeline.spark.once_shuffle import shuffled
from xabridge.pipeline.spark.running_query import bind_query, driver_of, execution_of, offsets_of, options_of
from xabridge.pipeline.spark.task_writer import TaskWriter, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from xabridge.pipeline.core import Settings, SinkPlan, SinkReport
    from xabridge.pipeline.core.driver.sink_coordinator import BatchResult

WRITES: Final = 1 << 20
"""The most partitions that one write of an epoch may have: their numbers begin at a multiple of it."""
REPORT: Final = "report binary"

_DECIDED: Final[dict[str, tuple[str, int]]] = {}
"""Query → the start of it and the last micro-batch that an epoch in this process has decided."""


class Epoch:
    """The writes of one micro-batch, from any number of DataFrames. All of it is decided together when the block ends,
    and rolled back when the block ends with an exception.

        def write(rows, batch_id):
            with pipeline.epoch(rows.sparkSession, batch_id, options) as epoch:
                epoch.write(rows.groupBy("product").agg(...), table="revenue", key="product")
                epoch.write(rows.where("amount > 1000"), address="alerts")

        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", ...).start()
    """

    def __init__(self, spark: SparkSession, batch: Batch, options: Mapping[str, str]) -> None:
        for name in options:
            if name.lower() not in SHARED and not name.lower().startswith("resource."):
                raise PipelineError(
                    f"epoch: {name} is not an option of an epoch ({', '.join(SHARED)}): pass it to write()"
                )
        self._spark = spark
        self._batch = batch
        self._options = dict(options)
        self._writer: SinkCoordinator | None = None
        self._plan: SinkPlan | None = None
        self._reports: list[SinkReport] = []
        self._writes = 0
        self._run = ""
        self.decided: BatchResult | None = None
        """The result of the micro-batch; None before it is decided."""

    def __enter__(self) -> Self:
        settings = shared_settings(self._options)
        self._bind(settings)
        self._writer = SinkCoordinator(settings, driver_of(self._spark))
        try:
            self._plan = self._writer.plan()
        except BaseException:
            self._writer.close()
            raise
        return self

    def _bind(self, settings: Settings) -> None:
        """Checks that the query's sources belong to this pipeline, which was bound to them when the query started. A
        query without a source of ours is bound now."""
        query = self._batch.query
        execution = execution_of(self._spark, query)
        if execution is None:
            raise PipelineError(f"epoch: query {query} does not run any more")
        self._run = str(execution.runId())
        if _DECIDED.get(query) == (self._run, self._batch.number):
            raise PipelineError(
                f"epoch: batch {self._batch.number} of query {query} is decided, and a micro-batch has one epoch. "
                "Write all of its rows and messages in one block"
            )

        self._batch = replace(self._batch, offsets=offsets_of(self._spark, execution, self._batch.number))
        parts = options_of(self._spark, execution)
        for source in parts.sources:
            if (source.settings.pipeline, source.settings.log) != (settings.pipeline, settings.log):
                raise PipelineError(
                    f"epoch: the query reads {source.source} as pipeline {source.settings.pipeline!r}, and the epoch "
                    f"is of pipeline {settings.pipeline!r}, or has another log. Reads and writes share one decision: "
                    "give them the same options pipeline and log"
                )
        if not parts.sources:
            bind_query(self._spark, execution, settings, parts)

    def write(self, rows: DataFrame, **options: str) -> int:
        """Runs a job that writes `rows` and prepares them, and returns how many rows there were. `options` are those of
        the format `xa`."""
        if self._plan is None:
            raise PipelineError("epoch: call write() inside of its with block")
        sink = sink_options({**self._options, **options})
        fitting = layout(sink, {field.name: field.dataType.simpleString() for field in rows.schema.fields})
        rows = shuffled(rows, sink)
        task = _task(TaskWriter(fitting, self._plan), self._writes * WRITES)
        self._writes += 1
        reports = [pickle.loads(row.report) for row in rows.mapInArrow(task, REPORT).collect()]  # noqa: S301 — our tasks'
        self._reports += reports
        return sum(report.rows for report in reports)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is None or self._plan is None:
            return
        plan, self._plan = self._plan, None
        try:
            if kind is None:
                self.decided = self._commit(self._writer, plan)
            else:
                self._writer.abort(plan, self._batch, [*self._reports, None])  # what raised has not written
        finally:
            self._writer.close()

    def _commit(self, writer: SinkCoordinator, plan: SinkPlan) -> BatchResult:
        try:
            decided = writer.commit(plan, self._batch, self._reports)
        except BaseException:
            writer.abort(plan, self._batch, self._reports)  # unless it is decided
            raise
        _DECIDED[self._batch.query] = self._run, self._batch.number
        return decided


def _task(writer: TaskWriter, first: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise PipelineError("this is not a task of Spark")
        report = writer.write(batches, Attempt(first + context.partitionId(), context.taskAttemptId()))
        yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return run


def epoch(spark: SparkSession, batch_id: int, options: Mapping[str, str]) -> Epoch:
    """The epoch of a micro-batch, in a function for `foreachBatch`: `options` name the pipeline, its log and resources
    (`xabridge.pipeline.options.SHARED`)."""
    query = spark.sparkContext.getLocalProperty(QUERY)
    if query is None:
        raise PipelineError("epoch: call it in a function for foreachBatch; this thread belongs to no streaming query")
    return Epoch(spark, Batch(query, batch_id), options)
