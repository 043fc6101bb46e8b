"""The wheel, installed for somebody who has no clone: its commands work, and what they point at is there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment with the wheel, which sees the packages that it needs in ours."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True)
    (wheel,) = folder.glob("xabridge-*.whl")
    environment = folder / "environment"
    venv.create(environment, with_pip=False)
    commands = environment / "bin"
    ours = sysconfig.get_path("purelib", vars={"base": str(environment)})
    Path(ours, "needed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    install = [*pip, "--python", str(commands / "python"), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    return commands


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.slow
def test_it_is_what_is_run(installed: Path, tmp_path: Path) -> None:
    code = "import bench, dtx, rm_amqp, rm_db, tm, xa; print(bench.__file__, tm.__file__)"
    told = run(tmp_path, installed / "python", "-c", code).stdout
    assert told.count(str(installed.parent)) == 2, told


@pytest.mark.slow
def test_commands_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    xabridge = installed / "xabridge"
    assert run(tmp_path, xabridge, "--version").stdout.startswith("xabridge ")
    helped = run(tmp_path, xabridge)
    assert helped.returncode == 2
    for command in ("bench", "broker", "completion", "demo", "doctor", "recover", "shop"):
        assert command in helped.stderr
    for words, code in ((["doctor"], 1), (["recover", "list"], 2)):
        done = run(tmp_path, xabridge, *words)
        assert done.returncode == code
        assert "xabridge.toml: no such file; write one, or pass --config" in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_demo_and_what_it_says_to_read_next(installed: Path, tmp_path: Path) -> None:
    arguments = ("demo", "--no-kill", "--orders", "40", "--workers", "2")
    done = run(tmp_path, installed / "xabridge", *arguments, "--plain")
    assert done.returncode == 0, done.stdout + done.stderr
    guides = re.findall(r"/\S+\.md", done.stdout)
    assert len(guides) == 2, done.stdout
    for guide in guides:
        assert Path(guide).is_relative_to(installed.parent)
        assert Path(guide).exists()
    proof = json.loads(run(tmp_path, installed / "xabridge", *arguments, "--json").stdout)
    assert proof["orders"] == proof["rows"] == proof["invoices"] == 40
