"""This module has what tests of the deciding broker need: clients whose network fails at a discharge, and a view of the
tokens.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any, Protocol

from rm_amqp import DecidingBroker, Environment, Message
from rm_amqp.connection.connection import SocketConnection
from rm_amqp.connection.endpoint import Endpoint, wait_until_open
from rm_amqp.decider.tokens import FoundingMessage, Token
from rm_amqp.settings import Broker, Settings
from tests.java_process import JavaProcess
from tests.rm_amqp import client as steps
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.network import Network
from xa import Code, DecidingResource, Registrar, ResourceManager, Xid
from xabridge.testing.contract.client import RMID, ScriptedRegistrar
from xabridge.testing.contract.deciding import Decider
from xabridge.testing.contract.harness import Capabilities, DeciderHarness

DISCHARGE = b"\x00\x53\x32"
DECLARE = b"\x00\x53\x31"
PATIENCE_S = 30


class Listening(Protocol):
    """A broker that can be reached."""

    @property
    def address(self) -> str:
        """host:port."""
        ...


class Weather:
    """What becomes of the next message that has `sign` in it: with `before` it is not sent any more, otherwise its
    answer does not come; both times the connection is gone. `sent` is all that was sent."""

    def __init__(self) -> None:
        self.sign = b""
        self.before = True
        self.meanwhile: Callable[[], object] | None = None
        self.sent = bytearray()

    def strike(self, sign: bytes, *, before: bool) -> None:
        """The next one."""
        self.sign, self.before = sign, before

    def pause(self, sign: bytes, meanwhile: Callable[[], object]) -> None:
        """Before the next one is sent, that happens, and nothing is lost."""
        self.sign, self.meanwhile = sign, meanwhile


class FaultySocket:
    """A socket in this weather."""

    def __init__(self, connected: socket.socket, weather: Weather) -> None:
        self._socket = connected
        self._weather = weather
        self._deaf = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, octets: bytes) -> int:
        weather = self._weather
        if weather.sign and weather.sign in bytes(octets):
            weather.sign = b""
            meanwhile, weather.meanwhile = weather.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            elif weather.before:
                self._lost()
            else:
                self._deaf = True
        weather.sent += octets
        return self._socket.send(octets)

    def recv(self, size: int) -> bytes:
        octets = self._socket.recv(size)
        if self._deaf and octets:
            self._lost()
        return octets

    def _lost(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError("the test wants it")


def connecting(weather: Weather) -> Callable[[Settings, float, Callable[[Broker], Endpoint]], SocketConnection]:
    """What makes connections in this weather."""

    def connect(settings: Settings, deadline: float, make_endpoint: Callable[[Broker], Endpoint]) -> SocketConnection:
        broker = settings.brokers[0]
        plain = socket.create_connection((broker.host, broker.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected: Any = FaultySocket(plain, weather)
        connection = SocketConnection(connected, make_endpoint(broker))
        try:
            connection.run(wait_until_open(connection.endpoint, deadline))
        except BaseException:
            connection.drop()
            raise
        return connection

    return connect


class DecidingBrokerHarness(DeciderHarness):
    """One broker for the module; each test has queues, and so a place of decisions, of its own."""

    wrong_open_string = "decider+amqp://127.0.0.1:5672/?colour=red"
    capabilities = Capabilities(
        branches_shared=False, heuristics=False, votes_read_only=False, expires=False, unreachable=False
    )

    def __init__(self, broker: Listening, name: str, options: str = "", slots: int = 8) -> None:
        self.broker = broker
        self.slots = slots
        self.queue = f"keys-{name}"
        self.tokens = f"tokens-{name}"
        self.open_string = (
            f"decider+amqp://{broker.address}/?timeout=20&token_queue={self.tokens}&slots={slots}{options}"
        )
        self.weather: dict[DecidingBroker, Weather] = {}
        self._somebody: DecidingBroker | None = None

    def new(self, registrar: Registrar | None = None) -> DecidingBroker:
        weather = Weather()
        client = DecidingBroker(registrar or ScriptedRegistrar(), environment=Environment(connect=connecting(weather)))
        self.weather[client] = weather
        return client

    def opened(self) -> DecidingBroker:
        """A client, opened."""
        rm = self.new()
        rm.open(self.open_string, RMID)
        return rm

    def using(self, rm: DecidingBroker) -> Decider:
        """The contract suite's client around one that is open."""
        client = Decider(self, opened=False)
        client.rm = rm
        return client

    def stranger(self) -> DecidingBroker:
        """A client that has nothing to do with the others; not yet opened."""
        return DecidingBroker()

    @contextmanager
    def somebody(self) -> Iterator[DecidingBroker]:
        """The same, opened; it stays open until the end."""
        if self._somebody is None:
            self._somebody = self.stranger()
        self._somebody.open(f"amqp://{self.broker.address}/?token_queue=onlookers&slots=1", steps.RMID)
        yield self._somebody

    def alien(self, queue: str, *messages: Message) -> None:
        """Somebody sends these."""
        with self.somebody() as other:
            steps.put(other, queue, messages)

    def take(self, queue: str) -> Message:
        """Somebody takes a message away."""
        with self.somebody() as other, steps.transaction(other) as session:
            message: Message = session.receive(queue, 5)
        return message

    def queue_of(self, gtrid: bytes) -> str:
        """Where the token of a transaction is."""
        return f"{self.tokens}.{FoundingMessage(bytes(8), self.slots).slot_of(gtrid)}"

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).send(self.queue, Message(key))

    def read(self, rm: ResourceManager, rmid: int) -> None:
        list(rm.session(rmid).browse(self.queue))

    def committed(self) -> AbstractSet[str]:
        return {str(body) for body in self.bodies(self.queue)}

    def bodies(self, queue: str) -> list[object]:
        """The messages of a queue, as the broker has them."""
        return self.every([queue])[0]

    def every(self, queues: Sequence[str]) -> list[list[object]]:
        """The same of several queues."""
        with self.somebody() as other:
            return [list(steps.look(other, queue)) for queue in queues]

    def token(self, slot: int) -> Token:
        """The only message of a slot's queue."""
        (body,) = self.bodies(f"{self.tokens}.{slot}")
        return Token.decode(body)

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        assert isinstance(self.broker, EmbeddedBroker)
        self.broker.cut(rm.container)

    def disconnect(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        assert isinstance(self.broker, EmbeddedBroker)
        self.broker.cut(rm.container)

    def lose_decide(self, rm: DecidingResource, xid: Xid, rmid: int, record: bytes, *, before: bool) -> Code:
        assert isinstance(rm, DecidingBroker)
        self.weather[rm].strike(DISCHARGE, before=before)
        return rm.decide(xid, rmid, record)

    def narrow(self) -> None:
        self.open_string = self.open_string.replace("timeout=20", "timeout=1.5&channels=1")

    def left(self) -> list[str]:
        """What is left at the broker of transactions and locks."""
        assert isinstance(self.broker, EmbeddedBroker)
        return self.broker.left()

    def leaks(self) -> list[str]:
        left = self.left()
        for (body,) in self.every([f"{self.tokens}.{slot}" for slot in range(self.slots)]):
            token = Token.decode(body)
            left += [f"decision of {gtrid!r} in slot {token.slot}" for gtrid, _ in token.decided]
            left += [f"fence of {gtrid!r} in slot {token.slot}" for gtrid, _ in token.fenced]
        return left

    def close(self) -> None:
        for client in (*self.weather, self._somebody):
            if client is not None:
                client.drop()


class ForeignHarness(DecidingBrokerHarness):
    """The same over a broker of another project, as far as one can look into that."""

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, DecidingBroker)
        rm.drop()

    def left(self) -> list[str]:
        return []

    def restart(self) -> None:
        """It is killed, and starts again."""
        assert isinstance(self.broker, JavaProcess)
        self.broker.kill()
        self.broker.start()


class NetworkHarness(DecidingBrokerHarness):
    """The same over a network in memory, on its clock."""

    def __init__(self, network: Network, name: str, options: str = "", slots: int = 8) -> None:
        super().__init__(network, name, options, slots)
        self.network = network
        self.clients: list[DecidingBroker] = []

    def new(self, registrar: Registrar | None = None) -> DecidingBroker:
        self.clients.append(self.network.decider(registrar))
        return self.clients[-1]

    def stranger(self) -> DecidingBroker:
        return self.network.decider()

    def close(self) -> None:
        super().close()
        for client in self.clients:
            client.drop()
