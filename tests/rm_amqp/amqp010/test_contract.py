"""This module runs the contract suite over QpidResource against Qpid Broker-J."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet

import pytest

from rm_amqp import Message
from rm_amqp.amqp010.channel import Channel, connect
from rm_amqp.amqp010.driver import QpidDriver
from rm_amqp.amqp010.resource import QpidResource
from rm_amqp.amqp010.settings import Settings010
from tests.broker_j import BrokerJ
from tests.rm_db.proxy import Proxy
from xa import Registrar, ResourceManager
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite

GO_DOWN = {
    "test_while_the_resource_can_not_be_reached",
    "test_a_diagnosis_of_what_is_down_or_wrong_advises",
}
"""The tests in which the broker can't be reached for a while."""


class Client(QpidResource):
    """One client, whose channels the harness knows."""

    def __init__(self, registrar: Registrar) -> None:
        self.channels: list[Channel] = []
        super().__init__(registrar, QpidDriver(connect=self.connect))

    def connect(self, settings: Settings010, deadline: float, clock: Callable[[], float]) -> Channel:
        """A channel, noted."""
        channel = connect(settings, deadline, clock)
        self.channels.append(channel)
        return channel


class QpidHarness:
    """One broker for the session; each test has queues of its own. It goes down behind a proxy that is not there for a
    while, as it takes seconds to start; `test_prepared_branches_outlive_the_broker` kills it."""

    wrong_open_string = "amqp010://127.0.0.1:5672/?colour=red"
    capabilities = Capabilities(
        branches_shared=False, heuristics=False, votes_read_only=False, expires=False, format_ids=False
    )

    def __init__(self, broker: BrokerJ, name: str, *, goes_down: bool) -> None:
        self.broker = broker
        self.proxy = Proxy(broker.url) if goes_down else None
        self.queue = f"keys-{name}"
        self.nothing = f"nothing-{name}"
        broker.make(self.queue, self.nothing)
        self.open_string = f"{self.proxy.url if self.proxy else broker.url}?timeout=20"
        self.clients: list[Client] = []

    def new(self, registrar: Registrar) -> Client:
        client = Client(registrar)
        self.clients.append(client)
        return client

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).send(self.queue, Message(key))

    def read(self, rm: ResourceManager, rmid: int) -> None:
        list(rm.session(rmid).browse(self.nothing))

    def committed(self) -> AbstractSet[str]:
        return {body.decode() for body in self.broker.bodies(self.queue)}

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, Client)
        names = [channel.session_name for channel in rm.channels]
        rm.drop()
        self.clients.remove(rm)
        self.broker.wait_until_gone(names)

    def disconnect(self, rm: ResourceManager) -> None:
        assert isinstance(rm, Client)
        names = [channel.session_name for channel in rm.channels]
        for channel in rm.channels:
            channel.break_off()
        self.broker.wait_until_gone(names)

    def go_down(self) -> None:
        assert self.proxy is not None
        names = [channel.session_name for client in self.clients for channel in client.channels]
        self.proxy.close()
        self.broker.wait_until_gone(names)

    def come_back(self) -> None:
        assert self.proxy is not None
        self.proxy = Proxy(self.broker.url, self.proxy.port)

    def narrow(self) -> None:
        self.open_string = f"{self.broker.url}?timeout=5&channels=1"

    def leaks(self) -> list[str]:
        branches = [branch for client in self.clients for branch in client.driver.branches]
        left = [f"{branch.works} associations" for branch in branches if branch.works]
        return left + [f"{client.outstanding} handles" for client in self.clients if client.outstanding]

    def close(self) -> None:
        for client in self.clients:
            client.drop()
        if self.proxy is not None:
            self.proxy.close()


@pytest.fixture
def harness(request: pytest.FixtureRequest, broker_j: BrokerJ) -> Iterator[QpidHarness]:
    """Queues of its own for each test."""
    goes_down = request.node.originalname in GO_DOWN
    harness = QpidHarness(broker_j, str(abs(hash(request.node.name))), goes_down=goes_down)
    yield harness
    harness.close()
