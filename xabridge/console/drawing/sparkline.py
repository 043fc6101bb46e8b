"""Sparkline: the path of a line in an SVG, with gaps where nothing is known."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Final

from xabridge.console.history import known

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 240
HEIGHT: Final = 48
_PAD: Final = 3


@dataclass(frozen=True, slots=True)
class Sparkline:
    """`line` and `area` are the data of paths; `most` is the value at the upper edge."""

    line: str
    area: str
    most: float


def sparkline(values: Sequence[float], most: float | None = None) -> Sparkline:
    """The line of these values, the oldest at the left. `most`: the scale, if several lines share one."""
    top = max([*known(values), most or 0.0, 1e-9])
    step = WIDTH / max(len(values) - 1, 1)
    line, area = [], []
    run: list[tuple[float, float]] = []

    def close() -> None:
        if len(run) == 1:  # a dot, so that the first value shows
            x, y = run[0]
            run.insert(0, (max(x - step, 0), y))
        if run:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            line.append(f"M{points.replace(' ', 'L')}")
            area.append(f"M{run[0][0]:.1f},{HEIGHT}L{points.replace(' ', 'L')}L{run[-1][0]:.1f},{HEIGHT}Z")
        run.clear()

    for number, value in enumerate(values):
        if isnan(value):
            close()
        else:
            run.append((number * step, HEIGHT - _PAD - (HEIGHT - 2 * _PAD) * value / top))
    close()
    return Sparkline("".join(line), "".join(area), top)
