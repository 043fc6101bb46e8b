"""The ways in: the formats `amqp` and `xa` for a session; an epoch for `foreachBatch`, which writes several DataFrames
under one decision; and a loop over jobs without streaming.

Nothing here is imported with the package: without PySpark the rest of it works, and who asks for Spark hears what is
missing.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from pyspark import TaskContext

from pipeline.core import Attempt, Batch, Offset, PipelineError
from pipeline.core.driver import Reader, Writer
from pipeline.core.identity import process_id
from pipeline.options import SHARED, shared_settings, sink_options, source_options
from pipeline.sink import QUERY, XaSink
from pipeline.source import AmqpSource
from pipeline.writing import TaskWriter, layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from pipeline.core import SinkPlan, SinkReport
    from pipeline.core.driver import Decided

WRITES: Final = 1 << 20
"""So many partitions has a write at most: the partitions of an epoch's writes are told apart by it."""
REPORT: Final = "report binary"


def register(spark: SparkSession) -> None:
    """Makes the formats `amqp` and `xa` known to `spark`."""
    spark.dataSource.register(AmqpSource)
    spark.dataSource.register(XaSink)


def driver_of(spark: SparkSession) -> str:
    """The driver that `spark` is: its Java process. PipelineError: a session of Spark Connect, whose driver is
    somewhere else."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise PipelineError("a session of Spark Connect has its driver elsewhere: use the formats amqp and xa instead")
    return process_id(int(jvm.java.lang.ProcessHandle.current().pid()))


class Epoch:
    """What one micro-batch writes, from as many DataFrames as one likes: all of it is decided when the block is left,
    and rolled back when it is left by an exception.

        def write(rows, batch_id):
            with pipeline.epoch(rows.sparkSession, batch_id, options) as epoch:
                epoch.write(rows.groupBy("product").agg(...), table="revenue", key="product")
                epoch.write(rows.where("amount > 1000"), address="alerts")

        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", ...).start()
    """

    def __init__(self, spark: SparkSession, batch: Batch, options: Mapping[str, str]) -> None:
        for name in options:
            if name.lower() not in SHARED and not name.lower().startswith("resource."):
                raise PipelineError(f"epoch: {name} is no option of an epoch ({', '.join(SHARED)}): give it to write()")
        self._spark = spark
        self._batch = batch
        self._options = dict(options)
        self._writer: Writer | None = None
        self._plan: SinkPlan | None = None
        self._reports: list[SinkReport] = []
        self._writes = 0
        self.decided: Decided | None = None
        """What became of it; None as long as it is not decided."""

    def __enter__(self) -> Self:
        settings = shared_settings(self._options)
        self._writer = Writer(settings, driver_of(self._spark))
        try:
            self._plan = self._writer.plan()
        except BaseException:
            self._writer.close()
            raise
        return self

    def write(self, rows: DataFrame, **options: str) -> int:
        """Runs a job that writes `rows`, and prepares what it wrote; how many rows there were. `options` are those of
        the format `xa`."""
        if self._plan is None:
            raise PipelineError("epoch: write inside of its with block")
        sink = sink_options({**self._options, **options})
        fitting = layout(sink, {field.name: field.dataType.simpleString() for field in rows.schema.fields})
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
                self._writer.abort(plan, self._batch, self._reports)
        finally:
            self._writer.close()

    def _commit(self, writer: Writer, plan: SinkPlan) -> Decided:
        try:
            return writer.commit(plan, self._batch, self._reports)
        except BaseException:
            writer.abort(plan, self._batch, self._reports)  # unless it is decided
            raise


def _task(writer: TaskWriter, first: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise PipelineError("this is no task of Spark's")
        report = writer.write(batches, Attempt(first + context.partitionId(), context.taskAttemptId()))
        yield pa.record_batch([pa.array([pickle.dumps(report)], pa.binary())], names=["report"])

    return run


def epoch(spark: SparkSession, batch_id: int, options: Mapping[str, str]) -> Epoch:
    """The epoch of a micro-batch, in a function for `foreachBatch`: `options` name the pipeline, its log and resources
    (`pipeline.options.SHARED`)."""
    query = spark.sparkContext.getLocalProperty(QUERY)
    if query is None:
        raise PipelineError("epoch: this is not called by foreachBatch: there is no streaming query here")
    return Epoch(spark, Batch(query, batch_id), options)


def run_jobs(
    spark: SparkSession,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    transform: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> int:
    """Without streaming: reads what there is, writes what `transform` makes of it, decides; again, until there is
    nothing to read. How many jobs that were. Options are those of the formats `amqp` and `xa`."""
    options = source_options(source)
    reader = Reader(options.settings, options.source, driver_of(spark), streaming=False)
    jobs = 0
    try:
        while reader.latest(Offset()) != Offset():
            rows = spark.read.format("amqp").options(**source).load()
            transform(rows).write.format("xa").options(**sink).mode("append").save()
            jobs += 1
    finally:
        reader.close()
    return jobs
