"""Worker: performs the rounds of one worker in a thread.

What a session for messages has to offer: `receive_batch(address, count, timeout_s)`, `reject(message)`,
`release(message)` and `dead_letter(message, address, annotations)`, all of which take effect when the branch is
committed; and `aio`, the same for asyncio, where `receive_batch` and `dead_letter` are coroutines. `dead_letter` sends
the message with these annotations to the address and takes it from its queue.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.consumer.failures import Failures, name_of, place_of
from tm.consumer.rounds import GiveBack, Handle, Pause, Receive, Refuse, rounds
from tm.consumer.tally import DEAD_LETTERED, HANDLED, RETURNED, outcome_of
from tm.outcome import ProtocolMisuse, Verdict
from tm.reminders import Reminders
from xa import Code, XaError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from tm.consumer.rounds import Effect
    from tm.consumer.settings import ConsumerSettings
    from tm.consumer.tally import Tally
    from tm.manager import TransactionManager
    from tm.transaction import Transaction

logger = logging.getLogger("xabridge.tm.consumer")

OUTCOMES: Final = {Handle: HANDLED, Refuse: DEAD_LETTERED, GiveBack: RETURNED}
"""Effect → what its messages count as, where it succeeds."""
UNKNOWN_REASON: Final = "not known: it failed in another process, or its process ended"
FEW: Final = 3
"""Messages that a line names."""
_RECEIVING: Final = "receiving"


class DeadLetter(NamedTuple):
    """Where a message goes that was delivered too often, with what is known of it; without an address it is refused,
    and the broker puts it away."""

    address: str
    annotations: dict[str, str | int]


class Crew:
    """What the workers of one consumer share, in threads or in tasks."""

    def __init__(
        self, manager: TransactionManager, settings: ConsumerSettings, handler: Callable[..., Any], tally: Tally
    ) -> None:
        self.manager = manager
        self.settings = settings
        self.handler = handler
        self.tally = tally
        self.timeout_s = settings.timeout_s or manager.timeout_s
        self.failures = Failures()
        self._reminders = Reminders(tally.clock)

    def session(self, transaction: Transaction) -> Any:
        """The session of the queue's resource, in a transaction."""
        return transaction[self.settings.resource]

    def calls(self, messages: Sequence[Any]) -> Sequence[Any]:
        """What the handler is called with, call by call."""
        return messages if self.settings.takes == "message" else [messages]

    def told(
        self,
        number: int,
        effect: Handle | Refuse | GiveBack,
        transaction: Transaction,
        error: Exception | None,
        began: float,
    ) -> None:
        """Counts, and logs, what came of an effect."""
        outcome = OUTCOMES[type(effect)] if error is None else outcome_of(error)
        queue = self.settings.queue
        self.tally.done(number, outcome, len(effect.messages), began)
        if error is not None:
            self._told_failure(effect, transaction, outcome, error)
            return
        for message in effect.messages if not isinstance(effect, GiveBack) else ():
            if isinstance(effect, Refuse):
                letter = self.dead_letter(message)
                logger.error(
                    "%s: message %s of %s was dead-lettered to %s after %d deliveries: %s",
                    transaction, name_of(message), queue, letter.address or "where the broker puts it",
                    message.delivery_count, letter.annotations["reason"],
                )  # fmt: skip
            self.failures.forget(message)

    def _told_failure(
        self, effect: Handle | Refuse | GiveBack, transaction: Transaction, outcome: str, error: Exception
    ) -> None:
        if not isinstance(effect, GiveBack):
            for message in effect.messages:
                self.failures.note(message, error, vain=isinstance(effect, Refuse))
        place = place_of(error)
        trace = logger.isEnabledFor(logging.DEBUG) or (bool(place) and self.failures.is_new(f"{type(error)} {place}"))
        names = ", ".join(name_of(message) for message in effect.messages[:FEW])
        more = f" and {len(effect.messages) - FEW} more" if len(effect.messages) > FEW else ""
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
        self.tally.troubled(number, error)
        lasted = self._reminders.due(_RECEIVING)
        if lasted is not None:
            queue, kind = self.settings.queue, type(error).__name__
            logger.warning("%s: nothing can be received%s: %s: %s", queue, lasted, kind, error)

    def received(self, number: int, transaction: Transaction | None) -> None:
        """A worker could receive: there is something to do in `transaction`, or there was nothing."""
        if transaction is None:
            self.tally.idle(number)
        else:
            self.manager.has_work(transaction)
            self.tally.working(number, transaction)
        if not self.tally.trouble and (lasted := self._reminders.over(_RECEIVING)):
            logger.info("%s: messages can be received again, after %s", self.settings.queue, lasted)


def unreadable(error: Exception, effect: Receive) -> bool:
    """Whether the one message that was received may be one that can't be read: what a session refuses when the branch
    is committed. Where it is something else nothing was received, and nothing is committed."""
    return effect.count == 1 and isinstance(error, XaError) and error.code is Code.XAER_RMERR


def not_committed(transaction: Transaction) -> Exception | None:
    """What is wrong where a handler has completed its transaction itself, and otherwise than by commit."""
    outcome = transaction.outcome
    if outcome is not None and outcome.verdict is Verdict.COMMITTED:
        return None
    return ProtocolMisuse(f"the handler has completed transaction {transaction} itself; raise instead")


class Worker:
    """One worker, in a thread. `crew` is what it shares with the others."""

    def __init__(self, number: int, crew: Crew, stopping: threading.Event) -> None:
        self._number = number
        self._crew = crew
        self._stopping = stopping
        self._transaction: Transaction

    def run(self) -> None:
        """Until the consumer is to stop."""
        steps = rounds(self._crew.settings, self._crew.timeout_s, self._stopping.is_set)
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return
            answer = self._perform(effect)

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Pause):
            self._stopping.wait(effect.seconds)
            return None
        if isinstance(effect, Receive):
            return self._receive(effect)
        began = self._crew.tally.clock()
        error: Exception | None = None
        transaction = self._transaction
        try:
            with transaction:
                self._work(effect, transaction)
            error = not_committed(transaction)
        except Exception as raised:  # noqa: BLE001 — a handler of anybody's
            error = raised
        self._crew.told(self._number, effect, transaction, error, began)
        return error

    def _receive(self, effect: Receive) -> Sequence[Any] | Exception:
        crew, settings = self._crew, self._crew.settings
        try:
            transaction = crew.manager.begin(settings.timeout_s, waits=True)
            try:
                for name in crew.tally.used if effect.check else ():
                    transaction.enlist(name)
                messages: Sequence[Any] = crew.session(transaction).receive_batch(
                    settings.queue, effect.count, settings.idle_s
                )
            except BaseException as error:
                if isinstance(error, Exception) and unreadable(error, effect):
                    transaction.commit()
                else:
                    transaction.rollback()
                raise
            if not messages:
                transaction.rollback()
                crew.received(self._number, None)
                return ()
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's
            crew.failed_to_receive(self._number, error)
            return error
        self._transaction = transaction
        crew.received(self._number, transaction)
        return messages

    def _work(self, effect: Handle | Refuse | GiveBack, transaction: Transaction) -> None:
        if not isinstance(effect, Handle):
            session = self._crew.session(transaction)
            for message in effect.messages:
                if isinstance(effect, GiveBack):
                    session.release(message)
                elif (letter := self._crew.dead_letter(message)).address:
                    session.dead_letter(message, *letter)
                else:
                    session.reject(message)
            return
        for call in self._crew.calls(effect.messages):
            self._crew.handler(call, transaction)
