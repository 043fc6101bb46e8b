"""Associating: which branch a thread of control works for, over which channel; and the work itself.

A thread of control takes a channel from the pool at its first start, and gives it back when none of its associations
is left. This is the `Workplace` that sessions ask.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from dtx.protocol.commands import GetTimeout
from dtx.protocol.conditions import RefusedError
from rm_amqp.association import Association
from rm_amqp.connected import Connected, refusal_error
from rm_amqp.loss import AllInUse, ConnectionLost, TimedOut
from rm_amqp.session import Session
from xa import (
    ROLLBACK_CODES,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOWAIT,
    TMREGISTER,
    TMRESUME,
    TMSUSPEND,
    AxCode,
    Code,
    XaError,
    xa_error,
)
from xa.machine import advance
from xa.tables import ASSOCIATION, REGISTRATION, AssociationState, AssociationVerb, RegistrationVerb

if TYPE_CHECKING:
    from rm_amqp.channel import Channel
    from rm_amqp.pool import Seat
    from rm_amqp.standing import Standing
    from xa import Registrar, Xid

T0, T1, T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2
MAX_NOTED: Final = 4096
_AX_STARTS: Final = {AxCode.TM_OK: 0, AxCode.TM_JOIN: TMJOIN, AxCode.TM_RESUME: TMRESUME}
_AX_ERRORS: Final = {
    AxCode.TMER_TMERR: Code.XAER_RMERR,
    AxCode.TMER_INVAL: Code.XAER_INVAL,
    AxCode.TMER_PROTO: Code.XAER_PROTO,
}


class Associating(Connected):
    """The associations of one resource manager instance, and the work that is done in them."""

    def __init__(self, registrar: Registrar | None, flags: int, **surroundings: Any) -> None:
        super().__init__(**surroundings)
        self.flags = flags
        self._registrar = registrar
        self._asked: dict[Xid, int] = {}
        """The branches with an operation that waits for `complete`."""
        self._sent_ahead: dict[Xid, Channel] = {}
        """Branches that are ended and undecided, and where they received while more was being sent ahead."""

    # --- start
    def _start(self, standing: Standing, xid: Xid, flags: int) -> Code:
        if standing.current is not None:
            if self._gone(standing):
                raise self._hears_of_loss(standing, "start", standing.current.xid)
            raise xa_error(Code.XAER_PROTO, f"start: this thread is associated with {standing.current.xid}", xid)
        self._end_now(standing)
        own = standing.suspended.get(xid)
        verb = AssociationVerb.START
        if flags & TMRESUME:
            if own is None:
                raise self._not_associated(standing, "start(TMRESUME)", xid)
            verb = AssociationVerb.RESUME
        elif own is not None:
            raise xa_error(Code.XAER_PROTO, "start: this thread has suspended the branch and can only resume it", xid)
        association = own or Association(xid)
        seat = standing.seat or self._take(standing, xid, flags)
        self._run_start(standing, seat, association, verb, join=bool(flags & TMJOIN))
        return Code.XA_OK

    def _take(self, standing: Standing, xid: Xid, flags: int) -> Seat:
        try:
            return self.pool.take(self.deadline(), wait=not flags & TMNOWAIT)
        except AllInUse as why:
            if flags & TMNOWAIT:
                raise xa_error(Code.XA_RETRY, f"start: {why}", xid) from None
            told = f"start: {why}; end other work, or allow more with channels= in the open string"
            raise xa_error(Code.XA_RETRY, told, xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "start", why, xid) from None

    def _run_start(
        self, standing: Standing, seat: Seat, association: Association, verb: AssociationVerb, *, join: bool
    ) -> None:
        xid = association.xid
        standing.seat = seat
        try:
            steps = seat.channel.start(association, verb, self.deadline(), join=join)
            seat.line.run(steps, later=self.settings.ahead)
        except RefusedError as error:
            if association.state is T0:
                standing.suspended.pop(xid, None)
            self._leave(standing)
            raise refusal_error("start", error.refusal, xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "start", why, xid) from None
        except BaseException:  # an interruption: nobody knows what the broker has heard
            self._lose(standing)
            raise
        standing.suspended.pop(xid, None)
        standing.current = association

    def _leave(self, standing: Standing) -> None:
        """The thread gives its channel back, where it has no association left."""
        if not standing.associated and standing.seat is not None:
            seat, standing.seat = standing.seat, None
            self.pool.give(seat)

    def _hears_of_loss(self, standing: Standing, verb: str, xid: Xid) -> XaError:
        lost = standing.seat.channel.core.lost if standing.seat is not None else None
        self._lose(standing)
        return xa_error(Code.XAER_RMFAIL, f"{verb}: {lost or 'the connection was lost'}", xid)

    def _not_associated(self, standing: Standing, verb: str, xid: Xid) -> XaError:
        """XAER_NOTA for an xid that the broker does not know, XAER_PROTO for one that is somebody else's."""
        try:
            self._reply(standing, verb, GetTimeout(xid), xid)
        except XaError as error:
            if error.code in {Code.XAER_NOTA, Code.XAER_RMFAIL}:
                return error
        return xa_error(Code.XAER_PROTO, f"{verb}: this thread has no such association with the branch", xid)

    # --- end
    def _end_now(self, standing: Standing, verb: AssociationVerb = AssociationVerb.END) -> None:
        """An association of the thread that was to be ended late is ended now."""

    def _end(self, standing: Standing, xid: Xid, flags: int) -> Code:
        association = standing.current
        if association is None or association.xid != xid:
            association = standing.suspended.get(xid)
        if association is None or standing.seat is None:
            raise self._not_associated(standing, "end", xid)
        verb = AssociationVerb.END
        if flags & TMSUSPEND:
            verb = AssociationVerb.SUSPEND
        elif flags & TMFAIL:
            verb = AssociationVerb.END_FAIL
        refused = ASSOCIATION.refusal(association.state, verb)
        if refused is not None:
            raise xa_error(refused, f"end: the association is {association.state.value}", xid)
        self._run_end(standing, standing.seat, association, verb)
        if flags & TMMIGRATE:
            return Code.XA_NOMIGRATE
        return Code.XA_OK

    def _run_end(self, standing: Standing, seat: Seat, association: Association, verb: AssociationVerb) -> None:
        xid = association.xid
        try:
            seat.line.run(seat.channel.end(association, verb, self.deadline()), later=True)
        except RefusedError as error:
            seat.channel.recall = seat.channel.recall or association.received
            self._file(standing, association)
            told = error.refusal
            if told.code not in ROLLBACK_CODES:  # it is no branch of ours: nothing of it can be prepared
                raise xa_error(Code.XAER_RMERR, f"end: {told.description or told.condition}", xid) from None
            raise refusal_error("end", told, xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "end", why, xid) from None
        except BaseException:  # an interruption: nobody knows what the broker has heard
            self._lose(standing)
            raise
        if association.received and self.settings.prefetch:
            self._note(xid, seat)
        self._file(standing, association)

    def _file(self, standing: Standing, association: Association) -> None:
        """Puts the association where its state says that it belongs."""
        if standing.current is association and association.state is not T1:
            standing.current = None
        if standing.late is association:
            standing.late = None
        if association.state is T2:
            standing.suspended[association.xid] = association
        else:
            standing.suspended.pop(association.xid, None)
        self._leave(standing)

    @staticmethod
    def _gone(standing: Standing) -> bool:
        return standing.seat is None or standing.seat.channel.broken

    def _note(self, xid: Xid, seat: Seat) -> None:
        """The branch received on this channel."""
        with self._lock:
            if len(self._sent_ahead) >= MAX_NOTED:
                self._sent_ahead.pop(next(iter(self._sent_ahead))).recall = True
            self._sent_ahead[xid] = seat.channel

    def _decided(self, verb: str, xid: Xid, code: Code) -> None:
        """What was asked about a branch came to this."""
        if not self._sent_ahead or (verb == "prepare" and code is Code.XA_OK):
            return
        with self._lock:
            channel = self._sent_ahead.pop(xid, None)
        if channel is not None and not (verb == "commit" and code is Code.XA_OK):
            channel.recall = True

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, rmid: int) -> Session:
        """As `xa.ResourceManager` says."""
        self._check_open("session", rmid)
        standing = self._standing()
        self._check_lost("session", standing)
        if not self.flags & TMREGISTER and standing.current is None:
            raise xa_error(Code.XAER_PROTO, "session: this thread is associated with no branch")
        return Session(self, standing)

    def clock(self) -> float:
        """The time, for deadlines."""
        return self._clock()

    def begin_work(self, standing: Standing) -> Association | None:
        """As Workplace says."""
        self._check_work(standing)
        if standing.current is None:
            self._register(standing)
        return standing.current

    async def begin_work_async(self, standing: Standing) -> Association | None:
        """As Workplace says."""
        self._check_work(standing)
        if standing.current is None:
            await asyncio.to_thread(self._register, standing)
        return standing.current

    def _check_work(self, standing: Standing) -> None:
        if self._standing() is not standing:
            raise xa_error(Code.XAER_PROTO, "work: this session belongs to another thread of control")
        self._check_open("work", self._rmid)
        self._check_lost("work", standing)
        if standing.current is None:
            if not self.flags & TMREGISTER:
                raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch; its work has ended")
        elif standing.current.xid in self._asked:
            raise xa_error(Code.XAER_PROTO, "work: an operation on this branch waits for complete")

    def _register(self, standing: Standing) -> None:
        """Asks the transaction manager whose work this is."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        answer, xid = self._registrar.ax_reg(self._rmid)
        if answer in _AX_ERRORS:
            raise xa_error(_AX_ERRORS[answer], f"ax_reg answered {answer.name}")
        if not xid.is_null:
            self._start(standing, xid, _AX_STARTS[answer])
            return
        standing.outside = advance(REGISTRATION, standing.outside, RegistrationVerb.REGISTER_NULL)
        if standing.seat is None:
            try:
                standing.seat = self._take(standing, xid, 0)
            except XaError:
                self.end_work(standing)
                raise

    def seat(self, standing: Standing) -> Seat:
        """As Workplace says."""
        seat = standing.seat
        if seat is None:
            raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch; its work has ended")
        return seat

    def end_work(self, standing: Standing) -> None:
        """As Workplace says."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        standing.outside = advance(REGISTRATION, standing.outside, RegistrationVerb.UNREGISTER)
        self._leave(standing)
        answer = self._registrar.ax_unreg(self._rmid)
        if answer in _AX_ERRORS:
            raise xa_error(_AX_ERRORS[answer], f"ax_unreg answered {answer.name}")

    def lose_work(self, standing: Standing, why: ConnectionLost | TimedOut) -> XaError:
        """As Workplace says."""
        xid = standing.current.xid if standing.current is not None else None
        return self._failed(standing, "work", why, xid)
