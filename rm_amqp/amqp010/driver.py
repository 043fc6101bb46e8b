"""The driver of a broker with AMQP 0-10's class `dtx`, behind the XA verbs of `xa.switch`.

Work for a branch is done over a channel, which a thread of control has to itself from its first association until none
is left. Branches are completed over channels of their own. What Broker-J does differently from XA is guarded against
here, as far as that can be; docs/qpid.md says what remains:

- It prepares rollback-only branches, and joins prepared ones: `rm_amqp.amqp010.branches` knows both.
- Its timer rolls back prepared branches. It is set when a branch begins, so that what a dead client leaves is freed,
  and set to none in the same write as the prepare. If by our clock it may have fired before that, the branch is rolled
  back.
- It compares xids without the format id: before a branch of somebody else is completed, the list of prepared branches
  is read, which has them whole.
- It refuses a command by an exception that ends the session. Sessions at work are spared that where it can be foreseen.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, TypeVar

from rm_amqp.amqp010.branches import MARGIN, Branch, Branches, BranchState
from rm_amqp.amqp010.channel import ILLEGAL_STATE, NOT_ALLOWED, NOT_FOUND, Refused, connect
from rm_amqp.amqp010.qpid_session import QpidSession
from rm_amqp.amqp010.settings import parse
from rm_amqp.amqp010.structs import (
    DtxCommit,
    DtxEnd,
    DtxForget,
    DtxGetTimeout,
    DtxPrepare,
    DtxRecover,
    DtxRollback,
    DtxSetTimeout,
    DtxStart,
    GetTimeoutResult,
    RecoverResult,
    WireXid,
    XaResult,
    xids_of,
)
from rm_amqp.amqp010.values import WireError
from rm_amqp.amqp010.work import Work
from rm_amqp.errors import AllInUse, Cause, ConnectionLost, TimedOut, lost_error
from xa import FORMAT_ID, Code, XaError, Xid, xa_error
from xa.driver import Driver
from xa.pool import ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rm_amqp.amqp010.channel import Channel
    from rm_amqp.amqp010.settings import Settings010
    from rm_amqp.amqp010.structs import Command, Struct
    from xa.driver import Pending, SessionContext

T = TypeVar("T")
S = TypeVar("S", bound="Struct")
CLOSE_S: Final = 2.0
COMMAND_CHANNELS: Final = 8
APPLICATION_S: Final = 0.5
"""So long the manager waits for the application's thread, which has the channel while it waits for a message."""
NOTICED_S: Final = (0.01, 0.03, 0.1, 0.3, 0.6)
"""How long the broker may take, at each try, to notice that a connection of ours was lost."""
MAX_SEEN: Final = 100_000
_STATUS: Final = {
    0: Code.XA_OK,
    1: Code.XA_RBROLLBACK,
    2: Code.XA_RBTIMEOUT,
    3: Code.XA_HEURHAZ,
    4: Code.XA_HEURCOM,
    5: Code.XA_HEURRB,
    6: Code.XA_HEURMIX,
    7: Code.XA_RDONLY,
}
_ROLLED_BACK: Final = {Code.XA_RBROLLBACK, Code.XA_RBTIMEOUT}
_REFUSALS: Final = {NOT_FOUND: Code.XAER_NOTA, ILLEGAL_STATE: Code.XAER_PROTO}
"""What a refused command says of a branch."""


class QpidDriver(Driver[Work]):
    """One instance. `clock`, `connect` and `sleep` are the machine's."""

    name = "xabridge amqp 0-10"

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        connect: Callable[[Settings010, float, Callable[[], float]], Channel] = connect,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.clock = clock
        self._sleep = sleep
        self.branches = Branches()
        self.server: dict[str, object] = {}
        """What the broker says of itself."""
        self._connect = connect
        self._settings: Settings010 | None = None
        self._work: ConnectionPool[Channel] | None = None
        self._commands: ConnectionPool[Channel] | None = None
        self._seen: set[Xid] = set()
        """Xids that a scan has shown, whole."""
        self._number = os.urandom(8).hex()

    @property
    def settings(self) -> Settings010:
        """The settings in the open string."""
        if self._settings is None:
            raise _not_open()
        return self._settings

    @property
    def identity(self) -> str:
        """A branch that is not prepared belongs to the instance that began it."""
        return f"{self.settings.url}#{self._number}"

    def deadline(self, timeout_s: float | None = None) -> float:
        """The time that is so many seconds from now; None: as settings say."""
        return self.clock() + (self.settings.timeout_s if timeout_s is None else timeout_s)

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        self.look(open_string)
        try:
            self._stop_timers()
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("open", why) from None
        except Refused as why:
            raise xa_error(Code.XAER_RMERR, f"open: {why}") from None

    def look(self, open_string: str) -> None:
        """Opens it, and asks the broker for what is prepared; that changes nothing there."""
        settings = parse(open_string)
        if self._work is not None and settings != self._settings:
            raise xa_error(Code.XAER_INVAL, "open: is open already, with another open string")
        if settings.tls:
            settings.tls_context()
        if self._work is None:
            self._settings = settings
            self._work = self._new_pool(settings.channels)
            self._commands = self._new_pool(COMMAND_CHANNELS)
        try:
            self.prepared()
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("open", why) from None
        except Refused as why:
            raise xa_error(Code.XAER_RMERR, f"open: {why}") from None

    def _new_pool(self, most: int) -> ConnectionPool[Channel]:
        advice = "end other work, or allow more with channels= in the open string"
        return ConnectionPool(
            self._new_channel, most, 0.0, AllInUse, what="channels", advice=advice, reserve=0, clock=self.clock
        )

    def _new_channel(self, deadline: float) -> Channel:
        channel = self._connect(self.settings, deadline, self.clock)
        self.server = channel.connection.server
        return channel

    def _stop_timers(self) -> None:
        """Stops the timers of prepared branches of ours, which no timer may touch. (A broker may set one again when it
        restarts.)"""
        for xid, timeout_s in self.timers():
            if timeout_s and xid.format_id == FORMAT_ID:
                try:
                    self.ask(DtxSetTimeout(on_wire(xid), 0), None)
                except Refused:  # it was completed
                    continue

    def timers(self) -> Iterator[tuple[Xid, int]]:
        """The prepared branches, and the seconds after which the broker would roll each of them back; 0: never."""
        for xid in self.prepared():
            try:
                yield xid, self.ask(DtxGetTimeout(on_wire(xid)), GetTimeoutResult).timeout or 0
            except Refused:  # it was completed
                continue

    def close(self, works: Sequence[Work]) -> None:
        for work in works:
            self._gone(work, Code.XA_RBROLLBACK)
        deadline = self.clock() + CLOSE_S
        for channel in self._channels():
            channel.close(deadline)

    def drop(self) -> None:
        for channel in self._channels():
            channel.drop()

    def break_off(self) -> None:
        for pool in (self._work, self._commands):
            if pool is not None:
                pool.break_off()

    def start_over(self) -> None:
        self._work = self._commands = None
        self.branches.clear()
        self._number = os.urandom(8).hex()

    def _channels(self) -> list[Channel]:
        """The channels of the pools, which are not used any more."""
        pools = [pool for pool in (self._work, self._commands) if pool is not None]
        self._work = self._commands = None
        return [channel for pool in pools for channel in pool.close_all()]

    # --- associations -----------------------------------------------------------------------------------------
    def begin(self, xid: Xid, beside: Sequence[Work], *, wait: bool) -> Work:
        timeout_s = self.settings.branch_timeout_s
        until = self.clock() + timeout_s * (1 - MARGIN) if timeout_s else float("inf")
        branch = Branch(until)
        if not self.branches.add(xid, branch):
            raise xa_error(Code.XAER_DUPID, "start: there is such a branch", xid)
        commands: list[Command] = [DtxStart(on_wire(xid))]
        if timeout_s:
            commands.append(DtxSetTimeout(on_wire(xid), timeout_s))

        try:
            work = self._associate(xid, beside, commands, wait=wait)
        except Refused as error:
            self.branches.remove(xid)
            if error.code == NOT_ALLOWED:
                raise xa_error(Code.XAER_DUPID, f"start: {error.description}", xid) from None
            raise xa_error(Code.XAER_RMERR, f"start: {error.description}", xid) from None
        except XaError as error:
            if error.code is Code.XAER_RMFAIL:  # whether it exists is unknown; no work can be done in it
                branch.failed = Code.XA_RBCOMMFAIL
            else:
                self.branches.remove(xid)
            raise
        except BaseException:
            branch.failed = Code.XA_RBCOMMFAIL
            raise
        self.branches.joined(branch)
        return work

    def join(self, xid: Xid, beside: Sequence[Work], *, wait: bool) -> Work:
        branch = self.branches.get(xid)
        if branch is None:
            if self.knows(xid):
                message = "join: only the instance that began a branch can join it at this broker"
                raise xa_error(Code.XAER_PROTO, message, xid)
            raise xa_error(Code.XAER_NOTA, "join: there is no such branch", xid)
        if branch.failed is not None:
            raise xa_error(branch.failed, "join: the branch can only be rolled back", xid)
        if branch.state is not BranchState.ACTIVE:
            raise xa_error(Code.XAER_PROTO, "join: the branch is prepared, or may be", xid)
        self.branches.joined(branch)  # before the broker is asked: no prepare may be between

        try:
            return self._associate(xid, beside, [DtxStart(on_wire(xid), join=True)], wait=wait)
        except Refused as error:
            self.branches.left(branch)
            self.branches.remove(xid)
            raise xa_error(Code.XAER_NOTA, f"join: {error.description}", xid) from None
        except XaError as error:
            self.branches.left(branch, Code.XA_RBCOMMFAIL if error.code is Code.XAER_RMFAIL else None)
            raise
        except BaseException:
            self.branches.left(branch, Code.XA_RBCOMMFAIL)
            raise

    def _associate(self, xid: Xid, beside: Sequence[Work], commands: list[Command], *, wait: bool) -> Work:
        """Sends the first of these, and what follows it, over the thread's channel, and waits for its result."""
        deadline = self.deadline()
        channel = beside[0].channel if beside else self._take(xid, deadline, wait=wait)
        work = Work(xid, channel)
        channel.works += 1

        try:
            with channel.lock:
                channel.renew(deadline)
                numbers = [channel.send(command) for command in commands]
                result = channel.wait_result(numbers[0], XaResult, deadline)
        except Refused:
            self._discard(channel)
            raise
        except (ConnectionLost, TimedOut) as why:
            self._discard(channel)
            raise lost_error("start", why, xid) from None
        except BaseException:
            channel.drop()
            self._discard(channel)
            raise
        code = _STATUS.get(result.status or 0, Code.XAER_RMERR)
        if code is not Code.XA_OK:
            self._discard(channel)
            raise xa_error(code, "start: the broker did not begin the work", xid)
        return work

    def _take(self, xid: Xid, deadline: float, *, wait: bool) -> Channel:
        if self._work is None:
            raise _not_open()
        try:
            return self._work.acquire(work=True, wait=wait, deadline=deadline)
        except AllInUse as why:
            raise xa_error(Code.XA_RETRY, f"start: {why}", xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error("start", why, xid) from None
        except Refused as why:
            raise xa_error(Code.XAER_RMERR, f"start: {why}", xid) from None

    def suspend(self, work: Work, *, migrate: bool) -> Code:
        """An association can be resumed only over the session that it was suspended on, which its thread has."""
        self._end(work, [], suspend=True)
        return Code.XA_NOMIGRATE if migrate else Code.XA_OK

    def resume(self, work: Work, *, wait: bool) -> Work:
        del wait  # the thread has its channel
        branch = self.branches.get(work.xid)
        if branch is None or branch.failed is not None:
            code = branch.failed if branch is not None and branch.failed is not None else Code.XA_RBROLLBACK
            self.end(work, fail=True)
            raise xa_error(code, "start: the branch can only be rolled back", work.xid)
        deadline = self.deadline()
        try:
            with work.channel.lock:
                number = work.channel.send(DtxStart(on_wire(work.xid), resume=True))
                work.channel.wait_result(number, XaResult, deadline)
        except (Refused, ConnectionLost, TimedOut) as why:
            raise self._lost_work("start", work, why) from None
        work.suspended = False
        return work

    def end(self, work: Work, *, fail: bool) -> Code:
        branch = self.branches.get(work.xid)
        failed = branch.failed if branch is not None else Code.XA_RBROLLBACK
        if failed is None and branch is not None and self.clock() >= branch.until:
            failed = Code.XA_RBTIMEOUT
        if not work.channel.lock.acquire(timeout=APPLICATION_S if fail else -1):
            self._break_off(work)
            return Code.XA_OK

        try:
            result = self._end(
                work, list(work.outcomes(fail=fail or failed is not None)), fail=fail or failed is not None
            )
            unrouted = work.unrouted()
        finally:
            work.channel.lock.release()

        code = _STATUS.get(result.status or 0, Code.XAER_RMERR)
        words = "end: the branch can only be rolled back"
        if failed is None and code is not Code.XA_OK:
            failed = code
        elif failed is None and unrouted:
            failed, words = Code.XA_RBOTHER, f"end: the broker did not take a message that was sent: {unrouted}"
        raised = failed
        if fail and failed is None:
            failed = Code.XA_RBROLLBACK
        work.ended = True
        if branch is not None:
            self.branches.left(branch, failed)
        self._leave(work.channel, used_up=code is not Code.XA_OK)
        if raised is not None:
            raise xa_error(raised, words, work.xid)
        return Code.XA_OK

    def _break_off(self, work: Work) -> None:
        """Ends work whose thread waits for a message: the broker hears of it by the end of the connection."""
        self._gone(work, Code.XA_RBROLLBACK)
        work.channel.break_off()
        with work.channel.lock:  # its thread has noticed
            self._leave(work.channel, used_up=True)

    def _end(self, work: Work, outcomes: list[Command], *, fail: bool = False, suspend: bool = False) -> XaResult:
        """Ends or suspends an association at the broker, behind the outcomes of its messages."""
        deadline, channel, xid = self.deadline(), work.channel, on_wire(work.xid)
        try:
            with channel.lock:
                if work.suspended:
                    channel.send(DtxStart(xid, resume=True))
                for outcome in outcomes:
                    channel.send(outcome)
                number = channel.send(DtxEnd(xid, fail=fail, suspend=suspend))
                result = channel.wait_result(number, XaResult, deadline)
        except (Refused, ConnectionLost, TimedOut) as why:
            raise self._lost_work("end", work, why) from None
        work.suspended = suspend
        return result

    @staticmethod
    def _lost_work(verb: str, work: Work, why: Refused | ConnectionLost | TimedOut) -> XaError:
        """The work can't go on: a refusal has ended its session too."""
        work.channel.drop()
        if isinstance(why, Refused):
            why = ConnectionLost(
                Cause.LOST, f"the broker refused ({why.code}: {why.description}) and ended the session"
            )
        return lost_error(verb, why, work.xid)

    def is_lost(self, work: Work) -> bool:
        return work.channel.broken

    def lose(self, works: Sequence[Work], why: XaError) -> None:
        del why
        for work in works:
            self._gone(work, Code.XA_RBCOMMFAIL)
            work.channel.drop()
            self._leave(work.channel)

    def _gone(self, work: Work, code: Code) -> None:
        """The work has ended without an end."""
        branch = self.branches.get(work.xid)
        if branch is not None and not work.ended:
            self.branches.left(branch, code)
        work.ended = True

    def _leave(self, channel: Channel, *, used_up: bool = False) -> None:
        """The thread gives the channel back, where no other work is left on it."""
        channel.works -= 1
        if used_up:
            channel.drop()
        if not channel.works and self._work is not None:
            self._work.release(channel)

    def _discard(self, channel: Channel) -> None:
        """Work was not begun. Where other work is on the channel, only that is lost which the broker ended."""
        channel.works -= 1
        if channel.works:
            channel.drop()
        elif self._work is not None:
            self._work.release(channel, keep=False)

    def knows(self, xid: Xid) -> bool:
        if self.branches.get(xid) is not None:
            return True
        try:
            self._asked("recover", DtxGetTimeout(on_wire(xid)), GetTimeoutResult, xid)
        except XaError as error:
            if error.code is Code.XAER_RMFAIL:
                raise
            return False
        return not self._is_anothers(xid)

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, work: Work | None, context: SessionContext[Work]) -> QpidSession:
        del work  # each operation asks for it
        return QpidSession(self.deadline, context)

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        branch = self.branches.get(xid)
        if branch is None:
            raise self._not_ours(xid)
        self._check_ended("prepare", xid, branch)
        if branch.state is not BranchState.ACTIVE:
            raise xa_error(Code.XAER_PROTO, "prepare: the branch is prepared, or may be", xid)
        if branch.failed is None and self.clock() >= branch.until:
            branch.failed = Code.XA_RBTIMEOUT
        if branch.failed is not None:
            raise self._rolled_back("prepare", xid, branch.failed)

        branch.state = BranchState.UNKNOWN
        no_timer = DtxSetTimeout(on_wire(xid), 0)  # also where we set none: the broker may have one of its own
        try:
            code = self._complete("prepare", [no_timer, DtxPrepare(on_wire(xid))], xid)
        except XaError as error:
            if error.code is Code.XAER_NOTA:
                self.branches.remove(xid)
            elif error.code is not Code.XAER_RMFAIL:
                branch.state = BranchState.ACTIVE
            raise

        if code is Code.XA_OK and self.clock() >= branch.until:  # the timer may have been at it before it was stopped
            code = Code.XA_RBTIMEOUT
        if code is Code.XA_OK:
            branch.state = BranchState.PREPARED
            return code
        if code is Code.XA_RDONLY:
            self.branches.remove(xid)
            return code
        raise self._rolled_back("prepare", xid, code)

    def _not_ours(self, xid: Xid) -> XaError:
        """What prepare answers for a branch that another instance began: it is unknown here whether all of its work was
        done. So it is rolled back, unless it is prepared, or somebody is at work in it."""
        prepared = set(self._asked_prepared("prepare", xid))
        if xid in prepared:
            return xa_error(Code.XAER_PROTO, "prepare: the branch is prepared", xid)
        if not any(_looks_alike(xid, other) for other in prepared):
            self._roll_back(xid)
        return xa_error(
            Code.XAER_NOTA, "prepare: this instance began no such branch; what there was is rolled back", xid
        )

    def _roll_back(self, xid: Xid) -> None:
        """Rolls back what is left of a branch. XAER_PROTO: somebody is at work in it. XAER_RMFAIL."""
        try:
            self._tell_rollback(xid, self.branches.get(xid))
        except XaError as error:
            if error.code is not Code.XAER_NOTA:
                raise

    def _tell_rollback(self, xid: Xid, branch: Branch | None) -> Code:
        """Where an association of ours was lost, the broker may take a moment to notice, and says that somebody is at
        work until then. XA_RETRY: it took too long, and nothing has happened."""
        lost = branch is not None and branch.failed is not None
        for pause_s in NOTICED_S:
            try:
                return self._complete("rollback", [DtxRollback(on_wire(xid))], xid)
            except XaError as error:
                if error.code is not Code.XAER_PROTO or not lost:
                    raise
            self._sleep(pause_s)
        message = "rollback: the broker has not noticed yet that the connection was lost; ask again"
        raise xa_error(Code.XA_RETRY, message, xid)

    def _rolled_back(self, verb: str, xid: Xid, code: Code) -> XaError:
        """Rolls back a branch that can't be committed; the error that says so."""
        self._roll_back(xid)
        self.branches.remove(xid)
        return xa_error(code, f"{verb}: the branch was rolled back", xid)

    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Code | Pending:
        del later
        branch = self.branches.get(xid)
        if branch is not None:
            self._check_ended("commit", xid, branch)
            if one_phase is not (branch.state is BranchState.ACTIVE) and branch.state is not BranchState.UNKNOWN:
                raise xa_error(Code.XAER_PROTO, f"commit: the branch is {branch.state.value}", xid)
            if one_phase and branch.failed is None and self.clock() >= branch.until:
                branch.failed = Code.XA_RBTIMEOUT
            if one_phase and branch.failed is not None:
                raise self._rolled_back("commit", xid, branch.failed)
        else:
            self._check_whole("commit", xid)

        code = self._outcome(xid, lambda: self._complete("commit", [DtxCommit(on_wire(xid), one_phase)], xid))
        if code in _ROLLED_BACK and one_phase:
            raise self._rolled_back("commit", xid, code)
        if code in _ROLLED_BACK:  # a timer of the broker, or of another client
            self._roll_back(xid)
            self.branches.remove(xid)
            raise xa_error(Code.XAER_RMERR, "commit: the broker has rolled back the prepared branch", xid)
        return self._completed("commit", xid, code)

    def rollback(self, xid: Xid, *, later: bool) -> Code | Pending:
        del later
        branch = self.branches.get(xid)
        if branch is not None:
            self._check_ended("rollback", xid, branch)
        else:
            self._check_whole("rollback", xid)
        return self._completed("rollback", xid, self._outcome(xid, lambda: self._tell_rollback(xid, branch)))

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        """Broker-J completes nothing heuristically."""
        del later
        branch = self.branches.get(xid)
        if branch is not None:
            raise xa_error(Code.XAER_PROTO, "forget: the branch was not completed heuristically", xid)
        self._check_whole("forget", xid)
        self._asked("forget", DtxForget(on_wire(xid)), None, xid)
        return Code.XA_OK

    def _completed(self, verb: str, xid: Xid, code: Code) -> Code:
        """The branch is gone, unless it was completed heuristically."""
        if code is Code.XA_OK or code in _ROLLED_BACK:
            self.branches.remove(xid)
        self._seen.discard(xid)
        if code is not Code.XA_OK:
            raise xa_error(code, f"{verb}: the broker says so", xid)
        return code

    @staticmethod
    def _check_ended(verb: str, xid: Xid, branch: Branch) -> None:
        if branch.works > 0:
            raise xa_error(Code.XAER_PROTO, f"{verb}: {branch.works} associations of the branch have not ended", xid)

    def _check_whole(self, verb: str, xid: Xid) -> None:
        """XAER_NOTA: what the broker would take for the branch differs in its format id."""
        if xid not in self._seen and self._is_anothers(xid):
            raise xa_error(Code.XAER_NOTA, f"{verb}: there is no such branch; another format id has one", xid)

    def _is_anothers(self, xid: Xid) -> bool:
        return any(_looks_alike(xid, other) for other in self._asked_prepared("recover", xid))

    def _outcome(self, xid: Xid, complete: Callable[[], Code]) -> Code:
        try:
            return complete()
        except XaError as error:
            if error.code is Code.XAER_NOTA:
                self.branches.remove(xid)
                self._seen.discard(xid)
            raise

    def _complete(self, verb: str, commands: list[Command], xid: Xid) -> Code:
        """Sends commands, and the code that the last of them comes to."""

        def asked(channel: Channel, deadline: float) -> XaResult:
            numbers = [channel.send(command) for command in commands]
            return channel.wait_result(numbers[-1], XaResult, deadline)

        status = self._translated(verb, xid, lambda: self._with_channel(asked)).status or 0
        if status not in _STATUS:
            raise lost_error(verb, ConnectionLost(Cause.LOST, f"the broker answered with the status {status}"), xid)
        return _STATUS[status]

    # --- asking -----------------------------------------------------------------------------------------------
    def _with_channel(self, ask: Callable[[Channel, float], T]) -> T:
        """Asks over a channel that is no thread's, so that none waits for the one that it has at work itself."""
        pool, deadline = self._commands, self.deadline()
        if pool is None:
            raise _not_open()
        channel = pool.acquire(work=True, deadline=deadline)
        try:
            with channel.lock:
                channel.renew(deadline)
                return ask(channel, deadline)
        except (Refused, ConnectionLost, TimedOut, XaError):
            raise
        except BaseException:  # an interruption: it is unknown what has reached the broker
            channel.drop()
            raise
        finally:
            pool.release(channel)

    def ask(self, command: Command, of: type[S] | None) -> S:
        """The result of a command; of one that has none, its completion. Refused, ConnectionLost, TimedOut."""

        def asked(channel: Channel, deadline: float) -> S:
            number = channel.send(command, sync=of is None)
            if of is None:
                channel.wait_complete(number, deadline)
                return None  # type: ignore[return-value]
            return channel.wait_result(number, of, deadline)

        return self._with_channel(asked)

    def _asked(self, verb: str, command: Command, of: type[S] | None, xid: Xid) -> S:
        """The same, with errors as XA has them."""
        return self._translated(verb, xid, lambda: self.ask(command, of))

    def _translated(self, verb: str, xid: Xid | None, call: Callable[[], T]) -> T:
        try:
            return call()
        except Refused as error:
            code = _REFUSALS.get(error.code)
            if code is None:  # 541: its store failed; what is on disk is unknown
                why = ConnectionLost(Cause.LOST, f"the broker failed ({error.code}: {error.description})")
                raise lost_error(verb, why, xid) from None
            raise xa_error(code, f"{verb}: {error.description}", xid) from None
        except AllInUse as why:
            raise xa_error(Code.XA_RETRY, f"{verb}: {why}", xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise lost_error(verb, why, xid) from None

    def prepared(self) -> list[Xid]:
        """The prepared branches; Refused, ConnectionLost, TimedOut."""
        result = self.ask(DtxRecover(), RecoverResult)
        try:
            found = [Xid(wire.format or 0, wire.global_id or b"", wire.branch_id or b"") for wire in xids_of(result)]
        except (WireError, ValueError) as error:
            raise ConnectionLost(Cause.LOST, f"the broker lists what is no xid: {error}") from None
        return found

    def _asked_prepared(self, verb: str, xid: Xid | None) -> list[Xid]:
        return self._translated(verb, xid, self.prepared)

    def scan(self, page: int) -> Iterator[Xid]:
        del page  # the broker tells all at once
        found = list(dict.fromkeys(self._asked_prepared("recover", None)))
        if len(self._seen) + len(found) > MAX_SEEN:
            self._seen.clear()
        self._seen.update(found[:MAX_SEEN])
        return iter(found)


def on_wire(xid: Xid) -> WireXid:
    """The xid as the broker has it."""
    return WireXid(xid.format_id, xid.gtrid, xid.bqual)


def _looks_alike(xid: Xid, other: Xid) -> bool:
    """Whether the broker takes them for the same branch, and they are not."""
    return xid.gtrid == other.gtrid and xid.bqual == other.bqual and xid.format_id != other.format_id


def _not_open() -> XaError:
    return xa_error(Code.XAER_PROTO, "the resource manager is not open")
