"""These tests cover the table and the picture that `bench.report` makes from measured figures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.command import BENCHMARKS
from bench.peers.figures import ENTRIES, Sample, figures_of
from bench.report import BEGIN, END, Bar, Goal, bars, beside_others, meaning, write

MACHINE = {"cpu": "some", "cores": 2}
E2E = {
    "benchmark": "e2e",
    "machine": MACHINE,
    "two_phase_of_floor_1": 0.2,
    "two_phase": {"16": {"tx_per_s": 1600.5}},
    "violations": [],
}


def test_page_and_picture(tmp_path: Path) -> None:
    (tmp_path / "e2e.json").write_text(json.dumps(E2E))
    write(tmp_path, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| `two_phase.16.tx_per_s` | 1,600.5 |" in page
    assert "| `violations` | none |" in page
    assert page.index("what waits for the force of the decision") < page.index("| `two_phase")
    assert "cores 2" in page
    picture = ET.fromstring((tmp_path / "benchmarks.svg").read_text())  # noqa: S314 — our own
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "0.2 (≥ 0.4)" in texts
    assert "1,600.5 (≥ 800)" in texts


def test_the_table_of_the_peers_stands_between_its_marks() -> None:
    samples = [
        Sample.of(who, shape, {"done": 100, "seconds": 1.0, "cpu_s": {"client": 0.1}})
        for who, entry in ENTRIES.items()
        for shape in entry.against
    ]
    facts = {**MACHINE, "date": "2026-11-28", "python": "3.11.2", "python_optimised": "profile", "load_1m": 1.25}
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    made = beside_others(page, {**figures_of([samples]), "machine": facts})
    assert made.startswith(f"before\n{BEGIN}\n| what |")
    assert made.endswith(f"{END}\nafter\n")
    assert "old" not in made
    assert "2026-11-28: 2 cores, some; Python 3.11.2, optimised by: profile; load 1.2 at the end." in made
    guide = (Path(__file__).parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")
    assert beside_others(guide, {**figures_of([samples]), "machine": facts}) != guide


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_its_figures_mean(name: str) -> None:
    assert len(meaning(name)) > 100


def test_how_much_of_a_goal_was_reached() -> None:
    assert [round(bar.part, 2) for bar in bars({"e2e": E2E})] == [0.5, 2.0]
    assert Bar(Goal("tm", "overhead_us", 60, low=True), 120).part == 0.5
