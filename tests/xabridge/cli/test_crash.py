"""These tests kill the command between its note in the log and its effect: no transaction may be split without a record
of it.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.cli.test_acting import NAME, branches, data, decided
from tm.log import read_log
from xa import Code
from xa.tables import BranchState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.xabridge.cli.field import Field, Said

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_a_heuristic_rollback(field: Field, xabridge: Callable[..., Said], when: str) -> None:
    decided(field)
    field.configure("broker", urls=[("shop", field.url("shop", scheme="fatal-test") + f"&kill={when}-rollback")])
    with field.popen("recover", "rollback", NAME, "--on", "shop", "--heuristic", "--yes") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    (note,) = read_log(field.log_folder).heuristics
    assert (note.branch.resource, note.code) == ("shop", Code.XA_HEURRB)
    field.configure("broker", "shop")
    run = xabridge("recover", "run")
    assert data(field) == {"order"}
    if when == "before":
        assert "waits to be forgotten" in " ".join(run.out.split())
        assert list(field.stores["shop"].branches.values()) == [BranchState.S3], "recovery leaves it alone"
        assert xabridge("recover", "list").code == 3
        assert xabridge("recover", "rollback", NAME, "--heuristic", "--yes").code == 0
    assert xabridge("recover", "list").code == 3, "the note is left"
    assert xabridge("recover", "forget", NAME, "--yes").code == 0
    assert not branches(field)
    assert xabridge("recover", "list").code == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", [["commit", NAME, "--yes"], ["run"]], ids=["commit", "run"])
def test_killed_around_a_commit(field: Field, xabridge: Callable[..., Said], when: str, command: list[str]) -> None:
    decided(field)
    field.configure("broker", urls=[("shop", field.url("shop", scheme="fatal-test") + f"&kill={when}-commit")])
    with field.popen("recover", *command) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    field.configure("broker", "shop")
    assert xabridge("recover", "run").code == 0
    assert data(field) == {"order", "row"}
    assert not branches(field)
    image = read_log(field.log_folder)
    assert not image.heuristics
    assert not image.decisions
