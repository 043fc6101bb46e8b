"""These tests cover `python -m bench peers`: what it makes of what was measured, and what it says if something is
missing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.command import main
from bench.peers.figures import BATCHES, ENTRIES, MANY, ONE, Sample, Shape, figures_of, table


def sample(who: str, shape: Shape, per_s: int, cpu_us: int = 100) -> Sample:
    cpu = {"client": per_s * cpu_us / 1e6, "broker": 0.002}
    return Sample.of(who, shape, {"done": per_s * 2, "seconds": 2.0, "cpu_s": cpu})


def everybody(narayana: int, decider: int) -> list[Sample]:
    rates = {"narayana": narayana, "decider": decider}
    return [sample(who, shape, rates.get(who, 100)) for who, entry in ENTRIES.items() for shape in entry.against]


def test_who_has_done_nothing_has_no_rate() -> None:
    with pytest.raises(RuntimeError, match=r"Narayana \+ Artemis has done nothing in 3.0 s \(16\)"):
        Sample.of("narayana", MANY, {"done": 0, "seconds": 3.0, "cpu_s": {}})


def test_figures_are_medians_and_ratios_are_within_a_round() -> None:
    figures = figures_of([everybody(100, 200), everybody(400, 1200), everybody(200, 800)])
    assert figures["narayana"]["16"]["per_s"] == 200
    assert (figures["narayana"]["16"]["per_s_lowest"], figures["narayana"]["16"]["per_s_highest"]) == (100, 400)
    assert figures["decider"]["1"]["per_s"] == 800
    assert figures["ratio"]["decider_to_narayana"] == {"1": 3.0, "16": 3.0, "batch100": 3.0}  # of 2, 3 and 4
    ours = set(ENTRIES) - {"narayana", "outbox"}
    assert set(figures["ratio"]) == {f"{who}_to_{peer}" for who in ours for peer in ("narayana", "outbox")}
    cpu = figures["two_phase"]["batch100"]["cpu_us"]
    assert cpu == {"client": 50.0, "broker": 10.0, "all": 60.0}


def test_each_of_ours_is_compared_to_the_peers_in_the_shape_that_does_the_same_work() -> None:
    peers = {ONE: 100, MANY: 200, BATCHES: 1000}
    samples = [sample(who, shape, per_s) for who in ("narayana", "outbox") for shape, per_s in peers.items()]
    ours = [who for who in ENTRIES if who not in {"narayana", "outbox"}]
    samples += [sample(who, shape, 1000) for who in ours for shape in ENTRIES[who].against]
    figures = figures_of([samples])
    assert set(figures["app_default"]) == {"1", "2x2"}
    assert set(figures["fleet"]) == {"16"}
    ratio = figures["ratio"]
    assert ratio["app_default_to_narayana"] == ratio["app_default_to_outbox"] == {"1": 5.0, "2x2": 5.0}
    assert ratio["fleet_to_narayana"] == {"16": 5.0}
    assert ratio["two_phase_to_narayana"] == {
        "1": 10.0, "16": 5.0, "batch100": 1.0, "each100": 1.0, "batch100x4": 1.0,
    }  # fmt: skip


def test_the_table_begins_with_what_we_lose_most() -> None:
    lines = table(figures_of([everybody(100, 2000), everybody(200, 2000)])).splitlines()
    assert len(lines) == 2 + sum(len(entry.against) for entry in ENTRIES.values()) - 2 * 3
    assert lines[2].startswith("| two phases: ")
    assert lines[2].endswith("| 0.75 | 1.00 | 50, 10 |")
    assert "| the database decides: 1 message in a transaction, 16 workers | 2,000 (2,000–2,000), 50 µs |" in lines[-2]
    assert any(line.startswith("| an App by default: 2 processes of 2 workers | ") for line in lines)


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
