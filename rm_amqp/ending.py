"""Ending late: the end of an association is told with prepare, in one exchange over the channel that it is on.

`end_late` only notes it; until then the thread keeps its channel. Prepare sends what is left to be sent, the outcomes
of what was received, and `end` with `prepare`. Any other verb of the thread ends the association in the ordinary way
first.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dtx.protocol.commands import Rollback
from dtx.protocol.conditions import RefusedError
from rm_amqp.associating import Associating
from rm_amqp.connected import refusal_error
from rm_amqp.loss import ConnectionLost, TimedOut
from rm_amqp.standing import Operation, Vote
from xa import EXCEPTIONS, ROLLBACK_CODES, TMSUCCESS, Code, XaError, xa_error
from xa.tables import AssociationState, AssociationVerb

if TYPE_CHECKING:
    from dtx.protocol.conditions import Refusal
    from rm_amqp.standing import Standing
    from xa import Xid


class EndingLate(Associating):
    """The late ends of one resource manager instance."""

    def _end_late(self, standing: Standing, xid: Xid) -> Code:
        association = standing.current
        if (
            association is None
            or association.xid != xid
            or association.state is not AssociationState.T1
            or self._gone(standing)
        ):
            return self._end(standing, xid, TMSUCCESS)
        standing.current, standing.late = None, association
        return Code.XA_OK

    def _end_now(self, standing: Standing, verb: AssociationVerb = AssociationVerb.END) -> None:
        """The association that was to be ended late is ended now. Of what is wrong with its branch every later verb
        for it says so too."""
        association, seat = standing.late, standing.seat
        if association is None or seat is None or association.xid in self._asked:
            return
        try:
            self._run_end(standing, seat, association, verb)
        except XaError as error:
            if error.code is Code.XAER_RMFAIL:
                raise

    def _prepare_late(self, standing: Standing, xid: Xid, deadline: float) -> Operation | None:
        """Sends the end with prepare, where the association of the branch was ended late; None where it was not."""
        association, seat = standing.late, standing.seat
        if association is None or seat is None or association.xid != xid:
            return None
        try:
            answer = seat.line.run(seat.channel.end_and_prepare(association, deadline))
        except RefusedError as error:
            raise self._not_prepared(standing, xid, error.refusal) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "prepare", why, xid) from None
        except BaseException:  # an interruption: nobody knows what the broker has heard
            self._lose(standing)
            raise
        return Operation(standing, "prepare", xid, vote=Vote(seat, association, answer), deadline=deadline)

    def _voted(self, operation: Operation, vote: Vote, xid: Xid) -> Code:
        """Waits for the vote; raised where it is an error."""
        standing, seat, association = operation.standing, vote.seat, vote.association
        try:
            code = seat.line.run(seat.channel.voted(association, vote.answer, operation.deadline), later=True)
        except RefusedError as error:
            seat.channel.recall = seat.channel.recall or association.received
            raise self._not_prepared(standing, xid, error.refusal) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, "prepare", why, xid) from None
        except BaseException:  # an interruption, as above
            self._lose(standing)
            raise
        if association.received and self.settings.prefetch:
            self._note(xid, seat)
        self._ended(standing)
        if code in EXCEPTIONS:
            raise xa_error(code, "prepare: the branch can't be prepared", xid)
        return code

    def _ended(self, standing: Standing) -> None:
        standing.late = None
        self._leave(standing)

    def _not_prepared(self, standing: Standing, xid: Xid, refusal: Refusal) -> XaError:
        """The end, or prepare, was refused. The branch of an association that was ended in vain is rolled back here,
        as after a vote for it; otherwise the channel goes, and with it an association that is not ended."""
        if refusal.code in ROLLBACK_CODES:
            self._ended(standing)
            with contextlib.suppress(XaError):
                self._carry_out(standing, "rollback", Rollback(xid), xid)
                return refusal_error("prepare", refusal, xid)
        else:
            self._dissociate(standing)
        return xa_error(Code.XAER_RMERR, f"prepare: {refusal.description or refusal.condition}", xid)
