"""Makes the figures and the table of `bench.peers` from what each run has measured."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PEERS: Final = ("narayana", "outbox")
PROCESSES: Final = ("client", "relay", "broker", "database")


@dataclass(frozen=True, slots=True)
class Shape:
    """So many workers in each of so many processes, with so many messages in each transaction: `each` for a handler
    that is called for each message, otherwise for one that takes all. `shared`: as many as an App has by default.
    """

    workers: int
    batch: int = 1
    each: bool = False
    processes: int = 1
    shared: bool = False

    def __str__(self) -> str:
        if self.shared:
            return f"{self.workers}" if self.processes == 1 else f"{self.processes}x{self.workers}"
        if self.batch == 1:
            return f"{self.processes * self.workers}"
        return f"{'each' if self.each else 'batch'}{self.batch}" + (f"x{self.workers}" if self.workers > 1 else "")

    @property
    def name(self) -> str:
        """How the table calls it."""
        workers = f"{self.processes} processes of {self.workers}" if self.processes > 1 else str(self.workers)
        workers += " workers" if self.processes * self.workers > 1 else " worker"
        if self.shared:
            return workers
        messages = "1 message in a transaction" if self.batch == 1 else f"{self.batch} in a transaction"
        return f"{messages}{', handled one by one' if self.each else ''}, {workers}"


ONE: Final = Shape(1)
MANY: Final = Shape(16)
BATCHES: Final = Shape(1, 100)
EACH: Final = Shape(1, 100, each=True)
FOUR: Final = Shape(4, 100)
FLEET: Final = Shape(8, processes=2)
SHARED: Final = Shape(1, shared=True)
SHARED_MANY: Final = Shape(2, processes=2, shared=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """Who is measured, under which name in the table, in which shapes. `against` says to which shape of the peers each
    of these is compared."""

    name: str
    against: Mapping[Shape, Shape]

    def compared_to(self, shape: Shape) -> list[Shape]:
        """The shapes that are compared to this one of the peers."""
        return [one for one, other in self.against.items() if other == shape]


AS_PEERS: Final = {ONE: ONE, MANY: MANY, BATCHES: BATCHES}
ENTRIES: Final = {
    "narayana": Entry("Narayana + Artemis", AS_PEERS),
    "outbox": Entry("outbox with proton", AS_PEERS),
    "two_phase": Entry("two phases", {**AS_PEERS, EACH: BATCHES, FOUR: BATCHES}),
    "decider": Entry("the database decides", AS_PEERS),
    "fleet": Entry("two phases", {FLEET: MANY}),
    "app_default": Entry("an App by default", {SHARED: MANY, SHARED_MANY: MANY}),
}
"""In the order of the table."""


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
            raise RuntimeError(f"{ENTRIES[who].name} has done nothing in {measured['seconds']:.1f} s ({shape})")
        each = 1e6 / measured["done"]
        cpu = {name: spent * each for name, spent in measured["cpu_s"].items()}
        return cls(who, shape, measured["done"] / measured["seconds"], cpu)


def figures_of(rounds: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """The medians, and the medians of the ratios within one round."""
    found: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for who, entry in ENTRIES.items():
        for shape, against in entry.against.items():
            samples = [sample for each in rounds for sample in each if (sample.who, sample.shape) == (who, shape)]
            if not samples:
                continue
            found.setdefault(who, {})[str(shape)] = _medians(samples)
            for peer in PEERS:
                if who not in PEERS and peer in found:
                    ratio = _ratio(rounds, (who, shape), (peer, against))
                    ratios.setdefault(f"{who}_to_{peer}", {})[str(shape)] = ratio
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


def _ratio(rounds: Iterable[Sequence[Sample]], one: tuple[str, Shape], other: tuple[str, Shape]) -> float:
    found = []
    for samples in rounds:
        rates = {(sample.who, sample.shape): sample.per_s for sample in samples}
        found.append(rates[one] / rates[other])
    return round(statistics.median(found), 3)


def table(figures: Mapping[str, Any]) -> str:
    """The figures as a table in Markdown: a line for each of ours, beside the peers in the shape that it is compared
    to. What we lose most against Narayana comes first."""
    lines = [
        "| what | ours, messages/s | Narayana + Artemis | outbox with proton | to Narayana | to the outbox | our µs |",
        "|---|---|---|---|---|---|---|",
    ]
    ours = [
        (who, shape, against)
        for who, entry in ENTRIES.items()
        if who in figures and who not in PEERS
        for shape, against in entry.against.items()
    ]

    for who, shape, against in sorted(ours, key=lambda one: _ratios_of(figures, one[0], one[1])):
        beside = [_rate(figures[peer][str(against)]) for peer in PEERS]
        ratios = [f"{ratio:.2f}" for ratio in _ratios_of(figures, who, shape)]
        measured = figures[who][str(shape)]
        spent = measured["cpu_us"]
        parts = ", ".join(f"{spent[process]:,.0f}" for process in PROCESSES if process in spent)
        cells = (f"{ENTRIES[who].name}: {shape.name}", _rate(measured), *beside, *ratios, parts)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratios_of(figures: Mapping[str, Any], who: str, shape: Shape) -> list[float]:
    return [figures["ratio"][f"{who}_to_{peer}"][str(shape)] for peer in PEERS]


def _rate(measured: Mapping[str, Any]) -> str:
    spread = f"{measured['per_s_lowest']:,.0f}–{measured['per_s_highest']:,.0f}"
    return f"{measured['per_s']:,.0f} ({spread}), {measured['cpu_us']['all']:,.0f} µs"
