"""Two ends of a connection in memory: applications on our endpoint; the test has the octets between them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from dtx.amqp.connection import Connection
from dtx.amqp.delivery import IncomingDelivery, OutgoingDelivery
from dtx.amqp.encoding import encode
from dtx.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    Disposed,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    Transferred,
)
from dtx.amqp.link import Link, ReceiverLink, SenderLink
from dtx.amqp.performatives import Error, Source, Target
from dtx.amqp.session import Session
from dtx.amqp.states import ConnectionState, LinkState, SessionState
from dtx.amqp.values import Described, Ulong
from tests.dtx.amqp.frame_rules import FrameRules

T = TypeVar("T")
ACCEPTED = encode(Described(Ulong(0x24), []))
RECEIVED = encode(Described(Ulong(0x23), []))
REFUSED = "refused"
"""A link with this in its name is refused."""


class Dice(random.Random):
    """What a seed decides."""

    def some(self, among: Iterable[T]) -> list[T]:
        """One of these, if there is one."""
        found = list(among)
        return [self.choice(found)] if found else []

    def free(self, taken: Iterable[int], first: int) -> int:
        """One of the `first` numbers that is not taken."""
        return self.choice(sorted(set(range(first)) - set(taken)))


class Application:
    """The least that answers everything: one end of a connection, as a broker or a client would use it."""

    def __init__(self, connection: Connection, *, credit: int = 0, count: int = 0, numbers: Dice | None = None) -> None:
        self.connection = connection
        self.numbers = numbers
        """What chooses its channels and handles, where they are not the first that are free."""
        self.credit = credit
        self.count = count
        """Where the serial numbers of its sessions and links begin."""
        self.rules = FrameRules(connection.container)

        self.sessions: list[Session] = []
        self.links: list[Link] = []
        self.messages: dict[str, list[bytes]] = defaultdict(list)
        """By the names of links, what came whole."""
        self._written = b""
        self.partial: dict[str, list[bytes]] = {}
        self.incoming: list[IncomingDelivery] = []
        self.outgoing: list[OutgoingDelivery] = []
        self.events: list[Event] = []

    # -- octets
    def output(self) -> bytes:
        """What is to be sent now."""
        self.connection.flush()
        self._write()
        octets, self._written = self._written + self.connection.output(), b""
        return octets

    def _write(self) -> None:
        """Lets the rules see what is written before anything else is received."""
        octets = b"".join(self.connection._output)
        self.connection._output.clear()
        self.rules.sent(octets)
        self._written += octets

    def receive(self, octets: bytes) -> None:
        """Takes what has arrived."""
        for piece in self.rules.pieces(octets):
            self._write()
            self.rules.received(piece)
            self.connection.feed(piece)
            self.go_on()

    def go_on(self) -> None:
        while (event := self.connection.next_event()) is not None:
            self.events.append(event)
            self.answer(event)

    # -- events
    def answer(self, event: Event) -> None:
        if isinstance(event, ConnectionOpened):
            if self.connection.state is ConnectionState.OPEN_RCVD:
                self.connection.open()
        elif isinstance(event, ConnectionClosed):
            self.connection.close()
        elif isinstance(event, SessionBegun):
            if event.session.state in {SessionState.BEGIN_RCVD, SessionState.END_EARLY}:
                self._prepare(event.session)
                event.session.begin()
                self.sessions.append(event.session)
        elif isinstance(event, SessionEnded):
            event.session.end()
        else:
            self._answer_link(event)

    def _answer_link(self, event: Event) -> None:
        if isinstance(event, LinkAttached):
            self._attached(event.link)
        elif isinstance(event, LinkDetached):
            self.partial.pop(event.link.name, None)
            event.link.detach(closed=event.closed)
        elif isinstance(event, LinkFlow):
            self.drain()
        elif isinstance(event, Transferred):
            self._transferred(event)
        elif isinstance(event, Disposed) and event.settled:
            for delivery in event.deliveries:
                delivery.settle()

    def _attached(self, link: Link) -> None:
        if link.state is LinkState.ATTACH_RCVD:
            self._count(link)
            if REFUSED in link.name:
                link.refuse(Error("amqp:not-allowed", "as it is named"))
                return
            link.attach(Source("source"), Target("target"))
            self.links.append(link)
        if isinstance(link, ReceiverLink) and self.credit:
            link.give_credit(self.credit)

    def _transferred(self, event: Transferred) -> None:
        delivery = event.delivery
        name = delivery.link.name
        if delivery.aborted:
            self.partial.pop(name, None)
            return
        self.partial.setdefault(name, []).append(event.octets)
        if delivery.complete:
            self.messages[name].append(b"".join(self.partial.pop(name)))
            if not delivery.sent_settled:
                self.incoming.append(delivery)

    # -- what it does by itself
    def begin(self) -> Session:
        session = self.connection._new_session()
        self._prepare(session)
        session.begin()
        self.sessions.append(session)
        return session

    def attach(self, session: Session, name: str, *, receives: bool) -> Link:
        link: Link = session.receiver(name) if receives else session.sender(name)
        self._count(link)
        link.attach(Source("source"), Target("target"))
        self.links.append(link)
        return link

    def drain(self) -> None:
        for link in self.links:
            if isinstance(link, SenderLink) and link.drain and link.idle:
                link.drained()

    def _prepare(self, session: Session) -> None:
        session._next_outgoing_id = session._next_delivery_id = self.count
        if self.numbers is not None:
            channels = self.connection._channels
            del channels[session.channel]
            session.channel = self.numbers.free(channels, 20)
            channels[session.channel] = session

    def _count(self, link: Link) -> None:
        if self.numbers is not None:
            handles = link.session._handles
            del handles[link.handle]
            link.handle = self.numbers.free(handles, 50)
            handles[link.handle] = link
        if isinstance(link, SenderLink):
            link.delivery_count = link._given = link._limit = self.count


class Ends:
    """A client and a server, and what is on its way between them."""

    def __init__(self, client: Application, server: Application) -> None:
        self.client, self.server = client, server
        self.wires = {client: b"", server: b""}
        """By the end that sent it, what has not arrived."""

    def other(self, end: Application) -> Application:
        return self.server if end is self.client else self.client

    def send(self, end: Application) -> None:
        """What an end has to say is on its way."""
        self.wires[end] += end.output()

    def arrive(self, end: Application, octets: int | None = None) -> None:
        """Some of what is on its way from an end arrives."""
        wire = self.wires[end]
        cut = len(wire) if octets is None else min(octets, len(wire))
        self.wires[end] = wire[cut:]
        if cut:
            self.other(end).receive(wire[:cut])

    def settle(self) -> None:
        """Everything is said and heard, until nobody has anything to say."""
        quiet = False
        while not quiet:
            quiet = True
            for end in (self.client, self.server):
                self.send(end)
                quiet = quiet and not self.wires[end]
                self.arrive(end)


def ends(
    *,
    client: Connection | None = None,
    server: Connection | None = None,
    credit: int = 0,
    count: int = 0,
    numbers: Dice | None = None,
) -> Ends:
    """Two ends whose connection is open."""
    both = Ends(
        Application(client or Connection("client"), credit=credit, count=count, numbers=numbers),
        Application(server or Connection("server"), credit=credit, count=count, numbers=numbers),
    )
    both.client.connection.open()
    both.settle()
    return both
