"""A broker that nobody here wrote, as the one that decides: ActiveMQ Artemis, which has local transactions only.

The contract suite for deciders; a manager that moves messages into a database; the broker killed in between.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from rm_amqp import AmqpResource, DecidingBroker, Message
from tests.contract.client import ScriptedRegistrar
from tests.contract.deciding import RECORD, Decider, TestDeciding
from tests.interop.artemis_broker import Artemis, jars
from tests.rm_amqp.deciding import DISCHARGE, DecidingBrokerHarness
from tm import OutcomeUnknown, RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import ResourceError, ResourceUnavailable
from xa.reference import ReferenceFactory, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import ResourceManager

__all__ = ["TestDeciding"]

pytestmark = [pytest.mark.slow]
RMID = 7


class ArtemisHarness(DecidingBrokerHarness):
    """The same as with the embedded broker, as far as one can look into this one."""

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        rm.drop()

    def left(self) -> list[str]:
        return []


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """One broker."""
    broker = Artemis(jars(), tmp_path_factory.mktemp("artemis"))
    yield broker
    broker.kill()


@pytest.fixture
def harness(request: pytest.FixtureRequest, artemis: Artemis) -> Iterator[ArtemisHarness]:
    """Queues of its own for each test."""
    harness = ArtemisHarness(artemis, f"{os.getpid()}-{abs(hash(request.node.name))}")
    yield harness
    harness.close()


def test_it_has_no_two_phases_and_the_error_says_what_to_do(artemis: Artemis) -> None:
    rm = AmqpResource(ScriptedRegistrar())
    with pytest.raises(ResourceError) as told:
        rm.open(f"amqp://{artemis.address}/", RMID)
    assert 'mode = "decider"' in str(told.value)


def test_what_was_decided_outlives_the_broker(harness: ArtemisHarness, artemis: Artemis) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    client.decide(xid)
    artemis.kill()
    artemis.start()
    client.reopen()
    assert client.settle(xid) == RECORD
    assert harness.committed() == {"key"}


@pytest.mark.parametrize("before", [True, False])
def test_the_broker_is_killed_at_the_discharge(harness: ArtemisHarness, artemis: Artemis, *, before: bool) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    harness.weather[client.rm].strike(DISCHARGE, before=before)  # type: ignore[index]
    with pytest.raises(ResourceUnavailable):
        client.decide(xid)
    artemis.kill()
    artemis.start()
    client.reopen()
    assert client.settle(xid) == (None if before else RECORD)
    assert harness.committed() == (set() if before else {"key"})


class Site:
    """A manager over Artemis, which decides, and a database with two phases."""

    def __init__(self, harness: ArtemisHarness) -> None:
        self.harness = harness
        self.store = ReferenceStore("shop")
        self.client = harness.new()
        self.manager = TransactionManager(
            "artemis-1",
            None,
            {
                "broker": ResourceConfig(harness.open_string, "decider", factory=lambda _: self.client),
                "shop": ResourceConfig(self.store.url, factory=ReferenceFactory(self.store)),
            },
            background=False,
        )

    def put(self, *bodies: str) -> None:
        """Messages to work on."""
        with self.manager.begin() as tx:
            for body in bodies:
                tx["broker"].send(self.harness.queue, Message(body))

    def move(self) -> str:
        """One message becomes a row and an answer."""
        with self.manager.begin() as tx:
            body = str(tx["broker"].receive(self.harness.queue, 10).body)
            tx["shop"].write(body, True)
            tx["broker"].send(self.harness.queue + "-answers", Message(body))
        return body

    def answers(self) -> list[object]:
        """What was sent."""
        return self.harness.bodies(self.harness.queue + "-answers")


def test_messages_become_rows_and_answers(harness: ArtemisHarness) -> None:
    site = Site(harness)
    site.put("1", "2", "3")
    assert [site.move() for _ in range(3)] == ["1", "2", "3"]
    assert sorted(site.store.data) == ["1", "2", "3"]
    assert site.answers() == ["1", "2", "3"]
    assert harness.committed() == set()
    site.manager.close()


def test_what_is_rolled_back_comes_again(harness: ArtemisHarness) -> None:
    site = Site(harness)
    site.put("1", "2")
    with pytest.raises(RolledBack), site.manager.begin() as tx:
        assert tx["broker"].receive(harness.queue, 10).body == "1"
        tx["shop"].write("1", True)
        tx["broker"].send(harness.queue + "-answers", Message("1"))
        tx.set_rollback_only("the test wants it")
    assert site.answers() == []
    assert [site.move() for _ in range(2)] == ["1", "2"]
    assert sorted(site.store.data) == ["1", "2"]
    site.manager.close()


@pytest.mark.parametrize("before", [True, False])
def test_recovery_finishes_what_is_unknown(harness: ArtemisHarness, *, before: bool) -> None:
    site = Site(harness)
    site.put("1")
    harness.weather[site.client].strike(DISCHARGE, before=before)
    with pytest.raises(OutcomeUnknown):
        site.move()
    for _ in range(20):
        if site.manager.recover().clean:
            break
    done = [] if before else ["1"]
    assert sorted(site.store.data) == done
    assert site.answers() == done
    assert harness.committed() == ({"1"} if before else set())
    assert not site.store.in_doubt
    site.manager.close()
