"""Makes the table and the picture of the measured figures: `python -m bench.report FOLDER DOCS`.

FOLDER has the NAME.json that `python -m bench all --out FOLDER` wrote. DOCS gets `benchmarks.md`, with every figure and
the explanation in the benchmark's module, and `benchmarks.svg`, which draws each figure that has a goal as a bar, with
the goal at the line. Between the marks in DOCS/performance.md stands the table of `bench peers`. Where FOLDER has only
some of the files, as after `python -m bench peers --out FOLDER`, `--peers` writes that table alone.
"""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.command import BENCHMARKS, flat
from bench.peers.figures import table as peers_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).parents[1]
WIDTH: Final = 760
LEFT: Final = 300
SCALE: Final = 180
"""Pixels from 0 to the goal."""
MOST: Final = 2.2
ROW: Final = 22
FONT: Final = 'font-family="sans-serif" font-size="12"'
HEAD: Final = 34


FURTHER: Final = {"broker": ("bench.client",)}
"""Modules that measure a part of another one's benchmark."""
BEGIN: Final = "<!-- measured by `python -m bench peers` -->"
END: Final = "<!-- end of the table -->"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure with its goal; where `low` is set, less is better."""

    benchmark: str
    figure: str
    wanted: float
    low: bool = False


GOALS: Final = (
    Goal("tm", "ratio_1", 0.65),
    Goal("tm", "ratio_16", 1.5),
    Goal("tm", "overhead_us", 60, low=True),
    Goal("e2e", "two_phase_of_floor_1", 0.4),
    Goal("e2e", "two_phase.16.tx_per_s", 800),
    Goal("e2e", "decider_gain.1", 1.4),
    Goal("e2e", "batch100.msgs_per_s", 6000),
    Goal("pipeline", "ratio", 0.7),
    Goal("pipeline", "batch_overhead_ms", 150, low=True),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure beside its goal; `part` is 1 where it is just reached."""

    goal: Goal
    measured: float

    @property
    def part(self) -> float:
        """How much of the goal was reached."""
        if self.goal.low:
            return self.goal.wanted / self.measured if self.measured else MOST
        return self.measured / self.goal.wanted


def bars(results: Mapping[str, Mapping[str, Any]]) -> list[Bar]:
    """What has a goal and was measured."""
    made = []
    for goal in GOALS:
        figures = dict(flat(dict(results.get(goal.benchmark, {}))))
        if goal.figure in figures:
            made.append(Bar(goal, float(figures[goal.figure])))
    return made


def picture(drawn: Sequence[Bar]) -> str:
    """The SVG."""
    height = HEAD + ROW * len(drawn) + 30
    goal = LEFT + SCALE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{goal}" y="20" text-anchor="middle" fill="#444">goal</text>',
    ]
    for index, bar in enumerate(drawn):
        y = HEAD + ROW * index
        width = min(bar.part, MOST) * SCALE
        colour = "#3a7d44" if bar.part >= 1 else "#c17c2f"
        name = f"{bar.goal.benchmark}: {bar.goal.figure}"
        than = "≤" if bar.goal.low else "≥"
        shown = f"{bar.measured:,.6g} ({than} {bar.goal.wanted:,.6g})"
        lines += [
            f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end" fill="#222">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="{ROW - 6}" fill="{colour}"/>',
            f'<text x="{LEFT + width + 6:.0f}" y="{y + 13}" fill="#222">{escape(shown)}</text>',
        ]

    lines += [
        f'<line x1="{goal}" y1="26" x2="{goal}" y2="{height - 26}" stroke="#444" stroke-dasharray="3 3"/>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with every figure."""
    machine = next((dict(each["machine"]) for each in results.values()), {})
    lines = [
        "# Benchmarks",
        "",
        "What was measured on one machine, by `make bench` in a clone of the repository, which writes this page anew.",
        "Each section says first what its figures mean. [Performance](performance.md) says what limits them; the words",
        "are in the [glossary](glossary.md).",
        "",
        f"The machine: {', '.join(f'{name} {value}' for name, value in machine.items())}.",
        "",
        "Some figures have a goal. In the picture, the line is the goal: a bar that reaches it has reached the goal.",
        "",
        "![what was measured, beside what was wanted](benchmarks.svg)",
    ]

    for name, figures in results.items():
        shown = {key: value for key, value in figures.items() if key not in {"benchmark", "machine"}}
        lines += ["", f"## {name}", "", "```text", meaning(name), "```", "", "| figure | measured |", "|---|---|"]
        lines += [f"| `{key}` | {_shown(value)} |" for key, value in flat(shown)]
    return "\n".join(lines) + "\n"


def meaning(name: str) -> str:
    """What the figures of a benchmark mean: what its modules say of themselves. They are read, not imported, because
    some of them need packages that a report does not."""
    modules = [BENCHMARKS[name], *FURTHER.get(name, ())]
    sources = (ROOT / f"{module.replace('.', '/')}.py" for module in modules)
    return "\n\n".join(ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "" for source in sources)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return str(len(value)) if value else "none"
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def beside_others(page: str, figures: Mapping[str, Any]) -> str:
    """The page with what `bench peers` has measured between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no {BEGIN} with {END} behind it")
    machine = figures["machine"]
    where = (
        f"{machine['date']}: {machine['cores']} cores, {machine['cpu']}; Python {machine['python']}, optimised by:"
        f" {machine['python_optimised']}; load {machine['load_1m']:.1f} at the end."
    )
    return f"{before}{BEGIN}\n{peers_table(figures)}\n\n{where}\n{END}{after}"


def write(folder: Path, docs: Path, *, peers_only: bool = False) -> None:
    """Reads what was measured, and writes page, picture and the table of the peers."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    if not peers_only:
        (docs / "benchmarks.md").write_text(table(results), encoding="utf-8")
        (docs / "benchmarks.svg").write_text(picture(bars(results)), encoding="utf-8")
    if "peers" in results:
        page = docs / "performance.md"
        page.write_text(beside_others(page.read_text(encoding="utf-8"), results["peers"]), encoding="utf-8")


if __name__ == "__main__":
    _, FROM, INTO, *flags = sys.argv
    write(Path(FROM), Path(INTO), peers_only="--peers" in flags)
