"""These tests cover timeouts: the reaper rolls back what is not prepared, and never touches what is prepared."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.tm.shop import Shop
from tests.tm.wrapped import Gate, hooked
from tm import GlobalState, RolledBack, Transaction
from xa import Code
from xabridge.testing.reference import NetworkFault


def begun(shop: Shop, timeout_s: float = 10) -> Transaction:
    tx = shop.tm.begin(timeout_s)
    shop.write(tx)
    return tx


def reap(shop: Shop, seconds: float) -> None:
    shop.clock.pass_by(seconds)
    shop.tm._reaper.reap()


@pytest.mark.parametrize("of_the_manager", [False, True])
def test_nothing_is_reaped_before_its_time(shop: Shop, *, of_the_manager: bool) -> None:
    shop.open(timeout_s=10 if of_the_manager else 60)
    tx = shop.tm.begin(None if of_the_manager else 10)
    shop.write(tx)
    reap(shop, 9.9)
    assert tx.status is GlobalState.ACTIVE
    tx.commit()
    assert shop.values() == {"a": 1, "b": 1}
    late = shop.tm.begin(None if of_the_manager else 10)
    reap(shop, 10)
    assert late.expired
    late.rollback()


@pytest.mark.parametrize("fails", [False, True])
def test_what_takes_too_long_is_rolled_back_and_its_block_hears_it(shop: Shop, *, fails: bool) -> None:
    """A block that rolls back anyway keeps its own exception."""
    error, match = (ValueError, "mine") if fails else (RolledBack, "longer than its 10 s")
    with pytest.raises(error, match=match), shop.tm.begin(10) as tx:
        tx["a"].write("k", 1)
        reap(shop, 10)
        assert tx.status is GlobalState.ROLLED_BACK
        shop.assert_nothing_left()
        if fails:
            raise ValueError("mine")
        with pytest.raises(RolledBack, match="longer than its 10 s"):
            tx["b"]
    assert shop.tm.current_or_none() is None
    shop.assert_ended(None)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("how", ["", "suspended", "marked"])
def test_an_explicit_end_of_a_reaped_transaction(shop: Shop, how: str, end: str) -> None:
    tx = begun(shop)
    if how == "suspended":
        shop.tm.suspend()
    elif how == "marked":
        tx.set_rollback_only()

    reap(shop, 10)
    shop.assert_nothing_left()
    if how == "suspended":
        shop.tm.resume(tx)
    if end == "commit":
        with pytest.raises(RolledBack, match="longer than its 10 s"):
            tx.commit()
    else:
        tx.rollback()  # as asked
    assert shop.tm.current_or_none() is None
    shop.assert_ended(None)


@pytest.mark.parametrize("fails", [False, True])
def test_others_are_not_touched_and_not_kept_waiting_by_a_resource_that_fails(shop: Shop, *, fails: bool) -> None:
    if fails:
        shop["a"].script.plan("rollback", None, NetworkFault.REQUEST_LOST)
    first = begun(shop)
    shop.tm.suspend()
    second = shop.tm.begin(10)
    shop.tm.suspend()
    long = shop.tm.begin(100)
    long["a"].write("j", 1)

    reap(shop, 10)
    assert first.expired
    assert second.expired
    assert not long.expired
    long.commit()
    assert shop.tm.recover().clean
    assert shop["a"].data == {"j": 1}
    shop.assert_nothing_left()


@pytest.mark.parametrize("verb", ["end", "prepare", "commit"])
def test_what_is_on_its_way_is_never_touched(shop: Shop, verb: str) -> None:
    """The reaper comes in the middle of each verb of a completion; the transaction is long overdue."""
    calls = []

    def late(when: str, at: str) -> None:
        if at == verb:
            calls.append(when)
            reap(shop, 1000)

    shop.wrap["a"] = shop.wrap["b"] = hooked(late)
    with shop.tm.begin(10) as tx:
        shop.write(tx)
    assert calls
    assert not tx.expired
    shop.assert_ended(1)


def test_what_is_in_doubt_is_never_touched(shop: Shop) -> None:
    tx = shop.in_doubt("b")
    reap(shop, 1000)
    assert shop["b"].in_doubt == [tx.xid("b")]
    shop.tm.recover()
    assert shop.values() == {"a": 1, "b": 1}


def test_a_commit_that_meets_the_reaper_at_work_waits_and_hears_it(shop: Shop) -> None:
    """Not a misuse: the application has used its transaction from one thread only."""
    gate = Gate("rollback")
    shop.wrap["a"] = gate.wrap
    tx = begun(shop)
    shop.clock.pass_by(10)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(shop.tm._reaper.reap)
        assert gate.reached.wait(30)
        threading.Timer(0.05, gate.opened.set).start()
        with pytest.raises(RolledBack, match="longer than its 10 s"):
            tx.commit()
    shop.assert_nothing_left()


def test_the_thread_reaps_by_itself(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tm.concurrency.reaper.INTERVAL_S", 0.005)
    ended = threading.Event()
    tx = shop.open(background=True).begin(10)
    tx["a"].write("k", 1)
    tx.register_synchronization(after=lambda _: ended.set())
    shop.clock.pass_by(10)
    assert ended.wait(30)
    assert tx.expired
    tx.rollback()


def test_a_heuristic_of_a_reaped_branch_is_noted(shop: Shop) -> None:
    shop["a"].script.plan("rollback", Code.XA_HEURCOM)
    tx = begun(shop)
    reap(shop, 10)
    assert tx.status is GlobalState.HEURISTIC
    assert len(shop.log.heuristics()) == 1
