"""The client's links, without I/O: the control link, senders and receivers.

A link is attaching as soon as it is made. What moves it is the table `LINK`:

    ATTACHING --attach--> ATTACHED
    ATTACHING, ATTACHED --detach--> DETACHED     the broker refused it, or closed it; `refusal` says why
    ATTACHING, ATTACHED --close--> CLOSED        we closed it
    ATTACHING, ATTACHED --lose--> LOST           with its connection

The steps that wait for these are in `rm_amqp.channel`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Ulong
from dtx.protocol.capabilities import CONTROL_OUTCOMES, DISTRIBUTED, LOCAL
from dtx.protocol.conditions import Refusal, refused
from dtx.protocol.replies import REJECTED, RELEASED
from rm_amqp.connection import proton
from xa import Code
from xa.machine import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.connection.proton import DeliveryPointer, LinkPointer

_RELEASED: Final = encode(Described(Ulong(RELEASED), []))
TERMINAL: Final = frozenset({0x24, 0x25, 0x26, 0x27})
PORTION: Final = 1 << 18
"""Octets of a message that proton gets at a time."""


class LinkState(Member):
    """How far a link is."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHED = "detached by the broker"
    CLOSED = "closed by us"
    LOST = "lost with its connection"


class LinkEvent(Member):
    """The events that move a link."""

    ATTACH = "the broker attached it"
    DETACH = "the broker refused or closed it"
    CLOSE = "we close it"
    LOSE = "the connection is lost"


ATTACHING, ATTACHED, DETACHED = LinkState.ATTACHING, LinkState.ATTACHED, LinkState.DETACHED
LINK: Final[dict[tuple[LinkState, LinkEvent], LinkState]] = {
    (ATTACHING, LinkEvent.ATTACH): ATTACHED,
    **{(state, LinkEvent.DETACH): DETACHED for state in (ATTACHING, ATTACHED)},
    **{(state, LinkEvent.CLOSE): LinkState.CLOSED for state in (ATTACHING, ATTACHED)},
    **{(state, LinkEvent.LOSE): LinkState.LOST for state in (ATTACHING, ATTACHED)},
}
"""The transitions of a link. Any other event changes nothing: a link that is over stays what it is."""


class Link(ABC):
    """A link endpoint of ours."""

    apart: ClassVar[bool] = False
    """Whether it is in a session of its own, beside the one that has the transactions."""

    def __init__(self, endpoint: Endpoint, name: str, pointer: LinkPointer) -> None:
        self.endpoint = endpoint
        self.name = name
        self.pointer = pointer
        self.state = ATTACHING
        self.refusal: Refusal | None = None
        """Why the broker detached it."""
        endpoint.links[pointer] = self

    @property
    def attached(self) -> bool:
        """Whether the broker has attached it, and it can be used."""
        return self.state is ATTACHED

    @property
    def alive(self) -> bool:
        """Whether it is, or may still become, attached."""
        return self.state is ATTACHED or self.state is ATTACHING

    @property
    def answered(self) -> bool:
        """Whether the broker has attached it, or refused to."""
        return self.state is ATTACHED or self.state is DETACHED

    def _move(self, event: LinkEvent) -> None:
        self.state = LINK.get((self.state, event), self.state)

    def attach_event(self) -> None:
        """The broker answered the attach. An answer without a terminus is followed by a detach that says why."""
        if self._wanted():
            self._move(LinkEvent.ATTACH)

    @abstractmethod
    def _wanted(self) -> bool:
        """Whether the broker's attach names the terminus, because only then it accepts the link."""

    def delivery_event(self, delivery: DeliveryPointer) -> None:
        """A delivery came, or the broker's state of one changed for which no answer is awaited."""
        del delivery

    def detach_event(self, refusal: Refusal | None) -> None:
        """The broker closed the link."""
        self._move(LinkEvent.DETACH)
        self.refusal = refusal or Refusal(Condition.DETACH_FORCED, "the broker closed the link", Code.XAER_RMERR)
        self._drop_pointers()

    def lose(self) -> None:
        """The connection is lost."""
        self._move(LinkEvent.LOSE)
        self._drop_pointers()

    def close(self) -> None:
        """We need it no more."""
        if self.alive:
            self._move(LinkEvent.CLOSE)
            self._drop_pointers()
            self.endpoint.forget(self)

    def _drop_pointers(self) -> None:
        """The link is over: no delivery of proton's may be used any more."""
        answers = self.endpoint.answers
        for delivery, answer in [(delivery, one) for delivery, one in answers.items() if one.link is self]:
            answer.lost, answer.refusal, answer.there = True, self.refusal, True
            del answers[delivery]

    def _is_answered(self) -> bool:
        """Whether no answer of the broker's is awaited."""
        return all(answer.link is not self for answer in self.endpoint.answers.values())


@dataclass(slots=True, eq=False)
class Answer:
    """What the broker says of a message that was sent over `link`, or of an outcome: its own outcome, the fields of one
    that proton does not know, an error; or that there will be none."""

    link: Link
    code: int = 0
    fields: bytes | None = None
    refusal: Refusal | None = None
    lost: bool = False
    there: bool = False
    """Whether it has come."""

    def read(self, delivery: DeliveryPointer) -> None:
        """Reads what the broker says of the delivery, and settles it, where it has said something."""
        code = proton.remote_state(delivery)
        if not code and not proton.is_settled(delivery):
            return
        if code == REJECTED:
            rejected = proton.remote_error(delivery)
            self.refusal = rejected or Refusal(Condition.INTERNAL_ERROR, "rejected", Code.XAER_RMERR)
        elif code not in TERMINAL:
            self.fields = proton.encoded(proton.fields_of(proton.remote_disposition(delivery)))
        self.code, self.there = code or REJECTED, True
        del self.link.endpoint.answers[delivery]
        proton.settle(delivery)


def _check_address(address: str) -> None:
    """RefusedError for an address that Proton, which works with C strings, would take for a shorter one."""
    if "\0" in address:
        raise refused(Code.XAER_INVAL, f"{address!r} is no address: it has a NUL")


class Sender(Link):
    """Sends messages to an address. `capabilities` are those that its node must have."""

    def __init__(self, endpoint: Endpoint, address: str, capabilities: Sequence[str] = ()) -> None:
        endpoint.check()
        _check_address(address)
        name = endpoint.name("send")
        super().__init__(endpoint, name, endpoint.engine.sender(name, apart=self.apart))
        self.address = address
        self.max_octets = 0
        """The largest message that the broker takes, 0 for no bound."""
        self._sent = 0
        self._set_termini(capabilities)
        proton.open_link(self.pointer)

    def _set_termini(self, capabilities: Sequence[str]) -> None:
        proton.set_target(self.pointer, self.address, capabilities)

    def _wanted(self) -> bool:
        if not proton.has_target(self.pointer):
            return False
        self.max_octets = proton.max_message_size(self.pointer)
        return True

    @property
    def credit(self) -> int:
        """How many messages the broker takes now."""
        return proton.link_credit(self.pointer) if self.state is ATTACHED else 0

    @property
    def queued(self) -> int:
        """How many messages have not left yet."""
        return proton.link_queued(self.pointer) if self.state is ATTACHED else 0

    @property
    def idle(self) -> bool:
        """Whether nothing depends on the link."""
        return not self.queued and self._is_answered()

    def send(self, octets: bytes, state: tuple[int, bytes] | None = None) -> Answer:
        """Sends a message, in this state. The answer comes later."""
        self._sent += 1
        delivery = proton.begin_message(self.pointer, self._sent, octets[:PORTION], state)
        if len(octets) > PORTION:
            self._send_rest(octets)
        proton.advance_link(self.pointer)
        answer = self.endpoint.answers[delivery] = Answer(self)
        return answer

    def send_settled(self, octets: bytes, state: tuple[int, bytes] | None = None) -> None:
        """Sends a message, in this state. The broker sends no answer to it."""
        self._sent += 1
        delivery = proton.begin_message(self.pointer, self._sent, octets[:PORTION], state)
        if len(octets) > PORTION:
            self._send_rest(octets)
        proton.advance_link(self.pointer)
        proton.settle(delivery)

    def _send_rest(self, octets: bytes) -> None:
        """Lets proton make frames of a portion before it gets the next one, because it copies what it holds."""
        rest = memoryview(octets)
        for start in range(PORTION, len(rest), PORTION):
            self.endpoint.stage()
            proton.append(self.pointer, rest[start : start + PORTION])
        self.endpoint.stage()


class Control(Sender):
    """The control link: declare, discharge, end. `offered` is what the coordinator says that it can do."""

    def __init__(self, endpoint: Endpoint, wanted: Sequence[str] = (LOCAL, DISTRIBUTED)) -> None:
        self.offered: tuple[str, ...] = ()
        super().__init__(endpoint, "", wanted)

    def _set_termini(self, capabilities: Sequence[str]) -> None:
        proton.set_coordinator_target(self.pointer, capabilities, CONTROL_OUTCOMES)

    def _wanted(self) -> bool:
        if not super()._wanted():
            return False
        self.offered = proton.target_capabilities(self.pointer)
        return True


@dataclass(slots=True, eq=False)
class ArrivedMessage:
    """A message that came. `pointer` is its delivery; None where it came settled, or is settled, or its link is
    over."""

    link: Receiver
    octets: bytes
    pointer: DeliveryPointer | None = field(default=None, repr=False)


class Receiver(Link):
    """Takes messages from an address (None: from a node that the broker makes for us)."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: str | None,
        *,
        settled: bool = False,
        browse: bool = False,
        name: str = "receive",
        capabilities: Sequence[str] = (),
    ) -> None:
        endpoint.check()
        _check_address(address or "")
        name = endpoint.name(name)
        super().__init__(endpoint, name, endpoint.engine.receiver(name, apart=self.apart))
        self.address = address or ""
        self.arrived: deque[ArrivedMessage] = deque()
        self._open: set[ArrivedMessage] = set()
        """The deliveries that have arrived and are not settled."""

        self._parts: list[bytes] = []
        self.used = False
        """Whether the user of the channel has received from it."""
        self.resting_since = math.inf
        """When the channel was put down after that, as long as something may have been prefetched."""
        proton.set_source(self.pointer, address, capabilities, browse=browse)
        self._before_attach()
        if settled:
            proton.ask_for_settled(self.pointer)
        proton.open_link(self.pointer)

    def _before_attach(self) -> None:
        """Says more of the link, where there is more to say."""

    def _wanted(self) -> bool:
        if not proton.has_source(self.pointer):
            return False
        self.address = proton.source_address(self.pointer) or self.address
        return True

    @property
    def moves(self) -> bool:
        """Whether the broker says that it gives messages away over this link, which was asked to browse."""
        return proton.source_moves(self.pointer)

    @property
    def credit(self) -> int:
        """How many messages may be on their way."""
        return proton.link_credit(self.pointer) if self.state is ATTACHED or self.state is ATTACHING else 0

    @property
    def draining(self) -> bool:
        """Whether the broker has yet to use up the credit, or to give it back. (A message that has come in part has
        used its credit for proton, and is not there.)"""
        return self.alive and (bool(self._parts) or proton.link_draining(self.pointer))

    @property
    def idle(self) -> bool:
        """Whether nothing depends on the link."""
        return not self.arrived and not self._open and not self.credit

    def flow(self, credit: int) -> None:
        """Lets the broker send so many more."""
        proton.give_credit(self.pointer, credit)

    def drain(self) -> None:
        """The broker sends what it has at once, and gives the rest of the credit back."""
        proton.drain_with_credit(self.pointer, 0)

    def give_back(self) -> None:
        """Releases the messages that were not taken."""
        while self.arrived:
            self.settle(self.arrived.popleft(), None, RELEASED)

    def delivery_event(self, delivery: DeliveryPointer) -> None:
        if proton.current_delivery(self.pointer) != delivery:
            return
        if proton.is_aborted(delivery):
            self._parts.clear()
            proton.advance_link(self.pointer)
            proton.settle(delivery)
            return
        pending = proton.pending_octets(delivery)
        octets = proton.receive(self.pointer, pending) if pending else b""
        if proton.is_partial(delivery):
            self._parts.append(octets)
            return
        if self._parts:
            octets = b"".join((*self._parts, octets))
            self._parts.clear()

        proton.advance_link(self.pointer)
        arrived = ArrivedMessage(self, octets)
        if proton.is_settled(delivery):
            proton.settle(delivery)
        else:
            arrived.pointer = delivery
            self._open.add(arrived)
        self.arrived.append(arrived)

    def settle(self, arrived: ArrivedMessage, state: tuple[int, bytes] | None, code: int = 0) -> Answer | None:
        """Tells an outcome, one that proton knows by its code or one with fields, and settles. The broker's answer,
        where it gives one."""
        delivery, arrived.pointer = arrived.pointer, None
        self._open.discard(arrived)
        if delivery is None:
            return None
        if state is not None:
            proton.set_state(delivery, *state)
        elif code:
            proton.update(delivery, code)
        return self._settled(delivery)

    def _settled(self, delivery: DeliveryPointer) -> Answer | None:
        """The outcome of a delivery is set."""
        proton.settle(delivery)
        return None

    def _drop_pointers(self) -> None:
        super()._drop_pointers()
        for arrived in self._open:
            arrived.pointer = None
        self._open.clear()
        self.arrived.clear()
        self._parts.clear()


class ConfirmedReceiver(Receiver):
    """Takes messages, and hears of every outcome whether the broker has carried it out (receiver-settle-mode second).
    On a link that settles first, it would stay unknown that a lock had run out."""

    def _before_attach(self) -> None:
        proton.settle_second(self.pointer)

    def _settled(self, delivery: DeliveryPointer) -> Answer | None:
        answer = self.endpoint.answers[delivery] = Answer(self)
        return answer

    @property
    def idle(self) -> bool:
        return super().idle and self._is_answered()


class BulkReceiver(Receiver):
    """Takes messages that come settled, by the thousand: their octets are all that is kept of them. What a branch took
    and gives back does not count as delivered in vain, because that a batch failed says nothing of any one of its
    messages."""

    def __init__(self, endpoint: Endpoint, address: str, *, browse: bool = False, name: str) -> None:
        self._taken: list[bytes] = []
        super().__init__(endpoint, address, settled=True, browse=browse, name=name)

    def _before_attach(self) -> None:
        self.endpoint.set_default_outcome(self.name, _RELEASED)

    def delivery_event(self, delivery: DeliveryPointer) -> None:
        if proton.is_partial(delivery) or proton.is_aborted(delivery) or self._parts:
            super().delivery_event(delivery)
            self._taken.extend(arrived.octets for arrived in self.arrived)
            self.arrived.clear()
            return
        link = self.pointer
        if proton.current_delivery(link) == delivery:
            self._taken.append(proton.receive(link, proton.pending_octets(delivery)))
            proton.advance_link(link)
            proton.settle(delivery)

    def take(self) -> list[bytes]:
        """The deliveries that have arrived since the last call."""
        taken, self._taken = self._taken, []
        return taken

    @property
    def idle(self) -> bool:
        return super().idle and not self._taken

    def _drop_pointers(self) -> None:
        super()._drop_pointers()
        self._taken = []
