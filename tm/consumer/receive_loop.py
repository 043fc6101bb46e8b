"""receive_loop(): what one worker of a consumer receives and does, as a coroutine without I/O.

1. Receive up to a batch, in a new transaction. After a failure the resources that were used are enlisted first: while
   one of them is down no message is touched, and an outage costs a message one delivery, not all it has.
2. A message that was delivered before is handled in a transaction of its own: what failed together is tried apart,
   so that one that can't be handled takes none with it. A batch with such a message in it is given back as a whole
    (a failure would count as a delivery of what is not handled), and received again one by one.
3. It is not handled at once, but after a wait that grows with its deliveries; the wait is spent holding it, so that
   nobody else tries it either, in this process or another.
4. One that was delivered too often is put away as a dead letter. Its deliveries are counted by the broker, so a message
   that kills the process is dead-lettered too. One that has failed in a way in which it will fail again is put away
   at once.
5. Where the broker keeps what is to be tried later, step 3 sends the message again for later instead of waiting, in the
   transaction that takes it; and the worker does not pause after a handler's failure.
6. A conflict with another transaction is tried again at once.
7. After a failure the worker itself pauses, longer after each further one: handlers that always fail do not empty
   the queue into the dead letters.
"""

from __future__ import annotations

from random import random
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.consumer.history import History
    from tm.consumer.settings import ConsumerSettings


class Delivered(Protocol):
    """The properties of a message that the loop needs."""

    @property
    def delivery_count(self) -> int:
        """How often it was delivered in vain."""
        ...


class WorkerPorts(Protocol):
    """The calls that the loop makes to its worker. A failure is an answer."""

    async def receive(self, count: int, *, check: bool) -> Sequence[Delivered] | Exception:
        """Begins a transaction and receives in it; enlists the resources that were used first where `check` says so.
        The messages, with the transaction open where there are any; or the exception, with nothing left open."""
        ...

    def history(self, message: Any) -> History:
        """What is known of a message's failures."""
        ...

    async def put_off(self, messages: Sequence[Delivered], wait_s: float) -> Exception | None:
        """Takes the messages, and sends them again for later, and commits."""
        ...

    async def handle(self, messages: Sequence[Delivered]) -> Exception | None:
        """Has the messages handled, and commits."""
        ...

    async def refuse(self, messages: Sequence[Delivered]) -> Exception | None:
        """Puts the messages away as dead letters, and commits."""
        ...

    async def give_back(self, messages: Sequence[Delivered]) -> Exception | None:
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
    apart, failures = False, 0
    while not stopping():
        received = await ports.receive(1 if apart else settings.batch, check=failures > 0)
        if isinstance(received, Exception):
            apart, failures = True, failures + 1
            await ports.pause(settings.pause_s(failures, dice))
            continue
        if not received:
            apart, failures = False, 0
            continue

        if len(received) > 1 and any(message.delivery_count for message in received):
            refused = await ports.give_back(received)
            apart, failures = True, failures + 1 if refused is not None else 0
            continue

        history = ports.history(received[0])
        deliveries = history.deliveries
        is_dead = deliveries >= settings.max_deliveries or (history.is_final and len(received) == 1)
        if received[0].delivery_count and deliveries and not is_dead and not history.is_conflict:
            wait_s = settings.pause_s(deliveries, dice)
            if settings.retry_waits == "broker":
                apart = True
                if await ports.put_off(received, wait_s) is not None:
                    failures += 1
                    await ports.pause(settings.pause_s(failures, dice))
                continue
            await ports.pause(min(wait_s, timeout_s / 4))
        if stopping():
            await ports.give_back(received)
            return
        failed = await (ports.refuse if is_dead else ports.handle)(received)
        if failed is None:
            apart, failures = deliveries > 0, 0
        else:
            apart, failures = True, failures + 1
            waits = is_dead or settings.retry_waits == "worker"
            if waits and not ports.history(received[0]).is_conflict:
                await ports.pause(settings.pause_s(failures, dice))
