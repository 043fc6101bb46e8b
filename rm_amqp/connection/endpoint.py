"""Our end of one connection to a broker, without I/O: octets in, octets out.

An `Endpoint` puts three layers on top of each other: TLS where it is wanted, SASL, and AMQP, which proton speaks.
`received` takes what the socket gave, and `stage` has what is to be written to it. What the broker said is seen in the
links (`rm_amqp.connection.links`), and in the endpoint's state:

    OPENING --open--> OPEN --lose--> LOST        (OPENING --lose--> LOST, too)

What is done over a connection is written as `Steps`: coroutines (`docs/decisions/0022-coroutines-over-ports.md`) that
await a `Change` where they have to wait. The driver of an endpoint lets one thread at a time in.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from dtx.amqp.sasl import SaslClient
from rm_amqp.connection import proton
from rm_amqp.connection.dispositions import DISPOSITION, join_dispositions
from rm_amqp.connection.frames import OutgoingFrames
from rm_amqp.connection.tls import TlsLayer
from rm_amqp.errors import Cause, ConnectionLost, TimedOut
from xa.machine import Member
from xa.tls import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import TypeVar

    from dtx.protocol.conditions import Refusal
    from rm_amqp.connection.links import Answer, Link
    from rm_amqp.connection.proton import DeliveryPointer, EventPointer, LinkPointer
    from rm_amqp.settings import Broker, Settings

    T = TypeVar("T")
    Steps = Coroutine[float, None, T]
    """An operation over an endpoint. It is suspended where it awaits a `Change`, and resumed when something has
    happened or that time has come."""

MAX_FRAME: Final = 65_536
WINDOW: Final = 2048 * MAX_FRAME
TICK_S: Final = 1.0
"""How often the idle time-outs of a connection are checked, at least."""
_FORCED: Final = "amqp:connection:forced"


class EndpointState(Member):
    """How far a connection is."""

    OPENING = "opening"
    OPEN = "open"
    LOST = "lost"


class EndpointEvent(Member):
    """The events that move a connection."""

    OPEN = "the broker answered our open"
    LOSE = "either side closed it, or it broke"


OPENING, OPEN, LOST = EndpointState.OPENING, EndpointState.OPEN, EndpointState.LOST
ENDPOINT: Final[dict[tuple[EndpointState, EndpointEvent], EndpointState]] = {
    (OPENING, EndpointEvent.OPEN): OPEN,
    (OPENING, EndpointEvent.LOSE): LOST,
    (OPEN, EndpointEvent.LOSE): LOST,
}
"""The transitions of a connection. Any other event, such as a second open, changes nothing: proton reports it."""


class Endpoint:
    """One connection. `lost` says why there is none any more, as soon as that is so."""

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
        self.state = EndpointState.OPENING
        self.peer = ""
        """The broker's container."""
        self.offered: tuple[str, ...] = ()
        """The capabilities that the broker offers."""
        self.lost: ConnectionLost | None = None
        self.ended: Refusal | None = None
        """Why the broker ended the session."""
        self.links: dict[LinkPointer, Link] = {}
        self.answers: dict[DeliveryPointer, Answer] = {}
        """The answers that the broker has yet to give to deliveries of ours, or to outcomes of ours."""
        self.engine = proton.Engine(
            container,
            broker.host,
            max_frame=MAX_FRAME,
            idle_timeout_ms=int(settings.idle_timeout_s * 1000),
            window=WINDOW,
        )

        self._names = 0
        self.staged: list[bytes] = []
        """Octets that are to be written, in pieces, so that a large message is not copied again. The code that writes
        them takes them out."""
        self._frames = OutgoingFrames()
        self._sasl: SaslClient | None = SaslClient(
            settings.policy, encrypted=tls is not None, hostname=broker.host, nonce=nonce
        )
        self._tls = TlsLayer(tls, broker.host) if tls is not None else None
        self._handlers: dict[int, Callable[[EventPointer], None]] = {
            proton.CONNECTION_OPENED: self._on_open,
            proton.CONNECTION_CLOSED: self._on_close,
            proton.SESSION_ENDED: self._on_end,
            proton.LINK_ATTACHED: self._on_attach,
            proton.LINK_CLOSED: self._on_detach,
            proton.LINK_DETACHED: self._on_detach,
            proton.TRANSPORT_FAILED: self._on_error,
        }

    # -- octets
    def received(self, octets: bytes) -> None:
        """Takes what the broker sent; nothing for the end. Each event is handled, those included that are made
        meanwhile: an answer is read, a delivery handed to its link."""
        if self.lost is not None:
            return
        if not octets:
            self._end_of_file()
            return
        if self._tls is not None or self._sasl is not None:
            octets = self._unwrapped(octets)
            if not octets or self.lost is not None:
                return

        taken = self.engine.push(octets)
        collector = self.engine.collector
        while event := proton.next_event(collector):
            kind = proton.kind_of_event(event)
            if kind != proton.DELIVERY:
                handler = self._handlers.get(kind)
                if handler is not None:
                    handler(event)
            else:
                delivery = proton.delivery_of_event(event)
                answer = self.answers.get(delivery)
                if answer is not None:
                    answer.read(delivery)
                elif (link := self.links.get(proton.link_of_delivery(delivery))) is not None:
                    link.delivery_event(delivery)
            proton.pop_event(collector)
        if not taken:
            self.lose(self.engine.error() or "the broker sent bytes that are not AMQP")

    def _unwrapped(self, octets: bytes) -> bytes:
        """The octets of AMQP in what came: behind the end of SASL, and within TLS."""
        if self._tls is not None:
            try:
                octets = self._tls.received(octets)
            except ssl.SSLError as error:
                cause = Cause.LOST if self.state is OPEN else Cause.UNUSABLE
                self.lose(f"TLS: {reason_of(error)}", cause)
                return b""
        return octets if self._sasl is None else self._authenticate(self._sasl, octets)

    def _authenticate(self, sasl: SaslClient, octets: bytes) -> bytes:
        """Continues after the end of SASL."""
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
        """Lets proton write all that it may. What stays in its queues afterwards waits for the broker."""
        said: list[bytes] = []
        if self._sasl is not None:
            said = [self._sasl.output()]
        elif self.lost is None:
            for octets in self.engine.output():
                frames = self._frames.feed(octets)
                several = frames.count(DISPOSITION) > 1
                said.append(join_dispositions(frames) if several else frames)
        if self._tls is not None:
            for octets in said:
                self._tls.send(octets)
            said = [self._tls.output()]
        self.staged += filter(None, said)

    def _end_of_file(self) -> None:
        if self._sasl is not None and self.state is OPENING:
            self.lose("the broker closed the connection before it knew who we are", Cause.UNREACHABLE)
        else:
            self.lose("the broker closed the connection")

    def tick(self) -> float:
        """Sends a heartbeat where one is due, and gives the connection up when the broker was silent for too long. When
        to call again, on the endpoint's clock."""
        now = self.clock()
        if self.lost is not None or self._sasl is not None:
            return now + TICK_S
        next_ms = self.engine.tick(max(1, int(now * 1000)))
        why = self.engine.error()
        if why:
            self.lose(why)
        return min(now + TICK_S, next_ms / 1000) if next_ms else now + TICK_S

    # -- the end
    def lose(self, why: str, cause: Cause = Cause.LOST) -> None:
        """The connection is lost; every waiting thread gets the reason."""
        if self.lost is not None:
            return
        if cause is Cause.LOST and self.state is OPENING:
            cause = Cause.UNREACHABLE
        what = "the connection to" if cause in {Cause.LOST, Cause.CLOSED} else "the broker at"
        self.lost = ConnectionLost(cause, f"{what} {self.broker} {cause.value}: {why}")
        self._move(EndpointEvent.LOSE)
        for link in self.links.values():
            link.lose()

    def _move(self, event: EndpointEvent) -> None:
        self.state = ENDPOINT.get((self.state, event), self.state)

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
        """Closes a link, and frees it."""
        if self.links.pop(link.pointer, None) is not None and self.lost is None:
            proton.close_link(link.pointer)
            proton.free_link(link.pointer)

    def set_flow_properties(self, name: str, properties: dict[str, bytes]) -> None:
        """From now on flows of our receiver `name` have these properties."""
        self._frames.set_properties(name, properties, receiver=True)

    def set_default_outcome(self, name: str, outcome: bytes) -> None:
        """The attach of our receiver `name`, which is not opened yet, gives its source this default outcome, which is
        encoded."""
        self._frames.set_default_outcome(name, outcome)

    # -- events
    def _on_open(self, _event: EventPointer) -> None:
        self._move(EndpointEvent.OPEN)
        self.peer = self.engine.peer()
        self.offered = self.engine.offered()

    def _on_close(self, _event: EventPointer) -> None:
        self._refused("closed it", self.engine.close_error())

    def _on_end(self, _event: EventPointer) -> None:
        self.ended = self.engine.end_error()
        self._refused("ended the session", self.ended)

    def _refused(self, what: str, refusal: Refusal | None) -> None:
        why = f"the broker {what}"
        if refusal is not None:
            why += f" ({refusal.condition}: {refusal.description})"
        unusable = refusal is not None and refusal.condition != _FORCED and self.state is OPENING
        self.lose(why, Cause.UNUSABLE if unusable else Cause.LOST)

    def _on_attach(self, event: EventPointer) -> None:
        link = self.links.get(proton.link_of_event(event))
        if link is not None:
            link.attach_event()

    def _on_detach(self, event: EventPointer) -> None:
        pointer = proton.link_of_event(event)
        link = self.links.pop(pointer, None)
        if link is not None:
            link.detach_event(proton.link_error(pointer))
            proton.close_link(pointer)
            proton.free_link(pointer)

    def _on_error(self, _event: EventPointer) -> None:
        self.lose(self.engine.error() or "the transport failed")


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """`await Change(endpoint, deadline)`: steps wait until something has happened, or this time on the endpoint's clock
    has come. With `late`, a connection that is lost is not waited for, but ConnectionLost; and when the time has come,
    TimedOut says this."""

    endpoint: Endpoint
    deadline: float
    late: str = ""

    def __await__(self) -> Generator[float, None, None]:
        if self.late:
            if self.endpoint.lost is not None:
                raise self.endpoint.lost.again()
            if self.endpoint.clock() >= self.deadline:
                raise TimedOut(self.late)
        return cast("Generator[float, None, None]", iter((self.deadline,)))  # for the code that runs the steps


async def until(endpoint: Endpoint, happened: Callable[[], object], deadline: float) -> bool:
    """Waits until `happened()` is true, but not beyond `deadline`; whether it is. ConnectionLost: it never will be."""
    while not happened():
        endpoint.check()
        if endpoint.clock() >= deadline:
            return False
        await Change(endpoint, deadline)
    return True


async def wait_until_open(endpoint: Endpoint, deadline: float) -> None:
    """Waits for the broker's open."""
    if not (await until(endpoint, lambda: endpoint.state is OPEN, deadline)):
        endpoint.lose("the broker did not answer in time", Cause.UNREACHABLE)
        endpoint.check()


async def close(endpoint: Endpoint, deadline: float) -> None:
    """Sends a close, and waits for the broker's: when it has come, the broker has let go of what the connection
    held."""
    if endpoint.state is OPEN:
        endpoint.engine.close()
        while endpoint.lost is None and endpoint.clock() < deadline:
            await Change(endpoint, deadline)
