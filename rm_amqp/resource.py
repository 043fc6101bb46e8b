"""AmqpResource: the xa_switch of an AMQP 1.0 broker with distributed transactions."""

from __future__ import annotations

import contextlib
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from dtx.protocol.commands import MAX_PAGE, Commit, Forget, Prepare, Recover, Rollback
from dtx.protocol.replies import Recovered
from rm_amqp.connected import R1
from rm_amqp.coordinating import Coordinating
from rm_amqp.loss import AllInUse, ConnectionLost, TimedOut
from rm_amqp.reporting import REPORT_PAGE, diagnosed, reported
from rm_amqp.settings import parse
from rm_amqp.standing import MAX_OUTSTANDING, Operation, Scan
from xa import (
    TMASYNC,
    TMENDRSCAN,
    TMMULTIPLE,
    TMNOWAIT,
    TMONEPHASE,
    TMREGISTER,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMUSEASYNC,
    Code,
    Completion,
    Handle,
    XaError,
    check_flags,
    xa_error,
)
from xa.machine import advance
from xa.tables import (
    ASYNC,
    RESOURCE,
    AssociationVerb,
    AsyncState,
    AsyncVerb,
    ResourceVerb,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtx.protocol.commands import Coordination
    from rm_amqp.standing import Standing
    from xa import Registrar, Xid
    from xa.diagnosis import Diagnosis
    from xa.holdings import InDoubtBranch


class AmqpResource(Coordinating):
    """One instance. `flags` are the switch's: TMUSEASYNC, and TMREGISTER for one that registers dynamically.

    An association can be resumed only in the thread of control that suspended it, whose channel it is on: end with
    TMMIGRATE answers XA_NOMIGRATE. open, close, start and end with TMASYNC are carried out before they return.
    """

    name = "xabridge amqp"

    def __init__(self, registrar: Registrar | None = None, flags: int = TMUSEASYNC, **surroundings: Any) -> None:
        if flags & ~(TMREGISTER | TMUSEASYNC):
            raise ValueError(f"not switch flags of this resource manager: {flags:#x}")
        if flags & TMREGISTER and registrar is None:
            raise ValueError("TMREGISTER needs a registrar")
        super().__init__(registrar, flags, **surroundings)
        self._numbers = count(1)
        self._operations: dict[int, Operation] = {}

    @property
    def identity(self) -> str:
        """As `xa.ResourceManager` says. Starts that nobody waits for can't be joined in time: with `ahead` every
        instance stands for itself, and has branches of its own in a transaction."""
        settings = self.settings
        return f"{settings.identity}#{self.container}" if settings.ahead else settings.identity

    @property
    def outstanding(self) -> int:
        """How many operations wait for `complete`."""
        return len(self._operations)

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. The broker is asked over both kinds of channels."""
        check_flags("open", flags, self.flags)
        settings = parse(open_string)
        standing = self._standing()
        self._begin_open(settings, rmid)
        return self._at_once(standing, "open", None, flags, lambda: self._open(standing, rmid))

    def _open(self, standing: Standing, rmid: int) -> Code:
        if standing.seat is not None and standing.seat.channel.broken:
            self._dissociate(standing)
        try:
            deadline = self.deadline()
            if standing.seat is None:
                with contextlib.suppress(AllInUse):  # they are: the broker was reached
                    self.pool.give(self.pool.take(deadline, wait=False))
            self._commanding(deadline)
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "open", why, None) from None
        self._end_open(standing, rmid)
        return Code.XA_OK

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:  # noqa: ARG002 — says nothing here
        """As `xa.ResourceManager` says."""
        check_flags("close", flags, self.flags)
        standing = self._standing()
        with self._lock:
            if self._state is R1:
                self._check_open("close", rmid)
                if (standing.current or standing.late) is not None and not self._gone(standing):
                    raise xa_error(Code.XAER_PROTO, "close: this thread is at work; end that first")
                if self._operations:
                    raise xa_error(Code.XAER_PROTO, f"close: {len(self._operations)} operations wait for complete")
        return self._at_once(standing, "close", None, flags, self._close)

    def _close(self) -> Code:
        self._disconnect()
        with self._lock:
            self._state = advance(RESOURCE, self._state, ResourceVerb.CLOSE)
            for standing in self._standings.values():
                standing.seat = standing.current = standing.late = standing.scan = standing.report = None
                standing.suspended.clear()
                standing.lost = False
        return Code.XA_OK

    # --- association ------------------------------------------------------------------------------------------
    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        standing = self._enter("start", rmid, flags)
        if self.flags & TMREGISTER:
            raise xa_error(Code.XAER_PROTO, "start: this resource manager registers itself (TMREGISTER)", xid)
        self._check_asked("start", xid, flags)
        return self._at_once(standing, "start", xid, flags, lambda: self._start(standing, xid, flags))

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        standing = self._enter("end", rmid, flags)
        self._check_asked("end", xid, flags)
        return self._at_once(standing, "end", xid, flags, lambda: self._end(standing, xid, flags))

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """As `xa.LateEnding` says."""
        standing = self._enter("end", rmid, flags)
        self._check_asked("end", xid, flags)
        if flags != TMSUCCESS or self.flags & TMREGISTER:
            return self.end(xid, rmid, flags)
        return self._end_late(standing, xid)

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("prepare", xid, rmid, flags, Prepare(xid))

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("commit", xid, rmid, flags, Commit(xid, bool(flags & TMONEPHASE)))

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("rollback", xid, rmid, flags, Rollback(xid))

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("forget", xid, rmid, flags, Forget(xid))

    def _finish(self, verb: str, xid: Xid, rmid: int, flags: int, command: Coordination) -> Code | Handle:
        standing = self._enter(verb, rmid, flags)
        self._check_asked(verb, xid, flags)
        deadline = self.deadline()
        if standing.late is not None:
            late = self._prepare_late(standing, xid, deadline) if verb == "prepare" else None
            if late is not None:
                return self._promise(late) if flags & TMASYNC else self._outcome_of(late)
            fails = verb == "rollback" and standing.late.xid == xid
            self._end_now(standing, AssociationVerb.END_FAIL if fails else AssociationVerb.END)
        if not flags & TMASYNC:
            try:
                code = self._carry_out(standing, verb, command, xid)
            except XaError as error:
                self._decided(verb, xid, error.code)
                raise
            self._decided(verb, xid, code)
            return code
        asked = self._ask(standing, verb, command, xid, deadline)
        return self._promise(Operation(standing, verb, xid, asked, deadline=deadline))

    def _outcome_of(self, operation: Operation) -> Code:
        self._await(operation)
        if operation.error is not None:
            raise operation.error
        assert operation.code is not None  # noqa: S101 — _await has set it
        return operation.code

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        """As `xa.ResourceManager` says."""
        standing = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        if flags & TMSTARTRSCAN:
            standing.scan = Scan()
        scan = standing.scan
        if scan is None:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")
        found: list[Xid] = []
        while not scan.over and len(found) < count:
            found += self._scan_on(standing, scan, min(count - len(found), MAX_PAGE)).in_doubt
        if flags & TMENDRSCAN:
            standing.scan = None
        return found

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        """As `xa.holdings.HoldingsReporting` says."""
        standing = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        if flags & TMSTARTRSCAN:
            standing.report = Scan(details=True)
        report = standing.report
        if report is None:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")
        found: list[InDoubtBranch] = []
        while not report.over and len(found) < count:
            page = self._scan_on(standing, report, min(count - len(found), REPORT_PAGE))
            found += [reported(details, time.time()) for details in page.details]
        if flags & TMENDRSCAN:
            standing.report = None
        return found

    def _scan_on(self, standing: Standing, scan: Scan, count: int) -> Recovered:
        """The next page of a scan from the broker."""
        command = Recover(scan.after, count, details=scan.details)
        reply = self._reply(standing, "recover", command, None)
        if not isinstance(reply, Recovered):
            raise xa_error(Code.XAER_RMERR, "recover: the broker answered something else")
        scan.over = not reply.more or not reply.in_doubt
        if reply.in_doubt:
            scan.after = reply.in_doubt[-1]
        return reply

    def diagnose(self, open_string: str) -> Diagnosis:
        """As `xa.diagnosis.Diagnosing` says. An instance of its own is opened and closed again."""

        def try_it() -> None:
            other = AmqpResource()
            try:
                other.open(open_string, 1)
            finally:
                other.drop()

        return diagnosed(lambda: parse(open_string), try_it)

    # --- asynchronous operations ------------------------------------------------------------------------------
    def _check_asked(self, verb: str, xid: Xid, flags: int) -> None:
        if xid in self._asked:
            kind = AsyncVerb.ASYNCHRONOUS if flags & TMASYNC else AsyncVerb.SYNCHRONOUS
            code = ASYNC.refusal(AsyncState.A1, kind) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: an operation on this branch waits for complete", xid)
        if flags & TMASYNC and len(self._operations) >= MAX_OUTSTANDING:
            raise xa_error(Code.XAER_ASYNC, f"{verb}: {MAX_OUTSTANDING} operations are outstanding", xid)

    def _at_once(
        self, standing: Standing, verb: str, xid: Xid | None, flags: int, carry_out: Callable[[], Code]
    ) -> Code | Handle:
        """Carries out a verb; with TMASYNC what came of it is told by complete."""
        if not flags & TMASYNC:
            return carry_out()
        operation = Operation(standing, verb, xid)
        try:
            operation.code = carry_out()
        except XaError as error:
            operation.code, operation.error = error.code, error
        return self._promise(operation)

    def _promise(self, operation: Operation) -> Handle:
        with self._lock:
            handle = Handle(next(self._numbers))
            self._operations[handle] = operation
            if operation.xid is not None:
                self._asked[operation.xid] = handle
        return handle

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        """As `xa.ResourceManager` says."""
        check_flags("complete", flags, self.flags)
        if rmid != self._rmid or not self._operations:
            self._check_open("complete", rmid)
        if flags & TMMULTIPLE or handle is None:
            handle = self._any(handle, flags)
        operation = self._operations.get(handle)
        if operation is None:
            refused = ASYNC.refusal(AsyncState.A0, AsyncVerb.COMPLETE) or Code.XAER_INVAL
            raise xa_error(refused, f"complete: no operation {handle} is outstanding")
        if operation.code is None and flags & TMNOWAIT and not self._arrived(operation):
            raise xa_error(Code.XA_RETRY, f"{operation.verb}: it has not completed", operation.xid)
        self._await(operation)
        with self._lock:
            if self._operations.pop(handle, None) is None:
                raise xa_error(Code.XAER_INVAL, f"complete: operation {handle} was told to somebody else")
            if operation.xid is not None:
                self._asked.pop(operation.xid, None)
        assert operation.code is not None  # noqa: S101 — _await has set it
        return Completion(handle, operation.code, operation.error)

    def _any(self, handle: Handle | None, flags: int) -> Handle:
        if handle is not None or not flags & TMMULTIPLE:
            raise xa_error(Code.XAER_INVAL, "complete: TMMULTIPLE goes with no handle, and no handle with TMMULTIPLE")
        standing = self._standing()
        with self._lock:
            mine = [(number, one) for number, one in self._operations.items() if one.standing is standing]
        if not mine:
            raise xa_error(Code.XAER_INVAL, "complete: this thread has no operation outstanding")
        return Handle(next((number for number, one in mine if one.code is not None or self._arrived(one)), mine[0][0]))

    @staticmethod
    def _arrived(operation: Operation) -> bool:
        vote = operation.vote
        if vote is not None:
            vote.seat.line.refresh()
            return vote.answer.there
        asked = operation.asked
        if asked is None:
            return True
        asked.line.refresh()
        return asked.command.core.lost is not None or asked.line.run(asked.command.look(asked.request))

    def _await(self, operation: Operation) -> None:
        """Waits until it is known what came of the operation, or that nobody knows."""
        asked, vote, verb, xid = operation.asked, operation.vote, operation.verb, operation.xid
        if operation.code is not None or xid is None:
            return
        try:
            if vote is not None:
                operation.code = self._voted(operation, vote, xid)
            elif asked is not None:
                reply = self._answer(operation.standing, verb, asked, operation.deadline, xid)
                operation.code = self._outcome(operation.standing, verb, reply, xid)
            else:
                return
        except XaError as error:
            operation.code, operation.error = error.code, error
        self._decided(verb, xid, operation.code)
