"""These tests cover the command itself: its help on subcommands, and the modules that it loads for that."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

import tm
from xabridge.cli.main import GROUP, main, make_parser, summary_of

LOADED = """
import json, sys
from xabridge.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""
COMMANDS = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_what_a_command_is_said_to_do_is_what_it_says(entry: EntryPoint) -> None:
    assert summary_of(entry) == entry.load().SUMMARY


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nonsense"], []])
def test_help_loads_no_command(arguments: list[str]) -> None:
    """And none of what they are made of: it is there in a moment, and a command that can't be loaded breaks nothing."""
    ran = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(ran.stdout.splitlines()[-1])}
    assert not loaded & {
        "xa",
        "dtx",
        "rm_amqp",
        "rm_db",
        "sqlalchemy",
        "psycopg",
        "proton",
        "asyncio",
    }


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for entry in COMMANDS:
        assert f"{entry.name} {entry.load().SUMMARY}" in said


@pytest.mark.parametrize("module", ["no_such_package.command", "xabridge.cli.no_such_module"])
def test_a_command_whose_module_is_missing(module: str) -> None:
    assert summary_of(EntryPoint("broken", module, GROUP)) == f"can't be read: there is no text of {module}"


def test_a_module_that_says_nothing() -> None:
    assert summary_of(EntryPoint("quiet", "xabridge.cli.text", GROUP)) == "has no description"


def test_public_names_of_the_manager() -> None:
    """Each is there when it is asked for, and nothing else is."""
    for name in tm.__all__:
        assert getattr(tm, name).__module__.startswith("tm.") or name == "ConfigurationError"
    assert set(tm.__all__) == set(tm._HOME)
    assert set(tm.__all__) <= set(dir(tm))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        tm.Nonsense  # type: ignore[attr-defined]  # noqa: B018 — that is the test


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "1e400", "9" * 30])
def test_health_takes_no_time_that_is_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["health", f"--timeout={seconds}"])
    assert "expected seconds, above 0 and at most 3600" in capsys.readouterr().err


def test_health_tells_a_url_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "http://a b/"]) == 4
    assert "could not be reached: " in capsys.readouterr().err
