"""These tests check the metrics and the spans of pipelines: what Spark and the ledger tell of a query of ours, and
nothing about other queries.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rm_amqp import Message
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline.core import Offset
from xabridge.pipeline.spark.progress_metrics import METRICS
from xabridge.pipeline.spark.query_listener import ProgressTelemetry, QueryListener

OTHER = UUID(int=2)
BEGAN = datetime(2026, 11, 23, 8, 0, tzinfo=UTC)


def progress(query: object, batch: int, rows: int, **duration_ms: int) -> Any:
    told = {
        "id": query, "batchId": batch, "numInputRows": rows, "durationMs": duration_ms,
        "timestamp": BEGAN.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }  # fmt: skip
    return SimpleNamespace(progress=SimpleNamespace(**told))


def test_micro_batches_are_told_by_their_pipeline(env: CoreEnvironment) -> None:
    reader, exporter, tracers = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    provider = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = ProgressTelemetry(provider, tracers)
    listener = QueryListener(SimpleNamespace(), telemetry)  # type: ignore[arg-type]
    telemetry.began("q", env.settings)
    listener.onQueryProgress(progress(OTHER, 0, 1000, addBatch=1))
    env.send([Message("1", creation_time=time.time() - 100), Message("2"), Message("3")])
    source = env.reader(partitions=1, rows=2)
    env.batch(source, Offset(), 0)
    source.close()
    listener.onQueryProgress(progress("q", 0, 2, addBatch=200, walCommit=50, triggerExecution=300))
    listener.onQueryProgress(progress("q", 1, -1, triggerExecution=100))  # the ledger does not know it
    told: Any = SimpleNamespace(id="q", exception="it failed")
    listener.onQueryTerminated(told)
    listener.onQueryTerminated(told)  # it is known no more
    data = reader.get_metrics_data()
    provider.shutdown()
    assert data is not None
    found = {m.name: m.data.data_points for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert set(found) == {metric.name for metric in METRICS}
    for metric in METRICS:
        for point in found[metric.name]:
            assert set(point.attributes or {}) == set(metric.attributes)
            assert (point.attributes or {})["xabridge.pipeline.name"] == "orders"
    values: dict[str, Any] = {
        name.removeprefix("xabridge.pipeline."): getattr(points[0], "value", None) for name, points in found.items()
    }
    assert {name: values[name] for name in ("epochs", "rows", "written.rows", "sent.messages", "orphans")} == {
        "epochs": 2, "rows": 2, "written.rows": 2, "sent.messages": 2, "orphans": 0,
    }  # fmt: skip
    assert values["failures"] == 1
    assert values["lag"] == 3
    assert values["lag.age"] == pytest.approx(100, abs=20)
    sums = {(p.attributes or {})["xabridge.phase"]: p.sum for p in found["xabridge.pipeline.epoch.duration"]}  # type: ignore[union-attr]
    assert {name: sums.pop(name) for name in ("addBatch", "walCommit", "triggerExecution")} == {
        "addBatch": 0.2, "walCommit": 0.05, "triggerExecution": 0.4,
    }  # fmt: skip
    assert set(sums) == {"prepare", "decide", "finish"}
    assert min(sums.values()) > 0

    spans = exporter.get_finished_spans()
    first = next(span for span in spans if (span.attributes or {}).get("xabridge.pipeline.batch") == 0)
    phases = {str((span.attributes or {})["xabridge.phase"]): span for span in spans if span.parent == first.context}
    assert set(phases) == {"walCommit", "addBatch", "decide", "finish"}
    assert milliseconds(first) == (0, 300)
    assert milliseconds(phases["walCommit"]) == (0, 50)
    assert milliseconds(phases["addBatch"]) == (50, 250)
    assert phases["decide"].end_time == phases["finish"].start_time
    assert (first.attributes or {})["xabridge.pipeline.branches"] == 3


def milliseconds(span: ReadableSpan) -> tuple[int, int]:
    """When it began and ended, after the batch began."""
    began = round(BEGAN.timestamp() * 1000)
    return round((span.start_time or 0) / 1e6) - began, round((span.end_time or 0) / 1e6) - began
