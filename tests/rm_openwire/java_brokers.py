"""This module starts ActiveMQ Classic and ActiveMQ Artemis in processes of their own, with OpenWire and forced stores.
Maven fetches their jars the first time. Tests are skipped where Java, or Maven and no jars yet, are missing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.java_process import JavaProcess, java_program, maven_jars
from tests.waiting import until
from xabridge.testing.ports import free_port

SOURCES: Final = Path(__file__).parents[1] / "interop"
PLACES: Final = {
    "activemq": ("XABRIDGE_ACTIVEMQ", "activemq-jaas-*.jar"),
    "artemis": ("XABRIDGE_ARTEMIS", "artemis-openwire-protocol-*.jar"),
}
"""Folder of sources → the environment variable that may name a folder with the jars, and a jar that has to be there."""


def jars(name: str) -> Path:
    """The folder with a broker's jars."""
    variable, jar = PLACES[name]
    if shutil.which("java") is None:
        pytest.skip(f"{name} needs java, which is not installed")
    named = os.environ.get(variable)
    if named is None:
        return maven_jars(SOURCES / name / "pom.xml")
    folder = Path(named).absolute()
    if not any(folder.glob(jar)):
        pytest.fail(f"{variable}={named}: there is no {jar}")
    return folder


class JavaBroker(JavaProcess):
    """A broker at a fixed port."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        super().__init__(folder)
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"openwire://{self.address}/"


class Classic(JavaBroker):
    """ActiveMQ Classic with KahaDB; with a user and a password where they are named."""

    kind = "ActiveMQ Classic"

    def __init__(self, folder: Path, *, user: str = "", password: str = "", options: str = "") -> None:
        super().__init__(folder)
        self._lib = jars("activemq")
        self._who = [user, password] if user else []
        self._options = options

    def command(self) -> Sequence[str]:
        listens = f"tcp://{self.address}{self._options}"
        program = java_program(SOURCES / "activemq" / "Broker.java", self._lib)
        return [*program, str(self.folder), listens, *self._who]


KEPT: Final = "<auto-delete-queues>false</auto-delete-queues><auto-delete-addresses>false</auto-delete-addresses>"


class Artemis(JavaBroker):
    """ActiveMQ Artemis. It deletes no queue by itself unless it is told to."""

    kind = "ActiveMQ Artemis"

    def __init__(
        self,
        folder: Path,
        *,
        settings: str = "",
        options: str = "",
        deletes_queues: bool = False,
        protocols: str = "OPENWIRE",
        port: int | None = None,
    ) -> None:
        super().__init__(folder, port)
        self._lib = jars("artemis")
        text = (SOURCES / "artemis" / "broker.xml").read_text(encoding="utf-8")
        text = text.replace("@DIR@", str(folder)).replace("@PORT@", str(self.port))
        text = text.replace("protocols=AMQP", f"protocols={protocols}{options}")
        text = text.replace("<acceptors>", f"{settings}<acceptors>")
        if not deletes_queues:
            text = text.replace("<dead-letter-address>", f"{KEPT}<dead-letter-address>")
        self._configuration = folder / "broker.xml"
        self._configuration.write_text(text, encoding="utf-8")

    def command(self) -> Sequence[str]:
        return [*java_program(SOURCES / "artemis" / "Broker.java", self._lib), str(self._configuration)]


CLUSTER: Final = """
    <connectors>
      <connector name="self">tcp://127.0.0.1:{port}</connector>
      <connector name="other">tcp://127.0.0.1:{other}</connector>
    </connectors>
    <cluster-user>cluster</cluster-user>
    <cluster-password>of these tests</cluster-password>
    <cluster-connections>
      <cluster-connection name="pair">
        <connector-ref>self</connector-ref>
        <static-connectors><connector-ref>other</connector-ref></static-connectors>
      </cluster-connection>
    </cluster-connections>
    <ha-policy><replication><{role}/></replication></ha-policy>
    """


class Replicated(Artemis):
    """One of two Artemis servers, the "primary" or the "backup" that replicates it, in folders of their own."""

    def __init__(self, folder: Path, role: str, other_port: int, port: int) -> None:
        folder.mkdir()
        settings = CLUSTER.format(port=port, other=other_port, role=role)
        super().__init__(folder, settings=settings, protocols="OPENWIRE,CORE", port=port)
        text = self._configuration.read_text(encoding="utf-8")
        self._configuration.write_text(text.replace("<name>interop</name>", f"<name>{role}</name>"), encoding="utf-8")


def replicated_pair(folder: Path) -> tuple[Replicated, Replicated]:
    """The two, of which the second has everything that the first has."""
    ports = free_port(), free_port()
    primary = Replicated(folder / "primary", "primary", ports[1], ports[0])
    backup = Replicated(folder / "backup", "backup", ports[0], ports[1])
    primary.start()
    backup.start()
    until(lambda: primary.ask("replicated") == "true", "the backup does not replicate")
    return primary, backup


BROKERS: Final[dict[str, type[Classic | Artemis]]] = {"classic": Classic, "artemis": Artemis}
