"""These tests check that a handler works in the transaction of its messages and never completes it, and what becomes of
a worker whose handler ends in an unusual way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import transaction as zope  # type: ignore[import-untyped]

from rm_amqp import Message
from tests.event_loop import in_loop
from tests.tm.consumer.stall import KINDS, Stall
from tests.tm.telemetry.asking import said
from tests.waiting import until
from tm import ConsumerState, HealthServer, MessageCounts, ProtocolMisuse, Transaction
from tm.tx import TxInterface
from tm.zope import DataManager


def _refused_and_forgotten(_: Stall, tx: Transaction) -> None:
    for refused in (tx.commit, tx.rollback):
        with pytest.raises(ProtocolMisuse, match="in a handler"):
            refused()


def _in_a_block(_: Stall, tx: Transaction) -> None:
    with tx:
        pass


def _in_another_thread(_: Stall, tx: Transaction) -> None:
    errors: list[Exception] = []

    def commit() -> None:
        try:
            tx.commit()
        except ProtocolMisuse as error:
            errors.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    assert errors, "it was refused"


def _suspend_and_raise(stall: Stall, _: Transaction) -> None:
    stall.manager.suspend()
    stall.manager.begin()["shop"].write("never", 1)
    raise LookupError("as well")


def _with_zope(stall: Stall, tx: Transaction) -> None:
    zope_manager = zope.TransactionManager()
    zope_manager.get().join(DataManager(zope_manager, stall.manager, tx))
    zope_manager.commit()


WAYS: list[Callable[[Stall, Transaction], object]] = [
    lambda _, tx: tx.commit(),
    lambda _, tx: tx.commit(wait="logged"),
    lambda _, tx: tx.rollback(),
    _refused_and_forgotten,
    _in_a_block,
    lambda stall, _: stall.manager.get_transaction().commit(),
    _in_another_thread,
    lambda _, tx: asyncio.run(tx.acommit()),
    lambda stall, _: stall.manager.suspend(),
    lambda stall, _: (stall.manager.suspend(), stall.manager.begin()["shop"].write("never", 1)),
    _suspend_and_raise,
    _with_zope,
]


def handled_but_the_odd(stall: Stall, handler: Any, ways: int) -> None:
    """Of two messages for each way, the second goes that way."""
    numbers = range(2 * ways)
    stall.put(*numbers)
    consumer = stall.consume(handler, len(numbers), batch=5, max_deliveries=2)
    assert consumer.counts.handled == ways
    assert sorted(stall.look(stall.out)) == list(numbers[::2])
    assert sorted(stall.look(f"{stall.queue}.dead")) == list(numbers[1::2])
    assert set(stall.store.data) == {str(number) for number in numbers[::2]}
    assert stall.manager.live == ()


def test_a_handler_that_completes_its_transaction_fails_and_loses_nothing(stall: Stall) -> None:
    def handle(message: Message, tx: Transaction) -> None:
        number: Any = message.body
        tx["shop"].write(str(number), 1)
        tx["broker"].send(stall.out, Message(number))
        if number % 2:
            WAYS[number // 2](stall, tx)

    handled_but_the_odd(stall, handle, len(WAYS))


async def _in_an_async_block(_: Stall, tx: Transaction) -> None:
    async with tx:
        pass


async def _suspended(stall: Stall, _: Transaction) -> None:
    stall.manager.suspend()
    stall.manager.begin()


async def _cancelled(future: asyncio.Future[Any]) -> None:
    future.cancel()
    await future


AWAYS: list[Callable[[Stall, Transaction], Awaitable[object]]] = [
    lambda _, tx: tx.acommit(),
    lambda _, tx: tx.arollback(),
    _in_an_async_block,
    lambda _, tx: asyncio.gather(tx.acommit(), return_exceptions=True),
    _suspended,
    lambda _, __: _cancelled(asyncio.get_running_loop().create_future()),
    lambda _, __: _cancelled(asyncio.create_task(asyncio.Event().wait())),
]


@pytest.mark.slow
def test_a_coroutine_that_completes_its_transaction_or_is_cancelled_fails_and_loses_nothing(stall: Stall) -> None:
    async def handle(message: Message, tx: Transaction) -> None:
        number: Any = message.body
        (await tx.aenlist("shop")).write(str(number), 1)
        await (await tx.aenlist("broker")).aio.send(stall.out, Message(number))
        if number % 2:
            await AWAYS[number // 2](stall, tx)

    handled_but_the_odd(stall, handle, len(AWAYS))


def test_what_a_handler_may_do_with_its_transaction(stall: Stall) -> None:
    """It may suspend and resume it, as REQUIRES_NEW does, and set it rollback-only."""

    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].write(str(message.body), 1)
        suspended = stall.manager.suspend()
        with stall.manager.begin() as own:
            own["broker"].send(stall.out, Message(message.body))
        stall.manager.resume(suspended)
        if message.body == "b":
            tx.set_rollback_only("no")

    stall.put("a", "b")
    consumer = stall.consume(handle, 2, max_deliveries=1)
    assert consumer.counts == MessageCounts(handled=1, failed=1, dead_lettered=1)
    assert stall.look(stall.out) == ["a", "b"]
    assert stall.store.data == {"a": 1}


def test_the_tx_interface_completes_no_transaction_of_a_consumer(stall: Stall) -> None:
    codes: list[Any] = []

    def handle(_: Message, __: Transaction) -> None:
        interface = TxInterface(stall.manager)
        codes.extend((interface.tx_open(), interface.tx_begin(), interface.tx_commit(), interface.tx_rollback()))

    stall.put("a")
    stall.consume(handle)
    assert [code.name for code in codes] == ["TX_OK", *["TX_PROTOCOL_ERROR"] * 3]


# --- workers that end -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("raised", [SystemExit, GeneratorExit, KeyboardInterrupt, asyncio.CancelledError])
@KINDS
def test_no_worker_ends_in_silence(stall: Stall, kind: Any, raised: type[BaseException]) -> None:
    """The consumer stops with the error, or the message fails."""

    def handle(_: Message, __: Transaction) -> None:
        raise raised

    stall.put("a")
    stopped = threading.Event()
    consumer = stall.consumer(kind(handle), max_deliveries=3, workers=2)
    consumer.when_failed = stopped.set
    consumer.start()
    until(lambda: stopped.is_set() or consumer.counts.dead_lettered)
    consumer.stop()
    if raised is asyncio.CancelledError:
        assert consumer.failure is None
        assert stall.look(f"{stall.queue}.dead") == ["a"]
    else:
        assert isinstance(consumer.failure, raised)
        assert stall.look(stall.queue) == ["a"]


@in_loop
async def test_a_cancelled_worker_stops_the_consumer_and_the_probes_say_so(stall: Stall) -> None:
    """As somebody does who cancels every task of the loop."""
    at_work = asyncio.Event()

    async def handle(_: Message, __: Transaction) -> None:
        at_work.set()
        await asyncio.Event().wait()

    stall.put("a")
    with HealthServer(stall.consumer(handle), port=0) as server:
        consumer = stall.consumers[0]
        async with consumer:
            await at_work.wait()
            mine = {asyncio.current_task()}
            for task in asyncio.all_tasks() - mine:
                task.cancel()
            await asyncio.wait(asyncio.all_tasks() - mine)
            assert consumer.state is not ConsumerState.RUNNING
            assert "cancelled, and not by its consumer" in str(consumer.failure)
            for page in ("", "ready", "live"):
                assert (await asyncio.to_thread(said, server.port, page))[0] == 503
    assert stall.look(stall.queue) == ["a"]
    assert stall.manager.live == ()


def test_health_counts_the_workers_that_are_alive(stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(_: Message, __: Transaction) -> None:
        pass

    consumer = stall.consumer(handle, workers=3)
    with consumer, HealthServer(consumer, port=0) as server:
        assert consumer.health().ok
        monkeypatch.setattr("tm.consumer.pools.TaskPool.alive", property(lambda _: 0))
        assert consumer.health().trouble == ("workers that have ended: 3 of 3",)
        assert said(server.port, "live") == (
            503, {"live": False, "trouble": [f"the consumer of {stall.queue} has no workers any more"]},
        )  # fmt: skip
        assert said(server.port, "ready")[0] == 503
        monkeypatch.undo()
