"""The broker's links: what every link of a connection answers to, and the receiving ones.

`ReceivingLink` puts deliveries together, holds the peer to the size of messages, and gives each whole message to
`message`, which answers by `accept`, `answer` or `refuse`. A refusal in the table FATAL closes the link as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.delivery import PARTIAL
from dtx.amqp.performatives import MAX_UINT, Coordinator, Error
from dtx.broker.container import ServedConnection
from dtx.broker.endpoint.states import ATTACHED, AttachmentState
from dtx.broker.queues.outcomes import TAKEN_OCTETS, rejected_state, transactional_state
from dtx.broker.queues.readers import MOST
from dtx.broker.transactions.contexts import unknown_id
from dtx.protocol.addresses import RESERVED
from dtx.protocol.conditions import Refusal, RefusedError, refused
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from dtx.amqp.events import Transferred
    from dtx.amqp.link import Link as Endpoint
    from dtx.amqp.link import ReceiverLink, SenderLink
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.session import Session as SessionEndpoint
    from dtx.amqp.values import Value
    from dtx.broker.access.permissions import Action
    from dtx.broker.container import Container, DynamicNodes
    from dtx.broker.endpoint.output_room import OutputRoom
    from dtx.broker.queues.entry import Browser, Entry, ResumableWork
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.contexts import TransactionalContext, WorkContext
    from dtx.broker.transactions.demarcation import DtxDemarcation

FATAL: Final = frozenset({Condition.UNAUTHORIZED, Condition.INTERNAL_ERROR, Condition.NOT_FOUND})
"""Refusals of a message after which the link is closed; after others (resource limit) it goes on."""

REJECTED_NAME: Final = "amqp:rejected:list"
MOST_EMPTY: Final = 100
"""Transfers without payload that one message may have: they cost work, and no limit of octets counts them."""


class LinkConnection(ServedConnection, Protocol):
    """A connection, as its links know it."""

    container: Container
    room: OutputRoom
    nodes: DynamicNodes
    partial_octets: int
    """Octets of messages of which more is to come."""
    unanswered: list[Callable[[Refusal | None], None]]
    """What is called when the last message is in its queue that was sent settled, outside of transactions; empty when
    it is."""
    outcomes_due: list[Callable[[Refusal | None], None]]
    """The same of messages that were sent unsettled: with their outcomes."""

    def detach(self, link: Link, refusal: Refusal) -> None:
        """Closes a link with an error."""
        ...

    def decided(self) -> None:
        """A control link has sent the last outcome that it waited for."""
        ...

    def released(self, context: WorkContext) -> None:
        """A txn-id is no longer in use: links acquire no more for it."""
        ...


class Session:
    """One session: its demarcation, and its links."""

    __slots__ = ("demarcation", "endpoint", "links")

    def __init__(self, endpoint: SessionEndpoint, demarcation: DtxDemarcation) -> None:
        self.endpoint = endpoint
        self.demarcation = demarcation
        self.links: dict[Endpoint, Link] = {}


class Link:
    """A link of the broker's. `endpoint` is our end of it in AMQP."""

    controls = False
    """Whether it is a control link."""
    decides = False
    """Whether its messages are for the coordinator: they go before others."""
    kind = "link"
    """For people: what it is for."""

    def __init__(self, connection: LinkConnection, session: Session, endpoint: Endpoint) -> None:
        self.connection = connection
        self.container: Container = connection.container
        self.room: OutputRoom = connection.room
        self.session = session
        self.endpoint: Endpoint = endpoint
        self.name = endpoint.name
        self.attachment: AttachmentState = ATTACHED
        self.ending: Refusal | None = None
        """The error with which it is closed when the outcomes of earlier messages are sent; it takes nothing more."""

    @property
    def is_attached(self) -> bool:
        """Whether neither side has closed it."""
        return self.attachment is ATTACHED

    @property
    def peer(self) -> str:
        """The address of the peer, for people."""
        return self.connection.peer

    @property
    def waiting_octets(self) -> int:
        """Octets that are sent before the next message of the link."""
        return self.session.endpoint.waiting_octets + self.room.endpoint.output_octets

    @property
    def user(self) -> str:
        """The user that pays for the time that it takes."""
        return self.connection.identity.name

    def continue_later(self, one: ResumableWork) -> None:
        """Has `one` go on in another turn, at the cost of that user."""
        self.container.continue_later(one, self.user)

    @property
    def queued(self) -> bool:
        """Whether deliveries wait for the peer's window."""
        return False

    @property
    def address(self) -> str:
        """The address of the node that it is attached to; "" where that has none."""
        return self.terminus_address()

    def terminus_address(self) -> str:
        """The address in the terminus that the peer named."""
        remote = self.endpoint.remote
        if remote is None:
            return ""
        terminus = remote.target if self.endpoint.receives else remote.source
        return "" if terminus is None or isinstance(terminus, Coordinator) else terminus.address or ""

    @property
    def credit(self) -> int:
        """How many messages may be sent now, by the end that sends on it."""
        return 0

    @property
    def messages(self) -> int:
        """How many messages have gone over it."""
        return 0

    @property
    def unsettled(self) -> int:
        """How many of these are not settled."""
        return 0

    def opened(self) -> None:
        """The attach was answered."""

    def transferred(self, event: Transferred) -> None:
        """A part of a delivery came."""

    def disposed(self, delivery: IncomingDelivery | OutgoingDelivery, state: bytes | None, *, settled: bool) -> None:
        """The peer sent the state of a delivery, or settled it."""

    def flow_event(self) -> None:
        """The peer's credit changed."""

    def flow_properties(self, txn_id: Value) -> None:
        """The properties of a flow named this txn-id; None: no more. Most links have nothing to acquire."""
        if txn_id is not None:
            message = "this link supports no transactional acquisition"
            self.detach(Refusal(Condition.NOT_IMPLEMENTED, message, Code.XAER_INVAL))

    def transaction_ended(self, context: WorkContext) -> None:
        """A transaction is discharged, or lost."""

    def gone(self) -> None:
        """The link is closed, by either side."""

    @property
    def awaits_decision(self) -> bool:
        """Whether a transaction is being decided, or prepared, whose outcome it is to send."""
        return False

    @property
    def outlives_detach(self) -> bool:
        """Whether it has deliveries that may be decided still when the peer has detached it without closing it."""
        return False

    def closed_in_order(self, answer: Callable[[], None]) -> None:
        """The peer has closed the link, which is gone: `answer` is to be called when that may be answered."""
        answer()

    def suspend(self) -> None:
        """The peer has detached the link, and `outlives_detach` is true."""

    def end_deliveries(self) -> None:
        """The link was suspended, and what is not decided is not live any more."""

    def drain(self) -> None:
        """The peer wants the credit used up or back."""

    def detach(self, refusal: Refusal) -> None:
        """Closes the link with an error."""
        self.connection.detach(self, refusal)


class SendingLink(Link):
    """Sends messages, as far as the peer's credit and the connection's room go."""

    def __init__(self, connection: LinkConnection, session: Session, endpoint: SenderLink) -> None:
        super().__init__(connection, session, endpoint)
        self.sender = endpoint
        self.largest = 0
        """Octets of the largest message that the peer takes, 0 for any."""
        self._tag = 0
        self._crowded = False
        """Whether it waits until its session has little left to send."""
        self._waits_for_turn = False

    @property
    def credit(self) -> int:
        return self.sender.credit

    @property
    def messages(self) -> int:
        return self._tag

    @property
    def has_nothing_to_send(self) -> bool:
        """Whether no message is on its way to the peer, or could be: the credit that is left may go back."""
        return True

    def flow_event(self) -> None:
        if self.sender.drain:
            self.room.draining[self] = None

    def drain(self) -> None:
        if not self.sender.drain:
            self.room.draining.pop(self, None)
        elif self.has_nothing_to_send and self.sender.idle:
            self.room.draining.pop(self, None)
            self.drained()

    def drained(self) -> None:
        """Gives the credit that is left back; the queue had its turn."""
        self.sender.drained()

    def gone(self) -> None:
        self.room.draining.pop(self, None)
        self.sender.session.forget(self.sender)


class MessageRead:
    """A message whose payload is being read; `known` when that is done: None for one that is not there any more."""

    __slots__ = ("entry", "known", "payload")

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.payload: bytes | None = None
        self.known = False


class ReceivingLink(Link, ABC):
    """Takes messages. `limit` bounds their size. A message is rejected only if the link's source has that outcome, or
    names none; otherwise the link is detached with the error."""

    def __init__(
        self, connection: LinkConnection, session: Session, endpoint: ReceiverLink, *, credit: int, limit: int
    ) -> None:
        super().__init__(connection, session, endpoint)
        self.receiver = endpoint
        self._txns = connection.txns
        source = None if endpoint.remote is None else endpoint.remote.source
        self._rejects = source is None or not source.outcomes or REJECTED_NAME in source.outcomes
        self._credit = credit
        self._limit = limit
        self._parts = bytearray()
        """What has come of a message of which more is to come."""
        self._in_parts = False
        self._empty_parts = 0
        self._first_txn: bytes | None = None
        self._partial: TransactionalContext | None = None
        self._broken: Refusal | None = None
        self._unsettled: dict[IncomingDelivery, None] = {}

    @property
    def credit(self) -> int:
        return self.receiver.credit

    @property
    def messages(self) -> int:
        remote = self.receiver.remote
        first = 0 if remote is None else remote.initial_delivery_count or 0
        return (self.receiver.delivery_count - first) & MAX_UINT

    @property
    def unsettled(self) -> int:
        return len(self._unsettled)

    def opened(self) -> None:
        self.receiver.give_credit(self._credit)

    def gone(self) -> None:
        if self._partial is not None and self.attachment is not AttachmentState.CLOSED:
            message = "a message of the transaction is not complete, and its link or session has ended with an error"
            self._partial.refuse_success(Refusal(Condition.ROLLBACK, message, Code.XA_RBPROTO))
        self._end_partial()
        self._drop_parts()
        self._unsettled.clear()
        self.receiver.session.forget(self.receiver)

    # -- deliveries
    def disposed(self, delivery: IncomingDelivery | OutgoingDelivery, state: bytes | None, *, settled: bool) -> None:
        del state  # a sender has none to tell
        if settled:
            self._unsettled.pop(delivery, None)  # type: ignore[arg-type] # it is an incoming one
            delivery.settle()
            self._replenish()

    def transferred(self, event: Transferred) -> None:
        delivery = event.delivery
        if delivery.aborted:
            self._drop_parts()
            self._end_partial()
            self._replenish()
        elif delivery.progress is PARTIAL:
            self._part(event)
        elif self._in_parts:
            self._continued(event.state)
            parts = self._parts

            self._drop_parts()
            parts += event.octets
            self._complete(delivery, bytes(parts), self._first_txn)
        else:
            try:
                txn_id = None if event.state is None else self._txns.read(event.state)[0]
            except WireError as error:
                self._broken, txn_id = refusal_of(error), None
            self._complete(delivery, event.octets, txn_id)

    def _part(self, event: Transferred) -> None:
        if self._in_parts:
            self._continued(event.state)
        else:
            self._begin_partial(event.state)

        self._in_parts = True
        octets = event.octets
        self._parts += octets
        self._empty_parts += not octets
        connection = self.connection
        unstored = self.container.resource.unstored
        connection.partial_octets += len(octets)
        unstored.octets += len(octets)
        if len(self._parts) > self._limit:
            self._too_large(event.delivery, self._partial)
        elif self._empty_parts > MOST_EMPTY:
            message = f"a message with more than {MOST_EMPTY} parts that are empty"
            self.detach(Refusal(Condition.RESOURCE_LIMIT, message, Code.XAER_RMERR))
        elif connection.partial_octets > self.container.limits.partial_octets:
            message = f"{connection.partial_octets} octets of messages that are not complete"
            self._no_room(message, self.container.limits.partial_octets)
        elif unstored.octets > unstored.limit:
            message = f"{unstored.octets} octets of messages that are not complete, or whose transactions are open"
            self._no_room(message, unstored.limit)

    def _no_room(self, message: str, limit: int) -> None:
        code = Code.XAER_RMERR if len(self._parts) > limit else Code.XA_RETRY
        refusal = Refusal(Condition.RESOURCE_LIMIT, message, code)
        if self._partial is not None:  # its discharge may be answered before the link is detached
            self._partial.refuse_success(refusal)
        self.detach(refusal)

    def _too_large(self, delivery: IncomingDelivery, context: TransactionalContext | None) -> None:
        message = f"a message has at most {self._limit} octets here"
        refusal = Refusal(Condition.MESSAGE_SIZE, message, Code.XAER_INVAL, delivery_tag=delivery.tag)
        if context is not None:  # its discharge may be answered before the link is detached
            context.refuse_success(refusal)
        self.detach(refusal)

    def _drop_parts(self) -> None:
        self.connection.partial_octets -= len(self._parts)
        self.container.resource.unstored.octets -= len(self._parts)
        self._parts = bytearray()
        self._in_parts = False
        self._empty_parts = 0

    def _begin_partial(self, state: bytes | None) -> None:
        self._broken = None
        self._first_txn = None
        try:
            if state is not None:
                self._first_txn = self._txns.read(state)[0]
            if self._first_txn is not None:
                context = self._txns.context(self._first_txn)
                context.begin_partial()
                self._partial = context
        except (RefusedError, WireError) as error:
            self._broken = refusal_of(error)

    def _continued(self, state: bytes | None) -> None:
        # Every frame of a delivery names the transaction that its first one names.
        try:
            txn_id = None if state is None else self._txns.read(state)[0]
        except WireError as error:
            self._broken = refusal_of(error)
            return
        if txn_id != self._first_txn:
            message = "the frames of one delivery name different transactions"
            self._broken = Refusal(Condition.ROLLBACK, message, Code.XA_RBPROTO)

    def _end_partial(self) -> None:
        if self._partial is not None:
            self._partial.end_partial()
            self._partial = None

    def _complete(self, delivery: IncomingDelivery, octets: bytes, txn_id: bytes | None) -> None:
        self._end_partial()
        broken, self._broken, self._first_txn = self._broken, None, None
        if len(octets) > self._limit:
            self._too_large(delivery, None if txn_id is None else self._txns.live.get(txn_id))
            return
        context: WorkContext | None = None
        if txn_id is not None:
            context = self._txns.live.get(txn_id)
            if context is None:
                broken = broken or unknown_id(txn_id)

        settled = delivery.sent_settled
        if broken is not None:
            self._break(delivery, context, broken, settled=settled)
        else:
            self.message(delivery, octets, context, settled=settled)
        self._replenish()

    def _break(
        self, delivery: IncomingDelivery, context: WorkContext | None, refusal: Refusal, *, settled: bool
    ) -> None:
        """The delivery's transaction is wrong: it is refused, and where no outcome can be sent, the link is."""
        if context is not None:
            context.refuse_success(refusal)
        if settled:
            self.detach_for(delivery, refusal)
        else:
            self.refuse(delivery, refusal, None)

    def detach_for(self, delivery: IncomingDelivery, refusal: Refusal) -> None:
        """Closes the link with an error that says for which message."""
        self.detach(replace(refusal, delivery_tag=delivery.tag))

    def lose_settled(self, refusal: Refusal, to: str = "") -> None:
        """A message that was sent settled, outside of a transaction, is not taken: no outcome can tell its sender, so
        that it is counted, and logged. `to`: where it says that it goes, on a link without an address."""
        self.container.settled_and_refused += 1
        self.container.lines.warn(
            "%s, %s: a message to %s was sent settled and is not taken, so that it is lost: %s",
            self.peer,
            self.user,
            self.address or to or "no address",
            refusal.description,
            user=self.connection.identity,
        )

    def _replenish(self) -> None:
        """Gives credit anew, unless the peer leaves too much unsettled."""
        receiver = self.receiver
        if (
            receiver.credit * 2 < self._credit
            and receiver.attached
            and self.ending is None
            and len(self._unsettled) < self.container.limits.unsettled
        ):
            receiver.give_credit(self._credit)

    # -- messages
    @abstractmethod
    def message(self, delivery: IncomingDelivery, octets: bytes, context: WorkContext | None, *, settled: bool) -> None:
        """A whole message came, under the transaction `context`, or none. No outcome of one that was sent `settled` can
        be sent."""

    def wait(self, delivery: IncomingDelivery) -> IncomingDelivery:
        """The delivery's answer comes later."""
        self._unsettled[delivery] = None
        return delivery

    def waits(self, delivery: IncomingDelivery) -> bool:
        """Whether somebody waits for the delivery's answer still."""
        return delivery in self._unsettled

    def answer(self, delivery: IncomingDelivery, state: bytes) -> None:
        """Sends the outcome, encoded, and settles unless the sender is to settle first."""
        if delivery.settles_second and not delivery.settled_by_peer:
            self._unsettled.setdefault(delivery)
            delivery.update(state, settled=False)
        else:
            self._unsettled.pop(delivery, None)
            delivery.update(state, settled=True)
        self.container.touch(self.connection)

    def decided(self, delivery: IncomingDelivery, refusal: Refusal | None) -> None:
        """The transaction of a posted delivery that is not settled yet is over. Committed: its state is the
        outcome that was applied. Rolled back: the outcome that was sent belongs to a transaction that is
        gone."""
        if refusal is None and self.waits(delivery):
            delivery.update(TAKEN_OCTETS, settled=False)
            self.container.touch(self.connection)

    def accept(self, delivery: IncomingDelivery) -> None:
        """Sends the outcome that the message is accepted."""
        self.answer(delivery, TAKEN_OCTETS)

    def refuse(self, delivery: IncomingDelivery, refusal: Refusal, context: WorkContext | None) -> None:
        """Sends the outcome that the message is rejected, in the transaction under which it came. Where the source does
        not have it, the link is closed: then the transaction can't succeed, since no outcome says what is missing."""
        if not self._rejects:
            if context is not None:
                context.refuse_success(refusal)
            self.detach_for(delivery, refusal)
            return
        state = rejected_state(refusal)
        self.answer(delivery, state if context is None else transactional_state(context.txn_id, state))


def check_permission(connection: LinkConnection, address: str, action: Action) -> None:
    """RefusedError where the peer may not do this at a queue or topic."""
    reserved = address.startswith(RESERVED)
    if not reserved and not connection.container.permissions.may(connection.identity, action, address):
        message = f"{connection.identity} may not {action.value} at {address!r}"
        raise refused(Code.XAER_RMERR, message, condition=Condition.UNAUTHORIZED)


def claim_reader(browser: Browser, identity: Identity, queue: Queue) -> None:
    """The link reads the queue in its order from now on; RefusedError where its user has too many that do so."""
    if not queue.readers.add(browser):
        message = f"{identity} has {MOST} links that browse {queue.name!r} or select from it"
        raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)


def refusal_of(error: RefusedError | WireError) -> Refusal:
    """The refusal in an exception."""
    if isinstance(error, RefusedError):
        return error.refusal
    return Refusal(error.condition, str(error), Code.XAER_INVAL)


def error_of(refusal: Refusal) -> Error:
    """The error that tells a refusal."""
    return Error(refusal.condition, refusal.description, refusal.info())
