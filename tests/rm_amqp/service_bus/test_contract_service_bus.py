"""This module runs the contract suite for deciders over DecidingBroker, against a simulated Service Bus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from rm_amqp import DecidingBroker, Message
from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from tests.rm_amqp.service_bus.namespace import Namespace
from tests.rm_amqp.service_bus.server import TOPIC, ServiceBusServer
from xa import ResourceManager
from xabridge.testing.contract.deciding import TestDeciding

__all__ = ["TestDeciding"]

SLOTS = 2


class ServiceBusHarness(DecidingBrokerHarness):
    """One server for the module; each test has subscriptions of its own."""

    def __init__(self, server: ServiceBusServer, name: str) -> None:
        super().__init__(server, name, slots=SLOTS)
        self.server = server
        server.subscriptions(self.queue)
        server.tokens(self.tokens, SLOTS)
        self.open_string = server.open_string(f"&timeout=20&token_queue={self.tokens}&slots={SLOTS}")

    def every(self, queues: Sequence[str]) -> list[list[object]]:
        def look(namespace: Namespace) -> list[list[object]]:
            entities = [namespace.entity(f"{TOPIC}/Subscriptions/{queue}") for queue in queues]
            return [[Message.from_octets(stored.octets).body for stored in entity.messages] for entity in entities]

        return self.server.inside(look)

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        self.server.cut(lambda container: container.startswith(rm.container))

    def disconnect(self, rm: ResourceManager) -> None:
        self.crash(rm)

    def left(self) -> list[str]:
        return self.server.inside(lambda namespace: [f"transaction {each!r}" for each in namespace.transactions])


@pytest.fixture(scope="module")
def server() -> Iterator[ServiceBusServer]:
    """One server."""
    server = ServiceBusServer()
    yield server
    server.stop()


@pytest.fixture
def harness(request: pytest.FixtureRequest, server: ServiceBusServer) -> Iterator[ServiceBusHarness]:
    """What the suite knows of it."""
    harness = ServiceBusHarness(server, str(abs(hash(request.node.name)) % 10**12))
    yield harness
    harness.close()
