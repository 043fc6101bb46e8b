"""This is a network in memory between clients and a broker's container. It carries frames one by one, on a clock of its
own. A fault can happen at each boundary: before a connection is made, before a frame crosses, or before the store
forces something.

The clients' shells are the real ones: they have an `End` where they would have a socket, and wait for it as they would
wait for a socket, on a thread or in an event loop (`tests.rm_amqp.event_loop`).
"""

from __future__ import annotations

import math
import select
import socket
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, Final, cast
from zlib import crc32

from dtx.amqp.sasl import SaslServer, ServerPolicy
from dtx.amqp.sasl.mechanisms import Identity
from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.container import Container
from dtx.broker.endpoint.connection import BrokerConnection
from dtx.broker.settings import Settings
from dtx.store.contract import StoreError
from dtx.store.memory import Disk, MemoryStore
from rm_amqp import AmqpResource, DecidingBroker, Environment
from rm_amqp.connection.connector import connect
from rm_amqp.errors import unreachable
from rm_amqp.settings import Broker
from tests.rm_amqp.service_bus.peer import ServiceBusConnection
from tests.simulation.seeds import EVERY_POINT
from xa import TMUSEASYNC, Registrar
from xa.keep_alive import Maintained

Served = BrokerConnection | ServiceBusConnection


class Kind(Enum):
    """What happens at a boundary."""

    CUT = "the connection is cut, and both sides hear it"
    LATE = "the frame, and what follows it, comes later than anybody has patience for"
    SLOW = "the frame, and what follows it, comes late"
    CRASH = "the broker crashes, and starts again from what was forced"
    MOVE = "the broker crashes, and is away for a while; then it is on the other host"
    CANCEL = "the application's task is cancelled"
    STILL = "the client's process stands still for longer than it is patient, and nothing is lost"


DELAYS_S: Final = {Kind.LATE: 60.0, Kind.SLOW: 5.0}
STILL_S: Final = 25.0
HELD_S: Final = 1000.0
MOST: Final = 1000
AWAY_S: Final = 15.0
HOSTS: Final = ("here", "there")


def boundaries(kind: Kind, *case: object, one_in: int = 9, each_from: int = MOST) -> list[int]:
    """Where a fault of this kind strikes, one boundary after the other: at all with XABRIDGE_POINTS=all, else at one in
    so many, and at each from some boundary on. Each case of a test begins somewhere else, so that together they strike
    everywhere."""
    step = 1 if EVERY_POINT else one_in
    first = crc32(repr((kind.name, *case)).encode()) % step
    return [at for at in range(1, MOST) if at >= each_from or at % step == first]


class Way:
    """One direction of a connection: its frames on their way."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.released_s = 0.0
        self.fin = False
        self._part = b""

    def put(self, octets: bytes) -> None:
        """Cuts octets into frames."""
        self._part += octets
        while len(self._part) >= 8:
            size = 8 if self._part.startswith(b"AMQP") else int.from_bytes(self._part[:4], "big")
            if len(self._part) < size:
                return
            self.frames.append(self._part[:size])
            self._part = self._part[size:]


class End:
    """The client's end of a connection: a socket, as far as a connection has need of one."""

    def __init__(self, number: int, peer: Peer, takes: int) -> None:
        self.peer = peer
        self.full = False
        """Whether it takes nothing before something has moved."""
        self._number = number
        self._takes = takes
        self._inbox = b""
        self._open = True
        self._shut = False

    # -- the client's
    def setblocking(self, _flag: object) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        return self._number if self._open else -1

    def send(self, octets: bytes) -> int:
        if not self._open or self.peer.down.fin:
            raise ConnectionResetError(104, "connection reset by peer")
        if self.full:
            raise BlockingIOError
        self.full = len(octets) > self._takes
        self.peer.up.put(octets[: self._takes])
        return min(len(octets), self._takes)

    def recv(self, size: int) -> bytes:
        if not self.readable:
            raise BlockingIOError
        octets, self._inbox = self._inbox[:size], self._inbox[size:]
        return octets

    def shutdown(self, _how: object) -> None:
        self._shut = True
        self.peer.up.fin = True
        self.peer.down.frames.clear()

    def close(self) -> None:
        self.shutdown(None)
        self._open = False

    # -- the network's
    @property
    def readable(self) -> bool:
        """Whether there is something to read, or nothing any more."""
        down = self.peer.down
        return bool(self._inbox) or self._shut or (down.fin and not down.frames)

    def arrives(self, frame: bytes) -> None:
        """A frame has crossed."""
        if self._open:
            self._inbox += frame


class Poll:
    """Waits for an end, as select.poll waits for a socket."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._end: End
        self._writes = False

    def register(self, end: Any, mask: int) -> None:
        self._end, self._writes = end, bool(mask & select.POLLOUT)

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        end, network = self._end, self._network
        network.wait(lambda: end.readable or (self._writes and not end.full), network.now + timeout_ms / 1000)
        return [(end.fileno(), select.POLLIN)] if end.readable or (self._writes and not end.full) else []


class Peer:
    """The broker's end of a connection."""

    def __init__(self, network: Network) -> None:
        self.up, self.down = Way(), Way()
        self._network = network
        self._sasl: SaslServer | None = SaslServer(network.policy, encrypted=False, certified=None, nonce=network.nonce)
        self.connection: Served | None = None

    def arrives(self, frame: bytes) -> None:
        """A frame has crossed."""
        if self._sasl is not None:
            self._sasl.feed(frame)
            self.down.put(self._sasl.output())
            if self._sasl.done and self._sasl.identity is not None:
                self.connection = self._network.serve(self._sasl.identity)
                rest, self._sasl = self._sasl.rest, None
                if rest:
                    self.connection.received(rest)
        elif self.connection is not None:
            self.connection.received(frame)

    def says(self) -> None:
        """Takes what the broker has to say."""
        connection = self.connection
        if connection is None or self.down.fin:
            return
        while octets := connection.output():
            self.down.put(octets)
        self.down.fin = connection.closed

    def cut(self) -> None:
        """There is no connection any more; both sides hear it."""
        self.up, self.down = Way(), Way()
        self.up.fin = self.down.fin = True


class Network:
    """The network, and the broker that it leads to. An end takes no more than `takes` octets at a time."""

    policy = ServerPolicy(None, anonymous=True)
    address = HOSTS[0]

    def __init__(self, takes: int = 1 << 30) -> None:
        self.now = 1_000_000.0
        self.takes = takes
        self.disk = Disk()
        self.ends: list[End] = []
        self.host = HOSTS[0]
        self.boundaries = 0
        self.faults: dict[int, Kind] = {}
        """By the number of the boundary."""
        self.still_s = 0.0
        """How long the client's process has stood still."""

        self.cancel: Callable[[], object] = bool
        """Cancels the application's task."""
        self._away_until_s = 0.0
        self._maintained: dict[Maintained, float] = {}
        self._tick_at_s = 0.0
        self._numbers = count(1_000_000)
        self._nonces = count()
        self._jobs: deque[Callable[[], None]] = deque()
        self.container: Container
        self.start_broker()

    # -- surroundings
    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        """Meanwhile the rest goes on."""
        self.wait(lambda: False, self.now + seconds)

    def nonce(self, octets: int) -> bytes:
        return next(self._nonces).to_bytes(octets, "big")

    def maintain(self, maintained: Maintained) -> None:
        """Maintains this, as rm_amqp's thread does."""
        self._maintained[maintained] = 0.0

    def resource(self, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> AmqpResource:
        """A resource manager on this network."""
        return AmqpResource(registrar, flags, self._environment())

    def decider(self, registrar: Registrar | None = None) -> DecidingBroker:
        """The same, as the one that decides."""
        return DecidingBroker(registrar, self.monotonic, self._environment())

    def _environment(self) -> Environment:
        connected = partial(
            connect, clock=self.monotonic, reach=self._reach, make_poll=lambda: Poll(self), maintain=self.maintain
        )
        return Environment(connected, self.monotonic, self.sleep, self.nonce, self.maintain)

    def _reach(self, broker: Broker, _deadline: float, _clock: object) -> socket.socket:
        if self.now < self._away_until_s or broker.host != self.host:
            raise unreachable(broker, "connection refused")
        peer = Peer(self)
        end = End(next(self._numbers), peer, self.takes)
        self.ends.append(end)
        if self._strikes(peer, peer.up) and end.readable:
            self.ends.remove(end)
            raise unreachable(broker, "connection refused")
        return cast("socket.socket", end)

    # -- the broker
    def start_broker(self) -> None:
        self._jobs.clear()
        permissions = Permissions({"anonymous": EVERYTHING, "*": EVERYTHING})
        self.container = Container(
            MemoryStore(self.disk, self._jobs.append), self, Settings(), permissions, self._store_stopped
        )
        self.container.open()
        while self._jobs:
            self._jobs.popleft()()

    def serve(self, identity: Identity) -> Served:
        """The broker's side of a new connection."""
        return BrokerConnection(self.container, identity, "memory")

    def broker_turn(self) -> None:
        """The broker does what it has to do."""
        for connection in self.container.take_wanting():
            connection.go_on()
        self.container.resource.settle()
        self.container.take_touched()

    def broker_tick(self) -> float:
        """Time passes for the broker; in how many seconds it wants to be called again."""
        return self.container.resource.tick()

    @staticmethod
    def _store_stopped(error: StoreError) -> None:
        raise AssertionError(error)

    def hold(self) -> None:
        """What either side sends over the connections that there are does not arrive any more."""
        for end in self.ends:
            end.peer.up.released_s = end.peer.down.released_s = self.now + HELD_S

    def let_go(self) -> None:
        """These connections are cut."""
        for end in self.ends:
            if end.peer.up.released_s > self.now:
                end.peer.cut()

    def _crash(self) -> None:
        for end in self.ends:
            end.peer.connection = None
            end.peer.cut()
        self.start_broker()

    # -- time
    def wait(self, ready: Callable[[], bool], deadline: float) -> None:
        """Until it is ready, or the time has come."""
        while not ready():
            if self._pump():
                continue
            if self.now >= deadline:
                return
            self._pass(deadline)

    def _pass(self, until: float) -> None:
        """Time passes, until something is due."""
        ways = [way for end in self.ends for way in (end.peer.up, end.peer.down)]
        due = [way.released_s for way in ways if way.frames and way.released_s > self.now]
        due += [when for when in self._maintained.values() if when > self.now]
        assert until < math.inf or due, "nothing will ever happen"
        if self.ends:
            due.append(self._tick_at_s)
        self.now = max(self.now, min([until, *due]))
        for maintained, when in tuple(self._maintained.items()):
            if when <= self.now:
                again = maintained.maintain()
                if again is None:
                    del self._maintained[maintained]
                else:
                    self._maintained[maintained] = max(again, self.now + 0.02)

        if self._tick_at_s <= self.now:
            self._tick_at_s = self.now + max(self.broker_tick(), 0.01)
            for end in self.ends:
                if end.peer.connection is not None:
                    end.peer.connection.tick(int(self.now * 1000), 0)

    # -- frames
    def _pump(self) -> bool:
        """What can happen now; whether anything did."""
        moved = False
        for end in tuple(self.ends):
            moved |= end.full
            end.full = False
            peer = end.peer
            moved |= self._cross(peer, peer.up, peer.arrives)
            connection = peer.connection
            if peer.up.fin and not peer.up.frames and connection is not None:
                peer.connection = None
                connection.lost()
                moved = True

        if self._jobs:
            moved = True
            if not self._strikes(None, None):
                self._jobs.popleft()()
        self.broker_turn()
        for end in tuple(self.ends):
            end.peer.says()
            moved |= self._cross(end.peer, end.peer.down, end.arrives)
        self.ends = [end for end in self.ends if end.peer.connection or end.fileno() >= 0 or end.peer.up.frames]
        return moved

    def _cross(self, peer: Peer, way: Way, arrives: Callable[[bytes], None]) -> bool:
        moved = False
        while way.frames and way.released_s <= self.now:
            moved = True
            if self._strikes(peer, way):
                break
            arrives(way.frames.popleft())
        return moved

    def _strikes(self, peer: Peer | None, way: Way | None) -> bool:
        """Whether a fault strikes at this boundary."""
        self.boundaries += 1
        kind = self.faults.pop(self.boundaries, None)
        if kind is None:
            return False
        if kind is Kind.CANCEL:
            self.cancel()
            return False
        if kind is Kind.STILL:
            self.now += STILL_S
            self.still_s += STILL_S
            return False
        if kind in {Kind.CRASH, Kind.MOVE}:
            self._crash()
            if kind is Kind.MOVE:
                self.host = HOSTS[1 - HOSTS.index(self.host)]
                self._away_until_s = self.now + AWAY_S
            return True
        if peer is None or way is None:  # only a crash happens to a store
            return False

        if kind is Kind.CUT:
            peer.cut()
        else:
            way.released_s = self.now + DELAYS_S[kind]
        return True
