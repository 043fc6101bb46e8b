"""These tests cover what operators do with messages and queues by management: each message is in exactly one place,
whatever crashes, what a prepared branch holds is never touched, and the audit log says who did what."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.broker.access.permissions import EVERYTHING, Permissions, Rule
from dtx.broker.management import messages as managed_messages
from dtx.broker.management import transfers
from dtx.broker.queues.outcomes import REFUSED
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import Commit, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.store.contract import CHUNK, Step, StoreFull
from tests.cases import each
from tests.dtx.broker.peer import OK, XID, Peer, World, closed, dead, filled, manage, queue_told


def reject_all(peer: Peer, queue: str) -> None:
    """A consumer rejects what is in a queue."""
    receiver = peer.receiver(queue, 100)
    while (taken := peer.take(receiver)) is not None:
        peer.settle(taken[0], Delivery.REJECTED)
    receiver.close()
    peer.world.pump()


def contents(world: World, *queues: str) -> dict[str, list[Any]]:
    """What a browser sees."""
    peer = world.connect()
    return {queue: peer.drained(queue) for queue in queues}


def origins(world: World) -> list[object]:
    """What the store has noted of where dead letters come from."""
    return [record for record in world.disk.records.values() if record.kind == "origin"]


def test_messages_are_told_page_by_page_without_their_payloads(peer: Peer) -> None:
    peer.fill("q", *range(5))
    peer.prepared(takes="q")
    first = manage(peer, operation="messages", queue="q", count=2)
    rest = manage(peer, operation="messages", queue="q", count=10, after=first[-1]["position"])
    assert [one["state"] for one in first + rest] == ["held"] + ["available"] * 4
    assert len({one["id"] for one in first + rest}) == 5
    assert all(one["octets"] > 0 for one in first)
    assert manage(peer, operation="messages", queue="q", after=rest[-1]["position"]) == []
    assert manage(peer, operation="messages", queue="none").condition == Condition.NOT_FOUND
    octets = manage(peer, operation="read", queue="q", id=rest[-1]["id"])["octets"]
    message = Message()
    message.decode(octets)
    assert message.body == 4


def test_dead_letters_say_where_they_come_from_and_go_back() -> None:
    world, peer = filled("bad", "worse", settings=Settings(queue_defaults=QueueSettings(max_deliveries=1)))
    reject_all(peer, "q")
    peer.fill("q", "failing")
    peer.fail(peer.receiver("q", 1))
    for other in (world, world.crash()):  # it is known after a restart, too
        assert dead(other.connect()) == [("q", "rejected"), ("q", "rejected"), ("q", "delivery-count reached 1")]
    other = world.crash()
    operator = other.connect()
    assert manage(operator, operation="retry", queue="q.dead", most=2) == {"done": 2, "left": {}}
    assert contents(other, "q", "q.dead") == {"q": ["bad", "worse"], "q.dead": ["failing"]}
    assert manage(operator, operation="retry", queue="q.dead") == {"done": 1, "left": {}}
    assert [one["deliveries"] for one in manage(operator, operation="messages", queue="q")] == [0, 0, 0]
    again = other.crash()
    assert contents(again, "q", "q.dead") == {"q": ["bad", "worse", "failing"], "q.dead": []}
    assert not origins(again)


def test_dead_letters_of_a_consumer_go_back_by_the_name_of_their_queue(world: World, peer: Peer) -> None:
    """A consumer has sent them there: the broker has noted no origin. What comes from nowhere needs a name."""
    peer.fill("q.dead", "one", "two")
    for queue in ("q", "other"):
        peer.sender(queue)
    assert manage(peer, operation="retry", queue="q.dead", most=1) == {"done": 1, "left": {}}
    assert manage(peer, operation="retry", queue="q.dead", to="other") == {"done": 1, "left": {}}
    assert contents(world, "q", "q.dead", "other") == {"q": ["one"], "q.dead": [], "other": ["two"]}
    for queue in ("letters", "gone.dead"):
        peer.fill(queue, "by hand")
        answer = manage(peer, operation="retry", queue=queue)
        assert (answer["done"], list(answer["left"].values())) == (0, [1])
        assert manage(peer, operation="retry", queue=queue, to="q")["done"] == 1
    assert contents(world, "q", "gone.dead") == {"q": ["one", "by hand", "by hand"], "gone.dead": []}


def test_a_dead_letter_that_was_consumed_leaves_no_record(world: World, peer: Peer) -> None:
    peer.fill("q", "bad")
    reject_all(peer, "q")
    assert origins(world)
    assert peer.bodies(peer.receiver("q.dead", 1)) == ["bad"]
    assert not origins(world)


@pytest.mark.parametrize("operation", ["move", "purge", "retry"])
def test_what_a_prepared_branch_or_a_consumer_holds_stays(world: World, peer: Peer, operation: str) -> None:
    peer.fill("q", "prepared", "taken", "free")
    peer.fill("other")
    peer.prepared(takes="q")
    consumer = world.connect()
    receiver = consumer.receiver("q", 1)
    answer = manage(peer, operation=operation, queue="q", to="other")
    assert answer["done"] == 1
    assert answer["left"] == {"held by a consumer or a transaction": 2}
    assert consumer.bodies(receiver) == ["taken"]
    after = world.crash()
    assert contents(after, "q", "other") == {"q": [], "other": [] if operation == "purge" else ["free"]}
    assert after.connect().ask(Rollback(XID)) == OK
    assert contents(after, "q") == {"q": ["prepared"]}


@each("step", Step)
@each("operation", ["move", "purge", "copy"])
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    operation: str, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group of messages is moved whole or not at all, and the audit log says how many."""
    monkeypatch.setattr(transfers, "STEP", 2)
    monkeypatch.setattr(managed_messages, "COPIED_AT_ONCE", 2)
    bodies = list("abcde")
    for crash_at in range(1, 5):
        world, peer = filled(*bodies)
        peer.sender("to")
        hits = [0]

        def hook(reached: Step, crash_at: int = crash_at, hits: list[int] = hits) -> None:
            hits[0] += reached is step
            if reached is step and hits[0] == crash_at:
                raise KilledError

        world.store._hook = hook
        crashed = False
        try:
            manage(peer, operation=operation, queue="q", to="to")
        except KilledError:
            crashed = True
        after = world.crash()
        found = contents(after, "q", "to")
        (entry,) = manage(after.connect(), operation="audit") or [{"about": {"messages": 0}}]
        done = entry["about"]["messages"]
        assert done in ({0, 2, 4, 5} if crashed else {5})
        assert found["q"] == (bodies if operation == "copy" else bodies[done:])
        assert found["to"] == ([] if operation == "purge" else bodies[:done])


class KilledError(Exception):
    """The broker was killed here."""


def test_what_the_store_does_not_take_stays() -> None:
    world, peer = filled("a", "b")
    peer.sender("to")
    world.fault = StoreFull("no space in the store")
    answer = manage(peer, operation="move", queue="q", to="to")
    assert (answer["done"], list(answer["left"].values())) == (0, [2])
    assert manage(peer, operation="pause-queue", queue="q").condition == Condition.RESOURCE_LIMIT
    assert manage(peer, operation="delete-queue", queue="to").condition == Condition.RESOURCE_LIMIT
    world.fault = None
    assert manage(peer, operation="audit") == []
    assert contents(world, "q", "to") == {"q": ["a", "b"], "to": []}
    assert peer.bodies(peer.receiver("q", 5)) == ["a", "b"]
    peer.fill("to", "goes on")
    assert contents(world.crash(), "q", "to") == {"q": [], "to": ["goes on"]}


def test_a_full_queue_takes_no_more_than_it_may() -> None:
    _, peer = filled(settings=Settings(queues={"small": QueueSettings(max_depth=3)}))
    peer.fill("q", *range(5))
    for operation, left in (("move", 2), ("copy", 2)):
        answer = manage(peer, operation=operation, queue="q", to="small")
        assert (answer["done"], answer["left"]) == (5 - left, {"small is full": left})
        assert manage(peer, operation="purge", queue="small")["done"] == 3
        peer.fill("q", *range(3))


def test_chosen_messages_are_moved_and_large_ones_copied() -> None:
    """A moved one is not given out by its old queue."""
    world, peer = filled("a", "x" * 2 * CHUNK, "c")
    peer.sender("to")
    ids = [one["id"] for one in manage(peer, operation="messages", queue="q")]
    assert manage(peer, operation="copy", queue="q", to="to", ids=ids[1])["done"] == 1
    assert manage(peer, operation="move", queue="q", to="to", ids=f"{ids[0]},{ids[2]}")["done"] == 2
    expected = {"q": ["x" * 2 * CHUNK], "to": ["x" * 2 * CHUNK, "a", "c"]}
    after = world.crash()
    assert contents(after, "q", "to") == expected
    assert isinstance(manage(after.connect(), operation="read", queue="q", id=ids[1]), Refusal)
    assert {queue: peer.bodies(peer.receiver(queue, 10)) for queue in ("q", "to")} == expected
    told = queue_told(peer)
    assert (told["depth"], told["held"], told["octets"]) == (0, 0, 0)


def test_a_dead_letter_is_not_given_out_by_its_old_queue(world: World, peer: Peer) -> None:
    """A consumer with a selector took it out of turn, so that it still stood in the order of its queue."""
    peer.fill("q", "a", "b")
    queue = world.queue()
    entry = next(iter(queue))
    queue.hold(entry)  # as such a consumer does
    batch = world.container.resource.turn.batch
    queue.carry_out(queue.plan(entry, REFUSED, batch))
    world.container.resource.settle()
    world.pump()
    assert peer.bodies(peer.receiver("q", 10)) == ["b"]
    assert peer.bodies(peer.receiver("q.dead", 10)) == ["a"]


# -- queues
def test_a_paused_queue_takes_and_gives_nothing_until_it_is_resumed(world: World, peer: Peer) -> None:
    peer.fill("q", "a")
    assert manage(peer, operation="pause-queue", queue="q") == {}
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == []
    peer.post(peer.sender("q"), "b")
    assert peer.bodies(receiver) == []
    after = world.crash()
    other = after.connect()
    late = other.receiver("q", 10)
    assert other.bodies(late) == []
    queue = queue_told(other)
    assert queue["paused"] == "anonymous"
    assert manage(other, operation="resume-queue", queue="q") == {}
    assert other.bodies(late) == ["a", "b"]
    other.fill("q", "c")
    last = after.crash().connect()
    assert last.bodies(last.receiver("q", 10)) == ["c"]


def test_a_queue_is_created_and_deleted() -> None:
    world, peer = filled(settings=Settings(create_on_demand=False, queues={"kept": QueueSettings()}))
    assert manage(peer, operation="create-queue", queue="q") == {}
    assert manage(peer, operation="create-queue", queue="q").condition == Condition.NOT_ALLOWED
    assert manage(peer, operation="create-queue", queue="$x").condition == Condition.INVALID_FIELD
    sender, receiver = peer.sender("q"), peer.receiver("q", 0)
    peer.post(sender, "a")
    assert manage(peer, operation="delete-queue", queue="kept").condition == Condition.ILLEGAL_STATE
    assert manage(peer, operation="delete-queue", queue="q").condition == Condition.ILLEGAL_STATE
    assert manage(peer, operation="delete-queue", queue="q", force=True) == {}
    assert closed(receiver)
    assert closed(sender)
    after = world.crash()
    names = {queue["name"] for queue in manage(after.connect(), operation="queues")}
    assert "q" not in names
    assert not after.disk.messages
    assert manage(after.connect(), operation="create-queue", queue="q") == {}
    assert contents(after.crash(), "q") == {"q": []}


def test_what_a_prepared_branch_holds_is_not_deleted_nor_is_the_branch_dropped() -> None:
    _, peer = filled("a", "b")
    peer.prepared(takes="q")
    refusal = manage(peer, operation="delete-queue", queue="q", force=True)
    assert refusal.condition == Condition.ILLEGAL_STATE
    assert "nothing was deleted" in refusal.description
    peer.fill("q", "c")
    assert peer.bodies(peer.receiver("q", 5)) == ["b", "c"]
    refusal = manage(peer, operation="drop-branch", xid=str(XID))
    assert refusal.condition == Condition.ILLEGAL_STATE
    assert "xabridge recover" in refusal.description
    assert peer.ask(Commit(XID)) == OK
    assert manage(peer, operation="delete-queue", queue="q", force=True) == {}


# -- connections and branches
def test_a_connection_is_closed_and_a_branch_dropped() -> None:
    world, peer = filled("a")
    txn_id = peer.coordinator().declare(Start(XID))
    peer.retire(peer.first()[1], txn_id)
    operator = world.connect()
    assert manage(operator, operation="drop-branch", xid=str(XID)) == {}
    (branch,) = manage(operator, operation="branches")
    assert branch["state"].startswith("S4")
    assert manage(operator, operation="drop-branch", xid=str(XID)).condition == Condition.ILLEGAL_STATE
    numbers = [one["number"] for one in manage(operator, operation="connections")]
    assert manage(operator, operation="close-connection", connection=numbers[0]) == {}
    assert [one["number"] for one in manage(operator, operation="connections")] == numbers[1:]
    assert contents(world, "q") == {"q": ["a"]}


# -- who
CHANGES = {
    "move": {"queue": "q", "to": "to"},
    "copy": {"queue": "q", "to": "to"},
    "retry": {"queue": "q", "to": "to"},
    "purge": {"queue": "q"},
    "create-queue": {"queue": "new"},
    "delete-queue": {"queue": "to"},
    "pause-queue": {"queue": "q"},
    "resume-queue": {"queue": "q"},
    "close-connection": {"connection": "1"},
    "drop-branch": {"xid": str(XID)},
}


def test_changes_need_their_permission() -> None:
    rules = {"anonymous": EVERYTHING, "viewer": Rule(view=True, read_payload=True)}
    world = World(permissions=Permissions(rules))
    world.connect().fill("q", "a")
    world.connect().sender("to")
    viewer = world.connect("viewer")
    for operation, about in CHANGES.items():
        assert manage(viewer, operation=operation, **about).condition == Condition.UNAUTHORIZED
    assert contents(world, "q", "to") == {"q": ["a"], "to": []}
    assert manage(viewer, operation="audit") == []


def test_payloads_need_their_permission() -> None:
    world = World(permissions=Permissions({"anonymous": EVERYTHING, "manager": Rule(manage=True)}))
    world.connect().fill("q", "a")
    manager = world.connect("manager")
    (message,) = manage(manager, operation="messages", queue="q")
    refusal = manage(manager, operation="read", queue="q", id=message["id"])
    assert refusal.condition == Condition.UNAUTHORIZED


def test_the_audit_log_says_who_did_what_and_survives() -> None:
    world = World(permissions=Permissions({"*": EVERYTHING}))
    alice, bob = world.connect("alice"), world.connect("bob")
    manage(alice, operation="create-queue", queue="q")
    for body in ("a", "b"):
        alice.post(alice.sender("q"), body)
    world.pass_time(60)
    manage(bob, operation="purge", queue="q", most=1)
    for other in (world, world.crash()):
        told = manage(other.connect("carol"), operation="audit")
        assert [(one["who"], one["what"], one["about"]) for one in told] == [
            ("bob", "purge", {"queue": "q", "most": 1, "messages": 1}),
            ("alice", "create-queue", {"queue": "q"}),
        ]
        assert told[0]["when"] - told[1]["when"] == 60_000
        page = manage(other.connect("carol"), operation="audit", after=told[0]["id"], count=1)
        assert [one["what"] for one in page] == ["create-queue"]


def test_ages_are_known_after_a_restart(world: World, peer: Peer) -> None:
    peer.fill("q", "old")
    began_ms = world.clock.wall_ms()
    world.pass_time(90)
    peer.fill("q", "new")
    world.pass_time(1)
    peer.fill("other", "the next change")
    (old, new) = manage(world.crash().connect(), operation="messages", queue="q")
    assert (old["posted"], new["posted"]) == (began_ms, began_ms + 90_000)
