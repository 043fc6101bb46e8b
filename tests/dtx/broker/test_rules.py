"""These tests cover the design's rules for a resource, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery, Message

from dtx.amqp.conditions import Condition
from dtx.broker.access.permissions import Coordination, Permissions, Rule
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.addresses import branch_address
from dtx.protocol.commands import (
    Commit,
    Complete,
    Declare,
    Fence,
    Forget,
    Found,
    Prepare,
    Recover,
    Rollback,
    Start,
)
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import Details, Holding, Recovered, Result
from dtx.store.contract import CHUNK
from tests.dtx.broker.peer import Coordinator, Peer, World, closed, condition_of
from xa import Code, Xid
from xa.tables import BranchState

XID = Xid(1, b"gtrid", b"bqual")
OK = Result(Code.XA_OK)


def working(xid: Xid = XID, settings: Settings | None = None) -> tuple[World, Peer, Coordinator, bytes]:
    """A branch that retires "in" from in and posts "out" to out, and is associated still."""
    world = World(settings)
    peer = world.connect()
    peer.post(peer.sender("in"), "in")
    control = peer.coordinator()
    txn_id = control.declare(Start(xid))
    receiver = peer.receiver("in", 1)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id)
    peer.post(peer.sender("out"), "out", txn_id)
    return world, peer, control, txn_id


def prepared(xid: Xid = XID, settings: Settings | None = None) -> tuple[World, Peer]:
    """The same, prepared."""
    world, peer, control, txn_id = working(xid, settings)
    control.discharge(txn_id)
    assert peer.ask(Prepare(xid)) == OK
    return world, peer


def refusal(answer: Any) -> Refusal:
    """An answer that is one."""
    assert isinstance(answer, Refusal), answer
    return answer


def queues(world: World) -> tuple[list[Any], list[Any]]:
    """What can be had from in and out."""
    peer = world.connect()
    return peer.drained("in"), peer.drained("out")


# --- 1: every association ended; lost work is rollback-only --------------------
@pytest.mark.parametrize("lost", ["connection", "session", "control link"])
def test_work_that_was_lost_while_associated_is_rollback_only(world: World, lost: str) -> None:
    peer, other = world.connect(), world.connect()
    peer.post(peer.sender("in"), "in")
    session = peer.new_session()
    control = peer.coordinator(session=session)
    txn_id = control.declare(Start(XID))
    peer.post(peer.sender("out"), "out", txn_id)
    receiver = peer.receiver("in", 1)
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id, settle=True)
    receiver.close()
    if lost == "connection":
        peer.vanish()
    elif lost == "session":
        session.close()
    else:
        control.link.close()
    world.pump()
    assert queues(world) == (["in"], []), "its locks are free"
    assert other.coordinator().refused(Declare(Start(XID, join=True))).code is Code.XA_RBCOMMFAIL
    assert other.ask(Prepare(XID)) == Result(Code.XA_RBCOMMFAIL)
    assert refusal(other.ask(Prepare(XID))).code is Code.XAER_NOTA


def test_an_ended_branch_survives_its_connection() -> None:
    world, peer, control, txn_id = working()
    control.discharge(txn_id)
    peer.vanish()
    other = world.connect()
    assert other.ask(Prepare(XID)) == OK
    assert other.ask(Commit(XID)) == OK
    assert queues(world) == ([], ["out"])


def test_a_suspended_association_that_is_lost_dooms_the_branch() -> None:
    world, peer, control, txn_id = working()
    control.end(txn_id, suspend=True)
    peer.vanish()
    assert world.connect().ask(Prepare(XID)) == Result(Code.XA_RBCOMMFAIL)


# --- 2: timeouts --------------------
@pytest.mark.parametrize("ended", [False, True])
def test_a_timeout_makes_an_unprepared_branch_rollback_only_and_frees_its_locks(ended: bool) -> None:
    world, peer, control, txn_id = working()
    if ended:
        control.discharge(txn_id)
    world.pass_time(world.settings.branch_timeout_s - 1)
    assert queues(world) == ([], [])
    world.pass_time(2)
    if not ended:
        late = peer.post(peer.sender("out"), "late", txn_id)
        assert late.remote.condition is not None
        assert late.remote.condition.name == Condition.TIMEOUT
    assert world.container.resource.queues["out"].pending == 0
    peer.vanish()
    assert queues(world) == (["in"], [])
    expected = Result(Code.XA_RBTIMEOUT)
    assert world.connect().ask(Prepare(XID)) == expected


def test_a_timeout_never_touches_a_prepared_branch() -> None:
    world, peer = prepared()
    world.pass_time(10 * world.settings.branch_timeout_s)
    peer.vanish()
    world.pass_time(10 * world.settings.branch_timeout_s)
    assert world.connect().ask(Recover()) == Recovered((XID,))
    after = world.crash()
    after.pass_time(10 * world.settings.branch_timeout_s)
    other = after.connect()
    assert other.ask(Recover()) == Recovered((XID,))
    assert queues(after) == ([], [])
    assert other.ask(Commit(XID)) == OK
    assert queues(after) == ([], ["out"])


def test_a_rollback_only_branch_is_not_remembered_for_ever() -> None:
    world, peer, control, txn_id = working()
    control.discharge(txn_id, fail=True)
    world.pass_time(world.settings.rollback_only_s + 1)
    assert refusal(peer.ask(Prepare(XID))).code is Code.XAER_NOTA, "nothing of it is left"


# --- 3: recovery and heuristics --------------------
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_a_heuristic_decision_is_told_until_it_is_forgotten(commit: bool, crash: bool) -> None:
    world, peer = prepared()
    assert peer.ask(Complete(XID, commit)) == OK
    peer.vanish()
    if crash:
        world = world.crash()
    assert queues(world) == (([], ["out"]) if commit else (["in"], []))
    other = world.connect()
    heuristic = Result(Code.XA_HEURCOM if commit else Code.XA_HEURRB)
    assert other.ask(Recover()) == Recovered((XID,))
    assert other.ask(Recover(states=(Found.PREPARED,))) == Recovered(())
    assert other.ask(Commit(XID)) == heuristic
    assert other.ask(Rollback(XID)) == heuristic
    assert refusal(other.coordinator().refused(Declare(Start(XID)))).code is Code.XAER_DUPID
    assert other.ask(Forget(XID)) == OK
    assert other.ask(Recover()) == Recovered(())
    assert refusal(other.ask(Commit(XID))).code is Code.XAER_NOTA
    assert world.crash().connect().ask(Recover()) == Recovered(())


def test_recover_answers_in_pages_with_filters(peer: Peer, control: Coordinator) -> None:
    xids = [Xid(1, gtrid.encode(), b"b") for gtrid in ("a-1", "a-2", "b-1", "b-2", "b-3")]
    for xid in xids:
        peer.post(peer.sender("q"), "x", txn_id := control.declare(Start(xid)))
        control.discharge(txn_id)
        assert peer.ask(Prepare(xid)) == OK
    assert peer.ask(Complete(xids[1], commit=False)) == OK
    assert peer.ask(Recover()) == Recovered(tuple(xids))
    assert peer.ask(Recover(count=2)) == Recovered(tuple(xids[:2]), more=True)
    assert peer.ask(Recover(after=xids[1], count=2)) == Recovered(tuple(xids[2:4]), more=True)
    assert peer.ask(Recover(after=xids[3], count=2)) == Recovered((xids[4],))
    assert peer.ask(Recover(after=xids[4])) == Recovered(())
    assert peer.ask(Recover(prefix=b"b-")) == Recovered(tuple(xids[2:]))
    assert peer.ask(Recover(prefix=b"a-", states=(Found.HEURISTIC,))) == Recovered((xids[1],))
    assert peer.ask(Recover(prefix=b"a-", states=(Found.PREPARED,))) == Recovered((xids[0],))
    assert peer.ask(Recover(after=Xid(1, b"a-15"))) == Recovered(tuple(xids[1:])), "one that is gone meanwhile"


@pytest.mark.parametrize("crash", [False, True])
def test_recover_says_what_a_branch_holds(crash: bool) -> None:
    world, _peer = prepared()
    since_ms = world.clock.wall_ms()
    world.pass_time(60)
    if crash:
        world = world.crash()
    holdings = (Holding("in", 1, 0), Holding("out", 0, 1))
    details = Details(XID, Found.PREPARED, since_ms, "", holdings)
    assert world.connect().ask(Recover(details=True)) == Recovered((XID,), details=(details,))


# --- 4: a closed control link --------------------
def test_a_closed_control_link_leaves_ended_and_prepared_branches_alone() -> None:
    world, peer, control, txn_id = working()
    control.discharge(txn_id)
    local = control.declare()
    peer.post(peer.sender("out"), "local", local)
    control.link.close()
    world.pump()
    assert peer.ask(Prepare(XID)) == OK
    peer.coordinator().link.close()
    world.pump()
    assert peer.ask(Commit(XID)) == OK
    assert queues(world) == ([], ["out"])


# --- 5: redelivery --------------------
def test_what_nobody_holds_any_more_comes_again_with_a_higher_count() -> None:
    world, peer = prepared()
    peer.vanish()
    other = world.connect()
    assert other.ask(Rollback(XID)) == OK
    receiver = other.receiver("in", 1)
    taken = other.taken(receiver)
    assert taken[1].delivery_count == 1


def test_after_many_failures_a_message_is_dead() -> None:
    defaults = QueueSettings(max_deliveries=3, dead_letter="dead")
    world = World(Settings(queue_defaults=defaults))
    peer = world.connect()
    peer.post(peer.sender("q"), "poison")
    for attempt in range(3):
        receiver = peer.receiver("q", 1)
        taken = peer.taken(receiver)
        assert taken[1].delivery_count == attempt
        peer.fail(receiver)
    assert peer.drained("q") == []
    assert peer.drained("dead") == ["poison"]
    assert world.crash().connect().drained("dead") == ["poison"]


def test_the_count_survives_a_restart(world: World, peer: Peer) -> None:
    peer.post(peer.sender("q"), "x")
    peer.receiver("q", 1)
    peer.vanish()
    other = world.crash().connect()
    receiver = other.receiver("q", 1)
    taken = other.taken(receiver)
    assert taken[1].delivery_count == 1


def test_what_is_rejected_is_dead(world: World, peer: Peer) -> None:
    sender = peer.sender("q")
    for body in ("outside", "in a transaction"):
        peer.post(sender, body)
    receiver = peer.receiver("q", 2)
    taken = peer.taken(receiver)
    taken[0].update(Delivery.REJECTED)
    taken[0].settle()
    control = peer.coordinator()
    txn_id = control.declare()
    taken = peer.taken(receiver)
    peer.retire(taken[0], txn_id, 0x25)
    assert peer.drained("q.dead") == ["outside"]
    control.discharge(txn_id)
    assert peer.drained("q.dead") == ["outside", "in a transaction"]
    assert world.crash().connect().drained("q.dead") == ["outside", "in a transaction"]


def test_each_queue_has_dead_letters_of_its_own_and_they_have_none() -> None:
    world = World(Settings(queue_defaults=QueueSettings(max_deliveries=1, dead_letter="dead.*")))
    peer = world.connect()
    long = "q" * 255
    for queue in ("a", "b", long):
        peer.post(peer.sender(queue), f"of {queue[:1]}")
        peer.fail(peer.receiver(queue, 1))
    assert (peer.drained("a"), peer.drained("b")) == ([], [])
    assert peer.drained("dead.a") == ["of a"]
    peer.fail(peer.receiver("dead.b", 1))
    assert peer.drained("dead.b") == ["of b"], "delivered in vain once more, it stays"
    assert peer.drained(f"dead.{'q' * 250}") == ["of q"]
    assert sorted(world.container.resource.queues) == sorted(["a", "b", long, "dead.a", "dead.b", f"dead.{'q' * 250}"])


def test_without_a_dead_letter_queue_only_what_is_rejected_is_dropped() -> None:
    world = World(Settings(queue_defaults=QueueSettings(max_deliveries=1, dead_letter="")))
    peer = world.connect()
    peer.post(peer.sender("q"), "failed")
    for _ in range(3):
        peer.fail(peer.receiver("q", 1))
    assert peer.drained("q") == ["failed"]
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    peer.settle(taken[0], Delivery.REJECTED)
    assert peer.drained("q") == []


# --- 7: access --------------------
def shared() -> World:
    """Two users with rules of their own, and an operator."""
    own = Rule(("*",), ("*",), ("*",), Coordination.OWN)
    rules = {"alice": own, "bob": own, "nobody": Rule(), "operator": Rule(coordinate=Coordination.ALL, manage=True)}
    return World(permissions=Permissions(rules))


def test_branches_of_others_are_out_of_reach() -> None:
    world = shared()
    alice, bob, operator = world.connect("alice"), world.connect("bob"), world.connect("operator")
    control = alice.coordinator()
    txn_id = control.declare(Start(XID))
    alice.post(alice.sender("q"), "x", txn_id)
    join = bob.coordinator().refused(Declare(Start(XID, join=True)))
    assert join.condition == Condition.UNAUTHORIZED
    control.discharge(txn_id)
    for command in (Prepare(XID), Commit(XID, one_phase=True), Rollback(XID)):
        assert refusal(bob.ask(command)).condition == Condition.UNAUTHORIZED
    assert alice.ask(Prepare(XID)) == OK
    for other in (Commit(XID), Rollback(XID), Forget(XID), Complete(XID, commit=True)):
        assert refusal(bob.ask(other)).condition == Condition.UNAUTHORIZED
    assert bob.ask(Recover()) == Recovered(())
    assert alice.ask(Recover()) == Recovered((XID,))
    assert operator.ask(Recover()) == Recovered((XID,))
    browse = bob.receiver(branch_address(XID), 1)
    assert condition_of(browse).condition == Condition.UNAUTHORIZED
    assert operator.ask(Complete(XID, commit=True)) == OK
    restarted = world.crash()
    assert restarted.connect("alice").ask(Commit(XID)) == Result(Code.XA_HEURCOM)
    assert refusal(restarted.connect("bob").ask(Forget(XID))).condition == Condition.UNAUTHORIZED


def test_addresses_are_protected() -> None:
    world = World(
        permissions=Permissions(
            {
                "reader": Rule(consume=("orders*",)),
                "writer": Rule(produce=("orders*",), create=("orders.new",)),
                "alice": Rule(("*",), ("*",), ("*",)),
            }
        )
    )
    alice = world.connect("alice")
    alice.post(alice.sender("orders.1"), "x")
    reader, writer = world.connect("reader"), world.connect("writer")
    assert not closed(reader.receiver("orders.1"))
    assert not closed(writer.sender("orders.1"))
    assert not closed(writer.sender("orders.new"))
    for link, condition in (
        (reader.sender("orders.1"), Condition.UNAUTHORIZED),
        (writer.receiver("orders.1"), Condition.UNAUTHORIZED),
        (reader.receiver("payroll"), Condition.UNAUTHORIZED),
        (writer.sender("orders.other"), Condition.NOT_FOUND),
    ):
        assert condition_of(link).condition == condition
    assert "orders.other" not in world.container.resource.queues
    nobody = world.connect("nobody")
    assert condition_of(nobody.receiver("orders.1")).condition == Condition.UNAUTHORIZED


# --- 8: browsing a prepared branch --------------------
@pytest.mark.parametrize("crash", [False, True])
def test_whoever_coordinates_a_branch_may_read_what_it_holds(world: World, peer: Peer, crash: bool) -> None:
    sender = peer.sender("in")
    for number in range(5):
        peer.post(sender, number)
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver("in", 4)
    deliveries = [taken[0] for _ in range(4) if (taken := peer.take(receiver)) is not None]
    for delivery in reversed(deliveries):
        peer.retire(delivery, txn_id)
    peer.post(peer.sender("out"), "out", txn_id)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    if crash:
        world = world.crash()
    other = world.connect()

    def read(work: str) -> list[tuple[Any, Any, Any]]:
        browse = other.receiver(branch_address(XID, work), 100)
        found = []
        while (taken := other.take(browse)) is not None:
            message: Message = taken[1]
            told: dict[Any, Any] = dict(message.instructions or {})
            found.append((message.body, told["x-xabridge-queue"], str(told["x-xabridge-work"])))
            taken[0].update(Delivery.ACCEPTED)
            taken[0].settle()
        browse.close()
        world.pump()
        return found

    retired = [(number, "in", "retired") for number in (3, 2, 1, 0)]
    for _ in range(2):
        assert read("retired") == retired
        assert read("posted") == [("out", "out", "posted")]
        assert read("all") == [*retired, ("out", "out", "posted")]
    assert other.ask(Commit(XID)) == OK
    assert queues(world) == ([4], ["out"])


def test_a_browse_of_a_branch_drains() -> None:
    world, peer = prepared()
    browse = peer.receiver(branch_address(XID))
    browse.drain(10)
    world.pump()
    assert peer.take(browse) is not None
    assert peer.take(browse) is not None
    assert peer.take(browse) is None
    assert browse.credit == 0
    assert not browse.draining()


@pytest.mark.parametrize(
    ("address", "condition"),
    [
        (branch_address(Xid(9, b"unknown")), Condition.NOT_FOUND),
        ("$branch/all/nonsense", Condition.INVALID_FIELD),
        ("$nonsense", Condition.NOT_FOUND),
    ],
)
def test_only_prepared_branches_are_read(address: str, condition: Condition) -> None:
    world, peer, _, _ = working()
    assert condition_of(peer.receiver(address)).condition == condition
    assert condition_of(peer.receiver(branch_address(XID))).condition == Condition.ILLEGAL_STATE
    del world


# --- prepare with keep, and fences: what the pipeline needs --------------------
def test_an_empty_branch_is_read_only_or_kept(world: World, peer: Peer, control: Coordinator) -> None:
    control.discharge(control.declare(Start(XID)))
    assert peer.ask(Prepare(XID)) == Result(Code.XA_RDONLY)
    assert refusal(peer.ask(Commit(XID))).code is Code.XAER_NOTA
    control.discharge(control.declare(Start(XID)))
    assert peer.ask(Prepare(XID, keep=True)) == OK
    after = world.crash().connect()
    assert after.ask(Recover()) == Recovered((XID,))
    assert after.coordinator().refused(Declare(Start(XID))).code is Code.XAER_DUPID
    assert after.ask(Commit(XID)) == OK
    assert after.ask(Recover()) == Recovered(())


@pytest.mark.parametrize("crash", [False, True])
def test_a_fence_keeps_late_attempts_out(crash: bool) -> None:
    world, peer, control, txn_id = working()
    other_branch, elsewhere = Xid(1, b"gtrid", b"late"), Xid(1, b"other", b"b")
    fine = control.declare(Start(elsewhere))
    kept = Xid(1, b"gtrid", b"kept")
    peer.post(peer.sender("out"), "kept", kept_id := control.declare(Start(kept)))
    control.discharge(kept_id)
    assert peer.ask(Prepare(kept)) == OK
    assert world.connect().ask(Fence(1, b"gtrid")) == OK
    assert control.refused(Declare(Start(other_branch))).condition == Condition.ROLLBACK
    _, _, told = control.end(txn_id, prepare=True)
    assert told is not None
    assert told.code is Code.XA_RBOTHER
    control.discharge(fine)
    assert peer.ask(Prepare(XID)) == Result(Code.XA_RBOTHER)
    if crash:
        world = world.crash()
    late = world.connect()
    control = late.coordinator()
    assert control.refused(Declare(Start(other_branch))).condition == Condition.ROLLBACK
    assert late.ask(Commit(kept)) == OK, "what was prepared is as it was"
    assert refusal(late.ask(Fence(2, b"gtrid", lift=True))).code is Code.XAER_NOTA, "another format"
    assert late.ask(Fence(1, b"gtrid", lift=True)) == OK
    control.discharge(control.declare(Start(other_branch)))


def test_fences_go_after_a_time(world: World, peer: Peer) -> None:
    assert peer.ask(Fence(1, b"gtrid")) == OK
    world.pass_time(world.settings.fence_s + 100)
    world.pass_time(100)
    control = peer.coordinator()
    control.discharge(control.declare(Start(XID)))
    assert not world.disk.fences


def test_a_fence_around_the_branches_of_others_is_refused() -> None:
    world = shared()
    alice, bob = world.connect("alice"), world.connect("bob")
    control = alice.coordinator()
    control.discharge(control.declare(Start(XID)))
    assert refusal(bob.ask(Fence(1, b"gtrid"))).condition == Condition.UNAUTHORIZED
    assert alice.ask(Fence(1, b"gtrid")) == OK
    lifted = refusal(bob.ask(Fence(1, b"gtrid", lift=True)))
    assert lifted.code is Code.XAER_NOTA, "it is alice's, and keeps only hers out: bob has none"
    assert control.refused(Declare(Start(Xid(1, b"gtrid", b"late")))).condition == Condition.ROLLBACK


def test_a_prepare_that_comes_with_a_fence_is_one_or_the_other() -> None:
    """The fence comes while the prepare is being forced: the branch is prepared, and the fence's answer is
    later."""
    world, peer, control, txn_id = working()
    control.discharge(txn_id)
    peer.ask(Recover())
    peer.request(Prepare(XID))
    peer.request(Fence(1, b"gtrid"))
    world.pump()
    assert [peer.answer(), peer.answer()] == [OK, OK]
    assert peer.ask(Recover()) == Recovered((XID,))


@pytest.mark.parametrize("size", [CHUNK - 100, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("crash", [False, True])
def test_large_messages_come_out_as_they_went_in(size: int, crash: bool) -> None:
    world = World(cached_size=0)
    peer = world.connect()
    peer.post(peer.sender("q"), "x" * size)
    peer.post(peer.sender("q"), "small")
    if crash:
        world = world.crash()
    other = world.connect()
    receiver = other.receiver("q", 2)
    for body in ("x" * size, "small"):
        taken = other.taken(receiver)
        assert taken[1].body == body


def test_a_redelivered_large_message_tells_its_count() -> None:
    world = World(cached_size=0)
    peer = world.connect()
    peer.post(peer.sender("q"), "x" * (2 * CHUNK))
    peer.fail(peer.receiver("q", 1))
    receiver = peer.receiver("q", 1)
    taken = peer.taken(receiver)
    assert taken[1].delivery_count == 1
    assert taken[1].body == "x" * (2 * CHUNK)


def test_the_state_of_a_branch_that_nobody_prepared_is_not_on_disk() -> None:
    world, _peer, control, txn_id = working()
    control.discharge(txn_id)
    after = world.crash()
    assert refusal(after.connect().ask(Commit(XID))).code is Code.XAER_NOTA
    assert queues(after) == (["in"], [])
    assert [branch.state for branch in world.container.registry] == [BranchState.S2]
