"""Transaction: one global transaction as the application holds it.

It belongs to the thread of control that began it. Any thread may use it, but only one at a time: a second one is
refused while the first one is inside (`TransactionLock`). The state moves by `tm.two_phase.states.GLOBAL` only.
"""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext, suppress
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, Protocol

from tm.concurrency.deferred_signals import interruptible
from tm.concurrency.transaction_lock import TransactionLock
from tm.concurrency.uninterrupted import StillGoingOn, finish_in_thread
from tm.concurrency.with_block import WithBlock
from tm.errors import ManagerUnusable, ProtocolMisuse, RolledBack, error_of
from tm.outcome import Outcome, Reason, Verdict, named
from tm.resources.enlistment import Enlistments, RollbackOnly, WouldWait
from tm.two_phase.states import FINAL, GLOBAL, GlobalState, GlobalVerb
from xa import ThreadOfControl, Xid
from xa.machine import advance
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tm.concurrency.deferred_signals import DeferredSignals
    from tm.concurrency.uninterrupted import UninterruptedCalls
    from tm.resources import Resource
    from tm.resources.enlistment import DelistHow, Enlistment
    from tm.two_phase.commit import TwoPhaseCommit
    from tm.two_phase.executor import Executor, Steps
    from xa.tables import AssociationState

logger = logging.getLogger("xabridge.tm")

_ACTIVE, _MARKED, _COMMITTED = GlobalState.ACTIVE, GlobalState.MARKED, Verdict.COMMITTED  # cheap to look up
CLOSED_S: Final = 2.0
"""How long the close of a generator waits for the rollback of its transaction."""
_OVER: Final = FINAL | {GlobalState.COMMITTING}
"""The states in which the application can do nothing with a transaction any more."""


INHERITED: Final = (
    "this process is a fork of the one that has this transaction: only that process completes it, and what becomes of "
    "it is not known here. Don't do its work again because of this error; open a transaction manager after the fork"
)


class _Inherited:
    """What stands for the manager of a transaction in a fork of its process: every use is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ManagerUnusable(INHERITED)


_INHERITED: Final[Any] = _Inherited()


class Lent(Enum):
    """Why the handler of a consumer's messages can't complete their transaction."""

    TO_HANDLER = "it is completed when the handler has returned or raised"
    MISUSED = "its handler has tried to complete it, so that it can only be rolled back"
    FAILED = "its handler has failed, so that it can only be rolled back"


if sys.version_info >= (3, 14):  # annotations are evaluated when they are asked for, and names may be missing then
    from annotationlib import Format, get_annotations

    def _annotations(of: type) -> Iterable[str]:
        return get_annotations(of, format=Format.FORWARDREF)

else:

    def _annotations(of: type) -> Iterable[str]:
        annotations: Mapping[str, object] = vars(of).get("__annotations__", {})
        return annotations


class TransactionHost(Protocol):
    """The interface of the manager that a transaction uses."""

    def resource(self, name: str) -> Resource:
        """The resource `name`; ProtocolMisuse when none is configured under it."""
        ...

    @property
    def executor(self) -> Executor:
        """The executor of commits and rollbacks."""
        ...

    def detach(self, transaction: Transaction) -> None:
        """Takes the transaction off the calling context, because it is completed or suspended."""
        ...

    def answers_due(self) -> float:
        """The time until which answers that a commit has left may be left."""
        ...

    @property
    def uninterrupted(self) -> UninterruptedCalls:
        """The runner for code that no signal handler may interrupt."""
        ...


class Transaction:
    """A global transaction. `with`: commits at the end of the block, rolls back when an exception leaves it.

    `tx["shop"]` is the native interface of the resource `shop`. An application that wants its types says them in a
    class of its own, which it gives to its manager (`TransactionManager(…, transaction=Shop)`):

        class Shop(Transaction):
            shop: Database
            broker: Session

    `tx.shop` is `tx["shop"]` then, and an editor and a type checker know what it is.
    """

    annotated: ClassVar[tuple[str, ...]] = ()
    """The names of the resources that the class has annotations for."""

    __slots__ = (
        "_after",
        "_before",
        "_block",
        "_calls_after",
        "_commit",
        "_decider",
        "_enlisted",
        "_guard",
        "_left",
        "_manager",
        "_reasons",
        "_state",
        "began_at",
        "control",
        "deadline",
        "entered_span",
        "expired",
        "gtrid",
        "is_left",
        "leaves",
        "lent",
        "outcome",
        "outer",
        "outer_control",
        "suspended",
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
    ) -> None:
        self._manager = manager
        self.gtrid = gtrid
        self.control = ThreadOfControl()
        self.began_at = began_at
        self.timeout_s = timeout_s
        self.deadline = began_at + timeout_s
        self.outcome: Outcome | None = None
        self.outer: Transaction | None = None
        self.entered_span: Any = None
        """The span of this transaction while it is current, where there is telemetry."""
        self.outer_control: ThreadOfControl | None = None
        self.suspended = False
        self.expired = False
        self.waits = False
        """Whether it waits for work and has none, so that its rollback is not worth a message."""
        self.leaves = ""
        """The resource, of a consumer, whose answers to the commit the end of the block does not wait for."""
        self.lent: Lent | None = None
        """While a handler of a consumer has it: what is said to a call that would complete it."""
        self._decider = decider
        self._state = _ACTIVE
        self._calls_after = False
        """Whether a caller of commit or rollback calls the callbacks when that is over."""
        self._guard = TransactionLock(gtrid, self.control)
        self._enlisted = Enlistments(gtrid, decider)
        self._commit: TwoPhaseCommit | None = None
        """Its commit or rollback, while that is under way."""
        self.is_left = False
        """Whether its commit has left answers, which `finish` waits for."""
        self._left: Steps | None = None
        """Its commit, as long as nobody waits for these answers."""
        self._block: WithBlock | None = None
        """The `with` block that it belongs to, in a thread that may be interrupted."""
        self._reasons: list[Reason] = []
        self._before: list[Callable[[], object]] = []
        self._after: list[Callable[[Outcome], object]] = []

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        names = [name for name in _annotations(cls) if not name.startswith("_") and name not in vars(cls)]
        for name in names:
            if (hasattr(cls.__base__, name) and name not in cls.annotated) or name in Transaction.__slots__:
                raise TypeError(
                    f"{cls.__qualname__}.{name}: a transaction has a {name} of its own; use tx[{name!r}], or give the "
                    "resource another name"
                )
            setattr(cls, name, property(itemgetter(name), doc=f"The native interface of the resource {name}."))
        cls.annotated = (*cls.annotated, *names)

    def __repr__(self) -> str:
        return f"<Transaction {self} {self.status.value}>"

    def __str__(self) -> str:
        return named(self.gtrid)

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def status(self) -> GlobalState:
        """The state of the transaction."""
        commit = self._commit
        return commit.state if commit is not None else self._state

    @property
    def is_over(self) -> bool:
        """Whether it is completed or being completed, so that the application can do nothing with it any more."""
        return self._commit is not None or self._state in _OVER

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the enlisted resources, in the order of their enlistment."""
        return self._enlisted.names

    def xid(self, name: str) -> Xid:
        """The xid of the branch that the resource `name` has in this transaction; KeyError when it has none."""
        return self._enlisted[name].branch.xid

    # --- resources ------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The native interface of the resource `name`, which is enlisted if it is not yet."""
        session = self._enlisted.session(name)
        if session is not None and self._state is GlobalState.ACTIVE:
            return session
        return self.enlist(name)

    def enlist(self, name: str) -> Any:
        """Makes the work that is done through the returned native interface part of this transaction.

        To enlist again resumes a suspended association, and joins the branch of an ended one. RolledBack: the resource
        could not take part, and the transaction is rollback-only. ProtocolMisuse: the transaction is not active.
        """
        if interruptible():
            signals = self._manager.uninterrupted.signals(self)
            try:
                signals.begin()
                return self._enlist(name)
            finally:
                signals.end()
        return self._enlist(name)

    def _enlist(self, name: str, *, waits: bool = True) -> Any:
        with self._guard:
            if self._state is not _ACTIVE or self.suspended:
                self._check_active("enlist", name)
            resource = self._manager.resource(name)
            try:
                return self._enlisted.enlist(resource) if waits else self._enlisted.enlist_at_once(resource)
            except RollbackOnly as doomed:
                raise self._mark(doomed.reason) from doomed.__cause__

    async def aenlist(self, name: str) -> Any:
        """`enlist` for tasks: where it may have to wait, in a worker thread. If the task is cancelled, it is finished
        first."""
        if not self._guard.is_held:
            with suppress(WouldWait):
                return self._manager.uninterrupted.run(self, partial(self._enlist, name, waits=False))
        return await finish_in_thread(lambda: self.enlist(name))

    def delist(self, name: str, how: DelistHow = "success") -> None:
        """Ends the association with a resource ("success", "fail"), or suspends it ("suspend"). "fail" makes the
        transaction rollback-only. So does an error, which raises RolledBack if `how` is "success"."""
        self._manager.uninterrupted.run(self, lambda: self._delist(name, how))

    def _delist(self, name: str, how: DelistHow) -> None:
        with self._guard:
            self._check_active("delist", name)
            try:
                self._enlisted.delist(name, how)
            except RollbackOnly as doomed:
                self._mark(doomed.reason)
                if how == "success":
                    raise self._refusal("delist") from doomed.__cause__

    def registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        """For ax_reg: as `Enlistments.registered`."""
        return self._manager.uninterrupted.run(self, lambda: self._registered(resource))

    def _registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        with self._guard:
            self._check_active("register", resource.name)
            return self._enlisted.registered(resource)

    # --- suspend and resume -----------------------------------------------------------------------------------

    def suspend_associations(self) -> None:
        """Suspends every association, for `TransactionManager.suspend`."""
        self._manager.uninterrupted.run(self, self._suspend)

    def _suspend(self) -> None:
        with self._guard:
            self._check_active("suspend", marked=True)
            for reason in self._enlisted.suspend():
                self._mark(reason)
            self.suspended = True

    def resume_associations(self) -> None:
        """Resumes what `suspend_associations` suspended. ProtocolMisuse: it is not suspended. RolledBack: a
        resource could not be resumed."""
        self._manager.uninterrupted.run(self, self._resume)

    def _resume(self) -> None:
        with self._guard:
            if not self.suspended:
                raise ProtocolMisuse(f"transaction {self} is not suspended")
            self.suspended = False
            if self._state is GlobalState.ACTIVE:
                try:
                    self._enlisted.resume()
                except RollbackOnly as doomed:
                    raise self._mark(doomed.reason) from doomed.__cause__

    # --- marks and synchronizations ---------------------------------------------------------------------------

    def set_rollback_only(self, reason: str = "the application asked for it") -> None:
        """From now on the transaction can only be rolled back."""
        self._manager.uninterrupted.run(self, lambda: self._set_rollback_only(Reason(None, reason)))

    def _set_rollback_only(self, reason: Reason) -> None:
        with self._guard:
            self._check_active("set rollback-only", marked=True)
            self._mark(reason)

    def register_synchronization(
        self,
        before: Callable[[], object] | None = None,
        after: Callable[[Outcome], object] | None = None,
    ) -> None:
        """Calls `before` when commit is asked for, while work is still possible; an exception in it makes the
        transaction rollback-only. Calls `after` with the outcome; an exception in it is logged."""
        self._check_active("register a synchronization")
        if self._manager is _INHERITED:
            raise ManagerUnusable(INHERITED)
        if before is not None:
            self._before.append(before)
        if after is not None:
            self._after.append(after)

    def _mark(self, reason: Reason) -> RolledBack:
        self._state = advance(GLOBAL, self._state, GlobalVerb.MARK)
        self._reasons.append(reason)
        return self._refusal("go on")

    def _refusal(self, what: str) -> RolledBack:
        why = "; ".join(map(str, self._reasons))
        refusal = RolledBack(f"transaction {self} can't {what}, it can only be rolled back: {why}")
        refusal.__cause__ = next((one.said for one in self._reasons if isinstance(one.said, BaseException)), None)
        return refusal

    def _check_active(self, what: str, name: str = "", *, marked: bool = False, suspended: bool = False) -> None:
        state = self._state
        if state is GlobalState.ACTIVE and not self.suspended:
            return
        what = f"{what} {name}".rstrip()
        if self.suspended and not suspended:
            raise ProtocolMisuse(f"transaction {self} is suspended: resume it before you {what}")
        if state is GlobalState.ACTIVE or (marked and state is GlobalState.MARKED):
            return
        if state is GlobalState.MARKED:
            raise self._refusal(what)
        if self.outcome is not None and self.outcome.verdict is Verdict.ROLLED_BACK:
            error = error_of(self.outcome)
            if error is not None:
                raise error
        raise ProtocolMisuse(f"transaction {self} is {state.value}: too late to {what}")

    # --- completion -------------------------------------------------------------------------------------------

    def commit(self, *, wait: Literal["completed", "logged"] = "completed", leaves: str = "") -> None:
        """Commits. Returns when everything is committed; raises one of `tm.errors` otherwise.

        `wait="logged"` returns when the decision is durable; the branches are told in the background, or before it
        returns where too many transactions are there already. What comes of that is in the log and in `outcome`.

        `leaves`, for a consumer: returns when the decision is durable, every branch was told, and all have answered but
        those of this resource. `is_left` says whether that is so; `finish` waits for the rest. A transaction that has
        callbacks to call leaves no answers: they would be called in the midst of the thread's next transaction.
        """
        if self.lent is not None:
            self._refuse_to_borrower("commit")
        if self._before and self._state is _ACTIVE and not self.suspended:
            self._run_before()
        if self._after:
            leaves = ""
        stops_at_decision = wait == "logged"
        signals = self._manager.uninterrupted.signals(self)
        try:
            signals.begin()
            self._calls_after = True
            stopped = self._manager.executor.run(
                self, self._guard, lambda: self._begin_commit(stops_at_decision, leaves)
            )
        finally:
            self._leave(signals)
        if not stopped:
            self._raise_outcome(asked_for=_COMMITTED)

    def _begin_commit(self, stops_at_decision: bool, leaves: str) -> Steps:
        if self._state is not _ACTIVE or self.suspended:
            self._check_completable("commit")
        if self._decider is not None:
            self._enlist_decider()
        if self._state is _MARKED:
            return self._begin_rollback(*self._reasons)
        ports = self._manager.executor.ports
        commit = self._enlisted.two_phase_commit(ports, self._state, stops_at_decision=stops_at_decision, leaves=leaves)
        self._commit = commit
        return commit, commit.commit()

    def _begin_rollback(self, *reasons: Reason) -> Steps:
        commit = self._commit = self._enlisted.two_phase_commit(self._manager.executor.ports, self._state)
        return commit, commit.rollback(*reasons)

    def rollback(self) -> None:
        """Rolls back, whether suspended or not; returns when that is done. Raises only if a resource has committed on
        its own. A transaction that was rolled back already because it took too long is as asked."""
        if self.lent is not None and self.lent is not Lent.FAILED:
            self._refuse_to_borrower("rollback")
        signals = self._manager.uninterrupted.signals(self)
        try:
            signals.begin()
            self._calls_after = True
            self._manager.executor.run(self, self._guard, self._begin_wanted_rollback)
        finally:
            self._leave(signals)
        self._raise_outcome(asked_for=Verdict.ROLLED_BACK)

    def _begin_wanted_rollback(self) -> Steps | None:
        if self.expired and self._state is GlobalState.ROLLED_BACK:
            return None
        self._check_active("roll back", marked=True, suspended=True)
        return self._begin_rollback(*self._reasons)

    def _refuse_to_borrower(self, what: str) -> NoReturn:
        """The consumer completes this transaction, with the consumption of all messages in it."""
        lent = self.lent
        if lent is Lent.TO_HANDLER:
            self.lent = Lent.MISUSED
        why = "" if lent is None else lent.value
        raise ProtocolMisuse(
            f"no {what} in a handler: the consumer completes transaction {self}, with all messages in it; {why}. "
            "Raise, or call set_rollback_only(), where the messages are not handled"
        )

    def _leave(self, signals: DeferredSignals) -> None:
        """After commit or rollback: signals are handled, and a transaction that is over calls its callbacks, which may
        be interrupted, and is taken off the calling context."""
        self._calls_after = False
        try:
            signals.end()
        finally:
            if self._state in _OVER:
                self._call_after()
                self._manager.detach(self)

    async def acommit(self) -> None:
        """`commit` for tasks: it waits in a worker thread. If the task is cancelled, it is finished first."""
        if self.lent is not None:
            self._refuse_to_borrower("commit")
        try:
            await finish_in_thread(self.commit)
        finally:
            self._manager.detach(self)

    async def arollback(self) -> None:
        """`rollback` for tasks: it waits in a worker thread. If the task is cancelled, it is finished first."""
        if self.lent is not None and self.lent is not Lent.FAILED:
            self._refuse_to_borrower("rollback")
        try:
            await finish_in_thread(self.rollback)
        finally:
            self._manager.detach(self)

    def expire(self, now: float) -> bool:
        """For the reaper: rolls back if the deadline has passed and nothing is prepared. Waits for answers that were
        left for so long. Whether nothing is left to do."""
        if now < self.deadline:
            return False
        if not self._guard.enter_as_reaper():
            return False  # in use: its own thread is completing it, or the reaper comes again
        try:
            if self._left is not None:
                self._manager.executor.finish(self, nullcontext())
                return True
            if self._state not in (GlobalState.ACTIVE, GlobalState.MARKED):
                return True
            reason = Reason(None, TimeoutError(f"it took longer than its {self.timeout_s:g} s"))
            logger.warning("%s: %s; rolling back", self, reason, extra=about(transaction=self))
            self.expired = True
            self._manager.executor.run(self, nullcontext(), partial(self._begin_rollback, *self._reasons, reason))
        finally:
            self._guard.__exit__()
        return True

    def forked(self) -> None:
        """This process is a fork of the one that has the transaction. So nothing is asked or done here, and no callback
        is called."""
        self._manager = _INHERITED
        self._guard = TransactionLock(self.gtrid, self.control)
        self._before, self._after = [], []
        self._block = None

    def entered_by(self, block: WithBlock | None) -> None:
        """For `begin`: the transaction ends with this `with` block, which an interruption may leave."""
        self._block = block

    def end_if_left(self) -> bool:
        """Rolls back a transaction whose `with` block an interruption has left before `__exit__` could begin; whether
        it did. Nobody else ends such a transaction."""
        block = self._block
        if block is None or self.is_over or not block.was_left():
            return False
        try:
            executor = self._manager.executor
            self._manager.uninterrupted.run(
                self, partial(executor.run, self, self._guard, self._begin_rollback_of_left)
            )
        except ProtocolMisuse:  # another thread is inside
            return False
        return True

    def _begin_rollback_of_left(self) -> Steps | None:
        if self._state not in (_ACTIVE, _MARKED):
            return None
        return self._begin_rollback(*self._reasons, Reason(None, "its block was left by an interruption"))

    def _enlist_decider(self) -> None:
        """The resource that decides takes part, if only with the decision, when two other branches need one."""
        name = self._decider
        if name is None or name in self._enlisted or self._state is not GlobalState.ACTIVE:
            return
        if self._enlisted.branches > 1:
            try:
                self._enlisted.enlist(self._manager.resource(name))
            except RollbackOnly as doomed:
                self._mark(doomed.reason)

    def _run_before(self) -> None:
        while self._before:
            try:
                self._before.pop(0)()  # once, because it may register others and may commit itself
            except BaseException as error:
                reason = Reason(None, f"before completion: {type(error).__name__}: {error}")
                self._manager.uninterrupted.run(self, lambda: self._mark_if_active(reason))  # noqa: B023 — called at once
                if not isinstance(error, Exception):
                    self.rollback()
                    raise
                return

    def _mark_if_active(self, reason: Reason) -> None:
        with self._guard:
            if self._state in (GlobalState.ACTIVE, GlobalState.MARKED):
                self._mark(reason)

    def _check_completable(self, what: str) -> None:
        if self.outcome is not None:
            error = error_of(self.outcome)
            if isinstance(error, RolledBack) and what == "commit":
                raise error
        self._check_active(what, marked=True)

    def finish(self) -> None:
        """For a consumer: waits for the answers that the commit has left, and raises what `commit` would have
        raised."""
        self._manager.executor.finish(self, self._guard)
        self._raise_outcome(asked_for=_COMMITTED)

    def leave_answers(self, steps: Steps) -> None:
        """For the executor: the decision is durable, and every branch was told. The reaper waits for the answers,
        where nobody else has in time."""
        self._state = GlobalState.COMMITTING
        self._left = steps
        self.is_left = True
        self.deadline = self._manager.answers_due()

    def take_left_answers(self) -> Steps | None:
        """For the executor: what `leave_answers` was given; None where that was taken already."""
        left, self._left = self._left, None
        return left

    def goes_on(self) -> None:
        """For the executor: the decision is durable, and the rest is done in the background."""
        self._state = GlobalState.COMMITTING

    def completed(self, outcome: Outcome, state: GlobalState) -> None:
        """For the executor: commit or rollback is over."""
        self._state = state
        self._commit = None
        self.outcome = outcome
        self._enlisted.forget_sessions()
        self._block = None
        if not self._calls_after:
            self._call_after()

    def _call_after(self) -> None:
        """Calls the callbacks that have not been called yet."""
        outcome = self.outcome
        while self._after and outcome is not None:
            try:
                callback = self._after.pop(0)
            except IndexError:  # another thread has just called the last one
                return
            try:
                callback(outcome)
            except Exception:
                logger.exception("%s: a callback after completion failed", self)

    def _raise_outcome(self, asked_for: Verdict) -> None:
        outcome = self.outcome
        if outcome is None or outcome.verdict is asked_for:
            return
        error = error_of(outcome)
        if error is not None:
            raise error

    # --- blocks -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self.lent is not None:
            self._refuse_to_borrower("block")
        self.entered_by(WithBlock() if interruptible() else None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in _OVER:
            self._leave_block(error)
        elif error is None and not self.suspended:
            self.commit(leaves=self.leaves)
        elif self._manager is _INHERITED:
            pass  # the error, or the end of the process, is told
        elif kind is GeneratorExit:
            self._roll_back_elsewhere()
        else:
            self.rollback()
            self._check_left(error)

    async def __aenter__(self) -> Self:
        if self.lent is not None:
            self._refuse_to_borrower("block")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in _OVER:
            self._leave_block(error)
        elif error is None and not self.suspended:
            await self.acommit()
        elif self._manager is _INHERITED:
            pass
        elif kind is GeneratorExit:  # a coroutine that is closed can't wait for anything
            self._roll_back_elsewhere()
        else:
            await self.arollback()
            self._check_left(error)

    def _roll_back_elsewhere(self) -> None:
        """For the block of a generator or coroutine that is closed: rolls back on a thread of its own. The garbage
        collector may close it on any thread, at a moment at which that one holds any lock, so that the rollback is
        not waited for longer than a moment."""
        try:
            self._manager.uninterrupted.run_for(
                CLOSED_S,
                self,
                partial(self._manager.executor.run, self, self._guard, self._begin_wanted_rollback),
            )
        except StillGoingOn:
            logger.warning("%s: the generator that it was begun in was closed; its rollback goes on", self)
        finally:
            if self.is_over:
                self._manager.detach(self)
        self._raise_outcome(asked_for=Verdict.ROLLED_BACK)

    def _leave_block(self, error: BaseException | None) -> None:
        """The end of a block whose transaction is completed already: by the block itself, or because it took too
        long."""
        self._manager.detach(self)
        if error is None and self.expired:
            self._raise_outcome(asked_for=Verdict.COMMITTED)

    def _check_left(self, error: BaseException | None) -> None:
        if error is None:
            raise ProtocolMisuse(f"transaction {self} was left suspended at the end of its block, and was rolled back")
