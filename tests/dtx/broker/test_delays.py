"""These tests cover messages that are to be delivered later: who sees them when, in which order, and what a restart, a
transaction and a clock that is set do to it."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, symbol

from dtx.amqp.messages import DELIVERY_TIME
from dtx.protocol.commands import Commit, Rollback
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, manage, post, queue_told, refused_with

NOW_MS = 1_000_000_000


@pytest.mark.parametrize("said", [{"delay": 5000}, {"at": NOW_MS + 5000}])
@pytest.mark.parametrize("restart", [False, True])
def test_nobody_sees_it_before_its_time(world: World, peer: Peer, said: dict[str, Any], *, restart: bool) -> None:
    assert post(peer, "later", **said).remote_state == Delivery.ACCEPTED
    post(peer, "now")
    if restart:
        world.pass_time(2)
        world = world.crash()
        peer = world.connect()
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == ["now"]
    assert peer.drained("q") == []
    told = queue_told(peer)
    assert (told["depth"], told["delayed"], told["held"]) == (1, 1, 0)
    (told,) = manage(peer, operation="messages", queue="q")
    assert (told["state"], told["due"]) == ("delayed", NOW_MS + 5000)
    world.pass_time(4.9 - 2 * restart)
    assert peer.bodies(receiver) == []
    world.pass_time(0.2)
    assert peer.bodies(receiver) == ["later"]
    told = queue_told(peer)
    assert (told["depth"], told["delayed"], told["held"], told["octets"]) == (0, 0, 0, 0)


def test_it_is_seen_by_those_who_have_passed_it(world: World, peer: Peer) -> None:
    """A browser that waits and a consumer with a selector have read the queue to its end, and hear of it."""
    post(peer, "later", delay=5000, properties={"n": 1})
    post(peer, "now", properties={"n": 1})
    browser = peer.receiver("q", 10, browse=True)
    assert peer.bodies(browser) == ["now"]
    world.pass_time(6)
    assert peer.bodies(browser) == ["later"]
    assert sorted(peer.drained("q")) == ["later", "now"]


def test_it_stands_where_it_was_committed(world: World, peer: Peer) -> None:
    """In front of what was committed later, whatever was due first: as after a restart."""
    post(peer, "a", delay=5000)
    post(peer, "b", delay=2000)
    post(peer, "c")
    world.pass_time(6)
    post(peer, "d", delay=0)
    assert world.crash().connect().drained("q") == ["a", "b", "c", "d"]
    assert peer.bodies(peer.receiver("q", 10)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("said", [{"delay": "soon"}, {"delay": -1}, {"at": 2**63 - 1}, {"at": True}])
def test_a_time_that_is_none_is_refused(peer: Peer, said: dict[str, Any]) -> None:
    """One that is over is no delay."""
    assert refused_with(post(peer, "x", **said)).condition == "amqp:invalid-field"
    assert peer.drained("q") == []
    post(peer, "x", at=NOW_MS - 1)
    assert peer.drained("q") == ["x"]


@pytest.mark.parametrize("restart", [False, True])
def test_the_time_begins_with_the_commit(world: World, peer: Peer, *, restart: bool) -> None:
    """Not with the post, nor with the prepare."""
    peer.prepared(posts="q", delay=5000)
    for pause_s, decided in ((100, False), (4, True)):
        world.pass_time(pause_s)
        if restart:
            world = world.crash()
            peer = world.connect()
        assert decided or peer.ask(Commit(XID)) == OK
        assert peer.drained("q") == []
    world.pass_time(1.5)
    assert peer.drained("q") == ["x"]


def test_a_local_transaction_begins_it_with_its_discharge_and_a_rollback_leaves_nothing(
    world: World, peer: Peer, control: Coordinator
) -> None:
    peer.prepared(posts="q", delay=5000)
    assert peer.ask(Rollback(XID)) == OK
    world.pass_time(10)
    assert peer.drained("q") == []
    assert not world.disk.messages
    txn_id = control.declare()
    post(peer, "x", txn_id, delay=5000)
    world.pass_time(10)
    control.discharge(txn_id)
    assert peer.drained("q") == []
    world.pass_time(6)
    assert peer.drained("q") == ["x"]


def test_a_clock_that_is_set_back_takes_nothing_back(world: World, peer: Peer) -> None:
    """What came due stays so, held and given back as well. What is not due yet waits for the time that was said."""
    post(peer, "a", at=NOW_MS + 5000)
    post(peer, "b", at=NOW_MS + 60_000)
    world.pass_time(6)
    _, delivery, _ = peer.first()
    world.clock.set_s = -3600
    world.pass_time(1)
    peer.settle(delivery, Delivery.RELEASED)
    assert peer.drained("q") == ["a"]
    world.clock.set_s = 3600
    world.pass_time(1)
    assert peer.drained("q") == ["a", "b"]


def test_operators_move_and_purge_what_is_delayed(world: World, peer: Peer) -> None:
    post(peer, "a", delay=5000)
    post(peer, "b", delay=5000)
    ids = [one["id"] for one in manage(peer, operation="messages", queue="q")]
    post(peer, "x", queue="to")
    assert manage(peer, operation="move", queue="q", to="to", ids=ids[0])["done"] == 1
    assert manage(peer, operation="purge", queue="q")["done"] == 1
    assert peer.drained("to") == ["x"], "it keeps its time"
    world = world.crash()
    world.pass_time(6)
    assert world.connect().drained("to") == ["x", "a"]


def test_many_that_are_due_at_once_keep_nobody_waiting(world: World, peer: Peer) -> None:
    peer.post_many(["x"] * 2400, annotations={symbol(DELIVERY_TIME): NOW_MS + 5000})
    queue = world.queue()
    assert queue.delayed == 2400
    world.pass_time(6)
    assert (queue.delayed, queue.available) == (1400, 1000), "so many in one turn"
    world.pass_time(0.01)
    world.pass_time(0.01)
    assert (queue.delayed, queue.available) == (0, 2400)


def test_the_next_look_is_when_something_is_due(world: World, peer: Peer) -> None:
    resource = world.container.resource
    told = []
    for delay in (300, 60_000):
        told.append(resource.schedule.sooner)
        post(peer, "x", delay=delay)
        told.append(resource.schedule.sooner)
        assert resource.next_due_in() == pytest.approx(0.3, abs=0.002)
    assert told == [False, True, False, False], "whether the shell has to look sooner than it meant to"
