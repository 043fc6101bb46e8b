"""QueryListener: binds a pipeline to a query that starts, and refuses sources and sinks that do not belong together.

Spark calls it in the driver, inside of `start()`, before it makes the query's sources and before it plans anything. The
plan names every source with its options; the query names its sink, its checkpoint and its id. A query that is refused
fails before its first micro-batch, and nothing is written into its checkpoint. Safety does not depend on the listener:
sources and sinks refuse to work for a query that the pipeline is not bound to
(`xabridge.pipeline.core.ledger.refusals.not_bound`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.spark.progress_metrics import progress_metrics
from xabridge.pipeline.spark.running_query import bind_query, execution_of, options_of, refuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from xabridge.pipeline.spark.progress_metrics import ProgressMetrics

logger: Final = logging.getLogger("xabridge.pipeline")

SOURCE: Final = "amqp"
SINK: Final = "xa"
_TABLE: Final = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
_STREAM: Final = "StreamingRelationV2"
_EXECUTION: Final = "MicroBatchExecution"


class QueryListener(StreamingQueryListener):
    """The listener of one Spark session."""

    def __init__(self, spark: SparkSession, metrics: ProgressMetrics | None = None) -> None:
        self._spark = spark
        self._metrics = metrics or progress_metrics()
        self._pipelines: dict[str, str] = {}
        """The pipeline of each query that runs, by the query's id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        ours = False
        execution = execution_of(self._spark, str(event.id))
        try:
            parts = options_of(self._spark, execution)
            ours = bool(parts.sources) or parts.sink is not None
            if ours:
                settings = parts.settings()
                bind_query(self._spark, execution, settings, parts)
                self._runs(str(event.id), settings.pipeline)
        except PipelineError as error:
            refuse(self._spark, execution, str(error))
        except Exception as error:
            logger.exception("can't bind query %s to a pipeline", event.id)
            if ours:  # an error about anybody else's query is not its business
                refuse(self._spark, execution, f"{type(error).__name__}: {error}")

    def _runs(self, query: str, pipeline: str) -> None:
        self._pipelines[query] = pipeline
        if self._metrics is not None:
            self._metrics.began(pipeline)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        pipeline = self._pipelines.get(str(event.progress.id))
        if pipeline is not None and self._metrics is not None:
            self._metrics.progressed(pipeline, event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pipeline = self._pipelines.pop(str(event.id), None)
        if pipeline is not None and self._metrics is not None:
            self._metrics.ended(pipeline, failed=event.exception is not None)
