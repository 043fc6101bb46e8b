"""receive_loop(): what one worker of a consumer receives and does, as a coroutine without I/O.

1. Receive up to a batch, in a new transaction. After a failure the resources that were used are enlisted first: while
   one of them is down no message is touched, and an outage costs a message one delivery, not all it has.
2. A message that was delivered before is handled in a transaction of its own: what failed together is tried apart,
   so that one that can't be handled takes none with it. A batch with such a message in it is given back as a whole
    (a failure would count as a delivery of what is not handled), and received again one by one.
3. It is not handled at once, but after a wait that grows with its deliveries; the wait is spent holding it, so that
   nobody else tries it either, in this process or another.
4. One that was delivered too often is put away as a dead letter. Its deliveries are counted by the broker, so a message
   that kills the process is dead-lettered too.
5. After a failure the worker itself pauses, longer after each further one: handlers that always fail do not empty
   the queue into the dead letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    ports: WorkerPorts, settings: ConsumerSettings, timeout_s: float, stopping: Callable[[], bool]
) -> None:
    """The loop of one worker, until it is to stop; `timeout_s` is that of a transaction."""
    apart, failures = False, 0
    while not stopping():
        received = await ports.receive(1 if apart else settings.batch, check=failures > 0)
        if isinstance(received, Exception):
            apart, failures = True, failures + 1
            await ports.pause(settings.pause_s(failures))
            continue
        if not received:
            apart, failures = False, 0
            continue

        if len(received) > 1 and any(message.delivery_count for message in received):
            refused = await ports.give_back(received)
            apart, failures = True, failures + 1 if refused is not None else 0
            continue

        deliveries = received[0].delivery_count
        if 0 < deliveries < settings.max_deliveries:
            await ports.pause(min(settings.pause_s(deliveries), timeout_s / 4))
        if stopping():
            await ports.give_back(received)
            return
        failed = await (ports.refuse if deliveries >= settings.max_deliveries else ports.handle)(received)
        if failed is None:
            apart, failures = deliveries > 0, 0
        else:
            apart, failures = True, failures + 1
            await ports.pause(settings.pause_s(failures))
