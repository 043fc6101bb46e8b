"""These fixtures start a broker in a process of its own, for clients of other projects."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.java_process import maven_jars
from tests.memory_disk import new_folder
from xabridge.testing.broker import BrokerProcess

RHEA = Path(__file__).with_name("rhea")
JMS = Path(__file__).with_name("jms")
GO = Path(__file__).with_name("go")


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker that is open to this machine; at the end it must still run, and stop when it is told."""
    yield from _running(BrokerProcess(new_folder("broker")))


@pytest.fixture(scope="module")
def restricted() -> Iterator[BrokerProcess]:
    """The same, but nobody may do anything but at `allowed.*`, and the queue `allowed.full` takes 10 messages."""
    folder = new_folder("restricted")
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


def fetch(folder: Path, named: str, fetched: str, *command: str) -> str:
    """Fetches what a file names, unless that was done since it was written; what has gone wrong."""
    with (folder / ".lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        mark = folder / fetched
        if not mark.exists() or mark.stat().st_mtime < (folder / named).stat().st_mtime:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                return done.stdout + done.stderr
            mark.touch()
    return ""


@pytest.fixture(scope="session")
def rhea() -> Path:
    """The folder of rhea's client, installed from the lock file; that needs a registry the first time."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("the interoperability tests need node and npm, and CI has to have them")
        pytest.skip("node and npm are not installed")
    if wrong := fetch(
        RHEA, "package-lock.json", "node_modules/.package-lock.json", "npm", "ci", "--no-audit", "--no-fund"
    ):
        pytest.fail(f"npm ci failed in {RHEA}:\n{wrong}")
    return RHEA


@pytest.fixture(scope="session")
def jms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, str], Any]]:
    """Runs a use of Qpid JMS, of `jms/*.java`, against the broker at a port: its result. All run in one process. They
    are compiled here; Maven fetches the jars the first time."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            pytest.skip(f"Qpid JMS needs {program}, which is not installed")
    lib = maven_jars(JMS / "pom.xml")
    classes = tmp_path_factory.mktemp("jms")
    compile_all = ["javac", "-Xlint:-options", "-d", str(classes), "-cp", f"{lib}/*", *map(str, JMS.glob("*.java"))]
    done = subprocess.run(compile_all, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"javac failed:\n{done.stderr}")
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{classes}:{lib}/*", "Main"]
    said = classes / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def run(port: int, use: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{port} {use}\n")
        process.stdin.flush()
        told = process.stdout.readline()
        assert told.strip(), said.read_text()
        assert not told.startswith("failed:"), f"{told}{said.read_text()}"
        return json.loads(told)

    with process:
        yield run
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="session")
def go_amqp(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The program of go-amqp: `go/main.go`, built here. Go fetches the module the first time."""
    if shutil.which("go") is None:
        pytest.skip("go-amqp needs go, which is not installed")
    environment = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    done = subprocess.run(
        ["go", "mod", "download"], cwd=GO, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"go-amqp can't be fetched: {done.stderr.strip()}")
    program = tmp_path_factory.mktemp("go") / "user"
    build = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(build, cwd=GO, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"go build failed:\n{done.stderr}")
    return [str(program)]
