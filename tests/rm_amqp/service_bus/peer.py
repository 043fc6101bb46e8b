"""This is the AMQP side of the simulated Service Bus: one connection of a client, without I/O, over `dtx.amqp`.

It refuses what the documentation excludes: anything before the client has shown who it is, a second top-level entity
in a session that has a coordinator, links that browse, requests to a management node in such a session, and outcomes
of messages whose lock has run out. An outcome that is told settled is not answered, as the protocol says; if it can't
be carried out, nobody hears of it, and the transaction commits without it.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from dtx.amqp.connection import Connection
from dtx.amqp.decoding import decode
from dtx.amqp.delivery import IncomingDelivery, OutgoingDelivery
from dtx.amqp.encoding import encode
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
)
from dtx.amqp.link import Link, ReceiverLink, SenderLink
from dtx.amqp.messages import body_value, read_destination, read_header, with_header, with_message_annotations
from dtx.amqp.performatives import RECEIVER_SECOND, Coordinator, Error, Source, Target
from dtx.amqp.session import Session
from dtx.amqp.values import Described, Long, Symbol, Ulong
from dtx.protocol.commands import CONTROL, Declare, Discharge
from dtx.protocol.replies import ACCEPTED, DECLARED, REJECTED, RELEASED, TRANSACTIONAL
from rm_amqp.channel.work import modify
from rm_amqp.message import Message
from tests.rm_amqp.service_bus.namespace import MAX_OCTETS, NOT_ALLOWED, ONE_ENTITY, Entity, Namespace, Refused, Stored

CREDIT: Final = 100
IDLE_S: Final = 600
ANONYMOUS: Final = "anonymous"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
TRANSFER: Final = Symbol("com.microsoft:transfer-destination-address")
MANAGEMENT: Final = "/$management"
MIXED: Final = "Mixing management and messaging operations in a transaction isn't supported."
NO_CLAIMS: Final = "Unauthorized access. 'Send,Listen' claim(s) are required to perform this operation."
OUTCOMES: Final = {ACCEPTED: "accepted", REJECTED: "rejected", RELEASED: "released"}
DEFERS: Final = modify(failed=True, undeliverable=True)[2:]
CORRELATION_FILTER: Final = 0x1370000009
TRUE_FILTER: Final = 0x1370000007
RULE: Final = 0x13700000004
_txn_ids: Final = itertools.count(1)


class ServiceBusConnection:
    """One connection. `identity`: whose it is, by SASL."""

    def __init__(self, namespace: Namespace, identity: str) -> None:
        self.namespace = namespace
        self.closed = False
        self._identity = identity
        self._connection = Connection("service-bus", idle_timeout_ms=240_000)
        self._consumers: dict[SenderLink, Consumer] = {}
        self._bound: dict[Session, str] = {}
        """The top-level entity of a session that has a coordinator; empty before it has one."""
        self._destinations: dict[ReceiverLink, tuple[str, str]] = {}
        """By the links that a client sends on: by way of what, and where to."""
        self._replies: dict[str, SenderLink] = {}
        self._declared: dict[ReceiverLink, list[bytes]] = {}
        self._parts: dict[IncomingDelivery, tuple[bytearray, bytes | None]] = {}
        self._used_s: dict[Link, float] = {}
        """When a link was last used."""

    @property
    def container(self) -> str:
        """The client's name for itself."""
        remote = self._connection.remote
        return remote.container_id if remote is not None else ""

    # -- the shell's
    def received(self, octets: bytes) -> None:
        """Takes what the client sent."""
        self._connection.feed(octets)
        while (event := self._connection.next_event()) is not None:
            self._handle(event)

    def output(self) -> bytes:
        """What is to be sent, after as much was received as there is credit for."""
        if not self.closed:
            for consumer in tuple(self._consumers.values()):
                consumer.pump()
        octets = self._connection.output()
        self.closed = self._connection.finished
        return octets

    def tick(self, now_ms: int, _held_ms: int = 0) -> None:
        """Time passes. Links that nobody has used for too long are detached."""
        if self.closed:
            return
        self._connection.tick(now_ms)
        now_s = self.namespace.clock()
        for link, used_s in tuple(self._used_s.items()):
            if now_s > used_s + IDLE_S:
                del self._used_s[link]
                if link.attached:
                    link.detach(error=Error("amqp:link:detach-forced", "IdleTimerExpired: Idle timeout: 00:10:00."))
                    self._forget(link)

    def lost(self) -> None:
        """The connection is gone: its transactions are rolled back."""
        for declared in self._declared.values():
            for txn_id in declared:
                self.namespace.lose(txn_id)
        self._declared.clear()
        for consumer in self._consumers.values():
            consumer.gone()
        self._consumers.clear()
        self.closed = True

    # -- events
    def _handle(self, event: object) -> None:
        match event:
            case ConnectionOpened():
                self._connection.open()
            case ConnectionClosed(by_peer=by_peer):
                if by_peer:
                    self._connection.close()

                self.lost()
                self.closed = False  # there may be a close to send
            case SessionBegun(session=session):
                session.begin()
            case SessionEnded(session=session, by_peer=True):
                session.end()
            case LinkAttached(link=link):
                self._used_s[link] = self.namespace.clock()
                self._attach(link)
            case LinkDetached(link=link):
                self._detached(link)
            case LinkFlow() | Transferred() | Disposed():
                self._handle_delivery(event)

    def _handle_delivery(self, event: LinkFlow | Transferred | Disposed) -> None:
        now_s = self.namespace.clock()
        if isinstance(event, Disposed):
            self._used_s |= {delivery.link: now_s for delivery in event.deliveries}
        else:
            self._used_s[event.delivery.link if isinstance(event, Transferred) else event.link] = now_s
        match event:
            case LinkFlow(link=SenderLink() as sender):
                if sender not in self._consumers and sender.drain:
                    sender.drained()
            case Transferred():
                self._transferred(event)
            case Disposed(deliveries=deliveries, state=state, settled=settled):
                for delivery in deliveries:
                    if isinstance(delivery, OutgoingDelivery):
                        self._disposed(delivery, state, settled=settled)

    # -- links
    def _attach(self, link: Link) -> None:
        remote = link.remote
        assert remote is not None
        try:
            self._check_claims()
            if isinstance(link, ReceiverLink):
                self._attach_producer(link)
            elif isinstance(link, SenderLink):
                self._attach_consumer(link)
        except Refused as refusal:
            link.refuse(Error(refusal.condition, refusal.told))

    def _check_claims(self) -> None:
        if self._identity == ANONYMOUS:
            raise Refused(UNAUTHORIZED, NO_CLAIMS)

    def _attach_producer(self, link: ReceiverLink) -> None:
        assert link.remote is not None
        target = link.remote.target
        if isinstance(target, Coordinator):
            if self.namespace.tier == "basic":
                raise Refused(NOT_ALLOWED, "The basic tier of Service Bus does not support transactions.")
            self._bound.setdefault(link.session, "")
            self._declared[link] = []
            link.attach(link.remote.source, Coordinator())
            link.give_credit(CREDIT)
            return
        if target is None or not target.address:
            raise Refused(NOT_ALLOWED, "The target has no address.")

        address = target.address
        properties = link.remote.properties or {}
        if address.endswith(MANAGEMENT):
            self._management(link, address)
            self._destinations[link] = (address, "")
        else:
            self.namespace.check_target(address)
            destination = str(properties.get(TRANSFER, "") or address)
            self.namespace.check_target(destination)
            self._bind(link.session, address)
            self._destinations[link] = (address, destination)
        link.attach(link.remote.source, Target(address), max_message_size=MAX_OCTETS, properties=link.remote.properties)
        link.give_credit(CREDIT)

    def _attach_consumer(self, link: SenderLink) -> None:
        assert link.remote is not None
        source = link.remote.source
        if source is None or not source.address:
            raise Refused(NOT_ALLOWED, "The source has no address.")
        if source.distribution_mode == "copy":
            raise Refused("amqp:not-implemented", "Browsing over a link is not supported; peek at the management node.")
        if source.filters:
            raise Refused("amqp:not-implemented", "The filters are not supported.")
        if source.address.endswith(MANAGEMENT):
            self._management(link, source.address)
            target = link.remote.target
            assert isinstance(target, Target)
            self._replies[target.address or ""] = link
            link.attach(Source(source.address), link.remote.target)
            return

        entity = self.namespace.entity(source.address)
        self._bind(link.session, entity.top)
        link.attach(Source(source.address), link.remote.target)
        self._consumers[link] = Consumer(self.namespace, link, entity)

    def _management(self, link: Link, address: str) -> None:
        self.namespace.entity(address.removesuffix(MANAGEMENT))
        if link.session in self._bound:
            raise Refused(NOT_ALLOWED, MIXED)

    def _bind(self, session: Session, top: str) -> None:
        """In a session with a coordinator, the first link says which entity its transactions are on."""
        bound = self._bound.get(session)
        if bound is None:
            return
        if bound not in {"", top}:
            raise Refused(NOT_ALLOWED, ONE_ENTITY)
        self._bound[session] = top

    def _detached(self, link: Link) -> None:
        link.detach()
        self._used_s.pop(link, None)
        self._forget(link)

    def _forget(self, link: Link) -> None:
        if isinstance(link, ReceiverLink):
            for txn_id in self._declared.pop(link, []):
                self.namespace.lose(txn_id)
            self._destinations.pop(link, None)
        elif isinstance(link, SenderLink):
            consumer = self._consumers.pop(link, None)
            if consumer is not None:
                consumer.gone()
            self._replies = {name: reply for name, reply in self._replies.items() if reply is not link}

    # -- what comes
    def _transferred(self, event: Transferred) -> None:
        delivery = event.delivery
        octets, state = self._parts.pop(delivery, (bytearray(), None))
        octets += event.octets
        state = state or event.state
        if delivery.aborted:
            return
        if not delivery.complete:
            self._parts[delivery] = (octets, state)
            return

        link = delivery.link
        try:
            if link in self._declared:
                answer = self._command(link, delivery, bytes(octets))
            else:
                answer = self._message(link, bytes(octets), state)
        except Refused as refusal:
            answer = _rejected(refusal)
        delivery.update(answer, settled=True)
        if link.credit < CREDIT // 2:
            link.give_credit(CREDIT)

    def _command(self, link: ReceiverLink, delivery: IncomingDelivery, octets: bytes) -> bytes:
        if delivery.sent_settled:
            raise Refused(NOT_ALLOWED, "Messages on the control link must not be settled.")
        command = CONTROL.decode(body_value(octets))
        if isinstance(command, Declare):
            txn_id = next(_txn_ids).to_bytes(8, "big")
            self.namespace.declare(txn_id)
            self._declared[link].append(txn_id)
            return encode(Described(Ulong(DECLARED), [txn_id]))
        assert isinstance(command, Discharge)
        if command.txn_id in self._declared[link]:
            self._declared[link].remove(command.txn_id)
        self.namespace.discharge(command.txn_id, fail=bool(command.fail))
        return encode(Described(Ulong(ACCEPTED), []))

    def _message(self, link: ReceiverLink, octets: bytes, state: bytes | None) -> bytes:
        via, destination = self._destinations[link]
        if not destination:
            if state is not None:
                raise Refused(NOT_ALLOWED, MIXED)
            self._request(via, octets)
            return encode(Described(Ulong(ACCEPTED), []))
        if len(octets) > MAX_OCTETS:
            raise Refused("amqp:link:message-size-exceeded", f"The message has {len(octets)} octets.")
        to = read_destination(octets)[0] or ""
        txn_id, _ = _transactional(state)
        if txn_id is None:
            self.namespace.publish(destination, octets, to)
            return encode(Described(Ulong(ACCEPTED), []))
        self.namespace.send(txn_id, via, destination, octets, to)
        return _in_transaction(txn_id, ACCEPTED)

    # -- outcomes
    def _disposed(self, delivery: OutgoingDelivery, state: bytes | None, *, settled: bool) -> None:
        consumer = self._consumers.get(delivery.link)
        if consumer is None:
            delivery.settle()
            return
        try:
            answer = consumer.settle(delivery, state)
        except Refused as refusal:
            answer = _rejected(refusal)
        if settled or delivery.link.rcv_settle_mode != RECEIVER_SECOND:
            delivery.settle()
        else:
            delivery.update(answer, settled=True)

    # -- the management node
    def _request(self, address: str, octets: bytes) -> None:
        request = Message.from_octets(octets)
        entity = self.namespace.entity(address.removesuffix(MANAGEMENT))
        operation, asked = (request.properties or {}).get("operation"), request.body
        status, body = 200, {}
        if operation == "com.microsoft:peek-message":
            messages = [each for each in entity.messages if each.number >= asked["from-sequence-number"]]
            shown = messages[: min(asked["message-count"], 3)]  # it may show fewer than were asked for
            body = {"messages": [{"message": _with_number(each)} for each in shown]}
            status = 200 if shown else 204
        elif operation == "com.microsoft:enumerate-rules":
            body = {"rules": [{"rule-description": _rule(to)} for to in entity.rules]}
        else:
            status = 501

        reply = self._replies.get(request.reply_to or "")
        response = Message(body, correlation_id=request.id, properties={"statusCode": status})
        if reply is not None and reply.credit > 0:
            reply.send(b"\0\0\0\1", response.encode(), settled=True)


class Consumer:
    """A client's link from an entity."""

    def __init__(self, namespace: Namespace, link: SenderLink, entity: Entity) -> None:
        self._namespace = namespace
        self._link = link
        self._entity = entity
        self._locked: dict[OutgoingDelivery, tuple[Stored, int]] = {}
        self._told: list[tuple[Stored, int]] = []
        """What has an outcome in a transaction, and is locked until that commits."""

    def pump(self) -> None:
        """Sends what there is credit for."""
        link = self._link
        while link.attached and link.credit > 0:
            stored = self._namespace.receive(self._entity)
            if stored is None:
                break
            tag = stored.lock.to_bytes(16, "big")
            delivery = link.send(tag, _with_number(stored))
            self._locked[delivery] = (stored, stored.lock)
        if link.attached and link.drain:
            link.drained()

    def settle(self, delivery: OutgoingDelivery, state: bytes | None) -> bytes:
        """Carries out an outcome; the answer."""
        stored, lock = self._locked.pop(delivery)
        txn_id, code = _transactional(state)
        outcome = "deferred" if state is not None and state.endswith(DEFERS) else OUTCOMES.get(code, "released")
        if txn_id is None:
            self._namespace.settle(self._entity, stored, lock, outcome)
            return encode(Described(Ulong(code), []))
        self._namespace.complete(txn_id, self._entity, stored, lock, outcome)
        self._told.append((stored, lock))
        return _in_transaction(txn_id, code)

    def gone(self) -> None:
        """The link is gone."""
        for stored, lock in (*self._locked.values(), *self._told):
            self._namespace.lost_lock(self._entity, stored, lock)


def _transactional(state: bytes | None) -> tuple[bytes | None, int]:
    """The txn-id in a delivery state, None for none, and the outcome's code."""
    value: Any = decode(state) if state else None
    if not isinstance(value, Described):
        return None, RELEASED
    descriptor: Any = value.descriptor
    fields: Any = value.value
    code = int(descriptor)
    if code != TRANSACTIONAL:
        return None, code
    outcome: Any = fields[1] if len(fields) > 1 else None
    return bytes(fields[0]), int(outcome.descriptor) if outcome is not None else 0


def _in_transaction(txn_id: bytes, code: int) -> bytes:
    return encode(Described(Ulong(TRANSACTIONAL), [txn_id, Described(Ulong(code), [])]))


def _rejected(refusal: Refused) -> bytes:
    error = Described(Ulong(0x1D), [Symbol(refusal.condition), refusal.told])
    return encode(Described(Ulong(REJECTED), [error]))


def _with_number(stored: Stored) -> bytes:
    header = read_header(stored.octets)
    octets = with_header(stored.octets, header, delivery_count=stored.deliveries, ttl_ms=header.ttl_ms)
    return with_message_annotations(octets, {Symbol("x-opt-sequence-number"): Long(stored.number)})


def _rule(to: str | None) -> Any:
    chosen: Any = Described(Ulong(TRUE_FILTER), [])
    if to is not None:
        chosen = Described(Ulong(CORRELATION_FILTER), [None, None, to, None, None, None, None, None, {}])
    return Described(Ulong(RULE), [chosen, Described(Ulong(0x13700000005), []), "rule"])
