"""These tests cover the design's rules for a resource, one after the other."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Delivery

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
    Prepare,
    Recover,
    RecoveredState,
    Rollback,
    Start,
)
from dtx.protocol.replies import Details, Holding, Recovered, Result
from dtx.store.contract import CHUNK
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World, closed, condition_of, filled, refused_with
from xa import Code, Xid


def working() -> tuple[World, Peer, Coordinator, bytes]:
    """A branch that retires "in" from in and posts "out" to out, and is associated still."""
    world, peer = filled("in", queue="in")
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    peer.retire(peer.first("in")[1], txn_id)
    peer.post(peer.sender("out"), "out", txn_id)
    return world, peer, control, txn_id


def prepared() -> tuple[World, Peer]:
    """The same, prepared."""
    world, peer, control, txn_id = working()
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    return world, peer


def queues(world: World) -> tuple[list[Any], list[Any]]:
    """What can be had from in and out."""
    peer = world.connect()
    return peer.drained("in"), peer.drained("out")


# --- 1: every association ended; lost work is rollback-only --------------------
@pytest.mark.parametrize("lost", ["connection", "suspended", "session", "control link"])
def test_work_that_was_lost_while_associated_is_rollback_only(world: World, lost: str) -> None:
    peer, other = world.connect(), world.connect()
    peer.fill("in", "in")
    session = peer.new_session()
    control = peer.coordinator(session=session)
    txn_id = control.declare(Start(XID))
    peer.post(peer.sender("out"), "out", txn_id)
    receiver, delivery, _ = peer.first("in")
    peer.retire(delivery, txn_id, settle=True)

    receiver.close()
    if lost == "suspended":
        control.end(txn_id, suspend=True)
    {"session": session.close, "control link": control.link.close}.get(lost, peer.vanish)()
    world.pump()
    assert queues(world) == (["in"], []), "its locks are free"
    assert other.coordinator().refused(Declare(Start(XID, join=True))).code is Code.XA_RBCOMMFAIL
    assert other.ask(Prepare(XID)) == Result(Code.XA_RBCOMMFAIL)
    assert other.refusal(Prepare(XID)).code is Code.XAER_NOTA


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
        assert refused_with(late).condition == Condition.TIMEOUT
    assert world.queue("out").counters.pending == 0
    peer.vanish()
    assert queues(world) == (["in"], [])
    assert world.connect().ask(Prepare(XID)) == Result(Code.XA_RBTIMEOUT)


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
    assert peer.refusal(Prepare(XID)).code is Code.XAER_NOTA, "nothing of it is left"


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
    assert other.ask(Recover(states=(RecoveredState.PREPARED,))) == Recovered(())
    assert other.ask(Commit(XID)) == heuristic
    assert other.ask(Rollback(XID)) == heuristic
    assert other.coordinator().refused(Declare(Start(XID))).code is Code.XAER_DUPID
    assert other.ask(Forget(XID)) == OK
    assert other.ask(Recover()) == Recovered(())
    assert other.refusal(Commit(XID)).code is Code.XAER_NOTA
    assert world.crash().connect().ask(Recover()) == Recovered(())


def test_recover_answers_in_pages_with_filters(peer: Peer) -> None:
    xids = [Xid(1, gtrid.encode(), b"b") for gtrid in ("a-1", "a-2", "b-1", "b-2", "b-3")]
    for xid in xids:
        peer.prepared(xid, posts="q")
    assert peer.ask(Complete(xids[1], commit=False)) == OK

    for question, expected, more in (
        (Recover(), xids, False),
        (Recover(count=2), xids[:2], True),
        (Recover(after=xids[1], count=2), xids[2:4], True),
        (Recover(after=xids[3], count=2), xids[4:], False),
        (Recover(after=xids[4]), [], False),
        (Recover(prefix=b"b-"), xids[2:], False),
        (Recover(prefix=b"a-", states=(RecoveredState.HEURISTIC,)), xids[1:2], False),
        (Recover(prefix=b"a-", states=(RecoveredState.PREPARED,)), xids[:1], False),
        (Recover(after=Xid(1, b"a-15")), xids[1:], False),  # one that is gone meanwhile
    ):
        assert peer.ask(question) == Recovered(tuple(expected), more=more), question


@pytest.mark.parametrize("crash", [False, True])
def test_recover_says_what_a_branch_holds(crash: bool) -> None:
    world, _peer = prepared()
    since_ms = world.clock.wall_ms()
    world.pass_time(60)
    if crash:
        world = world.crash()
    holdings = (Holding("in", 1, 0), Holding("out", 0, 1))
    details = Details(XID, RecoveredState.PREPARED, since_ms, "", holdings)
    assert world.connect().ask(Recover(details=True)) == Recovered((XID,), details=(details,))


# --- 4: a closed control link --------------------
@pytest.mark.parametrize("lost", ["nothing", "the control link", "the connection", "the broker"])
def test_an_ended_branch_and_a_prepared_one_survive_what_made_them(lost: str) -> None:
    """But the broker's end leaves of a branch that nobody prepared nothing, as nothing of it is on disk."""
    world, peer, control, txn_id = working()
    control.discharge(txn_id)
    peer.post(peer.sender("out"), "local", control.declare())

    def lose() -> Peer:
        nonlocal world
        if lost == "the control link":
            control.link.close()
        elif lost == "the connection":
            peer.vanish()
        elif lost == "the broker":
            world = world.crash()
        world.pump()
        return peer if lost in {"nothing", "the control link"} else world.connect()

    other = lose()
    if lost == "the broker":
        assert other.refusal(Commit(XID)).code is Code.XAER_NOTA
        assert queues(world) == (["in"], [])
        return
    assert other.ask(Prepare(XID)) == OK
    assert lose().ask(Commit(XID)) == OK
    assert queues(world) == ([], ["out"])


# --- 5: redelivery --------------------


@pytest.mark.parametrize("how", ["restart", "rollback"])
def test_the_count_survives_a_restart(world: World, peer: Peer, how: str) -> None:
    """And what nobody holds any more comes again with a higher count."""
    peer.fill("q", "x")
    if how == "restart":
        peer.receiver("q", 1)
    else:
        peer.prepared(takes="q")
    peer.vanish()
    if how == "restart":
        world = world.crash()
    other = world.connect()
    assert how == "restart" or other.ask(Rollback(XID)) == OK
    assert other.first()[2].delivery_count == 1


def test_what_is_rejected_is_dead(world: World, peer: Peer, control: Coordinator) -> None:
    peer.fill("q", "outside", "in a transaction")
    receiver, delivery, _ = peer.first(credit=2)
    peer.settle(delivery, Delivery.REJECTED)
    txn_id = control.declare()
    peer.retire(peer.taken(receiver)[0], txn_id, 0x25)
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
    _, peer = filled("failed", settings=Settings(queue_defaults=QueueSettings(max_deliveries=1, dead_letter="")))
    for _ in range(3):
        peer.fail(peer.receiver("q", 1))
    assert peer.drained("q") == ["failed"]
    peer.settle(peer.first()[1], Delivery.REJECTED)
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
        assert bob.refusal(command).condition == Condition.UNAUTHORIZED
    assert alice.ask(Prepare(XID)) == OK
    for other in (Commit(XID), Rollback(XID), Forget(XID), Complete(XID, commit=True)):
        assert bob.refusal(other).condition == Condition.UNAUTHORIZED
    found = {"bob": (), "alice": (XID,), "operator": (XID,)}
    assert [peer.ask(Recover()) for peer in (bob, alice, operator)] == [Recovered(one) for one in found.values()]
    assert condition_of(bob.receiver(branch_address(XID), 1)).condition == Condition.UNAUTHORIZED
    assert operator.ask(Complete(XID, commit=True)) == OK
    restarted = world.crash()
    assert restarted.connect("alice").ask(Commit(XID)) == Result(Code.XA_HEURCOM)
    assert restarted.connect("bob").refusal(Forget(XID)).condition == Condition.UNAUTHORIZED


def test_addresses_are_protected() -> None:
    anything = Rule(("*",), ("*",), ("*",))
    writer_rule = Rule(produce=("orders*",), create=("orders.new",))
    rules = {"reader": Rule(consume=("orders*",)), "writer": writer_rule, "alice": anything}
    world = World(permissions=Permissions(rules))
    world.connect("alice").fill("orders.1", "x")
    reader, writer, nobody = world.connect("reader"), world.connect("writer"), world.connect("nobody")
    for link in (reader.receiver("orders.1"), writer.sender("orders.1"), writer.sender("orders.new")):
        assert not closed(link)

    for link, condition in (
        (reader.sender("orders.1"), Condition.UNAUTHORIZED),
        (writer.receiver("orders.1"), Condition.UNAUTHORIZED),
        (reader.receiver("payroll"), Condition.UNAUTHORIZED),
        (writer.sender("orders.other"), Condition.NOT_FOUND),
        (nobody.receiver("orders.1"), Condition.UNAUTHORIZED),
    ):
        assert condition_of(link).condition == condition
    assert "orders.other" not in world.container.resource.queues


# --- 8: browsing a prepared branch --------------------
@pytest.mark.parametrize("crash", [False, True])
def test_whoever_coordinates_a_branch_may_read_what_it_holds(
    world: World, peer: Peer, control: Coordinator, crash: bool
) -> None:
    peer.fill("in", *range(5))
    txn_id = control.declare(Start(XID))
    receiver = peer.receiver("in", 4)
    for delivery in reversed([peer.taken(receiver)[0] for _ in range(4)]):
        peer.retire(delivery, txn_id)
    peer.post(peer.sender("out"), "out", txn_id)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    if crash:
        world = world.crash()
    other = world.connect()

    def read(work: str) -> list[tuple[Any, Any, Any]]:
        browse = other.receiver(branch_address(XID, work))
        browse.drain(100)
        world.pump()
        found = []
        while (taken := other.take(browse)) is not None:
            told: dict[Any, Any] = dict(taken[1].instructions or {})
            found.append((taken[1].body, told["x-xabridge-queue"], str(told["x-xabridge-work"])))
            other.settle(taken[0])
        assert (browse.credit, browse.draining()) == (0, False)
        world.close(browse)
        return found

    retired = [(number, "in", "retired") for number in (3, 2, 1, 0)]
    for _ in range(2):
        assert read("retired") == retired
        assert read("posted") == [("out", "out", "posted")]
        assert read("all") == [*retired, ("out", "out", "posted")]
    assert other.ask(Commit(XID)) == OK
    assert queues(world) == ([4], ["out"])


def test_only_prepared_branches_are_read() -> None:
    _, peer, _, _ = working()
    for address, condition in (
        (branch_address(Xid(9, b"unknown")), Condition.NOT_FOUND),
        ("$branch/all/nonsense", Condition.INVALID_FIELD),
        ("$nonsense", Condition.NOT_FOUND),
        (branch_address(XID), Condition.ILLEGAL_STATE),
    ):
        assert condition_of(peer.receiver(address)).condition == condition


# --- prepare with keep, and fences: what the pipeline needs --------------------
def test_an_empty_branch_is_read_only_or_kept(world: World, peer: Peer, control: Coordinator) -> None:
    control.discharge(control.declare(Start(XID)))
    assert peer.ask(Prepare(XID)) == Result(Code.XA_RDONLY)
    assert peer.refusal(Commit(XID)).code is Code.XAER_NOTA
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
    assert late.refusal(Fence(2, b"gtrid", lift=True)).code is Code.XAER_NOTA, "another format"
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
    assert bob.refusal(Fence(1, b"gtrid")).condition == Condition.UNAUTHORIZED
    assert alice.ask(Fence(1, b"gtrid")) == OK
    lifted = bob.refusal(Fence(1, b"gtrid", lift=True))
    assert lifted.code is Code.XAER_NOTA, "it is alice's, and keeps only hers out: bob has none"
    assert control.refused(Declare(Start(Xid(1, b"gtrid", b"late")))).condition == Condition.ROLLBACK


@pytest.mark.parametrize("size", [CHUNK - 100, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("crash", [False, True])
def test_large_messages_come_out_as_they_went_in(size: int, crash: bool) -> None:
    """Also when they are delivered again."""
    world, _ = filled("x" * size, "small", cached_size=0)
    if crash:
        world = world.crash()
    other = world.connect()
    for count in range(2):
        receiver, _, first = other.first(credit=2)
        second = other.taken(receiver)[1]
        assert [(one.body, one.delivery_count) for one in (first, second)] == [("x" * size, count), ("small", count)]
        other.fail(receiver)
