"""The driver of an AMQP 1.0 broker with distributed transactions, behind the XA verbs of `xa.switch`.

Work for a branch is done over a transactional channel, which a thread of control has to itself from its first
association until none is left: while it has suspended work, it begins other work on the same channel. Branches are
completed over the command channel, by any process. The broker keeps the state of branches, and refuses what the state
tables refuse.

When work is lost, its channel is closed, because the broker must notice: it makes the branch rollback-only.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.conditions import Condition
from dtx.protocol.commands import MAX_PAGE, Commit, Forget, GetTimeout, Prepare, Recover, Rollback
from dtx.protocol.conditions import RefusedError
from dtx.protocol.replies import Recovered
from dtx.protocol.replies import Result as BrokerResult
from rm_amqp.channel.channel import DistributedChannel, open_distributed
from rm_amqp.channel.encoded_commands import coordination
from rm_amqp.channel.work import ENDED, Work, WorkEvent
from rm_amqp.connection.links import ATTACHED
from rm_amqp.connections import Connections, not_begun
from rm_amqp.errors import LEFT_BEHIND, AllInUse, ConnectionLost, TimedOut, lost_error, refusal_error
from rm_amqp.session import Session
from rm_amqp.settings import parse
from xa import EXCEPTIONS, NULL_XID, ROLLBACK_CODES, TMREGISTER, TMUSEASYNC, Code, XaError, xa_error
from xa.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dtx.protocol.commands import Coordination
    from dtx.protocol.conditions import Refusal
    from dtx.protocol.replies import Details, Reply
    from rm_amqp.channel.command_channel import Request
    from rm_amqp.channel.message_links import MessageLinks
    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.connection.links import Answer
    from rm_amqp.connections import Environment
    from xa import Xid
    from xa.driver import Pending, SessionContext

T = TypeVar("T")
MAX_PREFETCHED: Final = 4096
"""Undecided branches of which it is known where they received, with messages ahead."""
_MEANT: Final = {
    "prepare": "the branch can't be prepared",
    "commit": "the branch was not committed as asked",
    "rollback": "the branch was not rolled back as asked",
}


class BranchWork(Work):
    """Work over a channel for distributed transactions."""

    __slots__ = ()

    pooled: PooledChannel[DistributedChannel]


class ReceivingBranches:
    """Branches that received, where messages are ahead, have ended and are undecided. When one of them does not commit,
    what was prefetched on its channel has to be returned (`rm_amqp.channel.message_links`)."""

    def __init__(self) -> None:
        self.links: dict[Xid, MessageLinks] = {}
        """Where each of them received."""
        self._lock = threading.Lock()

    def add(self, xid: Xid, links: MessageLinks) -> None:
        """The branch received over these links."""
        with self._lock:
            if len(self.links) >= MAX_PREFETCHED:
                self.links.pop(next(iter(self.links))).recall = True
            self.links[xid] = links

    def decided(self, verb: str, xid: Xid, code: Code) -> None:
        """A verb for the branch came to this."""
        if verb == "prepare" and code is Code.XA_OK:
            return
        with self._lock:
            links = self.links.pop(xid, None)
        if links is not None and not (verb == "commit" and code is Code.XA_OK):
            links.recall = True


class AmqpDriver(Driver[BranchWork]):
    """One instance. `flags` are the switch's: TMUSEASYNC, and TMREGISTER for one that registers dynamically."""

    name = "xabridge amqp"

    def __init__(self, flags: int, environment: Environment) -> None:
        if flags & ~(TMREGISTER | TMUSEASYNC):
            raise ValueError(f"not switch flags of this resource manager: {flags:#x}")
        self.flags = flags
        self.connections = Connections(environment, open_distributed)
        self.receiving = ReceivingBranches()
        self._opened = False
        """Whether `open` has succeeded since the connections were closed."""

    @property
    def identity(self) -> str:
        """Starts without a wait can't be joined in time: with `ahead` every instance stands for itself, and has
        branches of its own in a transaction."""
        settings = self.connections.settings
        return f"{settings.identity}#{self.connections.container}" if settings.ahead else settings.identity

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        """The broker is asked over both kinds of channels."""
        settings, connections = parse(open_string), self.connections
        if connections.is_open and settings != connections.settings and self._opened:
            raise xa_error(Code.XAER_INVAL, "open: is open already, with another open string")
        connections.use(settings)
        try:
            deadline = connections.deadline()
            with contextlib.suppress(AllInUse):  # they are: the broker was reached
                connections.pool.release(connections.pool.acquire(work=True, wait=False, deadline=deadline))
            connections.commands.channel(deadline)
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("open", why) from None
        self._opened = True

    def close(self, works: Sequence[BranchWork]) -> None:
        del works  # their channels are closed
        self.connections.close()
        self._opened = False

    def drop(self) -> None:
        self.connections.drop()
        self._opened = False

    def break_off(self) -> None:
        self.connections.break_off()

    def start_over(self) -> None:
        self.connections.forget()
        self.receiving = ReceivingBranches()  # another thread may have held the parent's lock
        self._opened = False

    # --- associations -----------------------------------------------------------------------------------------
    def begins_at_once(self) -> bool:
        return self.connections.is_open and self.connections.settings.ahead and self.connections.pool.is_idle

    def begin(self, xid: Xid, beside: Sequence[BranchWork], *, wait: bool, join: bool = False) -> BranchWork:
        connections = self.connections
        deadline = connections.deadline()
        try:
            pooled = beside[0].pooled if beside else connections.pool.acquire(work=True, wait=wait, deadline=deadline)
        except (ConnectionLost, TimedOut) as why:
            raise not_begun(why, xid) from None
        work = BranchWork(xid)
        work.pooled = pooled
        pooled.works += 1

        try:
            pooled.connection.run(pooled.channel.begin(work, deadline, join=join), later=True)
        except RefusedError as error:
            self.leave(work)
            raise refusal_error("start", error.refusal, xid) from None
        except (ConnectionLost, TimedOut) as why:
            self._discard(work)
            raise lost_error("start", why, xid) from None
        except BaseException:  # an interruption: it is unknown what has reached the broker
            self._discard(work)
            raise
        return work

    def join(self, xid: Xid, beside: Sequence[BranchWork], *, wait: bool) -> BranchWork:
        return self.begin(xid, beside, wait=wait, join=True)

    def resume(self, work: BranchWork, *, wait: bool) -> BranchWork:
        del wait  # the thread has its channel
        try:
            work.pooled.connection.run(work.pooled.channel.resume(work, self.connections.deadline()))
        except RefusedError as error:
            raised = refusal_error("start", error.refusal, work.xid)
            if work.state is ENDED or raised.code is Code.XAER_NOTA:
                self.leave(work)
            raise raised from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("start", why, work.xid) from None
        return work

    def suspend(self, work: BranchWork, *, migrate: bool) -> Code:
        """An association can be resumed only in the thread of control that suspended it, whose channel it is on."""
        self._run_end(work, work.pooled.channel.suspend(work, self.connections.deadline()))
        return Code.XA_NOMIGRATE if migrate else Code.XA_OK

    def end(self, work: BranchWork, *, fail: bool) -> Code:
        self._run_end(work, work.pooled.channel.end(work, self.connections.deadline(), fail=fail))
        self.leave(work)
        return Code.XA_OK

    def _run_end(self, work: BranchWork, steps: Steps[None]) -> None:
        try:
            work.pooled.connection.run(steps, later=True)
        except RefusedError as error:
            self.must_recall(work)
            self.leave(work)
            refusal = error.refusal
            if refusal.code not in ROLLBACK_CODES:  # it is no branch of ours: nothing of it can be prepared
                message = f"end: {refusal.description or refusal.condition}"
                code = Code.XA_RBTRANSIENT if refusal.code is Code.XA_RETRY else Code.XAER_RMERR
                raise xa_error(code, message, work.xid) from None
            raise refusal_error("end", refusal, work.xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("end", why, work.xid) from None
        if work.received:
            self.note_received(work)

    def is_lost(self, work: BranchWork) -> bool:
        return work.pooled.channel.control.state is not ATTACHED

    def lose(self, works: Sequence[BranchWork], why: XaError) -> None:
        del why
        for work in works:
            self._discard(work)

    def knows(self, xid: Xid) -> bool:
        try:
            self.exchange("recover", GetTimeout(xid), xid)
        except XaError as error:
            if error.code is Code.XAER_RMFAIL:
                raise
            return error.code is not Code.XAER_NOTA
        return True

    def leave(self, work: BranchWork) -> None:
        """The work has ended. Its thread gives the channel back, where no other work is left on it."""
        pooled = work.pooled
        pooled.works -= 1
        if not pooled.works:
            pooled.pool.release(pooled)

    def _discard(self, work: BranchWork) -> None:
        """The work is given up, and its channel with it, so that the broker notices."""
        if self.connections.is_open:
            self.connections.pool.release(work.pooled, keep=False)
        else:
            work.pooled.connection.drop()

    @staticmethod
    def must_recall(work: BranchWork) -> None:
        """The branch of this work will not commit."""
        messages = work.pooled.channel.messages
        messages.recall = messages.recall or work.received

    def note_received(self, work: BranchWork) -> None:
        """The work has ended, and received messages; its branch is undecided."""
        messages = work.pooled.channel.messages
        if self.connections.settings.prefetch or messages.is_ahead:
            self.receiving.add(work.xid, messages)

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, work: BranchWork | None, context: SessionContext[BranchWork]) -> Session:
        del work  # each operation asks for it
        return Session(self.connections, context)

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, *, later: bool) -> Pending:
        return self.complete("prepare", Prepare(xid), xid, later=later)

    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Pending:
        return self.complete("commit", Commit(xid, one_phase), xid, later=later)

    def rollback(self, xid: Xid, *, later: bool) -> Pending:
        return self.complete("rollback", Rollback(xid), xid, later=later)

    def forget(self, xid: Xid, *, later: bool) -> Pending:
        return self.complete("forget", Forget(xid), xid, later=later)

    def complete(self, verb: str, command: Coordination, xid: Xid, *, later: bool) -> Pending:
        """Sends a verb that completes a branch; without `later`, its result is waited for at once."""
        body, deadline = coordination(command), self.connections.deadline()
        try:
            channel = self.connections.commands.channel(deadline)
            request = channel.connection.step(partial(channel.send, body), later=not later)
        except (ConnectionLost, TimedOut) as why:
            raised = lost_error(verb, why, xid)
            self.receiving.decided(verb, xid, raised.code)
            raise raised from None
        return PendingOutcome(self, verb, xid, request, deadline)

    def end_and_prepare(self, work: BranchWork, *, later: bool) -> Pending:
        pooled, deadline = work.pooled, self.connections.deadline()
        try:
            answer = pooled.connection.run(pooled.channel.end_and_prepare(work, deadline), later=not later)
        except RefusedError as error:
            raise self.not_prepared(work, error.refusal) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("prepare", why, work.xid) from None
        return PendingVote(self, work, answer, deadline)

    def not_prepared(self, work: BranchWork, refusal: Refusal) -> XaError:
        """The result of a prepare where the end or the prepare was refused.

        A branch whose end was refused is rolled back here, as after a vote for it. Otherwise the channel is given up,
        and with it an association that has not ended. Where the broker's store had no room, the branch is rolled back
        here, too: the work may be tried again, and what it has done was no mistake."""
        xid = work.xid
        if self.receiving.links:
            self.receiving.decided("prepare", xid, refusal.code)

        if refusal.code in ROLLBACK_CODES:
            work.move(WorkEvent.END)
            self.leave(work)
            with contextlib.suppress(XaError):
                self.complete("rollback", Rollback(xid), xid, later=False).result()
                return refusal_error("prepare", refusal, xid)
        else:
            self._discard(work)
            if refusal.condition == Condition.RESOURCE_LIMIT and self._is_rolled_back(xid, refusal):
                return xa_error(Code.XA_RBTRANSIENT, f"prepare: {refusal.description}", xid)
        return xa_error(Code.XAER_RMERR, f"prepare: {refusal.description or refusal.condition}", xid)

    def _is_rolled_back(self, xid: Xid, refusal: Refusal) -> bool:
        """Rolls the branch back. One whose start was refused (XA_RETRY) is not there."""
        try:
            self.complete("rollback", Rollback(xid), xid, later=False).result()
        except XaError as error:
            return error.code is Code.XAER_NOTA and refusal.code is Code.XA_RETRY
        return True

    # --- recovery ---------------------------------------------------------------------------------------------
    def scan(self, page: int) -> Iterator[Xid]:
        for found in self.pages(Recover(NULL_XID, min(page, MAX_PAGE))):
            yield from found.in_doubt

    def details(self, page: int) -> Iterator[Details]:
        """Lists the same branches as `scan`, with what each of them holds."""
        for found in self.pages(Recover(NULL_XID, page, details=True)):
            yield from found.details

    def pages(self, first: Recover) -> Iterator[Recovered]:
        """The pages of a scan that begins with this command."""
        command = first
        while True:
            reply = self.exchange("recover", command, None)
            if not isinstance(reply, Recovered):
                raise xa_error(Code.XAER_RMERR, "recover: the broker answered something else")
            yield reply
            if not reply.more or not reply.in_doubt:
                return
            command = replace(command, after=reply.in_doubt[-1])

    # --- asking -----------------------------------------------------------------------------------------------
    def exchange(self, verb: str, command: Coordination, xid: Xid | None) -> Reply:
        """Sends a command, and waits for its answer; what is refused is raised."""
        body, deadline = coordination(command), self.connections.deadline()
        try:
            channel = self.connections.commands.channel(deadline)
            request = channel.connection.step(partial(channel.send, body), later=True)
            return channel.connection.run(channel.answer(request, deadline), later=True)
        except (RefusedError, ConnectionLost, TimedOut) as error:
            raise _error(verb, error, xid) from None


def _error(verb: str, error: RefusedError | ConnectionLost | TimedOut, xid: Xid | None) -> XaError:
    if isinstance(error, RefusedError):
        return refusal_error(verb, error.refusal, xid)
    return lost_error(verb, error, xid)


@dataclass(frozen=True, slots=True, eq=False)
class PendingOutcome:
    """A command that was sent, and whose answer is not collected yet: a `Pending` of the switch."""

    driver: AmqpDriver
    verb: str
    xid: Xid
    request: Request
    deadline: float

    def ready(self) -> bool:
        channel = self.request.channel
        channel.connection.refresh()
        answered = partial(channel.answered, self.request)
        return channel.endpoint.lost is not None or channel.connection.step(answered, later=True)

    def result(self) -> Code:
        """The code in the answer; what is no answer of XA's is raised."""
        verb, xid, request = self.verb, self.xid, self.request
        channel, receiving = request.channel, self.driver.receiving
        result: Code | XaError
        try:
            steps = channel.answer(request, self.deadline)
            reply = channel.connection.run(steps, later=True, ready=partial(channel.answered, request))
        except (RefusedError, ConnectionLost, TimedOut) as error:
            result = _error(verb, error, xid)
        else:
            if not isinstance(reply, BrokerResult):  # the answer to another question: it is unknown what was done
                message = f"{verb}: the broker answered something else{LEFT_BEHIND.get(verb, '')}"
                result = xa_error(Code.XAER_RMFAIL, message, xid)
            elif reply.code in EXCEPTIONS:
                result = xa_error(reply.code, f"{verb}: {_MEANT.get(verb, 'the broker says so')}", xid)
            else:
                result = reply.code

        if receiving.links:
            receiving.decided(verb, xid, result.code if isinstance(result, XaError) else result)
        if isinstance(result, XaError):
            raise result
        return result


@dataclass(frozen=True, slots=True, eq=False)
class PendingVote:
    """An end with prepare that was sent, and whose vote is not collected yet: a `Pending` of the switch."""

    driver: AmqpDriver
    work: BranchWork
    answer: Answer
    deadline: float

    def ready(self) -> bool:
        self.work.pooled.connection.refresh()
        return self.answer.there

    def result(self) -> Code:
        driver, work, xid = self.driver, self.work, self.work.xid
        try:
            steps = work.pooled.channel.vote(work, self.answer, self.deadline)
            code = work.pooled.connection.run(steps, later=True)
        except RefusedError as error:
            driver.must_recall(work)
            raise driver.not_prepared(work, error.refusal) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("prepare", why, xid) from None

        if work.received:
            driver.note_received(work)
        work.move(WorkEvent.END)
        driver.leave(work)
        if driver.receiving.links:
            driver.receiving.decided("prepare", xid, code)
        if code in EXCEPTIONS:
            raise xa_error(code, "prepare: the branch can't be prepared", xid)
        return code
