"""These tests cover retirement and acquisition of the transactions chapter, and how settlement affects them."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Described, Disposition, Message, Receiver, ulong

from dtx.amqp.conditions import Condition
from dtx.broker.settings import Limits, Settings
from dtx.protocol.commands import CONTROL, Commit, Discharge, Prepare, Start
from dtx.protocol.replies import TRANSACTIONAL
from tests.cases import each
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, closed, condition_of, filled, flow, say_state, told


def consuming(
    *bodies: str, credit: int = 10, settings: Settings | None = None
) -> tuple[World, Peer, Coordinator, Receiver]:
    """A world with these messages in q, and somebody who consumes them."""
    world, peer = filled(*bodies, settings=settings)
    return world, peer, peer.coordinator(), peer.receiver("q", credit)


# --- retirement --------------------
@each("settle", ["no", "with the outcome", "later"])
def test_a_discharge_applies_the_outcome(settle: str) -> None:
    """Upon a successful discharge the outcome specified by the controller is applied at the source. On a
    successful discharge, the resource will apply the given outcome and may immediately settle the
    transfers."""
    world, peer, control, receiver = consuming("x")
    txn_id = control.declare()
    delivery, _ = peer.taken(receiver)
    peer.retire(delivery, txn_id, settle=settle == "with the outcome")
    if settle == "later":
        delivery.settle()
        world.pump()
    assert world.queue().counters.held == 1
    control.discharge(txn_id)
    assert world.queue().depth == 0
    assert world.crash().connect().drained("q") == []
    if settle == "no":
        assert delivery.settled
        assert delivery.remote_state == Delivery.ACCEPTED


def test_after_a_rollback_the_delivery_is_live() -> None:
    """In the event of a controller initiated rollback (a discharge where the fail flag is set to true) or a
    resource initiated rollback (the discharge message being rejected, …) the outcome will not be applied,
    and the deliveries will still be "live" and will remain acquired by the controller - i.e. the resource
    should expect the controller to request a disposition for the delivery (either transactionally on a new
    transaction, or non-transactionally). Otherwise the state reverts to that which occurred before the
    controller sent its (transactional) disposition."""
    world, peer, control, receiver = consuming("x", "y")
    first, second = peer.taken(receiver)[0], peer.taken(receiver)[0]
    txn_id = control.declare()
    peer.retire(first, txn_id)
    peer.retire(second, txn_id)
    control.discharge(txn_id, fail=True)
    assert not first.settled
    assert world.queue().counters.held == 2
    txn_id = control.declare()
    peer.retire(first, txn_id)
    control.discharge(txn_id)
    assert world.queue().depth == 1
    peer.settle(second, Delivery.ACCEPTED)
    assert world.queue().depth == 0


@each(("settle", "fail"), [(False, False), (False, True), (True, False), (True, True)])
def test_what_a_second_transaction_retires_is_not_settled_by_the_first(settle: bool, fail: bool) -> None:
    """The message was delivered again at once, and the second transaction committed all the same."""
    world, peer, control, receiver = consuming("x")
    delivery = peer.taken(receiver)[0]
    first = control.declare()
    peer.retire(delivery, first)
    control.discharge(first, fail=True)
    second = control.declare()
    peer.retire(delivery, second)
    peer.retire(delivery, first, settle=settle)
    assert peer.take(receiver) is None, "it is not delivered again"
    control.discharge(second, fail=fail)
    assert world.crash().connect().drained("q") == (["x"] if fail else [])


@each("start", [None, Start(XID)])
def test_a_rejected_discharge_leaves_deliveries_live(start: Start | None) -> None:
    """… or a resource initiated rollback (the discharge message being rejected, or the link to the
    coordinator being detached with an error)."""
    world, peer, control, receiver = consuming("x")
    delivery = peer.taken(receiver)[0]
    txn_id = control.declare(start)
    peer.retire(delivery, txn_id)
    world.pass_time(world.settings.local_timeout_s + 1)
    assert control.refused(Discharge(txn_id)).condition == Condition.TIMEOUT
    assert not delivery.settled
    peer.settle(delivery, Delivery.ACCEPTED)
    assert world.queue().depth == 0


@each("settle", [False, True])
def test_a_settled_delivery_gets_the_default_outcome_after_a_rollback(settle: bool) -> None:
    """At this point the controller can no longer influence the state of the delivery as it is settled, and
    the resource MUST apply the default outcome. So it is where the delivery is reverted, and settled then without a
    new outcome."""
    world, peer, control, receiver = consuming("x")
    txn_id = control.declare()
    delivery, _ = peer.taken(receiver)
    peer.retire(delivery, txn_id, settle=settle)
    assert peer.take(receiver) is None
    control.discharge(txn_id, fail=True)
    if not settle:
        delivery.settle()
        world.pump()
    assert peer.taken(receiver)[1].delivery_count == 1, "our default is another attempt, counted"
    assert world.crash().connect().drained("q") == ["x"]


@pytest.mark.parametrize(
    ("outcome", "left", "count"),
    [(0x26, ["x"], 0), (0x27, ["x"], 0), (0x24, [], None), (0x25, [], None)],
)
def test_the_default_outcome_is_the_one_of_the_source(outcome: int, left: list[str], count: int | None) -> None:
    """… the resource MUST apply the default outcome: the one that the receiver's attach names."""
    world, peer, control, _ = consuming("x", credit=0)
    peer.default_outcome = outcome
    receiver = peer.receiver("q", 1)
    txn_id = control.declare()
    peer.retire(peer.taken(receiver)[0], txn_id, settle=True)
    control.discharge(txn_id, fail=True)
    assert peer.drained("q") == left
    if count is not None:
        world.more(receiver, 1)
        taken = peer.taken(receiver)
        assert taken[1].delivery_count == count


@each(("first", "last", "left"), [(0x24, 0x26, ["x"]), (0x26, 0x24, [])])
def test_an_outcome_may_be_replaced_until_the_discharge(first: int, last: int, left: list[str]) -> None:
    """The controller is free to update the state: the last outcome before the discharge counts."""
    world, peer, control, receiver = consuming("x")
    delivery, _ = peer.taken(receiver)
    txn_id = control.declare()
    peer.retire(delivery, txn_id, first)
    peer.retire(delivery, txn_id, last)
    control.discharge(txn_id)
    world.close(receiver)
    assert peer.drained("q") == left


def test_a_delivery_and_its_outcome_are_not_of_different_transactions() -> None:
    """However, the delivery MUST NOT be associated with a different non discharged transaction than the
    outcome. If this happens then the control link MUST be terminated with a transaction-rollback error."""
    world, peer, control, receiver = consuming("x", "y")
    other = peer.coordinator()
    first, second = control.declare(), other.declare()
    delivery, fine = peer.taken(receiver)[0], peer.taken(receiver)[0]
    peer.retire(delivery, first)
    peer.retire(fine, second)
    peer.retire(delivery, second)
    assert closed(other.link)
    assert condition_of(other.link).condition == Condition.ROLLBACK
    assert not closed(control.link)
    control.discharge(first)
    assert delivery.settled
    assert not fine.settled
    assert world.queue().depth == 1


# --- acquisition --------------------
def acquiring(
    *bodies: str, credit: int = 10, settled: bool = False
) -> tuple[World, Peer, Coordinator, Receiver, bytes]:
    """Somebody who acquires messages of q under a transaction."""
    world, peer, control, _ = consuming(*bodies, credit=0)
    receiver = peer.receiver("q", settled=settled)
    txn_id = control.declare()
    peer.acquire_for(receiver, txn_id)
    world.more(receiver, credit)
    return world, peer, control, receiver, txn_id


def test_what_is_acquired_belongs_to_the_transaction_of_the_flow() -> None:
    """This state is determined by the controller by specifying a txn-id entry in the properties map of the
    flow frame."""
    world, peer, control, receiver, txn_id = acquiring("x", "y")
    for _ in range(2):
        delivery = peer.taken(receiver)[0]
        assert told(delivery)[0] == txn_id
        peer.retire(delivery, txn_id)
    control.discharge(txn_id)
    assert world.queue().depth == 0


def test_the_resource_tells_for_which_transaction_it_will_acquire() -> None:
    """In the case of the flow frame traveling from resource to controller, the txn-id does not indicate
    work that has been performed, but indicates with which transaction future transfers from that link will
    be performed."""
    world, peer, control, receiver, txn_id = acquiring()
    receiver.drain(0)
    world.pump()
    assert peer.flows_seen() == [txn_id]
    control.discharge(txn_id)
    peer.acquire_for(receiver, None)
    receiver.flow(1)
    receiver.drain(0)
    world.pump()
    assert peer.flows_seen()[1:] in ([], [None])


@each("fail", [False, True])
@each("settled", [False, True])
def test_a_rollback_takes_acquisition_and_outcome_back(settled: bool, fail: bool) -> None:
    """An outcome sent by the controller before the transaction has discharged MUST be associated with the
    same transaction. In the even of a successful discharge the outcome is applied at the source, otherwise
    both the acquisition and outcome are rolled back. Delivery Sent Settled By Resource: In the event of a
    successful discharge the outcome applies at the resource, otherwise the acquisition and outcome are
    rolled back."""
    world, peer, control, receiver, txn_id = acquiring("x", settled=settled, credit=1)
    delivery, _ = peer.taken(receiver)
    assert delivery.settled == settled
    if not settled:
        peer.retire(delivery, txn_id)
    assert world.queue().counters.held == 1
    control.discharge(txn_id, fail=fail)
    assert world.queue().counters.held == 0
    assert peer.drained("q") == (["x"] if fail else [])
    if not settled:
        assert delivery.settled
        assert delivery.remote_state == (Disposition.RELEASED if fail else Disposition.ACCEPTED)


def test_an_outcome_outside_of_the_transaction_terminates_the_control_link() -> None:
    """An outcome sent by the controller before the transaction has discharged MUST be associated with the
    same transaction."""
    _world, peer, control, receiver, _ = acquiring("x", credit=1)
    delivery = peer.taken(receiver)[0]
    peer.settle(delivery, Delivery.ACCEPTED)
    assert condition_of(control.link).condition == Condition.ROLLBACK
    assert peer.drained("q") == ["x"]


def test_the_txn_id_of_a_link_is_cleared_by_the_discharge() -> None:
    """When a transaction is discharged, the txn-id of any link endpoints will be cleared. While the txn-id
    is cleared when the transaction is discharged, this does not affect the level of outstanding credit.

    The acquisition is decided by the discharge; the delivery is the controller's, and its outcome comes later."""
    world, peer, control, receiver, txn_id = acquiring("x", credit=5)
    first, _ = peer.taken(receiver)
    control.discharge(txn_id)
    assert not first.settled
    peer.fill("q", "y")
    second, _ = peer.taken(receiver)
    assert int(second.remote_state) == 0, "acquired with the credit that was left, outside of any transaction"
    assert world.queue().counters.held == 2
    peer.settle(first, Delivery.ACCEPTED)
    assert world.queue().depth == 1


@each("drains", [False, True])
def test_drain_leaves_no_credit_before_the_discharge(drains: bool) -> None:
    """To prevent the sending link endpoint from acquiring outside of any transaction, the controller SHOULD
    ensure there is no outstanding credit at the sender before it discharges the transaction. The controller
    may do this by either setting the drain mode of the sending link endpoint to true before discharging the
    transaction, or by reducing the link-credit to zero, and waiting to hear back that the sender has seen this state
    change."""
    world, peer, control, receiver, txn_id = acquiring("x", credit=0 if drains else 5)
    if drains:
        receiver.drain(5)
        world.pump()
    peer.retire(peer.taken(receiver)[0], txn_id)
    if drains:
        assert (receiver.credit, receiver.draining()) == (0, False)
    else:
        peer.inject(flow(peer.handle_of(receiver), 1, 0, None, echo=True))
        told = [(one.delivery_count, one.link_credit) for one in peer.flows if not one.link_credit]
        assert told == [(1, 0)], "the resource answers that it has seen it"
    control.discharge(txn_id)
    peer.fill("q", "y")
    assert peer.take(receiver) is None


@each("kind", ["browse", "sender", "control"])
def test_a_link_without_transactional_acquisition_is_terminated(kind: str) -> None:
    """If the link endpoint does not support transactional acquisition, the link MUST be terminated with a
    not-implemented error."""
    _, peer, control, _ = consuming("x", credit=0)
    link: Any = {"browse": peer.receiver("q", browse=True), "sender": peer.sender("q"), "control": control.link}[kind]
    peer.flow_for(link, control.declare())
    assert condition_of(link).condition == Condition.NOT_IMPLEMENTED
    assert peer.drained("q") == ["x"]


def partly_sent() -> tuple[World, Peer, Coordinator, Receiver, bytes]:
    """A transaction that has acquired a message of which the receiver takes only the first frames."""
    world, peer = filled("x" * 200_000, settings=Settings(limits=Limits(output_octets=10 * 1024 * 1024)))
    control = peer.coordinator()
    session = peer.connection.session()
    session.incoming_capacity = 2 * 32_768
    session.open()
    receiver = peer.receiver("q", session=session)
    txn_id = control.declare()
    peer.acquire_for(receiver, txn_id)
    world.more(receiver, 1)
    assert receiver.current is not None
    assert receiver.current.partial
    return world, peer, control, receiver, txn_id


def test_a_failed_discharge_ends_a_message_that_is_partly_sent_first() -> None:
    """If the discharge indicates the failure of the transaction the resource MUST abort or complete the
    sending the remainder of the message before completing the discharge."""
    world, peer, control, receiver, txn_id = partly_sent()
    discharged = control.send(CONTROL.encode(Discharge(txn_id, fail=True)))
    world.pump()
    assert int(discharged.remote_state) == 0, "the window is full: the abort can't be sent, so nothing is answered"
    while receiver.current is not None and not receiver.current.aborted:
        assert receiver.recv(receiver.current.pending) is not None
        world.pump()
    assert receiver.current is not None
    assert receiver.current.aborted
    world.pump()
    assert discharged.remote_state == Delivery.ACCEPTED
    assert [len(body) for body in peer.drained("q")] == [200_000]


def test_a_discharge_decides_about_a_message_that_is_partly_sent() -> None:
    """If a transaction is discharged at a point where a message has been transactionally acquired, but has
    not been fully sent (…) then the resource MUST interpret this to mean that the fate of the acquisition
    is fully decided by the discharge."""
    world, peer, control, receiver, txn_id = partly_sent()
    control.discharge(txn_id)
    peer.acquire_for(receiver, None)
    octets = b""
    delivery = receiver.current
    assert delivery is not None
    while delivery.partial or delivery.pending:
        octets += receiver.recv(delivery.pending) or b""
        world.pump()
    message = Message()
    message.decode(octets)
    assert message.body == "x" * 200_000, "it is sent to its end, and stays acquired"
    assert peer.drained("q") == []
    peer.settle(delivery, Delivery.ACCEPTED)
    assert world.queue().depth == 0


@each(
    ("txn_id", "flows", "condition"),
    [
        (None, False, Condition.NOT_IMPLEMENTED),
        (b"unknown", False, Condition.UNKNOWN_ID),
        (b"unknown", True, Condition.UNKNOWN_ID),
        (5, True, Condition.INVALID_FIELD),
    ],
)
def test_work_in_no_transaction_closes_the_link(txn_id: Any, condition: Condition, *, flows: bool) -> None:
    """… attempts to perform further transactional work on them will lead to failure: the message is not lost. What a
    transactional-state names as its outcome is one of the terminal delivery states, or nothing is done."""
    world, peer, control, receiver = consuming("x", "y")
    if flows:
        peer.flow_for(receiver, txn_id)
    else:
        delivery, _ = peer.taken(receiver)
        outcome = Described(ulong(0x99 if txn_id is None else 0x24), [])
        say_state(delivery, TRANSACTIONAL, [txn_id or control.declare(), outcome])
        world.pump()
    assert condition_of(receiver).condition == condition
    assert world.connect().drained("q") == ["x", "y"]


# --- sent settled --------------------
def about_to_send_settled(*bodies: str, cached_size: int = 0) -> tuple[World, Peer, Coordinator, Receiver, bytes]:
    """Messages that a transaction has acquired to be sent settled, while the store reads their payloads."""
    world, peer = filled(*bodies, cached_size=cached_size)
    control, receiver = peer.coordinator(), peer.receiver("q", settled=True)
    txn_id = control.declare()
    peer.acquire_for(receiver, txn_id)
    receiver.flow(len(bodies))
    world.pump(store=False)
    assert world.queue().counters.held == len(bodies)
    assert world.jobs
    return world, peer, control, receiver, txn_id


@each("closed", [False, True])
def test_a_message_that_was_not_sent_is_not_the_transactions(closed: bool) -> None:
    """The credit is taken back, or the link closed. The transaction's commit took the message out of its queue,
    although somebody else had it by then."""
    world, peer, control, receiver, txn_id = about_to_send_settled("x")
    if closed:
        receiver.close()
        world.pump(store=False)
    else:
        peer.connected = False  # the network is slow: what follows is done before the payload is read
        peer.server.received(flow(peer.handle_of(receiver), 0, 0, None))
        peer.connected = True

    world.pump()
    assert peer.take(receiver) is None
    other = world.connect()
    other.first()
    control.discharge(txn_id)
    other.vanish()
    world.pump()
    assert world.connect().drained("q") == ["x"]


@each("fail", [False, True])
@each("bodies", [["x"], ["x" * 3_000_000], ["x" * 3_000_000, "y", "z"]])
def test_what_is_discharged_before_it_was_sent_is_neither_lost_nor_sent_twice(fail: bool, bodies: list[str]) -> None:
    """The small ones wait for the pieces of the large one."""
    world, peer, control, receiver, txn_id = about_to_send_settled(*bodies, cached_size=100 if bodies[1:] else 0)
    reading = world.jobs.popleft()
    discharged = control.send(CONTROL.encode(Discharge(txn_id, fail=fail)))
    world.pump()
    assert discharged.remote_state == Delivery.ACCEPTED
    reading()
    world.container.resource.settle()
    world.pump()
    received = peer.bodies(receiver)
    world.close(receiver)
    assert sorted([*received, *peer.drained("q")]) == sorted(bodies)


def test_the_places_of_messages_are_in_the_order_in_which_they_were_sent() -> None:
    """A message whose payload has to be read first is acquired before one of another link, and sent after it."""
    world, peer = filled("x" * 1000, queue="long", cached_size=100)
    peer.fill("short", "x")
    control = peer.coordinator()
    receivers = [peer.receiver(address, settled=True) for address in ("long", "short")]
    txn_id = control.declare(Start(XID))
    for receiver in receivers:
        peer.acquire_for(receiver, txn_id)
        receiver.flow(1)
        world.pump(store=False)

    assert [len(peer.bodies(receiver)) for receiver in receivers] == [0, 1]
    world.pump()
    assert [len(peer.bodies(receiver)) for receiver in receivers] == [1, 0]
    control.end(txn_id)
    assert peer.ask(Prepare(XID, failed=(0,))) == OK
    assert peer.ask(Commit(XID)) == OK
    for receiver in receivers:
        receiver.close()
    world.pump()
    assert (peer.drained("long"), peer.drained("short")) == ([], ["x"])
