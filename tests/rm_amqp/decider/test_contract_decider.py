"""This module runs the contract suite for deciders over DecidingBroker, against the embedded broker with local
transactions only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from xabridge.testing.contract.deciding import TestDeciding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rm_amqp.embedded import EmbeddedBroker

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
