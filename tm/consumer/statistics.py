"""Statistics: what the messages of one consumer came to, as numbers; Health, which is made of them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from tm.consumer.states import ConsumerState
from tm.errors import HeuristicOutcomeError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.recording import Recording
    from tm.transaction import Transaction


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """Messages, by what became of their transactions: committed with the handler's work, rolled back (they come
    again), dead-lettered, unknown, heuristic (somebody has to look); and how many were given back unhandled."""

    handled: int = 0
    failed: int = 0
    dead_lettered: int = 0
    unknown: int = 0
    heuristic: int = 0
    returned: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """How a consumer is. `trouble` says what keeps workers from receiving at this moment, which handlers are at
    work for longer than their transaction may take, and how many workers have ended."""

    state: ConsumerState
    workers: int
    busy: int
    counts: MessageCounts
    trouble: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it runs, every worker is there and can receive, and no handler hangs."""
        return self.state is ConsumerState.RUNNING and not self.trouble


HANDLED: Final = "handled"
FAILED: Final = "failed"
DEAD_LETTERED: Final = "dead_lettered"
UNKNOWN: Final = "unknown"
HEURISTIC: Final = "heuristic"
RETURNED: Final = "returned"


def outcome_of(error: Exception) -> str:
    """The outcome of a failure, as the field of `MessageCounts`."""
    if isinstance(error, OutcomeUnknown):
        return UNKNOWN
    if isinstance(error, HeuristicOutcomeError):
        return HEURISTIC
    return FAILED


class Statistics:
    """Kept by the workers of one consumer, in any thread."""

    def __init__(
        self,
        queue: str,
        recorder: Recording | None,
        clock: Callable[[], float] = time.perf_counter,
        *,
        system: str = "amqp",
    ) -> None:
        self._queue = queue
        self.system = system
        """Which kind of broker it is."""
        self._recorder = recorder
        if recorder is not None:
            recorder.consumes(system, queue, (field.name for field in fields(MessageCounts)))
        self.clock = clock
        self._lock = threading.Lock()
        self._counts = MessageCounts()
        self._busy: dict[int, tuple[Transaction, float]] = {}
        """By worker, and since when."""
        self._trouble: dict[int, str] = {}
        self._used: dict[str, None] = {}

    @property
    def counts(self) -> MessageCounts:
        """The counts since the start."""
        return self._counts

    @property
    def trouble(self) -> tuple[str, ...]:
        """The problem that keeps workers from receiving."""
        return tuple(self._trouble.values())

    @property
    def busy(self) -> tuple[Transaction, ...]:
        """The transactions that handlers are at work in."""
        return tuple(transaction for transaction, _ in self._busy.copy().values())

    @property
    def hanging(self) -> tuple[str, ...]:
        """Which handlers are at work for longer than their transaction may take. It is rolled back meanwhile, and
        their worker does nothing else."""
        now = self.clock()
        return tuple(
            f"a handler is at work for {now - since:.1f} s, longer than the {transaction.timeout_s:g} s of its "
            f"transaction {transaction}"
            for transaction, since in self._busy.copy().values()
            if now - since > transaction.timeout_s
        )

    @property
    def used(self) -> tuple[str, ...]:
        """The resources that handlers have used, or tried to."""
        return tuple(self._used)

    def working(self, worker: int, transaction: Transaction) -> None:
        """`worker` has messages in hand."""
        self._trouble.pop(worker, None)
        self._busy[worker] = transaction, self.clock()

    def ended(self, worker: int) -> None:
        """... and has come to an end with them."""
        self._busy.pop(worker, None)

    def done(self, transaction: Transaction, outcome: str, messages: int, took_s: float) -> None:
        """Notes that so many messages had this outcome, in a transaction that took so long."""
        self._note(transaction)
        self.count(outcome, messages)
        if self._recorder is not None:
            self._recorder.consumed(self.system, self._queue, outcome, messages, took_s)

    def count(self, outcome: str, messages: int) -> None:
        """Notes that so many messages had this outcome."""
        if messages:
            with self._lock:
                self._counts = replace(self._counts, **{outcome: getattr(self._counts, outcome) + messages})

    def troubled(self, worker: int, error: Exception) -> None:
        """`worker` can't receive."""
        self._trouble[worker] = f"{type(error).__name__}: {error}"

    def idle(self, worker: int) -> None:
        """`worker` could receive, and there was nothing."""
        self._trouble.pop(worker, None)

    def _note(self, transaction: Transaction) -> None:
        for name in transaction.resources:
            self._used[name] = None
        if transaction.outcome is not None:
            for reason in transaction.outcome.reasons:
                if reason.resource:
                    self._used[reason.resource] = None
