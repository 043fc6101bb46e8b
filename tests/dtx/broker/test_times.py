"""Messages that are to be delivered later, those whose time to live is over, and the timers: who sees what when, and
what a restart, a transaction, a crash and a clock that is set do to it."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any, ClassVar

import pytest
from proton import Delivery, symbol

from dtx.amqp.encoding import encode
from dtx.amqp.messages import DELIVERY_TIME
from dtx.amqp.values import Described, Timestamp, Ulong
from dtx.broker.broker import Broker
from dtx.broker.queues import removals
from dtx.broker.queues.counters import UnstoredMemory
from dtx.broker.queues.entry import Entry
from dtx.broker.queues.removals import STEP
from dtx.broker.settings import QueueSettings, Settings
from dtx.broker.timer_queue import MOST_DEAD, TimerQueue
from dtx.protocol.commands import Commit, Rollback
from dtx.store.contract import Batch, StoreFull, StoreStopped
from dtx.store.contract import Step as StoreStep
from dtx.store.memory import Disk
from tests.cases import each
from tests.dtx.broker.peer import (
    OK,
    XID,
    Coordinator,
    Peer,
    World,
    dead,
    filled,
    manage,
    post,
    queue_told,
    refused_with,
)
from tests.dtx.broker.sockets import on_a_broker, until


# -- timers
def test_what_was_called_off_does_not_come_and_does_not_stay() -> None:
    chance, timers, called = random.Random(7), TimerQueue(), list[int]()
    standing = {}
    for number in range(20_000):
        standing[number] = timers.add(1 + chance.random(), lambda number=number: called.append(number))  # type: ignore[misc]
        if chance.random() < 0.99:
            standing.pop(chance.choice(list(standing))).cancel()
        assert len(timers) <= 2 * len(standing) + MOST_DEAD + 1
    timers.run(3.0)
    assert sorted(called) == sorted(standing)
    assert len(timers) == 0
    for timer in standing.values():
        timer.cancel()  # too late, and no harm
    assert timers.next_in(0.0) is None


def test_what_is_due_is_called_in_its_order_and_once_and_may_add_and_call_off_others() -> None:
    timers, called = TimerQueue(), list[str]()
    for due in (5, 1, 3, 1):
        timers.add(due, lambda due=due: called.append(str(due)))  # type: ignore[misc]
    other = timers.add(6, lambda: called.append("other"))

    def first() -> None:
        other.cancel()
        timers.add(1, lambda: called.append("added"))

    assert timers.next_in(0.0) == 1
    timers.run(0.9)
    assert called == []
    timers.run(3.0)
    timers.run(3.0)
    assert called == ["1", "1", "3"]
    assert timers.next_in(9.0) == 0
    timers.add(4, first)
    timers.run(9.0)
    assert sorted(called[3:]) == ["5", "added"]


# -- messages that are delivered later
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


@pytest.mark.slow
def test_many_that_are_due_at_once_keep_nobody_waiting(world: World, peer: Peer) -> None:
    peer.post_many(["x"] * 2400, annotations={symbol(DELIVERY_TIME): NOW_MS + 5000})
    queue = world.queue()
    assert queue.counters.delayed == 2400
    world.pass_time(6)
    assert (queue.counters.delayed, queue.available) == (1400, 1000), "so many in one turn"
    world.pass_time(0.01)
    world.pass_time(0.01)
    assert (queue.counters.delayed, queue.available) == (0, 2400)


def test_the_next_look_is_when_something_is_due(world: World, peer: Peer) -> None:
    resource = world.container.resource
    told = []
    for delay in (300, 60_000):
        told.append(resource.schedule.sooner)
        post(peer, "x", delay=delay)
        told.append(resource.schedule.sooner)
        assert resource.next_due_in() == pytest.approx(0.3, abs=0.002)
    assert told == [False, True, False, False], "whether the shell has to look sooner than it meant to"


# -- messages whose time to live is over
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


def test_its_time_begins_when_it_is_there_and_it_is_given_to_nobody_behind_its_end(world: World, peer: Peer) -> None:
    """Also between two looks of the broker at what is due, which are a second apart."""
    world.clock.seconds += 0.9
    post(peer, "x", ttl=1)
    post(peer, "y", ttl=2)
    world.pass_time(0.9)
    assert peer.drained("q") == ["x", "y"]
    world.clock.seconds += 0.2
    assert peer.drained("q") == ["y"]
    taken = peer.take(peer.receiver("q", 5))
    assert taken is not None
    assert taken[1].body == "y"


def test_without_dead_letters_it_vanishes() -> None:
    """Also before it is due."""
    world, peer = filled(settings=Settings(queue_defaults=QueueSettings(dead_letter="")))
    post(peer, "short", ttl=2)
    post(peer, "delayed", delay=60_000, ttl=2)
    for pause_s in (3, 60):
        world.pass_time(pause_s)
    assert peer.drained("q") == []
    assert not world.disk.messages
    assert world.queue().counters.delayed == 0
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
    assert world.queue().counters.held == 1
    assert dead(peer) == []
    assert peer.ask(Commit(XID) if commit else Rollback(XID)) == OK
    world.pass_time(1)
    assert peer.drained("q") == []
    assert peer.drained("q.dead") == ([] if commit else ["x"]), "it is judged when it comes back"
    assert len(world.disk.messages) == (0 if commit else 1)


@pytest.mark.parametrize("expires_ms", [-1, -(2**63)])
def test_a_time_before_1970_has_passed(world: World, peer: Peer, expires_ms: int) -> None:
    """3.2.4: absolute-expiry-time is a timestamp, which may lie before the epoch. No one sees the message."""
    link = peer.sender("q")
    properties = encode(Described(Ulong(0x73), [None] * 8 + [Timestamp(expires_ms)]))
    peer.send_octets(link, properties + encode(Described(Ulong(0x77), "x")), "m")
    receiver = peer.receiver("q", 10)
    world.pass_time(0.1)
    assert peer.bodies(receiver) == []
    assert dead(peer) == [("q", "expired")]


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
    world.more(receiver, 10)
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
    assert (world.queue().depth, world.queue().counters.held) == (10, 0)
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


# -- removed at its time
LATE_S = 0.05
"""How late at most an expired message is removed where the broker has nothing else to do."""


class Idle:
    """An idle broker, whose shell ticks when it is asked to, and counts that."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.resource = world.container.resource
        self.due_s = world.clock.seconds
        self.ticks = 0

    def run(self, seconds: float) -> None:
        """Lets time pass."""
        world, resource = self.world, self.resource
        until_s = world.clock.seconds + seconds
        while True:
            if resource.is_due_sooner:
                self.due_s = min(self.due_s, world.clock.seconds + resource.next_due_in())
            if self.due_s > until_s:
                break
            world.clock.seconds = max(self.due_s, world.clock.seconds)
            self.ticks += 1
            self.due_s = world.clock.seconds + max(resource.tick(), 0.01)  # as the shell does it
            world.pump()
        world.clock.seconds = until_s


@pytest.mark.parametrize("how", ["posted", "committed", "restored", "given back", "delayed", "in memory"])
def test_an_expired_message_is_removed_at_once_when_the_broker_is_idle(how: str) -> None:
    """Not before its time, and within 50 ms; wherever it has been in between."""
    world = World()
    peer = world.connect()
    control = peer.coordinator()
    queue = "q"
    if how == "in memory":
        queue = str(peer.receiver(None, 0).remote_source.address)
    idle = Idle(world)
    idle.run(0.35)
    if how == "committed":
        txn_id = control.declare()
        post(peer, "x", txn_id, ttl=0.777)
        control.discharge(txn_id)
    else:
        said: dict[str, Any] = {"delay": 60_000} if how == "delayed" else {}
        post(peer, "x", queue=queue, ttl=0.777, **said)
    receiver = peer.receiver("q", 1) if how == "given back" else None
    if how == "restored":
        world = world.crash()
        idle = Idle(world)
    idle.run(0.7)
    if receiver is not None:
        world.close(receiver)

    depth = world.queue(queue)
    idle.run(0.076)
    assert depth.depth == 1
    idle.run(LATE_S)
    assert depth.depth == 0


def test_what_was_held_behind_its_end_is_removed_when_it_comes_back(world: World, peer: Peer) -> None:
    """It is judged then, and within 50 ms."""
    post(peer, "x", ttl=1)
    receiver, idle = peer.receiver("q", 1), Idle(world)
    idle.run(5)
    assert world.queue().depth == 1
    world.close(receiver)
    idle.run(LATE_S)
    assert world.queue().depth == 0


def test_an_idle_broker_is_not_woken_more_often_than_there_is_something_to_do(world: World, peer: Peer) -> None:
    """Neither by messages that were taken before they expired, nor by those that are held, nor by each one of many that
    expire one after the other."""
    idle = Idle(world)
    idle.run(10)
    at_rest, idle.ticks = idle.ticks, 0
    for number in range(40):
        post(peer, number, ttl=1 + number / 100)
    assert len(peer.drained("q")) == 40
    taken = peer.receiver("q", 20)
    peer.bodies(taken)
    held = peer.receiver("q", 20)
    world.pump()
    idle.run(10)
    assert idle.ticks <= at_rest + 1
    assert len(world.container.resource.expiries) <= 1
    world.close(held)

    for number in range(40):
        post(peer, number, queue="other", ttl=1 + number / 100)
    idle.ticks = 0
    idle.run(10)
    assert world.queue("other").depth == 0
    assert idle.ticks <= at_rest + 0.4 / 0.03 + 2


@pytest.mark.parametrize("why", ["full dead letters", "full disk"])
def test_what_can_not_be_removed_does_not_keep_the_broker_busy(why: str) -> None:
    """It is tried again each second."""
    settings = Settings(queues={"q.dead": QueueSettings(max_depth=0)}) if why == "full dead letters" else None
    world, peer = filled(settings=settings)
    post(peer, "x", ttl=1)
    post(peer, "y", ttl=1.5)
    idle = Idle(world)
    world.fault = StoreFull("the disk is full") if why == "full disk" else None
    idle.run(20)
    assert idle.ticks <= 25
    assert world.queue().depth == 2
    if why == "full disk":
        world.fault = None
        idle.run(2)
        assert world.queue().depth == 0


def test_queues_that_are_gone_leave_nothing_to_wake_for(world: World) -> None:
    """Responses with a time to live stand in nodes that last for a moment."""
    resource, memory = world.container.resource, UnstoredMemory(1 << 20)
    for number in range(2500):
        queue = resource.make_dynamic(f"node-{number}", memory)
        resource.post(Entry(queue, resource.number(), 1, resource.now_ms + 86_400_000, b"\0"), None)
        resource.drop_dynamic(queue)
    assert len(resource.expiries) < 2100


@on_a_broker()
async def test_the_shell_wakes_when_a_message_expires(broker: Broker) -> None:
    """Of some messages one at least meets a machine that has time for it."""
    resource = broker.container.resource
    late = []
    for number in range(3):
        queue = resource.find(f"q{number}")
        expires_ms = resource.now_ms + 100
        resource.post(Entry(queue, resource.number(), 1, expires_ms, b"\0"), None)
        resource.settle()
        broker.flush()
        await until(partial(getattr, queue, "depth"))
        while queue.depth:  # noqa: ASYNC110 — nobody tells when it goes
            await asyncio.sleep(0.001)
        late.append(resource.now_ms - expires_ms)
    assert 0 <= min(late) <= 1000 * LATE_S, late
