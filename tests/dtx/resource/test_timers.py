"""Timers: order, cancelling, and that cancelled ones do not pile up."""

from __future__ import annotations

from dtx.protocol.commands import Prepare, Rollback, Start
from dtx.resource.timers import SWEPT, Timers
from tests.dtx.resource.peer import World
from xa import Xid


def test_what_is_due_is_called_in_order_and_once() -> None:
    timers, called = Timers(), list[str]()
    for due, name in ((3.0, "c"), (1.0, "a"), (1.0, "b"), (9.0, "d")):
        timers.add(due, lambda name=name: called.append(name))  # type: ignore[misc]
    timers.run(0.5)
    assert called == []
    timers.run(3.0)
    timers.run(3.0)
    assert (called, timers.next_due()) == (["a", "b", "c"], 9.0)


def test_a_cancelled_timer_is_not_called_and_its_call_is_let_go() -> None:
    timers, called = Timers(), list[str]()
    first = timers.add(1.0, lambda: called.append("first"))
    second = timers.add(1.0, lambda: called.append("second"))
    first.cancel()
    first.cancel()
    assert first.call is None
    timers.run(1.0)
    second.cancel()
    assert (called, timers.next_due()) == (["second"], None)


def test_a_call_may_cancel_and_add_others() -> None:
    timers, called = Timers(), list[str]()
    many = [timers.add(2.0, lambda: called.append("late")) for _ in range(3 * SWEPT)]

    def first() -> None:
        for one in many[:-1]:
            one.cancel()
        timers.add(1.5, lambda: called.append("added"))

    timers.add(1.0, first)
    timers.run(2.0)
    assert called == ["added", "late"]
    assert len(timers) == 0


def test_cancelled_timers_leave() -> None:
    timers = Timers()
    for number in range(20 * SWEPT):
        timers.add(1000.0 + number, print).cancel()
    assert len(timers) <= 2 * SWEPT


def test_transactions_and_branches_that_are_over_leave_no_timer() -> None:
    world = World()
    peer = world.connect()
    control = peer.coordinator()
    sender = peer.sender("q")
    before = world.node.resource.timers.live
    for number in range(3):
        control.discharge(control.declare())
        xid = Xid(1, b"over-%d" % number, b"")
        txn_id = control.declare(Start(xid))
        peer.post(sender, number, txn_id)
        control.discharge(txn_id)
        assert world.node.resource.timers.live == before + 1, "an unprepared branch expires"
        peer.ask(Prepare(xid))
        assert world.node.resource.timers.live == before, "a prepared one does not"
        peer.ask(Rollback(xid))
    assert world.node.resource.timers.live == before
