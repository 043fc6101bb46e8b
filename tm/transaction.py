"""Transaction: one global transaction as the application holds it.

It belongs to the thread of control that began it. Any thread may use it, but one at a time: a second one that
comes while the first is inside is refused. Everything here runs under the guard; the state moves by tables only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from tm.completion import Completion
from tm.log import Branch
from tm.outcome import (
    Outcome,
    ProtocolMisuse,
    Reason,
    RolledBack,
    TransactionError,
    Verdict,
    error_of,
    named,
)
from tm.states import FINAL, GLOBAL, GlobalState, GlobalVerb
from xa import (
    FORMAT_ID,
    TMFAIL,
    TMJOIN,
    TMNOFLAGS,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    ThreadOfControl,
    XaError,
    Xid,
    entered,
    switch_control,
    thread_of_control,
)
from xa.machine import advance
from xa.tables import ASSOCIATION, AssociationState, AssociationVerb

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from tm.completion import Steps
    from tm.manager import TransactionManager
    from tm.resources import Resource

logger = logging.getLogger("xabridge.tm")

DelistHow = Literal["success", "suspend", "fail"]

_DELIST: Final[dict[str, tuple[int, AssociationVerb]]] = {
    "success": (TMSUCCESS, AssociationVerb.END),
    "suspend": (TMSUSPEND, AssociationVerb.SUSPEND),
    "fail": (TMFAIL, AssociationVerb.END_FAIL),
}
_T0, _T1, _T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2


class Enlistment:
    """One resource in one transaction: its branch, and how the transaction's thread of control stands to it.
    `joined` says that another resource with the same identity made the branch."""

    __slots__ = ("branch", "joined", "resource", "session", "state")

    def __init__(self, resource: Resource, branch: Branch, *, joined: bool) -> None:
        self.resource = resource
        self.branch = branch
        self.joined = joined
        self.state = _T0
        self.session: Any = None


class Transaction:
    """A global transaction. `with`: commits at the end of the block, rolls back when an exception leaves it."""

    __slots__ = (
        "_after",
        "_before",
        "_busy",
        "_completion",
        "_decider",
        "_enlisted",
        "_manager",
        "_reasons",
        "_state",
        "began_at",
        "control",
        "deadline",
        "expired",
        "gtrid",
        "outcome",
        "outer",
        "outer_control",
        "suspended",
        "timeout_s",
    )

    def __init__(
        self,
        manager: TransactionManager,
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
        self.outer_control: ThreadOfControl | None = None
        self.suspended = False
        self.expired = False
        self._decider = decider
        self._state = GlobalState.ACTIVE
        self._busy = threading.Lock()
        self._enlisted: dict[str, Enlistment] = {}
        self._completion: Completion | None = None
        self._reasons: list[Reason] = []
        self._before: list[Callable[[], object]] = []
        self._after: list[Callable[[Outcome], object]] = []

    def __repr__(self) -> str:
        return f"<Transaction {self} {self.status.value}>"

    def __str__(self) -> str:
        return named(self.gtrid)

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def status(self) -> GlobalState:
        """Where it stands."""
        completion = self._completion
        return completion.state if completion is not None else self._state

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the enlisted resources, in the order of their enlistment."""
        return tuple(self._enlisted)

    def xid(self, name: str) -> Xid:
        """The xid of the branch that the resource `name` has in this transaction; KeyError when it has none."""
        return self._enlisted[name].branch.xid

    # --- resources ------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The native interface of the resource `name`, enlisting it where it is not yet."""
        enlistment = self._enlisted.get(name)
        if enlistment is not None and enlistment.state is _T1 and self._state is GlobalState.ACTIVE:
            return enlistment.session
        return self.enlist(name)

    def enlist(self, name: str) -> Any:
        """Makes the work that is done through the returned native interface part of this transaction.

        Enlisting again resumes a suspended association and joins an ended one. RolledBack: the resource could
        not take part, and the transaction is rollback-only. ProtocolMisuse: it is not active.
        """
        with _Guard(self):
            self._check_active("enlist " + name)
            resource = self._manager.resource(name)
            if resource.dynamic and name not in self._enlisted:
                return resource.rm.session(resource.rmid)
            return self._associate(resource).session

    async def aenlist(self, name: str) -> Any:
        """`enlist`, with its waiting done in a worker thread."""
        return await asyncio.to_thread(self.enlist, name)

    def delist(self, name: str, how: DelistHow = "success") -> None:
        """Ends ("success", "fail") or suspends the association with a resource. "fail" makes the transaction
        rollback-only."""
        with _Guard(self):
            self._check_active("delist " + name)
            enlistment = self._enlisted.get(name)
            if enlistment is None:
                raise ProtocolMisuse(f"transaction {self}: {name} is not enlisted")
            self._dissociate(enlistment, how)

    def _associate(self, resource: Resource) -> Enlistment:
        enlistment = self._enlisted.get(resource.name)
        verb, flags = AssociationVerb.START, TMJOIN
        if enlistment is None:
            if resource.identity is None:
                self._mend(resource)
            enlistment = self._new_enlistment(resource)
            flags = TMJOIN if enlistment.joined else TMNOFLAGS
        elif enlistment.state is _T1:
            return enlistment
        elif enlistment.state is _T2:
            verb, flags = AssociationVerb.RESUME, TMRESUME
        try:
            if resource.suspect:
                resource.mend()
            resource.rm.start(enlistment.branch.xid, resource.rmid, flags)
            enlistment.session = resource.rm.session(resource.rmid)
        except XaError as error:
            resource.failed(error)
            self._enlisted.setdefault(resource.name, enlistment)  # the request may have made the branch
            raise self._mark(Reason(enlistment.branch, error)) from error
        enlistment.state = advance(ASSOCIATION, enlistment.state, verb)
        self._enlisted[resource.name] = enlistment
        return enlistment

    def _mend(self, resource: Resource) -> None:
        try:
            resource.mend()
        except XaError as error:
            raise self._mark(Reason(None, f"{resource.name}: {error.message}")) from error

    def _new_enlistment(self, resource: Resource) -> Enlistment:
        if resource.decides and resource.name != self._decider:
            raise ProtocolMisuse(
                f"transaction {self}: {resource.name} can't take part, since "
                + (f"{self._decider} is the one that decides" if self._decider else "the log decides here")
                + "; at most one decider takes part in a transaction"
            )
        if resource.identity is not None:
            for other in self._enlisted.values():
                if other.resource.identity == resource.identity and other.resource is not resource:
                    return Enlistment(resource, Branch(resource.name, other.branch.xid), joined=True)
        xid = Xid(FORMAT_ID, self.gtrid, resource.bqual)
        return Enlistment(resource, Branch(resource.name, xid), joined=False)

    def _dissociate(self, enlistment: Enlistment, how: DelistHow) -> None:
        flags, verb = _DELIST[how]
        resource = enlistment.resource
        state = advance(ASSOCIATION, enlistment.state, verb)
        try:
            resource.rm.end(enlistment.branch.xid, resource.rmid, flags)
        except XaError as error:
            resource.failed(error)
            enlistment.state, enlistment.session = _T0, None
            self._mark(Reason(enlistment.branch, error))
            if how == "success":
                raise self._refusal("delist") from error
            return
        enlistment.state = state
        if state is not _T1:
            enlistment.session = None
        if how == "fail":
            self._mark(Reason(enlistment.branch, "its work was delisted as failed"))

    def registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        """For ax_reg: the enlistment of a dynamically registering resource, and what its association was before
        (None: it had none in this transaction)."""
        self._check_active("register " + resource.name)
        enlistment = self._enlisted.get(resource.name)
        if enlistment is None:
            enlistment = self._new_enlistment(resource)
            was = None
        else:
            was = enlistment.state
        verb = AssociationVerb.RESUME if was is _T2 else AssociationVerb.START
        enlistment.state = advance(ASSOCIATION, enlistment.state, verb)
        self._enlisted[resource.name] = enlistment
        return enlistment, was

    # --- suspend and resume -----------------------------------------------------------------------------------

    def suspend_associations(self) -> None:
        """Suspends every association; `TransactionManager.suspend` calls this."""
        with _Guard(self):
            self._check_active("suspend", marked=True)
            for enlistment in self._enlisted.values():
                if enlistment.state is _T1:
                    self._dissociate(enlistment, "suspend")
            self.suspended = True

    def resume_associations(self) -> None:
        """Resumes what `suspend_associations` suspended."""
        with _Guard(self):
            self.suspended = False
            if self._state is GlobalState.ACTIVE:
                for enlistment in self._enlisted.values():
                    if enlistment.state is _T2 and not enlistment.resource.dynamic:
                        self._associate(enlistment.resource)

    # --- marks and synchronizations ---------------------------------------------------------------------------

    def set_rollback_only(self, reason: str = "the application asked for it") -> None:
        """From now on the transaction can only be rolled back."""
        with _Guard(self):
            self._check_active("set rollback-only", marked=True)
            self._mark(Reason(None, reason))

    def register_synchronization(
        self,
        before: Callable[[], object] | None = None,
        after: Callable[[Outcome], object] | None = None,
    ) -> None:
        """`before` is called when commit is asked for, while work is still possible; an exception in it makes the
        transaction rollback-only. `after` is called with the outcome; an exception in it is logged."""
        self._check_active("register a synchronization")
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
        return RolledBack(f"transaction {self} can't {what}, it can only be rolled back: {why}")

    def _check_active(self, what: str, *, marked: bool = False) -> None:
        state = self._state
        if self.suspended:
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

    def commit(self, *, wait: Literal["completed", "logged"] = "completed") -> None:
        """Commits. Returns when it is committed; raises what `tm.outcome` says otherwise.

        `wait="logged"` returns when the decision is durable; the branches are told in the background.
        """
        if self._before and self._state is GlobalState.ACTIVE and not self.suspended:
            self._run_before()
        with _Guard(self):
            self._check_completable("commit")
            self._enlist_decider()
            completion = self._completion_of()
            if self._state is GlobalState.MARKED:
                self._complete(completion, completion.rollback(*self._reasons), early=False)
            else:
                self._complete(completion, completion.commit(), early=wait == "logged")
        self._manager.detach(self)
        if wait == "logged" and self._state is GlobalState.COMMITTING:
            return
        self._raise_outcome(asked_for=Verdict.COMMITTED)

    def rollback(self) -> None:
        """Rolls back; returns when that is done. Raises only where a resource had committed on its own."""
        with _Guard(self):
            self._check_completable("roll back")
            completion = self._completion_of()
            self._complete(completion, completion.rollback(*self._reasons), early=False)
        self._manager.detach(self)
        self._raise_outcome(asked_for=Verdict.ROLLED_BACK)

    async def acommit(self) -> None:
        """`commit`, with its waiting done in a worker thread. Cancelled, it ends its work before it lets go."""
        try:
            await _finish_in_thread(self.commit)
        finally:
            self._manager.detach(self)

    async def arollback(self) -> None:
        """`rollback`, with its waiting done in a worker thread. Cancelled, it ends its work before it lets go."""
        try:
            await _finish_in_thread(self.rollback)
        finally:
            self._manager.detach(self)

    def expire(self, now: float) -> bool:
        """For the reaper: rolls back when the deadline has passed and nothing is prepared. Whether that is over."""
        if now < self.deadline:
            return False
        if not self._busy.acquire(blocking=False):
            return False  # in use: its own thread is completing it, or the reaper comes again
        try:
            if self._state not in (GlobalState.ACTIVE, GlobalState.MARKED):
                return True
            reason = Reason(None, f"it took longer than its {self.timeout_s:g} s")
            logger.warning("%s: %s; rolling back", self, reason)
            self.expired = True
            completion = self._completion_of()
            with entered(self.control):
                self._complete(completion, completion.rollback(*self._reasons, reason), early=False)
        finally:
            self._busy.release()
        return True

    def _enlist_decider(self) -> None:
        """The decision lives in the decider: it takes part, with the decision alone, where others need one."""
        name = self._decider
        if name is None or name in self._enlisted or self._state is not GlobalState.ACTIVE:
            return
        if sum(not enlistment.joined for enlistment in self._enlisted.values()) > 1:
            with suppress(RolledBack):  # then it is marked, and rolled back
                self._associate(self._manager.resource(name))

    def _run_before(self) -> None:
        for callback in self._before:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 — the application's own code, told in the reason
                with _Guard(self):
                    self._mark(Reason(None, f"before completion: {type(error).__name__}: {error}"))
                return

    def _check_completable(self, what: str) -> None:
        if self.outcome is not None:
            error = error_of(self.outcome)
            if isinstance(error, RolledBack) and what == "commit":
                raise error
        self._check_active(what, marked=True)

    def _completion_of(self) -> Completion:
        branches = []
        associations = []
        decider = None
        for enlistment in self._enlisted.values():
            if not enlistment.joined:
                if enlistment.resource.decides:
                    decider = enlistment.branch
                else:
                    branches.append(enlistment.branch)
            if enlistment.state is not _T0:
                associations.append(enlistment.branch)
        return Completion(self.gtrid, branches, associations, decider, self._state)

    def _complete(self, completion: Completion, steps: Steps, *, early: bool) -> None:
        """Drives the completion to its end, or, `early`, to its commit point; always under the guard."""
        self._completion = completion
        self._manager.drive(self, completion, steps, early=early)

    def goes_on(self) -> None:
        """For the manager: the decision is durable, the rest is done in the background."""
        self._state = GlobalState.COMMITTING

    def completed(self, outcome: Outcome, state: GlobalState) -> None:
        """For the manager: the completion has come to its end."""
        self._state = state
        self._completion = None
        self.outcome = outcome
        for enlistment in self._enlisted.values():
            enlistment.session = None
        for callback in self._after:
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

    def _is_over(self) -> bool:
        return self._state in FINAL or self._state is GlobalState.COMMITTING

    # --- blocks -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_over():
            self._manager.detach(self)
            if error is None and self.expired:
                self._raise_outcome(asked_for=Verdict.COMMITTED)
            return
        if error is None:
            self.commit()
        else:
            self.rollback()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_over():
            self._manager.detach(self)
            if error is None and self.expired:
                self._raise_outcome(asked_for=Verdict.COMMITTED)
            return
        if error is None:
            await self.acommit()
        else:
            await self.arollback()


class _Guard:
    """Lets one thread at a time into a transaction, as the transaction's thread of control."""

    __slots__ = ("_control", "_transaction")

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._control: ThreadOfControl | None = None

    def __enter__(self) -> None:
        transaction = self._transaction
        if not transaction._busy.acquire(False):  # noqa: SLF001 — the guard is the transaction's own
            raise ProtocolMisuse(
                f"transaction {transaction} is in use by another thread or task at this moment: "
                "a transaction belongs to one at a time"
            )
        control = thread_of_control()
        if control is not transaction.control:
            self._control = control
            switch_control(transaction.control)

    def __exit__(self, *_: object) -> None:
        if self._control is not None:
            switch_control(self._control)
        self._transaction._busy.release()  # noqa: SLF001 — as above


async def _finish_in_thread(work: Callable[[], None]) -> None:
    """Runs `work` in a thread and waits for its end, also when the waiting task is cancelled meanwhile."""
    future = asyncio.ensure_future(asyncio.to_thread(work))
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except TransactionError:
            break
    failure = future.exception()
    if cancelled is not None:
        raise cancelled from failure
    if failure is not None:
        raise failure
