"""opentelemetry() makes the telemetry object, if the configuration asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.resources import ConfigurationError
from xa.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from tm.telemetry.recorder import Telemetry


def opentelemetry(
    meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
) -> Telemetry:
    """Telemetry through OpenTelemetry; the process's global providers unless others are given. One object serves
    every manager of a process. ConfigurationError: the OpenTelemetry API is not installed."""
    try:
        from tm.telemetry.recorder import Telemetry  # noqa: PLC0415 — imports OpenTelemetry, which is optional
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "opentelemetry":
            raise
        raise ConfigurationError(
            f"telemetry needs the OpenTelemetry API, which is not installed: {install_command('otel')}, "
            "or leave telemetry out of the configuration"
        ) from error
    return Telemetry(meter_provider, tracer_provider)
