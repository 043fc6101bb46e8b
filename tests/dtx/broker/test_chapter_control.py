"""These tests cover control link, declare and discharge of the transactions chapter. Each test quotes the sentence that
it tests.
"""

from __future__ import annotations

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.protocol.capabilities import CONTROL_OUTCOMES, DISTRIBUTED, LOCAL, MULTI_SSNS, MULTI_TXNS
from dtx.protocol.commands import CONTROL, Declare, Discharge, Start
from dtx.protocol.replies import DECLARED
from tests.dtx.broker.peer import Coordinator, Peer, World, closed, condition_of
from tests.dtx.broker.strangers import ATTACH, DISPOSITION, Stranger
from tests.dtx.protocol.wire_examples import CONTROLLERS, octets
from xa import Code, Xid

XID = Xid(1, b"gtrid", b"bqual")


def capabilities(world: World, *desired: str) -> set[str]:
    """What the coordinator says it has."""
    control = world.connect().coordinator(desired)
    data = control.link.remote_target.capabilities
    data.rewind()
    data.next()
    if data.type() != data.ARRAY:
        return {str(data.get_symbol())}
    return {str(item) for item in data.get_py_array().elements}


def test_the_coordinator_tells_what_it_has() -> None:
    """When sent by the resource (the receiving endpoint), defined the actual capabilities of the
    coordinator."""
    plain = {LOCAL, MULTI_TXNS, MULTI_SSNS}
    assert capabilities(World(), LOCAL) == plain
    assert capabilities(World(), LOCAL, DISTRIBUTED) == plain | {DISTRIBUTED, "xabridge:end-and-prepare"}
    assert "amqp:promotable-transactions" not in capabilities(World(), "amqp:promotable-transactions")


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
    assert refused.remote_state == Delivery.REJECTED
    assert refused.remote.condition is not None
    assert refused.remote.condition.name == Condition.UNKNOWN_ID


def test_other_sections_of_a_control_message_are_ignored(world: World, control: Coordinator) -> None:
    """Other standard message sections such as the header section SHOULD be ignored."""
    message = Message(durable=True, priority=9, ttl=1.0, properties={"a": "b"}, annotations={"c": "d"})
    sections = bytes(message.encode())
    body = b"\x00\x53\x77" + CONTROL.encode(Declare())
    delivery = control.peer.send_octets(control.link, sections + body, "c")
    world.pump()
    assert delivery.remote_state == DECLARED


@pytest.mark.parametrize("command", [Declare(), Discharge(b"\x00\x00\x00\x01")])
def test_a_control_message_is_not_sent_settled(
    world: World, control: Coordinator, command: Declare | Discharge
) -> None:
    """This message MUST NOT be sent settled as the sender is required to receive and interpret the outcome
    of the declare at the receiver. If the coordinator receives a transfer that has been settled by the
    sender, it should detach with an appropriate error. As with the declare message, it is an error if the
    sender sends the transfer pre-settled."""
    control.declare()
    control.send(CONTROL.encode(command), settled=True)
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
    sender = peer.sender("q")
    txn_id = control.declare()
    peer.post(sender, "x", txn_id)
    control.discharge(txn_id, fail=True)
    txn_id = control.declare()
    world.pass_time(world.settings.local_timeout_s + 1)
    control.discharge(txn_id, fail=True)
    txn_id = control.declare(Start(XID))
    world.pass_time(world.settings.branch_timeout_s + 1)
    control.discharge(txn_id, fail=True)
    assert peer.drained("q") == []


def test_a_closed_control_link_rolls_back(world: World, peer: Peer) -> None:
    """If the control link is closed while there exist non-discharged transactions it created, then all such
    transactions are immediately rolled back, and attempts to perform further transactional work on them
    will lead to failure."""
    control, other = peer.coordinator(), peer.coordinator()
    sender = peer.sender("q")
    first, second, kept = control.declare(), control.declare(), other.declare()
    for txn_id in (first, second, kept):
        peer.post(sender, txn_id.hex(), txn_id)
    control.link.close()
    world.pump()
    for txn_id in (first, second):
        late = peer.post(sender, "late", txn_id)
        assert late.remote_state == Delivery.REJECTED
        assert other.refused(Discharge(txn_id)).condition == Condition.UNKNOWN_ID
    other.discharge(kept)
    assert peer.drained("q") == [kept.hex()]


@pytest.mark.parametrize("how", ["detach", "end", "vanish"])
def test_a_control_link_that_ends_in_any_way_rolls_back(world: World, how: str) -> None:
    """Note that links to the coordinator cannot be resumed."""
    peer, watcher = world.connect(), world.connect()
    session = peer.new_session()
    control = peer.coordinator(session=session)
    txn_id = control.declare()
    peer.post(peer.sender("q"), "x", txn_id)
    if how == "detach":
        control.link.detach()
    elif how == "end":
        session.close()
    else:
        peer.vanish()
    world.pump()
    assert watcher.drained("q") == []
    assert world.container.resource.queues["q"].pending == 0
    if how != "vanish":
        assert peer.coordinator().refused(Discharge(txn_id)).condition == Condition.UNKNOWN_ID


def test_no_work_is_allowed_on_the_control_link(world: World, control: Coordinator) -> None:
    """No transactional work is allowed on the control link."""
    txn_id = control.declare()
    control.peer.send_octets(control.link, b"\x00\x53\x77" + CONTROL.encode(Declare()), "c", txn_id)
    world.pump()
    assert condition_of(control.link).condition == Condition.NOT_ALLOWED


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


def test_several_transactions_per_session_and_sessions_per_transaction(peer: Peer, control: Coordinator) -> None:
    """Support multiple active transactions on a single session. Support transactions whose txn-id is used
    across sessions on one connection."""
    other = peer.sender("q", peer.new_session())
    sender = peer.sender("q")
    first, second = control.declare(), control.declare()
    peer.post(sender, 1, first)
    peer.post(other, 2, second)
    peer.post(other, 3, first)
    control.discharge(first)
    assert peer.drained("q") == [1, 3]
    control.discharge(second, fail=True)
    assert peer.drained("q") == [1, 3]


def test_a_txn_id_means_nothing_on_another_connection(world: World) -> None:
    """Each transactional operation requested is explicitly identified with the desired transaction-id and
    therefore may occur on any link within the controlling Session, or, if permitted by the capabilities of
    the controller, any link on the controlling Connection."""
    peer, stranger = world.connect(), world.connect()
    txn_id = peer.coordinator().declare()
    delivery = stranger.post(stranger.sender("q"), "x", txn_id)
    assert delivery.remote_state == Delivery.REJECTED


def test_credit_is_replenished(control: Coordinator) -> None:
    """FLOW(...,handle=1, link-credit=1), and again for every control message that is answered."""
    for _ in range(200):
        control.discharge(control.declare())
        assert control.link.credit > 0


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


def test_the_control_link_is_flooded(world: World) -> None:
    """Declares beyond what one connection may have are refused, and others notice nothing."""
    peer, other = world.connect(), world.connect()
    control = peer.coordinator()
    for _ in range(world.settings.limits.transactions):
        control.declare()
    assert control.refused(Declare()).condition == Condition.RESOURCE_LIMIT
    other.coordinator().declare()
