"""Makes the figures and the table of `bench.peers` from what each run has measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NAMES: Final = {
    "narayana": "Narayana + Artemis",
    "outbox": "outbox with proton",
    "two_phase": "xabridge, two-phase",
    "decider": "xabridge, decider",
}
"""Who is measured, in the order of the table."""
PEERS: Final = ("narayana", "outbox")
PROCESSES: Final = ("client", "relay", "broker", "database")


@dataclass(frozen=True, slots=True)
class Shape:
    """So many workers, with so many messages in each transaction."""

    workers: int
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.workers}" if self.batch == 1 else f"batch{self.batch}"


MANY: Final = Shape(16)
SHAPES: Final = (Shape(1), MANY, Shape(1, 100))


@dataclass(frozen=True, slots=True)
class Sample:
    """What one run measured: messages per second, and the processor time of one message by process."""

    who: str
    shape: Shape
    per_s: float
    cpu_us: Mapping[str, float]

    @classmethod
    def of(cls, who: str, shape: Shape, measured: Mapping[str, Any]) -> Sample:
        """From the messages that were `done` in so many `seconds`, and the processor time `cpu_s`."""
        if not measured["done"]:
            raise RuntimeError(f"{NAMES[who]} has done nothing in {measured['seconds']:.1f} s ({shape})")
        each = 1e6 / measured["done"]
        cpu = {name: spent * each for name, spent in measured["cpu_s"].items()}
        return cls(who, shape, measured["done"] / measured["seconds"], cpu)


def figures_of(rounds: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """The medians, and the medians of the ratios within one round."""
    found: dict[str, Any] = {}
    for who in NAMES:
        for shape in SHAPES:
            samples = [sample for each in rounds for sample in each if (sample.who, sample.shape) == (who, shape)]
            if samples:
                found.setdefault(who, {})[str(shape)] = _medians(samples)
    ratios: dict[str, Any] = {}
    for ours in NAMES:
        for peer in PEERS:
            if ours not in PEERS and ours in found and peer in found:
                ratios[f"{ours}_to_{peer}"] = {str(shape): _ratio(rounds, ours, peer, shape) for shape in SHAPES}
    return {**found, "ratio": ratios}


def _medians(samples: Sequence[Sample]) -> dict[str, Any]:
    rates = [sample.per_s for sample in samples]
    cpu = {
        name: round(statistics.median(sample.cpu_us[name] for sample in samples), 1)
        for name in PROCESSES
        if name in samples[0].cpu_us
    }
    cpu["all"] = round(statistics.median(sum(sample.cpu_us.values()) for sample in samples), 1)
    return {
        "per_s": round(statistics.median(rates), 1),
        "per_s_lowest": round(min(rates), 1),
        "per_s_highest": round(max(rates), 1),
        "cpu_us": cpu,
    }


def _ratio(rounds: Iterable[Sequence[Sample]], one: str, other: str, shape: Shape) -> float:
    found = []
    for samples in rounds:
        rates = {sample.who: sample.per_s for sample in samples if sample.shape == shape}
        found.append(rates[one] / rates[other])
    return round(statistics.median(found), 3)


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a table in Markdown."""
    lines = [
        f"| messages per transaction, workers | who | messages/s | µs of {', '.join(PROCESSES)} | µs in all |",
        "|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        for who, name in NAMES.items():
            measured = figures.get(who, {}).get(str(shape))
            if measured is None:
                continue
            cpu = measured["cpu_us"]
            parts = ", ".join(f"{cpu[process]:,.0f}" if process in cpu else "–" for process in PROCESSES)
            rate = f"{measured['per_s']:,.0f} ({measured['per_s_lowest']:,.0f}–{measured['per_s_highest']:,.0f})"
            lines.append(f"| {shape.batch}, {shape.workers} | {name} | {rate} | {parts} | {cpu['all']:,.0f} |")
    return "\n".join(lines)
