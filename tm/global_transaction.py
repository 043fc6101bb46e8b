"""GlobalTransaction: one global transaction as the manager, the executor, the reaper and consumers work with it.

The application holds a `Transaction` (`tm.transaction`), which works on it. Any thread may use it, but only one at a
time: a second one is refused while the first one is inside (`TransactionLock`). The state moves by
`tm.two_phase.states.GLOBAL` only.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from tm.concurrency.transaction_lock import TransactionLock
from tm.errors import InheritedTransaction, ProtocolMisuse, RolledBack, error_of, rolled_back_error
from tm.faults import is_excused
from tm.outcome import Outcome, Reason, Verdict, named
from tm.resources.enlistment import Enlistments, RollbackOnly
from tm.two_phase.states import FINAL, GLOBAL, SUSPENDED, UNDECIDED, GlobalState, GlobalVerb
from xa import ThreadOfControl
from xa.machine import advance
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.concurrency.uninterrupted import UninterruptedCalls
    from tm.concurrency.with_block import WithBlock
    from tm.resources import Resource
    from tm.resources.enlistment import DelistHow, Enlistment
    from tm.two_phase.commit import TwoPhaseCommit
    from tm.two_phase.executor import Executor, Steps
    from xa.state_tables import AssociationState

logger = logging.getLogger("xabridge.tm")

_ACTIVE, _MARKED = GlobalState.ACTIVE, GlobalState.MARKED  # cheap to look up
OVER: Final = FINAL | {GlobalState.COMMITTING}
"""The states in which the application can do nothing with a transaction any more."""

INHERITED: Final = (
    "this process is a fork of the one that has this transaction: only that process completes it, and what becomes of "
    "it is not known here. Don't do its work again because of this error; open a transaction manager after the fork"
)


class _Inherited:
    """What stands for the manager of a transaction in a fork of its process: every use is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        raise InheritedTransaction(INHERITED)


INHERITED_MANAGER: Final[Any] = _Inherited()


class HandlerState(Enum):
    """Why the handler of a consumer's messages can't complete their transaction."""

    TO_HANDLER = "it is completed when the handler has returned or raised"
    MISUSED = "its handler has tried to complete it, so that it can only be rolled back"
    FAILED = "its handler has failed, so that it can only be rolled back"


class TransactionHost(Protocol):
    """The interface of the manager that a transaction uses."""

    executor: Executor
    uninterrupted: UninterruptedCalls

    def resource(self, name: str) -> Resource:
        """The resource `name`; ProtocolMisuse when none is configured under it."""
        ...

    def detach(self, transaction: GlobalTransaction) -> None:
        """Takes the transaction off the calling context, because it is completed or suspended."""
        ...

    def answers_due(self) -> float:
        """The time until which answers that a commit has left may be left."""
        ...


class GlobalTransaction:
    """A global transaction: its state, its enlistments, and its way to an outcome.

    `waits`: it waits for work and has none, so that its rollback is not worth a message. `block` is the `with` block
    that it ends with, in a thread that may be interrupted.
    """

    __slots__ = (
        "_commit",
        "_decider",
        "_left",
        "_reasons",
        "_tells_what_counts",
        "after",
        "before",
        "began_at",
        "block",
        "calls_after",
        "control",
        "deadline",
        "enlisted",
        "expired",
        "gtrid",
        "guard",
        "is_left",
        "leaves",
        "lent",
        "manager",
        "outcome",
        "state",
        "timeout_s",
        "waits",
    )

    def __init__(
        self,
        manager: TransactionHost,
        gtrid: bytes,
        began_at: float,
        timeout_s: float,
        decider: str | None,
        *,
        waits: bool = False,
        block: WithBlock | None = None,
    ) -> None:
        self.manager = manager
        self.gtrid = gtrid
        self.control = ThreadOfControl()
        self.began_at = began_at
        self.timeout_s = timeout_s
        self.deadline = began_at + timeout_s
        self.state = _ACTIVE
        """Its state until its commit or rollback begins, and after that; `status` is its state in between, too."""
        self.outcome: Outcome | None = None
        self.expired = False
        """Whether it was rolled back because it took too long."""
        self.guard = TransactionLock(gtrid, self.control)
        self.enlisted = Enlistments(gtrid, decider)
        self._decider = decider
        self._reasons: list[Reason] = []
        self._commit: TwoPhaseCommit | None = None
        """Its commit or rollback, while that is under way."""
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[Outcome], object]] = []
        self.calls_after = False
        """Whether a caller of commit or rollback calls the callbacks when that is over."""
        self.block = block

        # of a consumer
        self.waits = waits
        self._tells_what_counts = not waits
        """Whether a rollback tells the brokers that it counts for no message; a consumer tells that itself."""
        self.lent: HandlerState | None = None
        """While a handler of a consumer has it: what is said to a call that would complete it."""
        self.leaves = ""
        """The resource whose answers its commit does not wait for."""
        self.is_left = False
        """Whether its commit has left answers, which `finish` waits for."""
        self._left: Steps | None = None
        """Its commit, as long as no one waits for these answers."""

    def __str__(self) -> str:
        return named(self.gtrid)

    @property
    def status(self) -> GlobalState:
        """The state of the transaction."""
        commit = self._commit
        return commit.state if commit is not None else self.state

    @property
    def is_over(self) -> bool:
        """Whether it is completed or being completed, so that the application can do nothing with it any more."""
        return self._commit is not None or self.state in OVER

    @property
    def suspended(self) -> bool:
        """Whether it is suspended."""
        return self.state in SUSPENDED

    @property
    def is_resumable(self) -> bool:
        """Whether a context may resume it: it is suspended, or may have been rolled back while it was."""
        return self.suspended or (self.outcome is not None and self.state is not GlobalState.COMMITTED)

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the enlisted resources, in the order of their enlistment."""
        return self.enlisted.names

    # --- resources ----------------------------------------------------------------------------------------------

    def enlist(self, name: str, *, waits: bool = True) -> Any:
        """Associates the resource, and returns its native interface. WouldWait: without `waits` it can't now."""
        with self.guard:
            if self.state is not _ACTIVE:
                self.check_active("enlist", name)
            resource = self.manager.resource(name)
            try:
                return self.enlisted.enlist(resource) if waits else self.enlisted.enlist_at_once(resource)
            except RollbackOnly as doomed:
                raise self._mark(doomed.reason) from doomed.__cause__

    def delist(self, name: str, how: DelistHow) -> None:
        """Ends or suspends the association with the resource."""
        with self.guard:
            self.check_active("delist", name)
            try:
                self.enlisted.delist(name, how)
            except RollbackOnly as doomed:
                self._mark(doomed.reason)
                if how == "success":
                    raise self._refusal("delist") from doomed.__cause__

    def registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        """For ax_reg: as `Enlistments.registered`."""
        return self.manager.uninterrupted.run(self, lambda: self._registered(resource))

    def _registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        with self.guard:
            self.check_active("register", resource.name)
            return self.enlisted.registered(resource)

    # --- suspend and resume -------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Suspends every association."""
        with self.guard:
            self.check_active("suspend", marked=True)
            for reason in self.enlisted.suspend():
                self._mark(reason)
            self._move(GlobalVerb.SUSPEND)

    def resume(self) -> None:
        """Resumes what `suspend` suspended, unless it was rolled back meanwhile. ProtocolMisuse: it is not suspended.
        RolledBack: a resource could not be resumed."""
        with self.guard:
            if not self.is_resumable:
                raise ProtocolMisuse(f"transaction {self} is not suspended")
            if self.suspended:
                self._move(GlobalVerb.RESUME)
            if self.state is _ACTIVE:
                try:
                    self.enlisted.resume()
                except RollbackOnly as doomed:
                    raise self._mark(doomed.reason) from doomed.__cause__

    # --- rollback-only ------------------------------------------------------------------------------------------

    def set_rollback_only(self, reason: Reason) -> None:
        """From now on it can only be rolled back."""
        with self.guard:
            self.check_active("set rollback-only", marked=True)
            self._mark(reason)

    def mark_if_active(self, reason: Reason) -> None:
        """The same, where it is not completed already."""
        with self.guard:
            if self.state in UNDECIDED:
                self._mark(reason)

    def refused(self, *reasons: Reason) -> RolledBack:
        """The exception of a commit that is refused for these, beside those for which it can only be rolled back."""
        return rolled_back_error(
            Outcome(self.gtrid, Verdict.ROLLED_BACK, decided=False, reasons=(*self._reasons, *reasons))
        )

    def _move(self, verb: GlobalVerb) -> None:
        self.state = advance(GLOBAL, self.state, verb)

    def _mark(self, reason: Reason) -> RolledBack:
        self._move(GlobalVerb.MARK)
        self._reasons.append(reason)
        return self._refusal("go on")

    def _refusal(self, what: str) -> RolledBack:
        why = "; ".join(map(str, self._reasons))
        refusal = RolledBack(f"transaction {self} can't {what}, it can only be rolled back: {why}")
        refusal.__cause__ = next((one.said for one in self._reasons if isinstance(one.said, BaseException)), None)
        return refusal

    def check_active(self, what: str, name: str = "", *, marked: bool = False, suspended: bool = False) -> None:
        """Raises what keeps the application from `what` in this state; allowed are those that are rollback-only, or
        suspended, where the flags say so."""
        state = self.state
        if state is _ACTIVE:
            return
        what = f"{what} {name}".rstrip()
        if state in SUSPENDED and not suspended:
            raise ProtocolMisuse(f"transaction {self} is suspended: resume it before you {what}")
        if state is GlobalState.SUSPENDED or (marked and state in UNDECIDED):
            return
        if state in UNDECIDED:
            raise self._refusal(what)
        if self.outcome is not None and self.outcome.verdict is Verdict.ROLLED_BACK:
            error = error_of(self.outcome)
            if error is not None:
                raise error
        raise ProtocolMisuse(f"transaction {self} is {state.value}: too late to {what}")

    # --- completion ---------------------------------------------------------------------------------------------

    def begin_commit(self, stops_at_decision: bool) -> Steps:
        """Begins to commit; rolls back what is rollback-only. One that has callbacks to call leaves no answers: they
        would be called in the midst of the thread's next transaction."""
        if self.state is not _ACTIVE:
            self._check_completable()
        if self._decider is not None:
            self._enlist_decider()
        if self.state is _MARKED:
            self._excuse(None)
            return self._begin_rollback(*self._reasons)
        ports = self.manager.executor.ports
        leaves = "" if self.after else self.leaves
        commit = self.enlisted.two_phase_commit(ports, self.state, stops_at_decision=stops_at_decision, leaves=leaves)
        self._commit = commit
        return commit, commit.commit()

    def _begin_rollback(self, *reasons: Reason) -> Steps:
        broken = self._commit
        commit = self.enlisted.two_phase_commit(self.manager.executor.ports, self.state)
        if broken is not None and broken.asked:  # a commit that failed without an outcome; its requests may be late
            commit.asked = commit.uncertain = True
        self._commit = commit
        return commit, commit.rollback(*reasons)

    def begin_wanted_rollback(self, error: BaseException | None = None) -> Steps | None:
        """Begins to roll back; None: that is done already. `error`: what it is rolled back for."""
        if self.expired and self.state is GlobalState.ROLLED_BACK:
            return None
        self.check_active("roll back", marked=True, suspended=True)
        if error is not None or self._reasons:
            self._excuse(error)
        return self._begin_rollback(*self._reasons)

    def _excuse(self, error: BaseException | None) -> None:
        """What was received is not counted as delivered in vain, where a resource was down or another transaction in
        the way: a message that comes back because of that is not to become a dead letter."""
        if self._tells_what_counts and is_excused(error, self._reasons):
            self.enlisted.excuse()

    def expire(self, now: float) -> bool:
        """For the reaper: rolls back if the deadline has passed and nothing is prepared. Waits for answers that were
        left for so long. Whether nothing is left to do."""
        if now < self.deadline:
            return False
        if not self.guard.enter_as_reaper():
            return False  # in use: its own thread is completing it, or the reaper comes again

        try:
            if self._left is not None:
                self.manager.executor.finish(self, nullcontext())
                return True
            if self.state not in UNDECIDED:
                return True
            reason = Reason(None, TimeoutError(f"it took longer than its {self.timeout_s:g} s"))
            logger.warning("%s: %s; rolling back", self, reason, extra=about(transaction=self))
            self.expired = True
            self.manager.executor.run(self, nullcontext(), partial(self._begin_rollback, *self._reasons, reason))
        finally:
            self.guard.__exit__()
        return True

    def forked(self) -> None:
        """This process is a fork of the one that has the transaction. So nothing is asked or done here, and no callback
        is called."""
        self.manager = INHERITED_MANAGER
        self.guard = TransactionLock(self.gtrid, self.control)
        self.before, self.after = [], []
        self.block = None

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that has it."""
        return self.manager is INHERITED_MANAGER

    def check_process(self) -> None:
        """InheritedTransaction: this process is a fork of the one that has it."""
        if self.manager is INHERITED_MANAGER:
            raise InheritedTransaction(INHERITED)

    def end_if_left(self) -> bool:
        """Rolls back a transaction whose `with` block an interruption has left before `__exit__` could begin; whether
        it did. No one else ends such a transaction."""
        block = self.block
        if block is None or self.is_over or not block.was_left():
            return False
        try:
            executor = self.manager.executor
            self.manager.uninterrupted.run(self, partial(executor.run, self, self.guard, self._begin_rollback_of_left))
        except ProtocolMisuse:  # another thread is inside
            return False
        return True

    def _begin_rollback_of_left(self) -> Steps | None:
        if self.state not in UNDECIDED:
            return None
        return self._begin_rollback(*self._reasons, Reason(None, "its block was left by an interruption"))

    def _enlist_decider(self) -> None:
        """The resource that decides takes part, if only with the decision, when two other branches need one."""
        name = self._decider
        if name is None or name in self.enlisted or self.state is not GlobalState.ACTIVE:
            return
        if self.enlisted.branches > 1:
            try:
                self.enlisted.enlist(self.manager.resource(name))
            except RollbackOnly as doomed:
                self._mark(doomed.reason)

    def _check_completable(self) -> None:
        if self.outcome is not None:
            error = error_of(self.outcome)
            if isinstance(error, RolledBack):
                raise error
        self.check_active("commit", marked=True)

    def finish(self) -> None:
        """For a consumer: waits for the answers that the commit has left, and raises what `commit` would have
        raised."""
        self.manager.executor.finish(self, self.guard)
        self.raise_outcome(asked_for=Verdict.COMMITTED)

    def leave_answers(self, steps: Steps) -> None:
        """Notes, for the executor, that the decision is durable and every branch was asked to commit. The reaper waits
        for the answers, where no one else has in time."""
        self.state = GlobalState.COMMITTING
        self._left = steps
        self.is_left = True
        self.deadline = self.manager.answers_due()

    def take_left_answers(self) -> Steps | None:
        """For the executor: what `leave_answers` was given; None where that was taken already."""
        left, self._left = self._left, None
        return left

    def goes_on(self) -> None:
        """For the executor: the decision is durable, and the rest is done in the background."""
        self.state = GlobalState.COMMITTING

    def completed(self, outcome: Outcome, state: GlobalState) -> None:
        """For the executor: commit or rollback is over."""
        self.state = state
        self._commit = None
        self.outcome = outcome
        self.enlisted.forget_sessions()
        self.block = None
        if not self.calls_after:
            self.call_after()

    def call_after(self) -> None:
        """Calls the callbacks that have not been called yet."""
        outcome = self.outcome
        while self.after and outcome is not None:
            try:
                callback = self.after.pop(0)
            except IndexError:  # another thread has just called the last one
                return
            try:
                callback(outcome)
            except Exception:
                logger.exception("%s: a callback after completion failed", self)

    def raise_outcome(self, asked_for: Verdict) -> None:
        """Raises what says that it came to another outcome."""
        outcome = self.outcome
        if outcome is None or outcome.verdict is asked_for:
            return
        error = error_of(outcome)
        if error is not None:
            raise error
