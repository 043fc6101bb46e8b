"""Branches and associations: which thread of control works, or has suspended its work, on which branch of one resource
manager instance. Every move is a row of the state tables.

A database connection serves one thread at a time, so at most one association of a branch is active: a second thread
that joins waits until the first has ended or suspended its own. An ended or suspended branch can go on in any
thread of the instance's process, and in no other.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import ref

from xa import Code, xa_error
from xa.machine import RESULT_OF, IllegalTransition, advance
from xa.tables import (
    ASSOCIATION,
    ASYNC,
    BRANCH,
    AssociationState,
    AssociationVerb,
    AsyncState,
    AsyncVerb,
    BranchState,
    BranchVerb,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.postgres.libpq import Steps
    from xa import ThreadOfControl, XaError, Xid
    from xa.machine import Machine

S = TypeVar("S", bound=Enum)
V = TypeVar("V", bound=Enum)

T0, T1, T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2
S0, S1, S2, S3, S4 = BranchState.S0, BranchState.S1, BranchState.S2, BranchState.S3, BranchState.S4

MAX_REMEMBERED: Final = 10_000
"""How many of the branches prepared here are remembered, to tell a wrong call from an unknown xid."""


class Session(Protocol):
    """What an application works with, as far as the verbs care: `facade` is what it gets."""

    @property
    def facade(self) -> Any:
        """The native interface."""
        ...

    def finish(self) -> None:
        """The work ends: what the session holds back is written. Raises whatever that raises."""
        ...

    def expire(self) -> None:
        """From now on every use is refused."""
        ...


class Work(Protocol):
    """The unit of work of one branch, in one kind of database. Steps raise the XaError of their verb."""

    def session(self) -> Session:
        """A new session."""
        ...

    def check(self) -> Steps[XaError | None]:
        """At the end of the work: the XA_RB* that makes it rollback-only, or XAER_RMFAIL, if anything does."""
        ...

    def commit(self) -> Steps[Code]:
        """One-phase commit."""
        ...

    def start_rollback(self) -> Steps[None]:
        """Rolls back as soon as possible; `rollback` waits for it."""
        ...

    def rollback(self) -> Steps[None]:
        """Rolls back; does not fail."""
        ...

    def abandon(self) -> None:
        """Gives the connection up, where there still is one: nothing more is asked of this work."""
        ...


class Branch:
    """One unprepared branch. `reason` is why it is rollback-only. In S0 it is being started."""

    __slots__ = ("active", "reason", "state", "suspended", "work", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = S0
        self.active: Association | None = None
        self.suspended: list[Association] = []
        self.reason: XaError | None = None
        self.work: Any = None

    @property
    def associated(self) -> bool:
        """Whether any association has not ended."""
        return self.active is not None or bool(self.suspended)

    def move(self, verb: BranchVerb, code: Code) -> None:
        """Follows the table's row for `verb` answered with `code`."""
        self.state = _follow(BRANCH, self.state, verb, code, self.xid)


class Association:
    """How one thread of control stands to one branch. `migrates`: any thread may resume it."""

    __slots__ = ("branch", "control", "key", "migrates", "session", "state")

    def __init__(self, branch: Branch, control: ThreadOfControl, lost: Callable[[Association], None]) -> None:
        self.branch = branch
        self.key = id(control)
        self.control = ref(control, lambda _: lost(self))
        self.state = T0
        self.migrates = False
        self.session: Session | None = None

    def move(self, verb: AssociationVerb, code: Code) -> None:
        """Follows the table's row for `verb` answered with `code`."""
        self.state = _follow(ASSOCIATION, self.state, verb, code, self.branch.xid)


def _follow(machine: Machine[S, V], state: S, verb: V, code: Code, xid: Xid) -> S:
    try:
        return advance(machine, state, verb, RESULT_OF[code])
    except IllegalTransition as refused:  # two threads at once, of which one came too late
        raise xa_error(refused.code, str(refused), xid) from refused


class Branches:
    """The branches of one instance. Methods are called with `lock` held unless they say otherwise."""

    def __init__(self, wait_s: float) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._wait_s = wait_s
        self._branches: dict[Xid, Branch] = {}
        self._prepared: OrderedDict[Xid, None] = OrderedDict()
        self._busy: dict[Xid, bool] = {}
        self._current: dict[int, Association] = {}
        self._suspended: dict[tuple[int, Xid], Association] = {}
        self.lost: deque[Association] = deque()

    def __len__(self) -> int:
        return len(self._branches)

    def get(self, xid: Xid) -> Branch | None:
        """The unprepared branch `xid`."""
        return self._branches.get(xid)

    def all(self) -> list[Branch]:
        """Every unprepared branch."""
        return list(self._branches.values())

    def occupy(self, verb: str, xid: Xid, *, asynchronous: bool, hold: bool) -> None:
        """One operation on a branch at a time: waits for one that is under way in another thread, refuses while one
        waits for complete. With `hold` this is one, until `vacate`."""
        while xid in self._busy:
            if self._busy[xid] or not self.changed.wait(self._wait_s):
                kind = AsyncVerb.ASYNCHRONOUS if asynchronous else AsyncVerb.SYNCHRONOUS
                code = ASYNC.refusal(AsyncState.A1, kind) or Code.XAER_PROTO
                raise xa_error(code, f"{verb}: another operation on the branch is outstanding", xid)
        if hold:
            self._busy[xid] = asynchronous

    def vacate(self, xid: Xid) -> None:
        """The operation is over, and was told."""
        del self._busy[xid]
        self.changed.notify_all()

    def current(self, control: ThreadOfControl) -> Association | None:
        """The thread's active association."""
        return self._current.get(id(control))

    def is_prepared(self, xid: Xid) -> bool:
        """Whether the branch was prepared here and its completion has not been heard of."""
        return xid in self._prepared

    # --- start ------------------------------------------------------------------------------------------------

    def create(self, control: ThreadOfControl, xid: Xid) -> Branch:
        """A new branch, in S0 until `begun` or `remove`."""
        self._check_free(control, xid)
        if xid in self._branches or xid in self._prepared:
            raise xa_error(Code.XAER_DUPID, f"start: the branch exists, {self.describe(xid)}", xid)
        branch = self._branches[xid] = Branch(xid)
        return branch

    def begun(self, branch: Branch, control: ThreadOfControl, work: Work) -> Association:
        """The work of a new branch has begun, in this thread."""
        branch.move(BranchVerb.START, Code.XA_OK)
        branch.work = work
        association = Association(branch, control, self.lost.append)
        self._activate(association, AssociationVerb.START)
        return association

    def remove(self, branch: Branch) -> None:
        """Nothing is left of the branch."""
        branch.work = None
        if self._branches.get(branch.xid) is branch:
            del self._branches[branch.xid]

    def join(self, control: ThreadOfControl, xid: Xid, *, wait: bool) -> Association:
        """TMJOIN. Waits while another thread is at work."""
        self._check_free(control, xid)
        branch = self._known("start(TMJOIN)", xid)
        association = Association(branch, control, self.lost.append)
        self._enter(branch, association, AssociationVerb.START, wait=wait)
        return association

    def resume(self, control: ThreadOfControl, xid: Xid, *, wait: bool) -> Association:
        """TMRESUME, of the thread's own association, or of one that migrates here."""
        if self.current(control) is not None:
            raise xa_error(Code.XAER_PROTO, "start(TMRESUME): this thread is associated with a branch", xid)
        branch = self._known("start(TMRESUME)", xid)
        own = self._suspended.get((id(control), xid))
        association = own or next((other for other in branch.suspended if other.migrates), None)
        if association is None:
            raise xa_error(Code.XAER_PROTO, "start(TMRESUME): no association is suspended for this thread", xid)
        if own is None:
            self._drop(association)
            taken = Association(branch, control, self.lost.append)
            taken.state = association.state
            branch.suspended.append(taken)
            association = taken
            self._suspended[association.key, xid] = association
        self._enter(branch, association, AssociationVerb.RESUME, wait=wait)
        return association

    def _enter(self, branch: Branch, association: Association, verb: AssociationVerb, *, wait: bool) -> None:
        if branch.active is not None:
            if not wait:
                raise xa_error(Code.XA_RETRY, "start: another thread is at work on the branch", branch.xid)
            if not self.changed.wait_for(lambda: branch.active is None, self._wait_s):
                raise xa_error(
                    Code.XAER_RMERR,
                    f"start: another thread has been at work on the branch for {self._wait_s:g} s, "
                    "and a connection serves one thread at a time",
                    branch.xid,
                )
        refused = BRANCH.refusal(branch.state, BranchVerb.JOIN)
        if self._branches.get(branch.xid) is not branch or refused is not None:
            raise xa_error(refused or Code.XAER_NOTA, f"start: the branch {self.describe(branch.xid)}", branch.xid)
        if branch.reason is not None:
            branch.move(BranchVerb.JOIN, branch.reason.code)
            association.move(verb, branch.reason.code)
            self._drop(association)
            raise branch.reason
        branch.move(BranchVerb.JOIN, Code.XA_OK)
        self._drop(association)
        self._activate(association, verb)

    def _activate(self, association: Association, verb: AssociationVerb) -> None:
        association.move(verb, Code.XA_OK)
        association.branch.active = association
        self._current[association.key] = association

    def _check_free(self, control: ThreadOfControl, xid: Xid) -> None:
        held = self._current.get(id(control))
        if held is not None:
            raise xa_error(Code.XAER_PROTO, f"start: this thread is associated with {held.branch.xid}", xid)
        if self._suspended and (id(control), xid) in self._suspended:
            raise xa_error(Code.XAER_PROTO, "start: this thread has suspended the branch and can only resume it", xid)

    # --- end --------------------------------------------------------------------------------------------------

    def ending(self, control: ThreadOfControl, xid: Xid, verb: AssociationVerb) -> Association:
        """The thread's association that `verb` is to end or suspend."""
        association = self._current.get(id(control))
        if association is None or association.branch.xid != xid:
            association = self._suspended.get((id(control), xid))
        if association is None:
            self._known("end", xid)
            raise xa_error(Code.XAER_PROTO, "end: this thread has no association with the branch", xid)
        refused = ASSOCIATION.refusal(association.state, verb)
        if refused is not None:
            raise xa_error(refused, f"end: the association is {association.state.value}", xid)
        return association

    def ended(self, association: Association, verb: AssociationVerb, fault: XaError | None) -> None:
        """The association is ended or suspended; with `fault` (or TMFAIL) the branch is rollback-only."""
        branch = association.branch
        code = fault.code if fault is not None else Code.XA_OK
        failed = verb is AssociationVerb.END_FAIL
        branch.move(BranchVerb.END_FAIL if failed else BranchVerb.END, code)
        association.move(verb, code)
        if branch.state is S4 and branch.reason is None:
            branch.reason = fault or xa_error(Code.XA_RBROLLBACK, "the work was ended with TMFAIL", branch.xid)
        self._drop(association)
        if association.state is T2:
            branch.suspended.append(association)
            self._suspended[association.key, branch.xid] = association
        self.changed.notify_all()

    def lose(self, association: Association, reason: XaError) -> Branch | None:
        """The thread, or its connection, is lost: the association ends, the branch is rollback-only."""
        branch = association.branch
        if association.state is T0:
            return None
        association.move(AssociationVerb.LOSE, Code.XA_OK)
        self._drop(association)
        if association.session is not None:
            association.session.expire()
        if self._branches.get(branch.xid) is not branch:
            return None
        branch.move(BranchVerb.LOSE, Code.XA_OK)
        branch.reason = branch.reason or reason
        self.changed.notify_all()
        return branch

    def held_by(self, control: ThreadOfControl) -> list[Association]:
        """The thread's associations, active and suspended."""
        key = id(control)
        held = [association for (owner, _), association in self._suspended.items() if owner == key]
        current = self._current.get(key)
        return held if current is None else [current, *held]

    def _drop(self, association: Association) -> None:
        """Takes the association out of wherever it is kept."""
        branch = association.branch
        if branch.active is association:
            branch.active = None
        if association in branch.suspended:
            branch.suspended.remove(association)
        if self._current.get(association.key) is association:
            del self._current[association.key]
        if self._suspended:
            self._suspended.pop((association.key, branch.xid), None)

    # --- completion -------------------------------------------------------------------------------------------

    def find(self, verb: str, move: BranchVerb, xid: Xid) -> Branch | None:
        """The unprepared branch that `move` is to be carried out on; None when it is none of this instance's.
        XAER_PROTO when the tables refuse it."""
        branch = self._branches.get(xid)
        state = S3 if xid in self._prepared else S0
        if branch is not None:
            state = S1 if branch.associated or branch.state is S0 else branch.state
        refused = BRANCH.refusal(state, move)
        if refused is not None and refused is not Code.XAER_NOTA:
            raise xa_error(refused, f"{verb}: the branch {self.describe(xid)}", xid)
        return branch

    def completed(self, branch: Branch, move: BranchVerb, code: Code) -> None:
        """The verb on a branch that was found was answered with `code`."""
        if code is Code.XAER_RMFAIL or code is Code.XAER_NOTA:
            self.remove(branch)
        else:
            branch.move(move, code)
            if branch.state is S0:
                self.remove(branch)
            elif branch.state is S3:
                self.remove(branch)
                self.remember(branch.xid)
        self.changed.notify_all()

    def remember(self, xid: Xid) -> None:
        """The branch was prepared here."""
        self._prepared[xid] = None
        if len(self._prepared) > MAX_REMEMBERED:
            self._prepared.popitem(last=False)

    def forget_prepared(self, xid: Xid) -> None:
        """The prepared branch was completed."""
        self._prepared.pop(xid, None)

    def describe(self, xid: Xid) -> str:
        """What is known of the branch, for a message."""
        branch = self._branches.get(xid)
        if branch is None:
            return f"is {S3.value}" if xid in self._prepared else "is not known"
        if branch.associated:
            return f"is {branch.state.value}, and a thread is associated with it"
        return f"is {branch.state.value}"

    def _known(self, verb: str, xid: Xid) -> Branch:
        branch = self._branches.get(xid)
        if branch is not None:
            return branch
        if xid in self._prepared:
            raise xa_error(Code.XAER_PROTO, f"{verb}: the branch is {S3.value}", xid)
        raise xa_error(Code.XAER_NOTA, f"{verb}: no such branch in this instance of the resource manager", xid)
