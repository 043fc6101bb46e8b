"""These tests move messages from Qpid Broker-J to the broker of this project, with a client in a process of its own.
At steps of the transaction in turn they kill with SIGKILL the client, one of the brokers, or all three at the same
moment.

After recovery every message must be at one of the two brokers, once, and the outcomes that the application got must be
true.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.broker_j import BrokerJ, jars
from tests.crash.test_amqp_kill import COUNT, STEPS, Field
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID
from tests.simulation.seeds import EVERY_POINT

SOME = ("after force",)
"""The decision is in the log, and neither broker has it."""
TIMEOUTS = "?timeout=10&connect_timeout=2&branch_timeout=10"


class QpidSite:
    """Broker-J, which somebody else may kill."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.deaths = 0
        self.broker = BrokerJ(jars(), folder)
        self.broker.make("x", "y")
        self.address = f"{self.broker.url}{TIMEOUTS}"

    @property
    def pid(self) -> str:
        """Whom to kill."""
        return str(self.broker.pid)

    def come_back(self) -> None:
        """Starts it again, if it was killed."""
        if not self.broker.running:
            self.broker.kill()
            self.broker.start()
            self.deaths += 1

    def remove(self) -> None:
        """At the end."""
        self.broker.kill()

    @contextmanager
    def client(self) -> Iterator[QpidClient]:
        """Somebody who looks."""
        client = QpidClient(self.broker.url)
        try:
            yield client
        finally:
            client.rm.close("", RMID)


class TwoKinds(Field):
    """The source is Broker-J."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, source=QpidSite(folder / "in"))

    def run(self, point: str, *victims: str) -> int:
        deaths, source = self.source.deaths, self.source
        code = super().run(point, *victims)
        while "in" in victims and code in {0, -9} and source.deaths == deaths:  # a Java machine takes a moment to die
            time.sleep(0.01)
            source.come_back()
        return code


@pytest.fixture
def field(tmp_path: Path) -> Iterator[TwoKinds]:
    with closing(TwoKinds(tmp_path)) as field:
        yield field


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "victims",
    [
        pytest.param(("in", "out", "self"), id="all"),
        pytest.param(("self",), id="client", marks=pytest.mark.long),  # alone
        pytest.param(("in",), id="Broker-J", marks=pytest.mark.long),
        pytest.param(("out",), id="ours", marks=pytest.mark.long),
    ],
)
def test_somebody_is_killed(field: TwoKinds, victims: tuple[str, ...]) -> None:
    for step in STEPS if EVERY_POINT else SOME:
        field.feed(step)
        assert field.run(f"{step} {COUNT}", *victims) == (-9 if "self" in victims else 0), step
        field.recover(step)
    field.check()
