"""These tests cover xabridge completion: the scripts, and the completions that bash offers with one."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from xabridge.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_takes(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("recover", "doctor", "rollback", "heuristic", "gone", "older-than", "xabridge recover list --names"):
        assert word in script
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(script)
    assert subprocess.run([program, "-n", path], check=False).returncode == 0


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion"
    path.write_text(
        capsys.readouterr().out
        + "\nxabridge() { echo orders-1·3fa91c·8231; }\n"
        + 'ask() { COMP_WORDS=(xabridge "$@"); COMP_CWORD=$#; COMPREPLY=(); '
        + '$(complete -p xabridge | sed \'s/.*-F \\([^ ]*\\) .*/\\1/\') xabridge "${@: -1}" "${@: -2:1}"; '
        + 'echo "${COMPREPLY[*]}"; }\n'
        + "ask rec; ask recover ro; ask recover rollback --h; ask recover show ord\n"
    )
    said = subprocess.run([bash, "--norc", path], capture_output=True, text=True, check=True, cwd=tmp_path)
    completed = said.stdout.splitlines()
    assert completed[0].split() == ["recover"], said
    assert completed[1].split() == ["rollback"], said
    assert set(completed[2].split()) == {"--help", "--heuristic"}, said
    assert completed[3].split() == ["orders-1·3fa91c·8231"], said
