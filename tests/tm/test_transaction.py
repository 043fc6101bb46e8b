"""These tests cover one transaction: its block, its resources, its marks and synchronizations, and the outcome that the
application gets.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from tests.tm.shop import Shop, elsewhere, outcome_of
from tests.tm.wrapped import Gate, Wrapped
from tests.waiting import until
from tm import (
    GlobalState,
    HeuristicMixed,
    Outcome,
    OutcomeUnknown,
    ProtocolMisuse,
    RolledBack,
    Transaction,
    Verdict,
)
from tm.transaction import live_of
from xa import TMASYNC, Code, XaError, thread_of_control, xa_error
from xa.state_tables import BranchState
from xabridge.testing.reference import NetworkFault


# --- the block --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", ["", "ab"])
def test_a_block_that_ends_commits_everything(shop: Shop, names: str) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx, names=names)
        assert shop.values() == {"a": None, "b": None}
    shop.assert_ended(1 if names else None)
    assert tx.status is GlobalState.COMMITTED
    assert outcome_of(tx).verdict is Verdict.COMMITTED
    assert shop.tm.current_or_none() is None


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_whatever_leaves_the_block_rolls_back_and_goes_on(shop: Shop, error: BaseException) -> None:
    before = thread_of_control()
    with pytest.raises(type(error)) as raised, shop.tm.begin() as tx:
        shop.write(tx)
        raise error
    assert raised.value is error
    assert shop.values() == {"a": None, "b": None}
    assert tx.status is GlobalState.ROLLED_BACK
    assert shop.tm.current_or_none() is None
    assert thread_of_control() is before
    shop.assert_nothing_left()


@pytest.mark.parametrize("where", [lambda work: work(), elsewhere])
def test_a_transaction_is_freed_with_its_last_reference(shop: Shop, where: Any) -> None:
    """Not only when garbage is collected: the collections of a process with many transactions would cost more than the
    rest of their ends."""

    def work() -> None:
        with shop.tm.begin() as tx:
            shop.write(tx)
        control = weakref.ref(live_of(tx).control)
        del tx
        assert control() is None

    gc.disable()
    try:
        where(work)
    finally:
        gc.enable()


@pytest.mark.parametrize("names", ["a", "b", "ab"])
def test_a_commit_in_the_block(shop: Shop, names: str) -> None:
    """What raises behind it changes nothing, and another one may be begun."""
    with pytest.raises(ValueError, match="late"), shop.tm.begin() as tx:
        shop.write(tx, names=names)
        tx.commit()
        assert shop.tm.current_or_none() is None
        with pytest.raises(ProtocolMisuse, match="too late to enlist a"):
            tx.enlist("a")
        with pytest.raises(ProtocolMisuse, match="too late to commit"):
            tx.commit()
        with pytest.raises(ProtocolMisuse, match="too late to roll back"):
            tx.rollback()
        with pytest.raises(ProtocolMisuse, match="too late"):
            tx.register_synchronization(lambda: None)
        with shop.tm.begin() as second:
            shop.write(second, 2, key="second")
        raise ValueError("late")

    assert shop.values() == {"a": 1 if "a" in names else None, "b": 1 if "b" in names else None}
    shop.assert_ended(2, "second")
    assert shop.tm.current_or_none() is None


def test_a_rollback_in_the_block_is_no_error_and_set_rollback_only_is_one(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx)
        tx.rollback()
        for late in (lambda: tx.enlist("a"), tx.commit):
            with pytest.raises(RolledBack):
                late()
    shop.assert_ended(None)
    with pytest.raises(RolledBack, match="changed my mind"), shop.tm.begin() as tx:
        shop.write(tx)
        tx.set_rollback_only("changed my mind")
        tx.set_rollback_only("once more")
    shop.assert_ended(None)


def test_what_is_wrong_is_refused_and_harms_nothing(shop: Shop) -> None:
    for timeout_s in (0, -1, float("nan")):
        with pytest.raises(ProtocolMisuse, match=r"timeout_s is .*: expected seconds above 0"):
            shop.tm.begin(timeout_s)
    with shop.tm.begin() as tx:
        shop.write(tx, names="a")
        with pytest.raises(ProtocolMisuse, match="complete or suspend it"):
            shop.tm.begin()
        with pytest.raises(ProtocolMisuse, match=r"'c' is configured \(configured: a, b\)"):
            tx["c"]
        with pytest.raises(ProtocolMisuse, match="c is not enlisted"):
            tx.delist("c")
        with pytest.raises(ProtocolMisuse, match="none of success, suspend, fail"):
            tx.delist("a", "somehow")  # type: ignore[arg-type]  # the mistake is the point
        shop.write(tx, names="b")
    shop.assert_ended(1)


# --- votes ------------------------------------------------------------------------------------------------------
def test_a_refusal_rolls_back_everybody_and_is_told_with_its_reason(shop: Shop) -> None:
    """Also one that was returned, and has no words."""
    shop["b"].script.plan("prepare", Code.XA_RBINTEGRITY)
    with pytest.raises(RolledBack, match=r"b: .*integrity") as raised, shop.tm.begin() as tx:
        shop.write(tx)
    assert "safe to try again" in str(raised.value)
    assert str(tx) in str(raised.value)
    assert raised.value.outcome is tx.outcome
    shop.assert_ended(None)

    class Returns(Wrapped):
        def prepare(self, *_: Any) -> Any:
            return Code.XA_RBDEADLOCK

    shop.wrap["a"] = Returns
    shop.restart()
    with pytest.raises(RolledBack, match="a: XA_RBDEADLOCK"), shop.tm.begin() as tx:
        shop.write(tx)


def test_a_heuristic_is_told_noted_and_forgotten_on_request(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop["b"].script.plan("commit", Code.XA_HEURRB)
    with pytest.raises(HeuristicMixed, match="b \\(XA_HEURRB, xid ") as raised, shop.tm.begin() as tx:
        shop.write(tx)
        xid = tx.xid("b")
    assert shop.values() == {"a": 1, "b": None}
    assert [h.code for h in outcome_of(raised.value).heuristics] == [Code.XA_HEURRB]
    assert str(xid) in caplog.text
    assert [h.branch.xid for h in shop.log.heuristics()] == [xid]
    assert not shop.log.decisions()
    report = shop.tm.recover()
    assert [finding.branch.xid for finding in report.findings] == [xid]
    assert shop["b"].branches == {xid: BranchState.S5}

    shop.restart()
    assert shop["b"].branches == {xid: BranchState.S5}, "nobody asked for it to be forgotten"
    shop["b"].script.plan("forget", Code.XAER_RMERR)
    with pytest.raises(XaError):
        shop.tm.forget("b", xid)
    assert shop.log.heuristics(), "not forgotten there, so not here"
    shop.tm.forget("b", xid)
    assert not shop.log.heuristics()
    shop.assert_nothing_left()


def test_a_heuristic_of_a_renamed_resource_is_noted_once_and_forgotten_under_its_new_name(shop: Shop) -> None:
    shop["b"].script.plan("commit", Code.XA_HEURRB)
    with pytest.raises(HeuristicMixed), shop.tm.begin() as tx:
        shop.write(tx)
        xid = tx.xid("b")
    shop.kill()
    shop.open(resources={"a": shop.config("a"), "store": shop.config("b")})
    assert len(shop.log.heuristics()) == 1
    shop.tm.forget("store", xid)
    assert not shop.log.heuristics()
    shop.assert_nothing_left()


# --- enlist and delist ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [("success",), ("suspend",), ("suspend", "success")], ids=str)
@pytest.mark.parametrize("again", [True, False], ids=["enlisted again", "left"])
def test_delisted_it_joins_or_resumes_its_branch_or_is_committed_with_the_rest(
    shop: Shop, how: tuple[Any, ...], *, again: bool
) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx)
        for one in how:
            tx.delist("a", one)
        tx.delist("b", "suspend")
        assert shop["a"].associations == (0 if "success" in how else 1)
        if again:
            session = tx.enlist("a")
            assert tx["a"] is tx.enlist("a") is shop.tm["a"] is session
            assert session.read("k") == 1
            session.write("j", 2)
        assert len(shop["a"].branches) == 1
    assert shop["a"].data == ({"k": 1, "j": 2} if again else {"k": 1})
    shop.assert_ended(1)


@pytest.mark.parametrize(
    ("first", "second"),
    [("success", "success"), ("success", "suspend"), ("success", "fail"), ("suspend", "suspend")],
)
def test_what_can_not_be_delisted_is_refused_and_harms_nothing(shop: Shop, first: Any, second: Any) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx)
        tx.delist("a", first)
        with pytest.raises(ProtocolMisuse, match="a can't be delisted"):
            tx.delist("a", second)
    assert shop.values() == {"a": 1, "b": 1}


@pytest.mark.parametrize("code", [None, Code.XA_RBDEADLOCK, Code.XAER_RMERR])
@pytest.mark.parametrize("how", ["success", "suspend", "fail"])
def test_a_resource_that_can_not_be_delisted_well_dooms_the_transaction(
    shop: Shop, how: Any, code: Code | None
) -> None:
    """Or that is delisted as failed."""
    doomed = code is not None or how == "fail"
    match = "delisted as failed" if code is None else ""
    with pytest.raises(RolledBack, match=match or None) if doomed else nullcontext(), shop.tm.begin() as tx:
        shop.write(tx)
        if code is not None:
            shop["a"].script.plan("end", code)
        with pytest.raises(RolledBack, match="a: ") if code and how == "success" else nullcontext():
            tx.delist("a", how)
        if doomed:
            assert tx.status is GlobalState.MARKED
            with pytest.raises(RolledBack, match="can't enlist b"):
                tx.enlist("b")
    shop.assert_ended(None if doomed else 1)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_two_instances_of_one_resource_share_a_branch(shop: Shop, *, alone: bool, lost: bool) -> None:
    """It is recovered once, and committed in one phase where there is no other."""
    tm = shop.open(resources={"a": shop.config("a"), "again": shop.config("a"), "b": shop.config("b")})
    if alone:
        shop["a"].script.plan("prepare", Code.XA_RBOTHER)  # nobody is asked to prepare
    if lost:
        shop["a"].script.plan("commit", None, NetworkFault.REPLY_LOST if alone else NetworkFault.REQUEST_LOST, times=3)

    with pytest.raises(OutcomeUnknown) if lost else nullcontext(), tm.begin() as tx:
        tx["a"].write("k", 1)
        assert tx["again"].read("k") == 1
        tx["again"].write("j", 2)
        if not alone:
            tx["b"].write("k", 1)
        assert tx.xid("a") == tx.xid("again")
        assert len(shop["a"].branches) == 1
    shop["a"].script.clear()
    tm.recover()
    assert shop["a"].data == {"k": 1, "j": 2}
    shop.assert_nothing_left()


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (["a", "b"], ["a late", "b late"]),
        (["a"], ["a ends"]),  # it is not prepared
        (["a", "b", "again"], ["a ends", "b ends", "a ends"]),  # two are associated with one branch
    ],
)
def test_associations_are_ended_together_with_the_prepare_of_their_branch(
    shop: Shop, names: list[str], asked: list[str]
) -> None:
    """Where the resource manager offers that."""
    heard: list[str] = []

    class Late(Wrapped):
        def end_late(self, *arguments: Any) -> Any:
            heard.append(f"{self.rm._store.name} late")
            return self.rm.end(*arguments)

        def end(self, *arguments: Any) -> Any:
            heard.append(f"{self.rm._store.name} ends")
            return self.rm.end(*arguments)

    shop.wrap = {"a": Late, "b": Late}
    tm = shop.open(resources={"a": shop.config("a"), "b": shop.config("b"), "again": shop.config("a")})
    with tm.begin() as tx:
        for name in names:
            tx[name].write(name, 1)
    assert heard == asked


# --- marks and synchronizations -----------------------------------------------------------------------------------
def test_before_completion_may_work_and_register_another_and_after_completion_hears_the_outcome(shop: Shop) -> None:
    heard: list[Outcome] = []
    with shop.tm.begin() as tx:
        shop.write(tx, names="a")
        tx.register_synchronization(
            lambda: tx.register_synchronization(lambda: shop.tm["b"].write("k", 1)), heard.append
        )
    shop.assert_ended(1)
    with pytest.raises(ValueError, match="no"), shop.tm.begin() as tx:
        tx.register_synchronization(lambda: pytest.fail("called for a rollback"), heard.append)
        raise ValueError("no")
    assert [outcome.verdict for outcome in heard] == [Verdict.COMMITTED, Verdict.ROLLED_BACK]


@pytest.mark.parametrize("error", [LookupError("no such customer"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_before_completion_that_raises_rolls_back(shop: Shop, error: BaseException) -> None:
    """What interrupts it goes on."""
    heard: list[Outcome] = []

    def fail() -> None:
        raise error

    ours = isinstance(error, LookupError)
    told = "before completion: LookupError: no such customer" if ours else None
    with pytest.raises(RolledBack if ours else type(error), match=told), shop.tm.begin() as tx:
        shop.write(tx)
        tx.register_synchronization(fail, heard.append)
    assert [outcome.verdict for outcome in heard] == [Verdict.ROLLED_BACK]
    assert tx.status is GlobalState.ROLLED_BACK
    assert shop.tm.current_or_none() is None
    shop.assert_ended(None)


@pytest.mark.parametrize("how", ["mark", "roll back", "commit"])
def test_before_completion_that_takes_the_end_into_its_own_hands(shop: Shop, how: str) -> None:
    calls = []
    tx = shop.tm.begin()

    def before() -> None:
        calls.append(how)
        {"mark": tx.set_rollback_only, "roll back": tx.rollback, "commit": tx.commit}[how]()

    shop.write(tx)
    tx.register_synchronization(before)
    with pytest.raises(ProtocolMisuse if how == "commit" else RolledBack):
        tx.commit()
    assert calls == [how]
    assert shop.values() == dict.fromkeys("ab", 1 if how == "commit" else None)
    assert shop.tm.current_or_none() is None
    shop.assert_nothing_left()


@pytest.mark.parametrize("interrupted", [False, True])
def test_after_completion_that_fails_is_logged_and_the_others_are_called(
    shop: Shop, caplog: pytest.LogCaptureFixture, *, interrupted: bool
) -> None:
    """They may begin another transaction."""

    def fail(_: Outcome) -> None:
        raise KeyboardInterrupt if interrupted else LookupError("nobody listens")

    def again(_: Outcome) -> None:
        with shop.tm.begin() as second:
            shop.write(second, 2)

    with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext(), shop.tm.begin() as tx:
        shop.write(tx)
        tx.register_synchronization(after=fail)
        tx.register_synchronization(after=again)
    assert interrupted or "nobody listens" in caplog.text
    assert shop.tm.current_or_none() is None
    shop.assert_ended(1 if interrupted else 2)


# --- suspend and resume -------------------------------------------------------------------------------------------
def test_suspended_and_resumed_it_goes_on(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx)
    with pytest.raises(ProtocolMisuse, match="is active in this context"):
        shop.tm.resume(tx)
    assert shop.tm.suspend() is tx
    assert shop.tm.current_or_none() is None
    for use in (shop.tm.get_transaction, shop.tm.suspend):
        with pytest.raises(ProtocolMisuse, match="no transaction is active"):
            use()
    for wrong in (lambda: tx.enlist("a"), tx.commit):
        with pytest.raises(ProtocolMisuse, match="is suspended: resume it"):
            wrong()

    with shop.tm.begin() as other:
        other["a"].write("j", 2)
        with pytest.raises(ProtocolMisuse, match="suspend it first"):
            shop.tm.resume(tx)
    assert shop.tm.current_or_none() is None
    shop.tm.resume(tx)
    assert shop.tm.get_transaction() is tx
    tx["a"].write("i", 3)
    tx.commit()
    with pytest.raises(ProtocolMisuse, match="is not suspended"):
        shop.tm.resume(tx)
    assert shop["a"].data == {"k": 1, "j": 2, "i": 3}
    shop.assert_nothing_left()


def test_resumed_in_another_thread_it_is_gone_from_the_first(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx, names="a")
    shop.tm.suspend()
    resumed, go_on = threading.Event(), threading.Event()

    def resume() -> None:
        shop.tm.resume(tx)
        shop.write(tx, names="b")
        resumed.set()
        assert go_on.wait(30)
        shop.tm.get_transaction().commit()

    with ThreadPoolExecutor(1) as executor:
        other = executor.submit(resume)
        assert resumed.wait(30)
        assert shop.tm.current_or_none() is None
        with shop.tm.begin() as own:  # not refused: this thread has none
            own["a"].write("j", 2)
        go_on.set()
        other.result(30)
    shop.assert_ended(1)


def test_what_was_rolled_back_while_suspended_is_resumed_to_find_out(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx)
    shop.tm.suspend()
    tx.rollback()
    assert not tx.suspended
    shop.tm.resume(tx)
    assert shop.tm.current_or_none() is None
    with pytest.raises(RolledBack):
        tx.commit()
    shop.assert_ended(None)


def test_what_another_thread_works_in_is_not_taken_by_a_resume(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx, names="a")

    def resume() -> None:
        with pytest.raises(ProtocolMisuse, match="is not suspended"):
            shop.tm.resume(tx)
        assert shop.tm.current_or_none() is None
        with shop.tm.begin() as own:
            own["b"].write("j", 2)

    with ThreadPoolExecutor(1) as executor:
        executor.submit(resume).result(30)
    assert shop.tm.get_transaction() is tx
    tx.commit()
    assert (shop["a"].data, shop["b"].data) == ({"k": 1}, {"j": 2})


def test_a_resource_that_can_not_be_resumed_dooms_the_transaction(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx)
    shop.tm.suspend()
    shop["a"].expire(tx.xid("a"))
    with pytest.raises(RolledBack):
        shop.tm.resume(tx)
    assert shop.tm.get_transaction() is tx
    with pytest.raises(RolledBack):
        tx.commit()
    assert shop.tm.current_or_none() is None
    shop.assert_ended(None)


@pytest.mark.parametrize("error", [None, ValueError("no")], ids=repr)
def test_a_block_left_while_suspended_rolls_back(shop: Shop, error: ValueError | None) -> None:
    with pytest.raises(ProtocolMisuse if error is None else ValueError), shop.tm.begin() as tx:
        shop.write(tx)
        shop.tm.suspend()
        if error is not None:
            raise error
    assert tx.status is GlobalState.ROLLED_BACK
    shop.assert_ended(None)


# --- two threads --------------------------------------------------------------------------------------------------
def test_a_second_thread_is_refused_while_one_is_inside_and_harms_nothing(shop: Shop) -> None:
    gate = Gate("prepare")
    shop.wrap["a"] = gate.wrap
    tx = shop.tm.begin()
    shop.write(tx)

    with ThreadPoolExecutor(1) as executor:
        committing = executor.submit(tx.commit)
        assert gate.reached.wait(30)
        for use in (tx.commit, tx.rollback, lambda: tx.enlist("a"), lambda: tx.delist("a"), tx.set_rollback_only):
            with pytest.raises(ProtocolMisuse, match="in use by another thread"):
                use()
        shop.clock.pass_by(1000)
        shop.tm._reaper.reap()
        gate.opened.set()
        committing.result(30)
    assert tx.status is GlobalState.COMMITTED
    shop.assert_ended(1)


def test_another_thread_may_use_it_after_the_first(shop: Shop) -> None:
    tx = shop.tm.begin()
    shop.write(tx, names="a")

    def commit() -> None:
        tx.enlist("b")
        tx.commit()

    elsewhere(commit)
    assert shop.values() == {"a": 1, "b": None}
    assert shop.tm.current_or_none() is None
    shop.assert_nothing_left()


# --- commit(wait="logged") ----------------------------------------------------------------------------------------
def test_logged_is_told_at_the_decision_and_the_branches_behind_it(shop: Shop) -> None:
    told, gate = threading.Event(), Gate("commit")
    shop.wrap["a"] = shop.wrap["b"] = gate.wrap
    with shop.tm.begin() as tx:
        shop.write(tx)
        tx.register_synchronization(after=lambda _: told.set())
        tx.commit(wait="logged")
        assert tx.status.value == "committing"
        assert shop.tm.current_or_none() is None
        assert [decision.gtrid for decision in shop.log.decisions()] == [tx.gtrid]
        with pytest.raises(ProtocolMisuse, match="committing: too late"):
            tx.rollback()

    assert shop.tm.recover().findings == [], "it is live: recovery leaves it to its own completion"
    assert shop.values() == {"a": None, "b": None}
    gate.opened.set()
    assert told.wait(30)
    shop.tm.executor.stop()
    assert shop.values() == {"a": 1, "b": 1}
    assert tx.status is GlobalState.COMMITTED
    shop.assert_nothing_left()


def test_logged_without_room_in_the_background_tells_the_branches_itself_and_says_no_more_than_that_it_is_decided(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction is told in the background, is held there, and leaves no room for another."""
    monkeypatch.setattr("tm.two_phase.executor.BACKLOG", 1)
    go_on = threading.Event()

    class SlowInTheBackground(Wrapped):
        def commit(self, *arguments: Any) -> Any:
            assert not threading.current_thread().name.startswith("xabridge-completion") or go_on.wait(30)
            return self.rm.commit(*arguments)

    shop.wrap["a"] = SlowInTheBackground
    with shop.tm.begin() as held:
        shop.write(held)
        held.commit(wait="logged")
    assert held.status.value == "committing"
    for key, lost in (("first", False), ("second", False), ("third", True)):
        if lost:
            shop["b"].script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=9)
        with shop.tm.begin() as tx:
            shop.write(tx, key=key)
            tx.commit(wait="logged")
        assert tx.status is (GlobalState.IN_DOUBT if lost else GlobalState.COMMITTED)
        assert outcome_of(tx).decided
        shop["b"].script.clear()
        if lost:
            shop.tm.recover()
        assert shop.values(key) == {"a": 1, "b": 1}
    assert shop.tm.current_or_none() is None
    go_on.set()
    shop.tm.executor.stop()
    assert held.status is GlobalState.COMMITTED
    shop.tm.recover()
    shop.assert_ended(1)


def test_logged_has_room_again_when_the_background_is_done(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tm.two_phase.executor.BACKLOG", 1)
    workers: list[str] = []

    class Watched(Wrapped):
        def commit(self, *arguments: Any) -> Any:
            workers.append(threading.current_thread().name)
            return self.rm.commit(*arguments)

    shop.wrap["a"] = Watched
    for _ in range(3):
        with shop.tm.begin() as tx:
            shop.write(tx)
            tx.commit(wait="logged")
        until(lambda: shop.tm.executor._room._value == 1)
    assert all(name.startswith("xabridge-completion") for name in workers)


def test_logged_after_the_background_has_ended_tells_the_branches_itself_and_a_refusal_at_once(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx)
        shop.tm.executor.stop()
        tx.commit(wait="logged")
    assert tx.status is GlobalState.COMMITTED
    shop.assert_ended(1)
    shop["a"].script.plan("prepare", Code.XA_RBROLLBACK)
    with pytest.raises(RolledBack), shop.tm.begin() as tx:
        shop.write(tx, 2)
        tx.commit(wait="logged")
    shop.assert_ended(1)


# --- answers are left --------------------------------------------------------------------------------------------
def commit_and_leave(shop: Shop, key: str = "k") -> Transaction:
    """A transaction whose block has ended, and has left the answer of `a`."""
    with shop.tm.begin() as tx:
        shop.write(tx, key=key)
        live_of(tx).leaves = "a"
    assert live_of(tx).is_left
    assert tx.status.value == "committing"
    assert shop.tm.current_or_none() is None
    return tx


@pytest.mark.parametrize("decider", [False, True])
def test_answers_that_are_left_are_waited_for_by_finish(shop: Shop, *, decider: bool) -> None:
    if decider:
        shop.add_decider()
    tx = commit_and_leave(shop)
    assert {value for name, value in shop.values().items() if name != "a"} == {1}, "all others have answered"
    assert shop.tm.recover().findings == [], "it is live: recovery leaves it to its own completion"
    with pytest.raises(ProtocolMisuse, match="committing: too late"):
        tx.rollback()
    for _ in range(2):
        live_of(tx).finish()
        assert outcome_of(tx).verdict is Verdict.COMMITTED
    assert tx.status is GlobalState.COMMITTED
    shop.assert_ended(1)


@pytest.mark.parametrize(
    "why", ["a takes no more", "b takes no more", "committed in the block", "something is called after it"]
)
def test_nothing_is_left_where_somebody_would_have_to_wait(shop: Shop, why: str) -> None:
    """What is called after it would be called while the thread is in its next transaction."""

    class Full(Wrapped):
        def commit(self, xid: Any, rmid: int, flags: int = 0) -> Any:
            if flags & TMASYNC:
                raise xa_error(Code.XAER_ASYNC, "too many", xid)
            return self.rm.commit(xid, rmid, flags)

    if why.endswith("no more"):
        shop.wrap[why[0]] = Full
    told: list[Outcome] = []
    with shop.tm.begin() as tx:
        shop.write(tx)
        if why == "committed in the block":
            tx.commit()
            assert tx.status is GlobalState.COMMITTED
        live_of(tx).leaves = "a"
        if why == "something is called after it":
            tx.register_synchronization(before=lambda: tx.register_synchronization(after=told.append))
    assert live_of(tx).is_left == (why == "b takes no more")
    assert [outcome.verdict for outcome in told] == [Verdict.COMMITTED] * (why == "something is called after it")
    live_of(tx).finish()
    assert tx.status is GlobalState.COMMITTED
    shop.assert_ended(1)


def test_the_reaper_waits_for_what_nobody_else_waits_for(shop: Shop) -> None:
    tx = commit_and_leave(shop)
    shop.tm._reaper.reap()
    assert tx.status.value == "committing"
    shop.clock.pass_by(1)
    shop.tm._reaper.reap()
    assert tx.status is GlobalState.COMMITTED
    shop.assert_nothing_left()
    live_of(tx).finish()


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("end", ["finished", "closed", "killed"])
def test_what_was_left_is_waited_for_or_recovered_whatever_ends_it(shop: Shop, end: str, *, lost: bool) -> None:
    if lost:
        shop["a"].script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=9)
    tx = commit_and_leave(shop)
    if end == "finished":
        with pytest.raises(OutcomeUnknown) if lost else nullcontext():
            live_of(tx).finish()
        shop["a"].script.clear()
        shop.tm.recover()
    elif end == "closed":
        shop.tm.close()
        shop["a"].script.clear()

    if end != "killed":
        assert tx.status is (GlobalState.IN_DOUBT if lost else GlobalState.COMMITTED)
    if end == "killed" or (end == "closed" and lost):
        shop.restart()
    assert shop.values() == {"a": 1, "b": 1}
    shop.assert_nothing_left_at_stores()
