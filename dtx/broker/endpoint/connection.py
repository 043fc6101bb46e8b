"""BrokerConnection: one peer, from the octets that it sends to the octets that it gets.

`received` cuts the octets into segments, so that what proton hides (flow properties, states of continued
deliveries) is known before proton's events of the same frame, and carries out what the frames say.
Sessions and links of the connection live here; what they mean is in the link modules and the resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.endpoint.attach import attach
from dtx.broker.endpoint.engine import LIB, Engine, set_condition, text
from dtx.broker.endpoint.txn_ids import TxnIds
from dtx.broker.transactions.demarcation import DtxDemarcation
from dtx.protocol.addresses import DYNAMIC, TXN_ID
from dtx.protocol.conditions import Refusal
from dtx.protocol.frame_filter import FrameFilter
from dtx.protocol.frames import IncomingFrames, OutgoingFrames
from dtx.protocol.performatives import AttachSeen, ContinuationSeen, DetachSeen, EndSeen, FlowSeen, FrameError
from dtx.store.contract import CHUNK
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.broker.container import Container
    from dtx.broker.endpoint.engine import Pointer
    from dtx.broker.endpoint.link import Link
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.contexts import WorkContext
    from dtx.protocol.performatives import Seen

DELIVERY: Final = LIB.PN_DELIVERY
LINK_FLOW: Final = LIB.PN_LINK_FLOW
delivery_of: Final = LIB.pn_event_delivery
link_of: Final = LIB.pn_delivery_link


class Session:
    """One session: its demarcation, and its links."""

    __slots__ = ("demarcation", "links", "pointer")

    def __init__(self, pointer: Pointer, demarcation: DtxDemarcation) -> None:
        self.pointer = pointer
        self.demarcation = demarcation
        self.links: dict[Pointer, Link] = {}


class BrokerConnection:
    """One connection. `number` tells it apart; `peer` is its address, for people."""

    def __init__(self, container: Container, identity: Identity, peer: str = "") -> None:
        limits = container.limits
        self.container = container
        self.identity = identity
        self.peer = peer
        self.peer_container = ""
        self.number = container.resource.number()
        self.sessions: dict[Pointer, Session] = {}
        self.links: dict[Pointer, Link] = {}
        self.txns = TxnIds(limits.transactions)
        self.replies: dict[str, Queue] = {}
        self.writable = True
        """Whether the peer takes what it is sent; the shell's to say."""
        self.opened = False
        """Whether the peer has opened the connection."""
        self.closed = False
        self._refused = False
        """Whether the peer broke the protocol: nothing more of it is looked at."""
        self._engine = Engine(
            container.settings.container,
            max_frame=limits.frame_octets,
            channel_max=limits.sessions - 1,
            idle_timeout_ms=int(container.settings.idle_timeout_s * 1000),
        )
        self._capacity = 2048 * limits.frame_octets
        self._incoming = IncomingFrames(limits.frame_octets, FrameFilter(limits.sessions, 2 * limits.links))
        self._outgoing = OutgoingFrames()
        self._handles: dict[tuple[int, int], Link] = {}
        self.attaching: AttachSeen | None = None
        """The attach that is being answered."""
        self._echoing: dict[Link, None] = {}
        self.draining: dict[Link, None] = {}
        self._aborted: dict[Link, None] = {}
        self._withdrawing: list[Callable[[], None]] = []
        self._unsent: list[tuple[Link, Callable[[], None]]] = []
        self.loading = 0
        """Octets of messages that are read, or being read, and that proton does not have yet."""
        self._has_room = False
        self._full_of_payloads = False
        self.little = min(CHUNK, limits.output_octets)
        """A session with fewer octets to send has room."""
        self.partial_octets = 0
        """Octets of messages of which more is to come."""
        self._handlers: dict[int, Callable[[Pointer], None]] = {
            LIB.PN_CONNECTION_REMOTE_OPEN: self._on_open,
            LIB.PN_CONNECTION_REMOTE_CLOSE: self._on_close,
            LIB.PN_SESSION_REMOTE_OPEN: self._on_begin,
            LIB.PN_SESSION_REMOTE_CLOSE: self._on_end,
            LIB.PN_LINK_REMOTE_OPEN: self._on_attach,
            LIB.PN_LINK_REMOTE_DETACH: self._on_detach,
            LIB.PN_LINK_REMOTE_CLOSE: self._on_detach,
        }
        container.connections[self.number] = self

    # -- octets
    def received(self, octets: bytes) -> None:
        """Carries out what the peer sent. The turn ends with it: the shell sends what there is to send."""
        if self.closed or self._refused:
            return
        try:
            for data, seen in self._incoming.feed(octets):
                if seen is not None:
                    self._before(seen)
                self._engine.push(data)
                self._handle_events()
                if seen is not None:
                    self._after(seen)
        except FrameError as error:
            self._refused = True
            self.close(Refusal(Condition(error.condition), str(error), Code.XAER_INVAL))
        self.container.touch(self)
        self.container.resource.settle()

    def output(self) -> bytes:
        """What is to be sent now. When there is nothing, and nothing to come, the peer is let go."""
        if self.closed:
            return b""
        if self._has_room:
            self._has_room = False
            self._wake()
            self.container.resource.settle()
        for link in tuple(self.draining):
            link.drain()
        for link in tuple(self._echoing):
            self._echo(link)
        octets = b""
        while not octets and (produced := self._engine.output()):
            self._handle_events()
            octets = self._outgoing.feed(produced)  # nothing, as long as a frame is not complete
        if self._unsent:
            self._call_sent()
        if self._withdrawing and not self._aborting():
            calls, self._withdrawing = self._withdrawing, []
            for call in calls:
                call()
        if self._engine.finished or (self._refused and not octets):
            self.lost()
        return octets

    def _echo(self, link: Link) -> None:
        """Tells the state of a link, in a flow that proton sends for its session."""
        del self._echoing[link]
        if self.alive(link):
            receiver = bool(LIB.pn_link_is_receiver(link.pointer))
            credit = max(0, LIB.pn_link_credit(link.pointer))
            self._outgoing.echo(link.name, receiver=receiver, delivery_count=link.delivery_count, credit=credit)
            LIB.pn_session_set_incoming_capacity(link.session.pointer, self._capacity)

    def when_sent(self, link: Link, call: Callable[[], None]) -> None:
        """Calls `call` when the link's session has little left to send; a link asks for one of a kind at a time."""
        self._unsent.append((link, call))

    def when_withdrawn(self, call: Callable[[], None]) -> None:
        """Calls `call` when no delivery is in the middle of being aborted: a discharge that failed is
        answered after its last partial delivery has ended."""
        if self._aborting():
            self._withdrawing.append(call)
        else:
            call()

    def aborted(self, link: Link) -> None:
        """A delivery of `link` was aborted; that has to be told to the peer."""
        self._aborted[link] = None

    def _aborting(self) -> bool:
        for link in tuple(self._aborted):
            if not self.alive(link) or not LIB.pn_link_queued(link.pointer):
                del self._aborted[link]
        return bool(self._aborted)

    def _call_sent(self) -> None:
        unsent, self._unsent = self._unsent, []
        for link, call in unsent:
            if not self.alive(link):
                continue
            if LIB.pn_session_outgoing_bytes(link.session.pointer) < self.little:
                call()
                self.container.touch(self)
            else:
                self._unsent.append((link, call))
        if len(self._unsent) < len(unsent):
            self.container.resource.settle()  # what was called may have asked the store for payloads

    def tick(self, now_ms: int) -> int:
        """Idle time-outs; when to call again, 0 for never."""
        return 0 if self.closed else self._engine.tick(now_ms)

    def unloaded(self, octets: int) -> None:
        """Proton has the octets of a message, or nobody wants them: there may be room for others."""
        limit = self.container.limits.output_octets
        if self._full_of_payloads or self.loading >= limit > self.loading - octets:
            self._full_of_payloads = False
            self.has_room()
        self.loading -= octets

    def when_unloaded(self) -> None:
        """Links may send again when the next payload that is being read is there."""
        self._full_of_payloads = True

    def has_room(self) -> None:
        """Links may send again."""
        self._has_room = True
        self.container.touch(self)

    def _wake(self) -> None:
        for link in tuple(self.links.values()):
            link.flow_event()

    def resume(self) -> None:
        """The peer takes again what it is sent."""
        self.writable = True
        self._wake()
        self.container.touch(self)
        self.container.resource.settle()

    def close(self, refusal: Refusal | None) -> None:
        """Says goodbye to the peer."""
        if not self.closed:
            self._engine.close(refusal)
            self.container.touch(self)

    def lost(self) -> None:
        """The peer is gone. What it held is free; prepared branches are as they were."""
        if self.closed:
            return
        self.closed = True
        for session in tuple(self.sessions.values()):
            self._end_session(session)
        self.draining.clear()
        self.container.connections.pop(self.number, None)
        self._engine.free()
        self.container.resource.settle()

    # -- what proton hides
    def _before(self, seen: Seen) -> None:
        if isinstance(seen, AttachSeen):
            self.attaching = seen
        elif isinstance(seen, FlowSeen):
            link = self._handles.get((seen.channel, seen.handle))
            if link is not None:
                link.flow_properties(seen.properties.get(TXN_ID))
        elif isinstance(seen, ContinuationSeen):
            link = self._handles.get((seen.channel, seen.handle))
            if link is not None:
                link.continued(seen.state)

    def _after(self, seen: Seen) -> None:
        if isinstance(seen, AttachSeen):
            self.attaching = None
        elif isinstance(seen, FlowSeen):
            link = self._handles.get((seen.channel, seen.handle)) if seen.echo else None
            if link is not None:
                self._echoing[link] = None
        elif isinstance(seen, DetachSeen):
            self._handles.pop((seen.channel, seen.handle), None)
        elif isinstance(seen, EndSeen):
            for key in [key for key in self._handles if key[0] == seen.channel]:
                del self._handles[key]

    def say_transaction(self, name: str, txn_id: bytes | None) -> None:
        """From now on flows of our sender `name` tell this txn-id."""
        self._outgoing.set_properties(name, receiver=False, properties={} if txn_id is None else {TXN_ID: txn_id})

    # -- events
    def _handle_events(self) -> None:
        links, handlers = self.links, self._handlers
        for kind, event in self._engine.events():
            if kind == DELIVERY:
                delivery = delivery_of(event)
                link = links.get(link_of(delivery))
                if link is not None:
                    link.delivery_event(delivery)
                else:  # what still comes for a link that was refused or closed
                    LIB.pn_delivery_settle(delivery)
            elif kind == LINK_FLOW:
                link = links.get(LIB.pn_event_link(event))
                if link is not None:
                    link.flow_event()
            elif kind in handlers:
                handlers[kind](event)

    def _on_open(self, _event: Pointer) -> None:
        self.opened = True
        self.peer_container = text(LIB.pn_connection_remote_container(self._engine.connection))
        LIB.pn_connection_open(self._engine.connection)

    def _on_close(self, _event: Pointer) -> None:
        for session in tuple(self.sessions.values()):
            self._end_session(session)
        LIB.pn_connection_close(self._engine.connection)

    def _on_begin(self, event: Pointer) -> None:
        pointer = LIB.pn_event_session(event)
        LIB.pn_session_set_incoming_capacity(pointer, self._capacity)
        LIB.pn_session_open(pointer)
        if len(self.sessions) >= self.container.limits.sessions:
            told = f"a connection may have {self.container.limits.sessions} sessions"
            refusal = Refusal(Condition.RESOURCE_LIMIT, told, Code.XAER_RMERR)
            set_condition(LIB.pn_session_condition(pointer), refusal)
            LIB.pn_session_close(pointer)
            return
        container = self.container
        demarcation = DtxDemarcation(
            container.resource,
            container.registry,
            container.fences,
            container.permissions,
            self.identity,
            self.released,
        )
        self.sessions[pointer] = Session(pointer, demarcation)

    def _on_end(self, event: Pointer) -> None:
        pointer = LIB.pn_event_session(event)
        session = self.sessions.get(pointer)
        if session is not None:
            self._end_session(session)
        LIB.pn_session_close(pointer)
        LIB.pn_session_free(pointer)

    def _end_session(self, session: Session) -> None:
        """The session's links and what they hold are let go; control links first, as they decide."""
        self.sessions.pop(session.pointer, None)
        for link in sorted(session.links.values(), key=lambda link: not link.controls):
            self.links.pop(link.pointer, None)
            link.gone()
        session.links.clear()

    def _on_attach(self, event: Pointer) -> None:
        pointer = LIB.pn_event_link(event)
        session = self.sessions.get(LIB.pn_link_session(pointer))
        if session is None:
            return
        link = attach(self, session, pointer)
        if link is not None:
            self.links[pointer] = link
            session.links[pointer] = link
            if self.attaching is not None:
                self._handles[self.attaching.channel, self.attaching.handle] = link
            link.opened()

    def _on_detach(self, event: Pointer) -> None:
        pointer = LIB.pn_event_link(event)
        link = self.links.get(pointer)
        if link is not None:
            self.forget(link)
        if LIB.pn_link_state(pointer) & LIB.PN_LOCAL_ACTIVE:
            LIB.pn_link_close(pointer)
        if LIB.pn_link_session(pointer) in self.sessions:
            LIB.pn_link_free(pointer)

    def alive(self, link: Link) -> bool:
        """Whether the link is still there. A pointer alone does not say so: another link may have it now."""
        return self.links.get(link.pointer) is link

    def forget(self, link: Link) -> None:
        """A link is no longer used: what it held is let go."""
        self.links.pop(link.pointer, None)
        link.session.links.pop(link.pointer, None)
        for key in [key for key, one in self._handles.items() if one is link]:
            del self._handles[key]
        link.gone()

    def detach(self, link: Link, refusal: Refusal) -> None:
        """Closes a link with an error."""
        if self.alive(link):
            set_condition(LIB.pn_link_condition(link.pointer), refusal)
            LIB.pn_link_close(link.pointer)
            self.forget(link)
            self.container.touch(self)

    def released(self, context: WorkContext) -> None:
        """A txn-id is no longer in use: links acquire no more for it."""
        self.txns.drop(context)
        for link in self.links.values():
            link.transaction_ended(context)

    # -- dynamic nodes
    def make_reply_queue(self) -> Queue:
        """A dynamic node of this connection."""
        name = f"{DYNAMIC}{self.number:x}/{self.container.resource.number():x}"
        queue = self.container.resource.make_dynamic(name)
        self.replies[name] = queue
        return queue

    def drop_reply_queue(self, queue: Queue) -> None:
        """The dynamic node goes."""
        if self.replies.pop(queue.name, None) is not None:
            self.container.resource.drop_dynamic(queue)
