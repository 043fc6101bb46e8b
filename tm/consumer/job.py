"""Job: what the workers of one consumer have in common: its settings and handler, and what they count and log."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.consumer.failures import Failures, name_of, place_of
from tm.consumer.statistics import DEAD_LETTERED, RETURNED, outcome_of
from tm.throttle import WarningThrottle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.consumer.settings import ConsumerSettings
    from tm.consumer.statistics import Statistics
    from tm.manager import TransactionManager
    from tm.transaction import Transaction

logger = logging.getLogger("xabridge.tm.consumer")

UNKNOWN_REASON: Final = "not known: it failed in another process, or its process ended"
FEW: Final = 3
"""Messages that a line names."""
_RECEIVING: Final = "receiving"


class DeadLetter(NamedTuple):
    """Where a message goes that was delivered too often, with what is known of it; without an address it is refused,
    and the broker puts it away."""

    address: str
    annotations: dict[str, str | int]


class Job:
    """The job that the workers of one consumer do, in threads or in tasks; they note here what came of it."""

    def __init__(
        self,
        manager: TransactionManager,
        settings: ConsumerSettings,
        handler: Callable[..., Any],
        statistics: Statistics,
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.handler = handler
        self.statistics = statistics
        self.timeout_s = settings.timeout_s or manager.timeout_s
        self.failures = Failures()
        self._throttle = WarningThrottle(statistics.clock)

    def session(self, transaction: Transaction) -> Any:
        """The session of the queue's resource, in a transaction."""
        return transaction[self.settings.resource]

    def calls(self, messages: Sequence[Any]) -> Sequence[Any]:
        """The arguments of the handler, call by call."""
        return messages if self.settings.takes == "message" else [messages]

    def done(
        self, wanted: str, messages: Sequence[Any], transaction: Transaction, error: Exception | None, took_s: float
    ) -> None:
        """Counts, and logs, what came of messages that were to be HANDLED, DEAD_LETTERED or RETURNED."""
        outcome = wanted if error is None else outcome_of(error)
        queue = self.settings.queue
        self.statistics.done(transaction, outcome, len(messages), took_s)
        if error is not None:
            self._failed(wanted, messages, transaction, outcome, error)
            return
        for message in messages if wanted != RETURNED else ():
            if wanted == DEAD_LETTERED:
                letter = self.dead_letter(message)
                logger.error(
                    "%s: message %s of %s was dead-lettered to %s after %d deliveries: %s",
                    transaction, name_of(message), queue, letter.address or "where the broker puts it",
                    message.delivery_count, letter.annotations["reason"],
                )  # fmt: skip
            self.failures.forget(message)

    def _failed(
        self, wanted: str, messages: Sequence[Any], transaction: Transaction, outcome: str, error: Exception
    ) -> None:
        if wanted != RETURNED:
            for message in messages:
                self.failures.note(message, error, vain=wanted == DEAD_LETTERED)
        place = place_of(error)
        trace = logger.isEnabledFor(logging.DEBUG) or (bool(place) and self.failures.is_new(f"{type(error)} {place}"))
        names = ", ".join(name_of(message) for message in messages[:FEW])
        more = f" and {len(messages) - FEW} more" if len(messages) > FEW else ""
        logger.warning(
            "%s: message %s%s of %s: %s: %s: %s%s",
            transaction, names, more, self.settings.queue, outcome, type(error).__name__, error,
            f" ({place})" if place else "", exc_info=error if trace else None,
        )  # fmt: skip

    def dead_letter(self, message: Any) -> DeadLetter:
        """What becomes of a message that was delivered too often. Where it could not be sent to its queue of dead
        letters before (there is none, or nobody may), it is left to the broker."""
        failure = self.failures.known(message)
        annotations: dict[str, str | int] = {
            "reason": failure.reason if failure is not None else UNKNOWN_REASON,
            "place": failure.place if failure is not None else "",
            "queue": self.settings.queue,
            "deliveries": int(message.delivery_count),
            "last-ms": failure.last_ms if failure is not None else int(time.time() * 1000),
        }
        if failure is not None:
            annotations["first-ms"] = failure.first_ms
        in_vain = failure is not None and failure.vain
        return DeadLetter("" if in_vain else self.settings.dead_letters, annotations)

    def failed_to_receive(self, number: int, error: Exception) -> None:
        """A worker can't receive. What keeps all of them from it, say an outage, is logged now and then."""
        self.statistics.troubled(number, error)
        lasted = self._throttle.due(_RECEIVING)
        if lasted is not None:
            queue, kind = self.settings.queue, type(error).__name__
            logger.warning("%s: nothing can be received%s: %s: %s", queue, lasted, kind, error)

    def received(self, number: int, transaction: Transaction | None) -> None:
        """A worker could receive: there is something to do in `transaction`, or there was nothing."""
        if transaction is None:
            self.statistics.idle(number)
        else:
            self.manager.has_work(transaction)
            self.statistics.working(number, transaction)
        if not self.statistics.trouble and (lasted := self._throttle.over(_RECEIVING)):
            logger.info("%s: messages can be received again, after %s", self.settings.queue, lasted)
