"""These tests cover control link, declare and discharge of the transactions chapter. Each test quotes the sentence that
it tests.
"""

from __future__ import annotations

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.protocol.capabilities import CONTROL_OUTCOMES, LOCAL
from dtx.protocol.commands import CONTROL, Declare, Discharge, Start
from dtx.protocol.replies import DECLARED
from tests.dtx.broker.peer import XID, Coordinator, Peer, World, closed, condition_of, refused_with
from tests.dtx.broker.strangers import ATTACH, DISPOSITION, Stranger
from tests.dtx.protocol.wire_examples import CONTROLLERS, octets
from xa import Code


def test_select_and_declare_are_the_octets_of_the_page() -> None:
    """docs/wire.md: the resource's answer to an attach, and its outcome of a declare."""
    stranger = Stranger(World())
    stranger.greet()
    stranger.attach(0, CONTROLLERS)
    ((_, _, answer),) = [said for said in stranger.told() if said[1] == ATTACH]
    assert encode(answer[6]) == octets()["coordinator, as the resource's answer"]
    stranger.transfer(0, 0, octets()["a message on the control link"])
    ((_, _, outcome),) = [said for said in stranger.told() if said[1] == DISPOSITION]
    assert encode(outcome[4]) == octets()["declared"]
    stranger.leave()


def test_a_txn_id_must_be_obtained_by_declaring(peer: Peer, control: Coordinator) -> None:
    """To begin transactional work, the transaction controller must obtain a transaction identifier from the
    resource."""
    first, second = control.declare(), control.declare()
    assert first != second
    assert 1 <= len(first) <= 32, "A transaction-id may be up to 32 octets of binary data."
    refused = peer.post(peer.sender("q"), "x", b"never declared")
    assert refused_with(refused).condition == Condition.UNKNOWN_ID


def test_other_sections_of_a_control_message_are_ignored(world: World, control: Coordinator) -> None:
    """Other standard message sections such as the header section SHOULD be ignored."""
    message = Message(durable=True, priority=9, ttl=1.0, properties={"a": "b"}, annotations={"c": "d"})
    sections = bytes(message.encode())
    body = b"\x00\x53\x77" + CONTROL.encode(Declare())
    delivery = control.peer.send_octets(control.link, sections + body, "c")
    world.pump()
    assert delivery.remote_state == DECLARED


@pytest.mark.parametrize("how", ["a declare that is settled", "a discharge that is settled", "in a transaction"])
def test_a_control_message_is_not_sent_settled(world: World, control: Coordinator, how: str) -> None:
    """This message MUST NOT be sent settled as the sender is required to receive and interpret the outcome
    of the declare at the receiver. If the coordinator receives a transfer that has been settled by the
    sender, it should detach with an appropriate error. As with the declare message, it is an error if the
    sender sends the transfer pre-settled. No transactional work is allowed on the control link."""
    txn_id = control.declare()
    if how == "in a transaction":
        control.peer.send_octets(control.link, b"\x00\x53\x77" + CONTROL.encode(Declare()), "c", txn_id)
    else:
        control.send(CONTROL.encode(Declare() if "declare" in how else Discharge(txn_id)), settled=True)
    world.pump()
    assert closed(control.link)
    assert condition_of(control.link).condition == Condition.NOT_ALLOWED


def test_a_refused_declare_conveys_a_transaction_error(world: World) -> None:
    """If the coordinator was unable to perform the declare as specified by the transaction controller, the
    transaction coordinator MUST convey the error to the controller as a transaction-error. If the source
    for the link to the coordinator supports the rejected outcome, then the message MUST be rejected with
    this outcome carrying the transaction-error."""
    control = world.connect().coordinator(outcomes=CONTROL_OUTCOMES)
    control.declare(Start(XID))
    refusal = control.refused(Declare(Start(XID)))
    assert (refusal.condition, refusal.code, refusal.xid) == (Condition.NOT_ALLOWED, Code.XAER_DUPID, XID)
    assert not closed(control.link), "the link goes on"
    control.declare()


def test_a_refused_declare_detaches_where_rejected_is_not_supported(world: World) -> None:
    """If the source does not support the rejected outcome, the transactional resource MUST detach the link
    to the coordinator, with the detach performative carrying the transaction-error."""
    control = world.connect().coordinator(outcomes=("amqp:accepted:list",))
    control.send(CONTROL.encode(Declare(Start(XID, join=True))))
    world.pump()
    assert closed(control.link)
    assert condition_of(control.link).condition == Condition.NOT_FOUND
    assert condition_of(control.link).xid == XID


def test_controllers_have_the_outcomes_to_offer() -> None:
    """Transaction controllers SHOULD establish a control link that allows the rejected outcome."""
    control = World().connect().coordinator(outcomes=CONTROL_OUTCOMES)
    assert control.refused(Discharge(b"none")).condition == Condition.UNKNOWN_ID
    assert not closed(control.link)


def test_a_refused_discharge_conveys_a_transaction_error(world: World) -> None:
    """Should the coordinator be unable to complete the discharge, the coordinator MUST convey the error to
    the controller as a transaction-error. If the source for the link to the coordinator supports the
    rejected outcome, then the message MUST be rejected with this outcome carrying the transaction-error."""
    control = world.connect().coordinator(outcomes=CONTROL_OUTCOMES)
    refusal = control.refused(Discharge(b"\x07"))
    assert refusal.condition == Condition.UNKNOWN_ID, "The specified txn-id does not exist."
    txn_id = control.declare()
    world.pass_time(world.settings.local_timeout_s + 1)
    refusal = control.refused(Discharge(txn_id))
    assert refusal.condition == Condition.TIMEOUT, "The work represented by this transaction took too long."
    assert refusal.code is Code.XA_RBTIMEOUT
    assert control.refused(Discharge(txn_id)).condition == Condition.UNKNOWN_ID, "it is over"


def test_a_refused_discharge_detaches_where_rejected_is_not_supported(world: World) -> None:
    """If the source does not support the rejected outcome, the transactional resource MUST detach the link
    to the coordinator, with the detach performative carrying the transaction-error."""
    control = world.connect().coordinator(outcomes=("amqp:accepted:list",))
    control.send(CONTROL.encode(Discharge(b"none")))
    world.pump()
    assert condition_of(control.link).condition == Condition.UNKNOWN_ID


def test_a_discharge_with_fail_is_always_completed(world: World, peer: Peer, control: Coordinator) -> None:
    """Note that the coordinator MUST always be able to complete a discharge where the fail flag is set to
    true (since coordinator failure leads to rollback, which is what the controller is asking for)."""
    for start, pause_s in ((None, 0), (None, world.settings.local_timeout_s + 1), (Start(XID), 10_000)):
        txn_id = control.declare(start)
        peer.post(peer.sender("q"), "x", txn_id)
        world.pass_time(pause_s)
        control.discharge(txn_id, fail=True)
    assert peer.drained("q") == []
    for _ in range(200):  # FLOW(...,handle=1, link-credit=1), and again for every control message that is answered
        control.discharge(control.declare())
        assert control.link.credit > 0


@pytest.mark.parametrize("how", ["close", "detach", "end", "vanish"])
def test_a_closed_control_link_rolls_back(world: World, how: str) -> None:
    """If the control link is closed while there exist non-discharged transactions it created, then all such
    transactions are immediately rolled back, and attempts to perform further transactional work on them
    will lead to failure. Note that links to the coordinator cannot be resumed."""
    peer, watcher = world.connect(), world.connect()
    session = peer.new_session()
    control, other = peer.coordinator(session=session), peer.coordinator()
    sender = peer.sender("q")
    lost, kept = [control.declare(), control.declare()], other.declare()
    for txn_id in (*lost, kept):
        peer.post(sender, txn_id.hex(), txn_id)
    {"close": control.link.close, "detach": control.link.detach, "end": session.close, "vanish": peer.vanish}[how]()
    world.pump()
    assert watcher.drained("q") == []
    if how == "vanish":
        assert world.queue().counters.pending == 0
        return

    for txn_id in lost:
        assert peer.post(sender, "late", txn_id).remote_state == Delivery.REJECTED
        assert other.refused(Discharge(txn_id)).condition == Condition.UNKNOWN_ID
    other.discharge(kept)
    assert peer.drained("q") == [kept.hex()]


def test_a_global_id_is_associated_with_its_global_transaction(world: World, peer: Peer, control: Coordinator) -> None:
    """Specifies that the txn-id allocated by this declare MUST be associated work with the indicated global
    transaction. If not set, the allocated txn-id will associated work with a local transaction."""
    sender = peer.sender("q")
    local, distributed = control.declare(), control.declare(Start(XID))
    peer.post(sender, "local", local)
    peer.post(sender, "global", distributed)
    control.discharge(local)
    control.discharge(distributed)
    assert peer.drained("q") == ["local"], "the other waits for the branch's outcome"
    assert [entry.queue.name for entry in world.container.registry.find(XID).work.posts] == ["q"]


def test_a_global_id_is_refused_without_the_capability(world: World) -> None:
    """This field MUST NOT be set if the Coordinator does not have the distributed-transactions capability."""
    control = world.connect().coordinator((LOCAL,))
    refusal = control.refused(Declare(Start(XID)))
    assert (refusal.condition, refusal.code) == (Condition.ILLEGAL_STATE, Code.XAER_PROTO)
    assert len(world.container.registry) == 0


def test_a_txn_id_means_nothing_on_another_connection(world: World) -> None:
    """Each transactional operation requested is explicitly identified with the desired transaction-id and
    therefore may occur on any link within the controlling Session, or, if permitted by the capabilities of
    the controller, any link on the controlling Connection."""
    peer, stranger = world.connect(), world.connect()
    txn_id = peer.coordinator().declare()
    delivery = stranger.post(stranger.sender("q"), "x", txn_id)
    assert delivery.remote_state == Delivery.REJECTED


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (b"", Condition.DECODE_ERROR),
        (b"\xff", Condition.DECODE_ERROR),
        (encode("declare"), Condition.DECODE_ERROR),
        (encode(Described(Ulong(0x31), [None, None])), Condition.INVALID_FIELD),
        (encode(Described(Ulong(0x32), [])), Condition.INVALID_FIELD),
        (encode(Described(Ulong(0x32), ["txn"])), Condition.INVALID_FIELD),
        (encode(Described(Symbol("amqp:nonsense:list"), [])), Condition.NOT_IMPLEMENTED),
    ],
)
def test_a_control_message_that_is_none_is_rejected(control: Coordinator, body: bytes, condition: Condition) -> None:
    """… whose body consists of the declare type in a single amqp-value section."""
    _, _, refusal = control.outcome(body)
    assert refusal is not None
    assert refusal.condition == condition
    control.declare()
