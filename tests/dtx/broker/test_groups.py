"""These tests cover the messages of one group-id over several consumers: one at a time, in their order, whatever takes
them, gives them back, prepares or restarts. XABRIDGE_SCHEDULES says how many histories there are, at most 200."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from proton import Delivery, Described, Receiver, symbol

from dtx.broker.endpoint.incoming_link import LONGEST_GROUP, name_of_group
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import Commit, Complete, Prepare, Rollback, Start
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, filled, manage, post
from xa import Xid

HISTORIES = min(int(os.environ.get("XABRIDGE_SCHEDULES", "6")), 200)


def take(peer: Peer, receiver: Receiver, credit: int = 1) -> list[tuple[Delivery, str]]:
    """What a consumer gets for so much credit, held."""
    peer.world.more(receiver, credit)
    found = []
    while (taken := peer.take(receiver)) is not None:
        found.append((taken[0], str(taken[1].body)))
    receiver.drain(0)
    peer.world.pump()
    return found


def bodies(taken: list[tuple[Delivery, str]]) -> list[str]:
    return [body for _, body in taken]


def settle(peer: Peer, taken: list[tuple[Delivery, str]], outcome: Any = Delivery.ACCEPTED) -> None:
    for delivery, _ in taken:
        peer.settle(delivery, outcome)


def grouped(*bodies: str, **settings: Any) -> tuple[World, Peer]:
    """Messages of the groups that their first letters name; those that begin with a dash have none."""
    world, peer = filled(settings=Settings(queue_defaults=QueueSettings(max_deliveries=0, **settings)))
    for body in bodies:
        post(peer, body, group_id=None if body.startswith("-") else body[0])
    return world, peer


def selecting(peer: Peer, selector: str) -> Receiver:
    """A consumer of q with a selector."""
    link = peer.session.receiver(peer.name("in"))
    link.source.address = "q"
    link.source.filter.put_dict({symbol("s"): Described(symbol("apache.org:selector-filter:string"), selector)})
    link.open()
    peer.world.pump()
    return link


def two(world: World) -> tuple[Peer, Receiver, Peer, Receiver]:
    first, second = world.connect(), world.connect()
    return first, first.receiver("q"), second, second.receiver("q")


def test_a_group_is_one_consumers_until_all_is_settled() -> None:
    """The next consumer begins where the last one ended."""
    world, _ = grouped("a1", "a2", "b1", "a3", "-1", "b2", "a4", "a5")
    one, ours, other, theirs = two(world)
    mine = take(one, ours)
    assert bodies(mine) == ["a1"]
    assert bodies(take(other, theirs, 3)) == ["b1", "-1", "b2"], "b is free, and so is what has no group"
    mine += take(one, ours, 2)
    assert bodies(mine) == ["a1", "a2", "a3"]
    world.more(theirs, 5)
    assert other.take(theirs) is None
    settle(one, mine)
    assert other.bodies(theirs) == ["a4", "a5"]


def test_what_is_given_back_comes_before_the_others() -> None:
    """To its holder first, as long as it holds another one."""
    world, _ = grouped("a1", "a2", "a3")
    one, ours, other, theirs = two(world)
    mine = take(one, ours, 2)
    settle(one, mine[:1], Delivery.RELEASED)
    assert bodies(take(other, theirs)) == [], "a2 is held still"
    again = take(one, ours)
    assert bodies(again) == ["a1"]
    settle(one, [*again, *mine[1:]], Delivery.RELEASED)
    assert bodies(take(other, theirs, 3)) == ["a1", "a2", "a3"]
    assert bodies(take(one, ours)) == []
    other.vanish()
    assert bodies(take(one, ours, 3)) == ["a1", "a2", "a3"]


def test_one_that_comes_later_waits_its_turn() -> None:
    world, peer = grouped("a1")
    one, ours, other, theirs = two(world)
    mine = take(one, ours)
    world.more(theirs, 5)
    post(peer, "a2", group_id="a")
    post(peer, "b1", group_id="b")
    taken = other.taken(theirs)
    assert taken[1].body == "b1"
    assert other.take(theirs) is None
    assert bodies(take(one, ours)) == ["a2"]
    settle(one, mine)


def retired(peer: Peer, taken: list[tuple[Delivery, str]], *, settles: bool = True, fail: bool = False) -> None:
    """Under a branch that is ended."""
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    for delivery, _ in taken:
        peer.retire(delivery, txn_id, settle=settles)
    control.discharge(txn_id, fail=fail)


@pytest.mark.parametrize("end", ["commit", "rollback", "heuristic commit", "heuristic rollback"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_branch_in_doubt_holds_its_group(end: str, *, restart: bool) -> None:
    """Against every consumer, also the one that has retired the message: otherwise a rollback would bring a1 behind
    a2."""
    world, _ = grouped("a1", "a2", "b1")
    one, ours, other, theirs = two(world)
    retired(one, take(one, ours))
    assert bodies(take(other, theirs, 5)) == ["b1"], "not prepared yet, and held all the same"
    assert one.ask(Prepare(XID)) == OK
    if restart:
        world = world.crash()
        one, ours, other, theirs = two(world)
        assert bodies(take(other, theirs, 5)) == ["b1"]

    assert bodies(take(one, ours, 5)) == []
    assert bodies(take(other, theirs, 5)) == []
    world.more(ours, 5)
    commands = {
        "commit": Commit(XID),
        "rollback": Rollback(XID),
        "heuristic commit": Complete(XID, commit=True),
        "heuristic rollback": Complete(XID, commit=False),
    }
    assert other.ask(commands[end]) == OK
    found = [taken[1].body for taken in iter(lambda: one.take(ours), None)]
    assert found == (["a2"] if end.endswith("commit") else ["a1", "a2"])
    assert bodies(take(other, theirs, 5)) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_delivery_that_outlives_the_rollback_keeps_the_group_with_its_consumer(fails: bool) -> None:
    """Also where the prepare fails."""
    world, _ = grouped("a1", "a2")
    one, ours, other, theirs = two(world)
    mine = take(one, ours)
    retired(one, mine, settles=False, fail=fails)
    if fails:
        assert one.ask(Prepare(XID)) != OK
    else:
        assert one.ask(Prepare(XID)) == OK
        assert bodies(take(one, ours)) == [], "in doubt"
        assert one.ask(Rollback(XID)) == OK
    assert bodies(take(other, theirs)) == [], "the delivery is the first one's"
    assert bodies(take(one, ours)) == ["a2"]
    settle(one, mine)
    assert bodies(take(other, theirs)) == [], "and so is the second one"


def test_a_consumer_with_a_selector_keeps_to_the_groups_of_others_and_they_to_its() -> None:
    world, peer = grouped()
    for body, kind in (("a1", "x"), ("a2", "y"), ("b1", "y"), ("a3", "y")):
        post(peer, body, group_id=body[0], properties={"kind": kind})
    one, ours, other, _ = two(world)
    theirs = selecting(other, "kind = 'y'")
    first = take(other, theirs)
    assert bodies(first) == ["a2"], "the first one was offered to everybody before"
    mine = take(one, ours, 2)
    assert bodies(mine) == ["b1"]
    settle(other, first)
    more = take(one, ours)
    assert bodies(more) == ["a1"]
    assert bodies(take(other, theirs, 10)) == []
    settle(one, [*mine, *more])
    assert bodies(take(other, theirs, 10)) == ["a3"]


def test_a_delayed_message_of_a_group_takes_its_place_when_it_is_due() -> None:
    world, peer = grouped()
    post(peer, "a1", group_id="a", delay=5000)
    for body in ("a2", "a3"):
        post(peer, body, group_id="a")
    post(peer, "b1", group_id="b", delay=5000)
    post(peer, "b2", group_id="b")
    one, ours, other, theirs = two(world)
    mine = take(one, ours)
    assert bodies(mine) == ["a2"], "nobody waits for what is delayed"
    world.pass_time(6)
    assert bodies(take(other, theirs, 5)) == ["b1", "b2"], "nobody had taken one before"
    settle(one, mine)
    assert bodies(take(other, theirs, 5)) == ["a1", "a3"]


def test_operators_do_not_stop_a_group() -> None:
    world, peer = grouped("a1", "a2", "a3", "a4")
    post(peer, "x", queue="to")
    one, ours, other, theirs = two(world)
    mine = take(one, ours)
    ids = [told["id"] for told in manage(peer, operation="messages", queue="q")]
    assert manage(peer, operation="move", queue="q", to="to", ids=ids[2])["done"] == 1
    assert manage(peer, operation="purge", queue="q", ids=ids[1])["done"] == 1
    assert bodies(take(other, theirs)) == []
    settle(one, mine)
    assert bodies(take(other, theirs, 3)) == ["a4"]
    assert peer.drained("to") == ["x", "a3"]


def test_dead_letters_let_the_group_go() -> None:
    world, _ = grouped("a1", "a2")
    one, ours, other, theirs = two(world)
    settle(one, take(one, ours), Delivery.REJECTED)
    assert bodies(take(other, theirs)) == ["a2"]
    assert one.drained("q.dead") == ["a1"]


def test_a_queue_may_do_without() -> None:
    world, _ = grouped("a1", "a2", ordered_groups=False)
    one, ours, other, theirs = two(world)
    assert bodies(take(one, ours)) == ["a1"]
    assert bodies(take(other, theirs)) == ["a2"]


@pytest.mark.parametrize("group", ["x" * 10_000, "ä" * 129, " "])
def test_every_group_id_is_a_group(group: str) -> None:
    """Also one that a database could not keep, or would rather not."""
    world, peer = grouped()
    post(peer, "a1", group_id=group)
    post(peer, "b1", group_id=group + "'")
    post(peer, "a2", group_id=group)
    assert all(len(facts.group) <= LONGEST_GROUP for facts in world.disk.messages.values())
    assert len({facts.group for facts in world.disk.messages.values()}) == 2
    one, ours, other, theirs = two(world)
    assert bodies(take(one, ours)) == ["a1"]
    assert bodies(take(other, theirs, 5)) == ["b1"]
    assert name_of_group("orders") == "orders"
    assert "\0" not in name_of_group("nul\0nul") != name_of_group("nul\0l")


def test_nothing_is_left_of_groups_that_are_empty() -> None:
    world, peer = grouped(*(f"{letter}{number}" for letter in "abc" for number in range(3)))
    queue = world.queue()
    assert queue._order.groups is not None
    assert len(queue._order.groups) == 3
    one, ours, other, theirs = two(world)
    settle(one, take(one, ours, 5))
    settle(other, take(other, theirs, 9))
    assert peer.drained("q") == []
    assert (len(queue._order.groups), queue._order.groups.reserved) == (0, 0)


@dataclass(eq=False)
class Worker:
    """A consumer, and what it holds."""

    peer: Peer
    receiver: Receiver
    control: Coordinator
    held: list[tuple[Delivery, str]] = field(default_factory=list)


class History:
    """Random consumers, branches and crashes, and what was dealt with of each group, in its order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world, self.peer = grouped()
        self.workers: list[Worker] = []
        self.prepared: dict[Xid, list[str]] = {}
        self.done: dict[str, list[int]] = {}
        self.posted = dict.fromkeys("abc", 0)
        self.serial = 0
        self.connect()
        self.connect()

    def step(self) -> None:
        steps = (self.post, self.take, self.accept, self.release, self.branch, self.decide, self.leave, self.crash)
        (step,) = self.dice.choices(steps, (4, 6, 2, 1, 2, 2, 1, 0.5))
        step(self.dice.choice(self.workers))

    def connect(self) -> None:
        peer = self.world.connect()
        self.workers.append(Worker(peer, peer.receiver("q"), peer.coordinator()))

    def post(self, _worker: Worker) -> None:
        letter = self.dice.choice("abc")
        post(self.peer, f"{letter}{self.posted[letter]}", group_id=letter)
        self.posted[letter] += 1

    def take(self, worker: Worker) -> None:
        worker.held += take(worker.peer, worker.receiver, self.dice.randrange(1, 4))

    def accept(self, worker: Worker) -> None:
        """The first one of some group."""
        if worker.held:
            first = min(worker.held, key=lambda one: int(one[1][1:]))
            settle(worker.peer, [first])
            worker.held.remove(first)
            self.finish(first[1])

    def release(self, worker: Worker) -> None:
        """All of it: what was prefetched behind must not be dealt with before."""
        settle(worker.peer, worker.held[::-1], Delivery.RELEASED)
        worker.held.clear()

    def branch(self, worker: Worker) -> None:
        if worker.held:
            self.serial += 1
            xid = Xid(7, b"%d" % self.serial, b"b")
            txn_id = worker.control.declare(Start(xid))
            for delivery, _ in worker.held:
                worker.peer.retire(delivery, txn_id, settle=True)
            worker.control.discharge(txn_id)
            assert worker.peer.ask(Prepare(xid)) == OK
            self.prepared[xid] = bodies(worker.held)
            worker.held.clear()

    def decide(self, _worker: Worker) -> None:
        if self.prepared:
            xid = self.dice.choice(list(self.prepared))
            commit = self.dice.random() < 0.5
            assert self.peer.ask(Commit(xid) if commit else Rollback(xid)) == OK
            for body in self.prepared.pop(xid):
                if commit:
                    self.finish(body)

    def leave(self, worker: Worker) -> None:
        worker.peer.vanish()
        self.world.peers.remove(worker.peer)
        self.workers.remove(worker)
        self.connect()

    def crash(self, _worker: Worker) -> None:
        self.world = self.world.crash()
        self.peer = self.world.connect()
        self.workers.clear()
        self.connect()
        self.connect()

    def finish(self, body: str) -> None:
        self.done.setdefault(body[0], []).append(int(body[1:]))

    def holders(self) -> dict[str, set[object]]:
        """Who holds each group."""
        found: dict[str, set[object]] = {}
        for worker in self.workers:
            for body in bodies(worker.held):
                found.setdefault(body[0], set()).add(worker)
        for xid, held in self.prepared.items():
            for body in held:
                found.setdefault(body[0], set()).add(xid)
        return found

    def end(self) -> None:
        """All of it is decided and dealt with."""
        for xid in list(self.prepared):
            assert self.peer.ask(Rollback(xid)) == OK
        for worker in self.workers:
            worker.peer.vanish()
            self.world.peers.remove(worker.peer)
        for body in self.peer.bodies(self.peer.receiver("q", 1000)):
            self.finish(str(body))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_any_history_keeps_the_order(seed: int) -> None:
    """Each message of a group is dealt with after the one before it, and no two hold the same group at a time."""
    history = History(seed)
    for _ in range(120):
        history.step()
        assert all(len(each) == 1 for each in history.holders().values()), history.holders()
    history.end()
    assert history.done == {letter: list(range(count)) for letter, count in history.posted.items() if count}
    queue = history.world.queue()
    assert (queue.depth, queue.counters.held, queue.counters.kept_octets, queue.counters.octets) == (0, 0, 0, 0)
