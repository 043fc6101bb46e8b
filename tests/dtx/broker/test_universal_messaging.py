"""These tests follow the tables of Universal Messaging's guide to AMQP transactions: which capabilities are advertised,
and what becomes of a message that can't be published. What its realm does not do (several transactions per session,
several sessions per transaction, distributed ones) this resource does and advertises.
"""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.broker.endpoint.link import FATAL
from dtx.protocol.capabilities import DISTRIBUTED, END_AND_PREPARE, LOCAL, MULTI_SSNS, MULTI_TXNS
from tests.dtx.broker.peer import Coordinator, Peer, World, closed, condition_of, told

PLAIN = {LOCAL, MULTI_TXNS, MULTI_SSNS}


@pytest.mark.parametrize(
    ("desired", "advertised"),
    [
        ((LOCAL,), PLAIN),
        (("amqp:promotable-transactions",), PLAIN),
        ((LOCAL, DISTRIBUTED), PLAIN | {DISTRIBUTED, END_AND_PREPARE}),
    ],
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


def test_a_node_that_is_not_found_is_fatal_and_the_link_is_closed(
    world: World, peer: Peer, control: Coordinator
) -> None:
    """A dynamic node is gone while a message is on its way to it. A resource limit is transient: the link goes on
    (`test_chapter_posting.py`)."""
    node = peer.receiver(None)
    sender = peer.sender(str(node.remote_source.address))
    txn_id = control.declare()
    world.close(node)
    named, outcome = told(peer.post(sender, "late", txn_id))
    assert (named, outcome.descriptor) == (txn_id, Delivery.REJECTED)
    assert str(outcome.value[0].value[0]) == Condition.NOT_FOUND
    assert condition_of(sender).condition == Condition.NOT_FOUND
    assert closed(sender)
    control.discharge(txn_id)
    assert {Condition.UNAUTHORIZED, Condition.INTERNAL_ERROR, Condition.NOT_FOUND} == FATAL
