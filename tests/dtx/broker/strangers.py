"""This module has peers that send any frames they like, one by one, and reads the answers of the broker."""

from __future__ import annotations

from typing import Any

from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.messages import value_message
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.values import Array, Described, Symbol, Uint, Ulong
from dtx.broker.endpoint.connection import BrokerConnection
from tests.dtx.amqp.described import items_of, performative_at
from tests.dtx.broker.peer import World, flow, frame

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)

NOBODY = Identity("")


class Stranger:
    """A connection whose octets are made by hand."""

    def __init__(self, world: World, identity: Identity = NOBODY) -> None:
        self.world = world
        self.server = BrokerConnection(world.container, identity, "stranger")
        self.heard = b""

    def say(self, octets: bytes) -> None:
        """Sends octets, and lets the broker do what follows."""
        self.server.received(octets)
        self.listen()

    def listen(self) -> None:
        """Takes what the broker has to say."""
        moved = True
        while moved:
            moved = False
            while said := self.server.output():
                self.heard += said
                moved = True
            for connection in self.world.container.take_wanting():
                connection.go_on()
                moved = True
            moved |= self.world.container.go_on()
            while self.world.jobs:
                self.world.jobs.popleft()()
                moved = True

    def greet(self, sessions: int = 1, container: str = "stranger") -> None:
        """Header, open, and sessions."""
        self.say(AMQP_HEADER + frame(OPEN, [container, None, Uint(65_536), None]))
        for channel in range(sessions):
            self.say(frame(BEGIN, [None, Uint(0), Uint(2048), Uint(2048)], channel=channel))

    def attach(self, handle: int, target: Any = None, source: Any = None, *, receiver: bool = False) -> None:
        """Attaches a link; the other terminus is empty."""
        self.say(frame(ATTACH, attach_fields(target, source, handle, receiver=receiver)))

    def transfer(self, handle: int, number: int, payload: bytes, *, settled: bool | None = None) -> None:
        """Sends a message."""
        fields = [Uint(handle), Uint(number), number.to_bytes(4, "big"), Uint(0), settled]
        self.say(frame(TRANSFER, fields, payload))

    def told(self) -> list[tuple[int, int, list[Any]]]:
        """Channel, descriptor and fields of the performatives that the broker said since the last call."""
        said, self.heard = self.heard, b""
        at = len(AMQP_HEADER) if said.startswith(AMQP_HEADER) else 0  # a refused header is answered by nothing else
        found = []
        while at < len(said):
            size, channel = int.from_bytes(said[at : at + 4], "big"), int.from_bytes(said[at + 6 : at + 8], "big")
            if size > 8:
                code, fields, _ = performative_at(said, at + 8, at + size)
                found.append((channel, code, fields))
            at += size
        return found

    def leave(self) -> None:
        """Is gone, without a word."""
        self.server.lost()
        self.listen()


def attach_fields(target: Any = None, source: Any = None, handle: int = 0, *, receiver: bool = False) -> list[Any]:
    """The fields of an attach; a terminus that is not given is empty."""
    source = source if source is not None else Described(Ulong(0x28), [])
    target = target if target is not None else Described(Ulong(0x29), [])
    count = None if receiver else Uint(0)
    return [f"link-{handle}", Uint(handle), receiver, None, None, source, target, None, None, count]


def node(address: str | None) -> Described:
    """A target with an address."""
    return Described(Ulong(0x29), [address])


def coordinator(*capabilities: str) -> Described:
    """The target of a control link."""
    return Described(Ulong(0x30), [Array(map(Symbol, capabilities))])


Told = list[tuple[int, int, list[Any]]]


def closed_with(told: Told, code: int = CLOSE) -> str:
    """The condition in the close (or detach, or end) that the broker sent; empty when there is none."""
    for _, said, fields in told:
        if said == code:
            error = fields[-1] if fields else None
            return str(items_of(error)[0]) if isinstance(error, Described) else "without an error"
    return ""


def said(told: Told, code: int) -> list[list[Any]]:
    """The fields of each performative of a kind."""
    return [fields for _, one, fields in told if one == code]


def connected(world: World, user: str = "", container: str = "") -> Stranger:
    """A peer with one session."""
    stranger = Stranger(world, Identity(user))
    stranger.greet(container=container or f"stranger-{id(stranger)}")
    stranger.told()
    return stranger


SELECTOR = Symbol("apache.org:selector-filter:string")


def selecting(text: str) -> dict[Symbol, Described]:
    """The filters of a source with a selector."""
    return {Symbol("s"): Described(SELECTOR, text)}


def source(address: str | None = "q", **fields: Any) -> Described:
    """A source: `mode`, `filters`, `dynamic`, `capabilities`, `durable`, `default_outcome`, `outcomes`."""
    names = "durable expiry timeout dynamic properties mode filters default_outcome outcomes capabilities"
    return Described(Ulong(0x28), [address, *map(fields.get, names.split())])


def attach_answer(told: Told) -> list[Any]:
    """The fields of the one attach that the broker said, all fourteen."""
    (fields,) = said(told, ATTACH)
    return [*fields, *[None] * (14 - len(fields))]


def terminus(value: Any) -> list[Any]:
    return [*value.value, *[None] * (11 - len(value.value))]


def consumer(world: World, address: str | None = "q", *, credit: int = 0, **asked: Any) -> tuple[Stranger, list[Any]]:
    """A stranger with a link 0 that receives, and its source as the broker answers it."""
    stranger = connected(world)
    stranger.attach(0, source=source(address, **asked), receiver=True)
    answer = terminus(attach_answer(stranger.told())[5])
    if credit:
        stranger.say(flow(0, 0, credit, None))
        world.pump()
        stranger.listen()
    return stranger, answer


def message(body: str, **properties: Any) -> bytes:
    """A message with application properties."""
    return encode(Described(Ulong(0x74), dict(properties.items()))) + value_message(encode(body))


def received(stranger: Stranger) -> list[str]:
    """The bodies of the messages that came, as they stand at the end of their frames."""
    heard, stranger.heard = stranger.heard, b""
    found, at = [], 0
    while at < len(heard):
        size = int.from_bytes(heard[at : at + 4], "big")
        one = heard[at : at + size]
        if one[10:11] == b"\x14":
            found.append(str(decode(one[one.rindex(b"\x00\x53\x77") + 3 :])))
        at += size
    return found


def serves(world: World) -> None:
    """The broker works for others: a message goes in under a transaction, and comes out again."""
    peer = world.connect()
    try:
        control = peer.coordinator()
        txn_id = control.declare()
        peer.post(peer.sender("others"), "still here", txn_id)
        control.discharge(txn_id)
        receiver = peer.receiver("others", 10)
        assert "still here" in peer.bodies(receiver)
    finally:
        peer.vanish()
        world.peers.remove(peer)
