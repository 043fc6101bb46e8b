"""Each mutant is a consumer with one defect put back in, that it had or could have. The checker has to notice all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.simulation.consumers import Mutant
from tm import RolledBack, Transaction
from tm.consumer.failures import reason_from
from tm.consumer.history import History
from tm.consumer.job import Attempt, Job
from tm.consumer.sharing import Sharing
from tm.consumer.worker import Worker
from tm.faults import Fault, fault_of
from xa import XaError


class JudgedByTheFirst(Worker):
    """What is known of the first message of a batch decides about all of them."""

    def history(self, message: Any) -> History:
        return super().history(message)._replace(is_apart=False)


class CompanyCounts(Worker):
    """A batch that fails is an attempt of each of its messages."""

    def _excuse(self, messages: Sequence[Any]) -> bool:
        return len(messages) == 1 and super()._excuse(messages)


class _Charging(Worker):
    """Whose fault it is does not matter where a handler raises."""

    fault: Fault

    def _blame(self, messages: Sequence[Any], error: Exception) -> None:
        if fault_of(error) is not self.fault:
            super()._blame(messages, error)
            return
        for message in messages:
            self._tell("explain", message, reason_from(error), "")


class OutagesCount(_Charging):
    fault = Fault.OUTAGE


class ConflictsCount(_Charging):
    fault = Fault.CONFLICT


class EveryoneIsBlamed(Worker):
    """The reason goes with every message of a batch, and counts for it."""

    def _blame(self, messages: Sequence[Any], error: Exception) -> None:
        if fault_of(error) is not Fault.MESSAGE:
            super()._blame(messages, error)
            return
        for message in messages:
            self._tell("explain", message, reason_from(error), "")


class RefusedCommitsCount(Worker):
    """What is refused at the commit counts as what a handler raises."""

    async def _call_handler(self, messages: Sequence[Any], begun: list[Any]) -> None:
        await super()._call_handler(messages, begun)
        for message in begun:
            self._tell("explain", message, "the commit was refused", "")


class NothingIsRefusedForGood(Job):
    """What a commit is refused for never counts."""

    def is_charged(self, message: Any) -> bool:
        del message
        return False

    def history(self, message: Any) -> History:
        found = super().history(message)
        return found if message.delivery_count else found._replace(deliveries=0, is_dead=False)


class KillsCount(Job):
    """A delivery that ended with its process counts as one that the handler failed."""

    def history(self, message: Any) -> History:
        found = super().history(message)
        return found._replace(is_dead=found.deliveries >= self.settings.max_deliveries)


class HandlersComplete(Worker):
    """A handler can commit the transaction of its batch."""

    async def _lend(self, messages: Sequence[Any], begun: list[Any]) -> None:
        for message in messages:
            begun.append(message)
            await self._calls.handle(self._job.handler, message, self._transaction)


class OutagesAreRemembered(Job):
    """A process holds an outage against the message that met it."""

    def _note(self, messages: Sequence[Any], error: Exception, attempt: Attempt) -> None:
        for message in messages:
            self.failures.note(message, error, alone=len(messages) == 1)
        super()._note(messages, error, attempt)


class SharesAfterFailures(Worker):
    """Neither a conflict nor a failure is a reason to share less."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sharing.failed = lambda *_: None  # type: ignore[method-assign]


class EndlessShares(Worker):
    """A share has no end but that of its messages."""

    async def _goes_on(self, transaction: Transaction) -> bool:
        self._sharing.begins()
        return await super()._goes_on(transaction)


class SharesWithoutTimeout(Worker):
    """A share does not look at the timeout of its transaction."""

    def __init__(self, number: int, job: Job, calls: Any) -> None:
        super().__init__(number, job, calls, Sharing(job.settings, math.inf, job.statistics.clock))


class StaleSessions(Worker):
    """A handler finds what the one before has left in its sessions."""

    async def _goes_on(self, transaction: Transaction) -> bool:
        del transaction
        return self._sharing.goes_on


class HiddenErrors(Worker):
    """An error that a handler has hidden is found by the next one."""

    async def _goes_on(self, transaction: Transaction) -> bool:
        try:
            return await super()._goes_on(transaction)
        except (XaError, RolledBack):
            return True


class TheNextIsToBlame(Worker):
    """What one has left in the transaction is the fault of the next one."""

    def _blame(self, messages: Sequence[Any], error: Exception) -> None:
        if isinstance(error, XaError | RolledBack) and len(messages) > 1:
            self._tell("explain", messages[0], reason_from(error), "")
        else:
            super()._blame(messages, error)


MUTANTS = [
    Mutant("a batch is judged by its first message", JudgedByTheFirst),
    Mutant("an attempt in company counts", CompanyCounts),
    Mutant("an outage counts", OutagesCount),
    Mutant("a conflict counts", ConflictsCount),
    Mutant("every message of a batch is blamed", EveryoneIsBlamed),
    Mutant("a refused commit counts whatever it was refused for", RefusedCommitsCount),
    Mutant("a refused commit never counts", job=NothingIsRefusedForGood, seed=3),
    Mutant("a kill counts as a failure", job=KillsCount),
    Mutant("a handler can complete the transaction", HandlersComplete),
    Mutant("an outage is remembered", job=OutagesAreRemembered),
    Mutant("sharing goes on after a conflict", SharesAfterFailures),
    Mutant("a share does not end by time", EndlessShares, seed=25),
    Mutant("a share does not look at the timeout", SharesWithoutTimeout, seed=367),
    Mutant("a handler finds what the one before has left", StaleSessions, seed=12),
    Mutant("a hidden error is found by the next handler", HiddenErrors, seed=85),
    Mutant("a hidden error is another one's fault", TheNextIsToBlame, seed=275),
    Mutant("what is ahead stays after a rollback", recalls=False),
]
