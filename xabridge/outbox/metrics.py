"""The metrics of a relay, through OpenTelemetry: what `docs/outbox.md` shows."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import SQLAlchemyError

from tm.resources import ConfigurationError
from xa.extras import install_command
from xa.telemetry.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

    from xabridge.outbox.store import OutboxFigures, OutboxStore, RelayTurn

SENT: Final = Metric(
    "xabridge.outbox.sent", "counter", "{message}", (), "Messages that the broker has confirmed to this relay."
)
REFUSED: Final = Metric(
    "xabridge.outbox.refused", "counter", "{message}", (), "Refusals of the broker; a message is tried again."
)
SET_ASIDE: Final = Metric(
    "xabridge.outbox.set_aside",
    "counter",
    "{message}",
    (),
    "Messages that are not tried any more, until an operator has looked at them.",
)
LAG: Final = Metric(
    "xabridge.outbox.lag", "histogram", "s", (), "From the put of the oldest message of a batch to its confirmation."
)
WAITING: Final = Metric(
    "xabridge.outbox.waiting", "gauge", "{message}", (), "Messages in the outbox that are to be sent."
)
OLDEST: Final = Metric("xabridge.outbox.oldest", "gauge", "s", (), "How long the oldest of these waits.")

METRICS: Final = (SENT, REFUSED, SET_ASIDE, LAG, WAITING, OLDEST)


class OutboxMetrics:
    """The instruments of one relay. ConfigurationError: the OpenTelemetry API is not installed."""

    def __init__(self, store: OutboxStore, meter_provider: MeterProvider | None = None) -> None:
        try:
            from opentelemetry import metrics  # noqa: PLC0415 — optional
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"metrics need the OpenTelemetry API, which is not installed: {install_command('otel')}"
            ) from error
        self._store = store
        meter = metrics.get_meter("xabridge", version("xabridge"), meter_provider)
        self._observation = metrics.Observation
        self._sent = SENT.recorded(meter)
        self._refused = REFUSED.recorded(meter)
        self._set_aside = SET_ASIDE.recorded(meter)
        self._lag = LAG.recorded(meter)
        WAITING.observed(meter, self._waiting)
        OLDEST.observed(meter, self._oldest)

    def carried(self, carried: RelayTurn) -> None:
        """One turn of the relay."""
        if carried.sent:
            self._sent(carried.sent)
            self._lag(carried.lag_s)
        if carried.refused:
            self._refused(carried.refused)
        if carried.set_aside:
            self._set_aside(carried.set_aside)

    def _waiting(self, _options: CallbackOptions) -> Iterable[Observation]:
        figures = self._figures()
        return [self._observation(figures.waiting)] if figures is not None else []

    def _oldest(self, _options: CallbackOptions) -> Iterable[Observation]:
        figures = self._figures()
        return [self._observation(figures.oldest_s)] if figures is not None else []

    def _figures(self) -> OutboxFigures | None:
        """The figures; None: the database is away, which shows in the metric as a gap."""
        try:
            return self._store.figures()
        except SQLAlchemyError:
            return None
