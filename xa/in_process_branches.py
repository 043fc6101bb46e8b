"""Branches: a `Driver` for resources whose branches live in this process until they are prepared.

A database keeps no record of a branch before PREPARE: the branch is a transaction on one connection, which this process
holds. `Branches` keeps what the resource does not. Which branches there are, and their state (table 6-4); which
association is at work in each, since a connection serves one at a time; why one can only be rolled back; and that one
operation on a branch is carried out at a time. What is left to a `UnitOfWorkDriver` is short: how work for a new branch
begins (a `UnitOfWork`), and how a prepared branch, which belongs to no connection, is completed and listed.

    class MyDriver(UnitOfWorkDriver[MyUnit]): ...

    resource_manager = Switch(Branches(MyDriver()), registrar)

For a resource that decides, `DecidingUnitOfWorkDriver`, `DecidingBranches` and `DecidingSwitch` go together in the same
way.

An ended or suspended branch can be joined, or resumed, by any thread of this instance, and by no other instance. When
its process dies, an unprepared branch is lost, because its connection is lost.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from xa.codes import HEURISTIC_CODES, ROLLBACK_CODES, Code
from xa.driver import MAX_OUTSTANDING, DecidingDriver, DecisionStorage, Driver
from xa.errors import XaError, xa_error
from xa.machine import RESULT_OF, IllegalTransition, advance
from xa.state_tables import BRANCH, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from xa.deciding_resource import DecisionRecord, NotedIncarnation, Owner
    from xa.driver import Pending, SessionContext
    from xa.xid import Xid

logger = logging.getLogger("xabridge.xa")

U = TypeVar("U", bound="UnitOfWork")

S0, S1, S3, S4 = BranchState.S0, BranchState.S1, BranchState.S3, BranchState.S4

MAX_REMEMBERED: Final = 10_000
"""How many of the branches prepared here are remembered, to tell a wrong call from an unknown xid."""
_GONE: Final = ROLLBACK_CODES | HEURISTIC_CODES | {Code.XA_OK, Code.XAER_NOTA, Code.XAER_RMERR}
"""The codes which say of a prepared branch that it is not prepared any more."""


class UnitOfWork(ABC):
    """The unit of work of one branch that is not prepared: in most resources a transaction, on a connection that it has
    to itself until the branch is prepared, committed or rolled back.

    Methods are called by one thread at a time, but for `start_rollback` and `abandon`: the application may be inside of
    a session then. A `later` is answered as `xa.driver.Driver.prepare` says.
    """

    @abstractmethod
    def session(self, context: SessionContext[Any]) -> Any:
        """The native interface for the association that is at work; the same until `end`. It refuses to commit."""

    def end(self, *, fail: bool) -> None:
        """The association that is at work ends, or is suspended: what its session holds back is written (not with
        `fail`), and the session refuses every use from now on.

        XA_RB*: the branch can only be rolled back. XAER_RMFAIL: the connection is lost.
        """
        del fail

    def prepare(self, *, later: bool) -> Code | Pending:
        """The vote, after which the unit is not used any more, unless it is XA_RETRY or XAER_RMERR. Not asked of a
        resource that decides."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, *, later: bool) -> Code | Pending:
        """One-phase commit. XA_RB*, XAER_RMERR: it was rolled back. XA_RETRY: it is as it was."""

    @abstractmethod
    def rollback(self, *, later: bool) -> Code | Pending:
        """Rolls back: XA_OK. It does not fail: where the connection is lost, so is the work."""

    def start_rollback(self) -> None:
        """Rolls back as soon as possible, so that locks are free; `rollback` follows at some time, and may wait for
        it."""
        self.rollback(later=False)

    def abandon(self) -> None:
        """Gives the connection up, where there still is one: what is asked of the unit has failed in the middle."""
        self.start_rollback()


class UnitOfWorkDriver(ABC, Generic[U]):
    """One kind of resource whose unprepared branches live in this process. See `xa.driver.Driver` for how it answers,
    and for what is not described here."""

    name: str = "driver"
    flags: int = 0
    """TMUSEASYNC where anything is gained by `later`."""

    wait_s: float = 30.0
    """How long a thread waits for another one that is at work in the branch that it joins or resumes, or wants to
    complete. 0: it is refused at once."""

    migrates: bool = True
    """Whether suspended work can be resumed in another thread of this instance."""

    @property
    def max_outstanding(self) -> int:
        return MAX_OUTSTANDING

    @property
    def identity(self) -> str:
        return f"{self.name}#{id(self):x}"

    @abstractmethod
    def open(self, open_string: str) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Closes every connection; every unit was rolled back before."""

    def drop(self) -> None:
        return

    def break_off(self) -> None:
        return

    def start_over(self) -> None:
        return

    @abstractmethod
    def begin(self, xid: Xid, *, wait: bool) -> U:
        """The unit of a new branch. XA_RETRY: no connection is free, at once (`wait` false) or after as long as it may
        take. XAER_DUPID where the resource knows the xid already; it need not find that out before prepare."""

    def begins_at_once(self) -> bool:
        return False

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        """Commits a prepared branch, also one that another process prepared. A resource that decides has no such
        call."""
        raise NotImplementedError

    def rollback_prepared(self, xid: Xid, *, later: bool) -> Code | Pending:
        """Rolls back a branch that is no unprepared one of this instance. The default, for a resource that decides,
        says that there is none."""
        del later
        raise xa_error(Code.XAER_NOTA, "rollback: no such branch in this instance of the resource manager", xid)

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        """The default is for a resource that completes no branch on its own."""
        del later
        raise xa_error(Code.XAER_NOTA, "forget: no branch is completed heuristically here", xid)

    def scan(self, page: int) -> Iterator[Xid]:
        """The prepared branches. The default, for a resource that decides, lists none."""
        del page
        return iter(())

    def first(self, outstanding: Sequence[Pending]) -> Pending:
        return next((pending for pending in outstanding if pending.ready()), outstanding[0])


class DecidingUnitOfWorkDriver(UnitOfWorkDriver[U], DecisionStorage):
    """The same for a resource that decides."""

    @abstractmethod
    def decide(self, unit: U, xid: Xid, record: bytes) -> Code:
        """Commits the unit with the decision (xid.gtrid, record). As `xa.deciding_resource.DecidingResource.decide`."""


class Branch(Generic[U]):
    """One unprepared branch. `active` is the association at work in it, `reason` why it can only be rolled back. In S0
    it is being started."""

    __slots__ = ("_unit", "active", "reason", "state", "suspended", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = S0
        self.active: AssociatedWork[U] | None = None
        self.suspended: set[AssociatedWork[U]] = set()
        self.reason: XaError | None = None
        self._unit: U | None = None

    @property
    def unit(self) -> U:
        """Its unit of work."""
        if self._unit is None:
            raise xa_error(Code.XAER_NOTA, "the branch has ended", self.xid)
        return self._unit

    @unit.setter
    def unit(self, unit: U | None) -> None:
        self._unit = unit

    @property
    def associated(self) -> bool:
        """Whether any association has not ended."""
        return self.active is not None or bool(self.suspended)

    def move(self, verb: BranchVerb, code: Code) -> None:
        """Follows the table's row for `verb` answered with `code`."""
        try:
            self.state = advance(BRANCH, self.state, verb, RESULT_OF[code])
        except IllegalTransition as refused:  # two threads at once, of which one came too late
            raise xa_error(refused.code, str(refused), self.xid) from refused


class AssociatedWork(Generic[U]):
    """One association's part in a branch."""

    __slots__ = ("branch",)

    def __init__(self, branch: Branch[U]) -> None:
        self.branch = branch


class Branches(Driver[AssociatedWork[U]]):
    """The branches of one instance, over `unit_driver`."""

    def __init__(self, unit_driver: UnitOfWorkDriver[U]) -> None:
        self.unit_driver = unit_driver
        self.name = unit_driver.name
        self.flags = unit_driver.flags
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        """How many threads wait for a change. Most often none does, and notifying a condition takes a while."""
        self._forget_everything()

    def _forget_everything(self) -> None:
        self._branches: dict[Xid, Branch[U]] = {}
        self._prepared: OrderedDict[Xid, None] = OrderedDict()
        self._busy: set[Xid] = set()
        """Branches with an operation that is not over."""

    def __len__(self) -> int:
        return len(self._branches)

    @property
    def identity(self) -> str:
        return self.unit_driver.identity

    @property
    def max_outstanding(self) -> int:
        return self.unit_driver.max_outstanding

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        self.unit_driver.open(open_string)

    def close(self, works: Sequence[AssociatedWork[U]]) -> None:
        self._lose(works, "the resource manager was closed")
        for branch in list(self._branches.values()):
            _wait(branch.unit.rollback(later=False))
            with self._lock:
                self._remove(branch)
        self.unit_driver.close()
        self._forget_everything()

    def drop(self) -> None:
        self.unit_driver.drop()
        self._forget_everything()

    def break_off(self) -> None:
        self.unit_driver.break_off()

    def start_over(self) -> None:
        self._lock = threading.RLock()  # another thread may have held the parent's
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self.unit_driver.start_over()
        self._forget_everything()

    # --- associations -----------------------------------------------------------------------------------------
    def begins_at_once(self) -> bool:
        return self.unit_driver.begins_at_once()

    def begin(self, xid: Xid, beside: Sequence[AssociatedWork[U]], *, wait: bool) -> AssociatedWork[U]:  # noqa: ARG002 — each has its own
        with self._lock:
            self._await_turn("start", xid)
            if xid in self._branches or xid in self._prepared:
                raise xa_error(Code.XAER_DUPID, f"start: the branch exists, {self._describe(xid)}", xid)
            branch: Branch[U] = Branch(xid)
            self._branches[xid] = branch
        try:
            branch.unit = self.unit_driver.begin(xid, wait=wait)
        except BaseException:
            with self._lock:
                self._remove(branch)
            raise

        with self._lock:
            branch.move(BranchVerb.START, Code.XA_OK)
            branch.active = AssociatedWork(branch)
            return branch.active

    def join(self, xid: Xid, beside: Sequence[AssociatedWork[U]], *, wait: bool) -> AssociatedWork[U]:  # noqa: ARG002 — it has the branch's
        with self._lock:
            branch = self._branches.get(xid)
            if branch is None:
                raise self._unknown("start(TMJOIN)", xid)
            part = AssociatedWork(branch)
            self._enter(branch, part, wait=wait)
            return part

    def resume(self, work: AssociatedWork[U], *, wait: bool) -> AssociatedWork[U]:
        with self._lock:
            self._enter(work.branch, work, wait=wait)
            return work

    def _enter(self, branch: Branch[U], part: AssociatedWork[U], *, wait: bool) -> None:
        """The part is at work, as soon as no other is. Called with the lock held."""
        xid, wait_s = branch.xid, self.unit_driver.wait_s
        self._await_turn("start", xid)
        if branch.active is not None:
            if not wait_s:
                raise xa_error(Code.XAER_PROTO, "start: a thread is at work in the branch, which serves one", xid)
            if not wait:
                raise xa_error(Code.XA_RETRY, "start: another thread is at work in the branch", xid)
            if not self._wait_until(lambda: branch.active is None):
                raise xa_error(
                    Code.XAER_RMERR,
                    f"start: another thread has been at work in the branch for {wait_s:g} s, "
                    "and a connection serves one thread at a time",
                    xid,
                )

        refused = BRANCH.refusal(branch.state, BranchVerb.JOIN)
        if self._branches.get(xid) is not branch or refused is not None:
            raise xa_error(refused or Code.XAER_NOTA, f"start: the branch {self._describe(xid)}", xid)
        branch.suspended.discard(part)
        branch.move(BranchVerb.JOIN, Code.XA_OK if branch.reason is None else branch.reason.code)
        if branch.reason is not None:
            raise branch.reason
        branch.active = part

    def suspend(self, work: AssociatedWork[U], *, migrate: bool) -> Code:
        self.end(work, fail=False, suspended=True)
        return Code.XA_NOMIGRATE if migrate and not self.unit_driver.migrates else Code.XA_OK

    def end(self, work: AssociatedWork[U], *, fail: bool, suspended: bool = False) -> Code:
        branch = work.branch
        with self._lock:
            if branch.xid in self._busy:
                self._await_turn("end", branch.xid)
            fault = branch.reason
            at_work = branch.active is work
            unit = branch.unit
        if at_work and fault is None:
            try:
                unit.end(fail=fail)
            except XaError as raised:
                fault = _fault_of_end(raised, branch.xid, fail=fail)

        with self._lock:
            code = Code.XA_OK if fault is None else fault.code
            shared = branch.active is not None and branch.active is not work
            branch.move(BranchVerb.END_FAIL if fail else BranchVerb.END_SHARED if shared else BranchVerb.END, code)
            if branch.state is S4 and branch.reason is None:
                branch.reason = fault or xa_error(Code.XA_RBROLLBACK, "the work was ended with TMFAIL", branch.xid)
            self._drop(work)
            if suspended and fault is None:
                branch.suspended.add(work)
            if self._waiting:
                self._changed.notify_all()
            doomed = branch.state is S4
        if doomed:
            unit.start_rollback()
        if fault is not None:
            raise fault
        return Code.XA_OK

    def lose(self, works: Sequence[AssociatedWork[U]], why: XaError) -> None:
        self._lose(works, why.message)

    def _lose(self, parts: Sequence[AssociatedWork[U]], why: str) -> None:
        for part in parts:
            branch = part.branch
            with self._lock:
                self._drop(part)
                if self._branches.get(branch.xid) is not branch:
                    continue
                branch.move(BranchVerb.LOSE, Code.XA_OK)
                branch.reason = branch.reason or xa_error(Code.XA_RBCOMMFAIL, why, branch.xid)
                unit = branch.unit
                if self._waiting:
                    self._changed.notify_all()
            logger.warning("%s is rollback-only: %s", branch.xid, why)
            unit.start_rollback()

    def knows(self, xid: Xid) -> bool:
        return xid in self._branches or xid in self._prepared

    @staticmethod
    def _drop(part: AssociatedWork[U]) -> None:
        """The part is not in its branch any more."""
        branch = part.branch
        if branch.active is part:
            branch.active = None
        branch.suspended.discard(part)

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, work: AssociatedWork[U] | None, context: SessionContext[AssociatedWork[U]]) -> Any:
        assert work is not None  # noqa: S101 — such a resource manager does not register dynamically
        return work.branch.unit.session(context)

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, *, later: bool) -> Code | Pending:
        with self._operation("prepare", BranchVerb.PREPARE, xid) as operation:
            return operation.answered(operation.unit.prepare(later=later))

    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Code | Pending:
        if one_phase:
            with self._operation("commit", BranchVerb.COMMIT_ONE_PHASE, xid) as operation:
                return operation.answered(operation.unit.commit(later=later))
        with self._operation("commit", BranchVerb.COMMIT, xid) as operation:
            return operation.answered(self.unit_driver.commit_prepared(xid, later=later))

    def rollback(self, xid: Xid, *, later: bool) -> Code | Pending:
        with self._operation("rollback", BranchVerb.ROLLBACK, xid) as operation:
            if operation.branch is None:
                return operation.answered(self.unit_driver.rollback_prepared(xid, later=later))
            return operation.answered(operation.branch.unit.rollback(later=later))

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        with self._operation("forget", BranchVerb.FORGET, xid) as operation:
            return operation.answered(self.unit_driver.forget(xid, later=later))

    def scan(self, page: int) -> Iterator[Xid]:
        return self.unit_driver.scan(page)

    def first(self, outstanding: Sequence[Pending]) -> Pending:
        asked = {
            operation.pending: operation
            for operation in outstanding
            if isinstance(operation, _BranchOperation) and operation.pending is not None
        }
        return asked[self.unit_driver.first(list(asked))]

    def _operation(self, verb: str, move: BranchVerb, xid: Xid) -> _BranchOperation[U]:
        """The only operation on the branch, inside of a block, and until the answer is known if it comes later.
        XAER_PROTO: the table refuses it."""
        with self._lock:
            if xid in self._busy:
                self._await_turn(verb, xid)
            branch = self._branches.get(xid)
            if branch is None:
                state = S3 if xid in self._prepared else S0
            else:
                state = S1 if branch.associated or branch.state is S0 else branch.state
            refused = BRANCH.refusal(state, move)
            if refused is not None and refused is not Code.XAER_NOTA:
                raise xa_error(refused, f"{verb}: the branch {self._describe(xid)}", xid)
            self._busy.add(xid)
        return _BranchOperation(self, verb, move, xid, branch)

    def conclude(self, operation: _BranchOperation[U], code: Code) -> None:
        """The outcome of an operation is known. XAER_RMFAIL stands for whatever leaves it unknown, an interruption
        included."""
        branch, xid = operation.branch, operation.xid
        with self._lock:
            if operation.concluded:
                return
            operation.concluded = True
            try:
                if branch is not None:
                    self._completed(branch, operation.move, code)
                elif code in _GONE:
                    self._prepared.pop(xid, None)
            finally:
                self._busy.discard(xid)
                if self._waiting:
                    self._changed.notify_all()

    def _completed(self, branch: Branch[U], move: BranchVerb, code: Code) -> None:
        """An unprepared branch has answered to `move`. Called with the lock held."""
        if move is BranchVerb.ROLLBACK:
            if code is not Code.XA_OK:  # the thread was interrupted
                branch.unit.abandon()
            branch.move(move, Code.XA_OK)

        elif code is Code.XAER_RMFAIL:
            branch.unit.abandon()
        elif code is not Code.XAER_NOTA:
            if code in RESULT_OF:
                branch.move(move, code)
            if branch.state is S3:
                self._prepared[branch.xid] = None
                if len(self._prepared) > MAX_REMEMBERED:
                    self._prepared.popitem(last=False)
            elif branch.state is not S0:
                return
        self._remove(branch)

    def _remove(self, branch: Branch[U]) -> None:
        """Nothing is left of the branch here."""
        branch.unit = None
        if self._branches.get(branch.xid) is branch:
            del self._branches[branch.xid]

    # --- waiting for other threads; with the lock -----------------------------------------------------------------
    def _wait_until(self, happened: Callable[[], bool]) -> bool:
        """Waits for what another thread does, for as long as the unit driver says; whether it happened."""
        self._waiting += 1
        try:
            return self._changed.wait_for(happened, self.unit_driver.wait_s)
        finally:
            self._waiting -= 1

    def _await_turn(self, verb: str, xid: Xid) -> None:
        """Waits for an operation on the branch that is under way in another thread. Called with the lock held."""
        if xid in self._busy and not self._wait_until(lambda: xid not in self._busy):
            raise xa_error(Code.XAER_PROTO, f"{verb}: another operation on the branch is outstanding", xid)

    # --- what is known of a branch ------------------------------------------------------------------------------
    def _describe(self, xid: Xid) -> str:
        branch = self._branches.get(xid)
        if branch is None:
            return f"is {S3.value}" if xid in self._prepared else "is not known"
        if branch.associated:
            return f"is {branch.state.value}, and a thread is associated with it"
        return f"is {branch.state.value}"

    def _unknown(self, verb: str, xid: Xid) -> XaError:
        if xid in self._prepared:
            return xa_error(Code.XAER_PROTO, f"{verb}: the branch is {S3.value}", xid)
        return xa_error(Code.XAER_NOTA, f"{verb}: no such branch in this instance of the resource manager", xid)


class _BranchOperation(Generic[U]):
    """One operation on a branch, from its beginning until its outcome is known, which is the end of the block unless
    the answer comes later. Then this is the Pending that the switch gets. `branch` is None for a branch that is no
    unprepared one of this instance."""

    __slots__ = ("_branches", "branch", "code", "concluded", "move", "pending", "verb", "xid")

    def __init__(self, branches: Branches[U], verb: str, move: BranchVerb, xid: Xid, branch: Branch[U] | None) -> None:
        self._branches = branches
        self.verb = verb
        self.move = move
        self.xid = xid
        self.branch = branch
        self.code: Code | None = None
        self.pending: Pending | None = None
        self.concluded = False

    @property
    def unit(self) -> U:
        """The branch's unit of work. If the branch can only be rolled back, it is, and its reason is raised."""
        branch = self.branch
        if branch is None:
            raise xa_error(
                Code.XAER_NOTA, f"{self.verb}: no such branch in this instance of the resource manager", self.xid
            )
        if branch.reason is not None:
            _wait(branch.unit.rollback(later=False))
            raise branch.reason
        return branch.unit

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.pending is not None:
            return
        code = Code.XAER_RMFAIL
        if isinstance(error, XaError):
            code = error.code
        elif error is None and self.code is not None:
            code = self.code
        self._branches.conclude(self, code)

    def answered(self, answer: Code | Pending) -> Code | Pending:
        """The resource was asked, and this is its answer."""
        if type(answer) is Code:
            self.code = answer
            return answer
        self.pending = cast("Pending", answer)
        return self

    def ready(self) -> bool:
        return self.pending is None or self.pending.ready()

    def result(self) -> Code:
        assert self.pending is not None  # noqa: S101 — there is no other
        code = Code.XAER_RMFAIL
        try:
            code = self.pending.result()
        except XaError as error:
            code = error.code
            raise
        finally:
            self._branches.conclude(self, code)
        return code


class DecidingBranches(Branches[U], DecidingDriver[AssociatedWork[U]]):
    """The branches of an instance that decides, over `unit_driver`."""

    unit_driver: DecidingUnitOfWorkDriver[U]

    def __init__(self, unit_driver: DecidingUnitOfWorkDriver[U]) -> None:
        super().__init__(unit_driver)

    @property
    def decider_id(self) -> bytes:
        return self.unit_driver.decider_id

    def decide(self, xid: Xid, record: bytes) -> Code:
        with self._operation("decide", BranchVerb.COMMIT_ONE_PHASE, xid) as operation:
            code = self.unit_driver.decide(operation.unit, xid, record)
            operation.answered(code)
            return code

    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        self.unit_driver.hold(owner, lease_s, floor, ceiling)

    def owners(self) -> Sequence[Owner]:
        return self.unit_driver.owners()

    def incarnations(self, node: str) -> Sequence[NotedIncarnation]:
        return self.unit_driver.incarnations(node)

    def settle(self, gtrid: bytes) -> bytes | None:
        return self.unit_driver.settle(gtrid)

    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        return self.unit_driver.decisions(after, count)

    def end_decisions(self, gtrids: Sequence[bytes]) -> None:
        self.unit_driver.end_decisions(gtrids)


def _wait(answer: Code | Pending) -> Code:
    return answer if isinstance(answer, Code) else answer.result()


def _fault_of_end(raised: XaError, xid: Xid, *, fail: bool) -> XaError | None:
    """Why a branch can only be rolled back whose work was ended with this error; None: it is to be in any case."""
    if raised.code is not Code.XAER_RMFAIL:
        return None if fail else raised
    if not fail:
        raise raised  # a thread that gets it has lost the association, and with it the branch
    return xa_error(Code.XA_RBCOMMFAIL, raised.message, xid)
