"""These tests cover messages whose time to live is over: where they go, what holds them back, and what a crash
leaves."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

from dtx.broker.queues import removals
from dtx.broker.queues.removals import STEP
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import Commit, Prepare, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import Result as Told
from dtx.store.contract import Batch, StoreFull, StoreStopped
from dtx.store.contract import Step as StoreStep
from dtx.store.memory import Disk
from tests.dtx.broker.peer import Coordinator, Peer, World
from tests.dtx.broker.test_delays import post
from tests.dtx.broker.test_management import manage
from xa import Code, Xid

OK = Told(Code.XA_OK)
XID = Xid(7, b"g", b"b")


def dead(peer: Peer, queue: str = "q.dead") -> list[tuple[str, str]]:
    """From where the dead letters of a queue came, and why; none where there is no such queue."""
    told = manage(peer, operation="messages", queue=queue)
    return [] if isinstance(told, Refusal) else [(one["from"], one["why"]) for one in told]


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
    world = World(Settings(queue_defaults=QueueSettings(dead_letter="")))
    peer = world.connect()
    post(peer, "short", ttl=2)
    world.pass_time(3)
    assert peer.drained("q") == []
    assert not world.disk.messages
    assert "q.dead" not in world.container.resource.queues


def test_dead_letters_live_as_long_as_their_queue_says() -> None:
    world = World(Settings(queues={"q.dead": QueueSettings(ttl_ms=10_000)}))
    peer = world.connect()
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
    world = World(Settings(queue_defaults=QueueSettings(ttl_ms=1000)))
    peer = world.connect()
    post(peer, "x", **said)
    world.pass_time(expires_s - 0.5)
    assert peer.drained("q") == ["x"]
    world.pass_time(1)
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ["x"]


def taken_in_branch(peer: Peer) -> None:
    """A prepared branch retires the first message of q."""
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id, settle=True)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    receiver.close()
    peer.world.pump()


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_what_a_prepared_branch_holds_is_not_touched(world: World, peer: Peer, *, commit: bool, restart: bool) -> None:
    post(peer, "x", ttl=5)
    taken_in_branch(peer)
    world.pass_time(3600)
    if restart:
        world = world.crash()
        world.pass_time(3600)
        peer = world.connect()
    assert world.container.resource.queues["q"].held == 1
    assert dead(peer) == []
    assert peer.ask(Commit(XID) if commit else Rollback(XID)) == OK
    world.pass_time(1)
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ([] if commit else ["x"]), "it is judged when it comes back"
    assert len(world.disk.messages) == (0 if commit else 1)


def test_what_a_prepared_branch_posts_expires_when_it_is_there(world: World, peer: Peer, control: Coordinator) -> None:
    txn_id = control.declare(Start(XID))
    post(peer, "x", txn_id, ttl=5)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
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
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    world.pass_time(10)
    assert peer.drained("q.dead") == []
    taken[0].update(Delivery.RELEASED)
    taken[0].settle()
    receiver.flow(10)
    world.pump()
    assert peer.take(receiver) is None
    world.pass_time(1)
    assert peer.drained("q.dead") == ["x"]


class Noting(Disk):
    """A disk that notes how many messages each batch places."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: list[int] = []

    def apply(self, batch: Batch) -> None:
        self.placed.append(len(batch.placements))
        super().apply(batch)


def test_many_go_some_at_a_time() -> None:
    disk = Noting()
    world = World(disk=disk)
    peer = world.connect()
    peer.post_many(range(3 * STEP + 7), ttl=5)
    world.pass_time(6)
    assert max(disk.placed) == STEP
    assert peer.drained("q.dead") == list(range(3 * STEP + 7))
    assert world.container.resource.queues["q"].depth == 0


@pytest.mark.pure  # replaces a constant of ours
@pytest.mark.parametrize("step", list(StoreStep))
@pytest.mark.parametrize("force", [1, 2, 3])
def test_a_crash_between_two_portions_doubles_and_loses_nothing(
    step: StoreStep, force: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does a second crash while the rest goes."""
    monkeypatch.setattr(removals, "STEP", 20)
    forces = [0, 0]

    def hook(at: StoreStep) -> None:
        if forces[1] and at is step:
            forces[0] += 1
            if forces[0] == forces[1]:
                raise StoreStopped("killed here")

    count = 3 * 20 - 7
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
    assert world.container.resource.queues["q.dead"].depth == count == len(world.disk.messages)


def test_a_store_that_takes_nothing_loses_nothing() -> None:
    full: list[bool] = []

    def hook(step: StoreStep) -> None:
        if full and step is StoreStep.BEFORE_WRITE:
            raise StoreFull("no space")

    world = World(hook=hook)
    peer = world.connect()
    peer.post_many(range(10), ttl=5)
    full.append(True)
    for _ in range(3):
        world.pass_time(6)
    queue = world.container.resource.queues["q"]
    assert (queue.depth, queue.held) == (10, 0)
    full.clear()
    world.pass_time(1)
    assert peer.drained("q.dead") == list(range(10))


def test_full_dead_letters_keep_it_back() -> None:
    """It is not lost, nor delivered, and goes when there is room. The others of its group go on."""
    world = World(Settings(queues={"q.dead": QueueSettings(max_depth=1)}))
    peer = world.connect()
    for body in ("a", "b", "c"):
        post(peer, body, ttl=5, group_id="g")
    post(peer, "d", group_id="g")
    world.pass_time(6)
    assert peer.drained("q.dead") == ["a"]
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == ["d"]
    assert world.container.resource.queues["q"].depth == 2
    for body in ("a", "b", "c"):
        dead_letters = peer.receiver("q.dead", 1)
        assert peer.bodies(dead_letters) == [body]
        dead_letters.close()
        world.pass_time(1)
    assert world.container.resource.queues["q"].depth == 0


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
    assert world.container.resource.queues["q"].depth == 0
