"""The spans of pipelines, through OpenTelemetry: one for each micro-batch, and one for each of its phases.

Spark tells when a batch began and how long each of its phases took. They come one after the other, so each of these
spans begins where the one before it ends. The ledger tells when the batch was decided. Without the OpenTelemetry API,
or without a provider that exports, nothing is recorded.
"""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.spark.progress_metrics import PHASE, PIPELINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.trace import Span, TracerProvider
    from opentelemetry.util.types import AttributeValue
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    from xabridge.pipeline.core.ledger.rows import ResultRow

SPAN: Final = "xabridge.pipeline.batch"
PHASE_SPAN: Final = "xabridge.pipeline.phase"
WHOLE: Final = "triggerExecution"
PHASES: Final = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
"""Spark's phases of a micro-batch, in their order."""


class ProgressSpans:
    """The spans for the queries of one Spark session."""

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        from opentelemetry import trace  # noqa: PLC0415 — optional

        self._trace = trace
        self._tracer = trace.get_tracer("xabridge.pipeline", version("xabridge"), tracer_provider)

    def progressed(self, pipeline: str, progress: StreamingQueryProgress, result: ResultRow | None) -> None:
        """A micro-batch is committed; `result` as the ledger has it."""
        began = _nanoseconds(datetime.fromisoformat(progress.timestamp).timestamp())
        attributes: dict[str, AttributeValue] = {
            PIPELINE: pipeline,
            "xabridge.pipeline.query": str(progress.id),
            "xabridge.pipeline.batch": progress.batchId,
            "xabridge.pipeline.rows": max(0, progress.numInputRows),
        }
        if result is not None:
            attributes |= {
                "xabridge.gtrid": result.gtrid.hex(),
                "xabridge.pipeline.branches": result.branches,
                "xabridge.pipeline.orphans": result.swept,
                "xabridge.pipeline.prepare": result.prepare_s,
            }

        batch = self._tracer.start_span(SPAN, attributes=attributes, start_time=began)
        if not batch.is_recording():
            return
        took_ms: Mapping[str, int] = progress.durationMs
        at = began
        for phase in PHASES:
            if phase in took_ms:
                ended = at + took_ms[phase] * 1_000_000
                self._phase(batch, phase, at, ended)
                at = ended

        if result is not None:
            decided = _nanoseconds(result.decided_at)
            self._phase(batch, "decide", decided - _nanoseconds(result.decide_s), decided)
            self._phase(batch, "finish", decided, decided + _nanoseconds(result.finish_s))
        batch.end(max(at, began + took_ms.get(WHOLE, 0) * 1_000_000))

    def _phase(self, batch: Span, phase: str, began: int, ended: int) -> None:
        above = self._trace.set_span_in_context(batch)
        self._tracer.start_span(PHASE_SPAN, above, attributes={PHASE: phase}, start_time=began).end(ended)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1_000_000_000)
