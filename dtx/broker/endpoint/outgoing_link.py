"""OutgoingLink: messages from a queue to a consumer, acquired and retired.

A message that the queue hands over is acquired, under the transaction that the link acquires for, or none.
It is sent when its payload is at hand; links keep their order. What the peer says of a delivery is given to
the context that it names, and what becomes of it there comes back through `applied`, `reverted` and
`withdrawn`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.delivery import PARTIAL, SETTLED, WAITING
from dtx.amqp.messages import with_delivery_annotations
from dtx.amqp.performatives import SENDER_SETTLED
from dtx.amqp.values import Symbol
from dtx.broker.endpoint.link import SendingLink, refusal_of
from dtx.broker.endpoint.outgoing_delivery import NOTES, OutgoingDelivery, Stream, size_with_facts, with_facts
from dtx.broker.endpoint.states import ATTACHED, DECIDED, ENDED, FREE, SUSPENDED, AttachmentState
from dtx.broker.queues.entry import State
from dtx.broker.queues.outcomes import (
    APART,
    FAILED,
    GIVEN_BACK,
    GIVEN_BACK_OCTETS,
    LOST,
    PLACE,
    REASON,
    TAKEN,
    rejected_state,
)
from dtx.broker.queues.payloads import FOREIGN, split_format
from dtx.broker.transactional_resource import fits_one_piece
from dtx.broker.transactions.contexts import unknown_id
from dtx.protocol.addresses import TXN_ID
from dtx.protocol.conditions import Refusal, RefusedError
from xa import Code

if TYPE_CHECKING:
    from dtx.amqp.delivery import IncomingDelivery
    from dtx.amqp.delivery import OutgoingDelivery as Delivery
    from dtx.amqp.link import SenderLink
    from dtx.amqp.values import Map, Value
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.contexts import TransactionalContext, WorkContext


NOT_SETTLED: Final = {
    AttachmentState.SUSPENDED: GIVEN_BACK,
    AttachmentState.CLOSED: GIVEN_BACK,
    AttachmentState.FAILED: FAILED,
    AttachmentState.LOST: LOST,
}
"""The outcome, in place of a failure, of a delivery that was not settled when its link was ended so."""
UNDELIVERABLE: Final = 1000
"""Messages of its queue that a link may have given back as undeliverable here: the queue passes them over."""


class OutgoingLink(SendingLink):
    """A link that consumes from a queue; one that is `dynamic` goes with the link. `default` is the outcome that the
    peer named as the default of its source, if any. Where its source `lasts` until its session ends, what it has sent
    stays the peer's to decide when the peer detaches it without closing it."""

    willing = False
    kind = "consume"

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: SenderLink,
        queue: Queue,
        *,
        default: Outcome | None,
        dynamic: bool = False,
    ) -> None:
        super().__init__(connection, session, endpoint)
        self.lasts = False
        self._queue = self.queue = queue
        self.own: list[tuple[int, Entry]] = []
        self._dynamic = dynamic
        self._default = default or (TAKEN if dynamic else FAILED)
        """The outcome of a message that is settled without one: a response is not given twice."""
        self._txns = connection.txns
        self.resource = connection.container.resource
        self._outside = connection.container.outside
        self.settles = endpoint.snd_settle_mode == SENDER_SETTLED

        self._context: TransactionalContext = self._outside
        self._acquisition: bytes | None = None
        self._credit = 0
        self._waiting: deque[OutgoingDelivery] = deque()
        self._sent: dict[Delivery, OutgoingDelivery] = {}
        self._streaming: OutgoingDelivery | None = None
        self._limit = connection.container.limits.unsettled
        self._output_limit = connection.container.limits.output_octets
        self.undeliverable: set[Entry] = set()
        self._too_large: Refusal | None = None
        """Why the link is to be closed: the next message is larger."""

    @property
    def address(self) -> str:
        return self._queue.name

    @property
    def unsettled(self) -> int:
        return len(self._sent) + len(self._waiting)

    @property
    def outlives_detach(self) -> bool:
        return self.lasts and bool(self._sent)

    @property
    def _has_deliveries(self) -> bool:
        return self.attachment is ATTACHED or self.attachment is SUSPENDED

    def opened(self) -> None:
        self._queue.attached += 1

    # -- taking from the queue
    def wants(self) -> bool:
        if (
            self._credit <= 0
            or self._too_large is not None
            or not self.room.writable
            or not self._context.takes
            or len(self._sent) + len(self._waiting) >= self._limit
            or self.room.loading >= self._output_limit
        ):
            return False
        if self.room.allowance <= 0:
            self._waits_for_turn = True
            self.room.wants_turn()
            return False
        outgoing = self.waiting_octets
        if self.room.loading + outgoing < self._output_limit:
            return True

        if outgoing < self.room.little:  # payloads that are being read fill it: nothing that is sent would make room
            self.room.when_unloaded()
        elif not self._crowded:  # of messages that are sent settled no outcome comes that would wake the link
            self._crowded = True
            self.room.when_sent(self, self._has_room)
        return False

    def _has_room(self) -> None:
        self._crowded = False
        self.room.has_room()

    def wake(self) -> None:
        """The link may take messages again."""
        self._queue.wake(self)

    @property
    def searches(self) -> bool:
        """Whether messages that are in the queue now may still be sent."""
        return False

    def deliver(self, entry: Entry, payload: bytes | None = None) -> None:
        """Takes a message, which is HELD from now on; `payload` where it is at hand."""
        if self.largest and size_with_facts(entry) > self.largest:
            self._queue.give_back(entry)
            message = f"message {entry.number} has {entry.size} octets, and the receiver takes {self.largest}"
            self._too_large = Refusal(Condition.MESSAGE_SIZE, message, Code.XAER_INVAL)
            self._detach_at_last()
            return
        self._credit -= 1
        self.room.allowance -= 1
        sent = OutgoingDelivery(self, entry, self._default)
        self._context.acquire(sent)
        waiting = self._waiting
        if fits_one_piece(entry):
            sent.loaded = entry.size
            self.room.loading += entry.size
            sent.payload = self.resource.payloads.get(entry) if payload is None else payload
            if sent.payload is None:
                self.resource.payloads.fetch(entry, lambda payload: self._fetched(sent, payload))

        if sent.payload is not None and not waiting and self._streaming is None:
            self._send(sent)
        else:
            waiting.append(sent)
            if len(waiting) == 1 and not fits_one_piece(entry):
                self._flush()

    def _detach_at_last(self) -> None:
        """Closes the link before a message that is too large, when those before it are settled. The outcomes that the
        peer gives them meanwhile are in force."""
        if self._too_large is not None and not (self._sent or self._waiting or self._streaming):
            self.detach(self._too_large)

    def queue_deleted(self) -> None:
        message = f"the queue {self._queue.name} is gone"
        self.detach(Refusal(Condition.RESOURCE_DELETED, message, Code.XAER_NOTA))

    def _fetched(self, sent: OutgoingDelivery, payload: bytes | None) -> None:
        if self.attachment is not ATTACHED or sent.custody is ENDED:
            return
        if payload is None:  # before it is sent the consumer can't have decided about it
            self.missing(sent)
            return
        sent.payload = payload
        self._flush()
        if self._credit > 0:
            self.wake()

    def missing(self, sent: OutgoingDelivery) -> None:
        """The store lacks a payload that it has to have, or can't read it. The message stays in its queue, for an
        operator to see, and what is behind it is sent, but for messages of its group."""
        if sent.context is not None:
            sent.context.work.retired.pop(sent.entry.number, None)
        group = sent.entry.group
        self.resource.set_aside(sent.entry)
        self.withdraw(sent)
        for other in [one for one in self._waiting if group and one.entry.group == group]:
            self._waiting.remove(other)
            other.give_back()
            self._credit += 1
        self._flush()
        if self._credit > 0:
            self.wake()

    def _flush(self) -> None:
        waiting = self._waiting
        while waiting and self._streaming is None:
            sent = waiting[0]
            if not fits_one_piece(sent.entry):
                waiting.popleft()
                self._stream(sent)
            elif sent.payload is not None:
                waiting.popleft()
                self._send(sent)
            else:
                return

    # -- sending
    @property
    def queued(self) -> bool:
        return self.sender.queued > 0

    def begin(self, sent: OutgoingDelivery, payload: bytes, *, more: bool) -> None:
        """Sends a message, or its first part, with the header and the notes that it has by now. Those of a message of
        another format than 0 would be no part of it."""
        entry, message_format, octets = sent.entry, 0, payload
        if payload[:1] == FOREIGN:
            message_format, octets = split_format(payload)
        elif entry.count or entry.expires_ms or entry.apart:
            octets = self._with_notes(entry, with_facts(entry, payload, self.resource.now_ms))
        self._tag = (self._tag + 1) & 0xFFFF_FFFF
        state = self._acquisition if sent.context is self._context and not self.settles else None
        tag = self._tag.to_bytes(4, "big")
        sent.delivery = self.sender.send(
            tag, octets, state, settled=self.settles, more=more, message_format=message_format
        )
        if not self.settles:
            self._sent[sent.delivery] = sent
        self.container.touch(self.connection)

    def _send(self, sent: OutgoingDelivery) -> None:
        payload, sent.payload = sent.payload or b"", None
        sent.unload()
        self.begin(sent, payload, more=False)
        if self.settles:
            self._sent_settled(sent)

    def _with_notes(self, entry: Entry, octets: bytes) -> bytes:
        """The message, or its first octets, with what its last consumers have said of it: the reason, unless the peer
        takes no message of that size."""
        notes: Map = {APART: True} if entry.apart else {}
        reason, place = self.resource.reasons.of(entry.number) if entry.count or entry.apart else ("", "")
        if reason and (not self.largest or entry.size + NOTES + 4 * (len(reason) + len(place)) <= self.largest):
            notes[REASON] = reason
            if place:
                notes[PLACE] = place
        return with_delivery_annotations(octets, notes) if notes else octets

    def _sent_settled(self, sent: OutgoingDelivery) -> None:
        """All of it is sent. Before that it was not the consumer's: it may have had to go back to its queue."""
        context = sent.context
        (self._outside if context is None else context).sent_settled(sent)
        sent.end()

    def _stream(self, sent: OutgoingDelivery) -> None:
        self._streaming = sent
        Stream(sent).ask(0)

    def streamed(self, sent: OutgoingDelivery) -> None:
        """A large message was sent to its end."""
        if self.settles:
            self._sent_settled(sent)
        self._end_stream(sent)

    def broken_off(self, sent: OutgoingDelivery) -> None:
        """A large message can't be sent to its end: a discharge has decided about it meanwhile."""
        sent.end()
        if sent.delivery is not None:
            self._sent.pop(sent.delivery, None)
            sent.delivery.abort()
        self._end_stream(sent)

    def _end_stream(self, sent: OutgoingDelivery) -> None:
        if self._streaming is sent:
            self._streaming = None
            self._flush()
            if self._credit > 0:
                self.wake()

    # -- credit
    def flow_event(self) -> None:
        self._waits_for_turn = False
        begun = self._streaming is None or self._streaming.delivery is not None
        self._credit = self.sender.credit - len(self._waiting) - (not begun)
        while self._credit < 0 and self._waiting:
            self._waiting.pop().give_back()
            self._credit += 1
        sent = self._streaming
        if self._credit < 0 and sent is not None and sent.delivery is None:  # nothing of a large message was sent yet
            self._streaming = None
            sent.give_back()
            self._credit += 1
        super().flow_event()
        if self._credit > 0:
            self.wake()

    @property
    def has_nothing_to_send(self) -> bool:
        waits = self._waiting or self._crowded or self._waits_for_turn
        return not waits and self._streaming is None and not self.searches

    def drained(self) -> None:
        super().drained()
        self._credit = 0

    def flow_properties(self, txn_id: Value) -> None:
        # What is acquired from now on belongs to this transaction.
        if txn_id is None:
            if self._acquisition is not None:
                self._acquire_for(None)
            return
        if type(txn_id) is not bytes:
            self.detach(Refusal(Condition.INVALID_FIELD, "a txn-id is binary", Code.XAER_INVAL))
            return
        try:
            context = self._txns.context(txn_id)
            context.check()
        except RefusedError as error:
            self.detach(error.refusal)
            return
        self._acquire_for(context)

    def _acquire_for(self, context: WorkContext | None) -> None:
        self._context = self._outside if context is None else context
        self._acquisition = None if context is None else context.acquisition
        self.sender.properties = None if context is None else {Symbol(TXN_ID): context.txn_id}

    def transaction_ended(self, context: WorkContext) -> None:
        if self._context is context:
            self._acquire_for(None)
            if self._credit > 0:
                self.wake()

    # -- what the peer says of deliveries
    def disposed(self, delivery: IncomingDelivery | Delivery, state: bytes | None, *, settled: bool) -> None:
        sent = self._sent.get(delivery)  # type: ignore[arg-type] # it is an outgoing one
        if sent is None:
            if settled:
                delivery.settle()
            return

        try:
            txn_id, outcome = (None, None) if state is None else self._txns.read(state)
        except WireError as error:
            self.detach(refusal_of(error))
            return
        if txn_id is not None:
            self._transactional(sent, txn_id, outcome, settled=settled)
        elif sent.context is not None:
            if outcome is not None:
                self._conflict(sent.context, "an outcome outside of the transaction to which the delivery belongs")
            elif settled:  # with the outcome that it has
                sent.context.retire(sent, None, settled=True)
                self._forget(sent)
        elif sent.custody is FREE and (settled or outcome is not None):
            sent.decide()
            self._outside.retire(sent, outcome, settled=settled)
            self._note_undeliverable(sent, outcome)
            if settled:
                self._forget(sent)
        elif settled:
            self._forget(sent)

    def _note_undeliverable(self, sent: OutgoingDelivery, outcome: Outcome | None) -> None:
        """Keeps in mind what the peer can't do anything with, unless it is among the dead letters by now. In a
        transaction the last outcome counts, so that another one takes it back; one that was settled counts also if the
        transaction is rolled back."""
        if not (outcome or sent.default).undeliverable:
            self.undeliverable.discard(sent.entry)
        elif sent.entry.queue is self._queue and self.attachment is ATTACHED:
            self.undeliverable.add(sent.entry)
            if len(self.undeliverable) >= UNDELIVERABLE:
                kept = {one for one in self.undeliverable if one.queue is self._queue and one.state is not State.GONE}
                self.undeliverable = kept
                if len(kept) >= UNDELIVERABLE:
                    message = f"{len(kept)} messages of {self._queue.name} are undeliverable here"
                    self.detach(Refusal(Condition.RESOURCE_LIMIT, message, Code.XAER_RMERR))

    def _transactional(self, sent: OutgoingDelivery, txn_id: bytes, outcome: Outcome | None, *, settled: bool) -> None:
        context = self._txns.live.get(txn_id)
        if context is None or txn_id == sent.ended:
            self._stale(sent, txn_id, settled=settled)
            return
        if sent.context is not None and sent.context is not context:
            message = "the delivery belongs to another transaction that is not discharged"
            self._conflict(context, message)
            return
        if sent.custody is DECIDED:
            return
        context.retire(sent, outcome, settled=settled)
        if settled or outcome is not None:
            self._note_undeliverable(sent, outcome)
        if settled:
            self._forget(sent)

    def _stale(self, sent: OutgoingDelivery, txn_id: bytes, *, settled: bool) -> None:
        """The state names a transaction that is over. That is what is left of it where the peer only settles;
        otherwise it asks for work that can't be done."""
        context = sent.context
        if context is not None and txn_id in {context.txn_id, sent.ended}:
            if settled:  # ended for its branch, which holds the delivery; or over, and another one retires it by now
                context.retire(sent, None, settled=True)
                self._forget(sent)
        elif txn_id == sent.ended:
            if settled and sent.custody is FREE:
                sent.decide()
                self._outside.retire(sent, None, settled=True)
                self._forget(sent)
        else:
            self.detach(unknown_id(txn_id))

    def _conflict(self, context: WorkContext, message: str) -> None:
        context.control.terminate(Refusal(Condition.ROLLBACK, f"rolled back: {message}", Code.XA_RBPROTO))

    # -- what becomes of deliveries
    def _forget(self, sent: OutgoingDelivery) -> None:
        delivery = sent.delivery
        if delivery is not None and self._sent.pop(delivery, None) is not None:
            sent.end()
            delivery.settle()
            self._end_stream(sent)
            self.container.touch(self.connection)
            self._detach_at_last()
            if self._credit > 0 and self.attachment is ATTACHED:
                self.wake()

    def finish(self, sent: OutgoingDelivery, outcome: Outcome) -> None:
        """The outcome is in force: it is sent, and settled."""
        if self._has_deliveries and sent.custody is not ENDED and sent.delivery is not None:
            sent.delivery.update(outcome.encode(), settled=True)
            self._forget(sent)

    def refuse(self, sent: OutgoingDelivery, refusal: Refusal) -> None:
        """The store did not take what the peer said of a delivery: that is sent to it, and the link is closed."""
        if self._has_deliveries and sent.custody is not ENDED and sent.delivery is not None:
            sent.delivery.update(rejected_state(refusal), settled=True)
            self._forget(sent)
            self.detach(refusal)

    def withdraw(self, sent: OutgoingDelivery) -> None:
        """The message is the controller's no more: what was not sent never will be."""
        if not self._has_deliveries or sent.custody is ENDED:
            return
        delivery = sent.delivery
        if delivery is None:
            sent.end()
            sent.unload()
            self._credit += 1

            if sent is self._streaming:
                self._end_stream(sent)
            else:
                self._waiting.remove(sent)
        elif delivery.progress is WAITING or delivery.progress is PARTIAL:
            sent.end()
            self._sent.pop(delivery, None)
            delivery.abort()
            self.room.aborted(self)
            self.container.touch(self.connection)
            self._end_stream(sent)
        else:
            delivery.update(GIVEN_BACK_OCTETS, settled=True)
            self._forget(sent)

    def suspend(self) -> None:
        self.room.draining.pop(self, None)
        self.leave_queue()
        for delivery, sent in tuple(self._sent.items()):
            if delivery.progress is SETTLED:  # it was not sent to its end
                del self._sent[delivery]
                self._end(sent)

    def gone(self) -> None:
        super().gone()
        self.leave_queue()
        self.end_deliveries()
        if self._dynamic:
            self.connection.nodes.drop(self._queue)

    def leave_queue(self) -> None:
        """It takes no more messages, and gives back what was not sent."""
        self._queue.attached -= 1
        self._queue.forget(self)
        for sent in self._waiting:
            sent.give_back()
        self._waiting.clear()
        streaming = self._streaming
        if streaming is not None and (streaming.delivery is None or self.settles):
            streaming.give_back()  # nothing of it was sent, or it was not sent to its end
        self._streaming = None

    def end_deliveries(self) -> None:
        for sent in self._sent.values():
            self._end(sent)
        self._sent.clear()
        self.undeliverable.clear()
        self.sender.session.forget(self.sender)

    def _end(self, sent: OutgoingDelivery) -> None:
        # Deliveries that no transaction has end with their default outcome. None of them counts as failed if the peer
        # closed in order, because what a peer has only prefetched would be a dead letter after a few closes. That holds
        # also if the peer named this default: Qpid JMS always names `modified` with delivery-failed.
        if sent.retirement is not None:
            sent.retirement.delivery = None
        elif sent.custody is FREE:
            outcome = sent.default
            if outcome.failed:
                outcome = NOT_SETTLED[self.attachment]
            self.resource.retire(sent.entry, outcome, None)
        sent.end()
