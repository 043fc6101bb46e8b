"""Exposition: the metrics of a process as the text that Prometheus reads.

It stands on OpenTelemetry's SDK and its exporter for Prometheus (the extra `metrics`). Nothing of them is imported
before one is made. `provider` is the meter provider whose instruments are shown; it has nothing to do with the
process's global one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from xa.extras import install_command
from xa.telemetry.endpoint import Answer, text_answer

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PACKAGES: Final = frozenset({"opentelemetry", "prometheus_client"})


KEPT_S: Final = 1.0
KEPT_TIMES: Final = 10
"""A text is shown again for KEPT_S, and for KEPT_TIMES as long as it took to make: so a flood of scrapes takes no more
than a tenth of a processor."""


class NoExporter(Exception):
    """The packages are not installed. The message says what to do."""


class Exposition:
    """The metrics of one provider. NoExporter: the extra `metrics` is not installed."""

    def __init__(self) -> None:
        try:
            from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415 — optional
            from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
            from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in PACKAGES:
                raise
            raise NoExporter(f"metrics for Prometheus need the extra metrics: {install_command('metrics')}") from None
        self._registry = CollectorRegistry()
        self._generate = generate_latest
        reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider([reader], shutdown_on_exit=False)

    @property
    def provider(self) -> MeterProvider:
        """Where instruments are made that are to be shown."""
        return self._provider

    def text(self) -> bytes:
        """Every metric as it is now. It may take tens of milliseconds: not for an event loop that others wait for."""
        return self._generate(self._registry)

    def close(self) -> None:
        """Shows nothing any more."""
        self._provider.shutdown()


class MetricsPage:
    """`/metrics` for an `Endpoint`: the text of an exposition, or why there is none."""

    def __init__(self, exposition: Exposition | NoExporter) -> None:
        self._exposition = exposition
        self._text = b""
        self._kept_until = float("-inf")

    async def __call__(self) -> Answer:
        if isinstance(self._exposition, NoExporter):
            return text_answer(501, str(self._exposition))
        if time.monotonic() >= self._kept_until:
            began = time.monotonic()
            self._text = await asyncio.to_thread(self._exposition.text)
            now = time.monotonic()
            self._kept_until = now + max(KEPT_S, KEPT_TIMES * (now - began))
        return Answer(200, self._text, CONTENT_TYPE)
