"""These tests count what a backlog costs those who have nothing to do with it: the calls of Python functions in which
another queue's messages are posted, dispatched and settled, and time passes.

XABRIDGE_BACKLOG says how many messages wait (in a long run: 1,000,000). Calls are counted, because time differs
from run to run.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from proton import Delivery

from dtx.store.contract import StoredMessage, StoredQueue
from dtx.store.memory import Disk
from tests.dtx.broker.peer import Peer, World

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

BACKLOG: Final = int(os.environ.get("XABRIDGE_BACKLOG", "20000"))
MESSAGES: Final = 20
FIRST: Final = 1000
OCTETS: Final = b"\0Sw\xa1\1x"
FAR_MS: Final = 10**13
KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "delayed": {"due_ms": FAR_MS},
    "expiring": {"expires_ms": FAR_MS},
    "of one group": {"group": "g"},
}


def waiting(count: int, **facts: Any) -> World:
    """A broker that has just started, with so many messages in one queue."""
    disk = Disk()
    disk.queues[1] = StoredQueue(1, "backlog", "")
    facts = {"expires_ms": 0, **facts}
    for number in range(FIRST, FIRST + count):
        disk.messages[number] = StoredMessage(number, 1, number, len(OCTETS), 0, **facts)
        disk.pieces[number] = {0: OCTETS}
    return World(disk=disk)


def calls(work: Callable[[], object]) -> int:
    """How many Python functions it calls."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def elsewhere(world: World, peer: Peer) -> Callable[[], None]:
    """Messages of another queue, and two seconds."""
    sender, receiver = peer.sender("q"), peer.receiver("q", 100)

    def work() -> None:
        for number in range(MESSAGES):
            peer.post(sender, number)
            assert peer.bodies(receiver) == [number]
        world.pass_time(1)
        world.pass_time(1)

    work()
    return work


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backlog_costs_nobody_else_anything(kind: str) -> None:
    """With a consumer that holds one message of it, and one that waits for more."""
    cost = []
    for count in (10, BACKLOG):
        world = waiting(count, **KINDS[kind])
        one, two = world.connect(), world.connect()
        held = one.receiver("backlog", 1)
        assert (one.take(held) is None) is (kind == "delayed")
        two.receiver("backlog", 5)
        cost.append(calls(elsewhere(world, world.connect())))
    assert cost[1] <= cost[0] + 100, cost


@pytest.mark.timeout(600)
def test_a_group_goes_on_from_one_consumer_to_the_next_whatever_waits_behind() -> None:
    cost = []
    for count in (10, BACKLOG):
        world = waiting(count, group="g")
        one, two = world.connect(), world.connect()
        theirs = [(one, one.receiver("backlog")), (two, two.receiver("backlog"))]

        def turn(world: World = world, theirs: Any = theirs) -> None:
            for peer, receiver in theirs * 2:
                world.more(receiver, 1)
                delivery, _ = peer.take(receiver)
                peer.settle(delivery, Delivery.ACCEPTED)

        cost.append(calls(turn))
    assert cost[1] <= cost[0] + 100, cost
