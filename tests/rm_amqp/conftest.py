"""These fixtures give the tests of the resource manager a broker for each module, and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rm_amqp.client import Client
from tests.rm_amqp.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Iterator[Callable[..., Client]]:
    """Makes clients of the broker; at the end of the test nothing is left of them."""
    clients: list[Client] = []

    def make(options: str = "", *, dynamic: bool = False, flags: int | None = None) -> Client:
        client = Client(broker.address, options, dynamic=dynamic, flags=flags)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.rm.drop()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    """One client."""
    return connect()


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue that no other test uses."""
    return f"q-{abs(hash(request.node.nodeid))}"
