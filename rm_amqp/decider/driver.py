"""The driver of a broker that decides, behind the XA verbs of `xa.switch.DecidingSwitch`.

A branch is a local transaction, on a channel that it has to itself from its start until its outcome. Other than a
branch with distributed transactions it lives and dies with its connection, and is done in one instance: an association
can be resumed only in the thread of control that suspended it, and an ended branch can be joined by any thread of the
instance, one at a time. No branch is ever prepared or in doubt, and nothing is asynchronous.

Decisions are kept in tokens (`rm_amqp.decider.decision_log`).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.protocol.conditions import RefusedError
from rm_amqp.channel.work import WorkEvent
from rm_amqp.connections import CLOSE_S, Connections, not_begun
from rm_amqp.decider.channel import ROLLED_BACK, LocalBranchWork, LocalChannel, open_local
from rm_amqp.decider.decision_log import DecisionAttempt, DecisionLog, TokenRenewalDue, patience
from rm_amqp.decider.service_bus import TopicNodes, refuse_unfit
from rm_amqp.decider.token_queue_creation import agree_on_founding
from rm_amqp.decider.token_queues import TokenBusyError
from rm_amqp.decider.tokens import ID_SIZE, FoundingMessage, Lease, TooManyLeasesError, WrongTokenError
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut, lost_error, refusal_error
from rm_amqp.session import Session
from rm_amqp.settings import parse
from xa import ROLLBACK_CODES, Code, NotedIncarnation, XaError, xa_error
from xa.driver import DecidingDriver
from xa.machine import RESULT_OF, Result, advance
from xa.state_tables import BRANCH, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rm_amqp.channel.pool import ChannelPool, PooledChannel
    from rm_amqp.connection.endpoint import Endpoint, Steps
    from rm_amqp.connections import Environment
    from rm_amqp.settings import Settings
    from xa import DecisionRecord, Owner, Xid
    from xa.driver import Pending, SessionContext

logger = logging.getLogger("xabridge.rm_amqp")

T = TypeVar("T")
S1, S4 = BranchState.S1, BranchState.S4
SLOTS: Final = 8
"""Tokens that are made where there are none, unless the open string says how many."""
LEASE_CHANNELS: Final = 2
"""Beside those of the work: one who renews a lease waits at the most for one who reads them."""


@dataclass(slots=True, eq=False)
class LocalBranch:
    """A branch: its local transaction, on its channel."""

    work: LocalBranchWork
    """Of its latest association, and with it the txn-id."""
    pooled: PooledChannel[LocalChannel]
    known: int
    """How far the fences of its slot were known when it began."""
    held: bool = True
    """Whether a thread of control has an association with it, perhaps a suspended one."""
    state: BranchState = BranchState.S0
    reason: XaError | None = None
    """Why it is rollback-only."""

    @property
    def xid(self) -> Xid:
        """The xid of the branch."""
        return self.work.xid

    def move(self, verb: BranchVerb, result: Result = Result.OK) -> None:
        """Follows the table."""
        self.state = advance(BRANCH, self.state, verb, result)


class DecidingBrokerDriver(DecidingDriver[LocalBranchWork]):
    """One instance. `wall` is the clock that leases go by."""

    name = "xabridge deciding broker"
    flags = 0

    def __init__(self, environment: Environment, wall: Callable[[], float] = time.time) -> None:
        self.connections = Connections(environment, self._open_channel)
        self._nodes: TopicNodes | None = None
        self._wall = wall
        self._opening = threading.Lock()
        self._lock = threading.Lock()
        self._branches: dict[Xid, LocalBranch] = {}
        self._log: DecisionLog | None = None
        self._leases: ChannelPool[LocalChannel] | None = None

    @property
    def identity(self) -> str:
        """A local transaction can't be shared with another instance."""
        return f"{self.connections.settings.identity}#{self.connections.container}"

    @property
    def decider_id(self) -> bytes:
        return self._decisions.founding.founder

    @property
    def _decisions(self) -> DecisionLog:
        if self._log is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self._log

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        """The first time it finds, or makes, the tokens."""
        settings, connections = parse(open_string), self.connections
        if self._log is not None and settings != connections.settings:
            raise xa_error(Code.XAER_INVAL, "open: is open already, with another open string")
        with self._opening:
            self.connect(settings)
            self.guarded("open", None, self._reach if self._log is not None else self._found)

    def connect(self, settings: Settings) -> None:
        """Makes ready to connect, and connects to nothing yet."""
        connections = self.connections
        if connections.is_open and settings == connections.settings:
            return
        refuse_unfit(settings, settings.slots or SLOTS)
        self._close_leases()
        self._nodes = TopicNodes(settings.topic) if settings.topic else None
        connections.use(settings)
        self._leases = connections.new_pool(replace(settings, channels=LEASE_CHANNELS))

    def _open_channel(self, endpoint: Endpoint, settings: Settings, deadline: float) -> Steps[LocalChannel]:
        return open_local(endpoint, settings, deadline, self._nodes)

    def _reach(self) -> None:
        with contextlib.suppress(AllInUse):  # they are: the broker was reached
            pool = self.connections.pool
            pool.release(pool.acquire(work=True, wait=False, deadline=self.connections.deadline()))

    def _found(self) -> None:
        connections = self.connections
        settings, pool, deadline = connections.settings, connections.pool, connections.deadline()
        own = FoundingMessage(connections.environment.nonce(ID_SIZE), settings.slots or SLOTS)
        pooled = pool.acquire(work=True, deadline=deadline)
        try:
            until_s = patience(connections.environment.clock(), settings, deadline)
            founding = pooled.connection.run(agree_on_founding(pooled.channel, own, until_s, deadline))
        except RefusedError as error:
            pool.release(pooled, keep=False)
            raise _unusable_queues(error, settings, own.slots) from None
        except BaseException:
            pool.release(pooled, keep=False)
            raise

        pool.release(pooled)
        if settings.slots not in {0, founding.slots}:
            raise xa_error(
                Code.XAER_INVAL,
                f"open: slots={settings.slots}, but {settings.token_queue} was made with {founding.slots}, for good; "
                "leave slots= away, or name another token_queue",
            )
        assert self._leases is not None  # noqa: S101 — made with the other pool
        self._log = DecisionLog(pool, self._leases, connections.environment.clock, settings, founding)

    def close(self, works: Sequence[LocalBranchWork]) -> None:
        """Branches that are left are rolled back, with their connections."""
        del works
        if self._log is not None:
            try:
                self._log.flush(self.connections.deadline())
            except (ConnectionLost, TimedOut, TokenBusyError, RefusedError, WrongTokenError) as why:
                logger.info("ended decisions are left to the next recovery: %s", why)
        self._branches.clear()
        self._close_leases()
        self.connections.close()
        self._log = None

    def _close_leases(self) -> None:
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.close_until(self.connections.environment.clock() + CLOSE_S)

    def drop(self) -> None:
        leases, self._leases = self._leases, None
        if leases is not None:
            leases.drop()
        self.connections.drop()
        self._branches.clear()
        self._log = None

    def break_off(self) -> None:
        leases = self._leases
        if leases is not None:
            leases.break_off()
        self.connections.break_off()

    def start_over(self) -> None:
        self._opening, self._lock = threading.Lock(), threading.Lock()  # other threads may have held the parent's
        self._leases = self._log = None
        self._branches.clear()
        self.connections.forget()

    # --- associations -----------------------------------------------------------------------------------------
    def begin(self, xid: Xid, beside: Sequence[LocalBranchWork], *, wait: bool) -> LocalBranchWork:
        del beside  # each branch has its own channel
        branch = self._branches.get(xid)
        if branch is not None:
            raise xa_error(Code.XAER_DUPID, f"start: the branch exists, {branch.state.value}", xid)
        deadline, known = self.connections.deadline(), self._decisions.known(xid.gtrid)

        def begun() -> LocalBranch:
            try:
                pooled = self.connections.pool.acquire(work=True, wait=wait, deadline=deadline)
            except (ConnectionLost, TimedOut) as why:
                raise not_begun(why, xid) from None
            branch = LocalBranch(LocalBranchWork(xid, pooled), pooled, known)
            try:
                pooled.connection.run(pooled.channel.declare(branch.work, deadline))
            except BaseException:
                self.connections.pool.release(pooled, keep=False)
                raise
            return branch

        branch = self.guarded("start", xid, begun)
        branch.move(BranchVerb.START)
        branch.work.move(WorkEvent.BEGIN)
        with self._lock:
            self._branches[xid] = branch
        return branch.work

    def join(self, xid: Xid, beside: Sequence[LocalBranchWork], *, wait: bool) -> LocalBranchWork:
        del beside, wait
        branch = self._branches.get(xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, "start(TMJOIN): no such branch in this instance", xid)
        if branch.held:
            why = "start(TMJOIN): a thread is at work in the branch, and a local transaction takes one at a time"
            raise xa_error(Code.XAER_PROTO, why, xid)
        if branch.reason is not None:
            raise branch.reason
        work = LocalBranchWork(xid, branch.pooled)
        work.set_txn_id(branch.work.txn_id)
        branch.move(BranchVerb.JOIN)
        work.move(WorkEvent.BEGIN)
        branch.work, branch.held = work, True
        return work

    def resume(self, work: LocalBranchWork, *, wait: bool) -> LocalBranchWork:
        del wait  # the branch has its channel
        self._branch("start(TMRESUME)", work.xid).move(BranchVerb.JOIN)
        work.move(WorkEvent.BEGIN)
        return work

    def suspend(self, work: LocalBranchWork, *, migrate: bool) -> Code:
        self._branch("end", work.xid).move(BranchVerb.END)
        work.move(WorkEvent.SUSPEND)
        return Code.XA_NOMIGRATE if migrate else Code.XA_OK

    def end(self, work: LocalBranchWork, *, fail: bool) -> Code:
        branch = self._branch("end", work.xid)
        work.failed = fail
        fault = None if fail else self._finish(branch)
        result = Result.OK if fault is None else Result.RB
        work.move(WorkEvent.END)
        branch.move(BranchVerb.END_FAIL if fail else BranchVerb.END, result)
        branch.held = False
        if branch.state is S4:
            branch.reason = fault or xa_error(Code.XA_RBROLLBACK, "the work was ended with TMFAIL", work.xid)
            self._undo(branch)
        if fault is not None:
            raise fault
        return Code.XA_OK

    def _finish(self, branch: LocalBranch) -> XaError | None:
        """Ends the work at the broker; the XA_RB* where that can't be."""
        try:
            branch.pooled.connection.run(branch.pooled.channel.finish(branch.work, self.connections.deadline()))
        except RefusedError as error:
            code = error.refusal.code if error.refusal.code in ROLLBACK_CODES else error.refusal.rollback_code
            return xa_error(code, f"end: {error.refusal.description or error.refusal.condition}", branch.xid)
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("end", why, branch.xid) from None
        return None

    def is_lost(self, work: LocalBranchWork) -> bool:
        return not work.pooled.is_reusable

    def lose(self, works: Sequence[LocalBranchWork], why: XaError) -> None:
        """The branches are rollback-only, and their connections given up."""
        del why
        for work in works:
            work.move(WorkEvent.END)
            work.pooled.connection.drop()
            branch = self._branches.get(work.xid)
            if branch is not None and branch.work is work:
                message = "the connection or the thread of control was lost"
                branch.reason = xa_error(Code.XA_RBCOMMFAIL, message, work.xid)
                branch.held = False
                branch.move(BranchVerb.LOSE)

    def knows(self, xid: Xid) -> bool:
        return xid in self._branches

    def _branch(self, verb: str, xid: Xid) -> LocalBranch:
        branch = self._branches.get(xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, f"{verb}: no such branch in this instance", xid)
        return branch

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, work: LocalBranchWork | None, context: SessionContext[LocalBranchWork]) -> Session:
        del work  # each operation asks for it
        return Session(self.connections, context)

    # --- completion -------------------------------------------------------------------------------------------
    def decide(self, xid: Xid, record: bytes) -> Code:
        branch = self._to_commit("decide", xid)
        log, deadline = self._decisions, self.connections.deadline()
        attempt = DecisionAttempt(xid.gtrid, record, branch.known)
        channel, connection = branch.pooled.channel, branch.pooled.connection

        def decided() -> None:
            try:
                connection.run(log.decide(channel, branch.work, attempt, deadline))
            except TokenRenewalDue as worn:
                log.renew(worn.slot, deadline)
                connection.run(log.decide(channel, branch.work, attempt, deadline))

        return self._complete("decide", branch, attempt, decided)

    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Code:
        del one_phase, later
        branch = self._to_commit("commit", xid)
        attempt = DecisionAttempt(xid.gtrid, b"", branch.known, asked=True)
        steps = branch.pooled.channel.discharge(branch.work, self.connections.deadline(), fail=False)
        return self._complete("commit", branch, attempt, lambda: branch.pooled.connection.run(steps))

    def rollback(self, xid: Xid, *, later: bool) -> Code:
        del later
        branch = self._branch("rollback", xid)
        self._check_move("rollback", BranchVerb.ROLLBACK, branch)
        self._undo(branch)
        self._over(branch, BranchVerb.ROLLBACK, Code.XA_OK)
        return Code.XA_OK

    def prepare(self, xid: Xid, *, later: bool) -> Code | Pending:
        raise NotImplementedError(f"{xid}, later={later}: the switch of a decider refuses it")

    def forget(self, xid: Xid, *, later: bool) -> Code:
        del later
        raise xa_error(Code.XAER_NOTA, "forget: no branch is ever completed heuristically here", xid)

    def scan(self, page: int) -> Iterator[Xid]:
        del page
        return iter(())

    @staticmethod
    def _check_move(verb: str, move: BranchVerb, branch: LocalBranch) -> None:
        refused = BRANCH.refusal(S1 if branch.held else branch.state, move)
        if refused is not None:
            raise xa_error(refused, f"{verb}: the branch is {branch.state.value}, or a thread is using it", branch.xid)

    def _to_commit(self, verb: str, xid: Xid) -> LocalBranch:
        """The branch that is to be committed. A rollback-only one is gone with this, and its reason raised."""
        branch = self._branch(verb, xid)
        self._check_move(verb, BranchVerb.COMMIT_ONE_PHASE, branch)
        if branch.reason is not None:
            self._over(branch, BranchVerb.COMMIT_ONE_PHASE, branch.reason.code)
            raise branch.reason
        return branch

    def _complete(self, verb: str, branch: LocalBranch, attempt: DecisionAttempt, call: Callable[[], None]) -> Code:
        """Carries out what commits a branch. Before the discharge was sent, nothing can have been committed."""
        xid = branch.xid
        try:
            call()
        except (TokenBusyError, WrongTokenError) as why:
            error = xa_error(Code.XA_RBTRANSIENT, f"{verb}: {why}", xid)
        except RefusedError as refusal:
            cause = refusal.refusal
            if attempt.asked and cause.condition not in ROLLED_BACK:
                self._discard(branch)
                why_not = f"{verb}: the broker did not report its outcome ({cause.condition}: {cause.description})"
                raise xa_error(Code.XAER_RMFAIL, why_not, xid) from None
            code = cause.code if cause.code in ROLLBACK_CODES else cause.rollback_code
            error = xa_error(code, f"{verb}: {cause.description or cause.condition}", xid)
        except (ConnectionLost, TimedOut) as why:
            if attempt.asked:
                self._discard(branch)
                raise xa_error(Code.XAER_RMFAIL, f"{verb}: {why}; its outcome is unknown here", xid) from None
            error = xa_error(Code.XA_RBCOMMFAIL, f"{verb}: {why}; none of its work was committed", xid)
        except BaseException:  # an interruption: it is unknown what has reached the broker
            self._discard(branch)
            raise
        else:
            self._over(branch, BranchVerb.COMMIT_ONE_PHASE, Code.XA_OK)
            return Code.XA_OK

        if attempt.loose:  # no other client could have the token as long as this connection lives
            branch.pooled.connection.drop()
        self._undo(branch)
        self._over(branch, BranchVerb.COMMIT_ONE_PHASE, error.code)
        raise error

    # --- what is left of a branch -----------------------------------------------------------------------------
    def _undo(self, branch: LocalBranch) -> None:
        """Rolls the local transaction back, by a discharge or by the end of its connection, which is as good."""
        channel, connection = branch.pooled.channel, branch.pooled.connection
        if not branch.pooled.is_reusable or not branch.work.txn_id:
            return
        try:
            connection.run(channel.undo(branch.work, self.connections.deadline()))
        except (ConnectionLost, TimedOut, RefusedError):
            connection.drop()
        channel.messages.recall = True
        branch.work.set_txn_id(b"")

    def _over(self, branch: LocalBranch, verb: BranchVerb, code: Code) -> None:
        """Nothing is left of the branch."""
        branch.move(verb, RESULT_OF[code])
        with self._lock:
            self._branches.pop(branch.xid, None)
        self.connections.pool.release(branch.pooled)

    def _discard(self, branch: LocalBranch) -> None:
        """Its connection is given up, and with it the branch."""
        with self._lock:
            self._branches.pop(branch.xid, None)
        self.connections.pool.release(branch.pooled, keep=False)

    # --- decisions and leases ---------------------------------------------------------------------------------
    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        """XA_RETRY: another process holds the lease token for too long."""
        log, now_ms = self._decisions, int(self._wall() * 1000)
        lease = Lease(owner, now_ms + int(lease_s * 1000), floor, ceiling, now_ms)
        deadline = self.connections.deadline()
        try:
            self.guarded("hold", None, lambda: log.hold(lease, now_ms, deadline))
        except TooManyLeasesError as error:
            raise xa_error(Code.XAER_RMERR, f"hold: {error}") from None

    def owners(self) -> Sequence[Owner]:
        """XA_RETRY where somebody holds the lease token for too long."""
        log, deadline = self._decisions, self.connections.deadline()
        token = self.guarded("owners", None, lambda: log.leases(deadline))
        return [lease.owner for lease in token.running(int(self._wall() * 1000))]

    def incarnations(self, node: str) -> Sequence[NotedIncarnation]:
        """XA_RETRY where somebody holds the lease token for too long."""
        log, deadline = self._decisions, self.connections.deadline()
        token = self.guarded("incarnations", None, lambda: log.leases(deadline))
        return [
            NotedIncarnation(lease.owner.incarnation, lease.floor, lease.ceiling, lease.noted_ms / 1000)
            for lease in token.leases
            if lease.owner.node == node
        ]

    def settle(self, gtrid: bytes) -> bytes | None:
        log, deadline = self._decisions, self.connections.deadline()
        return self.guarded("settle", None, lambda: log.settle(gtrid, deadline))

    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        """XA_RETRY: another process holds one of the tokens for too long."""
        log, deadline = self._decisions, self.connections.deadline()
        return self.guarded("decisions", None, lambda: log.page(after, count, deadline))

    def end_decisions(self, gtrids: Sequence[bytes]) -> None:
        """The next decision of their slot removes them. If the process dies before, recovery finds them and ends them
        again."""
        log, deadline = self._decisions, self.connections.deadline()
        self.guarded("end_decisions", None, lambda: log.end(gtrids, deadline))

    def guarded(self, verb: str, xid: Xid | None, call: Callable[[], T]) -> T:
        """Makes a call, and raises its errors as XA errors."""
        try:
            return call()
        except RefusedError as error:
            raise refusal_error(verb, error.refusal, xid) from None
        except WrongTokenError as error:
            raise xa_error(Code.XAER_RMERR, f"{verb}: {error}", xid) from None
        except (TokenBusyError, AllInUse) as why:
            raise xa_error(Code.XA_RETRY, f"{verb}: {why}", xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error(verb, why, xid) from None


def _unusable_queues(error: RefusedError, settings: Settings, slots: int) -> XaError:
    """The error for a broker that does not let this user use the token queues."""
    cause, name = error.refusal, settings.token_queue
    if settings.topic:
        return xa_error(
            Code.XAER_RMERR,
            f"open: the subscriptions for the tokens can't be used: {cause.description or cause.condition} "
            f"({cause.condition}). Ask an administrator to create in the topic {settings.topic} the subscriptions "
            f"{name} and {name}.0 to {name}.{slots}, each with one rule, the correlation filter To = its own name, and "
            "with no expiry (docs/service-bus.md has the commands), and to allow this user to send to the topic and to "
            "listen to its subscriptions",
        )

    return xa_error(
        Code.XAER_RMERR,
        f"open: the token queues can't be used: {cause.description or cause.condition} ({cause.condition}). Ask an "
        f"administrator to create the queues {name} and {name}.0 to {name}.{slots}, with neither expiry nor "
        "dead-lettering, and to allow this user to send to, to consume from and to browse them",
    )
