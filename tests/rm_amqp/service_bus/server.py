"""This module runs a simulated Service Bus over sockets, in a thread of the test, for clients in threads and processes,
and at the end of the network in memory of `tests.rm_amqp.network`.

The namespace outlives its connections: `cut` is what the service does when it moves a namespace to another machine.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from dtx.amqp.sasl import SaslServer, ServerPolicy
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier
from tests.rm_amqp.network import Network, Served
from tests.rm_amqp.service_bus.namespace import Namespace
from tests.rm_amqp.service_bus.peer import ANONYMOUS, ServiceBusConnection

T = TypeVar("T")
TOPIC: Final = "shop"
KEY_NAME: Final = "send-and-listen"
KEY: Final = "c2VjcmV0IGtleQ=="
TURN_S: Final = 0.02


class Keys:
    """The shared access keys of the namespace."""

    def __init__(self) -> None:
        self._verifier = Verifier.of(KEY, b"salt of the key!", 4096)

    def verifiers(self, user: str) -> tuple[Verifier, ...]:
        """The verifier of a key by its name."""
        return (self._verifier,) if user == KEY_NAME else ()

    def decoy(self, _user: str) -> Verifier:
        """One that accepts nothing."""
        return Verifier.of(os.urandom(8).hex(), b"salt of nobody!!", 4096)

    def remembered(self, _user: str, _password: str) -> Verifier | None:
        """Every password is computed."""
        return None

    def remember(self, _user: str, _verifier: Verifier, _password: str) -> None:
        """Nothing is remembered."""


class ServiceBusServer:
    """A namespace that listens. Everything happens in one thread."""

    def __init__(self, *, lock_s: float = 30.0, tier: str = "standard") -> None:
        self.namespace = Namespace(time.monotonic, lock_s=lock_s, tier=tier)
        self.namespace.drops_locks = True
        self.namespace.topic(TOPIC)
        self._policy = ServerPolicy(Keys(), anonymous=True, external=False, scram=False, plain_without_tls=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._clients: dict[socket.socket, _Client] = {}
        self._gone: list[socket.socket] = []
        """Connections that are over, whose sockets the thread closes."""
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="service bus", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """host:port."""
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def open_string(self, options: str = "") -> str:
        """How a client opens it as the decider."""
        return f"decider+amqp://{KEY_NAME}:{KEY}@{self.address}/?plain_without_tls=true&topic={TOPIC}{options}"

    def inside(self, call: Callable[[Namespace], T]) -> T:
        """What a call returns while nothing else happens."""
        with self._lock:
            return call(self.namespace)

    def tokens(self, name: str, slots: int) -> None:
        """Makes the subscriptions for tokens, as an operator does."""
        self.subscriptions(name, *(f"{name}.{slot}" for slot in range(slots + 1)))

    def subscriptions(self, *names: str) -> None:
        """Makes subscriptions, each with a rule for its own name."""
        self.inside(lambda namespace: [namespace.subscription(TOPIC, name) for name in names])

    def cut(self, chosen: Callable[[str], bool] = lambda _: True) -> None:
        """Drops the connections whose container is chosen."""
        with self._lock:
            for connected, client in tuple(self._clients.items()):
                if client.connection is not None and chosen(client.connection.container):
                    self._drop(connected)

    def stop(self) -> None:
        """Every connection is closed when this returns."""
        self._stopping = True
        self._thread.join(20)
        for connected in tuple(self._clients):
            self._drop(connected)
        self._close_gone()
        self._listening.close()

    # -- its thread
    def _serve(self) -> None:
        while not self._stopping:
            readable, _, _ = select.select([self._listening, *self._clients], [], [], TURN_S)
            with self._lock:
                self._close_gone()
                for one in readable:
                    if one is self._listening:
                        connected, _ = one.accept()
                        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        self._clients[connected] = _Client(self.namespace, self._policy)
                    elif one in self._clients:
                        self._receive(one)
                for connected, client in tuple(self._clients.items()):
                    self._send(connected, client)

    def _receive(self, connected: socket.socket) -> None:
        try:
            octets = connected.recv(65_536)
        except OSError:
            octets = b""
        if octets:
            self._clients[connected].received(octets)
        else:
            self._drop(connected)

    def _send(self, connected: socket.socket, client: _Client) -> None:
        try:
            if octets := client.output():
                connected.sendall(octets)
        except OSError:
            self._drop(connected)
            return
        if client.closed:
            self._drop(connected)

    def _drop(self, connected: socket.socket) -> None:
        client = self._clients.pop(connected, None)
        if client is not None and client.connection is not None:
            client.connection.lost()
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
        self._gone.append(connected)

    def _close_gone(self) -> None:
        while self._gone:
            self._gone.pop().close()


class _Client:
    """One connection: SASL first."""

    def __init__(self, namespace: Namespace, policy: ServerPolicy) -> None:
        self._namespace = namespace
        self._sasl: SaslServer | None = SaslServer(policy, encrypted=False, certified=None, nonce=os.urandom)
        self._said = b""
        self.connection: ServiceBusConnection | None = None

    def received(self, octets: bytes) -> None:
        """Takes what the client sent."""
        sasl = self._sasl
        if sasl is not None:
            sasl.feed(octets)
            while sasl.computation is not None:
                sasl.computed(sasl.computation())
            self._said += sasl.output()
            if not sasl.done or sasl.identity is None:
                return
            self._sasl, octets = None, sasl.rest
            self.connection = ServiceBusConnection(self._namespace, sasl.identity.name or ANONYMOUS)
        if self.connection is not None and octets:
            self.connection.received(octets)

    def output(self) -> bytes:
        """What is to be sent."""
        said, self._said = self._said, b""
        return said + (self.connection.output() if self.connection is not None else b"")

    @property
    def closed(self) -> bool:
        """Whether there is nothing more to say."""
        return self._sasl.failed if self._sasl is not None else bool(self.connection and self.connection.closed)


def tokens(namespace: Namespace, name: str, slots: int) -> None:
    """Makes the subscriptions for tokens, as an operator does."""
    for each in (name, *(f"{name}.{slot}" for slot in range(slots + 1))):
        namespace.subscription(TOPIC, each)


def shop_network() -> ServiceBusNetwork:
    """A network to the topic shop, with the subscriptions x and y, and with subscriptions for tokens of one slot."""
    network = ServiceBusNetwork()
    for name in ("xabridge.tokens", "onlookers"):
        tokens(network.namespace, name, 1)
    for name in ("x", "y"):
        network.namespace.subscription(TOPIC, name)
    return network


class ServiceBusNetwork(Network):
    """A network with one namespace. Every client may use it."""

    def __init__(self) -> None:
        self.namespace = Namespace(self.monotonic)
        self.namespace.topic(TOPIC)
        super().__init__()

    def start_broker(self) -> None:
        """The gateway is there again; the namespace was there all the time."""

    def serve(self, identity: Identity) -> Served:
        return ServiceBusConnection(self.namespace, identity.name or "by the network")

    def broker_turn(self) -> None:
        """It does everything when it is asked to."""

    def broker_tick(self) -> float:
        return 1.0

    def _crash(self) -> None:
        for end in self.ends:
            if end.peer.connection is not None:
                end.peer.connection.lost()
        super()._crash()
