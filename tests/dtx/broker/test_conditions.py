"""What a broker finds wrong over all of its queues and branches, when it finds it, and when that is over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from proton import Delivery

from dtx.broker.conditions import MEASURED, STEP, WORST
from dtx.broker.settings import QueueSettings, Settings
from tests.dtx.broker.peer import XID, Peer, World, manage
from xa import Xid
from xa.telemetry.conditions import (
    BRANCH_IN_DOUBT,
    DEAD_LETTERS,
    GROWING_BACKLOG,
    NO_CONSUMERS,
    OLD_MESSAGES,
    QUEUE_PAUSED,
    Condition,
)


class Seen(NamedTuple):
    """A condition, as management says it."""

    number: int
    worst: list[tuple[str, float]]


def look(peer: Peer, condition: Condition) -> Seen:
    """What the broker says after a look of its own."""
    let_it_look(peer.world)
    answer = manage(peer, operation="conditions")
    (found,) = (one for one in answer["conditions"] if one["name"] == condition.name)
    return Seen(found["count"], [(one["name"], one["value"]) for one in found["worst"]])


def wait(world: World, seconds: float) -> None:
    """Time passes as it does for a broker, which ticks all the time."""
    until = world.clock.seconds + seconds
    while world.clock.seconds < until:
        tick(world, 5.0)


def let_it_look(world: World) -> None:
    """A look begins after now, and ends."""
    for _ in range(2):
        before = world.container.conditions.looked_ms
        while world.container.conditions.looked_ms == before:
            tick(world, 1.0)


def tick(world: World, seconds: float) -> None:
    world.clock.seconds += seconds
    world.container.resource.tick()
    world.pump()


def wrong(peer: Peer) -> dict[str, int]:
    """The conditions that hold."""
    let_it_look(peer.world)
    return {one["name"]: one["count"] for one in manage(peer, operation="conditions")["conditions"] if one["count"]}


def test_each_condition_is_said_also_where_nothing_is_wrong(peer: Peer) -> None:
    answer = manage(peer, operation="conditions")
    assert [one["name"] for one in answer["conditions"]] == [condition.name for condition in MEASURED]
    assert wrong(peer) == {}


def test_nothing_is_known_before_all_queues_were_looked_at() -> None:
    world = World()
    for number in range(3 * STEP):
        world.container.resource.create(f"q{number}")
    world.container.resource.settle()
    world.pump()
    again = world.crash()
    peer = again.connect()
    assert manage(peer, operation="conditions")["looked"] is None
    let_it_look(again)
    assert manage(peer, operation="conditions")["looked"] is not None


@pytest.mark.slow
def test_queues_without_consumers_are_counted_and_the_worst_are_named(world: World, peer: Peer) -> None:
    """There are more of them than have metrics of their own, and than a turn looks at. One with a consumer and a dead
    letter elsewhere hide nothing."""
    for number in range(STEP + 10):
        world.close(peer.fill(f"q{number}", *"xx"[: 1 + (number == STEP)]))
    peer.fill("q.dead", "a dead letter")
    peer.fill("served", "x")
    peer.receiver("served")
    wait(world, 580)
    assert wrong(peer) == {DEAD_LETTERS.name: 1}
    wait(world, 30)
    found = look(peer, NO_CONSUMERS)
    assert found.number == STEP + 10
    assert (len(found.worst), found.worst[0]) == (WORST, (f"q{STEP}", 2))

    for name in ("q0", f"q{STEP}"):
        peer.receiver(name)
    assert look(peer, NO_CONSUMERS).number == STEP + 8


@pytest.mark.parametrize("waited_s", [700, 1000])
def test_a_queue_without_consumers_is_one_after_a_restart_too(world: World, peer: Peer, waited_s: float) -> None:
    for name in ("q", "served", "emptied"):
        peer.fill(name, "x", "y")
    wait(world, waited_s)
    peer.fill("young", "x")
    assert wrong(peer) == {NO_CONSUMERS.name: 3}

    again = world.crash()
    after = again.connect()
    after.receiver("served")
    link, delivery, _ = after.first("emptied")
    after.settle(delivery)
    again.close(link)
    let_it_look(again)
    found = look(after, NO_CONSUMERS)
    assert (found.number, found.worst) == (1, [("q", 2)])
    assert look(after, OLD_MESSAGES).number == (2 if waited_s >= 900 else 0)
    wait(again, 620)
    assert {name for name, _ in look(after, NO_CONSUMERS).worst} == {"q", "young", "emptied"}


def test_a_worker_that_comes_back_again_and_again_is_a_consumer(world: World, peer: Peer) -> None:
    peer.fill("q", *"abcdefgh")
    for _ in range(4):
        wait(world, 300)
        link, delivery, _ = peer.first()
        peer.settle(delivery)
        world.close(link)
    assert NO_CONSUMERS.name not in wrong(peer)


def test_what_waits_behind_a_consumer_that_does_nothing_is_old(world: World, peer: Peer) -> None:
    peer.fill("q", "a")
    peer.receiver("q")
    wait(world, 870)
    assert wrong(peer) == {}
    wait(world, 30)
    found = look(peer, OLD_MESSAGES)
    assert (found.number, found.worst[0][0]) == (1, "q")
    assert found.worst[0][1] == pytest.approx(915, abs=20)


def test_dead_letters_that_were_moved_to_a_queue_with_consumers_are_old_there(world: World, peer: Peer) -> None:
    peer.fill("q", "a")
    peer.settle(peer.first()[1], Delivery.REJECTED)
    peer.receiver("work")
    manage(peer, operation="move", queue="q.dead", to="work")
    wait(world, 1000)
    assert look(peer, OLD_MESSAGES).worst[0][0] == "work"


def test_what_comes_after_a_quiet_time_is_not_old(world: World, peer: Peer) -> None:
    wait(world, 3600)
    peer.fill("q", "x")
    peer.receiver("q")
    assert look(peer, OLD_MESSAGES) == (0, [])

    again = world.crash()
    after = again.connect()
    after.receiver("q")
    assert look(after, OLD_MESSAGES) == (0, [])


def test_a_paused_queue_is_paused_at_once_and_nothing_else(world: World, peer: Peer) -> None:
    peer.fill("q", "a")
    manage(peer, operation="pause-queue", queue="q")
    assert look(peer, QUEUE_PAUSED) == (1, [("q", 1)])
    wait(world, 2000)
    assert wrong(peer) == {QUEUE_PAUSED.name: 1}
    manage(peer, operation="resume-queue", queue="q")
    assert QUEUE_PAUSED.name not in wrong(peer)
    peer.fill("q.dead", "a letter")
    manage(peer, operation="pause-queue", queue="q.dead")
    assert look(peer, QUEUE_PAUSED) == (1, [("q.dead", 1)])


def test_dead_letters_are_new_for_a_time_from_the_first_one_on(world: World, peer: Peer) -> None:
    peer.fill("q", "bad")
    _, delivery, _ = peer.first()
    peer.settle(delivery, delivery.REJECTED)
    assert look(peer, DEAD_LETTERS) == (1, [("q.dead", 1)])
    wait(world, 600)
    peer.fill("q.dead", "of a consumer")
    assert look(peer, DEAD_LETTERS) == (1, [("q.dead", 2)])
    wait(world, 950)
    assert wrong(peer) == {}

    peer.fill("q.dead", "later")
    assert look(peer, DEAD_LETTERS) == (1, [("q.dead", 1)])


def test_letters_of_before_a_restart_are_as_new_as_they_are(world: World, peer: Peer) -> None:
    peer.fill("q.dead", "old")
    wait(world, 1000)
    peer.fill("q.dead", "young", "young")
    assert look(peer, DEAD_LETTERS) == (1, [("q.dead", 2)])

    again = world.crash()
    after = again.connect()
    assert look(after, DEAD_LETTERS) == (1, [("q.dead", 2)])
    wait(again, 600)
    again = again.crash()
    after = again.connect()
    assert look(after, DEAD_LETTERS) == (1, [("q.dead", 2)])
    wait(again, 200)
    after.fill("q.dead", "later")
    assert look(after, DEAD_LETTERS) == (1, [("q.dead", 3)])
    wait(again, 950)
    assert wrong(after) == {}
    assert wrong(again.crash().connect()) == {}


def test_letters_that_are_gone_are_not_new(world: World, peer: Peer) -> None:
    peer.fill("q.dead", "a", "b")
    link, delivery, _ = peer.first("q.dead")
    peer.settle(delivery)
    world.close(link)
    assert look(peer, DEAD_LETTERS) == (1, [("q.dead", 1)])
    _, delivery, _ = peer.first("q.dead")
    peer.settle(delivery)
    assert wrong(peer) == {}


def course(world: World, peer: Peer, depths: list[int]) -> None:
    """The queue has so many messages, each for five minutes, and is nearly empty for a moment where a depth is 0."""
    resource = world.container.resource
    for depth in depths:
        here = world.queue().depth if "q" in resource.queues else 0
        if depth > here:
            peer.post_many(range(depth - here))
        for _ in range(here - depth):
            link, delivery, _ = peer.first()
            peer.settle(delivery)
            world.close(link)
        wait(world, 300)


def test_a_backlog_that_grows_all_the_time_is_found(world: World, peer: Peer) -> None:
    peer.receiver("q")
    course(world, peer, [10, 60, 110, 160, 210])
    found = look(peer, GROWING_BACKLOG)
    assert found.number == 1
    assert found.worst[0][0] == "q"
    course(world, peer, [205, 205])
    assert GROWING_BACKLOG.name not in wrong(peer)


@pytest.mark.parametrize("depths", [[150, 150, 150, 150, 150], [10, 150, 20, 160, 30], [1, 2, 3, 4, 5]])
def test_a_deep_queue_a_busy_one_and_a_few_more_are_no_growing_backlog(
    world: World, peer: Peer, depths: list[int]
) -> None:
    peer.receiver("q")
    course(world, peer, depths)
    assert GROWING_BACKLOG.name not in wrong(peer)


def test_a_branch_is_in_doubt_when_recovery_has_had_its_time(world: World, peer: Peer) -> None:
    peer.prepared(posts="out")
    wait(world, 800)
    assert wrong(peer) == {}
    wait(world, 100)
    found = look(peer, BRANCH_IN_DOUBT)
    assert (found.number, found.worst[0][0]) == (1, str(XID))


def test_the_thresholds_are_those_of_each_queue() -> None:
    """0 is never: some queues keep what is in them."""
    quick = replace(QueueSettings(), no_consumers_s=20.0)
    kept = replace(QueueSettings(), no_consumers_s=0.0, old_messages_s=0.0, growing_backlog_s=0.0)
    world = World(Settings(queues={"quick": quick, "kept": kept}))
    peer = world.connect()
    peer.fill("quick", "x")
    peer.fill("kept", "x")
    wait(world, 30)
    assert look(peer, NO_CONSUMERS) == (1, [("quick", 1)])
    wait(world, 5000)
    assert wrong(peer) == {NO_CONSUMERS.name: 1}


def test_a_queue_that_is_deleted_is_wrong_no_more(peer: Peer) -> None:
    peer.fill("q", "x")
    manage(peer, operation="pause-queue", queue="q")
    assert wrong(peer) == {QUEUE_PAUSED.name: 1}
    answer: Any = manage(peer, operation="delete-queue", queue="q", force=True)
    assert answer is not None
    assert wrong(peer) == {}


@pytest.mark.parametrize("step", [1, 2, 5, 6])
def test_a_look_in_steps_counts_each_queue_and_branch_once(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    for number in range(5):
        peer.prepared(Xid(1, b"gtrid %d" % number, b"b"), posts=f"q{number}")
        world.queue(f"q{number}").paused = "somebody"
    wait(world, 900)
    monkeypatch.setattr("dtx.broker.conditions.STEP", step)
    assert wrong(peer) == {QUEUE_PAUSED.name: 5, BRANCH_IN_DOUBT.name: 5}
