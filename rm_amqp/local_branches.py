"""LocalBranches: the branches of one resource manager instance that are local transactions, and the work in them.

A branch is a local transaction, on a channel that it has to itself from its start until its outcome: other than a
branch of `AmqpResource` it lives and dies with its connection, and is done in one instance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from dtx.protocol.conditions import RefusedError
from rm_amqp.connected import Connected, refusal_error
from rm_amqp.local import LocalChannel, LocalWork, opened
from rm_amqp.loss import AllInUse, ConnectionLost, TimedOut
from rm_amqp.session import Session
from rm_amqp.token_queues import TokenBusyError
from rm_amqp.tokens import WrongTokenError
from xa import (
    ROLLBACK_CODES,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOWAIT,
    TMRESUME,
    TMSUSPEND,
    Code,
    XaError,
    check_flags,
    xa_error,
)
from xa.machine import RESULT_OF, Result, advance
from xa.tables import (
    ASSOCIATION,
    BRANCH,
    AssociationState,
    AssociationVerb,
    BranchState,
    BranchVerb,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.core import Core, Steps
    from rm_amqp.pool import Seat
    from rm_amqp.settings import Settings
    from rm_amqp.standing import Standing
    from xa import Handle, Xid

T = TypeVar("T")
T2: Final = AssociationState.T2
S0, S1, S4 = BranchState.S0, BranchState.S1, BranchState.S4


@dataclass(slots=True, eq=False)
class LocalBranch:
    """A branch: its local transaction, and the channel of that; `known` is how far its slot's fences were known when it
    began; `reason` is why it is rollback-only."""

    work: LocalWork
    seat: Seat
    known: int
    standing: Standing | None
    state: BranchState = S0
    reason: XaError | None = None

    @property
    def xid(self) -> Xid:
        """Whose branch it is."""
        return self.work.xid

    @property
    def channel(self) -> LocalChannel:
        """Its channel."""
        channel = self.seat.channel
        assert isinstance(channel, LocalChannel)  # noqa: S101 — the pool's select makes no others
        return channel

    def move(self, verb: BranchVerb, result: Result) -> None:
        """Follows the table."""
        self.state = advance(BRANCH, self.state, verb, result)


class LocalBranches(Connected, ABC):
    """The branches of one instance, and its sessions. An association can be resumed only in the thread of control that
    suspended it; an ended branch can be joined by any thread of the instance."""

    def __init__(self, **surroundings: Any) -> None:
        super().__init__(**surroundings)
        self._branches: dict[Xid, LocalBranch] = {}
        self._gone: deque[Standing] = deque()
        """Of threads of control that are gone."""

    @staticmethod
    def _select(core: Core, settings: Settings, deadline: float) -> Steps[LocalChannel]:
        """As Connected says."""
        return opened(core, settings, deadline)

    @abstractmethod
    def _known(self, gtrid: bytes) -> int:
        """How far the fences are known that a transaction which begins now need not fear."""

    # --- association ------------------------------------------------------------------------------------------
    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. A branch is joined and resumed in the instance that started it."""
        standing = self._enter("start", rmid, flags)
        if standing.current is not None:
            raise xa_error(Code.XAER_PROTO, f"start: this thread is associated with {standing.current.xid}", xid)
        branch = self._branches.get(xid)
        if flags & TMRESUME:
            self._resume(standing, branch, xid)
        elif flags & TMJOIN:
            self._join(standing, branch, xid)
        elif branch is not None:
            raise xa_error(Code.XAER_DUPID, f"start: the branch exists, {branch.state.value}", xid)
        else:
            self._begin(standing, xid, wait=not flags & TMNOWAIT)
        return Code.XA_OK

    def _begin(self, standing: Standing, xid: Xid, *, wait: bool) -> None:
        deadline, known = self.deadline(), self._known(xid.gtrid)

        def begun() -> LocalBranch:
            seat = self._take(xid, deadline, wait=wait)
            branch = LocalBranch(LocalWork(xid), seat, known, standing)
            try:
                seat.line.run(branch.channel.declare(branch.work, deadline))
            except BaseException:
                self.pool.discard(seat)
                raise
            return branch

        branch = self._guarded(standing, "start", xid, begun)
        branch.move(BranchVerb.START, Result.OK)
        with self._lock:
            self._branches[xid] = branch
        self._associate(standing, branch, AssociationVerb.START)

    def _take(self, xid: Xid, deadline: float, *, wait: bool) -> Seat:
        try:
            return self.pool.take(deadline, wait=wait)
        except AllInUse as why:
            if not wait:
                raise xa_error(Code.XA_RETRY, f"start: {why}", xid) from None
            told = f"start: {why}; end other work, or allow more with channels= in the open string"
            raise xa_error(Code.XA_RETRY, told, xid) from None

    def _resume(self, standing: Standing, branch: LocalBranch | None, xid: Xid) -> None:
        if branch is None or xid not in standing.suspended:
            code = Code.XAER_NOTA if branch is None else Code.XAER_PROTO
            raise xa_error(code, "start(TMRESUME): this thread has suspended no such branch", xid)
        del standing.suspended[xid]
        branch.move(BranchVerb.JOIN, Result.OK)
        self._associate(standing, branch, AssociationVerb.RESUME)

    def _join(self, standing: Standing, branch: LocalBranch | None, xid: Xid) -> None:
        if branch is None:
            raise xa_error(Code.XAER_NOTA, "start(TMJOIN): no such branch in this instance", xid)
        if branch.standing is not None:
            told = "start(TMJOIN): a thread is at work in the branch, and a local transaction takes one at a time"
            raise xa_error(Code.XAER_PROTO, told, xid)
        if branch.reason is not None:
            raise branch.reason
        branch.move(BranchVerb.JOIN, Result.OK)
        self._associate(standing, branch, AssociationVerb.START)

    def _associate(self, standing: Standing, branch: LocalBranch, verb: AssociationVerb) -> None:
        branch.work.state = advance(ASSOCIATION, branch.work.state, verb)
        branch.standing = standing
        standing.current, standing.seat = branch.work, branch.seat

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        standing = self._enter("end", rmid, flags)
        branch = self._branches.get(xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, "end: no such branch in this instance", xid)
        work = branch.work
        if standing.current is not work and standing.suspended.get(xid) is not work:
            raise xa_error(Code.XAER_PROTO, "end: this thread has no association with the branch", xid)
        verb = AssociationVerb.END
        if flags & TMSUSPEND:
            verb = AssociationVerb.SUSPEND
        elif flags & TMFAIL:
            verb = AssociationVerb.END_FAIL
        refused = ASSOCIATION.refusal(work.state, verb)
        if refused is not None:
            raise xa_error(refused, f"end: the association is {work.state.value}", xid)
        fault = self._finished(standing, branch) if verb is AssociationVerb.END else None
        failed = verb is AssociationVerb.END_FAIL
        result = Result.OK if fault is None else Result.RB
        work.state = advance(ASSOCIATION, work.state, verb, result)
        branch.move(BranchVerb.END_FAIL if failed else BranchVerb.END, result)
        standing.suspended.pop(xid, None)
        if standing.current is work:
            standing.current = standing.seat = None
        if work.state is T2:
            standing.suspended[xid] = work
        else:
            branch.standing = None
        if branch.state is S4:
            branch.reason = fault or xa_error(Code.XA_RBROLLBACK, "the work was ended with TMFAIL", xid)
            self._undo(branch)
        if fault is not None:
            raise fault
        return Code.XA_NOMIGRATE if flags & TMMIGRATE else Code.XA_OK

    def _finished(self, standing: Standing, branch: LocalBranch) -> XaError | None:
        """Ends the work at the broker; the XA_RB* where that can't be."""
        try:
            branch.seat.line.run(branch.channel.finish(branch.work, self.deadline()))
        except RefusedError as error:
            code = error.refusal.code if error.refusal.code in ROLLBACK_CODES else Code.XA_RBOTHER
            return xa_error(code, f"end: {error.refusal.description or error.refusal.condition}", branch.xid)
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "end", why, branch.xid) from None
        except BaseException:  # an interruption: nobody knows what the broker has heard
            self._lose(standing)
            raise
        return None

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, rmid: int) -> Session:
        """As `xa.ResourceManager` says."""
        standing = self._caller("session", rmid)
        if standing.current is None:
            raise xa_error(Code.XAER_PROTO, "session: this thread is associated with no branch")
        return Session(self, standing)

    def clock(self) -> float:
        """The time, for deadlines."""
        return self._clock()

    def begin_work(self, standing: Standing) -> LocalWork:
        """As Workplace says."""
        if self._standing() is not standing:
            raise xa_error(Code.XAER_PROTO, "work: this session belongs to another thread of control")
        self._check_open("work", self._rmid)
        self._check_lost("work", standing)
        if not isinstance(standing.current, LocalWork):
            raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch; its work has ended")
        return standing.current

    async def begin_work_async(self, standing: Standing) -> LocalWork:
        """As Workplace says."""
        return self.begin_work(standing)

    def seat(self, standing: Standing) -> Seat:
        """As Workplace says."""
        if standing.seat is None:
            raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch; its work has ended")
        return standing.seat

    def end_work(self, standing: Standing) -> None:
        """As Workplace says: there is no work outside of a transaction."""

    def lose_work(self, standing: Standing, why: ConnectionLost | TimedOut) -> XaError:
        """As Workplace says."""
        xid = standing.current.xid if standing.current is not None else None
        return self._failed(standing, "work", why, xid)

    # --- what is left of a branch ---------------------------------------------------------------------------------
    def _undo(self, branch: LocalBranch) -> None:
        """Rolls the local transaction back, by a word or by the end of its connection, which is as good."""
        if branch.seat.channel.broken or not branch.work.txn_id:
            return
        try:
            branch.seat.line.run(branch.channel.undo(branch.work, self.deadline()))
        except (ConnectionLost, TimedOut, RefusedError):
            branch.seat.line.drop()
        branch.seat.channel.recall = True
        branch.work.named(b"")

    def _over(self, branch: LocalBranch, verb: BranchVerb, code: Code) -> None:
        """Nothing is left of the branch."""
        branch.move(verb, RESULT_OF[code])
        with self._lock:
            self._branches.pop(branch.xid, None)
        self.pool.give(branch.seat)

    def _discard(self, branch: LocalBranch) -> None:
        """Its connection is given up, and with it the branch."""
        with self._lock:
            self._branches.pop(branch.xid, None)
        self.pool.discard(branch.seat)

    def _dissociate(self, standing: Standing) -> None:
        """The thread has lost its associations: its branches are rollback-only, and their connections given up."""
        lost = [work for work in (standing.current, *standing.suspended.values()) if work is not None]
        standing.current = standing.seat = None
        standing.suspended.clear()
        for work in lost:
            branch = self._branches.get(work.xid)
            if branch is None or branch.work is not work:
                continue
            branch.seat.line.drop()
            branch.standing = None
            branch.reason = xa_error(Code.XA_RBCOMMFAIL, "the connection or the thread of control was lost", work.xid)
            work.state = advance(ASSOCIATION, work.state, AssociationVerb.LOSE)
            branch.move(BranchVerb.LOSE, Result.OK)

    def abandoned(self, standing: Standing) -> None:
        """The thread of control is gone; as it may be while garbage is collected, this only takes note."""
        self._gone.append(standing)

    def _enter(self, verb: str, rmid: int, flags: int) -> Standing:
        check_flags(verb, flags, self.flags)
        return self._caller(verb, rmid)

    def _caller(self, verb: str, rmid: int) -> Standing:
        """The calling thread of control, if it may call; for what has no flags."""
        while self._gone:
            self._dissociate(self._gone.popleft())
        self._check_open(verb, rmid)
        standing = self._standing()
        self._check_lost(verb, standing)
        return standing

    def drop(self) -> None:
        """As Connected says."""
        super().drop()
        self._branches.clear()

    @staticmethod
    def _check_move(verb: str, move: BranchVerb, branch: LocalBranch) -> None:
        refused = BRANCH.refusal(S1 if branch.standing is not None else branch.state, move)
        if refused is not None:
            raise xa_error(refused, f"{verb}: the branch is {branch.state.value}, or a thread has it", branch.xid)

    def _guarded(self, standing: Standing, verb: str, xid: Xid | None, call: Callable[[], T]) -> T:
        """What a call returns, with its errors as XA has them."""
        try:
            return call()
        except RefusedError as error:
            raise refusal_error(verb, error.refusal, xid) from None
        except WrongTokenError as error:
            raise xa_error(Code.XAER_RMERR, f"{verb}: {error}", xid) from None
        except TokenBusyError as why:
            raise xa_error(Code.XA_RETRY, f"{verb}: {why}", xid) from None
        except AllInUse as why:
            raise xa_error(Code.XA_RETRY, f"{verb}: {why}", xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, verb, why, xid) from None
