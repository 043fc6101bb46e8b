"""These tests use Qpid Broker-J over AMQP 1.0, with its local transactions, as the broker that decides.

They run the contract suite for deciders over it, and a manager that moves messages into a database while the test kills
the broker.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rm_amqp import DecidingBroker
from tests.interop.test_artemis import Site
from tests.rm_amqp.decider.deciding import DISCHARGE, DecidingBrokerHarness
from tm import OutcomeUnknown, RolledBack
from xa import ResourceUnavailable
from xabridge.testing.contract.deciding import RECORD, Decider, TestDeciding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.broker_j import BrokerJ
    from xa import ResourceManager

__all__ = ["TestDeciding"]


SLOTS = 2


class BrokerJHarness(DecidingBrokerHarness):
    """The same as with the embedded broker, as far as one can look into this one. Queues are not made by themselves."""

    def __init__(self, broker: BrokerJ, name: str, options: str = "") -> None:
        super().__init__(broker, name, f"&slots={SLOTS}{options}")
        broker.make(
            self.queue, f"{self.queue}-answers", self.tokens, *(f"{self.tokens}.{slot}" for slot in range(SLOTS + 1))
        )
        broker.make("onlookers", "onlookers.0", "onlookers.1")

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        rm.drop()

    def leaks(self) -> list[str]:
        tokens = [self.token(slot) for slot in range(SLOTS)]
        return [f"{token.decided} and {token.fenced}" for token in tokens if token.decided or token.fenced]


@pytest.fixture
def harness(request: pytest.FixtureRequest, broker_j: BrokerJ) -> Iterator[BrokerJHarness]:
    """Queues of its own for each test."""
    harness = BrokerJHarness(broker_j, f"{os.getpid()}-{abs(hash(request.node.name))}")
    yield harness
    harness.close()


def test_what_was_decided_outlives_the_broker(harness: BrokerJHarness, broker_j: BrokerJ) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    client.decide(xid)
    broker_j.kill()
    broker_j.start()
    client.reopen()
    assert client.settle(xid) == RECORD
    assert harness.committed() == {"key"}


@pytest.mark.parametrize("before", [True, False])
def test_the_broker_is_killed_at_the_discharge(harness: BrokerJHarness, broker_j: BrokerJ, *, before: bool) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    harness.weather[client.rm].strike(DISCHARGE, before=before)  # type: ignore[index]
    with pytest.raises(ResourceUnavailable):
        client.decide(xid)
    broker_j.kill()
    broker_j.start()
    client.reopen()
    assert client.settle(xid) == (None if before else RECORD)
    assert harness.committed() == (set() if before else {"key"})


def test_messages_become_rows_and_answers(harness: BrokerJHarness) -> None:
    site = Site(harness)
    site.put("1", "2", "3")
    assert [site.move() for _ in range(3)] == ["1", "2", "3"]
    assert sorted(site.store.data) == ["1", "2", "3"]
    assert site.answers() == ["1", "2", "3"]
    assert harness.committed() == set()
    site.manager.close()


def test_a_short_bank(harness: BrokerJHarness, broker_j: BrokerJ) -> None:
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
            broker_j.kill()
            broker_j.start()
        for _ in range(20):
            if site.manager.recover().clean:
                break
    done = sorted(site.store.data, key=int)
    assert len(done) >= 6
    assert sorted(site.answers(), key=lambda body: int(str(body))) == done
    assert sorted([*done, *harness.committed()], key=int) == orders
    assert not site.store.in_doubt
    site.manager.close()
