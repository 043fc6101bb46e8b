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
from dtx.protocol.commands import Commit, Prepare, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import Result
from dtx.store.contract import CHUNK, Step, StoreFull
from tests.dtx.broker.peer import Peer, World, closed
from tests.dtx.broker.test_management import manage
from xa import Code, Xid

XID = Xid(1, b"gtrid", b"b")


def posted(world: World, queue: str, *bodies: Any) -> Peer:
    """A peer that has posted these."""
    peer = world.connect()
    sender = peer.sender(queue)
    for body in bodies:
        peer.post(sender, body)
    return peer


def hold(peer: Peer, queue: str) -> None:
    """A prepared branch retires the first message of a queue."""
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver(queue, 1)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == Result(Code.XA_OK)
    receiver.close()
    peer.world.pump()


def reject_all(peer: Peer, queue: str) -> None:
    """A consumer rejects what is in a queue."""
    receiver = peer.receiver(queue, 100)
    while (taken := peer.take(receiver)) is not None:
        taken[0].update(Delivery.REJECTED)
        taken[0].settle()
    peer.world.pump()
    receiver.close()
    peer.world.pump()


def contents(world: World, *queues: str) -> dict[str, list[Any]]:
    """What a browser sees."""
    peer = world.connect()
    return {queue: peer.drained(queue) for queue in queues}


def test_messages_are_told_page_by_page_without_their_payloads(world: World) -> None:
    peer = posted(world, "q", *range(5))
    hold(peer, "q")
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
    world = World(Settings(queue_defaults=QueueSettings(max_deliveries=1)))
    peer = posted(world, "q", "bad", "worse")
    reject_all(peer, "q")
    peer.post(peer.sender("q"), "failing")
    receiver = peer.receiver("q", 1)
    peer.fail(receiver)
    for other in (world, world.crash()):  # it is known after a restart, too
        told = manage(other.connect(), operation="messages", queue="q.dead")
        assert [(one["from"], one["why"]) for one in told] == [
            ("q", "rejected"),
            ("q", "rejected"),
            ("q", "delivery-count reached 1"),
        ]
    other = world.crash()
    operator = other.connect()
    assert manage(operator, operation="retry", queue="q.dead", most=2) == {"done": 2, "left": {}}
    assert contents(other, "q", "q.dead") == {"q": ["bad", "worse"], "q.dead": ["failing"]}
    assert manage(operator, operation="retry", queue="q.dead") == {"done": 1, "left": {}}
    assert [one["deliveries"] for one in manage(operator, operation="messages", queue="q")] == [0, 0, 0]
    again = other.crash()
    assert contents(again, "q", "q.dead") == {"q": ["bad", "worse", "failing"], "q.dead": []}
    assert not [record for record in again.disk.records.values() if record.kind == "origin"]


def test_dead_letters_of_a_consumer_go_back_by_the_name_of_their_queue(world: World) -> None:
    """A consumer has sent them there: the broker has noted no origin."""
    peer = posted(world, "q.dead", "one", "two")
    posted(world, "q")
    posted(world, "other")
    assert manage(peer, operation="retry", queue="q.dead", most=1) == {"done": 1, "left": {}}
    assert manage(peer, operation="retry", queue="q.dead", to="other") == {"done": 1, "left": {}}
    assert contents(world, "q", "q.dead", "other") == {"q": ["one"], "q.dead": [], "other": ["two"]}


@pytest.mark.parametrize("queue", ["letters", "gone.dead"])
def test_what_comes_from_nowhere_needs_a_name(world: World, queue: str) -> None:
    peer = posted(world, queue, "by hand")
    posted(world, "q")
    answer = manage(peer, operation="retry", queue=queue)
    assert (answer["done"], list(answer["left"].values())) == (0, [1])
    assert manage(peer, operation="retry", queue=queue, to="q")["done"] == 1
    assert contents(world, "q", queue) == {"q": ["by hand"], queue: []}


def test_a_dead_letter_that_was_consumed_leaves_no_record(world: World) -> None:
    peer = posted(world, "q", "bad")
    reject_all(peer, "q")
    assert [record for record in world.disk.records.values() if record.kind == "origin"]
    assert peer.bodies(peer.receiver("q.dead", 1)) == ["bad"]
    assert not [record for record in world.disk.records.values() if record.kind == "origin"]


@pytest.mark.parametrize("operation", ["move", "purge", "retry"])
def test_what_a_prepared_branch_or_a_consumer_holds_stays(world: World, operation: str) -> None:
    peer = posted(world, "q", "prepared", "taken", "free")
    posted(world, "other")
    hold(peer, "q")
    consumer = world.connect()
    receiver = consumer.receiver("q", 1)
    answer = manage(peer, operation=operation, queue="q", to="other")
    assert answer["done"] == 1
    assert answer["left"] == {"held by a consumer or a transaction": 2}
    assert consumer.bodies(receiver) == ["taken"]
    after = world.crash()
    assert contents(after, "q", "other") == {"q": [], "other": [] if operation == "purge" else ["free"]}
    assert after.connect().ask(Rollback(XID)) == Result(Code.XA_OK)
    assert contents(after, "q") == {"q": ["prepared"]}


@pytest.mark.parametrize("step", list(Step))
@pytest.mark.parametrize("operation", ["move", "purge", "copy"])
def test_a_crash_at_any_step_loses_and_doubles_nothing(
    operation: str, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every group of messages is moved whole or not at all, and the audit log says how many."""
    monkeypatch.setattr(transfers, "STEP", 2)
    monkeypatch.setattr(managed_messages, "COPIED_AT_ONCE", 2)
    bodies = list("abcde")
    for crash_at in range(1, 5):
        hits = 0
        world = World()
        posted(world, "q", *bodies)
        posted(world, "to")

        class Crash(Exception):
            pass

        def hook(reached: Step, crash_at: int = crash_at) -> None:
            nonlocal hits
            hits += reached is step
            if reached is step and hits == crash_at:
                raise Crash

        peer = world.connect()
        world.store._hook = hook
        crashed = False
        try:
            manage(peer, operation=operation, queue="q", to="to")
        except Crash:
            crashed = True
        after = world.crash()
        found = contents(after, "q", "to")
        (entry,) = manage(after.connect(), operation="audit") or [{"about": {"messages": 0}}]
        done = entry["about"]["messages"]
        assert done in ({0, 2, 4, 5} if crashed else {5})
        assert found["q"] == (bodies if operation == "copy" else bodies[done:])
        assert found["to"] == ([] if operation == "purge" else bodies[:done])


def test_what_the_store_does_not_take_stays() -> None:
    def full(step: Step) -> None:
        if step is Step.BEFORE_WRITE and refuses:
            raise StoreFull("no space in the store")

    refuses = False
    world = World(hook=full)
    peer = posted(world, "q", "a", "b")
    posted(world, "to")
    refuses = True
    answer = manage(peer, operation="move", queue="q", to="to")
    assert (answer["done"], list(answer["left"].values())) == (0, [2])
    assert manage(peer, operation="pause-queue", queue="q").condition == Condition.RESOURCE_LIMIT
    assert manage(peer, operation="delete-queue", queue="to").condition == Condition.RESOURCE_LIMIT
    refuses = False
    assert manage(peer, operation="audit") == []
    assert contents(world, "q", "to") == {"q": ["a", "b"], "to": []}
    assert peer.bodies(peer.receiver("q", 5)) == ["a", "b"]
    peer.post(peer.sender("to"), "goes on")
    assert contents(world.crash(), "q", "to") == {"q": [], "to": ["goes on"]}


def test_a_full_queue_takes_no_more_than_it_may() -> None:
    world = World(Settings(queues={"small": QueueSettings(max_depth=3)}))
    peer = posted(world, "q", *range(5))
    for operation, left in (("move", 2), ("copy", 2)):
        answer = manage(peer, operation=operation, queue="q", to="small")
        assert (answer["done"], answer["left"]) == (5 - left, {"small is full": left})
        assert manage(peer, operation="purge", queue="small")["done"] == 3
        posted(world, "q", *range(3))


def test_chosen_messages_are_moved_and_large_ones_copied(world: World) -> None:
    peer = posted(world, "q", "a", "x" * 2 * CHUNK, "c")
    posted(world, "to")
    ids = [one["id"] for one in manage(peer, operation="messages", queue="q")]
    assert manage(peer, operation="copy", queue="q", to="to", ids=ids[1])["done"] == 1
    assert manage(peer, operation="move", queue="q", to="to", ids=f"{ids[0]},{ids[2]}")["done"] == 2
    after = world.crash()
    assert contents(after, "q", "to") == {"q": ["x" * 2 * CHUNK], "to": ["x" * 2 * CHUNK, "a", "c"]}
    told = manage(after.connect(), operation="read", queue="q", id=ids[1])
    assert isinstance(told, Refusal)


def test_a_moved_message_is_not_given_out_by_its_old_queue(world: World) -> None:
    peer = posted(world, "q", "a", "b")
    posted(world, "to")
    assert manage(peer, operation="move", queue="q", to="to", most=1)["done"] == 1
    assert peer.bodies(peer.receiver("q", 10)) == ["b"]
    assert peer.bodies(peer.receiver("to", 10)) == ["a"]
    (queue,) = (one for one in manage(peer, operation="queues") if one["name"] == "q")
    assert (queue["depth"], queue["held"], queue["octets"]) == (0, 0, 0)


def test_a_dead_letter_is_not_given_out_by_its_old_queue(world: World) -> None:
    """A consumer with a selector took it out of turn, so that it still stood in the order of its queue."""
    peer = posted(world, "q", "a", "b")
    queue = world.container.resource.queues["q"]
    entry = next(iter(queue))
    queue.hold(entry)  # as such a consumer does
    batch = world.container.resource.turn.batch
    queue.carry_out(queue.plan(entry, REFUSED, batch))
    world.container.resource.settle()
    world.pump()
    assert peer.bodies(peer.receiver("q", 10)) == ["b"]
    assert peer.bodies(peer.receiver("q.dead", 10)) == ["a"]


# -- queues
def test_a_paused_queue_takes_and_gives_nothing_until_it_is_resumed(world: World) -> None:
    peer = posted(world, "q", "a")
    assert manage(peer, operation="pause-queue", queue="q") == {}
    receiver = peer.receiver("q", 10)
    assert peer.bodies(receiver) == []
    peer.post(peer.sender("q"), "b")
    assert peer.bodies(receiver) == []
    after = world.crash()
    other = after.connect()
    late = other.receiver("q", 10)
    assert other.bodies(late) == []
    (queue,) = (one for one in manage(other, operation="queues") if one["name"] == "q")
    assert queue["paused"] == "anonymous"
    assert manage(other, operation="resume-queue", queue="q") == {}
    assert other.bodies(late) == ["a", "b"]
    posted(after, "q", "c")
    last = after.crash().connect()
    assert last.bodies(last.receiver("q", 10)) == ["c"]


def test_a_queue_is_created_and_deleted() -> None:
    world = World(Settings(create_on_demand=False, queues={"kept": QueueSettings()}))
    peer = world.connect()
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


def test_a_queue_whose_messages_a_prepared_branch_holds_is_not_deleted(world: World) -> None:
    peer = posted(world, "q", "a", "b")
    hold(peer, "q")
    refusal = manage(peer, operation="delete-queue", queue="q", force=True)
    assert refusal.condition == Condition.ILLEGAL_STATE
    assert "nothing was deleted" in refusal.description
    peer.post(peer.sender("q"), "c")
    assert peer.bodies(peer.receiver("q", 5)) == ["b", "c"]
    assert peer.ask(Commit(XID)) == Result(Code.XA_OK)
    assert manage(peer, operation="delete-queue", queue="q", force=True) == {}


# -- connections and branches
def test_a_connection_is_closed_and_a_branch_dropped(world: World) -> None:
    peer = posted(world, "q", "a")
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id)
    operator = world.connect()
    assert manage(operator, operation="drop-branch", xid=str(XID)) == {}
    (branch,) = manage(operator, operation="branches")
    assert branch["state"].startswith("S4")
    assert manage(operator, operation="drop-branch", xid=str(XID)).condition == Condition.ILLEGAL_STATE
    numbers = [one["number"] for one in manage(operator, operation="connections")]
    assert manage(operator, operation="close-connection", connection=numbers[0]) == {}
    assert [one["number"] for one in manage(operator, operation="connections")] == numbers[1:]
    assert contents(world, "q") == {"q": ["a"]}


def test_a_prepared_branch_is_not_dropped(world: World) -> None:
    peer = posted(world, "q", "a")
    hold(peer, "q")
    refusal = manage(peer, operation="drop-branch", xid=str(XID))
    assert refusal.condition == Condition.ILLEGAL_STATE
    assert "xabridge recover" in refusal.description


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


@pytest.mark.parametrize("operation", list(CHANGES))
def test_changes_need_their_permission(operation: str) -> None:
    rules = {"anonymous": EVERYTHING, "viewer": Rule(view=True, read_payload=True)}
    world = World(permissions=Permissions(rules))
    posted(world, "q", "a")
    posted(world, "to")
    refusal = manage(world.connect("viewer"), operation=operation, **CHANGES[operation])
    assert refusal.condition == Condition.UNAUTHORIZED
    assert contents(world, "q", "to") == {"q": ["a"], "to": []}
    assert manage(world.connect("viewer"), operation="audit") == []


def test_payloads_need_their_permission() -> None:
    world = World(permissions=Permissions({"anonymous": EVERYTHING, "manager": Rule(manage=True)}))
    posted(world, "q", "a")
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


def test_ages_are_known_after_a_restart(world: World) -> None:
    posted(world, "q", "old")
    began_ms = world.clock.wall_ms()
    world.pass_time(90)
    posted(world, "q", "new")
    world.pass_time(1)
    posted(world, "other", "the next change")
    after = world.crash()
    after.clock.seconds = world.clock.seconds
    (old, new) = manage(after.connect(), operation="messages", queue="q")
    assert (old["posted"], new["posted"]) == (began_ms, began_ms + 90_000)
