"""These tests follow the tables of Universal Messaging's guide to AMQP transactions: which capabilities are advertised,
and what becomes of a message that can't be published. What its realm does not do (several transactions per session,
several sessions per transaction, distributed ones) this resource does and advertises.
"""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.mechanisms import Identity
from dtx.broker.access.permissions import Permissions, Rule
from dtx.broker.endpoint.link import FATAL
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.capabilities import DISTRIBUTED, END_AND_PREPARE, LOCAL, MULTI_SSNS, MULTI_TXNS
from tests.dtx.broker.peer import Coordinator, Peer, World, closed, condition_of, told

PLAIN = {LOCAL, MULTI_TXNS, MULTI_SSNS}


@pytest.mark.parametrize(
    ("desired", "advertised"), [((LOCAL,), PLAIN), ((LOCAL, DISTRIBUTED), PLAIN | {DISTRIBUTED, END_AND_PREPARE})]
)
def test_capabilities_are_advertised_truthfully(peer: Peer, desired: tuple[str, ...], advertised: set[str]) -> None:
    """Two transactions on one session, and one transaction across two sessions, work where they are advertised."""
    control = peer.coordinator(desired)
    capabilities: Any = control.link.remote_target.capabilities
    capabilities.rewind()
    capabilities.next()
    assert set(map(str, capabilities.get_py_array().elements)) == advertised
    first, second = control.declare(), control.declare()
    here, there = peer.sender("q"), peer.sender("q", peer.new_session())
    peer.post(here, "first, one session", first)
    peer.post(here, "second", second)
    peer.post(there, "first, another session", first)
    control.discharge(second, fail=True)
    assert peer.drained("q") == []
    control.discharge(first)
    assert peer.drained("q") == ["first, one session", "first, another session"]


def error_of(delivery: Delivery, txn_id: bytes) -> str:
    """The condition in the rejected outcome that a delivery has in a transaction."""
    named, outcome = told(delivery)
    assert named == txn_id
    assert outcome.descriptor == Delivery.REJECTED
    return str(outcome.value[0].value[0])


def test_a_resource_limit_is_transient_and_the_link_goes_on() -> None:
    world = World(Settings(queue_defaults=QueueSettings(max_depth=1)))
    peer = world.connect()
    control, sender = peer.coordinator(), peer.sender("q")
    txn_id = control.declare()
    assert told(peer.post(sender, "first", txn_id))[1] is not None
    refused = peer.post(sender, "second", txn_id)
    assert error_of(refused, txn_id) == Condition.RESOURCE_LIMIT
    assert not closed(sender)
    control.discharge(txn_id)
    assert peer.bodies(peer.receiver("q", 10)) == ["first"]
    assert peer.post(sender, "third").remote_state == Delivery.ACCEPTED


def test_a_node_that_is_not_found_is_fatal_and_the_link_is_closed(
    world: World, peer: Peer, control: Coordinator
) -> None:
    """A dynamic node is gone while a message is on its way to it."""
    node = peer.receiver(None)
    sender = peer.sender(str(node.remote_source.address))
    txn_id = control.declare()
    node.close()
    world.pump()
    refused = peer.post(sender, "late", txn_id)
    assert error_of(refused, txn_id) == Condition.NOT_FOUND
    assert condition_of(sender).condition == Condition.NOT_FOUND
    assert closed(sender)
    control.discharge(txn_id)


def test_unauthorized_access_is_fatal_and_the_link_is_closed() -> None:
    world = World(permissions=Permissions({"alice": Rule(produce=("mine",), consume=("mine",))}))
    peer: Peer = world.connect("alice")
    for link in (peer.sender("theirs"), peer.receiver("theirs", 1)):
        assert closed(link)
        assert condition_of(link).condition == Condition.UNAUTHORIZED
    assert "theirs" not in world.container.resource.queues
    assert peer.server.identity == Identity("alice")


def test_what_is_fatal() -> None:
    """The guide has a table of them; a resource limit is transient."""
    assert {Condition.UNAUTHORIZED, Condition.INTERNAL_ERROR, Condition.NOT_FOUND} == FATAL
