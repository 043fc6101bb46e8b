"""These tests cover transactional posting of the transactions chapter, and how settlement affects it."""

from __future__ import annotations

import pytest
from proton import Delivery, Message, Sender

from dtx.amqp.conditions import Condition
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.commands import CONTROL, Commit, Declare, Discharge, Prepare, Start
from dtx.protocol.replies import TRANSACTIONAL, Result
from dtx.store.contract import StoreFull
from tests.dtx.broker.peer import XID, Coordinator, Peer, World, closed, condition_of, filled, say_state, told
from xa import Code

BODY = bytes(Message(body="a message in parts").encode())
FULL = Settings(queue_defaults=QueueSettings(max_depth=1))


def test_a_posted_message_is_not_available_before_the_discharge(world: World) -> None:
    """If the transaction controller wishes to associate an outgoing transfer with a transaction, it must
    set the state of the transfer with a transactional-state carrying the appropriate transaction
    identifier. The effect of transactional posting is that the message does not become available at the
    destination node within the transactional resource until after the transaction has been (successfully)
    discharged.

    Force before reply: the message is on disk when the controller hears accepted, and not visible before."""
    peer, watcher = world.connect(), world.connect()
    control, consumer = peer.coordinator(), watcher.receiver("q", 10)
    txn_id = control.declare()
    peer.post(peer.sender("q"), "x", txn_id)
    assert watcher.take(consumer) is None
    delivery = control.send(CONTROL.encode(Discharge(txn_id)))
    world.pump(store=False)
    assert int(delivery.remote_state) == 0
    assert watcher.take(consumer) is None
    assert world.crash().connect().drained("q") == []
    world.pump()
    assert delivery.remote_state == Delivery.ACCEPTED
    assert world.crash().connect().drained("q") == ["x"]
    assert watcher.taken(consumer)[1].body == "x"


def test_the_presumptive_outcome_is_told_before_the_discharge(peer: Peer, control: Coordinator) -> None:
    """On receiving a non-settled delivery associated with a live transaction, the transactional resource must
    inform the controller of the presumptive terminal outcome before it can successfully discharge the
    transaction. That is the resource must send a disposition performative which covers the posted transfer
    with the state of the delivery being a transactional-state with the correct transaction identified, and
    a terminal outcome."""
    sender = peer.sender("q")
    first, second = control.declare(), control.declare()
    for txn_id in (first, second):
        delivery = peer.post(sender, "x", txn_id)
        assert delivery.remote_state == TRANSACTIONAL
        named, outcome = told(delivery)
        assert named == txn_id
        assert outcome.descriptor == Delivery.ACCEPTED


def test_the_outcome_is_associated_with_the_transaction_of_the_transfer(
    world: World, peer: Peer, control: Coordinator
) -> None:
    """The resource MUST determine the outcome of the delivery before committing the transaction, and this
    MUST be communicated to the controller before the acceptance of a successful discharge. The outcome
    communicated by the resource MUST be associated with the same transaction with which the transfer from
    controller to resource was associated."""
    sender = peer.sender("q")
    txn_id = control.declare()
    posted = [peer.send_octets(sender, BODY, str(number), txn_id) for number in range(3)]
    discharged = control.send(CONTROL.encode(Discharge(txn_id)))
    world.pump()
    assert discharged.remote_state == Delivery.ACCEPTED
    for delivery in posted:
        assert delivery.settled
        assert delivery.remote_state == TRANSACTIONAL
        assert told(delivery)[0] == txn_id


def test_txn_ids_from_the_resource_tell_what_work_belongs_to_what(
    world: World, peer: Peer, control: Coordinator
) -> None:
    """When traveling in the other direction, from resource to controller, the transfer and disposition frames
    indicate work performed, and the txn-ids included MUST correctly indicate with which (if any)
    transaction this work is associated."""
    sender = peer.sender("q")
    txn_id = control.declare()
    in_it, outside = peer.post(sender, "in", txn_id), peer.post(sender, "outside")
    assert told(in_it)[0] == txn_id
    assert outside.remote_state == Delivery.ACCEPTED
    consumer = peer.receiver("q")
    peer.acquire_for(consumer, txn_id)

    world.more(consumer, 1)
    delivery = consumer.current
    assert delivery is not None
    assert delivery.remote_state == TRANSACTIONAL
    assert told(delivery)[0] == txn_id
    plain = peer.receiver("q", 1)
    peer.post(sender, "plain")
    assert plain.current is not None
    assert int(plain.current.remote_state) == 0


class Parts:
    """A message that is sent in parts."""

    def __init__(self, peer: Peer, sender: Sender, *txn_id: bytes) -> None:
        self.peer = peer
        self.sender = sender
        self.delivery = sender.delivery(peer.name("p"))
        self.name(*txn_id)
        self.left = [BODY[:5], BODY[5:9], BODY[9:]]

    def name(self, *txn_id: bytes) -> None:
        """From now on frames carry this transaction, or none."""
        say_state(self.delivery, TRANSACTIONAL if txn_id else 0, list(txn_id))

    def part(self) -> None:
        """The next frame."""
        self.sender.stream(self.left.pop(0))
        if not self.left:
            self.sender.advance()
        self.peer.world.pump()

    def rest(self) -> None:
        """The frames that are left."""
        while self.left:
            self.part()


def test_all_frames_of_a_delivery_name_the_same_transaction(world: World, peer: Peer, control: Coordinator) -> None:
    """Note that if delivery is split across several transfer frames then all frames MUST be explicitly
    associated with the same transaction. A delivery that is aborted is no work, and hinders no discharge."""
    sender, txn_id = peer.sender("q"), control.declare()
    aborted = Parts(peer, sender, txn_id)
    aborted.part()
    aborted.delivery.abort()
    world.pump()
    Parts(peer, sender, txn_id).rest()
    control.discharge(txn_id)
    assert peer.drained("q") == ["a message in parts"]


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("second", ["none", "another", "nonsense"])
def test_a_delivery_of_two_transactions_is_refused(
    world: World, peer: Peer, control: Coordinator, second: str, settled: bool
) -> None:
    """Note that if delivery is split across several transfer frames then all frames MUST be explicitly
    associated with the same transaction. One that began outside of a transaction can't be continued in one."""
    sender = peer.sender("q")
    txn_id, other = control.declare(), control.declare()
    outside = Parts(peer, sender)
    outside.part()
    outside.name(other)
    outside.rest()
    assert outside.delivery.remote_state == Delivery.REJECTED
    parts = Parts(peer, sender, txn_id)
    parts.part()
    parts.name(*{"none": (), "another": (other,), "nonsense": (b"?",)}[second])
    if settled:
        parts.sender.stream(b"".join(parts.left))
        parts.sender.advance()
        parts.delivery.settle()
        world.pump()
    else:
        parts.rest()

    refusal = control.refused(Discharge(txn_id))
    assert refusal.condition == Condition.ROLLBACK
    assert closed(sender) == settled, "who sent it unsettled hears it from the delivery"
    assert peer.drained("q") == []


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("start", [None, Start(XID)])
def test_a_discharge_with_a_partial_delivery_terminates_the_control_link(
    world: World, peer: Peer, control: Coordinator, start: Start | None, fail: bool
) -> None:
    """It is an error for the controller to attempt to discharge a transaction against which a partial
    delivery has been posted. Should this happen, the control link MUST be terminated with the
    transaction-rollback error."""
    sender = peer.sender("q")
    txn_id, other = control.declare(start), control.declare()
    peer.post(sender, "whole", txn_id)
    peer.post(sender, "other", other)
    parts = Parts(peer, sender, txn_id)
    parts.part()
    discharged = control.send(CONTROL.encode(Discharge(txn_id, fail)))

    world.pump()
    assert closed(control.link)
    assert condition_of(control.link).condition == Condition.ROLLBACK
    assert (discharged.remote_state == Delivery.ACCEPTED) == fail, "a rollback that was asked for is done"
    parts.rest()
    assert parts.delivery.remote_state == Delivery.REJECTED
    assert peer.drained("q") == []
    if start is not None:
        assert peer.ask(Prepare(XID)) == Result(Code.XA_RBCOMMFAIL)


def test_a_message_sent_settled_waits_for_the_discharge(peer: Peer, control: Coordinator) -> None:
    """The delivered message will not be made available at the node until the transaction has been
    successfully discharged. If the transaction is rolled back then the delivery is not made available."""
    sender = peer.sender("q")
    for fail in (True, False):
        txn_id = control.declare()
        peer.post(sender, f"fail={fail}", txn_id, settled=True)
        assert peer.drained("q") == []
        control.discharge(txn_id, fail=fail)
    assert peer.drained("q") == ["fail=False"]


@pytest.mark.parametrize("start", [None, Start(XID)])
def test_a_message_sent_settled_that_cannot_be_taken_forbids_the_discharge(start: Start | None) -> None:
    """Should the resource be unable to process the delivery it MUST NOT allow the successful discharge of the
    associated transaction. This may be communicated by immediately destroying the controlling link on which
    the transaction was declared, or by rejecting any attempt to discharge the transaction where the fail
    flag is not set to true."""
    _, peer = filled(settings=FULL)
    control, sender = peer.coordinator(), peer.sender("q")
    txn_id = control.declare(start)
    peer.post(sender, "fits", txn_id, settled=True)
    peer.post(sender, "too much", txn_id, settled=True)
    assert not closed(sender), "a resource limit is transient"
    refusal = control.refused(Discharge(txn_id))
    assert (refusal.condition, refusal.code) == (Condition.ROLLBACK, Code.XA_RBTRANSIENT)
    assert peer.drained("q") == []
    if start is not None:
        assert peer.ask(Prepare(XID)) == Result(Code.XA_RBTRANSIENT)


def test_a_message_sent_unsettled_that_cannot_be_taken_is_rejected_in_the_transaction() -> None:
    """This informs the controller of the outcome that will be in effect at the point that the transaction is
    successfully discharged. 2. amqp:resource-limit-exceeded: … This is a transient error so the link is
    advanced."""
    _, peer = filled(settings=FULL)
    control, sender = peer.coordinator(), peer.sender("q")
    txn_id = control.declare()
    peer.post(sender, "fits", txn_id)
    delivery = peer.post(sender, "too much", txn_id)
    assert delivery.remote_state == TRANSACTIONAL
    named, outcome = told(delivery)
    assert named == txn_id
    assert outcome.descriptor == Delivery.REJECTED
    assert outcome.value[0].value[0] == Condition.RESOURCE_LIMIT
    assert delivery.settled
    assert not closed(sender)
    control.discharge(txn_id)
    assert peer.drained("q") == ["fits"]


@pytest.mark.parametrize("start", [None, Start(XID)])
def test_an_outcome_that_cannot_be_applied_any_more_forbids_the_discharge(
    world: World, peer: Peer, control: Coordinator, start: Start | None
) -> None:
    """If the resource can no longer apply the outcome that it originally indicated would be the result of a
    successful discharge then it MUST NOT allow the successful discharge of the associated transaction."""
    node = peer.receiver(None, 10)
    sender = peer.sender(str(node.remote_source.address))
    txn_id = control.declare(start)
    assert peer.post(sender, "x", txn_id).remote_state == TRANSACTIONAL
    world.close(node)
    if start is None:
        assert control.refused(Discharge(txn_id)).condition == Condition.ROLLBACK
    else:
        control.discharge(txn_id)
        assert peer.ask(Commit(XID, one_phase=True)) == Result(Code.XA_RBOTHER)


@pytest.mark.parametrize("start", [None, Start(XID)])
def test_a_store_that_is_full_forbids_the_discharge(
    world: World, peer: Peer, control: Coordinator, start: Start | None
) -> None:
    """If the resource can no longer apply the outcome …: nothing of the transaction is visible afterwards,
    and the resource goes on when there is space again."""
    sender, txn_id = peer.sender("q"), control.declare(start)
    peer.post(sender, "x", txn_id)
    if start is None:
        world.fault = StoreFull("no space left")
        refusal = control.refused(Discharge(txn_id))
    else:
        control.discharge(txn_id)
        world.fault = StoreFull("no space left")
        refusal = peer.refusal(Commit(XID, one_phase=True))
        assert refusal.xid == XID

    assert refusal.code is Code.XA_RBTRANSIENT
    assert refusal.condition == Condition.ROLLBACK
    assert "no space left" in refusal.description
    world.fault = None
    txn_id = control.declare()
    peer.post(sender, "y", txn_id)
    control.discharge(txn_id)
    assert peer.drained("q") == ["y"]
    assert world.crash().connect().drained("q") == ["y"]


def test_the_state_of_unsettled_deliveries_is_the_outcome_that_was_applied(
    world: World, peer: Peer, control: Coordinator
) -> None:
    """After a successful discharge, the state of unsettled deliveries at the resource MUST reflect the
    outcome that was applied. The controller SHOULD settle any outstanding unsettled deliveries in a timely
    fashion after the transaction has discharged."""
    sender = peer.sender("q", second=True)
    txn_id = control.declare()
    delivery = peer.post(sender, "x", txn_id)
    assert delivery.remote_state == TRANSACTIONAL
    assert not delivery.settled, "the receiver settles after the sender"
    control.discharge(txn_id)
    assert delivery.remote_state == Delivery.ACCEPTED
    assert not delivery.settled
    delivery.settle()
    world.pump()
    assert peer.drained("q") == ["x"]


def test_no_outcome_stands_after_an_unsuccessful_discharge(world: World, peer: Peer, control: Coordinator) -> None:
    """If the discharge was unsuccessful then no outcome should be associated with the unsettled
    deliveries."""
    sender = peer.sender("q", second=True)
    txn_id = control.declare()
    delivery = peer.post(sender, "x", txn_id)
    control.discharge(txn_id, fail=True)
    assert delivery.remote_state == TRANSACTIONAL, "what it names is a transaction that is gone"
    assert control.refused(Declare(Start(XID, join=True))).condition == Condition.NOT_FOUND
    delivery.settle()
    world.pump()
    assert peer.drained("q") == []
