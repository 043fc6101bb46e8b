"""The metrics of pipelines, through OpenTelemetry: what `docs/metrics.md` shows.

Spark tells its listeners in the driver's process how each micro-batch went; that is what they are made of. Plans,
commits and tasks run in processes of their own, which end too soon to be asked. They go to the process's global meter
provider. Without the OpenTelemetry API, or without a provider that exports, nothing is measured.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from xa.telemetry.metric import Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql.streaming.listener import StreamingQueryProgress

PIPELINE: Final = "xabridge.pipeline.name"
PHASE: Final = "xabridge.phase"

EPOCHS: Final = Metric(
    "xabridge.pipeline.epochs", "counter", "{epoch}", (PIPELINE,), "Micro-batches of the pipeline that were committed."
)
ROWS: Final = Metric(
    "xabridge.pipeline.rows", "counter", "{row}", (PIPELINE,), "Rows that these micro-batches have read."
)
DURATION: Final = Metric(
    "xabridge.pipeline.epoch.duration",
    "histogram",
    "s",
    (PIPELINE, PHASE),
    "How long a micro-batch took, by Spark's phases: triggerExecution is the whole, addBatch the tasks with the "
    "decision, latestOffset the plan of the source.",
)
FAILED: Final = Metric(
    "xabridge.pipeline.failures", "counter", "{query}", (PIPELINE,), "Queries of the pipeline that ended with an error."
)

METRICS: Final = (EPOCHS, ROWS, DURATION, FAILED)


class ProgressMetrics:
    """The instruments for the queries of one Spark session."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        from opentelemetry import metrics  # noqa: PLC0415 — optional

        meter = metrics.get_meter("xabridge.pipeline", version("xabridge"), meter_provider)
        self._epochs = meter.create_counter(EPOCHS.name, EPOCHS.unit, EPOCHS.description)
        self._rows = meter.create_counter(ROWS.name, ROWS.unit, ROWS.description)
        self._failed = meter.create_counter(FAILED.name, FAILED.unit, FAILED.description)
        self._duration = meter.create_histogram(
            DURATION.name, DURATION.unit, DURATION.description, explicit_bucket_boundaries_advisory=DURATION.buckets
        )

    def began(self, pipeline: str) -> None:
        """A query runs: its counters begin at 0."""
        for counter in (self._epochs, self._rows, self._failed):
            counter.add(0, {PIPELINE: pipeline})

    def progressed(self, pipeline: str, progress: StreamingQueryProgress) -> None:
        """A micro-batch is committed."""
        attributes = {PIPELINE: pipeline}
        self._epochs.add(1, attributes)
        self._rows.add(max(0, progress.numInputRows), attributes)
        for phase, took_ms in progress.durationMs.items():
            self._duration.record(took_ms / 1000, {**attributes, PHASE: phase})

    def ended(self, pipeline: str, *, failed: bool) -> None:
        """A query has ended."""
        if failed:
            self._failed.add(1, {PIPELINE: pipeline})


def progress_metrics() -> ProgressMetrics | None:
    """The instruments at the process's provider; None without the OpenTelemetry API."""
    try:
        return ProgressMetrics()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        return None
