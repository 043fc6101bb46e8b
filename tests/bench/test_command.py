"""These tests cover `python -m bench`, the command that runs every benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import contract
from bench.command import BENCHMARKS, main
from bench.machine import optimisation, run_with_the_systems_interpreter


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.slow
def test_one_json_object_is_the_last_line_of_stdout_or_it_is_for_people_with_dotted_names(tmp_path: Path) -> None:
    result = bench("xa", "--quick", "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert figures["benchmark"] == "xa"
    assert set(figures["machine"]) == {
        "date", "cpu", "cores", "memory_kib", "load_1m", "system", "python", "python_build", "python_optimised",
    }  # fmt: skip
    assert figures["machine"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert all(figures[name] > 0 for name in ("xid_round_trips_per_s", "advances_per_s"))
    assert min(figures["branch_cycles_per_s"][way] for way in ("sync", "async")) > 0
    assert contract.SUMMARY in result.stderr  # progress and explanations
    assert contract.SUMMARY not in result.stdout

    result = bench("xa", "--quick", "--out", str(tmp_path / "figures"))
    lines = [line.split() for line in result.stdout.splitlines()]
    assert {line[0] for line in lines} == {"xa"}
    shown = {line[1]: line[2] for line in lines}
    written = json.loads((tmp_path / "figures" / "xa.json").read_text())
    assert shown["branch_cycles_per_s.async"] == str(written["branch_cycles_per_s"]["async"])
    assert shown["rounds"] == str(written["rounds"])


def test_a_figure_says_whether_its_interpreter_was_built_with_a_profile() -> None:
    gcc = {"PGO_PROF_GEN_FLAG": "-fprofile-generate", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}
    for build, optimised in (
        ({**gcc, "CONFIG_ARGS": "'--enable-shared'", "PY_CFLAGS": "-O3 -Wall"}, "none"),
        ({**gcc, "CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, "profile, link-time"),
        ({**gcc, "CONFIG_ARGS": "", "PY_CORE_CFLAGS": "-O2 -flto -fprofile-use"}, "profile, link-time"),
        ({**gcc, "CONFIG_ARGS": "", "PGO_PROF_USE_FLAG": ""}, "profile"),  # Debian takes the flags away
        ({}, "none"),
    ):
        assert optimisation(build) == optimised, build


def test_benchmarks_run_with_the_interpreter_of_the_distribution_where_ours_has_no_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[tuple[str, list[str], str]] = []
    monkeypatch.setattr(
        "bench.machine.os.execve", lambda path, argv, env: ran.append((str(path), argv, env["PYTHONPATH"]))
    )
    monkeypatch.setattr("bench.machine.optimisation", lambda _build: "profile")
    run_with_the_systems_interpreter()
    assert ran == []

    monkeypatch.setattr("bench.machine.optimisation", lambda _build: "none")
    monkeypatch.setattr("bench.machine.sys.orig_argv", ["python", "-m", "bench", "tm"])
    run_with_the_systems_interpreter()
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    if system.exists() and system.resolve() != Path(sys.executable).resolve():
        ((path, argv, paths),) = ran
        assert (path, argv) == (str(system), [str(system), "-m", "bench", "tm"])
        assert str(Path(pytest.__file__).parents[1]) in paths.split(":")
    else:
        assert ran == []


def test_what_is_refused_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, why in (
        (["nothing", "--json"], (*BENCHMARKS, "all")),
        (["xa", "--seed", "3"], ["--rounds, --seed and --part are for crash"]),
        (["all", "--rounds", "3"], ["--rounds, --seed and --part are for crash"]),
        (["log", "--part", "bank"], ["--rounds, --seed and --part are for crash"]),
        (["crash", "--rounds", "-1"], ["--rounds"]),
    ):
        try:
            code: object = main(arguments)
        except SystemExit as ended:  # of the parser
            code = ended.code
        told = capsys.readouterr()
        assert (code, told.out) == (2, ""), arguments
        assert all(word in told.err for word in why), arguments


@pytest.mark.slow
@pytest.mark.long  # a storm of each kind: tests/crash
@pytest.mark.timeout(0)
def test_the_crash_campaign_has_as_many_rounds_as_asked_for() -> None:
    command = [sys.executable, "-m", "bench", "crash", "--quick", "--rounds", "1", "--seed", "5", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["seed"], figures["rounds"]) == (5, 1)
    assert "seed 5, storm 0" in result.stderr
    assert figures["orders"] >= 300
    assert figures["violations"] == []

    bank = figures["bank"]
    assert "seed 5, bank 0" in result.stderr
    assert bank["rounds"] == 1
    assert bank["transfers"] > 0
    assert bank["violations"] == []
    consumers = figures["consumers"]
    assert "seed 5, consumers 0" in result.stderr
    assert consumers["rounds"] == 1
    assert consumers["handled"] + consumers["dead_letters"] == consumers["messages"] >= 100
    assert consumers["violations"] == []
