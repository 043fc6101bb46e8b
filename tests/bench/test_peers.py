"""These tests cover `python -m bench peers`: what it makes of what was measured, and what it says if something is
missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.command import main
from bench.peers.figures import NAMES, SHAPES, Sample, Shape, figures_of, table

ONE, SIXTEEN, BATCHES = SHAPES


def sample(who: str, shape: Shape, per_s: int, cpu_us: int = 100) -> Sample:
    cpu = {"client": per_s * cpu_us / 1e6, "broker": 0.002}
    return Sample.of(who, shape, {"done": per_s * 2, "seconds": 2.0, "cpu_s": cpu})


def everybody(narayana: int, decider: int) -> list[Sample]:
    rates = {"narayana": narayana, "decider": decider}
    return [sample(who, shape, rates.get(who, 100)) for shape in SHAPES for who in NAMES]


def test_who_has_done_nothing_has_no_rate() -> None:
    with pytest.raises(RuntimeError, match=r"Narayana \+ Artemis has done nothing in 3.0 s \(16\)"):
        Sample.of("narayana", SIXTEEN, {"done": 0, "seconds": 3.0, "cpu_s": {}})


def test_figures_are_medians_and_ratios_are_within_a_round() -> None:
    figures = figures_of([everybody(100, 200), everybody(400, 1200), everybody(200, 800)])
    assert figures["narayana"]["16"]["per_s"] == 200
    assert (figures["narayana"]["16"]["per_s_lowest"], figures["narayana"]["16"]["per_s_highest"]) == (100, 400)
    assert figures["decider"]["1"]["per_s"] == 800
    assert figures["ratio"]["decider_to_narayana"] == {"1": 3.0, "16": 3.0, "batch100": 3.0}  # of 2, 3 and 4
    assert set(figures["ratio"]) == {
        "two_phase_to_narayana", "two_phase_to_outbox", "decider_to_narayana", "decider_to_outbox",
    }  # fmt: skip
    cpu = figures["two_phase"]["batch100"]["cpu_us"]
    assert cpu == {"client": 50.0, "broker": 10.0, "all": 60.0}


def test_the_table_has_a_line_for_everybody_in_each_shape() -> None:
    lines = table(figures_of([everybody(100, 2000)])).splitlines()
    assert len(lines) == 2 + len(SHAPES) * len(NAMES)
    assert "| 1, 16 | xabridge, decider | 2,000 (2,000–2,000) | 50, –, 0, – | 50 |" in lines
    assert lines[-1].startswith("| 100, 1 |")


def test_without_maven_one_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["peers", "--quick", "--json"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    why = "java, javac, mvn not found: the peers in Java need Maven and a JDK of version 17 or newer"
    assert output.err.splitlines()[1:] == [f"python -m bench peers: {why}"]
