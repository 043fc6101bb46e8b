"""Sessions: windows, the handles of links, and the deliveries that are not settled.

A session that the peer begins is reported by `SessionBegun` and answered by `begin`. What is transferred beyond the
peer's window waits in the session, in the order in which it was given; `waiting_octets` says how much that is.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition, ProtocolError, Scope
from dtx.amqp.delivery import (
    ABORT,
    PARTIAL,
    SETTLED,
    TRANSFER,
    TRANSFER_PART,
    TRANSFER_SETTLED,
    WAITING,
    IncomingDelivery,
    OutgoingDelivery,
)
from dtx.amqp.events import Disposed, LinkAttached, LinkDetached, LinkFlow, SessionEnded
from dtx.amqp.frames import body_within, continuation_body, disposition_body, frame, transfer_body
from dtx.amqp.link import HALF, Link, ReceiverLink, SenderLink, ahead, settled_by_peer
from dtx.amqp.performatives import MAX_UINT, Attach, Begin, Detach, Disposition, End, Error, Flow, Transfer
from dtx.amqp.states import SESSION, LinkState, SessionState, SessionVerb
from xa.machine import advance

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable, Mapping

    from dtx.amqp.connection import Connection
    from dtx.amqp.events import Event
    from dtx.amqp.performatives import Performative

MAPPED: Final = SessionState.MAPPED
_SENDING: Final = frozenset({SessionState.BEGIN_SENT, MAPPED, SessionState.FAILED})
_DISPOSING: Final = frozenset({MAPPED, SessionState.FAILED})
FOUND: Final = 64
LOOKED_AT: Final = 512
"""What the peer says of thousands of deliveries is done in steps, so that others have their turn: each step is an event
with so many deliveries at most, and looks at so many numbers."""


class Session:
    """One session. `channel` is ours, `remote_channel` the peer's."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel = -1
        self.state = SessionState.UNMAPPED
        self.remote: Begin | None = None
        self.links: dict[int, Link] = {}
        """The links by the peer's handles, until both sides have detached them."""
        self.incoming: dict[int, IncomingDelivery] = {}
        self.outgoing: dict[int, OutgoingDelivery] = {}
        """The deliveries that are not settled, by their delivery-ids."""
        self.waiting_octets = 0
        """Octets of deliveries that wait for the peer's window."""
        self.kept_octets = 0
        """Octets of the peer's begin, and of the attaches of links that it has not detached."""
        self._handles: dict[int, Link] = {}

        self._unanswered: dict[tuple[str, bool], Link] = {}
        """The links whose attach of ours the peer has not answered, by their names and whether we are the receiver."""
        self._capacity = connection.window
        self._incoming_window = self._capacity
        self._next_incoming_id = 0
        self._next_outgoing_id = 0
        self._remote_window = 0
        self._remote_handle_max = MAX_UINT
        self._next_delivery_id = 0
        self._last_delivery_id: int | None = None
        self._given = 0
        """How often a delivery was given something to transfer."""
        self._lines: list[tuple[int, SenderLink]] = []
        """A heap of links that have something to transfer, each once: they go on in the order in which it was given."""
        self._disposition: tuple[int, int, bytes | None, bool, bool] | None = None
        """First, last, state, role, settled of a disposition that further ones may join."""

    @property
    def mapped(self) -> bool:
        """Whether both sides have begun it, and neither has ended it."""
        return self.state is MAPPED

    # -- what the caller does
    def begin(self) -> None:
        """Begins the session, or answers the peer's begin."""
        self.state = advance(SESSION, self.state, SessionVerb.SEND_BEGIN)
        answers = self.remote_channel if self.remote is not None else None
        self._write(Begin(answers, self._next_outgoing_id, self._incoming_window, MAX_UINT, self.connection.handle_max))

    def end(self, error: Error | None = None) -> None:
        """Ends the session, or answers the peer's end. Without effect on one that we have ended. One that we have begun
        is ended once the peer has answered; one that the peer has begun is begun by us as well, because an end needs
        it."""
        self.flush_disposition()
        if self.state in {SessionState.BEGIN_RCVD, SessionState.END_EARLY}:
            self.begin()
        if self.state in {SessionState.END_SENT, SessionState.DISCARDING, SessionState.ENDED}:
            return
        verb = SessionVerb.SEND_END if error is None else SessionVerb.SEND_ERROR
        after = advance(SESSION, self.state, verb)
        self._lose_links()
        self.state = after
        self._write(End(error))
        if self.state is SessionState.ENDED:
            self.connection.free_session(self)

    def fail(self) -> None:
        """Nothing but the peer's end is read of it any more, and `end` follows."""
        self.state = advance(SESSION, self.state, SessionVerb.FAIL)

    def sender(self, name: str) -> SenderLink:
        """A new link on which we send; `attach` it. ValueError when the name is in use, or the peer takes no more."""
        link = SenderLink(self, name, self._handle_of(name, receives=False))
        self._add(link)
        return link

    def receiver(self, name: str) -> ReceiverLink:
        """A new link on which the peer sends; `attach` it. ValueError when the name is in use, or the peer takes no
        more."""
        link = ReceiverLink(self, name, self._handle_of(name, receives=True))
        self._add(link)
        return link

    def _handle_of(self, name: str, *, receives: bool) -> int:
        key = (name, receives)
        if self.state not in _SENDING:
            raise ValueError(f"the session is: {self.state.value}")
        if key in self.connection.links or key in self._unanswered:
            raise ValueError(f"there is a link {name!r} already")
        return self._free_handle()

    def _add(self, link: Link) -> None:
        self._handles[link.handle] = link
        self.connection.links[link.name, link.receives] = link

    def _free_handle(self) -> int:
        handle = next(number for number in range(len(self._handles) + 1) if number not in self._handles)
        if handle > self._remote_handle_max:
            raise ValueError(f"the peer takes no handle above {self._remote_handle_max}")
        return handle

    # -- sending
    def send(self, performative: Performative) -> None:
        """Sends a frame behind everything that was said of deliveries before. Without effect once we have ended the
        session."""
        if self._disposition is not None:
            self._write_disposition()
        if self.state in _SENDING:
            self._write(performative)

    def _write(self, performative: Performative) -> None:
        room = self.connection.max_body
        body = body_within(performative, room)
        if body is None:
            self._too_small(f"a frame {type(performative).__name__.lower()} has more than {room} octets")
        else:
            self.connection.write(frame(self.channel, body))

    def _too_small(self, message: str) -> None:
        """The peer's frames are too small for what has to be sent to it: the session can't go on."""
        error = Error(Condition.FRAME_SIZE, message)
        self.end(error)
        self.connection.tell(SessionEnded(self, error, by_peer=False))

    def expect(self, link: Link) -> None:
        """The peer is to answer the attach of a link."""
        self._unanswered[link.name, link.receives] = link

    def flow(self) -> Flow:
        """A flow with the state of the session's windows."""
        self._incoming_window = self._capacity
        return Flow(self._next_incoming_id, self._capacity, self._next_outgoing_id, MAX_UINT)

    def echo(self) -> None:
        """Tells the peer the state of the windows."""
        if self.state is MAPPED:
            self.send(self.flow())

    def dispose(self, number: int, state: bytes | None, *, receiver: bool, settled: bool) -> None:
        """Says the state of a delivery. What is the same for deliveries in a row is said once."""
        pending = self._disposition
        if pending is not None:
            first, last, *rest = pending
            if rest == [state, receiver, settled] and number == (last + 1) & MAX_UINT:
                self._disposition = (first, number, state, receiver, settled)
                return
            self._write_disposition()
        else:
            self.connection.has_dispositions(self)
        self._disposition = (number, number, state, receiver, settled)

    def flush_disposition(self) -> None:
        """Sends what was said of deliveries."""
        if self._disposition is not None:
            self._write_disposition()

    def _write_disposition(self) -> None:
        pending, self._disposition = self._disposition, None
        if pending is not None and self.state in _DISPOSING:
            first, last, state, receiver, settled = pending
            body = disposition_body(first, last, state, receiver=receiver, settled=settled)
            if len(body) > self.connection.max_body:
                self._too_small(f"a frame disposition has more than {self.connection.max_body} octets")
            else:
                self.connection.write(frame(self.channel, body))

    def push(self, delivery: OutgoingDelivery, octets: int) -> None:
        """A delivery has more to transfer."""
        self.waiting_octets += octets
        if not delivery.more and delivery.link.current is delivery:  # an earlier one may be aborted
            delivery.link.current = None
        link = delivery.link
        if delivery not in link.waiting and (delivery.size or not delivery.more):
            self._given += 1
            link.waiting[delivery] = self._given
            self._line_up(link)
        self._transfer()

    def _line_up(self, link: SenderLink) -> None:
        """A link may have something to transfer now."""
        first = link.first_waiting
        if first is not None and not link.lined_up and link.transfers:
            link.lined_up = True
            heappush(self._lines, (first[1], link))

    def abort(self, delivery: OutgoingDelivery) -> None:
        """A delivery is not to be transferred to its end."""
        if delivery.progress is not WAITING and delivery.progress is not PARTIAL:
            message: str = delivery.progress.value
            raise ValueError(f"a delivery that is {message} can't be aborted")

        link = delivery.link
        self.waiting_octets -= delivery.size
        delivery.parts.clear()
        delivery.size = 0
        delivery.more = False
        if link.current is delivery:
            link.current = None
        if delivery.progress is WAITING:
            link.waiting.pop(delivery, None)
            link.taken_back()
            delivery.progress = ABORT[delivery.progress]
            return
        delivery.aborting = True
        self.push(delivery, 0)

    def _transfer(self) -> None:
        """Makes transfers of what waits, as far as the peer's window allows."""
        lines = self._lines
        if not lines or self.state is not MAPPED:
            return
        if self._disposition is not None:
            self._write_disposition()
        while lines and self._remote_window > 0:
            given, link = lines[0]
            first = link.first_waiting
            if first is None or not link.transfers:
                heappop(lines)
                link.lined_up = False
            elif first[1] != given:
                heapreplace(lines, (first[1], link))
            elif self._transfer_part(first[0]):
                del link.waiting[first[0]]

    def _transfer_part(self, delivery: OutgoingDelivery) -> bool:
        """Makes one transfer; whether the delivery has nothing more to transfer now."""
        link = delivery.link
        room = self.connection.max_body
        first = delivery.progress is WAITING
        more = delivery.more
        if delivery.aborting:
            body = continuation_body(link.handle, more=False, aborted=True)
        elif first:
            delivery.id = self._next_delivery_id
            self._next_delivery_id = (delivery.id + 1) & MAX_UINT
            link.began()
            settled = delivery.settles_at_end
            handle, tag, state, form = link.handle, delivery.tag, delivery.local_state, delivery.format
            body = transfer_body(handle, delivery.id, tag, state, settled=settled, more=more, message_format=form)
            if not more and len(body) + delivery.size > room:
                more = True
                body = transfer_body(handle, delivery.id, tag, state, settled=settled, more=True, message_format=form)
        else:
            body = continuation_body(link.handle, more=more)
            if not more and len(body) + delivery.size > room:
                more = True
                body = continuation_body(link.handle, more=True)
        octets = delivery.take(room - len(body))
        self.waiting_octets -= len(octets)
        self._remote_window -= 1
        self._next_outgoing_id = (self._next_outgoing_id + 1) & MAX_UINT
        self.connection.write(frame(self.channel, body + octets))
        if delivery.aborting:
            delivery.progress = ABORT[delivery.progress]
            self.outgoing.pop(delivery.id, None)
            link.unsettled.pop(delivery.id, None)
            return True

        if more:
            delivery.progress = TRANSFER_PART[delivery.progress]
        elif delivery.settles_at_end:
            delivery.progress = TRANSFER_SETTLED[delivery.progress]
        else:
            delivery.progress = TRANSFER[delivery.progress]

        if first and not delivery.settles_at_end:
            self.outgoing[delivery.id] = link.unsettled[delivery.id] = delivery
        return not delivery.size and more is delivery.more

    # -- what the peer does
    def received_begin(self, begin: Begin, channel: int) -> None:
        """The peer began the session, or answered our begin."""
        self.state = advance(SESSION, self.state, SessionVerb.RECEIVE_BEGIN)
        self.remote = begin
        self.remote_channel = channel
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window
        self._remote_handle_max = begin.handle_max

    def received_end(self) -> None:
        """The peer ended the session."""
        self._lose_links()
        self.state = advance(SESSION, self.state, SessionVerb.RECEIVE_END)
        if self.state is SessionState.ENDED:
            self.connection.free_session(self)

    def received_attach(self, attach: Attach, events: deque[Event]) -> None:
        """The peer attached a link, or answered our attach."""
        if attach.handle > self.connection.handle_max:
            message = f"an attach with handle {attach.handle}; the last one is {self.connection.handle_max}"
            raise ProtocolError(Scope.CONNECTION, Condition.FRAMING_ERROR, message)
        if attach.handle in self.links:
            raise ProtocolError(Scope.CONNECTION, Condition.HANDLE_IN_USE, f"the handle {attach.handle} is in use")
        kept = self.connection.keep()
        self.kept_octets += kept
        key = (attach.name, not attach.receiver)
        link = self._unanswered.pop(key, None)
        if link is not None:
            detached = link.state is LinkState.DETACH_SENT  # by us, before the peer's answer came
            link.received_attach(attach)
            link.kept_octets = kept
            self.links[attach.handle] = link
            if not detached:
                events.append(LinkAttached(link))
            return
        link = self.connection.links.get(key)
        if link is not None:  # the same link again: the later attach takes it (2.6.1)
            stolen = Error(Condition.STOLEN, f"the link {attach.name!r} was attached again")
            link.detach(error=stolen)
            events.append(LinkDetached(link, stolen, closed=True, by_peer=False))

        try:
            handle = self._free_handle()
        except ValueError as error:
            raise ProtocolError(Scope.SESSION, Condition.RESOURCE_LIMIT, str(error)) from None

        kind = SenderLink if attach.receiver else ReceiverLink
        link = kind(self, attach.name, handle)
        link.snd_settle_mode = attach.snd_settle_mode
        link.rcv_settle_mode = attach.rcv_settle_mode
        link.received_attach(attach)
        link.kept_octets = kept
        self._add(link)
        self.links[attach.handle] = link
        events.append(LinkAttached(link))

    def received_detach(self, detach: Detach, events: deque[Event]) -> None:
        """The peer detached a link, or answered our detach."""
        link = self._link(detach.handle)
        is_news = link.state is not LinkState.DETACH_SENT
        del self.links[detach.handle]
        self.kept_octets -= link.kept_octets
        self.connection.kept_octets -= link.kept_octets
        if is_news:
            self.drop_link(link, live=not detach.closed and detach.error is None)
        link.received_detach()
        if is_news:
            events.append(LinkDetached(link, detach.error, detach.closed, by_peer=True))
        else:
            self.free_link(link)

    def received_flow(self, flow: Flow, events: deque[Event]) -> None:
        """The peer sent the state of its windows, and perhaps of a link."""
        counted = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        window = counted + min(flow.incoming_window, HALF - 1)
        self._remote_window = max(0, ahead(window & MAX_UINT, self._next_outgoing_id))
        self._next_incoming_id = flow.next_outgoing_id

        if flow.handle is not None:
            link = self._link(flow.handle)
            if link.attached or link.state is LinkState.ATTACH_RCVD:
                link.received_flow(flow)
                if isinstance(link, SenderLink) and link.attached:
                    self._line_up(link)
                events.append(LinkFlow(link, flow.properties))  # type: ignore[arg-type] # it is one of the two
                if flow.echo:
                    self.connection.owes_echo(link)
        elif flow.echo:
            self.connection.owes_echo(self)
        self._transfer()

    def received_transfer(self, transfer: Transfer, octets: bytes, events: deque[Event]) -> None:
        """A transfer came."""
        self._next_incoming_id = (self._next_incoming_id + 1) & MAX_UINT
        self._incoming_window -= 1
        if self._incoming_window < 0:
            message = f"a transfer beyond the window of {self._capacity} frames"
            raise ProtocolError(Scope.SESSION, Condition.WINDOW_VIOLATION, message)
        if 2 * self._incoming_window < self._capacity:
            self.connection.owes_echo(self)
        link = self._link(transfer.handle)
        if type(link) is not ReceiverLink:
            message = f"a transfer from the receiver of the link with handle {transfer.handle}"
            raise ProtocolError(Scope.SESSION, Condition.NOT_ALLOWED, message)

        if link.attached:
            try:
                events.append(link.received_transfer(transfer, octets))
            except ProtocolError as error:
                if error.scope is not Scope.LINK:
                    raise
                error_sent = Error(error.condition, error.description)
                if self.connection.answers_errors:
                    link.fail()
                else:
                    link.detach(error=error_sent)
                events.append(LinkDetached(link, error_sent, closed=True, by_peer=False))
                self.connection.drop(transfer)
        else:
            self.connection.drop(transfer)

    def received_delivery_id(self, number: int) -> None:
        """A delivery begins."""
        last, self._last_delivery_id = self._last_delivery_id, number
        if last is not None and ahead(number, last) <= 0:
            raise ProtocolError(Scope.SESSION, Condition.INVALID_FIELD, f"delivery {number} behind delivery {last}")

    def received_disposition(self, disposition: Disposition) -> DispositionSteps | None:
        """The peer sent the state of deliveries: events say that, step by step. None where it says nothing."""
        span = 0 if disposition.last is None else ahead(disposition.last, disposition.first)
        if span < 0:
            message = f"deliveries from {disposition.first} to {disposition.last}"
            raise ProtocolError(Scope.SESSION, Condition.INVALID_FIELD, message)
        if disposition.state is None and not disposition.settled:
            return None
        return DispositionSteps(self, disposition, span)

    def _link(self, handle: int) -> Link:
        link = self.links.get(handle)
        if link is None:
            raise ProtocolError(Scope.SESSION, Condition.UNATTACHED_HANDLE, f"there is no link with handle {handle}")
        return link

    # -- the end of links
    def drop_link(self, link: Link, *, live: bool = False) -> None:
        """A link is detached by one side: nothing is sent on it any more, and its deliveries are forgotten. Where they
        are `live` still, those that have come or were sent to their end are kept, until `forget` or the end of the
        session."""
        key = (link.name, link.receives)
        if self.connection.links.get(key) is link:
            del self.connection.links[key]
        if isinstance(link, SenderLink):
            for waiting in link.waiting:
                self.waiting_octets -= waiting.size
                waiting.lose()
            link.waiting.clear()
            if link.lined_up:
                link.lined_up = False
                self._lines = [one for one in self._lines if one[1] is not link]
                heapify(self._lines)
            if link.current is not None:
                link.current.lose()
                link.current = None

            for number, sent in tuple(link.unsettled.items()):
                if not live or sent.progress is WAITING or sent.progress is PARTIAL or sent.progress is SETTLED:
                    del self.outgoing[number], link.unsettled[number]
                    sent.lose()
        elif isinstance(link, ReceiverLink):
            link.current = None
            for number, received in tuple(link.unsettled.items()):
                if not live or not received.complete:
                    del self.incoming[number], link.unsettled[number]
                    received.lose()
        self.flush_disposition()

    def forget(self, link: Link) -> None:
        """The deliveries of a link that was detached are not live any more."""
        if isinstance(link, SenderLink):
            for number, sent in link.unsettled.items():
                self.outgoing.pop(number, None)
                sent.lose()
            link.unsettled.clear()
        elif isinstance(link, ReceiverLink):
            for number, received in link.unsettled.items():
                self.incoming.pop(number, None)
                received.lose()
            link.unsettled.clear()

    def free_link(self, link: Link) -> None:
        """Both sides have detached a link: its handle is free."""
        self._handles.pop(link.handle, None)

    def lose(self) -> None:
        """The connection is gone."""
        self._lose_links()
        self.state = advance(SESSION, self.state, SessionVerb.LOSE)

    def _lose_links(self) -> None:
        self._lines.clear()
        for link in tuple(self._handles.values()):
            self.drop_link(link)
            link.lose()
        for sent in self.outgoing.values():  # of links that were detached
            sent.link.unsettled.clear()
            sent.lose()
        self.outgoing.clear()
        for received in self.incoming.values():
            received.link.unsettled.clear()
            received.lose()
        self.incoming.clear()

        self._handles.clear()
        self._unanswered.clear()
        self.links.clear()
        self.waiting_octets = 0
        self._disposition = None


class DispositionSteps:
    """What the peer said of a range of deliveries, step by step."""

    def __init__(self, session: Session, disposition: Disposition, span: int) -> None:
        self.session = session
        self._disposition = disposition
        self._span = span
        unsettled = self._unsettled
        self._all: list[int] | None = None if span <= len(unsettled) else list(unsettled)
        """The numbers of all deliveries that are not settled, where these are fewer than the range has."""
        self._looked_at = 0
        self._found = 0

    @property
    def _unsettled(self) -> Mapping[int, IncomingDelivery | OutgoingDelivery]:
        return self.session.outgoing if self._disposition.receiver else self.session.incoming

    def go_on(self, events: deque[Event]) -> bool:
        """The next step, with at most one event; whether there is more to do."""
        if self.session.state is not MAPPED:
            return False
        unsettled, disposition = self._unsettled, self._disposition
        found: list[IncomingDelivery | OutgoingDelivery] = []
        for number in self._next_numbers():
            self._looked_at += 1
            delivery = unsettled.get(number)
            if delivery is not None:
                found.append(delivery)
                if len(found) == FOUND:
                    break

        if disposition.settled:
            for delivery in found:
                settled_by_peer(delivery)
        self._found += len(found)
        more = self._looked_at < (self._span + 1 if self._all is None else len(self._all))
        unknown = not more and self._found <= self._span
        if found or (unknown and disposition.state is not None):
            events.append(Disposed(found, disposition.state, disposition.settled, unknown))
        return more

    def _next_numbers(self) -> Iterable[int]:
        """The numbers of the range that are looked at next; -1 stands for one that is not in it."""
        first, span, at = self._disposition.first, self._span, self._looked_at
        if self._all is None:
            return ((first + step) & MAX_UINT for step in range(at, min(span + 1, at + LOOKED_AT)))
        return (number if 0 <= ahead(number, first) <= span else -1 for number in self._all[at : at + LOOKED_AT])
