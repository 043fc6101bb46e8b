"""shuffled(): brings rows to the tasks that write them with the option `once`.

Rows of one value of `once` must come to one task: two tasks of a batch would wait for each other at the index of the
table that remembers the values. And rows that have an order, because a shard of an address or an upsert has one, must
keep it. So:

 1. Each row gets its place, which grows within a partition of the source, and from one partition to the next.
 2. The rows are shuffled by what orders them: the columns `SinkOptions.shuffle`. If rows of one value of `once` may
    differ there, all but those with the least of these keys are left out before that. Which ones are left does not
    depend on the order in which rows arrive, so Spark may compute any of the tasks again.
 3. Each task sorts its rows by their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as f

from xabridge.pipeline.core import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from xabridge.pipeline.options import SinkOptions

_PLACE: Final = "__xabridge_place"
_LEAST: Final = "__xabridge_least"


def shuffled(rows: DataFrame, sink: SinkOptions) -> DataFrame:
    """The rows as the tasks are to write them; as they are without `once`. PipelineError: a column is missing, or
    Spark can't shuffle by it."""
    if sink.once is None:
        return rows
    check_shuffle(rows, sink)
    keys = [_column(name) for name in sink.shuffle]
    placed = rows.withColumn(_PLACE, f.monotonically_increasing_id())
    if {*sink.shuffle} != {sink.once.column}:
        same = Window.partitionBy(_column(sink.once.column))
        placed = placed.withColumn(_LEAST, f.min(f.struct(*keys)).over(same))
        placed = placed.where(f.struct(*keys).eqNullSafe(_column(_LEAST))).drop(_LEAST)
    return placed.repartition(tasks_of_once(rows), *keys).sortWithinPartitions(_PLACE).drop(_PLACE)


def check_shuffle(rows: DataFrame, sink: SinkOptions) -> None:
    """PipelineError: a column is missing, or Spark can't shuffle by it."""
    if sink.once is None:
        return
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    for name in (sink.once.column, *sink.shuffle):
        if name not in types:
            raise PipelineError(
                f"format xa, option once: the query has no column {name!r}, by which its rows are shuffled; it has "
                f"{', '.join(types)}"
            )
        if any(kind in types[name] for kind in ("map<", "variant")):
            raise PipelineError(
                f"format xa, option once: Spark can't shuffle rows by {name}, which is {types[name]}; cast it to string"
            )


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def tasks_of_once(rows: DataFrame) -> int:
    """How many tasks write them then: one for each core."""
    return rows.sparkSession.sparkContext.defaultParallelism
