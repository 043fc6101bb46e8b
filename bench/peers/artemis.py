"""ActiveMQ Artemis as a broker for our own client over OpenWire: the version, the program and the settings of the tests
(`tests/interop/artemis`), with the jars that `make artemis` fetches."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.peers.programs import Program
from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    from typing import Self

JARS: Final = Path(".artemis")
SOURCES: Final = Path(__file__).parents[2] / "tests" / "interop" / "artemis"
KEPT: Final = "<auto-delete-queues>false</auto-delete-queues>"
"""Without it Artemis may lose what a prepared branch sends (docs/openwire.md)."""


class OpenWireArtemis(Program):
    """The broker, with its data in `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        port = free_port()
        self.url = f"openwire://127.0.0.1:{port}/"
        text = (SOURCES / "broker.xml").read_text(encoding="utf-8").replace("protocols=AMQP", "protocols=OPENWIRE")
        text = text.replace("@DIR@", str(folder)).replace("@PORT@", str(port))
        settings = folder / "broker.xml"
        settings.write_text(text.replace("<dead-letter-address>", f"{KEPT}<dead-letter-address>"), encoding="utf-8")
        command = ["java", "-Xmx1G", "-cp", f"{JARS.absolute()}/*", str(SOURCES / "Broker.java"), str(settings)]
        super().__init__("Artemis", command, folder / "errors")
        self.expect("ready")

    @classmethod
    def if_there(cls, folder: Path) -> Self | None:
        """The broker, or None where Java or the jars are missing."""
        there = shutil.which("java") is not None and any(JARS.glob("artemis-openwire-protocol-*.jar"))
        return cls(folder) if there else None
