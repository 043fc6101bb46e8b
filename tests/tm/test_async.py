"""These tests run transactions in asyncio: blocks, tasks beside each other, tasks started inside a block, and
cancellation anywhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from tests.event_loop import in_loop
from tests.tm.shop import Shop
from tests.tm.wrapped import Gate, Wrapped
from tm import GlobalState, ProtocolMisuse, RolledBack, Verdict
from tm.transaction import live_of
from xa import TMNOWAIT, Code, Xid, thread_of_control, xa_error
from xabridge.testing.reference import NetworkFault


def gate_at(shop: Shop, verb: str) -> Gate:
    """It holds `a`, in whatever thread it is called."""
    gate = Gate(verb)
    shop.wrap["a"] = gate.wrap
    shop.flags["a"] = 0
    return gate


ENDS: dict[str, tuple[type[Exception], str]] = {
    "raises": (ValueError, "no"),
    "refused": (RolledBack, "deadlock"),
    "left suspended": (ProtocolMisuse, "left suspended"),
    "reaped": (RolledBack, "longer than its 10 s"),
}


@pytest.mark.parametrize("end", ["commits", *ENDS])
def test_a_block_commits_or_rolls_back_and_says_why(shop: Shop, end: str) -> None:
    async def main() -> None:
        before = thread_of_control()
        try:
            async with shop.tm.begin(10) as tx:
                tx["a"].write("k", 1)
                (await tx.aenlist("b")).write("k", 1)
                if end == "raises":
                    raise ValueError("no")

                if end == "refused":
                    shop["b"].script.plan("prepare", Code.XA_RBDEADLOCK)
                if end == "left suspended":
                    shop.tm.suspend()
                if end == "reaped":
                    shop.clock.pass_by(10)
                    await asyncio.to_thread(shop.tm._reaper.reap)
        finally:
            assert shop.tm.current_or_none() is None
            assert thread_of_control() is before

    error, match = ENDS.get(end, (None, ""))
    with pytest.raises(error, match=match) if error else nullcontext():
        asyncio.run(main())
    shop.assert_ended(1 if end == "commits" else None)


@in_loop
async def test_the_end_may_be_taken_in_the_block(shop: Shop) -> None:
    async with shop.tm.begin() as tx:
        tx["a"].write("k", 1)
        await tx.acommit()
        assert shop.tm.current_or_none() is None
    async with shop.tm.begin() as tx:
        tx["a"].write("k", 2)
        await tx.arollback()
    assert shop.values()["a"] == 1
    shop.assert_nothing_left()


@in_loop
async def test_the_loop_runs_while_a_commit_waits_and_another_task_is_refused_and_harms_nothing(shop: Shop) -> None:
    gate = gate_at(shop, "prepare")

    async with shop.tm.begin() as tx:
        shop.write(tx)
        committing = asyncio.ensure_future(tx.acommit())
        assert await asyncio.to_thread(gate.reached.wait, 30)
        assert not committing.done()
        with pytest.raises(ProtocolMisuse, match="in use by another thread or task"):
            await tx.arollback()
        with pytest.raises(ProtocolMisuse, match="in use by another thread or task"):
            tx.set_rollback_only()
        gate.opened.set()
        await committing
    shop.assert_ended(1)


@in_loop
async def test_tasks_have_transactions_of_their_own(shop: Shop) -> None:
    async def one(number: int) -> None:
        async with shop.tm.begin() as tx:
            for name in "ab":
                (await tx.aenlist(name)).write(f"k{number}", number)
                await asyncio.sleep(0)
                assert shop.tm.get_transaction() is tx
            if number % 3 == 0:
                raise LookupError(number)

    results = await asyncio.gather(*(one(number) for number in range(20)), return_exceptions=True)
    assert [isinstance(result, LookupError) for result in results] == [number % 3 == 0 for number in range(20)]
    expected = {f"k{number}": number for number in range(20) if number % 3}
    assert shop["a"].data == shop["b"].data == expected
    shop.assert_nothing_left()


# --- tasks spawned inside a transaction -----------------------------------------------------------------------------
@in_loop
async def test_a_task_spawned_inside_works_for_the_same_transaction(shop: Shop) -> None:
    async def child(name: str) -> None:
        shop.tm[name].write("k", 1)

    async with shop.tm.begin() as tx:
        await asyncio.gather(child("a"), child("b"))
        assert set(tx.resources) == {"a", "b"}
    shop.assert_ended(1)


@in_loop
async def test_a_spawned_task_may_not_begin_another_but_may_once_it_is_over(shop: Shop) -> None:
    async def child(go_on: asyncio.Event) -> None:
        with pytest.raises(ProtocolMisuse, match="complete or suspend it"):
            shop.tm.begin()
        await go_on.wait()
        with pytest.raises(ProtocolMisuse, match="no transaction is active"):
            shop.tm.get_transaction()
        async with shop.tm.begin() as tx:
            tx["a"].write("k", 2)

    go_on = asyncio.Event()
    async with shop.tm.begin() as tx:
        tx["a"].write("k", 1)
        task = asyncio.ensure_future(child(go_on))
        await asyncio.sleep(0)
    go_on.set()
    await task
    assert shop.values()["a"] == 2
    shop.assert_nothing_left()


@in_loop
async def test_suspended_and_resumed_in_another_task(shop: Shop) -> None:
    tx = shop.tm.begin()
    tx["a"].write("k", 1)
    shop.tm.suspend()

    async def other() -> None:
        shop.tm.resume(tx)
        tx["b"].write("k", 1)
        await tx.acommit()

    await asyncio.create_task(other())
    assert shop.tm.current_or_none() is None
    shop.assert_ended(1)


# --- cancellation -------------------------------------------------------------------------------------------------
def cancelled_at(shop: Shop, verb: str, finish: Callable[[], object]) -> GlobalState:
    """A block that is cancelled while `verb` of `a` is under way; where its transaction stands at the end."""
    gate = gate_at(shop, verb)
    state: list[GlobalState] = []

    async def block() -> None:
        tx = shop.tm.begin()
        try:
            async with tx:
                (await tx.aenlist("a")).write("k", 1)
                (await tx.aenlist("b")).write("k", 1)
        finally:
            state.append(tx.status)
            assert tx.outcome is not None, "who catches the cancellation finds what became of it"
            assert (tx.outcome.verdict is Verdict.COMMITTED) is (tx.status is GlobalState.COMMITTED)
            assert shop.tm.current_or_none() is None

    async def main() -> None:
        task = asyncio.ensure_future(block())
        assert await asyncio.to_thread(gate.reached.wait, 30)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done(), "it ends its work before it lets go"
        finish()
        gate.opened.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    return state[0]


@pytest.mark.parametrize(
    ("verb", "fails", "expected"),
    [
        ("start", None, GlobalState.ROLLED_BACK),
        ("end", None, GlobalState.COMMITTED),
        ("prepare", None, GlobalState.COMMITTED),
        ("commit", None, GlobalState.COMMITTED),
        ("prepare", {"answer": Code.XA_RBOTHER}, GlobalState.ROLLED_BACK),
        ("commit", {"fate": NetworkFault.REQUEST_LOST, "times": 3}, GlobalState.IN_DOUBT),
    ],
)
def test_cancelled_at_any_verb_it_is_all_or_nothing(shop: Shop, verb: str, fails: Any, expected: GlobalState) -> None:
    """Also where the resource refuses then, or gets lost, which recovery finishes."""
    state = cancelled_at(shop, verb, lambda: shop["a"].script.plan(verb, **fails) if fails else None)
    assert state is expected
    assert shop.tm.recover().clean
    shop.assert_ended(None if expected is GlobalState.ROLLED_BACK else 1)


@in_loop
async def test_a_timeout_around_a_commit_does_not_tear_it(shop: Shop) -> None:
    gate = gate_at(shop, "commit")

    tx = shop.tm.begin()
    tx["a"].write("k", 1)
    tx["b"].write("k", 1)
    asyncio.get_running_loop().call_later(0.05, gate.opened.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tx.acommit()
    assert tx.status is GlobalState.COMMITTED
    shop.assert_ended(1)


class AtOnce(Wrapped):
    """Says that it starts at once, and notes the threads in which it does. So many starts that must not wait find
    nothing free."""

    started: list[int]
    busy: int

    def starts_at_once(self, rmid: int) -> bool:
        return rmid > 0

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        if self.busy and flags & TMNOWAIT:
            type(self).busy -= 1
            raise xa_error(Code.XA_RETRY, "none is free", xid)
        self.started.append(threading.get_ident())
        return self.rm.start(xid, rmid, flags)


@pytest.fixture(autouse=True)
def nothing_started() -> None:
    AtOnce.started, AtOnce.busy = [], 0


@pytest.mark.parametrize("busy", [0, 1])
@in_loop
async def test_what_need_not_wait_is_enlisted_on_the_thread_of_the_loop(shop: Shop, busy: int) -> None:
    """Where another thread has taken the last free connection meanwhile, a worker thread waits for one."""
    AtOnce.busy = busy
    shop.wrap["a"] = AtOnce

    async with shop.tm.begin() as tx:
        session = await tx.aenlist("a")
        assert await tx.aenlist("a") is session
        session.write("k", 1)
        (await tx.aenlist("b")).write("k", 1)
        assert [thread == threading.get_ident() for thread in AtOnce.started] == [not busy]
    shop.assert_ended(1)


def test_a_start_that_fails_at_once_makes_the_transaction_rollback_only(shop: Shop) -> None:
    shop.wrap["a"] = AtOnce
    shop["a"].script.plan("start", Code.XAER_RMERR)

    async def main() -> None:
        async with shop.tm.begin() as tx:
            with pytest.raises(RolledBack):
                await tx.aenlist("a")
            assert tx.status is GlobalState.MARKED
            with pytest.raises(RolledBack):
                await tx.aenlist("a")

    with pytest.raises(RolledBack):
        asyncio.run(main())
    shop.assert_nothing_left()


@in_loop
async def test_a_resource_of_another_ones_identity_is_joined_in_a_thread(shop: Shop) -> None:
    """To join may wait for whoever is at work in the branch."""
    shop.stores["b"] = shop.stores["a"]
    shop.wrap = {"a": AtOnce, "b": AtOnce}

    async with shop.tm.begin() as tx:
        (await tx.aenlist("a")).write("k", 1)
        tx.delist("a")
        (await tx.aenlist("b")).write("l", 2)
    assert [thread == threading.get_ident() for thread in AtOnce.started] == [True, False]
    assert shop["a"].data == {"k": 1, "l": 2}


@in_loop
async def test_the_loop_runs_while_the_reaper_is_inside(shop: Shop) -> None:
    """Although the start itself would wait for nothing."""
    shop.wrap["a"] = AtOnce

    async with shop.tm.begin() as tx:
        assert await asyncio.to_thread(live_of(tx).guard.enter_as_reaper)
        enlisting = asyncio.ensure_future(tx.aenlist("a"))
        await asyncio.sleep(0)
        assert not enlisting.done()
        await asyncio.to_thread(live_of(tx).guard.__exit__)
        (await enlisting).write("k", 1)
    assert shop.values()["a"] == 1
