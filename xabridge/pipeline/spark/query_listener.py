"""Listener: binds a pipeline to the query that starts, in the driver, and refuses what does not belong together.

Spark calls it inside of `start()`, before it makes the query's sources and before it plans anything: the plan tells
every source with its options, the query its sink, its checkpoint and its id. What is refused fails the query before
its first micro-batch, and nothing is written into its checkpoint. Sources and sinks that no listener has announced
refuse to work (`xabridge.pipeline.core.ledger.sql_ledger.unannounced`), so nothing depends on its being called.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.spark.running_query import bind_query, execution_of, options_of, refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


logger: Final = logging.getLogger("xabridge.pipeline")

SOURCE: Final = "amqp"
SINK: Final = "xa"
_TABLE: Final = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
_STREAM: Final = "StreamingRelationV2"
_EXECUTION: Final = "MicroBatchExecution"


class QueryListener(StreamingQueryListener):
    """The listener of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        ours = False
        execution = execution_of(self._spark, str(event.id))
        try:
            parts = options_of(self._spark, execution)
            ours = bool(parts.sources) or parts.sink is not None
            if ours:
                bind_query(self._spark, execution, parts.settings(), parts)
        except PipelineError as error:
            refuse(self._spark, execution, str(error))
        except Exception as error:
            logger.exception("query %s could not be bound to a pipeline", event.id)
            if ours:  # a query that is not keeps out of it; parts of ours refuse to work by themselves
                refuse(self._spark, execution, f"{type(error).__name__}: {error}")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
