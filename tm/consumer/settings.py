"""How a consumer is set up."""

from __future__ import annotations

from dataclasses import dataclass
from threading import TIMEOUT_MAX
from typing import Final, Literal, TypedDict

from tm.resources import ConfigurationError

Takes = Literal["message", "batch"]
MAX_WORKERS: Final = 1000
MAX_BATCH: Final = 500
"""A resource manager for messages need not keep the outcomes of more open."""


class ConsumerOptions(TypedDict, total=False):
    """The keyword arguments of `TransactionManager.consumer`: what `ConsumerSettings` has but for `queue`."""

    resource: str
    workers: int
    batch: int
    takes: Takes
    max_deliveries: int
    retry_first_s: float
    retry_most_s: float
    idle_s: float
    timeout_s: float | None
    shutdown_s: float
    dead_letter: str | None


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """`queue` of the resource `resource`; `workers` at a time, up to `batch` messages in a transaction.

    `takes` says what the handler is called with: each message, or the list of those of one transaction. A message
    that was delivered `max_deliveries` times in vain goes to the queue `dead_letter`, with what is known of its
    failures (None: to `<queue>.dead`; "": it is refused, and the broker puts it where it wants). The wait before
    another attempt is `retry_first_s`, twice as long after each further failure, at most `retry_most_s`. `idle_s`: how
    long a worker waits for a message before it looks whether it shall stop. `timeout_s` is that of the transactions;
    the manager's where it is None.
    """

    queue: str
    resource: str = "broker"
    workers: int = 1
    batch: int = 1
    takes: Takes = "message"
    max_deliveries: int = 5
    retry_first_s: float = 0.1
    retry_most_s: float = 30.0
    idle_s: float = 1.0
    timeout_s: float | None = None
    shutdown_s: float = 30.0
    dead_letter: str | None = None

    def __post_init__(self) -> None:
        for name, most in (("workers", MAX_WORKERS), ("batch", MAX_BATCH), ("max_deliveries", 1_000_000)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise ConfigurationError(f"consumer of {self.queue}: {name} is {value!r}: expected 1 to {most}")
        for name in ("retry_first_s", "retry_most_s", "idle_s", "shutdown_s", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < TIMEOUT_MAX:
                raise ConfigurationError(f"consumer of {self.queue}: {name} is {value!r}: expected seconds above 0")
        if self.takes not in ("message", "batch"):
            raise ConfigurationError(
                f'consumer of {self.queue}: takes is {self.takes!r}, neither "message" nor "batch"'
            )
        if self.queue and self.dead_letter == self.queue:
            raise ConfigurationError(f"consumer of {self.queue}: dead_letter is the queue itself: name another one")
        if not self.queue:
            raise ConfigurationError("a consumer needs the name of a queue")

    @property
    def dead_letters(self) -> str:
        """The queue that messages are sent to which were delivered too often; empty: the broker decides."""
        return f"{self.queue}.dead" if self.dead_letter is None else self.dead_letter

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures."""
        return float(min(self.retry_first_s * 2.0 ** min(failures - 1, 60), self.retry_most_s))
