"""The metrics of pipelines, through OpenTelemetry: what `docs/metrics.md` shows.

Spark tells its listeners in the driver's process how each micro-batch went; the ledger has what the batch did. That is
what they are made of. Plans, commits and tasks run in processes of their own, which end too soon to be asked. They go
to the process's global meter provider. Without the OpenTelemetry API, or without a provider that exports, nothing is
measured.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from xa.telemetry.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.metrics import MeterProvider
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from xabridge.pipeline.core.ledger.rows import ResultRow
    from xabridge.pipeline.core.ledger.status import LagStatus

PIPELINE: Final = "xabridge.pipeline.name"
PHASE: Final = "xabridge.phase"

EPOCHS: Final = Metric(
    "xabridge.pipeline.epochs", "counter", "{epoch}", (PIPELINE,), "Micro-batches of the pipeline that were committed."
)
ROWS: Final = Metric(
    "xabridge.pipeline.rows", "counter", "{row}", (PIPELINE,), "Rows that these micro-batches have read."
)
WRITTEN: Final = Metric(
    "xabridge.pipeline.written.rows", "counter", "{row}", (PIPELINE,), "Rows that they have written into tables."
)
SENT: Final = Metric(
    "xabridge.pipeline.sent.messages", "counter", "{message}", (PIPELINE,), "Messages that they have sent."
)
OCTETS: Final = Metric(
    "xabridge.pipeline.written.size",
    "counter",
    "By",
    (PIPELINE,),
    "Octets of these rows, as COPY takes them, and of these messages.",
)
BRANCHES: Final = Metric(
    "xabridge.pipeline.epoch.branches",
    "histogram",
    "{branch}",
    (PIPELINE,),
    "How many branches the decision of a micro-batch named.",
)
ORPHANS: Final = Metric(
    "xabridge.pipeline.orphans",
    "counter",
    "{branch}",
    (PIPELINE,),
    "Branches of attempts that Spark did not accept, which the commits rolled back.",
)
LAG: Final = Metric(
    "xabridge.pipeline.lag",
    "gauge",
    "{message}",
    (PIPELINE,),
    "Messages that waited in the queues when the latest micro-batch was planned, its own included.",
)
LAG_AGE: Final = Metric(
    "xabridge.pipeline.lag.age",
    "gauge",
    "s",
    (PIPELINE,),
    "For how long the oldest of them had been on its way then, by the creation time that its sender set; no point "
    "where none did.",
)
DURATION: Final = Metric(
    "xabridge.pipeline.epoch.duration",
    "histogram",
    "s",
    (PIPELINE, PHASE),
    "How long a micro-batch took, by phase. Spark's: triggerExecution is the whole, addBatch the tasks with the "
    "decision, latestOffset the plan of the source. Ours, within addBatch: prepare of the slowest task; decide, from "
    "the last task until the decision was durable; finish, until the sinks were committed.",
)
FAILED: Final = Metric(
    "xabridge.pipeline.failures", "counter", "{query}", (PIPELINE,), "Queries of the pipeline that ended with an error."
)

METRICS: Final = (EPOCHS, ROWS, WRITTEN, SENT, OCTETS, BRANCHES, ORPHANS, LAG, LAG_AGE, DURATION, FAILED)


class ProgressMetrics:
    """The instruments for the queries of one Spark session."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        from opentelemetry import metrics  # noqa: PLC0415 — optional

        meter = metrics.get_meter("xabridge.pipeline", version("xabridge"), meter_provider)
        self._counters = {
            metric: meter.create_counter(metric.name, metric.unit, metric.description)
            for metric in METRICS
            if metric.kind == "counter"
        }
        self._histograms = {
            metric: meter.create_histogram(
                metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
            )
            for metric in METRICS
            if metric.kind == "histogram"
        }
        self._gauges = {
            metric: meter.create_gauge(metric.name, metric.unit, metric.description)
            for metric in METRICS
            if metric.kind == "gauge"
        }

    def began(self, pipeline: str) -> None:
        """A query runs: its counters begin at 0."""
        for counter in self._counters.values():
            counter.add(0, {PIPELINE: pipeline})

    def progressed(
        self, pipeline: str, progress: StreamingQueryProgress, result: ResultRow | None, lags: Sequence[LagStatus]
    ) -> None:
        """A micro-batch is committed; `result` and `lags` as the ledger has them."""
        attributes = {PIPELINE: pipeline}
        self._counters[EPOCHS].add(1, attributes)
        self._counters[ROWS].add(max(0, progress.numInputRows), attributes)
        took_s = {phase: took_ms / 1000 for phase, took_ms in progress.durationMs.items()}
        if result is not None:
            self._counters[WRITTEN].add(result.rows, attributes)
            self._counters[SENT].add(result.messages, attributes)
            self._counters[OCTETS].add(result.octets, attributes)
            self._counters[ORPHANS].add(result.swept, attributes)
            self._histograms[BRANCHES].record(result.branches, attributes)
            took_s |= {"prepare": result.prepare_s, "decide": result.decide_s, "finish": result.finish_s}

        for phase, seconds in took_s.items():
            self._histograms[DURATION].record(seconds, {**attributes, PHASE: phase})
        if lags:
            self._gauges[LAG].set(sum(lag.waiting for lag in lags), attributes)
        ages = [lag.oldest_s for lag in lags if lag.oldest_s is not None]
        if ages:
            self._gauges[LAG_AGE].set(max(ages), attributes)

    def ended(self, pipeline: str, *, failed: bool) -> None:
        """A query has ended."""
        if failed:
            self._counters[FAILED].add(1, {PIPELINE: pipeline})
