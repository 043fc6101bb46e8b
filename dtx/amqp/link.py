"""Links: one direction of messages between two nodes, over a session.

A link is attached by either side. The one that answers sees it in a `LinkAttached` event, with the peer's attach as
`remote`, and calls `attach` or `refuse`. The receiver of a link gives credit; the sender sends no more than that.
A link that is detached stays usable as an object: what is asked of it has no effect any more, and nothing is sent.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition, ProtocolError, Scope
from dtx.amqp.delivery import (
    ABORT,
    PARTIAL,
    RECEIVE_SETTLED,
    TRANSFER,
    TRANSFER_PART,
    TRANSFER_SETTLED,
    WAITING,
    IncomingDelivery,
    OutgoingDelivery,
)
from dtx.amqp.events import Transferred
from dtx.amqp.performatives import (
    MAX_TAG,
    MAX_UINT,
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    SENDER_MIXED,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
    Attach,
    Detach,
    Error,
    Flow,
)
from dtx.amqp.states import LINK, LinkState, LinkVerb
from xa.machine import advance

if TYPE_CHECKING:
    from dtx.amqp.performatives import Coordinator, Source, Target, Transfer
    from dtx.amqp.session import Session
    from dtx.amqp.values import Map

ATTACHED: Final = LinkState.ATTACHED
HALF: Final = 2**31
MAX_UNSETTLED: Final = 65_536
"""Deliveries of the peer in one session that are not settled. It chooses their numbers, so their places in a dict."""
MAX_STATE: Final = 256
"""Octets of the state with which a delivery is sent."""


def ahead(one: int, other: int) -> int:
    """How far the serial number `one` is ahead of `other` (RFC 1982); below zero where it is behind."""
    distance = (one - other) & MAX_UINT
    return distance - 2**32 if distance >= HALF else distance


class Link:
    """What both ends of a link have in common."""

    receives: bool
    """Whether we are the receiver."""

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        """Our handle."""
        self.remote_handle = -1
        self.state = LinkState.DETACHED
        self.remote: Attach | None = None
        """The peer's attach."""

        self.kept_octets = 0
        """Octets of that."""
        self.snd_settle_mode = SENDER_MIXED
        self.rcv_settle_mode = RECEIVER_FIRST
        self.delivery_count = 0
        self.initial_count = 0
        """The delivery-count in our attach."""
        self.properties: Map | None = None
        """What our flows say beside the credit."""

    @property
    def attached(self) -> bool:
        """Whether both sides have attached it, and neither has detached it."""
        return self.state is ATTACHED

    def attach(
        self,
        source: Source | None,
        target: Target | Coordinator | None,
        *,
        max_message_size: int = 0,
        offered: tuple[str, ...] = (),
        properties: Map | None = None,
    ) -> None:
        """Attaches the link, or answers the peer's attach. Without effect when its session is gone."""
        if self.state is LinkState.GONE:
            return
        self.state = advance(LINK, self.state, LinkVerb.SEND_ATTACH)
        if self.state is LinkState.ATTACH_SENT:
            self.session.expect(self)
        self.initial_count = self.delivery_count

        self.session.send(
            Attach(
                self.name,
                self.handle,
                self.receives,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                initial_delivery_count=None if self.receives else self.delivery_count,
                max_message_size=max_message_size,
                offered_capabilities=offered,
                properties=properties,
            )
        )

    def refuse(self, error: Error) -> None:
        """Answers the peer's attach as the specification has it for a link that is refused: without the terminus that
        would be ours, and a detach with the error behind it (2.6.3)."""
        remote = self.remote
        source = remote.source if remote is not None and self.receives else None
        target = remote.target if remote is not None and not self.receives else None
        self.attach(source, target)
        self.detach(error=error)

    def detach(self, *, closed: bool = True, error: Error | None = None) -> None:
        """Detaches the link, or answers the peer's detach. Without effect on a link that we have detached. Only an
        answer may leave the link open, as nothing is kept of a link that is detached."""
        if self.state in {LinkState.GONE, LinkState.DETACH_SENT}:
            return
        if not closed and self.state is not LinkState.DETACH_RCVD:
            raise ValueError(f"the link {self.name!r} can only be closed: nothing is kept of it")
        if self.state is LinkState.ATTACH_RCVD:
            self.attach(None, None)
        answers = self.state is LinkState.DETACH_RCVD
        self.state = advance(LINK, self.state, LinkVerb.SEND_DETACH)
        if not answers:  # where it does, that is done
            self.session.drop_link(self)
        self.session.send(Detach(self.handle, closed, error))
        if self.state is LinkState.GONE:
            self.session.free_link(self)

    def fail(self) -> None:
        """Nothing but the peer's detach is read of it any more, and `detach` follows."""
        self.state = advance(LINK, self.state, LinkVerb.FAIL)

    @property
    def failed(self) -> bool:
        """Whether it has failed because of what the peer did, and our detach is not sent."""
        return self.state is LinkState.FAILED

    def received_attach(self, attach: Attach) -> None:
        """The peer attached it, or answered our attach."""
        self.state = advance(LINK, self.state, LinkVerb.RECEIVE_ATTACH)
        self.remote = attach
        self.remote_handle = attach.handle
        if self.receives:  # each end has the last word about how it settles
            self.snd_settle_mode = attach.snd_settle_mode
        else:
            self.rcv_settle_mode = attach.rcv_settle_mode

    def received_detach(self) -> None:
        """The peer detached it; perhaps before its attach was answered."""
        if self.state is LinkState.ATTACH_RCVD:
            self.attach(None, None)
        self.state = advance(LINK, self.state, LinkVerb.RECEIVE_DETACH)

    def lose(self) -> None:
        """Its session is gone."""
        self.state = advance(LINK, self.state, LinkVerb.LOSE)

    @abstractmethod
    def received_flow(self, flow: Flow) -> None:
        """The peer said in which state the link is."""

    def echo(self) -> None:
        """Tells the peer our state of the link."""
        if self.state is ATTACHED:
            self._send_flow()

    @abstractmethod
    def _send_flow(self) -> None:
        """Sends a flow with our state of the link."""


class SenderLink(Link):
    """A link on which we send."""

    receives = False

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self._limit = 0
        """The delivery-count up to which the peer gave credit."""
        self._given = 0
        """The delivery-count when everything is transferred that waits for the window."""
        self.drain = False
        """Whether the peer wants the credit used up, or given back; until `drained`."""
        self._drain_echo = False
        """What the peer's last flow says of that: ours say the same."""

        self.available = 0
        self.waiting: OrderedDict[OutgoingDelivery, int] = OrderedDict()
        """The deliveries that have something to transfer when the peer's window is open, in the order in which they
        were given it, with the session's count of that."""
        self.lined_up = False
        """Whether the session has it among the links that go on then."""
        self.unsettled: dict[int, OutgoingDelivery] = {}
        """The session's deliveries that are this link's."""
        self.current: OutgoingDelivery | None = None
        """The delivery that is not complete."""

    @property
    def credit(self) -> int:
        """How many deliveries may be sent."""
        return max(0, ahead(self._limit, self._given))

    @property
    def idle(self) -> bool:
        """Whether everything that was sent is transferred, but for what the peer has given credit and taken it back
        meanwhile: that waits for credit."""
        return self.current is None and not self.transfers

    @property
    def queued(self) -> int:
        """Deliveries that have something to transfer when the peer's window is open."""
        return len(self.waiting)

    @property
    def first_waiting(self) -> tuple[OutgoingDelivery, int] | None:
        """The first of them."""
        return next(iter(self.waiting.items())) if self.waiting else None

    @property
    def transfers(self) -> bool:
        """Whether one is to be transferred when the peer's window is open: there is credit, or the first one, which is
        the only one that can be so, was begun."""
        if ahead(self._limit, self.delivery_count) > 0:
            return bool(self.waiting)
        first = self.first_waiting
        return first is not None and first[0].progress is not WAITING

    def send(
        self,
        tag: bytes,
        octets: bytes,
        state: bytes | None = None,
        *,
        settled: bool = False,
        more: bool = False,
        message_format: int = 0,
    ) -> OutgoingDelivery:
        """Sends a message, or with `more` its first part. There has to be credit for it, and no other delivery that
        is incomplete. Tag and state fit in the smallest frame: they have at most MAX_TAG and MAX_STATE octets."""
        if self.state is not ATTACHED:
            message: str = self.state.value
            raise ValueError(f"the link {self.name!r} is {message}")
        if len(tag) > MAX_TAG or (state is not None and len(state) > MAX_STATE):
            raise ValueError("the delivery's tag or state is too long")
        if self.current is not None:
            raise ValueError("the link's last delivery is not complete")
        delivery = OutgoingDelivery(self, tag, state, settled=settled, message_format=message_format)
        self._given = (self._given + 1) & MAX_UINT
        self.current = delivery
        delivery.add(octets, more=more)
        return delivery

    def began(self) -> None:
        """The first transfer of a delivery is made."""
        self.delivery_count = (self.delivery_count + 1) & MAX_UINT

    def taken_back(self) -> None:
        """A delivery of which nothing was transferred is given up."""
        self._given = (self._given - 1) & MAX_UINT

    def drained(self) -> int:
        """Gives back the credit that is left, and says so, also where there is none. How much it was."""
        left = self.credit
        if self.state is ATTACHED:
            self._given = (self._given + left) & MAX_UINT
            self.delivery_count = (self.delivery_count + left) & MAX_UINT
            self.drain = False
            self._send_flow()
        return left

    def received_flow(self, flow: Flow) -> None:
        credit = flow.link_credit
        if credit is not None:
            # No delivery-count means that the receiver has not seen our attach yet.
            counted = flow.delivery_count if flow.delivery_count is not None else self.initial_count
            self._limit = (counted + min(credit, HALF - 1)) & MAX_UINT  # serial numbers count no further ahead
        self.drain = self._drain_echo = flow.drain

    def _send_flow(self) -> None:
        credit = max(0, ahead(self._limit, self.delivery_count))
        flow = self.session.flow()
        flow.handle, flow.delivery_count, flow.link_credit = self.handle, self.delivery_count, credit
        flow.available, flow.drain, flow.properties = self.available, self._drain_echo, self.properties
        self.session.send(flow)
        self.session.connection.owes_nothing(self)


class ReceiverLink(Link):
    """A link on which the peer sends."""

    receives = True

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        """How many deliveries the peer may begin."""
        self.drain = False
        self.current: IncomingDelivery | None = None
        """The delivery that has not come to its end."""
        self.unsettled: dict[int, IncomingDelivery] = {}
        """The session's deliveries that are this link's."""

    def give_credit(self, credit: int, *, drain: bool = False) -> None:
        """From now on the peer may send so many deliveries."""
        self.credit = credit
        self.drain = drain
        if self.state is ATTACHED:
            self._send_flow()

    def received_attach(self, attach: Attach) -> None:
        super().received_attach(attach)
        self.delivery_count = attach.initial_delivery_count or 0

    def received_flow(self, flow: Flow) -> None:
        if flow.delivery_count is not None:
            used = ahead(flow.delivery_count, self.delivery_count)
            if used > 0:
                self.credit = max(0, self.credit - used)
                self.delivery_count = flow.delivery_count

    def received_transfer(self, transfer: Transfer, octets: bytes) -> Transferred:
        """A transfer came."""
        if transfer.resume:
            raise self._error(Condition.NOT_IMPLEMENTED, "resuming deliveries is not supported")
        delivery = self.current
        if delivery is None:
            delivery = self.current = self._begin(transfer)
        else:
            self._check_continuation(delivery, transfer)
        if transfer.aborted:
            self.current = None
            delivery.aborted = True
            delivery.progress = ABORT[delivery.progress]
            self.drop(delivery.id)
            return Transferred(delivery, b"", None)

        if transfer.settled:
            if self.snd_settle_mode == SENDER_UNSETTLED:
                raise self._error(Condition.INVALID_FIELD, "a settled transfer on a link whose sender settles nothing")
            delivery.sent_settled = True

        if transfer.more:
            delivery.progress = TRANSFER_PART[delivery.progress]
            if not delivery.sent_settled:
                self._keep(delivery)
            return Transferred(delivery, octets, transfer.state)
        self.current = None
        if delivery.sent_settled:
            delivery.progress = TRANSFER_SETTLED[delivery.progress]
            self.drop(delivery.id)
        elif self.snd_settle_mode == SENDER_SETTLED:
            raise self._error(
                Condition.INVALID_FIELD, "an unsettled transfer on a link whose sender settles everything"
            )
        else:
            delivery.progress = TRANSFER[delivery.progress]
            self._keep(delivery)
        return Transferred(delivery, octets, transfer.state)

    def _keep(self, delivery: IncomingDelivery) -> None:
        self.session.incoming[delivery.id] = self.unsettled[delivery.id] = delivery

    def drop(self, number: int) -> None:
        """A delivery is settled, or aborted."""
        self.session.incoming.pop(number, None)
        self.unsettled.pop(number, None)

    def _begin(self, transfer: Transfer) -> IncomingDelivery:
        if transfer.delivery_id is None:
            raise self._error(Condition.INVALID_FIELD, "the first transfer of a delivery needs a delivery-id")
        if transfer.delivery_tag is None:
            raise self._error(Condition.INVALID_FIELD, "the first transfer of a delivery needs a delivery-tag")
        mode = self.rcv_settle_mode if transfer.rcv_settle_mode is None else transfer.rcv_settle_mode
        if mode > self.rcv_settle_mode and not transfer.settled:
            raise self._error(Condition.INVALID_FIELD, "a delivery to be settled second on a link that settles first")
        if self.credit <= 0:
            raise self._error(Condition.TRANSFER_LIMIT, "a delivery was sent, and there is no credit for it")
        if len(self.session.incoming) >= MAX_UNSETTLED:
            raise self._error(Condition.RESOURCE_LIMIT, f"{MAX_UNSETTLED} deliveries of the session are not settled")

        self.session.received_delivery_id(transfer.delivery_id)
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MAX_UINT
        delivery = IncomingDelivery(self, transfer.delivery_id, transfer.delivery_tag, transfer.message_format or 0)
        delivery.settles_second = mode == RECEIVER_SECOND
        return delivery

    def _check_continuation(self, delivery: IncomingDelivery, transfer: Transfer) -> None:
        if transfer.delivery_id is not None and transfer.delivery_id != delivery.id:
            message = f"delivery {transfer.delivery_id} begins, and delivery {delivery.id} is not complete"
            raise self._error(Condition.INVALID_FIELD, message)
        if transfer.delivery_tag is not None and transfer.delivery_tag != delivery.tag:
            raise self._error(Condition.INVALID_FIELD, "the delivery-tag changes within a delivery")
        if transfer.message_format is not None and transfer.message_format != delivery.format:
            raise self._error(Condition.INVALID_FIELD, "the message-format changes within a delivery")

    def _error(self, condition: Condition, description: str) -> ProtocolError:
        return ProtocolError(Scope.LINK, condition, description)

    def _send_flow(self) -> None:
        flow = self.session.flow()
        flow.handle, flow.delivery_count, flow.link_credit = self.handle, self.delivery_count, self.credit
        flow.drain, flow.properties = self.drain, self.properties
        self.session.send(flow)
        self.session.connection.owes_nothing(self)


def settled_by_peer(delivery: IncomingDelivery | OutgoingDelivery) -> None:
    """The peer has settled a delivery."""
    if delivery.progress is PARTIAL and isinstance(delivery, IncomingDelivery):
        delivery.sent_settled = True
    delivery.progress = RECEIVE_SETTLED[delivery.progress]
