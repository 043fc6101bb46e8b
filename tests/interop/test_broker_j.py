"""These tests use Qpid Broker-J over AMQP 1.0, with its local transactions, as the broker that decides.

They run the contract suite for deciders over it, and a manager that moves messages into a database while the test kills
the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.broker_j import BrokerJ
from tests.interop.deciding_suite import *  # noqa: F403 — the suite
from tests.interop.deciding_suite import Site
from tests.rm_amqp.decider.deciding import DISCHARGE, ForeignHarness
from tm import OutcomeUnknown, RolledBack

SLOTS = 2


class BrokerJHarness(ForeignHarness):
    """Queues are not made by themselves."""

    def __init__(self, broker: BrokerJ, name: str, options: str = "") -> None:
        super().__init__(broker, name, options, slots=SLOTS)
        tokens = (f"{self.tokens}.{slot}" for slot in range(SLOTS + 1))
        onlookers = ("onlookers", "onlookers.0", "onlookers.1")
        broker.make(self.queue, f"{self.queue}-answers", self.tokens, *tokens, *onlookers)


@pytest.fixture
def harness(request: pytest.FixtureRequest, broker_j: BrokerJ) -> Iterator[BrokerJHarness]:
    """Queues of its own for each test."""
    harness = BrokerJHarness(broker_j, f"{os.getpid()}-{abs(hash(request.node.name))}")
    yield harness
    harness.close()


@pytest.mark.long  # deciding_suite.py has each of these by itself
def test_a_short_bank(harness: BrokerJHarness) -> None:
    """Messages become rows and answers, one each, while the broker is killed again and again."""
    site = Site(harness)
    orders = [str(number) for number in range(20)]
    site.put(*orders)
    for number in range(9):
        if number % 3 == 2:
            harness.weather[site.client].strike(DISCHARGE, before=bool(number % 2))
        try:
            site.move()
        except (OutcomeUnknown, RolledBack):
            harness.restart()
        for _ in range(20):
            if site.manager.recover().clean:
                break

    done = sorted(site.store.data, key=int)
    assert len(done) >= 6
    assert sorted(site.answers(), key=lambda body: int(str(body))) == done
    assert sorted([*done, *harness.committed()], key=int) == orders
    assert not site.store.in_doubt
    site.manager.close()
