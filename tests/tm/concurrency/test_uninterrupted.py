"""These tests send real signals, close generators and coroutines, and cancel tasks: work in progress must still be
completed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.tm.shop import Shop, elsewhere, outcome_of
from tests.tm.wrapped import VERBS, hooked
from tests.waiting import until
from tm import Outcome, ProtocolMisuse, RolledBack, Verdict
from tm.concurrency.uninterrupted import CallStillRunning, UninterruptedCalls


class Held:
    """Presses Ctrl-C so many times before one verb of `a`; with `waits` it holds it until its connections are to be
    broken, which they can't."""

    def __init__(self, shop: Shop, verb: str, times: int = 0, *, waits: bool = False) -> None:
        self.go_on = threading.Event()
        self._verb = verb
        self._times = times
        self._waits = waits
        wrapper = hooked(self._hold, (*VERBS, "recover"))
        wrapper.break_off = lambda _: self._break_off()
        shop.wrap["a"] = wrapper
        shop.flags["a"] = 0

    def _break_off(self) -> None:
        self.go_on.set()
        raise OSError("no connection of its own")

    def _hold(self, when: str, verb: str) -> None:
        if (when, verb) != ("before", self._verb):
            return
        times, self._times = self._times, 0
        for _ in range(times):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if self._waits:
            assert self.go_on.wait(30)


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """What Python does at Ctrl-C; a test's process may have been begun to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("verb", ["end", "prepare", "commit"])
def test_one_interruption_is_raised_when_the_commit_is_done(shop: Shop, verb: str) -> None:
    Held(shop, verb, times=1)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        shop.write(tx)
    assert outcome_of(tx).verdict is Verdict.COMMITTED
    shop.assert_ended(1)
    assert shop.tm.current_or_none() is None


@pytest.mark.parametrize("fails", [False, True])
def test_two_interruptions_break_the_connections(shop: Shop, caplog: pytest.LogCaptureFixture, *, fails: bool) -> None:
    held = Held(shop, "rollback" if fails else "prepare", times=2, waits=True)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        shop.write(tx)
        if fails:
            raise ValueError
    assert held.go_on.is_set()
    for line in ("interrupted again; breaks its connections", "connections could not be broken"):
        until(lambda line=line: f"{tx}: {line}" in caplog.text)  # type: ignore[misc]
    assert shop.tm.current_or_none() is None
    assert shop.tm.recover().clean
    assert shop.values() == ({"a": None, "b": None} if fails else {"a": 1, "b": 1})
    shop.assert_nothing_left()


def test_an_interrupted_enlistment_is_rolled_back(shop: Shop) -> None:
    Held(shop, "start", times=2)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        tx.enlist("a")
    assert outcome_of(tx).verdict is Verdict.ROLLED_BACK
    shop.assert_nothing_left()


def test_a_manager_whose_recovery_was_interrupted_recovers_again(shop: Shop) -> None:
    held = Held(shop, "recover")
    assert shop.tm.recover().clean
    held._times, held._waits = 2, True
    with pytest.raises(KeyboardInterrupt):
        shop.tm.recover()
    assert shop.tm.recover().clean


def test_the_main_thread_calls_its_callbacks_itself(shop: Shop) -> None:
    """It may hold a lock that a callback wants again."""
    lock = threading.RLock()
    called: list[Outcome] = []

    def callback(outcome: Outcome) -> None:
        with lock:
            called.append(outcome)

    with lock, shop.tm.begin() as tx:
        tx.register_synchronization(after=callback)
        shop.write(tx)
    assert [outcome.verdict for outcome in called] == [Verdict.COMMITTED]


def committed(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        shop.write(tx)


def rows(shop: Shop) -> Iterator[int]:
    with shop.tm.begin(5) as tx:
        shop.write(tx)
        yield 1


def open_rows(shop: Shop) -> list[Iterator[int]]:
    """A generator inside of its transaction; it is dropped when the list is cleared."""
    running = [rows(shop)]
    assert next(running[0]) == 1
    return running


@pytest.mark.parametrize("where", [lambda drop: drop(), elsewhere], ids=["here", "in another thread"])
def test_a_generator_that_is_dropped_rolls_back(shop: Shop, where: Any) -> None:
    running = open_rows(shop)
    with pytest.raises(ProtocolMisuse):  # it is not closed yet, and may go on
        shop.tm.begin()
    where(running.clear)
    shop.assert_ended(None)
    committed(shop)
    shop.assert_ended(1)


def test_a_generator_that_is_never_closed_ends_with_its_timeout(shop: Shop) -> None:
    running = open_rows(shop)
    shop.clock.pass_by(6)
    shop.tm._reaper.reap()
    shop.assert_nothing_left()
    committed(shop)
    with pytest.raises(RolledBack):
        next(running[0])


@pytest.mark.parametrize("fails", [False, True])
def test_a_generator_that_is_dropped_where_a_lock_of_a_resource_is_held_does_not_wait_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    """The garbage collector may close it at any allocation. A rollback that is interrupted then, recovery repeats."""
    monkeypatch.setattr("tm.transaction.CLOSED_S", 0.05)

    def interrupted(when: str, _: str) -> None:
        if fails and when == "after":
            raise KeyboardInterrupt

    shop.wrap["b"] = hooked(interrupted, ("rollback",))
    running = open_rows(shop)

    def drop_with_lock() -> None:
        with shop["a"].lock:
            running.clear()

    elsewhere(drop_with_lock)
    shop.tm.wait_for_completions()
    for line in ("its rollback goes on", "a call that its caller has left failed")[: 1 + fails]:
        assert any("orders-1·" in told and line in told for told in caplog.messages), line
    shop.tm.recover()
    shop.assert_nothing_left()


def test_a_coroutine_that_is_closed_rolls_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tm.transaction.CLOSED_S", 0.02)

    async def handler() -> None:
        async with shop.tm.begin() as tx:
            tx["a"].write("k", 1)
            await asyncio.get_running_loop().create_future()

    loop = asyncio.new_event_loop()
    task = loop.create_task(handler())
    loop.run_until_complete(asyncio.sleep(0))
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()
    shop.tm.wait_for_completions()
    shop.assert_nothing_left()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    del task
    gc.collect()


def test_an_asynchronous_generator_that_is_dropped_rolls_back(shop: Shop) -> None:
    async def rows() -> AsyncIterator[int]:
        async with shop.tm.begin() as tx:
            tx["a"].write("k", 1)
            yield 1

    async def main() -> None:
        async for _ in rows():
            break

    asyncio.run(main())
    shop.tm.wait_for_completions()
    shop.assert_nothing_left()


def test_a_cancelled_task_ends_its_transaction_also_where_every_thread_is_busy(shop: Shop) -> None:
    """The event loop ends before a thread has become free for the commit."""
    blocked = threading.Event()

    async def handler(begun: asyncio.Event) -> None:
        async with shop.tm.begin() as tx:
            tx["a"].write("k", 1)
            asyncio.get_running_loop().call_soon(begun.set)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, blocked.wait)
        begun = asyncio.Event()
        task = asyncio.create_task(handler(begun))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(0)
        loop.call_later(0.05, blocked.set)
        del busy

    asyncio.run(main())
    assert shop.values()["a"] == 1, "it was to be committed when it was cancelled, and was"
    shop.assert_nothing_left()


def test_interrupted_twice_in_an_event_loop(shop: Shop) -> None:
    held = Held(shop, "prepare", times=2, waits=True)

    async def main() -> None:
        async with shop.tm.begin() as tx:
            for name in shop.stores:
                (await tx.aenlist(name)).write("k", 1)

    timer = threading.Timer(0.02, held.go_on.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    timer.join()
    until(lambda: not shop.tm._live)
    shop.tm.recover()
    shop.assert_ended(1)
    with shop.tm.begin() as tx:
        tx["b"].write("again", 1)


def test_a_forked_child_has_calls_of_its_own() -> None:
    calls = UninterruptedCalls(lambda: None)
    held = threading.Event()
    with pytest.raises(CallStillRunning):
        calls.run_for(0.01, "the parent's", held.wait)
    child = os.fork()
    if not child:
        calls.wait()
        os._exit(0 if calls.run_for(30, "the child's", lambda: 7) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.set()
    calls.wait()
