"""These tests cover messages whose time to live is over: where they go, what holds them back, and what a crash
leaves."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from proton import Delivery

from dtx.broker.queues import removals
from dtx.broker.queues.removals import STEP
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import Commit, Rollback
from dtx.store.contract import Batch, StoreFull, StoreStopped
from dtx.store.contract import Step as StoreStep
from dtx.store.memory import Disk
from tests.cases import each
from tests.dtx.broker.peer import OK, XID, Peer, World, dead, filled, manage, post


def test_it_goes_to_the_dead_letters_with_the_reason(world: World, peer: Peer) -> None:
    post(peer, "short", ttl=2)
    post(peer, "long", ttl=60)
    world.pass_time(3)
    assert peer.drained("q") == ["long"]
    assert peer.drained("q.dead") == ["short"]
    after = world.crash()
    assert after.connect().drained("q.dead") == ["short"]
    assert dead(after.connect()) == [("q", "expired")]
    after.pass_time(3600)
    assert after.connect().drained("q.dead") == ["short", "long"], "dead letters don't expire"


def test_without_dead_letters_it_vanishes() -> None:
    """Also before it is due."""
    world, peer = filled(settings=Settings(queue_defaults=QueueSettings(dead_letter="")))
    post(peer, "short", ttl=2)
    post(peer, "delayed", delay=60_000, ttl=2)
    for pause_s in (3, 60):
        world.pass_time(pause_s)
    assert peer.drained("q") == []
    assert not world.disk.messages
    assert world.queue().delayed == 0
    assert "q.dead" not in world.container.resource.queues


def test_dead_letters_live_as_long_as_their_queue_says() -> None:
    world, peer = filled(settings=Settings(queues={"q.dead": QueueSettings(ttl_ms=10_000)}))
    post(peer, "short", ttl=2)
    world.pass_time(3)
    assert peer.drained("q.dead") == ["short"]
    world = world.crash()
    world.pass_time(11)
    assert world.connect().drained("q.dead") == []
    assert not world.disk.messages
    assert not [one for one in world.disk.records.values() if one.kind == "origin"]


@pytest.mark.parametrize(
    ("said", "expires_s"),
    [
        ({"expiry_time": 1_000_005}, 5),
        ({"expiry_time": 1_000_005, "ttl": 2}, 2),
        ({"expiry_time": 1_000_002, "ttl": 5}, 2),
    ],
)
def test_the_earlier_one_of_both_times_counts(said: dict[str, Any], expires_s: int) -> None:
    world, peer = filled(settings=Settings(queue_defaults=QueueSettings(ttl_ms=1000)))
    post(peer, "x", **said)
    world.pass_time(expires_s - 0.5)
    assert peer.drained("q") == ["x"]
    world.pass_time(1)
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ["x"]


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_what_a_prepared_branch_holds_is_not_touched(world: World, peer: Peer, *, commit: bool, restart: bool) -> None:
    post(peer, "x", ttl=5)
    peer.prepared(takes="q")
    world.pass_time(3600)
    if restart:
        world = world.crash()
        world.pass_time(3600)
        peer = world.connect()
    assert world.queue().held == 1
    assert dead(peer) == []
    assert peer.ask(Commit(XID) if commit else Rollback(XID)) == OK
    world.pass_time(1)
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ([] if commit else ["x"]), "it is judged when it comes back"
    assert len(world.disk.messages) == (0 if commit else 1)


def test_what_a_prepared_branch_posts_expires_when_it_is_there(world: World, peer: Peer) -> None:
    peer.prepared(posts="q", ttl=5)
    world.pass_time(3600)
    world = world.crash()
    world.pass_time(3600)
    peer = world.connect()
    assert peer.ask(Commit(XID)) == OK
    assert peer.drained("q") == []
    world.pass_time(1)
    assert dead(peer) == [("q", "expired")]


def test_a_held_message_that_comes_back_is_judged_again(world: World, peer: Peer) -> None:
    post(peer, "x", ttl=5)
    receiver, delivery, _ = peer.first()
    world.pass_time(10)
    assert peer.drained("q.dead") == []
    peer.settle(delivery, Delivery.RELEASED)
    receiver.flow(10)
    world.pump()
    assert peer.take(receiver) is None
    world.pass_time(1)
    assert peer.drained("q.dead") == ["x"]


class Noting(Disk):
    """A disk that notes how many messages each batch places."""

    placed: ClassVar[list[int]] = []

    def apply(self, batch: Batch) -> None:
        self.placed.append(len(batch.placements))
        super().apply(batch)


def test_many_go_some_at_a_time() -> None:
    world, peer = filled(disk=Noting())
    peer.post_many(range(2 * STEP + 7), ttl=5)
    world.pass_time(6)
    assert max(Noting.placed) == STEP
    assert peer.drained("q.dead") == list(range(2 * STEP + 7))
    assert world.queue().depth == 0


@pytest.mark.pure  # replaces a constant of ours
@each("step", StoreStep)
@each("force", [1, 2, 3])
def test_a_crash_between_two_portions_doubles_and_loses_nothing(
    step: StoreStep, force: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does a second crash while the rest goes."""
    monkeypatch.setattr(removals, "STEP", 10)
    forces = [0, 0]

    def hook(at: StoreStep) -> None:
        if forces[1] and at is step:
            forces[0] += 1
            if forces[0] == forces[1]:
                raise StoreStopped("killed here")

    count = 3 * 10 - 4
    world = World(hook=hook)
    world.connect().post_many(range(count), ttl=5)
    for _ in range(2):
        forces[:] = [0, force]
        world.pass_time(6)
        forces[1] = 0
        world = World(disk=world.disk, hook=hook, seconds=world.clock.seconds)
        peer = world.connect()
        left, died = peer.drained("q"), peer.drained("q.dead")
        assert left == [], "they are expired"
        assert died == list(range(len(died)))
        assert len(world.disk.messages) == count
    world.pass_time(1)
    assert world.connect().drained("q.dead") == list(range(count))
    assert world.queue("q.dead").depth == count == len(world.disk.messages)


def test_a_store_that_takes_nothing_loses_nothing(world: World, peer: Peer) -> None:
    peer.post_many(range(10), ttl=5)
    world.fault = StoreFull("no space")
    for _ in range(3):
        world.pass_time(6)
    assert (world.queue().depth, world.queue().held) == (10, 0)
    world.fault = None
    world.pass_time(1)
    assert peer.drained("q.dead") == list(range(10))


def test_full_dead_letters_keep_it_back() -> None:
    """It is not lost, nor delivered, and goes when there is room. The others of its group go on."""
    world, peer = filled(settings=Settings(queues={"q.dead": QueueSettings(max_depth=1)}))
    for body in ("a", "b", "c"):
        post(peer, body, ttl=5, group_id="g")
    post(peer, "d", group_id="g")
    world.pass_time(6)
    assert peer.drained("q.dead") == ["a"]
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == ["d"]
    assert world.queue().depth == 2
    for body in ("a", "b", "c"):
        assert peer.bodies(peer.receiver("q.dead", 1)) == [body]
        world.pass_time(1)
    assert world.queue().depth == 0


def test_a_retried_one_is_delivered(world: World, peer: Peer) -> None:
    post(peer, "x", ttl=2)
    world.pass_time(3)
    assert manage(peer, operation="retry", queue="q.dead")["done"] == 1
    world.pass_time(3)
    assert peer.bodies(peer.receiver("q", 1)) == ["x"]


def test_a_message_that_moves_there_and_back_expires_once(world: World, peer: Peer) -> None:
    """It stands twice in the order of expiry of its queue then."""
    post(peer, "x", ttl=5)
    post(peer, "other", queue="to")
    ids = manage(peer, operation="messages", queue="q")[0]["id"]
    for source, target in (("q", "to"), ("to", "q"), ("q", "to"), ("to", "q")):
        assert manage(peer, operation="move", queue=source, to=target, ids=ids)["done"] == 1
    world.pass_time(6)
    assert dead(peer) == [("q", "expired")]
    assert world.queue().depth == 0
