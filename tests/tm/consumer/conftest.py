"""These fixtures give the tests of consumers a broker, and a stall for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_disk import new_folder
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.consumer.stall import Stall


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """One broker, whose queues keep what is delivered in vain longer than any consumer here."""
    broker = EmbeddedBroker(new_folder("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def stall(broker: EmbeddedBroker, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stall]:
    """A stall of this test's own. Nothing is left of it at the end."""
    stall = Stall(broker, f"q-{abs(hash(request.node.nodeid))}", tmp_path)
    with stall.manager:
        yield stall
    assert stall.broker.left() == []
