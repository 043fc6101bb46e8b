"""This module connects a broker's node and its peers in memory, engine against engine, without a socket, a thread or a
sleep.

`World` holds a node over a `MemoryStore` on a `Disk`; what the store would do in its thread waits in `jobs` until
`World.pump` runs it, so that a test can stop between a force and what follows. `Peer` is proton's own client engine
with the few steps that a transaction controller takes.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cproton import (  # type: ignore[import-untyped]
    pn_data_clear,
    pn_delivery_local,
    pn_disposition_data,
)
from proton import (
    Collector,
    Connection,
    Data,
    Delivery,
    Described,
    Link,
    Message,
    Receiver,
    Sender,
    Session,
    Terminus,
    Transport,
    symbol,
    ulong,
)
from proton import Condition as ProtonCondition

from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.frames import FrameReader
from dtx.amqp.messages import DELIVERY_DELAY, DELIVERY_TIME, body_value, request_message, value_message
from dtx.amqp.performatives import Flow
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.values import Described as TypedDescribed
from dtx.amqp.values import Symbol, Uint, Ulong
from dtx.broker.access.credentials import Credentials
from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.container import Container
from dtx.broker.endpoint.connection import BrokerConnection
from dtx.broker.queues.queue import Queue
from dtx.broker.settings import Settings
from dtx.protocol.addresses import COORDINATION as COORDINATION_ADDRESS
from dtx.protocol.addresses import MANAGEMENT
from dtx.protocol.capabilities import DISTRIBUTED, LOCAL
from dtx.protocol.commands import CONTROL, COORDINATION, Declare, Discharge, End, Prepare, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import DECLARED, TRANSACTIONAL, Reply, Result, decode_reply
from dtx.store.contract import Step, StoreError
from dtx.store.memory import Disk, MemoryStore
from rm_amqp.connection.frames import OutgoingFrames
from tests.dtx.amqp.described import items_of
from xa import Code, Xid

NUMBERS = itertools.count()
CAPABILITIES = (LOCAL, DISTRIBUTED)
XID = Xid(1, b"gtrid", b"bqual")
OK = Result(Code.XA_OK)


class ManualClock:
    """Time that a test moves."""

    def __init__(self, seconds: float = 1_000_000.0) -> None:
        self.seconds = seconds
        self.set_s = 0.0
        """By how much somebody has set the wall clock."""

    def monotonic(self) -> float:
        return self.seconds

    def wall_ms(self) -> int:
        return round((self.seconds + self.set_s) * 1000)


class World:
    """A node, its disk, and the peers that are connected to it."""

    def __init__(
        self,
        settings: Settings | None = None,
        permissions: Permissions | None = None,
        disk: Disk | None = None,
        hook: Callable[[Step], None] = lambda _: None,
        cached_size: int = 256 * 1024,
        seconds: float = 1_000_000.0,
        credentials: Credentials | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.permissions = permissions or Permissions({"anonymous": EVERYTHING, "*": EVERYTHING})
        self.disk = disk or Disk()
        self.clock = ManualClock(seconds)
        self.jobs: deque[Callable[[], None]] = deque()
        self.stopped: list[StoreError] = []
        self.peers: list[Peer] = []

        self.fault: StoreError | None = None
        """What the store raises instead of writing, as long as it is set."""
        self._hook = hook
        self.store = MemoryStore(self.disk, self.jobs.append, self.hit, cached_size)
        self.container = Container(
            self.store, self.clock, self.settings, self.permissions, self.stopped.append, credentials=credentials
        )
        self.container.open()
        self.pump()

    def hit(self, step: Step) -> None:
        """The store is at this step."""
        if self.fault is not None and step is Step.BEFORE_WRITE:
            raise self.fault
        self._hook(step)

    def queue(self, name: str = "q") -> Queue:
        """A queue of the broker."""
        return self.container.resource.queues[name]

    def connect(self, user: str = "") -> Peer:
        """A new peer, connected and open."""
        peer = Peer(self, Identity(user))
        self.peers.append(peer)
        self.pump()
        return peer

    def accept(self, identity: Identity) -> BrokerConnection:
        """The broker's side of a new connection."""
        return BrokerConnection(self.container, identity, "memory")

    def pump(self, *, store: bool = True) -> None:
        """Lets everybody talk until nobody has anything to say; without `store` what waits for it stays."""
        moved = True
        while moved:
            moved = False
            for peer in self.peers:
                moved |= peer.exchange()
            for connection in self.container.take_wanting():
                connection.go_on()
                moved = True
            moved |= self.container.go_on()
            while store and self.jobs:
                self.jobs.popleft()()
                moved = True

    def more(self, link: Receiver, credit: int) -> None:
        """Gives a receiver so much more credit."""
        link.flow(credit)
        self.pump()

    def close(self, one: Link | Session | Connection) -> None:
        """Closes it, and everybody hears of it."""
        one.close()
        self.pump()

    def pass_time(self, seconds: float) -> None:
        """Moves the clock, and lets the node do what is due."""
        self.clock.seconds += seconds
        self.container.resource.tick()
        self.pump()

    def crash(self) -> World:
        """Another node on what was forced."""
        return World(self.settings, self.permissions, self.disk, seconds=self.clock.seconds)


@dataclass
class Coordinator:
    """A control link, as a controller uses it."""

    peer: Peer
    link: Sender
    tags: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    def send(self, body: bytes, *, settled: bool = False) -> Delivery:
        self.tags += 1
        return self.peer.send_octets(self.link, value_message(body), f"c{self.tags}", settled=settled)

    def outcome(self, body: bytes) -> tuple[int, Any, Refusal | None]:
        """State, data and refusal of a control message's outcome."""
        delivery = self.send(body)
        self.peer.world.pump()
        return self.read(delivery)

    def read(self, delivery: Delivery) -> tuple[int, Any, Refusal | None]:
        code, refusal = int(delivery.remote_state), None
        if delivery.remote_state == Delivery.REJECTED:
            refusal = refused_with(delivery)
        data = delivery.remote.data
        if delivery.settled:
            delivery.settle()
        return code, data, refusal

    def declare(self, start: Start | None = None) -> bytes:
        code, data, refusal = self.outcome(CONTROL.encode(Declare(start)))
        assert code == DECLARED, refusal
        return bytes(data[0])

    def refused(self, command: Declare | Discharge | End) -> Refusal:
        code, _, refusal = self.outcome(CONTROL.encode(command))
        assert code == Delivery.REJECTED, code
        assert refusal is not None
        return refusal

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> None:
        code, _, refusal = self.outcome(CONTROL.encode(Discharge(txn_id, fail)))
        assert code == Delivery.ACCEPTED, refusal

    def end(self, txn_id: bytes, **how: bool) -> tuple[int, Any, Refusal | None]:
        return self.outcome(CONTROL.encode(End(txn_id, **how)))


class Peer:
    """One client connection."""

    def __init__(self, world: World, identity: Identity) -> None:
        self.world = world
        self.server = world.accept(identity)
        self.connection = Connection()
        self.connection.container = f"peer-{next(NUMBERS)}"
        self.transport = Transport()
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)
        self.connection.open()
        self.session = self.connection.session()

        self.session.open()
        self.connected = True
        self.names = 0
        self.sent = OutgoingFrames()
        self.heard = FrameReader(65_536)
        self.flows: list[Flow] = []
        self.default_outcome: int | None = None
        """The default outcome in the sources of receivers that are attached from now on."""
        self.default_fields: list[Any] = []
        """The fields of the default outcome."""
        self._replies: Receiver | None = None
        self._requests: Sender | None = None

    # -- octets
    def exchange(self) -> bool:
        moved = False
        if not self.connected:
            return False
        pending = self.transport.pending()
        if pending > 0:
            octets = self.transport.peek(pending) or b""
            self.transport.pop(len(octets))
            self.server.received(self.with_default_outcome(self.sent.feed(bytes(octets))))
            moved = True
        octets = self.server.output()
        while octets:
            self.hear(octets)
            while octets:  # proton takes no more than its buffer at a time
                room = self.transport.capacity()
                assert room > 0, "the client's transport takes nothing more"
                self.transport.push(octets[:room])
                octets = octets[room:]
            moved = True
            octets = self.server.output()

        while self.collector.peek():
            self.collector.pop()
        return moved

    def hear(self, octets: bytes) -> None:
        """Notes what the broker says that proton doesn't tell."""
        self.heard.feed(octets)
        if not self.heard.started and not self.heard.header():
            return
        while (found := self.heard.next()) is not None:
            _, said, _ = found
            if isinstance(said, Flow) and said.handle is not None:
                self.flows.append(said)

    def acquire_for(self, link: Receiver, txn_id: bytes | None) -> None:
        """From now on flows of this receiver have the property txn-id."""
        self.sent.set_properties(link.name, receiver=True, properties={} if txn_id is None else {"txn-id": txn_id})

    def flows_seen(self) -> list[Any]:
        """The txn-ids in the flows of links that the broker sent."""
        return [(flow.properties or {}).get("txn-id") for flow in self.flows if flow.properties or flow.echo]

    def with_default_outcome(self, octets: bytes) -> bytes:
        """What proton can't say in an attach."""
        if self.default_outcome is None:
            return octets
        found, at = b"", 0
        while at < len(octets):
            size = int.from_bytes(octets[at : at + 4], "big")
            one, at = octets[at : at + size], at + size
            if one[10:11] == b"\x12":
                fields = items_of(decode(one[8:]))
                source = items_of(fields[5])
                source += [None] * (9 - len(source))
                source[8] = TypedDescribed(Ulong(self.default_outcome), self.default_fields)
                one = frame(0x12, fields)
            found += one
        return found

    def handle_of(self, link: Link) -> int:
        """The handle with which our end of a link goes."""
        return self.sent.handles()[link.name]

    def flow_for(self, link: Link, txn_id: Any) -> None:
        """Sends a flow with this txn-id, of a link of either direction."""
        value = Uint(txn_id) if isinstance(txn_id, int) else txn_id
        self.inject(flow(self.handle_of(link), 0, 1, {Symbol("txn-id"): value}))

    def vanish(self) -> None:
        """The connection is gone, without a word."""
        self.connected = False
        self.server.lost()
        self.world.pump()

    def inject(self, octets: bytes) -> None:
        """Sends octets that proton would not."""
        self.exchange()
        self.server.received(octets)
        self.world.pump()

    # -- links
    def name(self, kind: str) -> str:
        self.names += 1
        return f"{kind}-{self.names}"

    def new_session(self) -> Session:
        session = self.connection.session()
        session.open()
        self.world.pump()
        return session

    def coordinator(
        self,
        capabilities: tuple[str, ...] = CAPABILITIES,
        session: Session | None = None,
        outcomes: tuple[str, ...] | None = None,
    ) -> Coordinator:
        link = (session or self.session).sender(self.name("control"))
        link.target.type = Terminus.COORDINATOR
        link.target.capabilities.put_array(False, Data.SYMBOL)
        link.target.capabilities.enter()
        for capability in capabilities:
            link.target.capabilities.put_symbol(symbol(capability))
        link.target.capabilities.exit()
        if outcomes is not None:
            link.source.outcomes.put_array(False, Data.SYMBOL)
            link.source.outcomes.enter()
            for outcome in outcomes:
                link.source.outcomes.put_symbol(symbol(outcome))
            link.source.outcomes.exit()

        link.open()
        self.world.pump()
        return Coordinator(self, link)

    def sender(self, address: str, session: Session | None = None, *, second: bool = False) -> Sender:
        link = (session or self.session).sender(self.name("out"))
        link.target.address = address
        if second:
            link.rcv_settle_mode = Link.RCV_SECOND
        link.open()
        self.world.pump()
        return link

    def receiver(self, address: str | None, credit: int = 0, session: Session | None = None, **how: Any) -> Receiver:
        link = (session or self.session).receiver(self.name("in"))
        if address is None:
            link.source.dynamic = True
        else:
            link.source.address = address
        if how.get("browse"):
            link.source.distribution_mode = Terminus.DIST_MODE_COPY
        if how.get("settled"):
            link.snd_settle_mode = Link.SND_SETTLED
        link.open()
        if credit:
            link.flow(credit)
        self.world.pump()
        return link

    def fail(self, link: Link) -> None:
        """Closes a link with an error: what it holds counts as a failed delivery."""
        link.condition = ProtonCondition("app:failed", "the consumer can't go on")
        link.close()
        self.world.pump()

    # -- messages
    def send_octets(
        self, link: Sender, octets: bytes, tag: str, txn_id: bytes | None = None, *, settled: bool = False
    ) -> Delivery:
        delivery = link.delivery(tag)
        if txn_id is not None:
            say_state(delivery, TRANSACTIONAL, [txn_id])
        link.stream(octets)
        link.advance()
        if settled:
            delivery.settle()
        return delivery

    def post(self, link: Sender, body: Any, txn_id: bytes | None = None, *, settled: bool = False) -> Delivery:
        delivery = self.send_octets(link, Message(body=body).encode(), self.name("m"), txn_id, settled=settled)
        self.world.pump()
        return delivery

    def fill(self, queue: str, *bodies: Any) -> Sender:
        """Posts these to a queue; the link."""
        link = self.sender(queue)
        for body in bodies:
            self.post(link, body)
        return link

    def post_many(self, bodies: Iterable[Any], **said: Any) -> None:
        """Many messages to the queue q, which are sent settled."""
        link, left = self.sender("q"), iter(bodies)
        while portion := list(itertools.islice(left, 200)):
            for body in portion:
                self.send_octets(link, bytes(Message(body=body, **said).encode()), self.name("m"), settled=True)
            self.world.pump()

    def take(self, link: Receiver) -> tuple[Delivery, Message] | None:
        """The next delivery that has come whole, with its message. Those that were aborted are passed over."""
        while link.current is not None and link.current.aborted:
            link.current.settle()  # which goes on to the next one
        delivery = link.current
        if delivery is None or not delivery.readable or delivery.partial:
            return None
        octets = link.recv(delivery.pending) or b""
        link.advance()
        message = Message()
        message.decode(octets)
        return delivery, message

    def taken(self, link: Receiver) -> tuple[Delivery, Message]:
        """The next delivery, which has to be there, with its message."""
        found = self.take(link)
        assert found is not None, "no delivery has come"
        return found

    def first(self, queue: str = "q", credit: int = 1, **how: Any) -> tuple[Receiver, Delivery, Message]:
        """A new consumer, and the first message that it gets."""
        link = self.receiver(queue, credit, **how)
        return (link, *self.taken(link))

    def settle(self, delivery: Delivery, outcome: Any = Delivery.ACCEPTED) -> None:
        """Settles a delivery with this outcome."""
        delivery.update(outcome)
        delivery.settle()
        self.world.pump()

    def bodies(self, link: Receiver) -> list[Any]:
        """What has come, settled as accepted."""
        found = []
        while (taken := self.take(link)) is not None:
            found.append(taken[1].body)
            taken[0].update(Delivery.ACCEPTED)
            taken[0].settle()
        self.world.pump()
        return found

    def retire(
        self,
        delivery: Delivery,
        txn_id: bytes,
        outcome: int = 0x24,
        *,
        settle: bool = False,
    ) -> None:
        say_state(delivery, TRANSACTIONAL, [txn_id, Described(ulong(outcome), [])])
        if settle:
            delivery.settle()
        self.world.pump()

    def drained(self, address: str) -> list[Any]:
        """Everything that can be had from a queue now, left where it is."""
        link = self.receiver(address, 10_000, browse=True)
        found = []
        while (taken := self.take(link)) is not None:
            found.append(taken[1].body)
        link.close()
        self.world.pump()
        return found

    # -- branches
    def ended(self, xid: Xid = XID, *, takes: str = "", posts: str = "", bodies: Any = (), **said: Any) -> Coordinator:
        """A branch takes the first message of one queue, posts to another, and is ended; its control link."""
        control = self.coordinator()
        txn_id = control.declare(Start(xid))
        if takes:
            link, delivery, _ = self.first(takes)
            self.retire(delivery, txn_id)
            link.close()
        if posts:
            for body in bodies or (said.pop("body", "x"),):
                post(self, body, txn_id, queue=posts, **said)
        control.discharge(txn_id)
        return control

    def prepared(self, xid: Xid = XID, **work: Any) -> None:
        """The same, and it is prepared."""
        self.ended(xid, **work)
        assert self.ask(Prepare(xid)) == OK

    # -- the command channel
    def ask(self, command: Any) -> Reply:
        """A command, and its answer."""
        self.request(command)
        self.world.pump()
        return self.answer()

    def refusal(self, command: Any) -> Refusal:
        """A command that is refused, and why."""
        reply = self.ask(command)
        assert isinstance(reply, Refusal), reply
        return reply

    def request(self, command: Any) -> None:
        if self._replies is None or self._requests is None:
            self._replies = self.receiver(None, 1000)
            self._requests = self.sender(COORDINATION_ADDRESS)
        reply_to = str(self._replies.remote_source.address)
        octets = request_message(COORDINATION.encode(command), reply_to, self.name("r"))
        self.send_octets(self._requests, octets, self.name("q"), settled=True)

    def answer(self) -> Reply:
        assert self._replies is not None
        delivery = self._replies.current
        assert delivery is not None, "no answer"
        assert delivery.readable, "no answer"
        octets = self._replies.recv(delivery.pending) or b""
        self._replies.advance()
        delivery.settle()
        return decode_reply(body_value(octets))


def filled(*bodies: Any, settings: Settings | None = None, queue: str = "q", **how: Any) -> tuple[World, Peer]:
    """A world with these messages in a queue, and the peer that posted them."""
    world = World(settings, **how)
    peer = world.connect()
    peer.fill(queue, *bodies)
    return world, peer


def post(peer: Peer, body: Any, txn_id: bytes | None = None, *, queue: str = "q", **said: Any) -> Delivery:
    """Posts a message; `delay` in milliseconds, `at` in milliseconds since the epoch, the rest is proton's."""
    annotations = {}
    if "delay" in said:
        annotations[symbol(DELIVERY_DELAY)] = said.pop("delay")
    if "at" in said:
        annotations[symbol(DELIVERY_TIME)] = said.pop("at")
    message = Message(body=body, annotations=annotations or None, **said)
    delivery = peer.send_octets(peer.sender(queue), bytes(message.encode()), peer.name("m"), txn_id)
    peer.world.pump()
    return delivery


def manage(peer: Peer, **told: Any) -> Any:
    """A management request, and its answer."""
    replies, requests = peer.receiver(None, 10), peer.sender(MANAGEMENT)
    message = Message(id="1", reply_to=str(replies.remote_source.address), body="x", properties=told)
    peer.send_octets(requests, bytes(message.encode()), "t", settled=True)
    peer.world.pump()
    delivery = replies.current
    assert delivery is not None
    octets = bytes(replies.recv(delivery.pending) or b"")
    value = decode(body_value(octets))
    return decode_reply(body_value(octets)) if isinstance(value, TypedDescribed) else value


def queue_told(peer: Peer, name: str = "q") -> Any:
    """What management tells of a queue."""
    (told,) = (one for one in manage(peer, operation="queues") if one["name"] == name)
    return told


def dead(peer: Peer, queue: str = "q.dead") -> list[tuple[str, str]]:
    """From where the dead letters of a queue came, and why; none where there is no such queue."""
    told = manage(peer, operation="messages", queue=queue)
    return [] if isinstance(told, Refusal) else [(one["from"], one["why"]) for one in told]


def refused_with(delivery: Delivery) -> Refusal:
    """Why a delivery was rejected."""
    assert delivery.remote_state == Delivery.REJECTED
    condition: Any = delivery.remote.condition
    return Refusal.read(condition.name, condition.description, condition.info)


def frame(code: int, fields: list[Any], payload: bytes = b"", channel: int = 0) -> bytes:
    """An AMQP frame."""
    body = encode(TypedDescribed(Ulong(code), fields)) + payload
    return struct.pack(">IBBH", 8 + len(body), 2, 0, channel) + body


def flow(handle: int, count: int, credit: int, properties: Any, *, echo: bool = False) -> bytes:
    """A flow frame for a link, with windows that hinder nobody."""
    session = [Uint(0), Uint(2**30), Uint(0), Uint(2**30)]
    link = [Uint(handle), Uint(count), Uint(credit), None, False, echo, properties]
    return frame(0x13, [*session, *link])


def say_state(delivery: Delivery, code: int, fields: list[Any]) -> None:
    """Sets our state of a delivery; proton's own way adds to the fields that were said before."""
    pn_data_clear(pn_disposition_data(pn_delivery_local(delivery._impl)))
    delivery.local.data = fields
    delivery.update(code)


def told(delivery: Delivery) -> tuple[bytes, Any]:
    """txn-id and outcome in the transactional-state that the broker told of a delivery."""
    fields: Any = delivery.remote.data
    assert delivery.remote_state == TRANSACTIONAL
    return bytes(fields[0]), fields[1] if len(fields) > 1 else None


def condition_of(link: Link) -> Refusal:
    """Why the broker closed a link."""
    condition = link.remote_condition
    assert condition is not None, "the link is not closed with an error"
    info: Any = condition.info
    return Refusal.read(condition.name, condition.description, info)


def closed(link: Link) -> bool:
    """Whether the broker closed a link."""
    return bool(link.state & Link.REMOTE_CLOSED)
