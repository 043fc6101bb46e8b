"""run_jobs(): a loop over jobs without streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xabridge.pipeline.core import Offset
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.options import sink_options, source_options
from xabridge.pipeline.spark.once_shuffle import shuffled
from xabridge.pipeline.spark.query_options import QueryOptions
from xabridge.pipeline.spark.running_query import driver_of, use_session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession


def run_jobs(
    spark: SparkSession,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    transform: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> int:
    """Runs jobs without streaming, until there is nothing to read: each reads the messages that there are, writes what
    `transform` makes of them, and decides. Returns how many jobs it ran. The options are those of the formats `amqp`
    and `xa`. PipelineError: they do not belong together."""
    use_session(spark)
    options = source_options(source)
    written = sink_options(sink)
    QueryOptions((options,), written).settings()
    reader = SourcePlanner(options.settings, options.source, driver_of(spark), streaming=False)
    jobs = 0
    try:
        while reader.latest(Offset()) != Offset():
            rows = spark.read.format("amqp").options(**source).load()
            shuffled(transform(rows), written).write.format("xa").options(**sink).mode("append").save()
            jobs += 1
    finally:
        reader.close()
    return jobs
