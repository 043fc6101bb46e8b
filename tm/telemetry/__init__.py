"""Telemetry of a transaction manager: metrics and traces through the OpenTelemetry API (the extra `otel`).

    tm = TransactionManager("orders-1", log, resources, telemetry=opentelemetry())

Nothing of OpenTelemetry is imported before `opentelemetry` is called, and without telemetry a transaction pays no
more than a look at an attribute that is None. What is measured stands in `tm.telemetry.metrics`.
"""

from tm.telemetry.factory import opentelemetry
from tm.telemetry.metrics import METRICS, metrics_table
from xa.telemetry.metric import Metric

__all__ = ["METRICS", "Metric", "metrics_table", "opentelemetry"]
