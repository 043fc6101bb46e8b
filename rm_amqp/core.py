"""Core: one connection to a broker, from the octets that come to the octets that go, without I/O.

TLS, SASL and AMQP in layers: `received` takes what the socket gave, `output` has what is to be written. What happened
is seen in the links (`rm_amqp.links`), in `opened`, and in `lost`. Whoever drives a core lets one thread at a time in.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Final

from dtx.protocol.frames import OutgoingFrames
from dtx.protocol.sasl import SaslClient
from rm_amqp.engine import LIB, Engine, read_condition, text
from rm_amqp.loss import Cause, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import TypeVar

    from dtx.protocol.conditions import Refusal
    from dtx.protocol.values import Described
    from rm_amqp.engine import Pointer
    from rm_amqp.links import Link
    from rm_amqp.settings import Broker, Settings

    T = TypeVar("T")
    Steps = Generator[float, None, T]
    """An operation over a core: it yields the time (of the core's clock) until which it waits for something to
    happen, is resumed when something did or that time has come, and returns its result."""

MAX_FRAME: Final = 65_536
WINDOW: Final = 2048 * MAX_FRAME
JOINED: Final = 4 * MAX_FRAME
"""Octets that are worth one write, and the copy that it takes."""
KEEP_S: Final = 1.0
"""How often a connection is looked after."""
_GONE: Final = "amqp:connection:forced"


class TlsLayer:
    """TLS between the octets of the network and those of AMQP."""

    def __init__(self, context: ssl.SSLContext, hostname: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=hostname)
        self._established = False
        self._waiting = b""
        self.received(b"")

    def received(self, octets: bytes) -> bytes:
        """What the peer said; ssl.SSLError when that is no TLS, or not from whom it should be."""
        self._incoming.write(octets)
        if not self._established:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self._established = True
            self.send(b"")
        said = []
        while True:
            try:
                said.append(self._object.read(65_536))
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                break
            if not said[-1]:
                break
        return b"".join(said)

    def send(self, octets: bytes) -> None:
        """Says this to the peer, once the handshake is done."""
        self._waiting += octets
        if self._established and self._waiting:
            waiting, self._waiting = self._waiting, b""
            self._object.write(waiting)

    def output(self) -> bytes:
        """What is to be written to the network."""
        return self._outgoing.read()


class Core:
    """One connection. `opened`: the broker has answered our open."""

    def __init__(
        self,
        settings: Settings,
        broker: Broker,
        container: str,
        clock: Callable[[], float],
        nonce: Callable[[int], bytes],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.clock = clock
        self.broker = broker
        self.container = container
        self.opened = False
        self.peer = ""
        """The broker's container."""
        self.lost: ConnectionLost | None = None
        self.ended: Refusal | None = None
        """Why the broker ended the session."""
        self.links: dict[Pointer, Link] = {}
        self.engine = Engine(
            container,
            broker.host,
            max_frame=MAX_FRAME,
            idle_timeout_ms=int(settings.idle_timeout_s * 1000),
            window=WINDOW,
        )
        self._names = 0
        self._staged: list[bytes] = []
        self._outgoing = OutgoingFrames()
        self._sasl: SaslClient | None = SaslClient(
            settings.policy, encrypted=tls is not None, hostname=broker.host, nonce=nonce
        )
        self._tls: TlsLayer | None = None
        if tls is not None:
            self._tls = TlsLayer(tls, broker.host)
        self._handlers: dict[int, Callable[[Pointer], None]] = {
            LIB.PN_CONNECTION_REMOTE_OPEN: self._on_open,
            LIB.PN_CONNECTION_REMOTE_CLOSE: self._on_close,
            LIB.PN_SESSION_REMOTE_CLOSE: self._on_end,
            LIB.PN_LINK_REMOTE_OPEN: self._on_attach,
            LIB.PN_LINK_REMOTE_CLOSE: self._on_detach,
            LIB.PN_LINK_REMOTE_DETACH: self._on_detach,
            LIB.PN_TRANSPORT_ERROR: self._on_error,
        }

    # -- octets
    def received(self, octets: bytes) -> None:
        """Takes what the broker sent."""
        if self.lost is not None:
            return
        if self._tls is not None:
            try:
                octets = self._tls.received(octets)
            except ssl.SSLError as error:
                self.lose(f"TLS: {error.reason or error}", Cause.LOST if self.opened else Cause.UNUSABLE)
                return
        if self._sasl is not None:
            octets = self._authenticate(self._sasl, octets)
        if octets and self.lost is None:
            if not self.engine.push(octets):
                self._handle_events()
                self.lose(self.engine.error() or "the broker sent what is no AMQP")
                return
            self._handle_events()

    def _authenticate(self, sasl: SaslClient, octets: bytes) -> bytes:
        """AMQP's octets behind the end of SASL."""
        sasl.feed(octets)
        while sasl.computation is not None:
            sasl.computed(sasl.computation())
        if sasl.failed:
            self.lose(str(sasl.failure), Cause.UNUSABLE)
        if not sasl.done:
            return b""
        self._sasl = None
        return sasl.rest

    def stage(self) -> None:
        """Lets proton write all that it may: what is in its queues afterwards waits for the broker."""
        if self._sasl is not None:
            self._staged.append(self._sasl.output())
        elif self.lost is None:
            while octets := self.engine.output():
                self._staged.append(self._outgoing.feed(octets))

    def output(self) -> list[bytes]:
        """What is to be written now, in pieces: a large message is not put together once more."""
        self.stage()
        pieces, self._staged = self._staged, []
        if self._tls is not None:
            for octets in pieces:
                self._tls.send(octets)
            return [self._tls.output()]
        if len(pieces) > 1 and sum(map(len, pieces)) <= JOINED:
            return [b"".join(pieces)]
        return pieces

    def end_of_file(self) -> None:
        """The broker says nothing more."""
        if self._sasl is not None and not self.opened:
            self.lose("the broker closed the connection before it knew who we are", Cause.UNREACHABLE)
        else:
            self.lose("the broker closed the connection")

    def tick(self) -> float:
        """Keeps the connection alive, and gives it up when the broker is silent for too long. When to call again, on
        the core's clock."""
        now = self.clock()
        if self.lost is not None or self._sasl is not None:
            return now + KEEP_S
        next_ms = self.engine.tick(max(1, int(now * 1000)))
        self._handle_events()
        return min(now + KEEP_S, next_ms / 1000) if next_ms else now + KEEP_S

    # -- the end
    def lose(self, why: str, cause: Cause = Cause.LOST) -> None:
        """There is no connection any more; whoever waits hears why."""
        if self.lost is None:
            if cause is Cause.LOST and not self.opened:
                cause = Cause.UNREACHABLE
            what = "the connection to" if cause in {Cause.LOST, Cause.CLOSED} else "the broker at"
            self.lost = ConnectionLost(cause, f"{what} {self.broker} {cause.value}: {why}")
            for link in self.links.values():
                link.gone()

    def check(self) -> None:
        """ConnectionLost where there is no connection any more."""
        if self.lost is not None:
            raise self.lost.again()

    # -- links
    def name(self, kind: str) -> str:
        """A name that no other link of the connection has."""
        self._names += 1
        return f"{kind}-{self._names}"

    def forget(self, link: Link) -> None:
        """The link is not used any more."""
        if self.links.pop(link.pointer, None) is not None and self.lost is None:
            LIB.pn_link_close(link.pointer)
            LIB.pn_link_free(link.pointer)

    def say_transaction(self, name: str, txn: dict[str, bytes]) -> None:
        """From now on flows of our receiver `name` have these properties."""
        self._outgoing.set_properties(name, txn, receiver=True)

    def say_default_outcome(self, name: str, outcome: Described) -> None:
        """The attach of our receiver `name`, which is not opened yet, gives its source this default outcome."""
        self._outgoing.set_default_outcome(name, outcome)

    # -- events
    def _handle_events(self) -> None:
        self.engine.handle(self._deliver, self._handlers)

    def _deliver(self, delivery: Pointer) -> None:
        link = self.links.get(LIB.pn_delivery_link(delivery))
        if link is not None:
            link.delivery_event(delivery)

    def _on_open(self, _event: Pointer) -> None:
        self.opened = True
        self.peer = text(LIB.pn_connection_remote_container(self.engine.connection))

    def _on_close(self, _event: Pointer) -> None:
        refusal = read_condition(LIB.pn_connection_remote_condition(self.engine.connection))
        self._refused("closed it", refusal)

    def _on_end(self, _event: Pointer) -> None:
        self.ended = read_condition(LIB.pn_session_remote_condition(self.engine.session))
        self._refused("ended the session", self.ended)

    def _refused(self, what: str, refusal: Refusal | None) -> None:
        why = f"the broker {what}"
        if refusal is not None:
            why += f" ({refusal.condition}: {refusal.description})"
        unusable = refusal is not None and refusal.condition != _GONE and not self.opened
        self.lose(why, Cause.UNUSABLE if unusable else Cause.LOST)

    def _on_attach(self, event: Pointer) -> None:
        link = self.links.get(LIB.pn_event_link(event))
        if link is not None:
            link.attach_event()

    def _on_detach(self, event: Pointer) -> None:
        pointer = LIB.pn_event_link(event)
        link = self.links.pop(pointer, None)
        if link is not None:
            link.refused(read_condition(LIB.pn_link_remote_condition(pointer)))
            LIB.pn_link_close(pointer)
            LIB.pn_link_free(pointer)

    def _on_error(self, _event: Pointer) -> None:
        self.lose(self.engine.error() or "the transport failed")


def until(core: Core, happened: Callable[[], object], deadline: float) -> Steps[bool]:
    """Waits until `happened()` is true, at the longest until `deadline`; whether it is. ConnectionLost: it never
    will be."""
    while not happened():
        core.check()
        if core.clock() >= deadline:
            return False
        yield deadline
    return True


def established(core: Core, deadline: float) -> Steps[None]:
    """Waits for the broker's open."""
    if not (yield from until(core, lambda: core.opened, deadline)):
        core.lose("the broker did not answer in time", Cause.UNREACHABLE)
        core.check()
    core.check()


def closed(core: Core, deadline: float) -> Steps[None]:
    """Says goodbye, and waits for the broker's goodbye: it has let go of what the connection held."""
    if core.lost is None and core.opened:
        core.engine.close()
        while core.lost is None and core.clock() < deadline:
            yield deadline
