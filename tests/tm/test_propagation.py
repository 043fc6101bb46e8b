"""These tests cover `@tm.transactional`: which transaction a function runs in, begins and leaves. The same table holds
for functions and coroutines.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from tests.tm.shop import Shop
from tm import GlobalState, OutcomeUnknown, Propagation, ProtocolMisuse, RolledBack, Transaction
from xa import Code
from xabridge.frameworks.error_responses import response_for
from xabridge.testing.reference import NetworkFault

P = Propagation
SAME, NEW, NONE, REFUSED = "the caller's", "a new one", "none", "refused"
TABLE = {
    P.REQUIRED: (SAME, NEW),
    P.REQUIRES_NEW: (NEW, NEW),
    P.MANDATORY: (SAME, REFUSED),
    P.SUPPORTS: (SAME, NONE),
    P.NOT_SUPPORTED: (NONE, NONE),
    P.NEVER: (REFUSED, NONE),
}
"""Propagation → in what the function runs, called inside a transaction and without one."""

KINDS = ["function", "coroutine"]


def decorated(shop: Shop, kind: str, work: Callable[[], object], **settings: Any) -> Callable[[], Any]:
    """`work` made transactional, as a function or as a coroutine function, called in the same way."""
    if kind == "function":

        @shop.tm.transactional(**settings)  # type: ignore[untyped-decorator]  # it decorates both kinds
        def plain() -> object:
            return work()

        return plain  # type: ignore[no-any-return]  # as above

    @shop.tm.transactional(**settings)  # type: ignore[untyped-decorator]  # as above
    async def coroutine() -> object:
        await asyncio.sleep(0)
        return work()

    async def in_this_task() -> object:
        return await coroutine()

    def call() -> Any:
        with asyncio.Runner() as runner:
            return runner.run(in_this_task())

    return call


def met(shop: Shop, caller: Transaction | None) -> str:
    found = shop.tm.current_or_none()
    return NONE if found is None else SAME if found is caller else NEW


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("propagation", list(P), ids=lambda p: p.name)
def test_in_what_it_runs_and_what_an_exception_does(
    shop: Shop, propagation: Propagation, inside: bool, fails: bool, kind: str
) -> None:
    expected = TABLE[propagation][0 if inside else 1]
    caller = shop.tm.begin() if inside else None
    if caller is not None:
        caller["b"].write("k", 1)
    seen: list[str] = []

    def work() -> str:
        seen.append(met(shop, caller))
        if shop.tm.current_or_none() is not None:
            shop.tm["a"].write("k", 1)
        if fails:
            raise LookupError("no such customer")
        return "done"

    call = decorated(shop, kind, work, propagation=propagation)
    if expected == REFUSED:
        with pytest.raises(ProtocolMisuse, match=f"is {propagation.name} and was called"):
            call()
    elif fails:
        with pytest.raises(LookupError, match="no such customer"):
            call()
    else:
        assert call() == "done"
    assert seen == ([] if expected == REFUSED else [expected])
    assert shop.values()["a"] == (1 if expected == NEW and not fails else None)
    assert shop.tm.current_or_none() is caller
    if caller is not None:
        doomed = fails and expected == SAME
        assert caller.status is (GlobalState.MARKED if doomed else GlobalState.ACTIVE)
        with pytest.raises(RolledBack, match="LookupError: no such customer") if doomed else nullcontext():
            assert caller["b"].read("k") == 1
        with pytest.raises(RolledBack, match="LookupError: no such customer") if doomed else nullcontext():
            caller.commit()
        assert shop.values()["b"] == (None if doomed else 1)
    shop.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(("raised", "written"), [(LookupError("x"), 1), (ValueError("x"), None)], ids=repr)
def test_rollback_on(shop: Shop, raised: Exception, written: int | None, kind: str, *, inside: bool) -> None:
    def work() -> None:
        shop.tm["a"].write("k", 1)
        raise raised

    with shop.tm.begin() if inside else nullcontext() as tx:
        with pytest.raises(type(raised)):
            decorated(shop, kind, work, rollback_on=(ValueError,))()
        if tx is not None:
            assert tx.status is (GlobalState.ACTIVE if written else GlobalState.MARKED)
            tx.commit() if written else tx.rollback()
    assert shop.values()["a"] == written
    shop.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("retries", [3, 1])
def test_retries_run_it_again_in_a_new_transaction_and_come_to_an_end(shop: Shop, kind: str, retries: int) -> None:
    shop["a"].script.plan("prepare", Code.XA_RBDEADLOCK, times=2)
    seen = []

    def work() -> int:
        tx = shop.tm.get_transaction()
        seen.append(tx.gtrid)
        tx["a"].append("k", len(seen))
        tx["b"].write("k", len(seen))
        return len(seen)

    call = decorated(shop, kind, work, retries=retries)
    if retries == 1:
        with pytest.raises(RolledBack):
            call()
    else:
        assert call() == 3
    assert len(set(seen)) == len(seen) == (3 if retries == 3 else 2)
    assert shop.values() == ({"a": (3,), "b": 3} if retries == 3 else {"a": None, "b": None})
    assert shop.tm.current_or_none() is None
    shop.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
def test_work_that_has_ended_its_own_branch_is_not_done_again(shop: Shop, kind: str) -> None:
    """A part of it may be committed, by a COMMIT in a procedure for example: it would be done twice."""
    shop["a"].script.plan("prepare", Code.XA_RBPROTO)
    seen = []

    def work() -> None:
        seen.append(1)
        shop.tm["a"].write("k", 1)
        shop.tm["b"].write("k", 1)

    with pytest.raises(RolledBack, match="Correct the code") as raised:
        decorated(shop, kind, work, retries=5)()
    assert len(seen) == 1
    status, said, headers = response_for(raised.value)
    assert (status, headers) == (500, {})
    assert "a part of it may have happened; don't try again" in said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("how", "told", "value"),
    [
        ("its outcome is not known", OutcomeUnknown, (1,)),
        # the RolledBack comes from a transaction of the function's own, and does not roll this one back
        ("another was rolled back", RolledBack, (1,)),
        ("the first try would be kept in the caller's", RolledBack, None),
    ],
)
def test_what_may_be_done_is_not_done_again(shop: Shop, kind: str, how: str, told: Any, value: object) -> None:
    seen = []
    rollback_on = (ValueError,) if how == "another was rolled back" else (Exception,)
    if told is OutcomeUnknown:
        shop["a"].script.plan("commit", None, NetworkFault.REPLY_LOST)

    def work() -> None:
        seen.append(1)
        shop.tm["a"].append("k", 1)
        if told is RolledBack:
            raise RolledBack("another one")

    with pytest.raises(told), shop.tm.begin() if value is None else nullcontext():
        decorated(shop, kind, work, retries=5, rollback_on=rollback_on)()
    assert len(seen) == 1
    assert shop.values()["a"] == value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fails", [True, False], ids=["fails", "returns"])
def test_a_caller_that_can_not_be_resumed_hides_nothing(shop: Shop, kind: str, fails: bool) -> None:
    caller = shop.tm.begin()
    caller["a"].write("k", 1)

    def work() -> str:
        shop["a"].expire(caller.xid("a"))
        if fails:
            raise LookupError("mine")
        shop.tm["b"].write("k", 2)
        return "done"

    call = decorated(shop, kind, work, propagation=P.REQUIRES_NEW)
    if fails:
        with pytest.raises(LookupError, match="mine"):
            call()
    else:
        assert call() == "done"
        assert shop.values()["b"] == 2
    assert shop.tm.current_or_none() is caller
    with pytest.raises(RolledBack):
        caller.commit()
    shop.assert_nothing_left()


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_may_complete_its_transaction_itself(shop: Shop, kind: str) -> None:
    def work() -> None:
        tx = shop.tm.get_transaction()
        tx["a"].write("k", 1)
        tx.commit()

    decorated(shop, kind, work)()
    assert shop.values()["a"] == 1
    shop.assert_nothing_left()


def test_the_decorated_keep_their_names_kinds_and_arguments(shop: Shop) -> None:
    @shop.tm.transactional
    def plain(a: int, *, b: int) -> int:
        """Adds."""
        return a + b

    @shop.tm.transactional(timeout_s=5)
    async def coroutine(a: int) -> float:
        return a + shop.tm.get_transaction().timeout_s

    assert plain(1, b=2) == 3
    assert (plain.__name__, plain.__doc__) == ("plain", "Adds.")
    assert inspect.iscoroutinefunction(coroutine)
    assert asyncio.run(coroutine(1)) == 6


def test_what_would_run_too_late_is_refused(shop: Shop) -> None:
    async def place() -> None:
        raise AssertionError("it has run")

    def generator() -> Any:
        yield 1

    async def asynchronous_generator() -> Any:
        yield 1

    def behind_a_decorator() -> Any:
        return place()

    with pytest.raises(ProtocolMisuse, match="would run after its transaction has ended"):
        shop.tm.transactional(behind_a_decorator)()
    for function in (generator, asynchronous_generator):
        with pytest.raises(ProtocolMisuse, match="generator function"):
            shop.tm.transactional(function)
