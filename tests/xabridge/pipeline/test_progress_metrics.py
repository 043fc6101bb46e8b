"""These tests check the metrics of pipelines: what Spark tells of a query of ours, and nothing about other queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from xabridge.pipeline.spark.progress_metrics import METRICS, ProgressMetrics
from xabridge.pipeline.spark.query_listener import QueryListener

OURS, OTHER = UUID(int=1), UUID(int=2)


def progress(query: UUID, rows: int, **duration_ms: int) -> Any:
    return SimpleNamespace(progress=SimpleNamespace(id=query, numInputRows=rows, durationMs=duration_ms))


def test_micro_batches_are_counted_by_their_pipeline() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    listener = QueryListener(SimpleNamespace(), ProgressMetrics(provider))  # type: ignore[arg-type]
    listener._runs(str(OURS), "revenue")
    listener.onQueryProgress(progress(OTHER, 1000, addBatch=1))
    listener.onQueryProgress(progress(OURS, 10, addBatch=200, triggerExecution=300))
    listener.onQueryProgress(progress(OURS, -1, triggerExecution=100))
    told: Any = SimpleNamespace(id=OURS, exception="it failed")
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
            assert (point.attributes or {})["xabridge.pipeline.name"] == "revenue"
    values: dict[str, Any] = {name: getattr(points[0], "value", None) for name, points in found.items()}
    assert values["xabridge.pipeline.epochs"] == 2
    assert values["xabridge.pipeline.rows"] == 10
    assert values["xabridge.pipeline.failures"] == 1
    sums = {(p.attributes or {})["xabridge.phase"]: p.sum for p in found["xabridge.pipeline.epoch.duration"]}  # type: ignore[union-attr]
    assert sums == {"addBatch": 0.2, "triggerExecution": 0.4}
