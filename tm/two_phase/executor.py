"""Executor: runs two-phase commits to their end, and reports the results to the transaction, the log lines, recovery.

A commit runs in the thread that asks for it. One that is asked to return at the decision goes on behind that in a
thread of the executor, if there is room. One that leaves answers is finished by the first caller that asks for it.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tm.log import LogStopped
from tm.outcome import Outcome, Reason, Verdict, named
from tm.two_phase.states import GlobalState
from xa import switch_control
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from contextlib import AbstractContextManager

    from tm.log import Branch
    from tm.two_phase.commit import TwoPhaseCommit
    from tm.two_phase.ports import Ports
    from xa import ThreadOfControl

    Steps: TypeAlias = tuple[TwoPhaseCommit, Coroutine[None, None, Outcome]]
    """A commit, and its coroutine `commit` or `rollback`."""

logger = logging.getLogger("xabridge.tm")

_COMMITTED: Final = Verdict.COMMITTED
WORKERS: Final = 4
"""Threads that go on behind the commit point of transactions that wait for their decision only."""
BACKLOG: Final = 256
"""So many transactions are with the workers, at work or waiting for one. Who comes while there is no room goes on by
itself, and thereby slower: what waits stays bounded, and no commit waits for another."""


class LiveTransaction(Protocol):
    """The interface of a transaction that the executor uses."""

    gtrid: bytes
    control: ThreadOfControl
    """The thread of control in which its branches were made."""
    waits: bool
    """Whether it waits for work and has none, so that its rollback is not worth a message."""

    def leave_answers(self, steps: Steps) -> None:
        """The decision is durable, and every branch was asked to commit; somebody calls `Executor.finish` for the
        answers."""
        ...

    def take_left_answers(self) -> Steps | None:
        """What `leave_answers` was given; None where that was taken already."""
        ...

    def goes_on(self) -> None:
        """The decision is durable, and the rest is done in the background."""
        ...

    def completed(self, outcome: Outcome, state: GlobalState) -> None:
        """Commit or rollback is over."""
        ...


class LiveTransactions(Protocol):
    """The transactions of a manager that have not ended, by gtrid."""

    def pop(self, gtrid: bytes, default: None, /) -> object:
        """Drops one that has ended."""
        ...


class EndedTransactions(Protocol):
    """What is known of the transactions that have ended; see `tm.sequences`."""

    def over(self, gtrid: bytes, /) -> None:
        """The transaction has no branch anywhere, and never will have one again."""
        ...

    def doubt(self, gtrid: bytes, resources: Iterable[str], /) -> None:
        """A branch of it may be left at these resources."""
        ...


class CompletionRecording(Protocol):
    """The interface of telemetry that the executor uses; see `tm.recording`."""

    def began(self, gtrid: bytes) -> None:
        """A transaction has begun."""
        ...

    def completed(self, outcome: Outcome) -> None:
        """A transaction has come to its outcome."""
        ...


@dataclass(slots=True)
class UnfinishedTransaction:
    """A transaction whose completion has left branches that no scan may find. `branches` are to be rolled back in the
    thread of control `control`. `touched` are its branches under the names of every resource that worked in them: their
    operations may have to be collected, and their associations ended. `undecided`: a decision may have been taken, in
    `decider` or, without one, in the log."""

    gtrid: bytes
    control: ThreadOfControl
    branches: tuple[Branch, ...]
    touched: tuple[Branch, ...]
    decider: str | None
    undecided: bool


class Executor:
    """For the transactions of one manager; `live` are those that have not ended, and `ended` hears of those that have.
    Their commits work through `ports`.
    Recovery is given what a completion has left (`leave`), and asked for a pass soon (`wake`)."""

    def __init__(
        self,
        live: LiveTransactions,
        ended: EndedTransactions,
        ports: Ports,
        leave: Callable[[UnfinishedTransaction], None],
        wake: Callable[[], None],
        recording: CompletionRecording | None,
    ) -> None:
        self.ports = ports
        self._live = live
        self._ended = ended
        self._leave_to_recovery = leave
        self._wake_recovery = wake
        self._recording = recording
        self._background = ThreadPoolExecutor(WORKERS, thread_name_prefix="xabridge-completion")
        self._room = threading.BoundedSemaphore(BACKLOG)
        self.log_stopped = False
        """Whether the log answered nothing any more; reset by the caller that has asked it again."""

    def run(
        self, transaction: LiveTransaction, guard: AbstractContextManager[None], begin: Callable[[], Steps | None]
    ) -> bool:
        """Runs what `begin` returns, which is the coroutine of the transaction's `commit` or `rollback` (None: there is
        nothing to do), all of it under the guard. The transaction is live until its end.

        True: the commit stopped at its decision, as it was asked to. It goes on in the background; where there was no
        room it has gone on here. This caller does not get the result then. Or it has left answers, which the
        transaction keeps for `finish`.
        """
        decided = False
        with guard:
            begun = begin()
            if begun is None:
                return False

            commit, steps = begun
            try:
                steps.send(None)  # returns where the steps stop at their decision; StopIteration: they are at their end
                decided = True
                if commit.leaves:
                    transaction.leave_answers(begun)
                elif not self._handed_over(transaction, commit, steps):
                    steps.send(None)
            except StopIteration as stop:
                self._completed(transaction, commit, stop.value)
            except BaseException as error:
                self._broken_off(transaction, commit, error)
                raise
        return decided

    def finish(self, transaction: LiveTransaction, guard: AbstractContextManager[None]) -> None:
        """Waits for the answers that the commit of the transaction has left, if no other caller has."""
        with guard:
            left = transaction.take_left_answers()
            if left is None:
                return
            commit, steps = left
            try:
                steps.send(None)
            except StopIteration as stop:
                self._completed(transaction, commit, stop.value)
            except BaseException as error:
                self._broken_off(transaction, commit, error)
                raise

    def _handed_over(
        self, transaction: LiveTransaction, commit: TwoPhaseCommit, steps: Coroutine[None, None, Outcome]
    ) -> bool:
        """Whether a thread of ours goes on with the steps."""
        if not self._room.acquire(blocking=False):
            return False
        transaction.goes_on()
        try:
            self._background.submit(self._go_on, transaction, commit, steps)
        except RuntimeError:  # after `stop`
            self._room.release()
            return False
        return True

    def _go_on(
        self, transaction: LiveTransaction, commit: TwoPhaseCommit, steps: Coroutine[None, None, Outcome]
    ) -> None:
        switch_control(transaction.control)
        try:
            steps.send(None)
        except StopIteration as stop:
            self._completed(transaction, commit, stop.value)
        except BaseException as error:
            logger.exception("%s: its completion in the background failed; recovery completes it", transaction)
            self._broken_off(transaction, commit, error)
        finally:
            switch_control(None)
            self._room.release()

    def stop(self) -> None:
        """Waits for what is done in the background; nothing more is begun there."""
        self._background.shutdown(wait=True)

    def _completed(self, transaction: LiveTransaction, commit: TwoPhaseCommit, outcome: Outcome) -> None:
        idle = transaction.waits and outcome.verdict is Verdict.ROLLED_BACK and not (outcome.reasons or outcome.pending)
        try:
            if outcome.verdict is not _COMMITTED:
                self._leave(transaction, commit, outcome, interrupted=False)
                if not idle:
                    self._tell(transaction, outcome)
            elif logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s: committed", transaction, extra=about(transaction=transaction))
            transaction.completed(outcome, commit.state)
        finally:
            self._live.pop(transaction.gtrid, None)
            if commit.has_left_nothing(outcome):
                self._ended.over(transaction.gtrid)
            else:
                self._doubt(transaction, commit)

        if not idle and self._recording is not None:
            self._record(self._recording, transaction, outcome)
        if outcome.pending:
            self._wake_recovery()

    def _broken_off(self, transaction: LiveTransaction, commit: TwoPhaseCommit, error: BaseException) -> None:
        """A completion was interrupted: recovery finishes it, with what this process knows of it."""
        outcome = _interrupted(commit, error)
        try:
            self._leave(transaction, commit, outcome, interrupted=True)
            self._tell(transaction, outcome)
            transaction.completed(outcome, GlobalState.IN_DOUBT)
        finally:
            self._live.pop(transaction.gtrid, None)
            self._doubt(transaction, commit)
            self._wake_recovery()
        if self._recording is not None:
            self._record(self._recording, transaction, outcome)

    def _doubt(self, transaction: LiveTransaction, commit: TwoPhaseCommit) -> None:
        self._ended.doubt(transaction.gtrid, {branch.resource for branch in commit.everybody()})

    @staticmethod
    def _record(recording: CompletionRecording, transaction: LiveTransaction, outcome: Outcome) -> None:
        if transaction.waits:
            recording.began(transaction.gtrid)
        recording.completed(outcome)

    def _leave(
        self, transaction: LiveTransaction, commit: TwoPhaseCommit, outcome: Outcome, *, interrupted: bool
    ) -> None:
        """Remembers the branches that no scan may find, for recovery to roll them back."""
        branches = outcome.pending
        if outcome.decided is None:
            branches = commit.everybody()
        elif outcome.decided:
            branches = ()  # they are prepared, and decided: the scan finds them
        if not branches and not outcome.pending and not interrupted:
            return

        self._leave_to_recovery(
            UnfinishedTransaction(
                transaction.gtrid,
                transaction.control,
                branches,
                tuple(dict.fromkeys((*commit.associations, *commit.everybody()))),
                commit.decider.resource if commit.decider is not None else None,
                undecided=outcome.decided is None,
            )
        )

    def _tell(self, transaction: LiveTransaction, outcome: Outcome) -> None:
        because = "; ".join(map(str, outcome.reasons)) or "asked for"
        level = logging.ERROR
        if outcome.verdict is Verdict.ROLLED_BACK:
            level = logging.INFO if outcome.reasons else logging.DEBUG
        extra = about(transaction=transaction)
        logger.log(level, "%s: %s: %s", transaction, outcome.verdict.value, because, extra=extra)
        for branch in outcome.pending:
            extra = about(transaction=transaction, branch=branch.xid, resource=branch.resource)
            logger.warning("%s: recovery will finish %s on %s", transaction, branch.xid, branch.resource, extra=extra)
        if any(isinstance(reason.said, LogStopped) for reason in outcome.reasons):
            self.log_stopped = True


def _interrupted(commit: TwoPhaseCommit, error: BaseException) -> Outcome:
    """The outcome of a completion that was broken off: whatever is prepared is left to recovery."""
    name = named(commit.gtrid)
    logger.error("%s: completion was interrupted by %s", name, type(error).__name__, extra=about(transaction=name))
    reason = Reason(None, f"its completion was interrupted by {type(error).__name__}: {error}")
    return Outcome(
        commit.gtrid,
        Verdict.UNKNOWN,
        _DECIDED.get(commit.state),
        commit.everybody() if commit.state is GlobalState.ROLLING_BACK else commit.branches,
        commit.heuristics(),
        (*commit.reasons, reason),
    )


_DECIDED: Final = {GlobalState.COMMITTING: True, GlobalState.ROLLING_BACK: False}
"""State in which a completion was broken off → whether it is decided to commit; unknown in any other."""
