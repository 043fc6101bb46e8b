"""BrokerConnection: one peer, from the octets that it sends to the octets that it gets.

The protocol is `dtx.amqp`'s: `go_on` takes its events one by one and carries them out. Sessions and links of the
connection live here; what they mean is in the link modules and the resource.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.connection import Connection
from dtx.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    Disposed,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    Transferred,
    WorkDropped,
)
from dtx.amqp.sole_connection import (
    REFUSED,
    REFUSED_PROPERTIES,
    REPLACED,
    SOLE_CONNECTION,
    asked_by,
    closes_existing,
    conflicts,
)
from dtx.amqp.values import Symbol
from dtx.broker.container import DynamicNodes
from dtx.broker.endpoint.attach import attach
from dtx.broker.endpoint.link import Session, error_of
from dtx.broker.endpoint.output_room import DELIVERIES_PER_S, TURN_S, OutputRoom
from dtx.broker.endpoint.states import (
    ATTACHMENT,
    CLOSED,
    CLOSING,
    SERVED,
    SERVICE,
    AttachmentVerb,
    ServiceState,
    ServiceVerb,
)
from dtx.broker.queues.counters import RateMeter
from dtx.broker.transactions.demarcation import DtxDemarcation
from dtx.broker.transactions.txn_ids import TxnIds
from dtx.protocol.addresses import TXN_ID
from dtx.protocol.capabilities import (
    DELAYED_DELIVERY,
    FAILURE_REASONS,
    OUTCOMES_OF_ROLLBACK,
    SHARED_SUBSCRIPTIONS,
    TOPICS,
)
from dtx.protocol.conditions import Refusal
from xa import Code
from xa.machine import advance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dtx.amqp.link import Link as LinkEndpoint
    from dtx.amqp.performatives import Error
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.session import Session as SessionEndpoint
    from dtx.amqp.sole_connection import SoleConnection
    from dtx.amqp.values import Map
    from dtx.broker.container import Container, LinkKey
    from dtx.broker.endpoint.link import Link
    from dtx.broker.transactions.contexts import WorkContext

FRAMES_PER_EVENT: Final = 500
"""Frames that are read at once when nothing comes of them."""
MAX_PRODUCT: Final = 100
WINDOW: Final = 2048
"""Transfers that a session may have on their way to us."""


CAPABILITIES: Final = (
    "ANONYMOUS-RELAY",
    "APACHE.ORG:SELECTOR",
    DELAYED_DELIVERY,
    FAILURE_REASONS,
    OUTCOMES_OF_ROLLBACK,
    SHARED_SUBSCRIPTIONS,
    TOPICS,
)
PRODUCT: Final[Map] = {Symbol("product"): "xabridge"}


class BrokerConnection:
    """One connection. `number` tells it apart; `peer` is its address, for people."""

    def __init__(self, container: Container, identity: Identity, peer: str = "") -> None:
        limits = container.limits
        self.container = container
        self.identity = identity
        self.peer = peer
        self.peer_container = ""
        self.sole: SoleConnection | None = None
        """What it asks for as to other connections of its container."""
        self.product = ""
        """The name of the peer's library, as its open says."""
        self.since_ms = container.resource.clock.wall_ms()
        self.meter = RateMeter()
        self._messages_gone = [0, 0]
        """Messages that links have received, and sent, which are gone."""
        self.number = container.resource.number()
        self.sessions: dict[SessionEndpoint, Session] = {}
        self.links: dict[LinkEndpoint, Link] = {}
        self.suspended: dict[LinkEndpoint, Link] = {}
        """Links that the peer has detached, and not closed, with deliveries that are not decided."""
        self.txns = TxnIds(limits.transactions)
        self.nodes = DynamicNodes(container)
        self.state: ServiceState = SERVED

        self._endpoint = Connection(
            container.settings.container,
            max_frame_size=limits.frame_octets,
            channel_max=limits.sessions - 1,
            handle_max=2 * limits.links - 1,  # links that were refused are there until the peer has detached them
            window=WINDOW,
            idle_timeout_ms=int(container.settings.idle_timeout_s * 1000),
            answers_errors=True,
        )
        self.room = OutputRoom(container, self, self._endpoint, self._wake)
        self.partial_octets = 0
        """Octets of messages of which more is to come."""
        self.unanswered: list[Callable[[Refusal | None], None]] = []
        self.outcomes_due: list[Callable[[Refusal | None], None]] = []
        self._behind_decisions: list[tuple[Callable[[], None], list[Link]]] = []
        """What is done when none of its links awaits a decision any more."""
        self._handlers: dict[type, Callable[[Any], None]] = {
            ConnectionOpened: self._on_open,
            ConnectionClosed: self._on_close,
            SessionBegun: self._on_begin,
            SessionEnded: self._on_end,
            LinkAttached: self._on_attach,
            LinkDetached: self._on_detach,
            LinkFlow: self._on_flow,
            Transferred: self._on_transfer,
            Disposed: self._on_disposition,
            WorkDropped: self._on_dropped,
        }
        container.connections[self.number] = self

    @property
    def opened(self) -> bool:
        """Whether the peer has opened the connection."""
        return self._endpoint.remote is not None

    @property
    def closed(self) -> bool:
        """Whether it is gone."""
        return self.state is CLOSED

    # -- octets
    def received(self, octets: bytes) -> None:
        """Carries out what the peer sent, all of it. The turn ends with it: the shell sends what there is to send."""
        self.feed(octets)
        while self.go_on():
            pass

    def feed(self, octets: bytes) -> None:
        """Takes what the peer sent; `go_on` carries it out."""
        if self.state is not CLOSED:
            self._endpoint.feed(octets)

    def go_on(self, events: int = 1000, budget_s: float = TURN_S) -> bool:
        """Carries out what was fed: at most so many events, and no new one after so long; whether there may be more."""
        next_event, handlers, clock = self._endpoint.next_event, self._handlers, self.container.resource.clock
        more, over_s = self.state is not CLOSED, clock.monotonic() + budget_s
        self.room.allowance = int(DELIVERIES_PER_S * budget_s)
        if self.room.awaits_turn:
            self.room.begin_turn()

        while more and events:
            event = next_event(FRAMES_PER_EVENT)
            if event is None:
                more = self._endpoint.unfinished
                break
            handlers[type(event)](event)
            events -= 1
            more = self.state is not CLOSED
            if clock.monotonic() > over_s:
                break
        self.container.touch(self)
        self.container.resource.settle()
        return more

    @property
    def urgent(self) -> bool:
        """Whether what comes next of what was fed is for the coordinator: it decides about a transaction."""
        event = None if self.state is CLOSED else self._endpoint.peek()
        link = self.links.get(event.delivery.link) if isinstance(event, Transferred) else None
        return link is not None and link.decides

    @property
    def writes(self) -> bool:
        """Whether what comes next of what was fed may change the store."""
        return self.state is not CLOSED and isinstance(self._endpoint.peek(), Transferred | Disposed)

    @property
    def has_input(self) -> bool:
        """Whether there is more to carry out, or the beginning of it."""
        return self.state is not CLOSED and self._endpoint.has_input

    def output(self) -> bytes:
        """The octets that are to be sent now. When there is nothing, and nothing to come, the peer is let go."""
        if self.state is CLOSED:
            return b""
        room = self.room
        if room.is_free or room.draining:
            room.before_output()
        octets = self._endpoint.output()
        if room.unsent or room.withdrawing:
            room.after_output()
        if self.state is CLOSING and not octets and not self._endpoint.owes_close:
            self.lost()
        return octets

    def tick(self, now_ms: int, held_ms: int) -> int:
        """Idle time-outs; when to call again, 0 for never. `held_ms`: how long nothing was read."""
        if self.state is CLOSED:
            return 0
        due = self._endpoint.tick(now_ms, held_ms)
        if self._endpoint.ended and self._endpoint.has_input:
            self.go_on()
        if self._endpoint.output_octets:
            self.container.touch(self)
        return due

    def _wake(self) -> None:
        for link in tuple(self.links.values()):
            link.flow_event()

    def resume(self) -> None:
        """The peer takes again what it is sent."""
        self.room.writable = True
        self._wake()
        self.container.touch(self)
        self.container.resource.settle()

    def close(self, refusal: Refusal | None) -> None:
        """Closes the connection, with an error where there is one."""
        if refusal is not None:
            self.close_for(error_of(refusal))
        elif self.state is SERVED:
            self._end_sessions(in_order=True)
            self._endpoint.close()
            self.container.touch(self)

    def close_for(self, error: Error) -> None:
        """Closes the connection with this error, behind the outcomes of the messages that were taken before."""
        if self.state is SERVED:
            self._endpoint.fail()
            self._close_behind_outcomes(error, in_order=True)

    def _close_behind_outcomes(self, error: Error | None, *, in_order: bool) -> None:
        self.state = advance(SERVICE, self.state, ServiceVerb.CLOSE)
        self._forget_name()

        def close() -> None:
            self._end_sessions(in_order=in_order)
            self._endpoint.close(error)

        self._after_outcomes(close, self.links.values())

    def _after_outcomes(self, act: Callable[[], None], links: Iterable[Link]) -> None:
        """Calls `act` when the outcomes are sent of the messages that are on their way to their queues, and of the
        transactions that are being decided over these links: who did not get one would do its work a second time."""
        deciding = [link for link in links if link.awaits_decision]
        if self.outcomes_due:
            self.outcomes_due.append(lambda _: self._after_decisions(act, deciding))
        else:
            self._after_decisions(act, deciding)

    def _after_decisions(self, act: Callable[[], None], deciding: list[Link]) -> None:
        self._behind_decisions.append((act, deciding))
        self.decided()

    def decided(self) -> None:
        waiting, self._behind_decisions = self._behind_decisions, []
        for act, links in waiting:
            if any(link.awaits_decision for link in links):
                self._behind_decisions.append((act, links))
            else:
                self._answer(act)

    def lost(self) -> None:
        """The peer is gone. What it held is free; prepared branches are as they were."""
        if self.state is CLOSED:
            return
        self.state = advance(SERVICE, self.state, ServiceVerb.LOSE)
        self._end_sessions(in_order=False)
        self._endpoint.lose()
        self.room.draining.clear()
        self.container.connections.pop(self.number, None)
        self._forget_name()
        self.container.resource.settle()

    # -- events
    def _on_open(self, event: ConnectionOpened) -> None:
        self.peer_container = event.remote.container_id
        self.product = _product(event.remote.properties)
        try:
            self.sole = asked_by(event.remote)
        except ValueError as error:
            self._endpoint.open(offered=CAPABILITIES, properties=PRODUCT)
            self.close(Refusal(Condition.INVALID_FIELD, str(error), Code.XAER_INVAL))
            return

        named = self.container.named.setdefault(self._name, {})
        others = [other for other in named if conflicts(self.sole, other.sole)]
        if not all(closes_existing(self.sole, other.sole) for other in others):
            self._endpoint.open(offered=CAPABILITIES, properties={**PRODUCT, **REFUSED_PROPERTIES})
            self.close_for(REFUSED)
            return
        for other in others:
            other.close_for(REPLACED)
        self.container.named.setdefault(self._name, {})[self] = None
        if self.sole is None:
            self._endpoint.open(offered=CAPABILITIES, properties=PRODUCT)
        else:
            self._endpoint.open(
                offered=(*CAPABILITIES, SOLE_CONNECTION), properties={**PRODUCT, **self.sole.properties}
            )

    @property
    def _name(self) -> tuple[str, str]:
        return self.identity.name, self.peer_container

    def _forget_name(self) -> None:
        """It is no longer one of its container's connections."""
        named = self.container.named.get(self._name)
        if named is not None:
            named.pop(self, None)
            if not named:
                del self.container.named[self._name]

    def _on_close(self, event: ConnectionClosed) -> None:
        if not event.by_peer:
            self._close_behind_outcomes(event.error, in_order=False)
            return
        self.state = advance(SERVICE, self.state, ServiceVerb.CLOSE)
        self._forget_name()
        error = _error_in(self.links.values())
        self._end_sessions(in_order=_in_order(event))
        self._answer_later(partial(self._answer_close, error))

    def _answer_later(self, answer: Callable[[], None]) -> None:
        """Answers the peer's close, end or detach when what it has sent settled before is in its queues, or refused:
        the answer says that nothing is on its way any more."""
        if self.unanswered:
            self.unanswered.append(lambda _: self._answer(answer))
        else:
            answer()

    def _answer(self, answer: Callable[[], None]) -> None:
        if self.state is not CLOSED:
            answer()
            self.container.touch(self)

    def _answer_close(self, error: Error | None) -> None:
        if self._endpoint.owes_close:
            self._endpoint.close(error)

    def _on_begin(self, event: SessionBegun) -> None:
        endpoint, container = event.session, self.container
        endpoint.begin()
        demarcation = DtxDemarcation(
            container.resource,
            container.registry,
            container.fences,
            container.permissions,
            self.identity,
            self.released,
        )
        self.sessions[endpoint] = Session(endpoint, demarcation)

    def _on_end(self, event: SessionEnded) -> None:
        session = self.sessions.get(event.session)
        if not event.by_peer:
            self._after_outcomes(partial(self._end_failed, event), session.links.values() if session else ())
            return
        error = None
        if session is not None:
            error = _error_in(session.links.values())
            self._end_session(session, in_order=_in_order(event))
        self._answer_later(partial(event.session.end, error))

    def _end_failed(self, event: SessionEnded) -> None:
        """A session has failed because of what the peer did."""
        session = self.sessions.get(event.session)
        if session is not None:
            self._end_session(session, in_order=False)
        event.session.end(event.error)

    def _end_session(self, session: Session, *, in_order: bool) -> None:
        """The session's links and what they hold are let go; control links first, as they decide."""
        verb = AttachmentVerb.CLOSE if in_order else AttachmentVerb.LOSE
        self.sessions.pop(session.endpoint, None)
        for link in sorted(session.links.values(), key=lambda link: not link.controls):
            self.links.pop(link.endpoint, None)
            self._gone(link, verb)
        session.links.clear()
        for link in tuple(self.suspended.values()):
            if link.session is session:
                self._end_suspended(link, verb)

    def _end_sessions(self, *, in_order: bool) -> None:
        for session in tuple(self.sessions.values()):
            self._end_session(session, in_order=in_order)

    def _on_attach(self, event: LinkAttached) -> None:
        endpoint = event.link
        session = self.sessions.get(endpoint.session)
        link = None if session is None else attach(self, session, endpoint)
        if link is not None:
            self.links[endpoint] = link
            link.session.links[endpoint] = link
            self.container.claim(self._key(link), link)
            link.opened()

    def _key(self, link: Link) -> LinkKey:
        """The name of a link among all connections."""
        return self.identity.name, self.peer_container, link.name, link.endpoint.receives

    def _gone(self, link: Link, verb: AttachmentVerb) -> None:
        """A link is no longer used, for this reason: what it held is let go."""
        self._messages_gone[not link.endpoint.receives] += link.messages
        self.container.disclaim(self._key(link), link)
        link.attachment = advance(ATTACHMENT, link.attachment, verb)
        link.gone()

    def _on_detach(self, event: LinkDetached) -> None:
        link = self.links.get(event.link)
        error = None
        if link is not None and event.link.failed and event.error is not None:
            link.detach(Refusal(event.error.condition, event.error.description or "", Code.XAER_INVAL))
            return

        if link is not None:
            error = _error_in([link])
            if _in_order(event) and not event.closed and link.outlives_detach and self._may_suspend():
                self._suspend(link)
            else:
                self._forget(link, AttachmentVerb.CLOSE if _in_order(event) else AttachmentVerb.FAIL)
        answer = partial(event.link.detach, closed=event.closed, error=error)
        if event.link.receives:
            self._answer_later(answer)
        elif link is not None and event.closed and _in_order(event):
            link.closed_in_order(partial(self._answer, answer))
        else:
            answer()

    def _may_suspend(self) -> bool:
        """Whether one more link may be suspended. Of those in which nothing is left to decide nothing is kept."""
        most = self.container.limits.links
        if len(self.suspended) >= most:
            for link in tuple(self.suspended.values()):
                if not link.outlives_detach:
                    self._end_suspended(link, AttachmentVerb.CLOSE)
        return len(self.suspended) < most

    def _suspend(self, link: Link) -> None:
        """The peer has detached a link, and not closed it: what is unsettled on it may be decided until the session
        ends, by whom it was sent to (2.7.6)."""
        self.links.pop(link.endpoint, None)
        link.session.links.pop(link.endpoint, None)
        self._messages_gone[not link.endpoint.receives] += link.messages
        link.attachment = advance(ATTACHMENT, link.attachment, AttachmentVerb.DETACH)
        self.suspended[link.endpoint] = link
        link.suspend()

    def _end_suspended(self, link: Link, verb: AttachmentVerb) -> None:
        self.suspended.pop(link.endpoint, None)
        self.container.disclaim(self._key(link), link)
        link.attachment = advance(ATTACHMENT, link.attachment, verb)
        link.end_deliveries()

    def _on_flow(self, event: LinkFlow) -> None:
        link = self.links.get(event.link)
        if link is not None:
            link.flow_properties(None if event.properties is None else event.properties.get(TXN_ID))
            if event.link.attached:
                link.flow_event()

    def _on_transfer(self, event: Transferred) -> None:
        link = self.links.get(event.delivery.link)
        if link is not None:
            link.transferred(event)

    def _on_disposition(self, event: Disposed) -> None:
        links, state, settled = self.links, event.state, event.settled
        for delivery in event.deliveries:
            link = links.get(delivery.link)
            if link is None:
                link = self.suspended.get(delivery.link)
            if link is not None:
                link.disposed(delivery, state, settled=settled)
        if event.unknown and state is not None:
            message = "an outcome for a delivery that is gone: its link was detached, or it is settled"
            self._refuse_success(state, message)

    def _on_dropped(self, event: WorkDropped) -> None:
        self._refuse_success(
            event.state, "a message or an outcome on a link that was detached, or a session that ended"
        )

    def _refuse_success(self, state: bytes, message: str) -> None:
        """The peer gave an outcome to deliveries that are gone, with their link for example, so that the messages are
        somebody else's by now; or it sent a message that is not looked at. A transaction that is to do this can't
        succeed."""
        self.txns.refuse_success(state, Refusal(Condition.ROLLBACK, message, Code.XA_RBPROTO))

    @property
    def received_messages(self) -> int:
        """How many messages the peer has sent."""
        there = sum(link.messages for link in self.links.values() if link.endpoint.receives)
        return self._messages_gone[0] + there

    @property
    def sent_messages(self) -> int:
        """How many messages were sent to the peer."""
        there = sum(link.messages for link in self.links.values() if not link.endpoint.receives)
        return self._messages_gone[1] + there

    def _forget(self, link: Link, verb: AttachmentVerb) -> None:
        """A link is closed by one side."""
        self.links.pop(link.endpoint, None)
        link.session.links.pop(link.endpoint, None)
        self._gone(link, verb)

    def detach(self, link: Link, refusal: Refusal) -> None:
        """Closes a link with an error."""
        if link.endpoint in self.links:
            link.endpoint.detach(error=error_of(refusal))
            self._forget(link, AttachmentVerb.FAIL)
            self.container.touch(self)
        elif link.endpoint in self.suspended:
            self._end_suspended(link, AttachmentVerb.FAIL)

    def released(self, context: WorkContext) -> None:
        """A txn-id is no longer in use: links acquire no more for it."""
        self.txns.drop(context)
        for link in tuple(self.links.values()):
            link.transaction_ended(context)


def _product(properties: Map | None) -> str:
    """What the peer's properties say of its library."""
    details = {str(key): value for key, value in (properties or {}).items()}
    words = [value for key in ("product", "version") if isinstance(value := details.get(key), str)]
    return " ".join(words)[:MAX_PRODUCT]


def _error_in(links: Iterable[Link]) -> Error | None:
    """The error with which one of these links was about to be closed, for the answer to a peer that comes before."""
    return next((error_of(link.ending) for link in links if link.ending is not None), None)


def _in_order(event: LinkDetached | SessionEnded | ConnectionClosed) -> bool:
    """Whether the peer closed something, without an error."""
    return event.by_peer and event.error is None
