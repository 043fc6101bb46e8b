"""FrameRules: what one end of a connection may send, checked frame by frame and written without the endpoint.

An end is watched with what it has sent and what it has received until then, so that frames may be on their way for any
time. It knows octets, not objects: performatives are lists of values in here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.dtx.amqp.described import performative_at

HEADER = b"AMQP\0\1\0\0"
OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
LEAST = 512


def distance(one: int, other: int) -> int:
    """How far `one` is behind `other` in serial numbers of 32 bits."""
    return (one - other + 2**31) % 2**32 - 2**31


@dataclass
class Frame:
    """A frame, decoded."""

    size: int
    channel: int
    code: int
    fields: list[Any]
    payload: bytes

    def __getitem__(self, index: int) -> Any:
        return self.fields[index] if index < len(self.fields) else None


@dataclass
class Cutter:
    """Frames out of a stream."""

    octets: bytearray = field(default_factory=bytearray)
    started: bool = False

    def feed(self, octets: bytes) -> list[Frame]:
        self.octets += octets
        found = []
        if not self.started and len(self.octets) >= 8:
            assert self.octets[:8] == HEADER
            del self.octets[:8]
            self.started = True

        while self.started and len(self.octets) >= 8:
            size = int.from_bytes(self.octets[:4], "big")
            if len(self.octets) < size:
                break
            whole = bytes(self.octets[:size])
            del self.octets[:size]
            assert whole[4:6] == b"\x02\x00"
            if size == 8:
                continue
            code, fields, end = performative_at(whole, 8)
            channel = int.from_bytes(whole[6:8], "big")
            found.append(Frame(size, channel, code, fields, whole[end:]))
        return found


@dataclass
class LinkView:
    """A link, as one end has told and heard of it."""

    name: str
    receives: bool
    sent_attach: bool = False
    sent_detach: bool = False
    received_attach: bool = False
    received_detach: bool = False
    closing: bool | None = None
    """Whether the detach that was received closes it."""
    delivery_count: int | None = None
    """Of an end that sends: after what it has sent."""
    limit: int | None = None
    """Of an end that sends: up to where the credit goes that it has received."""
    current: int | None = None
    """The delivery-id of what it is in the middle of."""


@dataclass
class SessionView:
    """A session, as one end has told and heard of it."""

    sent_begin: bool = False
    sent_end: bool = False
    received_begin: bool = False
    received_end: bool = False
    sent_handles: dict[int, LinkView] = field(default_factory=dict)
    received_handles: dict[int, LinkView] = field(default_factory=dict)
    links: list[LinkView] = field(default_factory=list)
    next_outgoing: int = 0
    window_end: int = 0
    """The first transfer-id that the other end's window does not allow."""
    next_incoming: int = 0
    handle_max: int = 2**32 - 1
    last_delivery: int | None = None
    sent_deliveries: set[int] = field(default_factory=set)
    received_deliveries: set[int] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return self.sent_end and self.received_end


class FrameRules:
    """Watches one end. AssertionError names the first rule that it breaks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent_codes: list[int] = []
        self.sessions: list[SessionView] = []
        self._sent, self._received = Cutter(), Cutter()
        self._by_sent: dict[int, SessionView] = {}
        self._by_received: dict[int, SessionView] = {}
        self.opened = self.closed = False
        self.remote_opened = self.remote_closed = False
        self._largest = LEAST
        self._channel_max = 0

    # -- what the end sends
    def sent(self, octets: bytes) -> None:
        for one in self._sent.feed(octets):
            self.sent_codes.append(one.code)
            assert not self.closed, "a frame behind close"
            assert self.opened or one.code == OPEN, "a frame before open"
            assert one.size <= self._largest, f"a frame of {one.size} octets where {self._largest} are taken"

            if one.code == OPEN:
                assert not self.opened, "a second open"
                assert one.channel == 0
                self.opened = True
            elif one.code == CLOSE:
                self.closed = True
            elif one.code == BEGIN:
                self._sent_begin(one)
            else:
                session = self._by_sent.get(one.channel)
                assert session is not None, f"a frame on channel {one.channel} without a session"
                assert not session.sent_end, f"a frame on channel {one.channel} behind end"
                self._sent_in(session, one)

    def _sent_begin(self, one: Frame) -> None:
        before = self._by_sent.get(one.channel)
        assert before is None or before.over, f"a begin on channel {one.channel}, which is in use"
        assert one.channel <= self._channel_max
        if one[0] is None:
            session = SessionView()
            self.sessions.append(session)
        else:
            session = self._by_received[one[0]]
            assert not session.sent_begin, "a begin is answered twice"
        session.sent_begin = True
        session.next_outgoing = one[1]
        self._by_sent[one.channel] = session

    def _sent_in(self, session: SessionView, one: Frame) -> None:
        if one.code == END:
            session.sent_end = True
        elif one.code == ATTACH:
            self._sent_attach(session, one)
        elif one.code == DISPOSITION:
            known = session.received_deliveries if one[0] else session.sent_deliveries
            last = one[1] if one[2] is None else one[2]
            count = distance(last, one[1])
            assert count >= 0
            for step in range(count + 1):
                assert (one[1] + step) % 2**32 in known, "a disposition for a delivery that is not there"
        elif one.code == FLOW:
            assert (one[0] is None) == (not session.received_begin)
            assert one[2] == session.next_outgoing % 2**32
            if one[0] is not None:
                assert one[0] == session.next_incoming % 2**32

            if one[4] is not None:
                link = self._handle(session, one[4])
                assert one[5] is not None or link.receives
                if not link.receives:
                    link.delivery_count = one[5]
        elif one.code == TRANSFER:
            self._sent_transfer(session, self._handle(session, one[0]), one)
        elif one.code == DETACH:
            link = self._handle(session, one[0])
            link.sent_detach = True
            if link.closing:
                assert one[1], "a closing detach is answered by one that does not close"
            del session.sent_handles[one[0]]

    def _handle(self, session: SessionView, handle: int) -> LinkView:
        assert handle in session.sent_handles, f"a frame for handle {handle}, which is not attached"
        return session.sent_handles[handle]

    def _sent_attach(self, session: SessionView, one: Frame) -> None:
        name, handle, receives = one[0], one[1], one[2]
        assert handle not in session.sent_handles, f"an attach with handle {handle}, which is in use"
        assert handle <= session.handle_max
        link = self._unanswered(session, name, receives=receives, by_us=False)
        link.sent_attach = True
        if not receives:
            assert one[9] is not None, "a sender has an initial-delivery-count"
            link.delivery_count = one[9]
            link.limit = link.limit if link.limit is not None else one[9]
        session.sent_handles[handle] = link

    def _unanswered(self, session: SessionView, name: str, *, receives: bool, by_us: bool) -> LinkView:
        """The link whose attach this one answers, or a new one."""
        for link in session.links:
            waits = link.sent_attach if by_us else link.received_attach
            done = link.received_attach if by_us else link.sent_attach
            if (link.name, link.receives) == (name, receives) and waits and not done:
                return link
        link = LinkView(name, receives)
        session.links.append(link)
        return link

    def _sent_transfer(self, session: SessionView, link: LinkView, one: Frame) -> None:
        assert not link.receives, "a receiver sends a transfer"
        assert distance(session.window_end, session.next_outgoing) > 0, "a transfer beyond the window"
        session.next_outgoing = (session.next_outgoing + 1) % 2**32

        if link.current is None:
            assert one[1] is not None
            assert one[2] is not None
            assert len(one[2]) <= 32
            if session.last_delivery is not None:
                assert one[1] == (session.last_delivery + 1) % 2**32, "delivery-ids are not sequential"
            session.last_delivery = one[1]
            assert link.limit is not None
            assert link.delivery_count is not None
            assert distance(link.limit, link.delivery_count) > 0, "a delivery without credit"
            link.delivery_count = (link.delivery_count + 1) % 2**32
            link.current = one[1]
            session.sent_deliveries.add(one[1])
        else:
            assert one[1] in {None, link.current}
        if not one[5] or one[9]:
            link.current = None

    # -- what the end receives
    def pieces(self, octets: bytes) -> list[bytes]:
        """What has arrived, cut behind each frame that it completes."""
        found: list[bytes] = []
        at, have = 0, len(self._received.octets)
        while at < len(octets):
            ahead = bytes(self._received.octets[:4]) if not at else b""
            size = 8
            if self._received.started or found:
                ahead += octets[at : at + 4 - len(ahead)]
                size = int.from_bytes(ahead, "big") if len(ahead) == 4 else 2**32
            stop = min(len(octets), at + size - have)
            found.append(octets[at:stop])
            at, have = stop, 0
        return found

    def received(self, octets: bytes) -> None:
        for one in self._received.feed(octets):
            if one.code == OPEN:
                self.remote_opened = True
                self._largest = 2**32 - 1 if one[2] is None else one[2]
                self._channel_max = 2**16 - 1 if one[3] is None else one[3]
            elif one.code == CLOSE:
                self.remote_closed = True
            elif one.code == BEGIN:
                if one[0] is None:
                    session = SessionView()
                    self.sessions.append(session)
                elif one[0] in self._by_sent:
                    session = self._by_sent[one[0]]
                else:  # the other end may break the rules
                    continue

                session.received_begin = True
                session.next_incoming = one[1]
                session.window_end = session.next_outgoing + one[2]
                session.handle_max = 2**32 - 1 if one[4] is None else one[4]
                self._by_received[one.channel] = session
            elif one.channel in self._by_received:
                self._received_in(self._by_received[one.channel], one)

    def _received_in(self, session: SessionView, one: Frame) -> None:
        if one.code == END:
            session.received_end = True
        elif one.code == ATTACH:
            link = self._unanswered(session, one[0], receives=not one[2], by_us=True)
            link.received_attach = True

            session.received_handles[one[1]] = link
        elif one.code == DETACH:
            detached = session.received_handles.pop(one[0], None)
            if detached is not None:
                detached.received_detach = True
                detached.closing = bool(one[1])
        elif one.code == TRANSFER:
            session.next_incoming = (session.next_incoming + 1) % 2**32
            if one[1] is not None:
                session.received_deliveries.add(one[1])
        elif one.code == FLOW:
            session.next_incoming = one[2]
            if one[0] is not None:
                session.window_end = one[0] + one[1]
            link_of = session.received_handles.get(one[4]) if one[4] is not None else None
            if link_of is not None and not link_of.receives and one[6] is not None:
                counted = link_of.delivery_count if one[5] is None else one[5]
                assert counted is not None
                link_of.limit = counted + one[6]

    # -- at the end, when nothing is on its way
    def check_answers(self) -> None:
        """Everything that this end has received is answered, and what it has sent too."""
        assert not self._sent.octets
        assert not self._received.octets
        assert self.opened == self.remote_opened
        assert self.closed == self.remote_closed
        if self.closed:
            return
        for session in self.sessions:
            assert session.sent_begin == session.received_begin
            assert session.sent_end == session.received_end
            if session.sent_end:
                continue
            for link in session.links:
                assert link.sent_attach == link.received_attach, f"the attach of {link.name} is not answered"
                assert link.sent_detach == link.received_detach, f"the detach of {link.name} is not answered"
