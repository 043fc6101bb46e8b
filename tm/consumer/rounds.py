"""One worker's rounds, as a generator without I/O: what it receives, and what it does about it.

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from tm.consumer.settings import ConsumerSettings


class Delivered(Protocol):
    """What a message has to tell."""

    @property
    def delivery_count(self) -> int:
        """How often it was delivered in vain."""
        ...


@dataclass(frozen=True, slots=True)
class Receive:
    """Begin a transaction and receive in it, `check` what was used first. Answer: the messages, with the transaction
    open where there are any; or the exception, with nothing left open."""

    count: int
    check: bool


@dataclass(frozen=True, slots=True)
class Handle:
    """Have the messages handled, and commit. Answer: None, or the exception."""

    messages: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Put the messages away as dead letters, and commit. Answer: None, or the exception."""

    messages: Sequence[Any]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give the messages back as if they had not been received. Answer: None, or the exception."""

    messages: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait, until the consumer is to stop at the longest. Answer: None."""

    seconds: float


Effect: TypeAlias = Receive | Handle | Refuse | GiveBack | Pause
Steps: TypeAlias = "Generator[Effect, Any, None]"


def rounds(settings: ConsumerSettings, timeout_s: float, stopping: Callable[[], bool]) -> Steps:
    """The rounds of one worker, until it is to stop; `timeout_s` is that of a transaction."""
    apart, failures = False, 0
    while not stopping():
        received: Sequence[Delivered] | Exception = yield Receive(1 if apart else settings.batch, failures > 0)
        if isinstance(received, Exception):
            apart, failures = True, failures + 1
            yield Pause(settings.pause_s(failures))
            continue
        if not received:
            apart, failures = False, 0
            continue
        if len(received) > 1 and any(message.delivery_count for message in received):
            refused: Exception | None = yield GiveBack(received)
            apart, failures = True, failures + 1 if refused is not None else 0
            continue
        deliveries = received[0].delivery_count
        if 0 < deliveries < settings.max_deliveries:
            yield Pause(min(settings.pause_s(deliveries), timeout_s / 4))
        if stopping():
            yield GiveBack(received)
            return
        work = Refuse if deliveries >= settings.max_deliveries else Handle
        failed: Exception | None = yield work(received)
        if failed is None:
            apart, failures = deliveries > 0, 0
        else:
            apart, failures = True, failures + 1
            yield Pause(settings.pause_s(failures))
