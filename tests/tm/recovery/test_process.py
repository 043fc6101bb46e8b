"""These tests check the name of a process, and whether the process of that name is known to have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tm.recovery.lease import is_gone, this_process

CHILD = (
    "import sys; from tm.recovery.lease import this_process; print(this_process(), flush=True); sys.stdin.readline()"
)


def child() -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_process_at_work_is_not_gone_and_a_dead_one_is() -> None:
    process, name = child()
    with process:
        assert name
        assert name != this_process()
        assert not is_gone(name)
        process.send_signal(signal.SIGSTOP)
        assert not is_gone(name), "it may go on"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(name), "a zombie does nothing any more"
    assert is_gone(name)


def test_another_process_with_its_pid_is_not_it() -> None:
    where, pid, started = this_process().rsplit("/", 2)
    assert not is_gone(this_process())
    assert is_gone(f"{where}/{pid}/{int(started) + 1}")


@pytest.mark.parametrize(
    "name", ["", "gone", "a/b/c", "another-boot/pid:[4026531836]/1/1", "/1/1", f"{'9' * 30}/{'9' * 30}"]
)
def test_nothing_is_known_of_processes_elsewhere(name: str) -> None:
    assert not is_gone(name)


def test_a_pid_that_can_not_be_is_gone_or_unknown_but_no_error() -> None:
    where, _, started = this_process().rsplit("/", 2)
    assert is_gone(f"{where}/{2**31 - 1}/{started}")
    assert not is_gone(f"{where}/{10**30}/{started}")
    assert not is_gone(f"{where}/-1/{started}")
