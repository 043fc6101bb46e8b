"""Charts over time, as data for an SVG.

- `timeline` has the bars of a transaction, a lane for each resource, and in words for who can't see them. The first
  lane is the whole transaction by its phases; the others show what each resource was asked, and the node's log. All
  transactions of a page have one scale, so that a longer bar is a longer time.
- `sparkline` is the path of a line, with gaps where nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final

from tm.telemetry.node_page import PHASES as PHASE_OF
from xa.printable import escaped
from xabridge.console.history import known
from xabridge.text import took

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xabridge.console.nodes import Completed, Step


WIDTH: Final = 1000
LANE: Final = 16
GAP: Final = 4
LEAST: Final = 3.0
"""The width of what takes next to no time, so that it shows."""
LANES: Final = 8
PHASES: Final = ("work", "prepare", "decide", "commit", "rollback")
LOG: Final = "log"


@dataclass(frozen=True, slots=True)
class TimelineBar:
    """A time; `looks` is its phase."""

    x: float
    y: float
    width: float
    looks: str
    label: str


@dataclass(frozen=True, slots=True)
class TimelinePicture:
    """What the template draws. `lanes` are the names of the resources, from above."""

    height: int
    bars: tuple[TimelineBar, ...]
    lanes: tuple[str, ...]
    label: str


def timeline(one: Completed, longest_s: float) -> TimelinePicture:
    """The bars of a transaction; the whole width is `longest_s`."""
    scale = WIDTH / max(longest_s, one.took_s, 1e-9)
    bars = [_bar(0.0, one.took_s, 0, "rest", scale, f"all of it {took(one.took_s)}")]
    phases = [(name, one.phases[name]) for name in PHASES if name in one.phases]
    for name, seconds in phases:
        after = (
            0.0 if name == "work" else min((s.after_s for s in one.steps if PHASE_OF.get(s.verb) == name), default=0.0)
        )
        bars.append(_bar(after, seconds, 0, name, scale, f"{name} {took(seconds)}"))

    lanes = tuple(dict.fromkeys(step.resource for step in one.steps))[:LANES]
    for step in one.steps:
        if step.resource in lanes:
            looks = PHASE_OF.get(step.verb, "work")
            bars.append(_bar(step.after_s, step.took_s, 1 + lanes.index(step.resource), looks, scale, _said(step)))
    times = ", ".join(f"{name} {took(seconds)}" for name, seconds in phases)
    names = tuple(escaped(name)[:40] if name else LOG for name in lanes)
    height = (LANE + GAP) * (1 + len(lanes))
    return TimelinePicture(height, tuple(bars), names, f"{took(one.took_s)}: {times}")


def _said(step: Step) -> str:
    answer = f", {escaped(step.code)[:40]}" if step.code else ""
    return f"{escaped(step.resource)[:40] or LOG}: {escaped(step.verb)[:40]} {took(step.took_s)}{answer}"


def _bar(after_s: float, took_s: float, lane: int, looks: str, scale: float, label: str) -> TimelineBar:
    x = min(after_s * scale, WIDTH - LEAST)
    width = min(max(took_s * scale, LEAST), WIDTH - x)
    return TimelineBar(round(x, 1), (LANE + GAP) * lane, round(width, 1), looks, label)


SPARK_WIDTH: Final = 240
SPARK_HEIGHT: Final = 48
SPARK_LEAST: Final = 10.0
"""A line of smaller values is not as high as the chart: the console's own few requests would look like much traffic."""
_PAD: Final = 3


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`line` and `area` are the data of paths; `most` is the largest value."""

    line: str
    area: str
    most: float


def sparkline(values: Sequence[float]) -> Sparkline:
    """The line of these values, the oldest at the left."""
    most = max(known(values), default=0.0)
    top = max(most, SPARK_LEAST)
    step = SPARK_WIDTH / max(len(values) - 1, 1)
    line, area = [], []
    run: list[tuple[float, float]] = []

    def close() -> None:
        if len(run) == 1:  # a dot, so that the first value shows
            x, y = run[0]
            run.insert(0, (max(x - step, 0), y))
        if run:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            line.append(f"M{points.replace(' ', 'L')}")
            area.append(f"M{run[0][0]:.1f},{SPARK_HEIGHT}L{points.replace(' ', 'L')}L{run[-1][0]:.1f},{SPARK_HEIGHT}Z")
        run.clear()

    for number, value in enumerate(values):
        if isnan(value):
            close()
        else:
            run.append((number * step, SPARK_HEIGHT - _PAD - (SPARK_HEIGHT - 2 * _PAD) * value / top))
    close()
    return Sparkline("".join(line), "".join(area), most)
