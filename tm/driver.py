"""Drives completions to their end, and tells what came of them: to the transaction, the log lines, and recovery."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from tm.leftovers import Leftover
from tm.log import LogStopped
from tm.outcome import Outcome, Reason, Verdict, named
from tm.states import GlobalState
from xa import switch_control

if TYPE_CHECKING:
    from tm.completion import Completion, Steps
    from tm.effects import Effect
    from tm.performer import Performer
    from tm.recoverer import Recoverer
    from tm.telemetry.recorder import Recorder
    from tm.transaction import Transaction

logger = logging.getLogger("xabridge.tm")

_COMMITTED: Final = Verdict.COMMITTED
WORKERS: Final = 4
"""Threads that go on behind the commit point of transactions that wait for their decision only."""
BACKLOG: Final = 256
"""So many transactions are with the workers, at work or waiting for one. Who comes while there is no room goes on by
itself, and thereby slower: what waits stays bounded, and nobody waits for anybody."""


class Driver:
    """For the transactions of one manager; `live` are those that have not ended."""

    def __init__(
        self,
        live: dict[bytes, Transaction],
        performer: Performer,
        recoverer: Recoverer,
        recorder: Recorder | None,
    ) -> None:
        self._live = live
        self._performer = performer
        self._recoverer = recoverer
        self._recorder = recorder
        self._background = ThreadPoolExecutor(WORKERS, thread_name_prefix="xabridge-completion")
        self._room = threading.BoundedSemaphore(BACKLOG)
        self.log_stopped = False
        """Whether the log told nothing any more; to be set back by who has asked it again."""

    def drive(self, transaction: Transaction, completion: Completion, steps: Steps, *, early: bool) -> bool:
        """Performs the steps of a completion, to the end or (`early`) to the commit point, from where a worker thread
        goes on, if there is room. The transaction is live until the end. Whether that was early, and the commit point
        was reached: then what comes behind it is not this caller's to hear."""
        told = False
        perform = self._performer.perform
        answer: Any = None
        try:
            while True:
                effect = steps.send(answer)
                if early and completion.state is GlobalState.COMMITTING:
                    early, told = False, True
                    if self._handed_over(transaction, completion, steps, effect):
                        return told
                answer = perform(effect)
        except StopIteration as stop:
            self._completed(transaction, completion, stop.value)
        except BaseException as error:
            self._broken_off(transaction, completion, error)
            raise
        return told

    def _handed_over(self, transaction: Transaction, completion: Completion, steps: Steps, effect: Effect) -> bool:
        """Whether a worker goes on."""
        if not self._room.acquire(blocking=False):
            return False
        transaction.goes_on()
        try:
            self._background.submit(self._go_on, transaction, completion, steps, effect)
        except RuntimeError:  # after `stop`
            self._room.release()
            return False
        return True

    def stop(self) -> None:
        """Waits for what is done in the background; nothing more is begun there."""
        self._background.shutdown(wait=True)

    def _go_on(self, transaction: Transaction, completion: Completion, steps: Steps, effect: Effect) -> None:
        switch_control(transaction.control)
        try:
            answer = self._performer.perform(effect)
            while True:
                answer = self._performer.perform(steps.send(answer))
        except StopIteration as stop:
            self._completed(transaction, completion, stop.value)
        except BaseException as error:
            logger.exception("%s: its completion in the background failed; recovery takes it", transaction)
            self._broken_off(transaction, completion, error)
        finally:
            switch_control(None)
            self._room.release()

    def _completed(self, transaction: Transaction, completion: Completion, outcome: Outcome) -> None:
        idle = transaction.waits and outcome.verdict is Verdict.ROLLED_BACK and not (outcome.reasons or outcome.pending)
        try:
            if outcome.verdict is not _COMMITTED:
                self._leave(transaction, completion, outcome, interrupted=False)
                if not idle:
                    self._tell(transaction, outcome)
            elif logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s: committed", transaction)
            transaction.completed(outcome, completion.state)
        finally:
            self._live.pop(transaction.gtrid, None)
        if not idle:
            self._record(transaction, outcome)
        if outcome.pending:
            self._recoverer.wake()

    def _broken_off(self, transaction: Transaction, completion: Completion, error: BaseException) -> None:
        """A completion was interrupted: recovery finishes it, with what this process knows of it."""
        outcome = _interrupted(completion, error)
        try:
            self._leave(transaction, completion, outcome, interrupted=True)
            self._tell(transaction, outcome)
            transaction.completed(outcome, GlobalState.IN_DOUBT)
        finally:
            self._live.pop(transaction.gtrid, None)
            self._recoverer.wake()
        self._record(transaction, outcome)

    def _record(self, transaction: Transaction, outcome: Outcome) -> None:
        if self._recorder is None:
            return
        if transaction.waits:
            self._recorder.began(transaction.gtrid)
        self._recorder.completed(outcome)

    def _leave(self, transaction: Transaction, completion: Completion, outcome: Outcome, *, interrupted: bool) -> None:
        """Remembers the branches that no scan may find, for recovery to roll them back."""
        branches = outcome.pending
        if outcome.decided is None:
            branches = completion.everybody()
        elif outcome.decided:
            branches = ()  # they are prepared, and decided: the scan finds them
        if not branches and not outcome.pending and not interrupted:
            return
        self._recoverer.leftovers.keep(
            Leftover(
                transaction.gtrid,
                transaction.control,
                branches,
                tuple(dict.fromkeys((*completion.associations, *completion.everybody()))),
                completion.decider.resource if completion.decider is not None else None,
                undecided=outcome.decided is None,
            )
        )

    def _tell(self, transaction: Transaction, outcome: Outcome) -> None:
        because = "; ".join(map(str, outcome.reasons)) or "asked for"
        level = logging.INFO if outcome.verdict is Verdict.ROLLED_BACK else logging.ERROR
        logger.log(level, "%s: %s: %s", transaction, outcome.verdict.value, because)
        for branch in outcome.pending:
            logger.warning("%s: %s on %s is left to recovery", transaction, branch.xid, branch.resource)
        if any(isinstance(reason.said, LogStopped) for reason in outcome.reasons):
            self.log_stopped = True


def _interrupted(completion: Completion, error: BaseException) -> Outcome:
    """The outcome of a completion that was broken off: whatever is prepared is left to recovery."""
    logger.error("%s: completion was interrupted by %s", named(completion.gtrid), type(error).__name__)
    reason = Reason(None, f"its completion was interrupted by {type(error).__name__}: {error}")
    return Outcome(
        completion.gtrid,
        Verdict.UNKNOWN,
        _DECIDED.get(completion.state),
        completion.everybody() if completion.state is GlobalState.ROLLING_BACK else completion.branches,
        completion.heuristics(),
        (*completion.reasons, reason),
    )


_DECIDED: Final = {GlobalState.COMMITTING: True, GlobalState.ROLLING_BACK: False}
"""State in which a completion was broken off → whether it is decided to commit; unknown in any other."""
