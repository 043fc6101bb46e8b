"""How a consumer is set up."""

from __future__ import annotations

from dataclasses import dataclass
from random import random
from typing import TYPE_CHECKING, Final, Literal, TypedDict

from tm.options import Choice, Errors, Fraction, Option, Seconds, Text, WholeNumber, check, misfit
from tm.resources import ConfigurationError
from xa.topics import source_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self, Unpack

Takes = Literal["message", "batch"]
RetryWaits = Literal["worker", "broker"]
ErrorClasses = type[BaseException] | tuple[type[BaseException], ...]
MAX_WORKERS: Final = 1000
MAX_BATCH: Final = 500
"""A resource manager for messages need not keep the outcomes of more open."""
RETRY_FIRST_S: Final = 0.1
HELD: Final = 0.25
"""The part of its transaction's timeout for which a worker may hold a message before it handles it."""
CONFLICT_FIRST_S: Final = 0.02
CONFLICT_MOST_S: Final = 1.0

QUEUE: Final = Text('the name of a queue, as in consumer("orders")')
OPTIONS: Final[dict[str, Option]] = {
    "resource": Text("the name of a resource"),
    "workers": WholeNumber(1, MAX_WORKERS),
    "batch": WholeNumber(1, MAX_BATCH),
    "share_s": Seconds(),
    "takes": Choice("message", "batch"),
    "max_deliveries": WholeNumber(1, 1_000_000),
    "retry_first_s": Seconds(),
    "retry_most_s": Seconds(),
    "idle_s": Seconds(),
    "timeout_s": Seconds(optional=True),
    "shutdown_s": Seconds(),
    "dead_letter": Text("the name of a queue", optional=True, may_be_empty=True),
    "retry_on": Errors(),
    "dead_on": Errors(),
    "retry_jitter": Fraction(),
    "retry_waits": Choice("worker", "broker"),
    "retry_for_s": Seconds(optional=True),
    "subscription": Text("the name of a subscription", optional=True),
}
"""What each setting but the queue may be."""


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `TransactionManager.consumer`: what `ConsumerSettings` has but for `queue`. Of a topic
    messages come by a `subscription`, which all processes of the application share."""

    subscription: str | None
    resource: str
    workers: int
    batch: int
    share_s: float
    takes: Takes
    max_deliveries: int
    retry_first_s: float
    retry_most_s: float
    idle_s: float
    timeout_s: float | None
    shutdown_s: float
    dead_letter: str | None
    retry_on: ErrorClasses
    dead_on: ErrorClasses
    retry_jitter: float
    retry_waits: RetryWaits
    retry_for_s: float | None


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`queue` of the resource `resource`, or the address of a subscription (`xa.topics`); `workers` at a time, up to
    `batch` messages in a transaction, none of which is begun later than `share_s` after the first one
    (`tm.consumer.sharing`).

    `takes` says what the handler is called with: each message, or the list of those of one transaction. A message
    that was delivered `max_deliveries` times in vain goes to the queue `dead_letter`, with what is known of its
    failures (None: to `<queue>.dead`; "": it is refused, and the broker puts it where it wants). The wait before
    another attempt is `retry_first_s`, twice as long after each further failure, at most `retry_most_s`, and where the
    worker waits at most a quarter of the transaction's timeout. `idle_s`: how
    long a worker waits for a message before it looks whether it shall stop. `timeout_s` is that of the transactions;
    the manager's where it is None.

    A message whose handler raises one of `dead_on` is a dead letter at its next delivery. If `retry_on` names
    exceptions, so is one whose handler raises any other. `retry_jitter` is the part of a wait that is left to chance.
    `retry_waits`: the wait is spent by the "worker", which holds the message, or at the "broker", which has it for
    later. `retry_for_s`: how long after its first failure a message may still be tried.
    """

    queue: str
    resource: str = "broker"
    workers: int = 1
    batch: int = 1
    share_s: float = 0.02
    takes: Takes = "message"
    max_deliveries: int = 5
    retry_first_s: float = RETRY_FIRST_S
    retry_most_s: float = 30.0
    idle_s: float = 1.0
    timeout_s: float | None = None
    shutdown_s: float = 30.0
    dead_letter: str | None = None
    retry_on: ErrorClasses = ()
    dead_on: ErrorClasses = ()
    retry_jitter: float = 0.2
    retry_waits: RetryWaits = "worker"
    retry_for_s: float | None = None

    def __post_init__(self) -> None:
        if not QUEUE.fits(self.queue):
            raise ConfigurationError(f"a consumer: {misfit('queue', QUEUE, self.queue)}")
        check(self._whose, OPTIONS, {name: getattr(self, name) for name in self.__slots__ if name != "queue"})
        if self.dead_letter == self.queue:
            raise ConfigurationError(f"{self._whose}: dead_letter is the queue itself: name another one")

    @classmethod
    def of(cls, queue: str, **options: Unpack[ConsumerOptions]) -> Self:
        """Those that were given; ConfigurationError for one that there is not, with the name that was meant."""
        given: dict[str, Any] = {**options}
        if not QUEUE.fits(queue):
            return cls(queue)
        whose = f"consumer of {queue}"
        check(whose, OPTIONS, given)
        try:
            source = source_of(queue, given.pop("subscription", None))
        except ValueError as error:
            raise ConfigurationError(f"{whose}: {error}") from None
        return cls(source, **given)

    @property
    def _whose(self) -> str:
        return f"consumer of {self.queue}"

    @property
    def dead_letters(self) -> str:
        """The queue that messages are sent to which were delivered too often; empty: the broker decides."""
        return f"{self.queue}.dead" if self.dead_letter is None else self.dead_letter

    def check_waits(self, timeout_s: float) -> None:
        """ConfigurationError: a worker can't hold a message for as long as `retry_first_s` says. `timeout_s` is that of
        a transaction."""
        held_s = timeout_s * HELD
        if self.retry_waits == "worker" and self.retry_first_s > max(held_s, RETRY_FIRST_S):
            raise ConfigurationError(
                f"{self._whose}: retry_first_s is {self.retry_first_s:g}, and a worker holds a message for at most "
                f'{held_s:g} s, a quarter of the timeout of its transaction: set retry_waits to "broker", or a longer '
                "timeout_s"
            )

    def wait_s(self, deliveries: int, timeout_s: float, dice: Callable[[], float] = random) -> float:
        """How long a message waits before it is tried again, after so many deliveries that count. Chance takes away up
        to `retry_jitter` of it, so that messages which failed together don't come again together."""
        longest = _doubled(self.retry_first_s, deliveries, self.retry_most_s)
        if self.retry_waits == "worker":
            longest = min(longest, timeout_s * HELD)
        return longest * (1.0 - self.retry_jitter * dice())

    def pause_s(self, failures: int, timeout_s: float, dice: Callable[[], float] = random) -> float:
        """How long a worker receives nothing after so many outages in a row."""
        first_s = self.retry_first_s if self.retry_waits == "worker" else min(self.retry_first_s, RETRY_FIRST_S)
        longest = _doubled(first_s, failures, min(self.retry_most_s, timeout_s * HELD))
        return longest * (1.0 - self.retry_jitter * dice())

    @staticmethod
    def conflict_s(conflicts: int, dice: Callable[[], float] = random) -> float:
        """How long a worker receives nothing after so many conflicts in a row: all of it is left to chance, because
        those that are in each other's way begin together."""
        return _doubled(CONFLICT_FIRST_S, conflicts, CONFLICT_MOST_S) * dice()


def _doubled(first_s: float, times: int, most_s: float) -> float:
    """`first_s` the first time, twice as long each further time, `most_s` at most."""
    return float(min(first_s * 2.0 ** min(times - 1, 60), most_s))
