"""QueryListener: binds a pipeline to a query that starts, and refuses sources and sinks that do not belong together.

Spark calls it in the driver, inside of `start()`, before it makes the query's sources and before it plans anything. The
plan names every source with its options; the query names its sink, its checkpoint and its id. A query that is refused
fails before its first micro-batch, and nothing is written into its checkpoint. Safety does not depend on the listener:
sources and sinks refuse to work for a query that the pipeline is not bound to
(`xabridge.pipeline.core.ledger.refusals.not_bound`).

It also tells OpenTelemetry of each micro-batch, if that is installed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.ledger.batch_results import BatchResults
from xabridge.pipeline.spark.progress_metrics import ProgressMetrics
from xabridge.pipeline.spark.progress_spans import ProgressSpans
from xabridge.pipeline.spark.running_query import bind_query, execution_of, options_of, refuse

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from xabridge.pipeline.core import Settings

logger: Final = logging.getLogger("xabridge.pipeline")


class ProgressTelemetry:
    """Metrics and spans of the queries of one Spark session. Providers: the process's global ones, unless
    others are given. ModuleNotFoundError: its API is not installed."""

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._metrics = ProgressMetrics(meter_provider)
        self._spans = ProgressSpans(tracer_provider)
        self._queries: dict[str, tuple[str, BatchResults]] = {}
        """The pipeline of each query that runs, and its results, by the query's id."""

    def began(self, query: str, settings: Settings) -> None:
        """A query of ours runs."""
        self._queries[query] = settings.pipeline, BatchResults(settings.log, settings.pipeline)
        self._metrics.began(settings.pipeline)

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """A micro-batch is committed; of any query."""
        query = str(progress.id)
        if query in self._queries:
            pipeline, results = self._queries[query]
            result, lags = results.of(query, progress.batchId)
            self._metrics.progressed(pipeline, progress, result, lags)
            self._spans.progressed(pipeline, progress, result)

    def ended(self, query: str, *, failed: bool) -> None:
        """A query has ended; any."""
        if query in self._queries:
            pipeline, results = self._queries.pop(query)
            results.close()
            self._metrics.ended(pipeline, failed=failed)


def _telemetry() -> ProgressTelemetry | None:
    """At the process's providers; None without the OpenTelemetry API."""
    try:
        return ProgressTelemetry()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return None


class QueryListener(StreamingQueryListener):
    """The listener of one Spark session."""

    def __init__(self, spark: SparkSession, telemetry: ProgressTelemetry | None = None) -> None:
        self._spark = spark
        self._telemetry = telemetry or _telemetry()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        ours = False
        execution = execution_of(self._spark, str(event.id))

        try:
            parts = options_of(self._spark, execution)
            ours = bool(parts.sources) or parts.sink is not None
            if ours:
                settings = parts.settings()
                bind_query(self._spark, execution, settings, parts)
                if self._telemetry is not None:
                    self._telemetry.began(str(event.id), settings)
        except PipelineError as error:
            refuse(self._spark, execution, str(error))
        except Exception as error:
            logger.exception("can't bind query %s to a pipeline", event.id)
            if ours:  # an error about anybody else's query is not its business
                refuse(self._spark, execution, f"{type(error).__name__}: {error}")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if self._telemetry is not None:
            self._telemetry.progressed(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if self._telemetry is not None:
            self._telemetry.ended(str(event.id), failed=event.exception is not None)
