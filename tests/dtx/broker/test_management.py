"""These tests cover the management node: what it reports, to which users, in what portions, and at what cost."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import decode
from dtx.amqp.messages import body_value
from dtx.amqp.values import Described
from dtx.broker.access.permissions import Permissions, Rule
from dtx.broker.management.question import MAX_PAGE
from dtx.broker.management.views import MAX_LOCKS
from dtx.broker.settings import Limits, Settings
from dtx.broker.transactions.transactional_work import TransactionalWork
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Commit, Complete, Discharge, Prepare, Start
from dtx.protocol.replies import Result, decode_reply
from dtx.store.contract import PENDING, Batch
from tests.dtx.broker.peer import Peer, World
from xa import Code, Xid

QUEUES = 20
BRANCHES = 2000
IN_QUEUE = 2 * BRANCHES // QUEUES


def manage(peer: Peer, **told: Any) -> Any:
    """A management request, and its answer."""
    replies, requests = peer.receiver(None, 10), peer.sender(MANAGEMENT)
    message = Message(id="1", reply_to=str(replies.remote_source.address), body="x", properties=told)
    peer.send_octets(requests, bytes(message.encode()), "t", settled=True)
    peer.world.pump()
    delivery = replies.current
    assert delivery is not None
    octets = bytes(replies.recv(delivery.pending) or b"")
    value = decode(body_value(octets))
    return decode_reply(body_value(octets)) if isinstance(value, Described) else value


def test_management_tells_queues_branches_and_connections(peer: Peer) -> None:
    for body in ("a", "b", "c"):
        peer.post(peer.sender("q"), body)
    xid = Xid(1, b"gtrid", b"b")
    control = peer.coordinator()
    txn_id = control.declare(Start(xid))
    receiver = peer.receiver("q", 2)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id)
    peer.post(peer.sender("out"), "x", txn_id)
    control.discharge(txn_id)
    peer.ask(Prepare(xid))
    status = manage(peer, operation="status")
    assert (status["queues"], status["branches"], status["in-doubt"], status["connections"]) == (4, 1, 1, 1)
    queues = {queue["name"]: queue for queue in manage(peer, operation="queues")}
    assert (queues["q"]["depth"], queues["q"]["held"]) == (3, 2)
    assert queues["q"]["locked-by"] == {str(xid): 1}
    assert queues["q"]["branches"] == 1
    assert queues["out"]["pending"] == 1
    (branch,) = manage(peer, operation="branches")
    assert branch["xid"] == str(xid)
    assert branch["holds"] == {"q": {"retired": 1, "posted": 0}, "out": {"retired": 0, "posted": 1}}
    (connection,) = manage(peer, operation="connections")
    assert (connection["user"], connection["container"]) == ("anonymous", peer.connection.container)
    names = [queue["name"] for queue in manage(peer, operation="queues", after="out", count=1)]
    assert names == ["q"]


@pytest.mark.parametrize(
    ("told", "condition"),
    [
        ({}, Condition.NOT_IMPLEMENTED),
        ({"operation": "nonsense"}, Condition.NOT_IMPLEMENTED),
        ({"operation": "queues", "count": 0}, Condition.INVALID_FIELD),
        ({"operation": "queues", "after": 5}, Condition.INVALID_FIELD),
        ({"operation": "branches", "after": "x"}, Condition.INVALID_FIELD),
    ],
)
def test_management_refuses_what_it_does_not_know(told: dict[str, Any], condition: Condition) -> None:
    assert manage(World().connect(), **told).condition == condition


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


def test_management_needs_a_permission() -> None:
    world = World(permissions=Permissions({"alice": Rule()}))
    assert manage(world.connect("alice"), operation="status").condition == Condition.UNAUTHORIZED


def xid_of(number: int) -> Xid:
    return Xid(1, b"%06d" % number, b"b")


@pytest.fixture
def crowd() -> World:
    """A broker that comes up with 2,000 prepared branches, each of which posts a message to two of 20 queues."""
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
    return world.crash()


def test_every_branch_is_told_once_page_by_page(crowd: World) -> None:
    """Those that are at work are in their place among those that are prepared."""
    peer = crowd.connect()
    control = peer.coordinator()
    between = Xid(1, b"001000", b"between")
    control.declare(Start(between))
    told: list[str] = []
    while page := manage(peer, operation="branches", after=told[-1] if told else "", count=MAX_PAGE):
        told += [branch["xid"] for branch in page]
    assert told == list(map(str, sorted([*map(xid_of, range(BRANCHES)), between])))


def test_an_answer_about_queues_names_some_branches_and_counts_all(crowd: World) -> None:
    peer = crowd.connect()
    control = peer.coordinator()
    txn_id = control.declare(Start(Xid(1, b"working")))
    peer.post(peer.sender("queue-00"), "x", txn_id)
    (first, second) = manage(peer, operation="queues", after="queue-", count=2)
    assert (first["name"], first["pending"], first["branches"]) == ("queue-00", IN_QUEUE + 1, IN_QUEUE + 1)
    assert len(first["locked-by"]) == MAX_LOCKS
    assert first["locked-by"][str(Xid(1, b"working"))] == 1
    assert (second["name"], second["branches"]) == ("queue-01", IN_QUEUE)


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
    assert peer.ask(Commit(xid_of(0))) == Result(Code.XA_OK)
    assert peer.ask(Complete(xid_of(20), commit=False)) == Result(Code.XA_OK)
    control = peer.coordinator()
    for number in (BRANCHES, BRANCHES + 1):
        txn_id = control.declare(Start(xid_of(number)))
        peer.post(peer.sender("queue-00"), "x", txn_id)
        control.discharge(txn_id)
        assert peer.ask(Prepare(xid_of(number))) == Result(Code.XA_OK)
    assert peer.ask(Commit(xid_of(BRANCHES))) == Result(Code.XA_OK)
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
    (queue,) = (one for one in manage(peer, operation="queues") if one["name"] == "q")
    assert (queue["depth"], queue["came"], queue["went"], queue["consumers"]) == (10, 10, 0, 0)
    octets = queue["octets"]
    assert began_ms - 1000 <= queue["oldest"] <= began_ms
    receiver = peer.receiver("q", 4)
    for _ in range(2):
        world.pass_time(5)
        peer.bodies(receiver)
    world.pass_time(2)
    (queue,) = (one for one in manage(peer, operation="queues") if one["name"] == "q")
    assert (queue["depth"], queue["went"], queue["consumers"]) == (6, 4, 1)
    assert 0 < queue["octets"] < octets
    assert (queue["rate-in"], queue["rate-out"]) == (0, pytest.approx(4 / 7))
    assert queue["oldest"] > began_ms - 1000


def test_what_a_dynamic_node_gave_away_takes_no_room_any_more() -> None:
    """The octets of a connection's dynamic nodes are those of the messages that are in them now."""
    peer = World(Settings(limits=Limits(dynamic_octets=5000))).connect()
    receiver = peer.receiver(None, 100)
    sender = peer.sender(str(receiver.remote_source.address))
    for _ in range(20):
        delivery = peer.post(sender, "x" * 1000)
        assert delivery.remote_state == Delivery.ACCEPTED
        assert peer.bodies(receiver) == ["x" * 1000]


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


@pytest.mark.parametrize(
    ("rule", "operation", "allowed"),
    [
        (Rule(view=True), "queues", True),
        (Rule(manage=True), "queues", True),
        (Rule(read_payload=True), "queues", False),
    ],
)
def test_who_may_look(rule: Rule, operation: str, allowed: bool) -> None:
    answer = manage(World(permissions=Permissions({"alice": rule})).connect("alice"), operation=operation)
    assert isinstance(answer, list) is allowed
