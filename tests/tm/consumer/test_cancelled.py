"""These tests check who has cancelled a worker in a task: its handler, whose message has failed then, or somebody who
ends the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from rm_amqp import Message
from tests.event_loop import in_loop
from tests.tm.consumer.stall import Stall
from tests.waiting import until
from tm import MessageCounts, Transaction


def own_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


# --- by its handler -----------------------------------------------------------------------------------------------
async def _itself() -> None:
    own_task().cancel()
    await asyncio.sleep(0)


async def _itself_and_awaits_nothing() -> None:
    own_task().cancel()


async def _itself_twice() -> None:
    try:
        await _itself()
    finally:
        own_task().cancel()


async def _itself_and_raises() -> None:
    own_task().cancel()
    raise ValueError("no such order")


async def _by_a_child() -> None:
    task = own_task()

    async def child() -> None:
        task.cancel()

    await asyncio.gather(child(), asyncio.Event().wait())


async def _by_a_timer() -> None:
    asyncio.get_running_loop().call_later(0.001, own_task().cancel)
    await asyncio.Event().wait()


async def _by_a_thread() -> None:
    loop, task = asyncio.get_running_loop(), own_task()
    await asyncio.to_thread(lambda: loop.call_soon_threadsafe(task.cancel))
    await asyncio.Event().wait()


async def _raises_cancelled() -> None:
    raise asyncio.CancelledError


async def _inner_task() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(task.cancel)
    await task


async def _timeout() -> None:
    async with asyncio.timeout(0.001):
        await asyncio.Event().wait()


async def _wait_for() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 0.001)


async def _task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_itself_and_raises())
        await asyncio.Event().wait()


FAILING: list[Callable[[], Awaitable[None]]] = [
    _itself, _itself_and_awaits_nothing, _itself_twice, _itself_and_raises, _by_a_child, _by_a_timer, _by_a_thread,
    _raises_cancelled, _inner_task, _timeout, _wait_for, _task_group,
]  # fmt: skip


async def _swallowed() -> None:
    with suppress(asyncio.CancelledError):
        await _itself()


async def _swallowed_twice() -> None:
    await _swallowed()
    await _swallowed()


async def _swallowed_timeout() -> None:
    with suppress(TimeoutError):
        await _timeout()


FINE: list[Callable[[], Awaitable[None]]] = [_swallowed, _swallowed_twice, _swallowed_timeout]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("way", FAILING)
def test_a_handler_that_is_cancelled_fails_and_holds_up_no_other(
    stall: Stall, way: Callable[[], Awaitable[None]], batch: int
) -> None:
    async def handle(message: Message, tx: Transaction) -> None:
        (await tx.aenlist("shop")).write(str(message.body), 1)
        if message.body == "b":
            await way()

    stall.put("a", "b", "c")
    consumer = stall.consume(handle, 3, batch=batch, max_deliveries=2)
    assert consumer.failure is None
    assert consumer.counts.handled == 2
    assert consumer.counts.dead_lettered == 1
    assert stall.store.data == {"a": 1, "c": 1}
    [(body, annotations)] = stall.letters()
    assert (body, annotations["deliveries"]) == ("b", 2)


@pytest.mark.parametrize("way", FINE)
def test_a_handler_that_swallows_what_it_has_cancelled_has_handled_its_message(
    stall: Stall, way: Callable[[], Awaitable[None]]
) -> None:
    """And leaves nothing to its worker, which knows of the next one that it was not cancelled itself."""

    async def handle(message: Message, _: Transaction) -> None:
        await way()
        if message.body == "b":
            raise asyncio.CancelledError

    stall.put("a", "b", "c")
    consumer = stall.consume(handle, 3, max_deliveries=1)
    assert consumer.failure is None
    assert consumer.counts == MessageCounts(handled=2, failed=1, dead_lettered=1)


def test_a_worker_that_something_left_running_has_cancelled_begins_anew(
    stall: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(message: Message, _: Transaction) -> None:
        if message.body == "a":
            asyncio.get_running_loop().call_later(0.01, own_task().cancel)

    stall.put("a")
    with stall.consumer(handle) as consumer:
        until(lambda: "begins anew" in caplog.text)
        stall.put("b")
        until(lambda: consumer.counts.handled == 2)
        assert consumer.health().ok
        assert consumer.failure is None
    assert stall.manager.live == ()


# --- by somebody else ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("swallows", [False, True])
@in_loop
async def test_a_handler_that_is_stopped_is_rolled_back_and_nothing_counts(stall: Stall, swallows: bool) -> None:
    """Also if it hides that it was cancelled: what has not finished in time can't commit."""

    async def handle(message: Message, tx: Transaction) -> None:
        (await tx.aenlist("shop")).write("never", 1)
        stall.until.tell(message.body)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not swallows:
                raise

    await asyncio.to_thread(stall.put, "a")
    async with stall.consumer(handle, shutdown_s=0.05) as consumer:
        await asyncio.to_thread(stall.until.count, 1)
    assert consumer.failure is None
    assert stall.store.data == {}
    with stall.manager.begin() as tx:
        [message] = tx["broker"].browse(stall.queue)
    assert message.delivery_count == 0


def test_the_end_of_the_loop_ends_workers_and_rolls_back(stall: Stall, caplog: pytest.LogCaptureFixture) -> None:
    """One of them is at work, and one waits for the next attempt of a message that has failed."""

    async def handle(message: Message, _: Transaction) -> None:
        if message.body == "fails":
            raise ValueError("no such order")
        await asyncio.Event().wait()

    async def service() -> None:
        consumer = stall.consumer(handle, workers=2, retry_first_s=10, retry_most_s=10, retry_jitter=0)
        await consumer.__aenter__()
        await asyncio.to_thread(stall.put, "fails", "waits")
        await asyncio.to_thread(until, lambda: "no such order" in caplog.text and consumer.health().busy == 2)

    asyncio.run(service())
    assert "cancelled, and not by its consumer" in str(stall.consumers[0].failure)
    assert stall.manager.live == ()
    assert sorted(stall.look(stall.queue)) == ["fails", "waits"]


@in_loop
async def test_a_task_group_around_a_consumer_ends_it(stall: Stall) -> None:
    async def handle(message: Message, _: Transaction) -> None:
        stall.until.tell(message.body)
        await asyncio.Event().wait()

    async def serve() -> None:
        async with stall.consumer(handle, shutdown_s=0.05):
            await asyncio.Event().wait()

    async def fail() -> None:
        await asyncio.to_thread(stall.until.count, 1)
        raise ValueError("another task")

    await asyncio.to_thread(stall.put, "a")
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            group.create_task(fail())
    assert stall.consumers[0].failure is None
    assert stall.consumers[0].health().workers == 0
    assert await asyncio.to_thread(stall.look, stall.queue) == ["a"]
    assert stall.manager.live == ()
