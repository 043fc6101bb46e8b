"""ControlLink: a link to the coordinator. declare, discharge, end.

A refusal is a rejected outcome where the source of the link knows that outcome, and otherwise closes the
link with the error. A control message that was sent settled closes the link: no result could be sent for
it. When the link is closed, for whatever reason, the local transactions that it declared are rolled
back, and the branches that are associated through it become rollback-only. If we close it with an error, this happens
at once, and the detach is sent behind the outcomes of the transactions that are being decided.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.messages import body_value
from dtx.broker.endpoint.link import ReceivingLink, refusal_of
from dtx.broker.transactions.contexts import DistributedContext, LocalTransaction
from dtx.protocol.capabilities import DISTRIBUTED, END_AND_PREPARE, LOCAL, MULTI_SSNS, MULTI_TXNS
from dtx.protocol.commands import CONTROL, Declare, Discharge, End
from dtx.protocol.conditions import Refusal, RefusedError, refused
from dtx.protocol.replies import DECLARED_TYPE, Declared, result_state
from dtx.protocol.replies import Result as ResultReply
from xa import Code
from xa.state_tables import AssociationVerb

if TYPE_CHECKING:
    from dtx.amqp.delivery import IncomingDelivery
    from dtx.amqp.events import Transferred
    from dtx.amqp.link import ReceiverLink
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.transactions.contexts import WorkContext
    from dtx.protocol.commands import Start
    from dtx.protocol.replies import Reply

CREDIT: Final = 50
MAX_COMMAND: Final = 8192
PLAIN_CAPABILITIES: Final = (LOCAL, MULTI_TXNS, MULTI_SSNS)
ALL_CAPABILITIES: Final = (*PLAIN_CAPABILITIES, DISTRIBUTED, END_AND_PREPARE)


class ControlLink(ReceivingLink):
    """A control link."""

    controls = True
    decides = True
    kind = "control"

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: ReceiverLink,
    ) -> None:
        super().__init__(connection, session, endpoint, credit=CREDIT, limit=MAX_COMMAND)
        self._declared: dict[WorkContext, None] = {}
        self._deciding: set[IncomingDelivery] = set()
        """Control messages whose outcomes wait for the store."""

    @property
    def awaits_decision(self) -> bool:
        return bool(self._deciding)

    # -- messages
    def transferred(self, event: Transferred) -> None:
        if self.ending is None:
            super().transferred(event)

    def message(self, delivery: IncomingDelivery, octets: bytes, context: WorkContext | None, *, settled: bool) -> None:
        if settled or context is not None:
            message = "no transactional work is allowed here" if context else "a control message is not sent settled"
            self.terminate(Refusal(Condition.NOT_ALLOWED, message, Code.XAER_PROTO))
            return
        self.wait(delivery)

        try:
            command = CONTROL.decode(body_value(octets))
            match command:
                case Declare():
                    self._declare(delivery, command)
                case Discharge():
                    self._discharge(delivery, command)
                case End():
                    self._end(delivery, command)
        except (RefusedError, WireError) as error:
            self._answer(delivery, refusal_of(error))

    def _answer(self, delivery: IncomingDelivery, refusal: Refusal | None) -> None:
        """Answers that a control message was carried out, or why not."""
        if not self.waits(delivery):
            return
        if refusal is None:
            self.accept(delivery)
        else:
            self.refuse(delivery, refusal, None)

    # -- declare
    def _declare(self, delivery: IncomingDelivery, declare: Declare) -> None:
        connection = self.connection
        context: WorkContext
        if declare.start is None:
            txn_id = connection.txns.new()
            context = LocalTransaction(self.container.resource, txn_id, self, connection.released)
        else:
            txn_id = self._txn_id(declare.start)
            context = self.session.demarcation.start(declare.start, txn_id, self)
        connection.txns.live[txn_id] = context
        self._declared[context] = None
        self.answer(delivery, DECLARED_TYPE.encode(Declared(txn_id)))

    def _txn_id(self, start: Start) -> bytes:
        txn_id = self._txns.new()
        if start.txn_id is None:
            return txn_id
        if not start.txn_id or start.txn_id in self._txns.live:
            raise refused(Code.XAER_DUPID, f"the txn-id {start.txn_id.hex()} is in use, or empty", start.xid)
        return start.txn_id

    # -- discharge
    def _discharge(self, delivery: IncomingDelivery, discharge: Discharge) -> None:
        context = self._txns.context(discharge.txn_id)
        if context.partial:
            self._discharge_partial(delivery, context, fail=discharge.fail)
        elif isinstance(context, LocalTransaction):
            self._deciding.add(delivery)
            context.discharge(fail=discharge.fail, answer=partial(self._decided, delivery))
        else:
            verb = AssociationVerb.END_FAIL if discharge.fail else AssociationVerb.END
            self._dissociate(context, verb)
            self._answer(delivery, None)

    def _decided(self, delivery: IncomingDelivery, refusal: Refusal | None) -> None:
        """The local transaction is over."""
        self.room.when_withdrawn(lambda: self._answer(delivery, refusal))
        self._decides_no_more(delivery)

    def _decides_no_more(self, delivery: IncomingDelivery) -> None:
        """The outcome of a control message is sent: what waits behind the last one goes on."""
        self._deciding.discard(delivery)
        if not self._deciding:
            if self.ending is not None:
                super().detach(self.ending)
            self.connection.decided()

    def _dissociate(self, context: WorkContext, verb: AssociationVerb) -> None:
        if not isinstance(context, DistributedContext):
            raise refused(Code.XAER_PROTO, "a local transaction is discharged, not ended")
        self.session.demarcation.end(context, verb)

    def _discharge_partial(self, delivery: IncomingDelivery, context: WorkContext, *, fail: bool) -> None:
        """A delivery of the transaction's work is not complete: it is rolled back, and the link is closed
        with that error. A discharge that asked for the rollback has had it."""
        message = "rolled back: the transaction was discharged with a delivery that is not complete"
        self._lose(context)
        if fail:
            self._answer(delivery, None)
        self.terminate(Refusal(Condition.ROLLBACK, message, Code.XA_RBPROTO))

    # -- end
    def _end(self, delivery: IncomingDelivery, end: End) -> None:
        context = self._txns.context(end.txn_id)
        if context.partial:
            self._discharge_partial(delivery, context, fail=end.fail)
            return
        if end.fail + end.suspend + end.prepare > 1:
            raise refused(Code.XAER_INVAL, "fail, suspend and prepare exclude each other")
        if end.prepare:
            if not isinstance(context, DistributedContext):
                raise refused(Code.XAER_PROTO, "a local transaction is discharged, not ended")
            self._deciding.add(delivery)
            self.container.coordination.end_and_prepare(
                context,
                self.connection.identity,
                self.session.demarcation,
                lambda reply: self._tell(delivery, reply),
                keep=end.keep,
            )
            return

        verb = AssociationVerb.END
        if end.fail:
            verb = AssociationVerb.END_FAIL
        elif end.suspend:
            verb = AssociationVerb.SUSPEND
        self._dissociate(context, verb)
        self._answer(delivery, None)

    def _tell(self, delivery: IncomingDelivery, reply: Reply) -> None:
        """The result of an end with prepare."""
        if isinstance(reply, ResultReply) and self.waits(delivery):
            self.answer(delivery, result_state(reply))
        elif isinstance(reply, Refusal):
            self._answer(delivery, reply)
        self._decides_no_more(delivery)

    # -- the end of the link
    def terminate(self, refusal: Refusal) -> None:
        self.detach(refusal)

    def detach(self, refusal: Refusal) -> None:
        if not self._deciding:
            super().detach(refusal)
        elif self.ending is None:
            self.ending = refusal
            self._drop_parts()
            self._lose_declared()

    def transaction_ended(self, context: WorkContext) -> None:
        # A suspended association stays the link's.
        if not isinstance(context, DistributedContext) or context not in context.branch.associations:
            self._declared.pop(context, None)

    def gone(self) -> None:
        super().gone()
        self._lose_declared()

    def _lose_declared(self) -> None:
        for context in tuple(self._declared):
            self._lose(context)
        self._declared.clear()

    def _lose(self, context: WorkContext) -> None:
        self._declared.pop(context, None)
        if isinstance(context, LocalTransaction):
            context.lose()
        elif isinstance(context, DistributedContext):
            self.session.demarcation.lose(context)
            self.connection.released(context)
