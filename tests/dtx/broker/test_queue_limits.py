"""These tests cover how many messages and octets a queue takes, what happens to the next one, and that a commit never
fails for lack of room."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message, ulong

from dtx.broker.queues import removals
from dtx.broker.settings import QueueSettings, Settings, WhenFull
from dtx.protocol.commands import Commit, Rollback
from dtx.protocol.conditions import Refusal
from dtx.store.contract import Step as StoreStep
from dtx.store.contract import StoreStopped
from tests.cases import each
from tests.dtx.broker.peer import OK, Peer, World, dead, filled, manage, post, queue_told
from xa import Xid

OLDEST = WhenFull.DEAD_LETTER
SIZE = len(bytes(Message(body="x" * 100).encode()))


def refused(delivery: Delivery) -> bool:
    if delivery.remote_state != Delivery.REJECTED:
        return False
    condition: Any = delivery.remote.condition
    assert str(condition.name) == "amqp:resource-limit-exceeded"
    assert "the queue q is full" in condition.description
    return True


def full(**settings: Any) -> Settings:
    """The settings of q."""
    return Settings(queues={"q": QueueSettings(**settings)})


@pytest.mark.parametrize("settings", [{"max_depth": 3}, {"max_octets": 3 * SIZE + 10}])
def test_what_is_too_much_is_refused(settings: dict[str, int]) -> None:
    world, peer = filled(settings=full(**settings))
    bodies = [letter * 100 for letter in "abcd"]
    assert [refused(post(peer, body)) for body in bodies] == [False, False, False, True]
    assert peer.drained("q") == bodies[:3]
    assert peer.bodies(peer.receiver("q", 1)) == bodies[:1]
    assert not refused(post(peer, "e" * 100))
    world = world.crash()
    assert refused(post(world.connect(), "f" * 100))


def test_a_message_that_is_larger_than_the_queue_is_refused_whatever_happens_when_it_is_full() -> None:
    for when_full in WhenFull:
        _, peer = filled(settings=full(max_octets=SIZE, when_full=when_full))
        assert refused(post(peer, "x" * 200))
        assert not refused(post(peer, "x" * 100))


@pytest.mark.parametrize("when_full", list(WhenFull))
@pytest.mark.parametrize("settings", [{"max_depth": 4}, {"max_octets": 4 * SIZE + 10}])
@pytest.mark.parametrize("restart", [False, True])
def test_what_branches_post_has_its_room_from_the_start(
    when_full: WhenFull, settings: dict[str, int], *, restart: bool
) -> None:
    """So a commit after a prepare never fails for lack of room, and the branches together post no more than fits."""
    world, peer = filled(settings=full(when_full=when_full, **settings))
    body = "x" * 100
    first, second = (Xid(7, b"%d" % number) for number in range(2))
    peer.prepared(first, posts="q", bodies=(body, body))
    peer.prepared(second, posts="q", body=body)
    if restart:
        world = world.crash()
        peer = world.connect()
    control = peer.coordinator()
    txn_id = control.declare()
    post(peer, body, txn_id)
    assert int(post(peer, body, txn_id).remote_state) == 0x34, "told in the transaction"
    assert refused(post(peer, body)), "an open transaction has the last place"
    control.discharge(txn_id, fail=True)
    assert not refused(post(peer, body))
    if when_full is WhenFull.REFUSE:
        assert refused(post(peer, body))
    assert peer.ask(Commit(first)) == OK
    assert peer.ask(Rollback(second)) == OK
    queue = world.queue()
    assert queue.depth == 3
    assert (queue.pending, queue.pending_octets) == (0, 0)


@pytest.mark.parametrize("settings", [{"max_depth": 3}, {"max_octets": 3 * SIZE + 10}])
def test_the_oldest_make_room(settings: dict[str, int]) -> None:
    _, peer = filled(settings=full(when_full=OLDEST, **settings))
    bodies = [letter * 100 for letter in "abcdef"]
    for body in bodies:
        assert not refused(post(peer, body))
    assert peer.drained("q") == bodies[3:]
    assert peer.drained("q.dead") == bodies[:3]
    after = peer.world.crash().connect()
    assert after.drained("q") == bodies[3:]
    assert dead(after) == [("q", "queue full")] * 3


def test_what_is_held_is_not_the_oldest() -> None:
    """Neither by a consumer nor by a branch in doubt, also after a restart. Where nothing can make room, it is
    refused."""
    world, peer = filled(*"abc", settings=full(max_depth=3, when_full=OLDEST))
    for number in range(2):
        peer.prepared(Xid(7, b"%d" % number), takes="q")
    for body in "de":
        assert not refused(post(peer, body))
    assert peer.drained("q") == ["e"]
    assert peer.drained("q.dead") == ["c", "d"]
    world = world.crash()
    peer = world.connect()
    other = peer.receiver("q", 1)
    assert peer.take(other) is not None
    assert refused(post(peer, "f")), "all three are held"
    assert peer.ask(Rollback(Xid(7, b"0"))) == OK
    assert not refused(post(peer, "g"))
    assert peer.ask(Rollback(Xid(7, b"1"))) == OK
    assert peer.drained("q") == ["b", "g"]
    assert peer.drained("q.dead") == ["c", "d", "a"]


def test_a_commit_that_is_too_much_moves_the_oldest_then_and_not_before() -> None:
    world, peer = filled(*"abc", settings=full(max_depth=3, when_full=OLDEST))
    first, second = (Xid(7, b"%d" % number) for number in range(2))
    peer.prepared(first, posts="q", bodies="de")
    peer.prepared(second, posts="q", body="f")
    assert peer.drained("q") == ["a", "b", "c"], "a rollback would have moved them for nothing"
    assert refused(post(peer, "x")), "all places are taken by what comes"
    assert peer.ask(Rollback(second)) == OK
    assert peer.ask(Commit(first)) == OK
    assert peer.drained("q") == ["c", "d", "e"]
    assert peer.drained("q.dead") == ["a", "b"]
    assert world.queue("q.dead").pending == 0


def test_full_dead_letters_take_no_more() -> None:
    """Then the queue refuses, as nothing may be lost."""
    queues = {"q": QueueSettings(max_depth=2, when_full=OLDEST), "q.dead": QueueSettings(max_depth=1)}
    _, peer = filled(settings=Settings(queues=queues))
    assert [refused(post(peer, body)) for body in "abcd"] == [False, False, False, True]
    assert peer.drained("q.dead") == ["a"]
    assert peer.bodies(peer.receiver("q.dead", 1)) == ["a"]
    assert not refused(post(peer, "e"))
    assert peer.drained("q") == ["c", "e"]


def test_delayed_messages_take_room_and_make_none() -> None:
    world, peer = filled(settings=full(max_depth=2, when_full=OLDEST))
    post(peer, "a", delay=5000)
    post(peer, "b")
    post(peer, "c")
    assert peer.drained("q") == ["c"]
    world.pass_time(6)
    assert peer.drained("q") == ["a", "c"]
    post(peer, "d")
    assert peer.drained("q.dead") == ["b", "a"]


def test_a_group_that_is_held_makes_room() -> None:
    _, peer = filled(settings=full(max_depth=3, when_full=OLDEST))
    receiver = peer.receiver("q", 1)
    for body in ("g1", "g2", "g3", "g4", "g5"):
        post(peer, body, group_id="g")
    assert peer.drained("q.dead") == ["g2", "g3"]
    assert peer.bodies(receiver) == ["g1"]
    receiver.flow(5)
    peer.world.pump()
    assert peer.bodies(receiver) == ["g4", "g5"]


@pytest.mark.pure  # replaces a constant of ours
@each("step", StoreStep)
@each("force", [1, 2])
def test_a_crash_while_the_oldest_go_doubles_and_loses_nothing(
    step: StoreStep, force: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings have become smaller at a restart, so that much goes at once."""
    monkeypatch.setattr(removals, "STEP", 20)
    world = World()
    count = 2 * 20 + 10
    world.connect().post_many(range(count))
    forces = 0

    def hook(at: StoreStep) -> None:
        nonlocal forces
        if at is step:
            forces += 1
            if forces == force:
                raise StoreStopped("killed here")

    smaller = full(max_depth=5, when_full=OLDEST)
    world = World(smaller, disk=world.disk, hook=hook)
    world.pass_time(1)
    world = World(smaller, disk=world.disk)
    peer = world.connect()
    assert sorted(peer.drained("q") + peer.drained("q.dead")) == list(range(count))
    world.pass_time(1)
    assert peer.drained("q") == list(range(count - 5, count))
    assert peer.drained("q.dead") == list(range(count - 5))
    told = queue_told(peer)
    assert (told["depth"], told["held"], told["pending"]) == (5, 0, 0)


def settings_of(peer: Peer, queue: str = "q") -> tuple[int, int, str]:
    told = queue_told(peer, queue)
    return told["max-depth"], told["max-octets"], told["when-full"]


def test_an_operator_changes_the_limits() -> None:
    """At once, also after a restart, in place of the configuration; what there is too much of goes then."""
    world, peer = filled(*"abcd", settings=full(max_depth=10))
    assert manage(peer, operation="configure-queue", queue="q", **{"max-depth": ulong(3)}) == {}
    assert refused(post(peer, "e"))
    world.pass_time(1)
    assert peer.drained("q") == ["a", "b", "c", "d"], "only what says so makes room"
    changed = {"when-full": "dead-letter", "max-octets": ulong(10_000)}
    assert manage(peer, operation="configure-queue", queue="q", **changed) == {}
    world.pass_time(1)
    assert peer.drained("q") == ["b", "c", "d"]
    world = world.crash()
    peer = world.connect()
    assert settings_of(peer) == (3, 10_000, "dead-letter")
    assert not refused(post(peer, "e"))
    assert peer.drained("q.dead") == ["a", "b"]
    (entry, *_) = manage(peer, operation="audit")
    assert (entry["what"], entry["about"]["when_full"]) == ("configure-queue", "dead-letter")


def test_settings_go_with_their_queue(world: World, peer: Peer) -> None:
    post(peer, "x", queue="p")
    assert manage(peer, operation="configure-queue", queue="p", **{"max-depth": ulong(3)}) == {}
    assert manage(peer, operation="delete-queue", queue="p", force=True) == {}
    assert not [one for one in world.disk.records.values() if one.kind == "configured"]
    peer = world.crash().connect()
    post(peer, "x", queue="p")
    assert settings_of(peer, "p")[0] == QueueSettings().max_depth


@pytest.mark.parametrize(
    "told", [{}, {"when-full": "drop"}, {"max-depth": "many"}, {"max-depth": -1}, {"when-full": "dead-letter"}]
)
def test_settings_that_are_none_are_refused(told: dict[str, Any]) -> None:
    world, peer = filled(settings=full(dead_letter=""))
    before = settings_of(peer)
    assert isinstance(manage(peer, operation="configure-queue", queue="q", **told), Refusal)
    assert settings_of(peer) == before
    assert not [one for one in world.disk.records.values() if one.kind == "configured"]
