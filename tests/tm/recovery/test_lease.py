"""These tests cover the lease at a resource that decides: it is taken before the first transaction, renewed and ended.
They also check what the lease guarantees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tm.shop import NODE, Shop, elsewhere
from tests.tm.wrapped import hooked
from tm import HeuristicHazard, ManagerUnusable, OutcomeUnknown, Transaction, TransactionManager
from tm.log import Decision
from tm.log.sql import SqlLog
from tm.recovery import Action, lease
from tm.recovery.lease import LEASE_S
from xa import Gtrid, Owner, XaError
from xabridge.testing.reference import DecidingStore, NetworkFault

PATIENCE_S = 60


@pytest.fixture
def store(shop: Shop) -> DecidingStore:
    """`d` decides, by the shop's clock; `a` and `b` take part."""
    made = shop.add_decider()
    made.clock = shop.clock
    return made


def sibling_of(shop: Shop) -> TransactionManager:
    """Another process of the same node."""
    first = shop.tm
    made = shop.open()
    shop._tm = first
    return made


def renew(shop: Shop) -> None:
    assert shop.tm._lease is not None
    shop.tm._lease.take()


# --- taken, renewed, ended --------------------------------------------------------------------------------------
def test_it_is_taken_before_the_first_gtrid_and_ended_at_the_end(shop: Shop, store: DecidingStore) -> None:
    shop.open(background=True).close()
    assert store.leases == {}, "a manager that begins nothing holds nothing"
    manager = shop.open()
    assert store.owners() == []
    with manager.begin() as tx:
        (owner,) = store.owners()
        assert (owner.node, owner.incarnation) == (NODE, Gtrid.decode(tx.gtrid).incarnation)
        assert owner.process
    manager.close()
    assert store.owners() == []


def test_nothing_begins_without_it(shop: Shop, store: DecidingStore) -> None:
    manager = shop.tm
    store.script.plan("hold", fate=NetworkFault.REQUEST_LOST)
    with pytest.raises(ManagerUnusable, match="d decides, and can't be used"):
        manager.begin()
    with manager.begin() as tx:
        shop.write(tx)
    assert len(store.owners()) == 1


def test_it_is_renewed_before_it_runs_out(shop: Shop, store: DecidingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.03)
    renewed = threading.Semaphore(0)
    hold = store.hold

    def counted(owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        hold(owner, lease_s, floor, ceiling)
        renewed.release()

    monkeypatch.setattr(store, "hold", counted)
    manager = shop.open(background=True)
    manager.begin().rollback()
    for _ in range(4):
        assert renewed.acquire(timeout=PATIENCE_S)
    store.script.plan("hold", fate=NetworkFault.REQUEST_LOST)
    for _ in range(2):
        assert renewed.acquire(timeout=PATIENCE_S), "it goes on after an outage"
    manager.close()
    assert store.leases == {}


@pytest.mark.parametrize("lost", ["by a thread", "by the last renewal"])
def test_it_is_ended_though_the_decider_was_lost(shop: Shop, store: DecidingStore, lost: str) -> None:
    """After a restart of the decider the connections of some threads are gone, and nobody has replaced them."""
    manager = shop.tm
    manager.begin().rollback()
    assert manager._lease is not None
    if lost == "by a thread":
        elsewhere(lambda: manager.resource("d").lost("the connection was lost"))
    else:
        store.script.plan("hold", fate=NetworkFault.REQUEST_LOST)
        with pytest.raises(XaError):
            manager._lease.take()
    assert len(store.owners()) == 1
    manager.close()
    assert store.owners() == []


def test_a_decider_that_is_away_at_the_end_is_not_waited_for(
    shop: Shop, store: DecidingStore, caplog: pytest.LogCaptureFixture
) -> None:
    manager = shop.tm
    manager.begin().rollback()
    store.partition()
    with caplog.at_level("INFO"):
        manager.close()
    assert "the lease at d could not be ended, it runs out" in caplog.text
    store.heal()
    assert len(store.owners()) == 1
    shop.clock.pass_by(LEASE_S)
    assert store.owners() == []


# --- who else is at work ----------------------------------------------------------------------------------------
def test_siblings_leave_each_others_transactions_alone(shop: Shop, store: DecidingStore) -> None:
    tx = shop.in_doubt("a")
    sibling = sibling_of(shop)
    report = sibling.recover()
    assert [finding.action for finding in report.findings] == [Action.LEFT_ALONE]
    assert (report.ended, report.undone) == ([], [])
    assert tx.gtrid in store.decided
    with sibling.begin() as other:
        shop.write(other, key="other")
    assert shop.tm.recover().ended == [tx.gtrid]
    assert shop.values() == {"a": 1, "b": 1, "d": 1}
    sibling.close()
    shop.assert_nothing_left()


def test_a_sibling_whose_lease_has_run_out_is_recovered(shop: Shop, store: DecidingStore) -> None:
    decided = shop.in_doubt("a")
    shop["a"].script.clear()
    store.script.plan("decide", None, NetworkFault.REQUEST_LOST)
    undecided = shop.tm.begin()
    shop.write(undecided, key="other")

    with pytest.raises(OutcomeUnknown):
        undecided.commit()
    sibling = sibling_of(shop)
    assert len(shop["a"].in_doubt) == 2
    shop.clock.pass_by(LEASE_S)
    report = sibling.recover()
    found = {(finding.branch.resource, finding.action) for finding in report.findings}
    assert {action for resource, action in found if resource == "a"} == {Action.COMMITTED, Action.ROLLED_BACK}
    assert {action for resource, action in found if resource == "b"} == {Action.NOT_THERE, Action.ROLLED_BACK}
    assert report.ended == [decided.gtrid]
    assert store.tombstones == {undecided.gtrid}
    sibling.close()


def test_a_sibling_that_is_known_to_be_gone_is_recovered_at_once(shop: Shop, store: DecidingStore) -> None:
    shop.in_doubt("a")
    shop["a"].script.clear()
    ((owner, until),) = store.leases.items()
    where, pid, started = owner.process.rsplit("/", 2)
    store.leases = {Owner(owner.node, owner.incarnation, f"{where}/{pid}/{int(started) - 1}"): until}
    sibling = sibling_of(shop)
    assert not store.decided, "this process started later than that one with its pid"
    assert shop.values() == {"a": 1, "b": 1, "d": 1}
    sibling.close()


def test_while_nobody_can_tell_who_is_at_work_nothing_is_settled(shop: Shop, store: DecidingStore) -> None:
    tx = shop.tm.begin()
    shop.write(tx)
    store.script.plan("decide", None, NetworkFault.REQUEST_LOST)
    with pytest.raises(OutcomeUnknown):
        tx.commit()
    sibling = sibling_of(shop)
    shop.clock.pass_by(LEASE_S)
    store.script.plan("owners", fate=NetworkFault.REQUEST_LOST)
    report = sibling.recover()
    assert {finding.action for finding in report.findings} == {Action.PENDING}
    assert not store.tombstones
    assert sibling.recover().clean
    assert store.tombstones == {tx.gtrid}
    sibling.close()


# --- what a sibling has finished --------------------------------------------------------------------------------
def commit_and_stand_still(
    shop: Shop, meanwhile: Callable[[Transaction], None], before: Callable[[], None] = lambda: None
) -> None:
    """`before`, then commits; behind the decision the process stands still while `meanwhile` goes on."""
    under_way: list[Transaction] = []

    def stand_still(when: str, verb: str) -> None:
        if (when, verb) == ("after", "decide") and under_way:
            meanwhile(under_way.pop())

    shop.wrap["d"] = hooked(stand_still, ("decide",))
    before()
    under_way.append(tx := shop.tm.begin())
    shop.write(tx)
    tx.commit()


@pytest.mark.parametrize("renewed", [False, True])
def test_what_a_sibling_finished_while_this_process_stood_still_is_committed(
    shop: Shop, store: DecidingStore, *, renewed: bool
) -> None:
    """A renewal behind the gap does not hide it."""

    def recovered(tx: Transaction) -> None:
        shop.clock.pass_by(LEASE_S)
        sibling = sibling_of(shop)
        assert sibling.last_report is not None
        assert {finding.action for finding in sibling.last_report.findings} == {Action.COMMITTED}
        assert sibling.last_report.ended == [tx.gtrid]
        sibling.close()
        if renewed:
            renew(shop)

    commit_and_stand_still(shop, recovered)
    shop.assert_ended(1)
    assert not store.decided


def vanish(shop: Shop, tx: Transaction) -> None:
    """The resource manager loses a prepared branch."""
    with shop["a"].lock:
        del shop["a"].known[tx.xid("a")]
        shop["a"].key_locks.clear()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("gap", [False, True])
def test_a_branch_that_vanishes_while_the_lease_stands_is_a_hazard(shop: Shop, *, gap: bool) -> None:
    """A gap long ago excuses nothing."""

    def before() -> None:
        with shop.tm.begin() as tx:
            shop.write(tx, key="before")
        if gap:
            shop.clock.pass_by(LEASE_S)
            renew(shop)

    with pytest.raises(HeuristicHazard):
        commit_and_stand_still(shop, lambda tx: vanish(shop, tx), before)


def test_what_was_finished_by_who_took_over_a_log_in_a_database_is_committed(shop: Shop, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    log = SqlLog(url, NODE)
    decide, taken = log.decide, []

    def stand_still(decision: Decision) -> None:
        decide(decision)
        taken.append(shop.open(log=SqlLog(url, NODE, take_over=True)))

    log.decide = stand_still  # type: ignore[method-assign]
    first = shop.open(log=log)
    with first.begin() as tx:
        shop.write(tx, names="ab")
    assert taken[0].last_report is not None
    assert taken[0].last_report.ended == [tx.gtrid]
    assert shop.values() == {"a": 1, "b": 1}
    first.close()
