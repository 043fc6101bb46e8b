"""This module holds the fixtures of the tests against Qpid Broker-J."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker_j import BrokerJ
from tests.rm_amqp.amqp010.client import QpidClient


@pytest.fixture
def queue(request: pytest.FixtureRequest, broker_j: BrokerJ) -> str:
    """A queue of the test's own."""
    name = f"q-{abs(hash(request.node.nodeid))}"
    broker_j.make(name, f"{name}-other")
    return name


@pytest.fixture
def broker(broker_j: BrokerJ) -> BrokerJ:
    """The broker, as the suite of messages calls it."""
    return broker_j


@pytest.fixture
def client(broker_j: BrokerJ) -> Iterator[QpidClient]:
    """A client of the broker."""
    client = QpidClient(broker_j.url)
    yield client
    client.rm.close("", 3)
