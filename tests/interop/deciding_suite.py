"""Every broker of another project that decides runs this: import all of it into a test module that has the fixture
`harness`."""

from __future__ import annotations

import pytest

from rm_amqp import Message
from tests.rm_amqp.decider.deciding import DISCHARGE, DecidingBrokerHarness, ForeignHarness
from tm import OutcomeUnknown, RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import ResourceUnavailable
from xabridge.testing.contract.deciding import RECORD, Decider, TestDeciding
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

__all__ = [
    "Site",
    "TestDeciding",
    "test_recovery_finishes_what_is_unknown",
    "test_the_broker_is_killed_at_the_discharge",
    "test_what_is_rolled_back_comes_again",
]


class Site:
    """A manager over such a broker and a database with two phases."""

    def __init__(self, harness: DecidingBrokerHarness) -> None:
        self.harness = harness
        self.store = ReferenceStore("shop")
        self.client = harness.new()
        self.manager = TransactionManager(
            "site-1",
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


@pytest.mark.parametrize("before", [pytest.param(True, marks=pytest.mark.long), False])
def test_the_broker_is_killed_at_the_discharge(harness: ForeignHarness, *, before: bool) -> None:
    client = Decider(harness)
    xid = client.ended("key")
    harness.weather[client.rm].strike(DISCHARGE, before=before)  # type: ignore[index]
    with pytest.raises(ResourceUnavailable):
        client.decide(xid)
    harness.restart()
    client.reopen()
    assert client.settle(xid) == (None if before else RECORD)
    assert harness.committed() == (set() if before else {"key"})


def test_what_is_rolled_back_comes_again(harness: ForeignHarness) -> None:
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
def test_recovery_finishes_what_is_unknown(harness: ForeignHarness, *, before: bool) -> None:
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
