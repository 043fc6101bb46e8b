"""This module starts ActiveMQ Artemis in a process of its own, from jars that are already on the machine. It downloads
nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.java_process import JavaProcess, java_program
from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence

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


class Artemis(JavaProcess):
    """One broker, at a fixed port."""

    kind = "Artemis"

    def __init__(self, lib: Path, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"127.0.0.1:{free_port()}"
        self._lib = lib
        self._configuration = folder / "broker.xml"
        text = (SOURCES / "broker.xml").read_text(encoding="utf-8")
        port = self.address.rpartition(":")[2]
        self._configuration.write_text(text.replace("@DIR@", str(folder)).replace("@PORT@", port), encoding="utf-8")
        self.start()

    def command(self) -> Sequence[str]:
        return [*java_program(SOURCES / "Broker.java", self._lib), str(self._configuration)]
