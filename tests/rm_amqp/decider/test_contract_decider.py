"""This module runs the contract suite for deciders over DecidingBroker, against the embedded broker with local
transactions only.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from xabridge.testing.contract.deciding import TestDeciding

__all__ = ["TestDeciding"]

VARIANTS = [
    pytest.param("", id="plain"),
    pytest.param("&prefetch=10", id="prefetch", marks=[pytest.mark.slow, pytest.mark.long]),
]


@pytest.fixture(params=VARIANTS)
def harness(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[DecidingBrokerHarness]:
    """The variants."""
    harness = DecidingBrokerHarness(broker, str(abs(hash(request.node.name))), request.param, slots=2)
    yield harness
    harness.close()
