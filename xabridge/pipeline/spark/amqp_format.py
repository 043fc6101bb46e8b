"""The Spark format `amqp`: messages of queues as rows, as a stream and as a batch.

Offsets, limits and partitions are Spark's names for what a `SourcePlanner` plans; tasks read through
`xabridge.pipeline.core.task.source_task.read`. Spark calls a stream's planning methods in one long-lived process of the
driver; the reader object itself is pickled to the tasks, and holds nothing that can't be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from xabridge.pipeline.core import Offset
from xabridge.pipeline.core.driver.admission import ReadLimits
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.process_ids import driver_id
from xabridge.pipeline.core.task.source_task import read
from xabridge.pipeline.options import source_options
from xabridge.pipeline.spark.json_bodies import json_reader
from xabridge.pipeline.spark.message_rows import batch_of, check_columns, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from xabridge.pipeline.core import SourcePartition
    from xabridge.pipeline.options import SourceOptions

QUERY: Final = "sql.streaming.queryId"
"""The local property with the id of the query, which its checkpoint contains."""
BATCH: Final = "streaming.sql.batchId"
"""The local property with the number of the micro-batch."""


class EpochPartition(InputPartition):
    """A partition of an epoch, for one task. `part` is None where there is nothing to read."""

    def __init__(self, part: SourcePartition | None) -> None:
        super().__init__(None if part is None else part.index)
        self.part = part


class AmqpSource(DataSource):
    """`spark.readStream.format("amqp")` and `spark.read.format("amqp")`. Options:
    `xabridge.pipeline.options.SOURCE`."""

    @classmethod
    def name(cls) -> str:
        return "amqp"

    def schema(self) -> StructType | str:
        # Spark asks for the schema when the query is built, so that wrong options are refused there.
        options = source_options(self.options)
        columns = columns_of(options.body, options.body_schema, options.bad_column)
        return ", ".join(f"{name} {type_}" for name, type_ in columns.items())

    def streamReader(self, schema: StructType) -> AmqpStream:
        return AmqpStream(self._checked(schema), schema)

    def reader(self, schema: StructType) -> AmqpBatch:
        return AmqpBatch(self._checked(schema), schema)

    def _checked(self, schema: StructType) -> SourceOptions:
        options = source_options(self.options)
        wanted = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(wanted, options.body, options.body_schema, options.bad_column)
        return options


class AmqpStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner: SourcePlanner | None = None
        self._left: int | None = None
        self._counts = False
        self._planned: tuple[dict[str, Any], dict[str, Any], list[EpochPartition]] | None = None

    @property
    def _reader(self) -> SourcePlanner:
        """The planner, made when it is first needed: that asks which query the source belongs to."""
        if self._planner is None:
            self._planner = SourcePlanner(self._options.settings, self._options.source, driver_id())
        return self._planner

    def initialOffset(self) -> dict[str, Any]:
        return Offset().as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.source.rows)

    def prepareForTriggerAvailableNow(self) -> None:
        # No more messages are read than there are when the first offset is asked for.
        self._counts = True
        self._left = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        reader, begin, limits = self._reader, Offset.from_json(start), limits_of(limit)
        if not self._counts:
            return reader.latest(begin, limits).as_json()
        planned = reader.planned_rows()
        source = self._options.source
        if planned and (source.octets or limits.octets or source.is_uneven):
            # Fewer may have been taken. None were if all of them were bad, and these don't count again.
            planned = reader.taken_rows(begin) or planned
        reader.logged(begin)
        self._left = reader.available() if self._left is None else max(self._left - planned, 0)
        rows = min(self._left, limits.rows or source.rows)
        return (reader.latest(begin, replace(limits, rows=rows, at_once=True)) if rows else begin).as_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # Spark calls this twice where the query uses the stream twice; both times it has to be the same epoch.
        if self._planned is None or self._planned[:2] != (start, end):
            parts = [EpochPartition(part) for part in self._reader.plan(Offset.from_json(start), Offset.from_json(end))]
            self._planned = start, end, parts
        return self._planned[2]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        # Everything up to `end` is in Spark's commit log now.
        self._reader.logged(Offset.from_json(end))

    def stop(self) -> None:
        # Nothing may rely on this call: Spark does not always make it.
        if self._planner is not None:
            self._planner.close()
            self._planner = None


class AmqpBatch(DataSourceReader):
    """The reader of a job without streaming: an epoch of its own."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        # Spark calls this whenever it plans the query.
        reader = SourcePlanner(self._options.settings, self._options.source, driver_id(), streaming=False)
        try:
            return [EpochPartition(part) for part in reader.plan_job()] or [EpochPartition(None)]
        finally:
            reader.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition, self._schema)


def rows_of(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, as Arrow."""
    if not isinstance(partition, EpochPartition) or partition.part is None:
        return
    partition.part.check(*_running())
    columns = to_arrow_schema(schema, timezone="UTC")
    structs = [field.type for field in columns if field.name == "body" and pa.types.is_struct(field.type)]
    for messages in read(partition.part, body=json_reader(structs[0]) if structs else None):
        yield batch_of(messages, columns)


def _running() -> tuple[str, int | None]:
    """The query and the micro-batch that this task works for, as far as Spark says so."""
    context = TaskContext.get()
    if context is None:
        return "", None
    number = context.getLocalProperty(BATCH)
    return context.getLocalProperty(QUERY) or "", None if number is None else int(number)


def limits_of(limit: ReadLimit) -> ReadLimits:
    """What Spark allows. The options hold where it says nothing, and it never allows more than they do."""
    return ReadLimits(
        rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        octets=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        least=limit.min_rows if isinstance(limit, ReadMinRows) else None,
        at_once=isinstance(limit, ReadAllAvailable),
    )
