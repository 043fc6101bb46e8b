"""This module starts ActiveMQ Artemis in a process of its own, from jars that are already on the machine. It downloads
nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rm_amqp.embedded import free_port

SOURCES = Path(__file__).with_name("artemis")
PLACE = "XABRIDGE_ARTEMIS"


def jars() -> Path:
    """Where Artemis is; the test is skipped where it is not."""
    told = os.environ.get(PLACE)
    if told is None:
        pytest.skip(f"{PLACE} names no folder with Artemis' jars; `make artemis` fetches them, and says what to set")
    folder = Path(told).absolute()
    if not list(folder.glob("artemis-server-*.jar")):
        pytest.fail(f"{PLACE}={told}: there is no artemis-server-*.jar")
    if shutil.which("java") is None:
        pytest.fail(f"{PLACE} is set, and java is not installed")
    return folder


class Artemis:
    """One broker, at a fixed port. It can be killed, and started again with what it has stored."""

    def __init__(self, lib: Path, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._lib = lib
        self._log = folder / "artemis.log"
        self._configuration = folder / "broker.xml"
        text = (SOURCES / "broker.xml").read_text(encoding="utf-8")
        port = self.address.rpartition(":")[2]
        self._configuration.write_text(text.replace("@DIR@", str(folder)).replace("@PORT@", port), encoding="utf-8")
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        command = ["java", "-Xmx256m", "-cp", f"{self._lib}/*", str(SOURCES / "Broker.java"), str(self._configuration)]
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        said = [line.strip() for line in iter(self._process.stdout.readline, "ready\n") if line]
        assert self._process.poll() is None, f"Artemis did not start: {said}, {self._log.read_text('utf-8')}"

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
