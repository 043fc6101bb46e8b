"""These tests cover the management node: what it reports, to which users, in what portions, and at what cost."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from dtx.amqp.conditions import Condition
from dtx.broker.access.permissions import Permissions, Rule
from dtx.broker.management.question import MAX_PAGE
from dtx.broker.management.views import MAX_LOCKS
from dtx.broker.transactions.transactional_work import TransactionalWork
from dtx.protocol.addresses import COORDINATION, MANAGEMENT
from dtx.protocol.commands import Commit, Complete, Discharge, Start
from dtx.store.contract import PENDING, Batch
from tests.dtx.broker.peer import OK, XID, Peer, World, manage, queue_told
from xa import Xid

if TYPE_CHECKING:
    from dtx.store.memory import Disk

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
