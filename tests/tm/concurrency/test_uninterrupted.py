"""These tests send real signals, close generators and coroutines, and cancel tasks: work in progress must still be
completed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.tm.wrapped import VERBS, hooked
from tm import ProtocolMisuse, RolledBack, Verdict
from tm.concurrency.uninterrupted import UninterruptedCalls

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.tm.shop import Shop
    from tm import Outcome, Transaction


class Held:
    """Holds one verb of `a`, and interrupts the main thread so many times meanwhile, as Ctrl-C does."""

    def __init__(self, shop: Shop, verb: str, times: int = 0) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.thread: threading.Thread | None = None
        self._verb = verb
        self._times = times
        self._heard = 0
        self._signalled = threading.Event()
        shop.wrap["a"] = hooked(self._hold, (*VERBS, "recover"))
        shop.flags["a"] = 0

    def _hold(self, when: str, verb: str) -> None:
        if (when, verb) != ("before", self._verb):
            return
        self.thread = threading.current_thread()
        self.reached.set()
        for _ in range(self._times):
            self._signalled.clear()
            while True:  # one that comes just before the thread begins to wait is heard of with the next one
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                if self._signalled.wait(0.05):
                    break
        if self._times != 1:
            assert self.go_on.wait(30)

    def handler(self, number: int, frame: object) -> None:
        if self._signalled.is_set():
            return  # sent once more than needed, because this thread was slow to hear of it
        self._signalled.set()
        raise KeyboardInterrupt(number, frame)


@pytest.fixture
def on_sigint() -> Iterator[Any]:
    before = signal.getsignal(signal.SIGINT)
    yield lambda held: signal.signal(signal.SIGINT, held.handler)
    signal.signal(signal.SIGINT, before)


def write(shop: Shop, tx: Transaction) -> None:
    for name in shop.stores:
        tx[name].write("k", 1)


@pytest.mark.parametrize("verb", ["end", "prepare", "commit"])
def test_one_interruption_is_raised_when_the_commit_is_done(shop: Shop, on_sigint: Any, verb: str) -> None:
    held = Held(shop, verb, times=1)
    on_sigint(held)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        write(shop, tx)
    assert tx.outcome is not None
    assert tx.outcome.verdict is Verdict.COMMITTED
    assert shop.values() == {"a": 1, "b": 1}
    shop.assert_nothing_left()
    assert shop.tm.current_or_none() is None


@pytest.mark.parametrize("fails", [False, True])
def test_two_interruptions_leave_it_to_itself(shop: Shop, on_sigint: Any, *, fails: bool) -> None:
    held = Held(shop, "rollback" if fails else "prepare", times=2)
    on_sigint(held)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        write(shop, tx)
        if fails:
            raise ValueError
    held._times = 0
    assert shop.tm.current_or_none() is None
    with shop.tm.begin() as again:
        again["b"].write("other", 1)
    held.go_on.set()
    shop.tm.wait_for_completions()
    assert shop.tm.recover().clean
    assert shop.values() == ({"a": None, "b": None} if fails else {"a": 1, "b": 1})
    assert shop.values("other")["b"] == 1
    shop.assert_nothing_left()


def test_an_enlistment_that_was_left_is_waited_for_by_the_rollback(shop: Shop, on_sigint: Any) -> None:
    held = Held(shop, "start", times=2)
    on_sigint(held)
    held_until = threading.Timer(0.05, held.go_on.set)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        held_until.start()
        tx.enlist("a")
    assert tx.outcome is not None
    assert tx.outcome.verdict is Verdict.ROLLED_BACK
    shop.assert_nothing_left()


def test_an_enlistment_that_was_left_while_the_first_interruption_was_logged(
    shop: Shop, on_sigint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(shop, "start", times=1)
    on_sigint(held)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def hold(when: str, verb: str) -> None:
        Held._hold(held, when, verb)
        if (when, verb) == ("before", "start"):
            time.sleep(0.05)  # the main thread is in its rollback by now

    shop.wrap["a"] = hooked(hold, (*VERBS, "recover"))
    monkeypatch.setattr("tm.concurrency.uninterrupted.logger.warning", interrupted)
    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        tx.enlist("a")
    assert tx.outcome is not None
    assert tx.outcome.verdict is Verdict.ROLLED_BACK
    shop.assert_nothing_left()


def test_a_manager_whose_recovery_was_interrupted_recovers_again(shop: Shop, on_sigint: Any) -> None:
    held = Held(shop, "recover", times=0)
    held.go_on.set()
    assert shop.tm.recover().clean
    held._times = 2
    on_sigint(held)
    with pytest.raises(KeyboardInterrupt):
        shop.tm.recover()
    held._times = 0
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
        write(shop, tx)
    assert [outcome.verdict for outcome in called] == [Verdict.COMMITTED]


def test_verbs_of_the_main_thread_are_carried_out_elsewhere_and_others_are_not(shop: Shop) -> None:
    held = Held(shop, "prepare")
    held.go_on.set()
    with shop.tm.begin() as tx:
        write(shop, tx)
    assert held.thread is not threading.main_thread()
    with ThreadPoolExecutor(1, thread_name_prefix="own") as executor:
        executor.submit(lambda: committed(shop)).result()
    assert held.thread is not None
    assert held.thread.name.startswith("own")


def committed(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        write(shop, tx)


def test_an_interruption_in_a_callback_before_commit_rolls_back(shop: Shop) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), shop.tm.begin() as tx:
        tx.register_synchronization(before=interrupted)
        write(shop, tx)
    assert shop.values() == {"a": None, "b": None}
    shop.assert_nothing_left()


def test_sys_exit_in_a_block_rolls_back(shop: Shop) -> None:
    with pytest.raises(SystemExit), shop.tm.begin() as tx:
        write(shop, tx)
        sys.exit(1)
    assert shop.values() == {"a": None, "b": None}
    shop.assert_nothing_left()
    committed(shop)


def test_a_generator_that_is_dropped_rolls_back(shop: Shop) -> None:
    def rows() -> Iterator[int]:
        with shop.tm.begin() as tx:
            write(shop, tx)
            yield 1

    running = rows()
    assert next(running) == 1
    with pytest.raises(ProtocolMisuse):  # it is not closed yet, and may go on
        shop.tm.begin()
    del running
    shop.assert_nothing_left()
    committed(shop)
    assert shop.values() == {"a": 1, "b": 1}


def test_a_generator_that_another_thread_drops_rolls_back(shop: Shop) -> None:
    def rows() -> Iterator[int]:
        with shop.tm.begin() as tx:
            write(shop, tx)
            yield 1

    dropped = [rows()]
    next(dropped[0])
    thread = threading.Thread(target=dropped.clear)
    thread.start()
    thread.join()
    shop.assert_nothing_left()
    committed(shop)
    assert shop.values() == {"a": 1, "b": 1}


def test_a_generator_that_is_never_closed_ends_with_its_timeout(shop: Shop) -> None:
    def rows() -> Iterator[int]:
        with shop.tm.begin(5) as tx:
            write(shop, tx)
            yield 1

    running = rows()
    next(running)
    shop.clock.pass_by(6)
    shop.tm._reaper.reap()
    shop.assert_nothing_left()
    committed(shop)
    with pytest.raises(RolledBack):
        next(running)


def test_a_generator_that_is_dropped_where_a_lock_of_a_resource_is_held_does_not_wait_for_ever(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may close it at any allocation."""
    monkeypatch.setattr("tm.transaction.CLOSED_S", 0.05)

    def rows() -> Iterator[int]:
        with shop.tm.begin() as tx:
            write(shop, tx)
            yield 1

    running = [rows()]
    next(running[0])

    def drop_with_lock() -> None:
        with shop["a"].lock:
            running.clear()

    thread = threading.Thread(target=drop_with_lock)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    shop.tm.wait_for_completions()
    shop.assert_nothing_left()


def test_a_coroutine_that_is_closed_rolls_back(shop: Shop) -> None:
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


def test_interrupted_twice_in_an_event_loop(shop: Shop, on_sigint: Any) -> None:
    held = Held(shop, "prepare", times=2)
    on_sigint(held)

    async def main() -> None:
        async with shop.tm.begin() as tx:
            for name in shop.stores:
                (await tx.aenlist(name)).write("k", 1)

    timer = threading.Timer(0.1, held.go_on.set)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    timer.join()
    deadline = time.monotonic() + 10
    while shop.tm._live and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    shop.tm.recover()
    assert shop.values() == {"a": 1, "b": 1}
    shop.assert_nothing_left()
    committed_again(shop)


def committed_again(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        tx["b"].write("again", 1)


def test_a_forked_child_has_threads_of_its_own() -> None:
    calls = UninterruptedCalls()
    assert calls.run("here", threading.get_ident) != threading.get_ident()
    child = os.fork()
    if not child:
        os._exit(0 if calls.run("there", lambda: 7) == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    calls.close()


def test_closed_it_can_be_used_again_and_leaves_no_thread() -> None:
    calls = UninterruptedCalls()
    before = set(threading.enumerate())
    for _ in range(3):
        assert calls.run("it", lambda: 1) == 1
        calls.close()
    assert set(threading.enumerate()) <= before
