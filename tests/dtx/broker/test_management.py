"""The management node: what it reports, to which users, in what portions, and at what cost; and what operators do by it
with messages and queues: each message is in exactly one place, whatever crashes, what a prepared branch holds is never
touched, and the audit log says who did what."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import decode
from dtx.amqp.messages import body_value
from dtx.broker.access.permissions import EVERYTHING, Permissions, Rule
from dtx.broker.management import messages as managed_messages
from dtx.broker.management import transfers
from dtx.broker.management.request import MAX_PAGE
from dtx.broker.management.views import MAX_LOCKS
from dtx.broker.queues.outcomes import REFUSED
from dtx.broker.settings import QueueSettings, Settings
from dtx.broker.transactions.transactional_work import TransactionalWork
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Commit, Complete, Discharge, Rollback, Start
from dtx.protocol.conditions import Refusal
from dtx.store.contract import CHUNK, PENDING, Batch, Step, StoreFull
from dtx.store.memory import Disk
from tests.cases import each
from tests.dtx.broker.peer import OK, XID, Peer, World, closed, dead, filled, manage, queue_told
from xa import Xid

# -- reports
QUEUES = 20
BRANCHES = 2000
IN_QUEUE = 2 * BRANCHES // QUEUES


def test_management_tells_queues_branches_and_connections(peer: Peer) -> None:
    peer.fill("q", "a", "b", "c")
    consumer = peer.receiver("q", 2)
    peer.taken(consumer)
    peer.prepared(takes="q", posts="out")
    status = manage(peer, operation="status")
    assert (status["queues"], status["branches"], status["in-doubt"], status["connections"]) == (4, 1, 1, 1)
    queue = queue_told(peer)
    assert (queue["depth"], queue["held"], queue["locked-by"], queue["branches"]) == (3, 3, {str(XID): 1}, 1)

    assert queue_told(peer, "out")["pending"] == 1
    (branch,) = manage(peer, operation="branches")
    assert branch["xid"] == str(XID)
    assert branch["holds"] == {"q": {"retired": 1, "posted": 0}, "out": {"retired": 0, "posted": 1}}
    (connection,) = manage(peer, operation="connections")
    assert (connection["user"], connection["container"]) == ("anonymous", peer.connection.container)
    names = [queue["name"] for queue in manage(peer, operation="queues", after="out", count=1)]
    assert names == ["q"]


def test_management_refuses_what_it_does_not_know(peer: Peer) -> None:
    for told, condition in (
        ({}, Condition.NOT_IMPLEMENTED),
        ({"operation": "nonsense"}, Condition.NOT_IMPLEMENTED),
        ({"operation": "queues", "count": 0}, Condition.INVALID_FIELD),
        ({"operation": "queues", "after": 5}, Condition.INVALID_FIELD),
        ({"operation": "branches", "after": "x"}, Condition.INVALID_FIELD),
    ):
        assert manage(peer, **told).condition == condition


@pytest.mark.parametrize("start", [None, Start(Xid(1, b"gtrid", b"b"))])
@pytest.mark.parametrize("address", [MANAGEMENT, COORDINATION])
def test_a_transaction_that_sends_a_request_does_not_commit(peer: Peer, address: str, start: Start | None) -> None:
    """A request that was sent settled is not carried out, and nobody hears that: so the transaction can't succeed."""
    control, sender = peer.coordinator(), peer.sender(address)
    txn_id = control.declare(start)
    peer.post(sender, "x", txn_id, settled=True)
    refusal = control.refused(Discharge(txn_id))
    assert refusal.condition == Condition.ROLLBACK
    assert "no transactional work" in refusal.description


def xid_of(number: int) -> Xid:
    return Xid(1, b"%06d" % number, b"b")


@pytest.fixture(scope="module")
def disk_of_many() -> Disk:
    """2,000 prepared branches, each of which posts a message to two of 20 queues."""
    world = World()
    store, first = world.store, world.store.first_number + 500_000
    batch = Batch()
    for queue in range(QUEUES):
        batch.create_queue(first + queue, f"queue-{queue:02}")
    for number in range(BRANCHES):
        messages = [first + 10 * (number + 10) + queue for queue in range(2)]
        for offset, message in enumerate(messages):
            batch.enqueue(message, first + (number + offset) % QUEUES, PENDING, b"\x00Sw@")
        batch.prepare(first + 10 * (number + 10) + 5, xid_of(number), "anonymous", 1, enqueues=messages)
    store.submit(batch, lambda _: None)
    world.pump()
    return world.disk


@pytest.fixture
def crowd(disk_of_many: Disk) -> World:
    """A broker that comes up with them."""
    return World(disk=deepcopy(disk_of_many))


@pytest.mark.slow
def test_branches_are_told_once_page_by_page_and_queues_name_some_and_count_all(crowd: World) -> None:
    """Those that are at work are in their place among those that are prepared."""
    peer = crowd.connect()
    control = peer.coordinator()
    between = Xid(1, b"001000", b"between")
    txn_id = control.declare(Start(between))
    peer.post(peer.sender("queue-00"), "x", txn_id)
    told: list[str] = []
    while page := manage(peer, operation="branches", after=told[-1] if told else "", count=MAX_PAGE):
        told += [branch["xid"] for branch in page]
    assert told == list(map(str, sorted([*map(xid_of, range(BRANCHES)), between])))
    (first, second) = manage(peer, operation="queues", after="queue-", count=2)
    assert (first["name"], first["pending"], first["branches"]) == ("queue-00", IN_QUEUE + 1, IN_QUEUE + 1)
    assert len(first["locked-by"]) == MAX_LOCKS
    assert first["locked-by"][str(between)] == 1
    assert (second["name"], second["branches"]) == ("queue-01", IN_QUEUE)


@pytest.mark.slow
@pytest.mark.pure  # replaces a function of ours
def test_an_answer_costs_what_it_tells(crowd: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a prepared branch is looked at once, however often somebody asks; a branch that is decided is told no
    more, whether it was looked at or not."""
    peer = crowd.connect()
    manage(peer, operation="queues")
    looked_at: list[TransactionalWork] = []
    holdings = TransactionalWork.holdings

    def counted(work: TransactionalWork) -> dict[str, tuple[int, int]]:
        looked_at.append(work)
        return holdings(work)

    monkeypatch.setattr(TransactionalWork, "holdings", counted)
    for _ in range(3):
        manage(peer, operation="queues")
        manage(peer, operation="branches")
    assert not looked_at
    assert peer.ask(Commit(xid_of(0))) == OK
    assert peer.ask(Complete(xid_of(20), commit=False)) == OK
    for number in (BRANCHES, BRANCHES + 1):
        peer.prepared(xid_of(number), posts="queue-00")
    assert peer.ask(Commit(xid_of(BRANCHES))) == OK
    (first,) = manage(peer, operation="queues", after="queue-", count=1)
    assert first["branches"] == IN_QUEUE - 2 + 1
    assert not {str(xid_of(0)), str(xid_of(20)), str(xid_of(BRANCHES))} & set(first["locked-by"])
    assert len(looked_at) == 1
    (told,) = manage(peer, operation="branches", after=str(xid_of(19)), count=1)
    assert (told["state"], told["holds"]) == ("S5 heuristically completed", {})


def test_queues_tell_size_age_and_rates(world: World, peer: Peer) -> None:
    """The age is that of the oldest message, and the rates those of the last seconds."""
    sender = peer.sender("q")
    peer.post(sender, "first")
    began_ms = world.clock.wall_ms()
    world.pass_time(1)
    for number in range(9):
        peer.post(sender, number)
    queue = queue_told(peer)
    assert (queue["depth"], queue["came"], queue["went"], queue["consumers"]) == (10, 10, 0, 0)
    octets = queue["octets"]
    assert began_ms - 1000 <= queue["oldest"] <= began_ms
    receiver = peer.receiver("q", 4)
    for _ in range(2):
        world.pass_time(5)
        peer.bodies(receiver)

    world.pass_time(2)
    queue = queue_told(peer)
    assert (queue["depth"], queue["went"], queue["consumers"]) == (6, 4, 1)
    assert 0 < queue["octets"] < octets
    assert (queue["rate-in"], queue["rate-out"]) == (0, pytest.approx(4 / 7))
    assert queue["oldest"] > began_ms - 1000


def test_links_are_told_with_what_went_over_them(peer: Peer) -> None:
    peer.post(peer.sender("q"), "a")
    peer.receiver("q", 5)
    peer.receiver("q", 5, browse=True)
    told = {link["kind"]: link for link in manage(peer, operation="links", address="q")}
    assert {kind: (link["direction"], link["messages"]) for kind, link in told.items()} == {
        "produce": ("in", 1),
        "consume": ("out", 1),
        "browse": ("out", 0),
    }
    assert told["consume"]["unsettled"] == 1
    ids = [link["id"] for link in manage(peer, operation="links")]
    assert [link["id"] for link in manage(peer, operation="links", after=ids[1], count=2)][:2] == ids[2:4]
    (connection,) = manage(peer, operation="connections")
    assert connection["received"] >= 1
    assert connection["since"] == peer.world.clock.wall_ms()


def test_who_may_look() -> None:
    rules = {
        "viewer": Rule(view=True),
        "manager": Rule(manage=True),
        "reader": Rule(read_payload=True),
        "alice": Rule(),
    }
    world = World(permissions=Permissions(rules))
    told = {user: manage(world.connect(user), operation="queues") for user in rules}
    assert [user for user, answer in told.items() if isinstance(answer, list)] == ["viewer", "manager"]
    assert told["reader"].condition == told["alice"].condition == Condition.UNAUTHORIZED


# -- messages
def reject_all(peer: Peer, queue: str) -> None:
    """A consumer rejects what is in a queue."""
    receiver = peer.receiver(queue, 100)
    while (taken := peer.take(receiver)) is not None:
        peer.settle(taken[0], Delivery.REJECTED)
    peer.world.close(receiver)


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


@pytest.mark.parametrize("operation", ["move", "purge", "copy"])
def test_what_came_later_stays(world: World, peer: Peer, operation: str) -> None:
    """Later than the position that `queues` has shown. Of those `most` go, however many are held in front of them."""
    peer.fill("q", *range(5))
    peer.fill("to")
    peer.prepared(takes="q")
    until = manage(peer, operation="queues", queue="q")[0]["until"]
    peer.fill("q", "later")
    how = {"operation": operation, "queue": "q", "to": "to", "until": until}
    assert manage(peer, **how, most=2)["done"] == 2
    assert manage(peer, **how)["done"] == (5 if operation == "copy" else 2)
    came = {"copy": [0, 1, 0, 1, 2, 3, 4], "move": [1, 2, 3, 4], "purge": []}[operation]
    assert contents(world, "q", "to") == {"q": [1, 2, 3, 4, "later"] if operation == "copy" else ["later"], "to": came}


def asked_at_once(world: World, **asked: Any) -> list[Any]:
    """The answers to two peers that ask for the same at the same time."""
    peers = [world.connect(), world.connect()]
    links = [(peer, peer.receiver(None, 10), peer.sender(MANAGEMENT)) for peer in peers]
    for peer, replies, requests in links:
        message = Message(id="1", reply_to=str(replies.remote_source.address), properties=asked)
        peer.send_octets(requests, bytes(message.encode()), "t", settled=True)
    world.pump()

    answers: list[Any] = []
    for _, one, _ in links:
        assert one.current is not None
        answers.append(decode(body_value(bytes(one.recv(one.current.pending) or b""))))
    return answers


def test_a_queue_has_its_messages_by_their_positions(world: World, peer: Peer) -> None:
    """Also while several copies to it are under way: or what came before could be behind what comes later."""
    peer.fill("q", *range(5))
    peer.fill("to")
    answers = asked_at_once(world, operation="copy", queue="q", to="to")
    assert answers == [{"done": 5, "left": {}}] * 2
    positions = [int(one["position"], 16) for one in manage(peer, operation="messages", queue="to")]
    assert positions == sorted(positions)
    assert len(positions) == 10


@pytest.mark.parametrize("operation", ["purge", "move", "retry", "copy"])
def test_a_transfer_ends_when_its_requester_is_gone(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """In whole steps; what was done is in the audit log."""
    monkeypatch.setattr(transfers, "STEP", 2)
    monkeypatch.setattr(managed_messages, "COPIED_AT_ONCE", 2)
    bodies = list(range(50))
    peer.fill("q", *bodies)
    peer.fill("to")
    operator, written = world.connect(), world.container.audit.write
    connections = world.container.connections
    operator_number = max(connections)

    def gone(*entry: Any, **more: Any) -> int:
        connections[operator_number].close(None)
        return written(*entry, **more)

    monkeypatch.setattr(world.container.audit, "write", gone)
    with suppress(AssertionError):  # no answer comes
        manage(operator, operation=operation, queue="q", to="to")
    (entry,) = manage(peer, operation="audit", what=operation)
    assert entry["about"]["messages"] == 2
    found = contents(world.crash(), "q", "to")
    assert found["q"] == (bodies if operation == "copy" else bodies[2:])
    assert found["to"] == ([] if operation == "purge" else bodies[:2])


def test_what_another_transfer_has_in_hand_is_not_held(
    world: World, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "STEP", 5)
    peer.fill("q", *range(50))
    answers = asked_at_once(world, operation="purge", queue="q")
    assert sum(answer["done"] for answer in answers) == 50
    assert [answer["left"] for answer in answers] == [{}, {}]


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
    audited = [(one["what"], one["outcome"], one["about"].get("messages")) for one in manage(peer, operation="audit")]
    assert audited == [("delete-queue", "failed", 0), ("pause-queue", "failed", None), ("move", "failed", 0)]
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
    assert {one["outcome"] for one in manage(viewer, operation="audit")} == {"refused"}


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
