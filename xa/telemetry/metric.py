"""Metric: one metric as data, from which its instrument, the guides' tables, the dashboard and the alerts are made.

Names are those of OpenTelemetry. `prometheus_name` gives the one under which Prometheus knows it, by OpenTelemetry's
rules: dots become underscores, the unit stands behind the name, and `_total` behind that of a counter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions, Meter, Observation

Kind = Literal["counter", "histogram", "gauge"]

QUEUE: Final = "messaging.destination.name"
"""The name of a queue, by the semantic conventions for messaging."""
OTHER: Final = "_other"
"""The queue that stands for all queues without a place of their own (`cardinality`)."""

BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds of the buckets of times; those of OpenTelemetry's default are made for milliseconds."""
BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0)
"""Bounds of the buckets of counts."""

_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, with the attributes that its points have."""

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    description: str

    @property
    def buckets(self) -> tuple[float, ...]:
        """The bounds of a histogram's buckets."""
        return BUCKETS_S if self.unit == "s" else BUCKETS

    @property
    def prometheus_name(self) -> str:
        """Its name at Prometheus; of a histogram, that of its series without `_bucket`, `_sum` and `_count`."""
        ending = _UNITS.get(self.unit, "") + ("_total" if self.kind == "counter" else "")
        return prometheus_label(self.name) + ending

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series at Prometheus."""
        name = self.prometheus_name
        return (f"{name}_bucket", f"{name}_sum", f"{name}_count") if self.kind == "histogram" else (name,)

    @property
    def labels(self) -> frozenset[str]:
        """The names of its attributes at Prometheus."""
        return frozenset(map(prometheus_label, self.attributes))

    def recorded(self, meter: Meter) -> Callable[..., None]:
        """Makes the instrument of a counter or a histogram, which gets values as they come; returns what takes them."""
        if self.kind == "counter":
            return meter.create_counter(self.name, self.unit, self.description).add
        return meter.create_histogram(
            self.name, self.unit, self.description, explicit_bucket_boundaries_advisory=self.buckets
        ).record

    def observed(self, meter: Meter, points: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
        """Makes the instrument of a counter or a gauge whose points are asked for when a reader looks."""
        make = meter.create_observable_counter if self.kind == "counter" else meter.create_observable_gauge
        make(self.name, [points], self.unit, self.description)


def prometheus_label(attribute: str) -> str:
    """An attribute's name at Prometheus."""
    return re.sub("[^a-zA-Z0-9]+", "_", attribute)


def table(metrics: Iterable[Metric], *, always: tuple[str, ...] = ()) -> str:
    """A table in Markdown. `always` are the attributes that each of them has besides its own."""
    lines = ["| metric | kind | unit | attributes | what it says |", "|---|---|---|---|---|"]
    for metric in metrics:
        attributes = ", ".join(f"`{name}`" for name in (*always, *metric.attributes))
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {attributes} | {metric.description} |")
    return "\n".join(lines) + "\n"
