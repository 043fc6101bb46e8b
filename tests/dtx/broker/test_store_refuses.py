"""These tests use a store that takes nothing, or not everything. The broker must report it to the clients concerned,
lose nothing, and go on serving the others.

They cause the internal errors of Universal Messaging's table: a store that fails for one published message, for the
outcome of one message of a subscriber, and for one payload.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.messages import value_message
from dtx.protocol.addresses import branch_address
from dtx.protocol.commands import Commit, Discharge, Prepare, Rollback, Start
from dtx.store.contract import CHUNK, Batch, StoreDamaged, StoredRecord, StoreFull, StoreRefused
from dtx.store.memory import Disk
from tests.dtx.broker.peer import (
    OK,
    XID,
    Coordinator,
    Peer,
    World,
    closed,
    condition_of,
    filled,
    manage,
    post,
    queue_told,
    refused_with,
)
from tests.dtx.broker.test_groups import selecting
from xa import Code, Xid


@dataclass(slots=True)
class PickyDisk(Disk):
    """Does not take batches that post a poisoned message, or that delete one of `kept`."""

    kept: set[int] = field(default_factory=set)

    def apply(self, batch: Batch) -> None:
        poisoned = any(b"poison" in payload for _, payload in batch.payloads)
        if poisoned or self.kept.intersection(batch.dequeues):
            raise StoreRefused("a constraint")
        Disk.apply(self, batch)


@pytest.fixture
def world() -> World:
    """A broker over such a disk."""
    return World(disk=PickyDisk())


def number_of(world: World, queue: str) -> int:
    """The store's number of the only message in a queue."""
    (entry,) = world.queue(queue)
    return entry.number


def picky(world: World) -> PickyDisk:
    assert isinstance(world.disk, PickyDisk)
    return world.disk


# --- publishing
def test_an_internal_error_while_publishing_is_fatal_and_others_go_on(world: World) -> None:
    """The message is rejected and settled, its link closed; another link, and another connection in the same group, are
    served."""
    peer, other = world.connect(), world.connect()
    sender, beside, theirs = peer.sender("q"), peer.sender("q"), other.sender("q")
    poisoned = peer.send_octets(sender, value_message(encode("poison")), "p")
    peer.exchange()  # what was said waits for the store, as
    good = other.send_octets(theirs, value_message(encode("theirs")), "g")
    other.exchange()  # this does: one group
    world.pump()
    assert refused_with(poisoned).condition == Condition.INTERNAL_ERROR

    assert poisoned.settled
    assert closed(sender)
    assert condition_of(sender).condition == Condition.INTERNAL_ERROR
    assert good.remote_state == Delivery.ACCEPTED
    assert not closed(theirs)
    assert peer.post(beside, "mine").remote_state == Delivery.ACCEPTED
    assert not world.stopped
    assert world.queue().counters.pending == 0
    assert world.crash().connect().drained("q") == ["theirs", "mine"]


def test_an_internal_error_at_the_discharge_rolls_back_and_others_go_on(peer: Peer, control: Coordinator) -> None:
    """What a transaction publishes is written at its discharge: so it is the discharge that is rejected, and the link
    goes on."""
    sender = peer.sender("q")
    bad, good = control.declare(), control.declare()
    peer.post(sender, "poison", bad)
    peer.post(sender, "good", good)
    refusal = control.refused(Discharge(bad))
    assert refusal.condition == Condition.ROLLBACK
    assert "a constraint" in refusal.description
    control.discharge(good)
    assert not closed(sender)
    assert peer.world.crash().connect().drained("q") == ["good"]


def test_a_branch_that_the_store_does_not_take_is_not_prepared(world: World, peer: Peer) -> None:
    """Prepare answers XAER_RMERR with the internal error; the branch can be rolled back, or committed in one phase in
    vain, and the next one is prepared."""
    peer.ended(posts="q", body="poison")
    reply = peer.refusal(Prepare(XID))
    assert (reply.condition, reply.code, reply.xid) == (Condition.INTERNAL_ERROR, Code.XAER_RMERR, XID)
    reply = peer.refusal(Commit(XID, one_phase=True))
    assert (reply.condition, reply.code, reply.xid) == (Condition.ROLLBACK, Code.XA_RBOTHER, XID)
    assert "a constraint" in reply.description
    other = Xid(7, b"other")
    peer.prepared(other, posts="q", body="good")
    assert peer.ask(Commit(other)) == OK
    assert world.crash().connect().drained("q") == ["good"]


def test_a_commit_that_the_store_does_not_take_is_tried_again(world: World, peer: Peer) -> None:
    """A prepared branch stays so: commit says XA_RETRY, rollback XAER_RMFAIL, until the store takes it."""
    peer.fill("q", "work")
    peer.prepared(takes="q")
    picky(world).kept.add(number_of(world, "q"))
    reply = peer.refusal(Commit(XID))
    assert (reply.condition, reply.code) == (Condition.INTERNAL_ERROR, Code.XA_RETRY)
    picky(world).kept.clear()
    world.fault = StoreFull("no space left")
    reply = peer.refusal(Rollback(XID))
    assert (reply.condition, reply.code) == (Condition.RESOURCE_LIMIT, Code.XAER_RMFAIL)
    world.fault = None
    assert peer.ask(Commit(XID)) == OK
    assert world.crash().connect().drained("q") == []


# --- subscribing


def test_an_internal_error_while_subscribing_is_fatal_and_others_go_on(world: World) -> None:
    """An outcome that can't be made durable: the delivery is rejected and settled, its link closed. The message is not
    given to others now, and comes again where it was not deleted."""
    peer, other = world.connect(), world.connect()
    peer.fill("q", "first")
    other.fill("r", "second")
    receiver, delivery, _ = peer.first("q", 5)
    theirs, good, _ = other.first("r", 5)
    picky(world).kept.add(number_of(world, "q"))
    delivery.update(Delivery.ACCEPTED)
    world.pump()
    assert refused_with(delivery).condition == Condition.INTERNAL_ERROR
    assert delivery.settled

    assert condition_of(receiver).condition == Condition.INTERNAL_ERROR
    good.update(Delivery.ACCEPTED)
    world.pump()
    assert good.remote_state == Delivery.ACCEPTED
    assert good.settled
    assert not closed(theirs)
    assert peer.drained("q") == []
    crashed = world.crash().connect()
    assert (crashed.drained("q"), crashed.drained("r")) == (["first"], [])
    picky(world).kept.clear()
    world.pass_time(2)
    assert world.crash().connect().drained("q") == []


def test_an_internal_error_at_the_discharge_of_what_was_retired(world: World, peer: Peer, control: Coordinator) -> None:
    """The discharge is rejected, and the delivery is live: a later transaction can retire it."""
    peer.fill("q", "first")
    receiver, delivery, _ = peer.first()
    picky(world).kept.add(number_of(world, "q"))
    txn_id = control.declare()
    peer.retire(delivery, txn_id)
    assert control.refused(Discharge(txn_id)).condition == Condition.ROLLBACK
    assert not closed(receiver)
    picky(world).kept.clear()
    txn_id = control.declare()
    peer.retire(delivery, txn_id)
    control.discharge(txn_id)
    assert world.crash().connect().drained("q") == []


@pytest.mark.parametrize("size", [10, CHUNK + 10])
@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("how", ["lacks", "short"])
def test_a_message_whose_payload_the_store_lacks_stays_and_is_given_to_no_one(
    size: int, how: str, *, settled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Those behind it are sent, on the same link and on others; management tells of it."""
    world, peer = filled(b"x" * size, "behind", cached_size=0)
    number = min(world.disk.messages)
    pieces = world.disk.pieces[number]
    last = max(pieces)
    if how == "lacks":
        del pieces[last]
    else:
        pieces[last] = pieces[last][:-1]

    receiver = peer.receiver("q", 5, settled=settled)
    assert peer.bodies(receiver) == ["behind"]
    peer.fill("q", "later")
    assert peer.bodies(receiver) == ["later"]
    assert not closed(receiver)
    assert world.connect().bodies(peer.receiver("q", 5)) == []
    shown = queue_told(peer)
    assert (shown["unreadable"], shown["held"]) == (1, shown["depth"])
    assert next(one["unreadable"] for one in manage(peer, operation="messages", queue="q")) is True
    answer = manage(peer, operation="read", queue="q", id=f"{number:x}")
    assert "can't be read" in answer.description if size <= CHUNK else answer.condition == Condition.INVALID_FIELD
    assert f"message {number} of the queue q can't be read from the store, and is given to no one" in caplog.text
    assert not world.stopped


@pytest.mark.parametrize("size", [10, CHUNK + 10])
def test_a_transaction_goes_on_without_a_message_that_can_not_be_read(size: int) -> None:
    world, peer = filled("before", b"x" * size, "behind", cached_size=0)
    number = sorted(world.disk.messages)[1]
    world.disk.pieces[number].popitem()
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver("q")
    peer.acquire_for(receiver, txn_id)
    world.more(receiver, 5)

    deliveries = [peer.taken(receiver) for _ in range(2)]
    assert [message.body for _, message in deliveries] == ["before", "behind"]
    for delivery, _ in deliveries:
        peer.retire(delivery, txn_id)
    control.end(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    assert peer.ask(Commit(XID)) == OK
    queue = world.queue()
    assert list(queue.unreadable) == [number]
    assert queue.depth == 1
    assert list(world.disk.messages) == [number]


def test_a_group_waits_behind_a_message_that_can_not_be_read() -> None:
    """It would be dealt with out of order. Other groups go on."""
    world = World(cached_size=0)
    peer = world.connect()
    for body, group in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")):
        post(peer, body, group_id=group)
    world.disk.pieces[min(world.disk.messages)].clear()
    assert peer.bodies(peer.receiver("q", 10)) == ["b1", "b2"]
    assert peer.bodies(world.connect().receiver("q", 10)) == []


@pytest.mark.parametrize("kind", ["browser", "selector"])
def test_a_reader_passes_over_a_message_that_can_not_be_read(kind: str) -> None:
    world, peer = filled("first", "behind", cached_size=0)
    world.disk.pieces[min(world.disk.messages)].clear()
    reader = peer.receiver("q", 10, browse=True) if kind == "browser" else selecting(peer, "1 = 1")
    world.more(reader, 10)
    assert peer.bodies(reader) == ["behind"]
    assert len(world.queue().unreadable) == 1


def test_a_branch_that_is_decided_while_it_is_read_is_not_read_as_a_whole() -> None:
    """Who reads what a branch holds hears that it is gone, and gets no message cut off."""
    world, peer = filled(b"x" * 2 * CHUNK, cached_size=0)
    reader = world.connect()
    peer.prepared(takes="q")
    (held,) = world.container.registry.find(XID).work.retired.values()
    link = reader.session.receiver("read")
    link.source.address = branch_address(XID)
    link.open()
    link.flow(10)
    fetched = world.store.fetch_chunk

    def decided(message: int, number: int, done: Any) -> None:
        if number == 1:
            world.disk.pieces.pop(held.entry.number, None)
        fetched(message, number, done)

    world.store.fetch_chunk = decided  # type: ignore[method-assign]
    world.pump()
    refusal = condition_of(link)
    assert (refusal.condition, refusal.xid) == (Condition.ILLEGAL_STATE, XID)
    assert link.current is None or not link.current.readable


# --- no space
def test_a_queue_that_was_made_while_there_was_no_space_keeps_its_messages(world: World, peer: Peer) -> None:
    """Its first message is refused, the later ones are accepted: they are there after a restart. One without messages
    is stored when there is space again."""
    world.fault = StoreFull("no space left")
    sender = peer.sender("fresh")
    assert refused_with(peer.post(sender, "first")).condition == Condition.RESOURCE_LIMIT
    assert not closed(sender)
    peer.sender("empty")
    assert "empty" not in world.crash().container.resource.queues
    world.fault = None
    world.pass_time(2)
    peer.prepared(posts="fresh", body="in a branch")
    again = world.crash()
    assert "empty" in again.container.resource.queues
    other = again.connect()
    assert other.ask(Commit(XID)) == OK
    assert other.post(other.sender("fresh"), "later").remote_state == Delivery.ACCEPTED
    assert again.crash().connect().drained("fresh") == ["in a branch", "later"]


def test_an_outcome_waits_for_space(world: World, peer: Peer) -> None:
    """A message was accepted while there was no space: the outcome is in force, and told, as soon as there is."""
    peer.fill("q", "first")
    receiver, delivery, _ = peer.first()
    world.fault = StoreFull("no space left")
    delivery.update(Delivery.ACCEPTED)
    world.pump()
    world.pass_time(2)
    early = delivery.settled
    world.fault = None
    world.pass_time(2)
    assert (early, delivery.settled) == (False, True)
    assert not closed(receiver)
    assert world.crash().connect().drained("q") == []


# --- damage
def test_messages_of_no_queue_are_damage() -> None:
    """A store that has lost a queue is not opened as if its messages had never been."""
    world, _ = filled("x")
    world.disk.queues.clear()
    with pytest.raises(StoreDamaged, match="and lacks that queue"):
        world.crash()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("mark", "1.5"), ("mark", "9" * 5000), ("configured", "[]"), ("configured", '{"queue": []}'),
        ("configured", "{"),
        ("configured", "[" * 100_000), ("user", "null"),
        ("rule", '["alice", {"consume": 3}]'), ("rule", '["alice"]'), ("rule", "[[], null]"), ("audit", "{"),
        ("audit", "[]"), ("audit", '{"outcome": "eaten"}'), ("audit", '{"outcome": "done", "count": "many"}'),
        ("audit", '{"outcome": "done", "about": 3}'), ("audit", '{"outcome": "done", "spice": "salt"}'),
    ],
)  # fmt: skip
def test_a_record_that_no_broker_wrote_is_a_damaged_store(kind: str, text: str) -> None:
    world = World()
    world.connect()
    number = world.container.resource.number()
    world.disk.records[number] = StoredRecord(number, kind, text)
    with pytest.raises(StoreDamaged, match=r"a row of the store is damaged .*; restore the store from a copy"):
        World(disk=world.disk)
