"""These tests run commands whose output can't be written: the disk is full, the reader of the pipe has gone, or the
shell has closed it. No command ends in a traceback.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from xabridge.cli import main
from xabridge.cli.main import GROUP

FULL = "xabridge: what the command says can't be written: No space left on device\n"


def refused(words: list[str], capsys: pytest.CaptureFixture[str], *, unbuffered: bool) -> str:
    """What the command says on stderr when stdout is on a full disk."""
    stream = io.TextIOWrapper(io.FileIO("/dev/full", "w"), "utf-8", write_through=unbuffered)
    with (
        closing(stream),
        pytest.MonkeyPatch.context() as patch,
    ):  # not in a fixture, behind which capsys takes the streams again
        patch.setattr("sys.stdout", stream)
        with pytest.raises(SystemExit) as ended:
            main(words)
    assert ended.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", [False, True])
def test_the_help_of_each_command(capsys: pytest.CaptureFixture[str], *, unbuffered: bool) -> None:
    for command in ([], *([entry.name] for entry in entry_points(group=GROUP))):
        assert refused([*command, "--help"], capsys, unbuffered=unbuffered) == FULL, command


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    "words", [["completion", "bash"], ["recover", "list"], ["doctor"], ["outbox", "create", "--dry-run"]]
)
def test_what_commands_say(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, *, unbuffered: bool
) -> None:
    path = tmp_path / "xabridge.toml"
    path.write_text(
        f'node = "n"\n[resources.shop]\nurl = "sqlite:///{tmp_path}/shop.db"\nmode = "decider"\n'
        '[outbox]\ndatabase = "shop"\nbroker = "amqp://127.0.0.1:1"\n'
    )
    more = [] if words[0] == "completion" else ["--config", str(path)]
    assert refused([*words, *more], capsys, unbuffered=unbuffered).endswith(FULL)


@pytest.mark.parametrize(
    ("words", "unbuffered"), [(["completion", "bash"], ""), (["--help"], ""), (["--version"], "1")], ids=str
)
def test_in_a_process_of_its_own(words: list[str], unbuffered: str) -> None:
    program = [sys.executable, "-m", "xabridge.cli", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run(program, stdout=disk, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, FULL)
    if words[0] == "completion":
        return
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(program, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (141, "")
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", *program]  # the shell has closed it
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
