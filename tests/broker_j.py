"""This module starts Qpid Broker-J in a process of its own, on a persistent store. Maven fetches its jars the first
time; without Maven or Java the tests that need it are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from rm_amqp.amqp010.channel import Channel, connect
from rm_amqp.amqp010.session import SessionState
from rm_amqp.amqp010.settings import parse
from rm_amqp.amqp010.structs import QueueDeclare
from rm_amqp.amqp010.work import Work
from tests.java_process import JavaProcess, java_program, maven_jars
from xa import Xid
from xabridge.testing.ports import free_port

SOURCES = Path(__file__).parent / "interop" / "broker_j"
CERTIFICATES = Path(__file__).parent / "interop" / "certificates"
PATIENCE_S = 20
GROUP = "broker-j"
"""The xdist group of the tests that share one broker."""


def jars() -> Path:
    """Where Broker-J is; the test is skipped where it can't be had."""
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            pytest.skip(f"Qpid Broker-J needs {program}, which is not installed")
    return maven_jars(SOURCES / "pom.xml")


class BrokerJ(JavaProcess):
    """One broker, at fixed ports. It can be stopped as well."""

    kind = "Broker-J"

    def __init__(self, lib: Path, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.named_port, self.tls_port = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._lib = lib
        self._configuration = folder / "broker.json"
        text = (SOURCES / "broker.json").read_text(encoding="utf-8")

        for name, value in {
            "CERTIFICATES": CERTIFICATES,
            "NAMED_PORT": self.named_port,
            "TLS_PORT": self.tls_port,
            "PORT": self.port,
            "FOLDER": folder,
        }.items():
            text = text.replace(f"@{name}@", str(value))
        self._configuration.write_text(text, encoding="utf-8")
        self.start()

    @property
    def url(self) -> str:
        """The open string of a client without a name."""
        return f"amqp010://{self.address}/"

    def command(self) -> Sequence[str]:
        program = java_program(SOURCES / "Broker.java", self._lib)
        return [*program, str(self._configuration), str(self.folder)]

    def freeze(self) -> None:
        """It answers nothing until it is thawed."""
        os.kill(self.pid, signal.SIGSTOP)
        while any(not _is_stopped(thread) for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    def thaw(self) -> None:
        """It goes on."""
        os.kill(self.pid, signal.SIGCONT)

    def connect(self) -> Channel:
        """A channel of the test's own."""
        return connect(parse(self.url), time.monotonic() + PATIENCE_S)

    def make(self, *queues: str, durable: bool = True) -> None:
        """Queues, where they are not there yet."""
        channel = self.connect()
        for queue in queues:
            number = channel.send(QueueDeclare(queue, durable=durable), sync=True)
            channel.wait_complete(number, time.monotonic() + PATIENCE_S)
        channel.close(time.monotonic() + 2)

    def bodies(self, queue: str) -> list[bytes]:
        """The bodies of the messages that are available, as octets."""
        channel = self.connect()
        work = Work(Xid(1, b"nobody's"), channel)
        found = [transfer.body for page in work.browse(queue, time.monotonic() + PATIENCE_S) for transfer in page]
        channel.close(time.monotonic() + 2)
        return found

    def wait_until_gone(self, names: Iterable[bytes]) -> None:
        """Waits until the sessions of these names, whose connections were lost, are gone."""
        until = time.monotonic() + PATIENCE_S
        for name in names:
            while not self._is_free(name):
                assert time.monotonic() < until, "the broker does not notice that a connection was lost"
                time.sleep(0.01)

    def _is_free(self, name: bytes) -> bool:
        """Whether nobody has a session of this name: the broker attaches a second one only then."""
        channel = self.connect()
        deadline = time.monotonic() + PATIENCE_S
        first = channel.session
        first.detach()
        channel.pump(lambda: first.state is SessionState.ENDED, deadline)
        second = channel.connection.attach(name)
        channel.pump(lambda: second.state is not SessionState.ATTACHING, deadline)
        channel.drop()
        return second.state is SessionState.ATTACHED


def _is_stopped(thread: Path) -> bool:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0] == "T"
