"""A network in memory between clients and a broker's node: what is sent crosses it frame by frame, on a clock of its
own, and at one boundary, before a frame crosses or the store forces something, a fault strikes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from dtx.protocol.sasl import SaslServer, ServerPolicy
from dtx.resource.connection import BrokerConnection
from dtx.resource.node import Node
from dtx.resource.permissions import EVERYTHING, Permissions
from dtx.resource.settings import Settings
from dtx.store.memory import Disk, MemoryStore
from rm_amqp import AmqpResource, DecidingBroker
from rm_amqp.core import established
from rm_amqp.loss import Cause
from xa import TMUSEASYNC

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.store.contract import StoreError
    from rm_amqp.core import Core, Steps
    from rm_amqp.settings import Broker
    from rm_amqp.settings import Settings as ClientSettings
    from xa import Registrar

T = TypeVar("T")


class Kind(Enum):
    """What happens at a boundary."""

    CUT = "the connection is cut, and both sides hear it"
    LATE = "the frame, and what follows it, comes later than anybody has patience for"
    SLOW = "the frame, and what follows it, comes late"
    CRASH = "the broker crashes, and starts again from what was forced"


DELAYS_S = {Kind.LATE: 100.0, Kind.SLOW: 5.0}


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` at the boundary with this number."""

    kind: Kind
    at: int


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


class MemoryLine:
    """A line that crosses the network; as `rm_amqp.line.Line` says."""

    def __init__(self, network: Network, core: Core) -> None:
        self.core = core
        self.round_trips = 0
        self.up, self.down = Way(), Way()
        self.dropped = False
        self._network = network
        self._sasl: SaslServer | None = SaslServer(
            ServerPolicy(None, anonymous=True), encrypted=False, certified=None, nonce=network.nonce
        )
        self.connection: BrokerConnection | None = None

    # -- the client's side
    def run(self, steps: Steps[T], *, later: bool = False) -> T:
        try:
            deadline = next(steps)
            while True:
                self._network.wait(deadline)
                deadline = next(steps)
        except StopIteration as end:
            if not later:
                self.collect()
            result: T = end.value
            return result

    def refresh(self) -> None:
        self.collect()

    def close(self) -> None:
        self.drop()

    def drop(self) -> None:
        if not self.dropped:
            self.collect()
            self.dropped = self.up.fin = True
            self.down.frames.clear()
            self.core.lose("it was closed", Cause.CLOSED)

    def begin(self, steps: Steps[T], *, later: bool = False) -> Any:
        raise NotImplementedError("asyncio is not simulated")

    def resume(self, running: Any) -> None:
        raise NotImplementedError("asyncio is not simulated")

    def cancel(self, running: Any) -> None:
        raise NotImplementedError("asyncio is not simulated")

    def fileno(self) -> int:
        return -1

    # -- the network's
    def collect(self) -> None:
        """Takes what the client has to say."""
        if not self.dropped and self.core.lost is None:
            self.up.put(self.core.output())

    def deliver_up(self, frame: bytes) -> None:
        if self._sasl is not None:
            self._sasl.feed(frame)
            self.down.put(self._sasl.output())
            if self._sasl.done and self._sasl.identity is not None:
                self.connection = BrokerConnection(self._network.node, self._sasl.identity, "memory")
                rest, self._sasl = self._sasl.rest, None
                if rest:
                    self.connection.received(rest)
        elif self.connection is not None:
            self.connection.received(frame)

    def said(self) -> None:
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
    """The network, and the broker that it leads to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.disk = Disk()
        self.lines: list[MemoryLine] = []
        self.boundaries = 0
        self.fault: Fault | None = None
        self._nonces = count()
        self._jobs: deque[Callable[[], None]] = deque()
        self.node: Node
        self.start_broker()

    # -- surroundings
    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def nonce(self, octets: int) -> bytes:
        return next(self._nonces).to_bytes(octets, "big")

    def resource(self, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> AmqpResource:
        """A resource manager on this network."""
        return AmqpResource(
            registrar,
            flags,
            connect=self.connect,
            clock=self.monotonic,
            sleep=self.sleep,
            nonce=self.nonce,
            keep=lambda _: None,
        )

    def decider(self, registrar: Registrar | None = None) -> DecidingBroker:
        """A resource manager on this network, as the one that decides."""
        return DecidingBroker(
            registrar,
            connect=self.connect,
            clock=self.monotonic,
            sleep=self.sleep,
            nonce=self.nonce,
            keep=lambda _: None,
        )

    def connect(self, settings: ClientSettings, deadline: float, make_core: Callable[[Broker], Core]) -> MemoryLine:
        line = MemoryLine(self, make_core(settings.brokers[0]))
        self.lines.append(line)
        try:
            line.run(established(line.core, deadline))
        except BaseException:
            line.drop()
            raise
        return line

    # -- the broker
    def start_broker(self) -> None:
        self._jobs.clear()
        permissions = Permissions({"anonymous": EVERYTHING, "*": EVERYTHING})
        self.node = Node(MemoryStore(self.disk, self._jobs.append), self, Settings(), permissions, self._store_stopped)
        self.node.open()
        while self._jobs:
            self._jobs.popleft()()

    @staticmethod
    def _store_stopped(error: StoreError) -> None:
        raise AssertionError(error)

    def crash(self) -> None:
        for line in self.lines:
            line.connection = None
            line.cut()
        self.start_broker()

    # -- time
    def wait(self, deadline: float) -> None:
        """Until something happened, or the time has come."""
        while not self.pump():
            later = [line_way.released_s for line_way in self._ways() if line_way.frames]
            self.now = min([deadline, *(when for when in later if when > self.now)])
            if self.now >= deadline:
                return

    def settle(self) -> None:
        """Until nobody has anything to say."""
        while self.pump():
            pass

    def _ways(self) -> list[Way]:
        return [way for line in self.lines for way in (line.up, line.down)]

    def pump(self) -> bool:
        """What can happen now; whether anything did."""
        moved = False
        for line in tuple(self.lines):
            line.collect()
            moved |= self._cross(line, line.up, line.deliver_up)
            connection = line.connection
            if line.up.fin and not line.up.frames and connection is not None:
                line.connection = None
                connection.lost()
                moved = True
        if self._jobs:
            moved = True
            if not self._strikes(None, None):
                self._jobs.popleft()()
        self.node.resource.settle()
        self.node.take_touched()
        for line in tuple(self.lines):
            line.said()
            if not line.dropped:
                moved |= self._cross(line, line.down, line.core.received)
                if line.down.fin and not line.down.frames and line.core.lost is None:
                    line.core.end_of_file()
                    moved = True
        self.lines = [line for line in self.lines if line.connection or line.core.lost is None or line.up.frames]
        return moved

    def _cross(self, line: MemoryLine, way: Way, deliver: Callable[[bytes], None]) -> bool:
        moved = False
        while way.frames and way.released_s <= self.now:
            moved = True
            if self._strikes(line, way):
                break
            deliver(way.frames.popleft())
        return moved

    def _strikes(self, line: MemoryLine | None, way: Way | None) -> bool:
        """Whether the fault strikes at this boundary."""
        self.boundaries += 1
        fault = self.fault
        if fault is None or self.boundaries != fault.at:
            return False
        if fault.kind is Kind.CRASH:
            self.crash()
            return True
        if line is None or way is None:  # only a crash happens to a store
            return False
        if fault.kind is Kind.CUT:
            line.cut()
        else:
            way.released_s = self.now + DELAYS_S[fault.kind]
        return True
