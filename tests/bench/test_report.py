"""These tests cover the table and the picture that `bench.report` makes from measured figures."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.command import BENCHMARKS
from bench.report import Bar, Goal, bars, meaning, write

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


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_its_figures_mean(name: str) -> None:
    assert len(meaning(name)) > 100


def test_how_much_of_a_goal_was_reached() -> None:
    assert [round(bar.part, 2) for bar in bars({"e2e": E2E})] == [0.5, 2.0]
    assert Bar(Goal("tm", "overhead_us", 60, low=True), 120).part == 0.5
