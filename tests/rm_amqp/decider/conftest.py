"""This fixture gives the tests of the deciding broker a place of decisions of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rm_amqp.decider.deciding import DecidingBrokerHarness, NetworkHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.network import Network


@pytest.fixture
def harness(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[DecidingBrokerHarness]:
    """Queues of its own at the module's broker, with as many slots as the module says."""
    slots = getattr(request.module, "SLOTS", 8)
    harness = DecidingBrokerHarness(broker, str(abs(hash(request.node.name))), slots=slots)
    yield harness
    harness.close()


@pytest.fixture
def timeless(request: pytest.FixtureRequest) -> Iterator[NetworkHarness]:
    """The same over a network in memory, where no time passes while somebody waits."""
    harness = NetworkHarness(Network(), "place", slots=getattr(request.module, "SLOTS", 8))
    yield harness
    harness.close()
