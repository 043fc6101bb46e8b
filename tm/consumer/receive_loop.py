"""receive_loop(): what one worker of a consumer receives and does, as a coroutine without I/O.

The law: a message whose handler never raises is handled exactly once, and never a dead letter.

1. Receive up to a batch, in a new transaction, but no more than the worker can handle before its share is over
   (`tm.consumer.sharing`). After a failure of anybody the resources that were used are enlisted first: while one of
   them is down no message is touched.
2. Each message has its own history. One that was tried before, alone or in a batch, is handled in a transaction of its
   own: what failed together is tried apart, so that one that can't be handled takes none with it. A batch with such a
   message in it is given back as a whole, and received again one by one.
3. A message that has failed is not handled at once, but after a wait that grows with its failures. The wait is spent
   holding it, so that no other worker tries it, in this process or another; it is the only wait for a failure.
   Where the broker keeps what is to be tried later, the message is sent again for later instead, in the transaction
   that takes it.
4. One that has failed too often, or in a way in which it will fail again, is put away as a dead letter.
5. What has failed in company has not failed by itself: it does not count, and its messages are tried one by one.
6. A conflict with another transaction does not count either. The worker pauses for a short time, which chance decides,
   and longer after each further one.
7. Nor does an outage. The worker pauses, longer after each further one.
"""

from __future__ import annotations

from asyncio import CancelledError
from random import random
from typing import TYPE_CHECKING, Any, Protocol

from tm.faults import Fault, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.consumer.history import History
    from tm.consumer.settings import ConsumerSettings


class DeliveredMessage(Protocol):
    """The properties of a message that the loop needs."""

    @property
    def delivery_count(self) -> int:
        """How often it was delivered in vain."""
        ...


class WorkerPorts(Protocol):
    """The calls that the loop makes to its worker. A failure is an answer."""

    async def receive(self, count: int, *, check: bool) -> Sequence[DeliveredMessage] | Exception:
        """Begins a transaction and receives in it, at most `count`; enlists the resources that were used first where
        `check` says so. The messages, with the transaction open where there are any; or the exception, with nothing
        left open."""
        ...

    def history(self, message: Any) -> History:
        """What is known of a message's failures."""
        ...

    async def put_off(self, messages: Sequence[DeliveredMessage], wait_s: float) -> Exception | None:
        """Takes the messages, and sends them again for later, and commits."""
        ...

    async def handle(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        """Has the messages handled, until their share is over, and commits. The others are as if not received."""
        ...

    async def refuse(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        """Puts the messages away as dead letters, and commits."""
        ...

    async def give_back(self, messages: Sequence[DeliveredMessage]) -> Exception | None:
        """Gives the messages back as if they had not been received."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits, until the consumer is to stop at the longest."""
        ...


async def receive_loop(
    ports: WorkerPorts,
    settings: ConsumerSettings,
    timeout_s: float,
    stopping: Callable[[], bool],
    dice: Callable[[], float] = random,
) -> None:
    """The loop of one worker, until it is to stop; `timeout_s` is that of a transaction."""
    apart, check, outages, conflicts = False, False, 0, 0
    while not stopping():
        received = await ports.receive(1 if apart else settings.batch, check=check)
        if isinstance(received, Exception):
            apart = check = True
            outages += 1
            await ports.pause(settings.pause_s(outages, timeout_s, dice))
            continue
        if not received:
            apart, check, outages, conflicts = False, False, 0, 0
            continue

        histories = [ports.history(message) for message in received]
        if len(received) > 1 and any(history.is_apart for history in histories):
            apart, check = True, await ports.give_back(received) is not None
            continue

        history = histories[0]
        if history.waits:
            wait_s = settings.wait_s(history.deliveries, timeout_s, dice)
            if settings.retry_waits == "broker":
                apart = True
                if await ports.put_off(received, wait_s) is not None:
                    check, outages = True, outages + 1
                    await ports.pause(settings.pause_s(outages, timeout_s, dice))
                continue
            await _wait(ports, received, wait_s)
        if stopping():
            await ports.give_back(received)
            return

        failed = await (ports.refuse if history.is_dead else ports.handle)(received)
        if failed is None:
            apart, check, outages, conflicts = history.is_apart, False, 0, 0
            continue
        apart = check = True
        fault = fault_of(failed)
        if fault is Fault.CONFLICT:
            conflicts += 1
            await ports.pause(settings.conflict_s(conflicts, dice))
        elif fault is Fault.OUTAGE or history.is_dead:
            outages += 1
            await ports.pause(settings.pause_s(outages, timeout_s, dice))


async def _wait(ports: WorkerPorts, received: Sequence[DeliveredMessage], seconds: float) -> None:
    """Waits with these messages in hand. A task that is cancelled meanwhile gives them back."""
    try:
        await ports.pause(seconds)
    except CancelledError:
        await ports.give_back(received)
        raise
