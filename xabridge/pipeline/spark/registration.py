"""register(): makes the formats `amqp` and `xa` known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.pipeline.spark.amqp_format import AmqpSource
from xabridge.pipeline.spark.epoch import epoch
from xabridge.pipeline.spark.query_listener import QueryListener
from xabridge.pipeline.spark.running_query import use_session
from xabridge.pipeline.spark.start_check import intercept
from xabridge.pipeline.spark.xa_format import XaSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


LISTENER: Final = "_xabridge_listener"
"""The attribute of a Spark session that holds its listener."""


def register(spark: SparkSession) -> None:
    """Makes the formats `amqp` and `xa` known to `spark`. From then on a listener binds pipelines to the queries that
    start, and `start()` checks queries that write `xa`. If the thread has no session, `spark` is its session from then
    on. PipelineError: it is a session of Spark Connect."""
    use_session(spark)
    spark.dataSource.register(AmqpSource)
    spark.dataSource.register(XaSink)
    intercept(epoch)
    if not hasattr(spark, LISTENER):
        listener = QueryListener(spark)
        spark.streams.addListener(listener)
        setattr(spark, LISTENER, listener)
