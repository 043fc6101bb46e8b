"""Monitoring: what a broker offers to those who watch it: instruments, and the pages `/live`, `/ready` and `/metrics`.

The pages are answered on the broker's event loop. So `/live` says by its answer that the loop turns. The text of the
metrics is made in another thread.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from typing import TYPE_CHECKING, Final

from dtx.broker.telemetry.figures import FigureReader
from dtx.broker.telemetry.readiness import Readiness
from xa.extras import install_command
from xa.telemetry.conditions import CERTIFICATE_ENDS, LEASE_LOST, STORE_FULL
from xa.telemetry.endpoint import JSON, Answer, Endpoint, text_answer
from xa.telemetry.exposition import Exposition, MetricsPage, NoExporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import MeterProvider

    from dtx.broker.config import Address, BrokerConfig
    from dtx.broker.container import Container
    from dtx.broker.telemetry.figures import BrokerFigures
    from dtx.broker.telemetry.instruments import Instruments
    from dtx.store.contract import BrokerStore

DAY_S: Final = 24 * 3600


class Monitoring:
    """Of one broker, whose store is not open yet; to be made on its event loop. Without `http` and `telemetry` in the
    configuration nothing is measured and nothing of OpenTelemetry is loaded."""

    def __init__(
        self, config: BrokerConfig, container: Container, store: BrokerStore, flush: Callable[[], None]
    ) -> None:
        self._http = config.http
        self._store = store
        self._container = container
        self._figures = FigureReader(container, config.settings.metrics_queues)
        self.certificate_end: Callable[[], float] = lambda: math.inf
        """Until when the certificate that peers are shown is valid, in seconds since 1970."""
        days = config.settings.certificate_days
        container.conditions.holds = {
            LEASE_LOST.name: lambda: not store.may_tell,
            STORE_FULL.name: lambda: store.full,
            CERTIFICATE_ENDS.name: lambda: self.certificate_end() - time.time() < days * DAY_S,
        }
        self._readiness = Readiness(container.resource, flush)
        self._endpoint: Endpoint | None = None
        self._exposition: Exposition | None = None
        self._metrics: MetricsPage | None = None
        self._instruments: Instruments | None = None
        self.notice = ""
        """What keeps metrics from being read, if something does."""

        providers: list[MeterProvider | None] = [None] if config.telemetry else []
        if config.http is not None:
            try:
                self._exposition = Exposition()
            except NoExporter as error:
                self.notice = str(error)
                self._metrics = MetricsPage(error)
            else:
                self._metrics = MetricsPage(self._exposition)
                providers.append(self._exposition.provider)
        if providers:
            self._measure(providers)

    def _measure(self, providers: list[MeterProvider | None]) -> None:
        try:
            from dtx.broker.telemetry.instruments import Instruments  # noqa: PLC0415 — imports OpenTelemetry
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "opentelemetry":
                raise
            self.notice = f"telemetry needs the extra otel: {install_command('otel')}"
            return
        self._instruments = Instruments(providers, self.figures)
        self._store.forced = self._instruments.forced

    async def start(self) -> Address | None:
        """Listens for probes, where that is configured; where."""
        if self._http is None or self._metrics is None:
            return None
        self._endpoint = Endpoint({"/live": self._live, "/ready": self._ready, "/metrics": self._metrics})
        port = await self._endpoint.start(self._http.host, self._http.port)
        return type(self._http)(self._http.host, port)

    async def close(self) -> None:
        """Answers no one any more, and records nothing."""
        if self._endpoint is not None:
            await self._endpoint.close()
        if self._instruments is not None:
            self._instruments.close()
        if self._exposition is not None:
            await asyncio.to_thread(self._exposition.close)

    async def figures(self) -> BrokerFigures:
        """How the broker is now."""
        figures = await self._figures.take()
        figures.store_octets, figures.store_full = self._store.octets, self._store.full
        return figures

    # -- pages
    async def _live(self) -> Answer:
        return text_answer(200, "the event loop turns")

    async def _ready(self) -> Answer:
        if self._store.may_tell:
            trouble = await self._readiness.trouble()
        else:
            trouble = "the store is not open, or another process may have it"
        said = {
            "ready": not trouble,
            "trouble": trouble,
            "full": self._store.full,
            "unreadable": self._container.resource.unreadable,
            "conditions": {one.condition.name: one.count for one in self._container.conditions.found if one.count},
        }
        return Answer(503 if trouble else 200, json.dumps(said).encode() + b"\n", JSON)
