"""Job: what the workers of one consumer have in common: its settings and handler, and what they count and log."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.consumer.failures import Failures, name_of, place_of
from tm.consumer.handler import Refused
from tm.consumer.history import (
    BREAKS,
    COUNT,
    FIRST,
    NEW,
    PLACE,
    QUEUE,
    REASON,
    UNTOLD,
    History,
    first_failure_ms,
    forget_wait,
    is_final,
    is_new,
    place_said_of,
    reason_of,
    retries_of,
)
from tm.consumer.statistics import DEAD_LETTERED, RETURNED, outcome_of
from tm.faults import Fault, fault_of, is_broken
from tm.recording import Received
from tm.throttle import WarningThrottle
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.consumer.failures import Failure
    from tm.consumer.handler import Handler
    from tm.consumer.settings import ConsumerSettings
    from tm.consumer.statistics import Statistics
    from tm.manager import Manager
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


class Postponement(NamedTuple):
    """Where, and after how long, a message that is put off comes again, and what goes with it."""

    address: str
    delay_ms: int
    annotations: dict[str, str | int]


class Attempt(NamedTuple):
    """What a worker knows of an attempt to handle messages, beside the error."""

    broker_excuses: bool = False
    """Whether the broker does not count those deliveries that don't count here."""
    has_returned: bool = False
    """Whether the handler has returned for all of them."""
    is_explained: bool = False
    """Whether the failure of its only message was reported to the broker."""
    guilty: Any = None
    """The message whose handler has raised, where that is known."""
    is_late: bool = False
    """Whether the transaction took too long, so that its statements were interrupted."""

    def fault_of(self, error: BaseException) -> Fault:
        """Whose fault it is that it has come to `error`. What a handler raises when its time is over says nothing about
        the message."""
        fault = fault_of(error)
        return Fault.UNTOLD if self.is_late and fault is Fault.MESSAGE else fault


COUNTED: Final = Attempt()


class Job:
    """The job that the workers of one consumer do, in threads or in tasks; they note the results here."""

    def __init__(
        self,
        manager: Manager,
        settings: ConsumerSettings,
        handler: Handler,
        statistics: Statistics,
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.handler = handler
        self.statistics = statistics
        self.timeout_s = settings.timeout_s or manager.timeout_s
        settings.check_waits(self.timeout_s)
        self.failures = Failures()
        self.broker_excuses = False
        """Whether the broker leaves excused deliveries uncounted, as far as is known."""
        self._outages = 0
        self._seen = 0
        """How often a worker could not receive, or could not reach a resource before it took a message."""
        self._checked = 0
        """How many outages there had been when every resource could be reached the last time."""
        self._throttle = WarningThrottle(statistics.clock)

    def session(self, transaction: Transaction) -> Any:
        """The session of the queue's resource, in a transaction."""
        return transaction[self.settings.resource]

    def calls(self, messages: Sequence[Any]) -> tuple[Sequence[Any], list[Any]]:
        """The arguments of the handler, call by call; and the messages that it can't be called with: a final failure,
        which is noted."""
        arguments, unfit = [], []
        for message in messages:
            forget_wait(message, self.settings.queue)
            try:
                arguments.append(self.handler.read(message))
            except Refused as error:
                self.failures.note(message, error, final=True)
                unfit.append(message)
        return (arguments if self.settings.takes == "message" else [arguments] if arguments else []), unfit

    def done(
        self,
        wanted: str,
        messages: Sequence[Any],
        unfit: Sequence[Any],
        transaction: Transaction,
        error: Exception | None,
        took_s: float,
        attempt: Attempt = COUNTED,
    ) -> None:
        """Counts, and logs, the results of messages that were to be HANDLED, DEAD_LETTERED or RETURNED; those that are
        `unfit` were put away beside the others."""
        outcome = wanted if error is None else outcome_of(error)
        queue = self.settings.queue
        if error is not None:
            self.statistics.done(transaction, outcome, len(messages), took_s)
            self._failed(wanted, messages, transaction, outcome, error, attempt)
            return
        for came_to, many in ((DEAD_LETTERED, len(unfit)), (outcome, len(messages) - len(unfit))):
            if many:
                self.statistics.done(transaction, came_to, many, took_s)

        put_away = {id(message) for message in unfit}
        for message in messages if wanted != RETURNED else ():
            if wanted == DEAD_LETTERED or id(message) in put_away:
                letter = self.dead_letter(message)
                logger.error(
                    "%s: message %s of %s was dead-lettered to %s after %d deliveries: %s",
                    transaction, name_of(message), queue, letter.address or "where the broker puts it",
                    letter.annotations["deliveries"], letter.annotations["reason"],
                    extra=about(transaction=transaction, message=name_of(message), queue=queue),
                )  # fmt: skip
            self.failures.forget(message)

    # --- outages ----------------------------------------------------------------------------------------------

    @property
    def is_doubted(self) -> bool:
        """Whether a resource was down when one of the workers used it, and not all were reached since."""
        return self._outages != self._checked

    @property
    def outages(self) -> int:
        """How many attempts have met one."""
        return self._outages

    def reached(self, outages: int) -> None:
        """Every resource that handlers use was reached, by a worker that began to try after so many outages."""
        self._checked = outages

    # --- what is known of messages ------------------------------------------------------------------------------

    def history(self, message: Any) -> History:
        """What is known of a message's failures. Each message has its own; see `tm.consumer.history`."""
        if is_new(message):
            return NEW
        queue, failure = self.settings.queue, self._known(message)
        before = retries_of(message, queue)
        deliveries = before + int(message.delivery_count)
        if failure is not None:
            own = failure.failures if getattr(message, "id", None) is not None else 0
            deliveries = max(deliveries - failure.excused, before, own)

        first_ms = first_failure_ms(message, queue) or (failure.first_ms if failure is not None else None)
        has_reason = bool(self._reason(message, failure))
        most = self.settings.max_deliveries if has_reason else max(self.settings.max_deliveries, UNTOLD)
        is_final = (failure is not None and self.failures.is_final(message)) or self._breaks(message)
        is_dead = is_final or deliveries >= most or self._is_too_late(first_ms)
        return History(deliveries, is_dead, True, deliveries > before and not is_dead)

    def _known(self, message: Any) -> Failure | None:
        """What this process remembers of a message that was tried before. Without an id it is known by its content,
        which another message may have, too; so it has to have failed by itself, as far as the broker says."""
        failure = None if is_new(message) else self.failures.known(message)
        if failure is None or getattr(message, "id", None) is not None:
            return failure
        if self.broker_excuses and failure.explained:
            return failure if reason_of(message, self.settings.queue) is not None else None
        if self.broker_excuses and failure.refused:
            # perhaps the other's work can't be committed, and this was in a conflict
            failure = replace(failure, reason="", first_ms=None, last_said=failure.last_said or failure.reason)
        return failure if message.delivery_count or retries_of(message, self.settings.queue) else None

    def _breaks(self, message: Any) -> bool:
        """Whether connections break under a message though every resource can be reached in between."""
        known = None if is_new(message) else self.failures.known(message)
        return known is not None and known.broken >= BREAKS and known.outages == self._seen

    def _reason(self, message: Any, failure: Failure | None) -> str:
        return (failure.reason if failure is not None else "") or reason_of(message, self.settings.queue) or ""

    def _place(self, message: Any, failure: Failure | None) -> str:
        """Where it has failed with its reason."""
        if failure is not None and failure.reason:
            return failure.place
        return place_said_of(message, self.settings.queue)

    def is_charged(self, message: Any) -> bool:
        """Whether a refusal of the commit is to count at the broker, because one was this message's fault before."""
        failure = None if is_new(message) else self.failures.known(message)
        return failure is not None and failure.refused

    def _is_too_late(self, first_ms: int | None) -> bool:
        limit_s = self.settings.retry_for_s
        return limit_s is not None and first_ms is not None and self.failures.now_ms() - first_ms > limit_s * 1000

    def later(self, message: Any, wait_s: float) -> Postponement:
        """What goes with a message that is put off for so long."""
        queue, failure = self.settings.queue, self._known(message)
        annotations: dict[str, str | int] = {COUNT: self.history(message).deliveries, QUEUE: queue}
        first_ms = first_failure_ms(message, queue) or (failure.first_ms if failure is not None else None)
        reason = self._reason(message, failure)
        if reason:  # without one, it was not found to be the message's fault
            annotations[REASON] = reason
            if place := self._place(message, failure):
                annotations[PLACE] = place
            annotations[FIRST] = first_ms or self.failures.now_ms()
        return Postponement(queue, int(wait_s * 1000), annotations)

    def _failed(
        self,
        wanted: str,
        messages: Sequence[Any],
        transaction: Transaction,
        outcome: str,
        error: Exception,
        attempt: Attempt,
    ) -> None:
        if attempt.fault_of(error) is Fault.OUTAGE:
            self._outages += 1
        if wanted == DEAD_LETTERED:
            for message in messages:
                self.failures.note_vain(message)
        elif wanted != RETURNED:
            self._note(messages, error, attempt)

        place = place_of(error)
        trace = logger.isEnabledFor(logging.DEBUG) or (bool(place) and self.failures.is_new(f"{type(error)} {place}"))
        named = messages if attempt.guilty is None else [attempt.guilty]
        names = ", ".join(name_of(message) for message in named[:FEW])
        more = f" and {len(named) - FEW} more" if len(named) > FEW else ""
        before = len(messages) - len(named)
        again = (
            f"; {before} before it in its transaction {'is' if before == 1 else 'are'} tried again" if before else ""
        )
        logger.warning(
            "%s: message %s%s of %s: %s: %s: %s%s%s",
            transaction, names, more, self.settings.queue, outcome, type(error).__name__, error,
            f" ({place})" if place else "", again, exc_info=error if trace else None,
            extra=about(transaction=transaction, message=names, queue=self.settings.queue),
        )  # fmt: skip

    def _note(self, messages: Sequence[Any], error: Exception, attempt: Attempt) -> None:
        """An attempt has failed: the fault of one of the messages, or of none."""
        fault, alone = attempt.fault_of(error), len(messages) == 1
        if (fault.is_excused or not alone) and not attempt.broker_excuses:
            for message in messages:
                self.failures.excuse(message)

        guilty = messages[0] if alone else attempt.guilty
        if fault is Fault.MESSAGE and guilty is not None:
            final = alone and is_final(error, self.settings)
            self.failures.note(
                guilty,
                error,
                alone=alone,
                final=final,
                refused=attempt.has_returned,
                explained=attempt.is_explained or not alone,
            )
        elif fault is Fault.UNTOLD and alone:
            self.failures.note_untold(guilty, error, refused=attempt.has_returned)
        elif fault is Fault.OUTAGE and alone and is_broken(error):
            self.failures.note_broken(guilty, error, self._seen)

    def dead_letter(self, message: Any) -> DeadLetter:
        """What becomes of a message that was delivered too often. Where it could not be sent to its queue of dead
        letters before (there is none, or no permission), it is left to the broker."""
        remembered = self.failures.known(message)
        is_known = self.failures.is_final(message) or self._breaks(message)
        failure = remembered if is_known else self._known(message)
        last_ms = failure.last_ms if failure is not None else None
        annotations: dict[str, str | int] = {
            "reason": self._reason(message, failure) or (failure.last_said if failure else "") or UNKNOWN_REASON,
            "place": self._place(message, failure),
            "queue": self.settings.queue,
            "deliveries": self.history(message).deliveries,
            "last-ms": last_ms if last_ms is not None else self.failures.now_ms(),
        }

        known = [first_failure_ms(message, self.settings.queue)]
        known += [failure.first_ms, failure.first_said_ms] if failure is not None else []
        first_ms = min((one for one in known if one is not None), default=None)
        if first_ms is not None:
            annotations["first-ms"] = first_ms
        in_vain = remembered is not None and remembered.vain and not is_new(message)
        return DeadLetter("" if in_vain else self.settings.dead_letters, annotations)

    def failed_to_receive(self, number: int, error: Exception) -> None:
        """A worker can't receive. What keeps all of them from it, say an outage, is logged now and then."""
        self._outages += 1
        self._seen += 1
        self.statistics.troubled(number, error)
        lasted = self._throttle.due(_RECEIVING)
        if lasted is not None:
            queue, kind = self.settings.queue, type(error).__name__
            logger.warning(
                "%s: nothing can be received%s: %s: %s", queue, lasted, kind, error,
                extra=about(queue=queue, resource=self.settings.resource),
            )  # fmt: skip

    def received(self, number: int, transaction: Transaction | None, messages: Sequence[Any] = ()) -> None:
        """A worker could receive: there is something to do in `transaction`, or there was nothing."""
        if transaction is None:
            self.statistics.idle(number)
        else:
            self.manager.has_work(transaction, Received(self.statistics.system, self.settings.queue, messages))
            self.statistics.working(number, transaction)
        if not self.statistics.trouble and (lasted := self._throttle.over(_RECEIVING)):
            queue = self.settings.queue
            logger.info("%s: messages can be received again, after %s", queue, lasted, extra=about(queue=queue))
