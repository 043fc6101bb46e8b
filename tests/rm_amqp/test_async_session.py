"""These tests cover the asyncio shell, over a network in memory with a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from rm_amqp import AmqpResource, Message, NoMessage
from tests.rm_amqp.client import RMID, new_xid, transaction
from tests.rm_amqp.client import put as put_all
from tests.rm_amqp.event_loop import run
from tests.rm_amqp.network import Network
from xa import ResourceUnavailable, ThreadOfControl, entered

URL = "amqp://here/?timeout=20"


def opened(network: Network) -> AmqpResource:
    rm = network.resource()
    rm.open(URL, RMID)
    return rm


def put(rm: AmqpResource, queue: str) -> None:
    """Somebody else sends a message."""
    with entered(ThreadOfControl()):
        put_all(rm, queue, [f"for {queue}"])


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_tasks_of_one_transaction_wait_at_the_same_time(order: str) -> None:
    """Each goes on when its message comes, whoever of them began to wait first."""
    network = Network()
    rm, other = opened(network), opened(network)
    heard: list[tuple[object, float]] = []

    async def main() -> None:
        began = network.now
        with transaction(rm) as work:
            session = work.aio

            async def receive(queue: str) -> None:
                message = await session.receive(queue, 18)
                heard.append((message.body, network.now - began))

            async def feed() -> None:
                for queue in order:
                    await asyncio.sleep(4)
                    put(other, queue)

            await asyncio.gather(receive("a"), receive("b"), feed())

    run(network, main())
    assert [body for body, _ in heard] == [f"for {queue}" for queue in order]
    for (_, after_s), sent_s in zip(heard, (4, 8), strict=True):
        assert sent_s <= after_s < sent_s + 1


def test_batches_are_received_and_sent() -> None:
    """With messages sent ahead, whose credit leaves before the batch is handled."""
    network = Network()
    rm = network.resource()
    rm.open(f"{URL}&prefetch=64", RMID)
    handled: list[object] = []

    async def main() -> None:
        for verb in ("put", "handle", "look"):
            with transaction(rm) as work:
                session = work.aio
                if verb == "put":
                    await session.send_batch("a", [Message(number) for number in range(100)])
                elif verb == "handle":
                    messages = await session.receive_batch("a", 40, 5)
                    await session.send_batch("b", messages)
                else:
                    handled.extend([message.body async for message in session.browse("b")])

    run(network, main())
    assert handled == list(range(40))


def test_a_task_that_is_cancelled_leaves_the_session_to_others() -> None:
    network = Network()
    rm, other = opened(network), opened(network)

    async def main() -> None:
        with transaction(rm) as work:
            session = work.aio
            waiting = asyncio.create_task(session.receive("a", 18))
            after = asyncio.create_task(session.receive("b", 18))
            await asyncio.sleep(1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            put(other, "b")
            began = network.now
            assert (await after).body == "for b"
            assert network.now - began < 1
            with pytest.raises(NoMessage):
                await session.receive("c", 2)
            assert network.now - began < 4

    run(network, main())


def test_a_task_that_waits_hears_that_the_resource_manager_was_closed() -> None:
    """By another thread of control, say the one that ends the process."""
    network = Network()
    rm = opened(network)

    async def main() -> None:
        rm.start(new_xid(), RMID)
        session = rm.session(RMID).aio
        waiting = asyncio.create_task(session.receive("a", 18))
        await asyncio.sleep(1)
        began = network.now
        with entered(ThreadOfControl()):
            rm.close("", RMID)
        with pytest.raises(ResourceUnavailable, match="is rolled back"):
            await waiting
        assert network.now - began < 3

    run(network, main())


def test_a_task_sends_more_than_the_socket_takes_while_another_one_waits() -> None:
    network = Network(takes=300)
    rm, other = opened(network), opened(network)

    async def main() -> None:
        with transaction(rm) as work:
            session = work.aio
            waiting = asyncio.create_task(session.receive("a", 18))
            await asyncio.sleep(1)
            began = network.now
            for _ in range(20):
                await session.send("b", Message(b"x" * 1000))
            with pytest.raises(NoMessage):
                await session.receive("c", 0)
            assert network.now - began < 1, "nobody waits for the time to pass"
            put(other, "a")
            await waiting

    run(network, main())


def test_a_thread_and_a_task_wait_at_the_same_session() -> None:
    """The thread reads for both, even where it is the event loop's own, which can do nothing meanwhile."""
    network = Network()
    rm, other = opened(network), opened(network)
    put(other, "b")

    async def main() -> None:
        with transaction(rm) as session:
            waiting = asyncio.create_task(session.aio.receive("a", 18))
            await asyncio.sleep(1)
            began = network.now
            assert session.receive("b", 18).body == "for b"
            put(other, "a")
            assert (await waiting).body == "for a"
            assert network.now - began < 1

    run(network, main())
