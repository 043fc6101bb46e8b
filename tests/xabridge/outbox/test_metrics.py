"""These tests read the metrics of a relay as a reader of OpenTelemetry gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.xabridge.outbox.conftest import MemoryBroker
from xa.telemetry.metric import BUCKETS_S
from xabridge import Message
from xabridge.outbox import Outbox, OutboxStore, Relay
from xabridge.outbox.metrics import METRICS, OutboxMetrics


def points(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The only point of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    found = [metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
    return {metric.name: metric.data.data_points[0] for metric in found}


def test_a_relay_tells_what_it_sent_and_what_waits(tmp_path: Path) -> None:
    reader, broker = InMemoryMetricReader(), MemoryBroker()
    store = OutboxStore.at(f"sqlite:///{tmp_path}/shop.db")
    store.open()
    metrics = OutboxMetrics(store, MeterProvider([reader]))
    with store.engine.begin() as connection:
        Outbox().put_all(connection, "orders", [Message(number) for number in range(3)])
    before = points(reader)
    assert before["xabridge.outbox.waiting"].value == 3
    assert before["xabridge.outbox.oldest"].value >= 0

    Relay(store, broker, metrics=metrics).run_once()

    after = points(reader)
    assert after["xabridge.outbox.sent"].value == 3
    assert after["xabridge.outbox.waiting"].value == 0
    assert after["xabridge.outbox.lag"].explicit_bounds == BUCKETS_S
    assert set(after) < {metric.name for metric in METRICS}
