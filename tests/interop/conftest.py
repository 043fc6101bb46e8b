"""A broker in a process of its own, and clients that nobody here wrote."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

RHEA = Path(__file__).with_name("rhea")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that is open to this machine; at the end it must still run, and stop when it is told."""
    yield from _running(BrokerProcess(tmp_path_factory.mktemp("broker")))


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The same where nobody may do anything but at `allowed.*`, and where the queue `allowed.full` takes 10 messages."""
    folder = tmp_path_factory.mktemp("restricted")
    config = folder / "broker.toml"
    config.write_text(
        '[broker]\nanonymous = true\nlisten = ["127.0.0.1:0"]\n'
        "[broker.queues.'allowed.full']\nmax_depth = 10\n"
        '[broker.permissions.anonymous]\nproduce = ["allowed.*"]\nconsume = ["allowed.*"]\ncreate = ["allowed.*"]\n'
        "manage = true\n"
    )
    yield from _running(BrokerProcess(folder, "--config", str(config)))


def _running(process: BrokerProcess) -> Iterator[BrokerProcess]:
    process.start()
    try:
        yield process
        assert process.running
        assert process.stop() == 0
    finally:
        process.kill()


@pytest.fixture(scope="session")
def rhea() -> Path:
    """The folder of rhea's client, installed from the lock file; that needs a registry the first time."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("the interoperability tests need node and npm, and CI has to have them")
        pytest.skip("node and npm are not installed")
    with (RHEA / ".lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install()
    return RHEA


def _install() -> None:
    installed = RHEA / "node_modules" / ".package-lock.json"
    wanted = RHEA / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < wanted.stat().st_mtime:
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund"], cwd=RHEA, capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.fail(f"npm ci failed in {RHEA}:\n{done.stdout}{done.stderr}")
        installed.touch()
