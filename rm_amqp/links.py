"""Links: the client's link endpoints, as far as they need no I/O. Control, sending, receiving.

A link is made attaching; `attached` says that the broker answered, `refusal` that it did not want the link, or not any
more. The steps that wait for these are in `rm_amqp.channel` and `rm_amqp.command`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dtx.protocol.capabilities import CONTROL_OUTCOMES, DISTRIBUTED, LOCAL
from dtx.protocol.conditions import Condition, Refusal
from dtx.protocol.replies import REJECTED, RELEASED
from dtx.protocol.values import Described, Ulong
from rm_amqp.engine import (
    LIB,
    NULL,
    Pointer,
    open_delivery,
    put_symbols,
    receive,
    remote_error,
    remote_fields,
    send,
    set_address,
    set_state,
    symbols,
    text,
)
from xa import Code

if TYPE_CHECKING:
    from rm_amqp.core import Core

_RELEASED: Final = Described(Ulong(RELEASED), [])
TERMINAL: Final = frozenset({0x24, 0x25, 0x26, 0x27})
PORTION: Final = 1 << 18
"""Octets of a message that proton gets at a time."""


class Link:
    """A link endpoint of ours."""

    def __init__(self, core: Core, name: str, *, receiver: bool) -> None:
        core.check()
        self.core = core
        self.name = name
        self.attached = False
        self.refusal: Refusal | None = None
        """Why the broker closed it."""
        self.closed = False
        """Whether we closed it."""
        make = LIB.pn_receiver if receiver else LIB.pn_sender
        self.pointer: Pointer = make(core.engine.session, name.encode("ascii"))
        core.links[self.pointer] = self

    @property
    def answered(self) -> bool:
        """Whether the broker has said that it wants the link, or that it does not."""
        return self.attached or self.refusal is not None

    @property
    def alive(self) -> bool:
        """Whether it may be used."""
        return self.refusal is None and not self.closed and self.core.lost is None

    def attach_event(self) -> None:
        """The broker answered the attach. An answer without a terminus is followed by the error."""
        self.attached = True

    def delivery_event(self, delivery: Pointer) -> None:
        """Something came for a delivery."""

    def refused(self, refusal: Refusal | None) -> None:
        """The broker closed the link."""
        told = refusal or Refusal(Condition.DETACH_FORCED, "the broker closed the link", Code.XAER_RMERR)
        self.refusal = told
        self.gone()

    def gone(self) -> None:
        """Nothing of proton's may be used any more."""

    def close(self) -> None:
        """We need it no more."""
        if self.closed:
            return
        self.closed = True
        self.gone()
        self.core.forget(self)


@dataclass(slots=True)
class Answer:
    """What came of a message: its outcome, the fields of one that proton does not know, an error; or that there will
    be none."""

    code: int = 0
    fields: bytes | None = None
    refusal: Refusal | None = None
    lost: bool = False

    @property
    def there(self) -> bool:
        """Whether it has come."""
        return bool(self.code) or self.lost


class Sender(Link):
    """Sends messages to an address."""

    def __init__(self, core: Core, address: str) -> None:
        super().__init__(core, core.name("send"), receiver=False)
        self.address = address
        self.max_octets = 0
        """What the broker takes, 0 for no bound."""
        self._tag = 0
        self._waiting: dict[Pointer, Answer] = {}
        self._terminus()
        LIB.pn_link_open(self.pointer)

    def _terminus(self) -> None:
        set_address(LIB.pn_link_target(self.pointer), self.address)

    def attach_event(self) -> None:
        """As Link says."""
        target = LIB.pn_link_remote_target(self.pointer)
        if LIB.pn_terminus_get_type(target) != LIB.PN_UNSPECIFIED:
            self.attached = True
            self.max_octets = int(LIB.pn_link_remote_max_message_size(self.pointer))

    @property
    def credit(self) -> int:
        """How many messages the broker takes now."""
        return int(LIB.pn_link_credit(self.pointer)) if self.alive else 0

    @property
    def queued(self) -> int:
        """How many messages have not left yet."""
        return int(LIB.pn_link_queued(self.pointer)) if self.alive else 0

    @property
    def idle(self) -> bool:
        """Whether nothing depends on the link."""
        return not self.queued and not self._waiting

    def send(self, octets: bytes, state: tuple[int, bytes] | None = None, *, settled: bool) -> Answer | None:
        """Sends a message with this state. What comes of it, unless it is settled."""
        self._tag += 1
        delivery = open_delivery(self.pointer, self._tag.to_bytes(4, "big"))
        if state is not None:
            set_state(delivery, *state)
        if len(octets) <= PORTION:
            send(self.pointer, octets)
        else:
            self._send_in_portions(memoryview(octets))
        LIB.pn_link_advance(self.pointer)
        if settled:
            LIB.pn_delivery_settle(delivery)
            return None
        answer = self._waiting[delivery] = Answer()
        return answer

    def _send_in_portions(self, octets: memoryview) -> None:
        """Lets proton make frames of a portion before it gets the next one, because it copies what it holds."""
        for start in range(0, len(octets), PORTION):
            send(self.pointer, octets[start : start + PORTION])
            self.core.stage()

    def delivery_event(self, delivery: Pointer) -> None:
        """As Link says."""
        answer = self._waiting.get(delivery)
        if answer is None:
            return
        code = int(LIB.pn_delivery_remote_state(delivery))
        settled = LIB.pn_delivery_settled(delivery)
        if not code and not settled:
            return
        del self._waiting[delivery]
        if code == REJECTED:
            answer.refusal = remote_error(delivery) or Refusal(Condition.INTERNAL_ERROR, "rejected", Code.XAER_RMERR)
        elif code not in TERMINAL:
            answer.fields = remote_fields(delivery)
        answer.code = code or REJECTED
        LIB.pn_delivery_settle(delivery)

    def gone(self) -> None:
        """As Link says."""
        for answer in self._waiting.values():
            answer.lost, answer.refusal = True, self.refusal
        self._waiting.clear()


class Control(Sender):
    """The control link: declare, discharge, end. `offered` is what the coordinator can do."""

    def __init__(self, core: Core, wanted: tuple[str, ...] = (LOCAL, DISTRIBUTED)) -> None:
        self.offered: tuple[str, ...] = ()
        self._wanted = wanted
        super().__init__(core, "")

    def _terminus(self) -> None:
        target = LIB.pn_link_target(self.pointer)
        LIB.pn_terminus_set_type(target, LIB.PN_COORDINATOR)
        put_symbols(LIB.pn_terminus_capabilities(target), self._wanted)
        source = LIB.pn_link_source(self.pointer)
        LIB.pn_terminus_set_type(source, LIB.PN_SOURCE)
        put_symbols(LIB.pn_terminus_outcomes(source), CONTROL_OUTCOMES)

    def attach_event(self) -> None:
        """As Link says."""
        super().attach_event()
        if self.attached:
            self.offered = symbols(LIB.pn_terminus_capabilities(LIB.pn_link_remote_target(self.pointer)))


@dataclass(slots=True, eq=False)
class Arrived:
    """A message that came: proton's delivery, unless it came settled or its link is gone."""

    link: Receiver
    octets: bytes
    pointer: Pointer | None = field(default=None, repr=False)


class Receiver(Link):
    """Takes messages from an address (None: from a node that the broker makes for us)."""

    def __init__(
        self, core: Core, address: str | None, *, settled: bool = False, browse: bool = False, name: str = "receive"
    ) -> None:
        super().__init__(core, core.name(name), receiver=True)
        self.address = address or ""
        self.arrived: deque[Arrived] = deque()
        self.open_deliveries: set[Arrived] = set()
        self._parts: list[bytes] = []
        source = LIB.pn_link_source(self.pointer)
        if address is None:
            LIB.pn_terminus_set_type(source, LIB.PN_SOURCE)
            LIB.pn_terminus_set_dynamic(source, True)
        else:
            set_address(source, address)
        self._terminus(source)
        if browse:
            LIB.pn_terminus_set_distribution_mode(source, LIB.PN_DIST_MODE_COPY)
        if settled:
            LIB.pn_link_set_snd_settle_mode(self.pointer, LIB.PN_SND_SETTLED)
        LIB.pn_link_open(self.pointer)

    def _terminus(self, source: Pointer) -> None:
        """Says more of the source, where there is more to say."""

    def attach_event(self) -> None:
        """As Link says."""
        source = LIB.pn_link_remote_source(self.pointer)
        if LIB.pn_terminus_get_type(source) != LIB.PN_UNSPECIFIED:
            self.attached = True
            address = LIB.pn_terminus_get_address(source)
            if address != NULL:
                self.address = text(address)

    @property
    def credit(self) -> int:
        """How many messages may be on their way."""
        return int(LIB.pn_link_credit(self.pointer)) if self.alive else 0

    @property
    def draining(self) -> bool:
        """Whether the broker has yet to use up the credit, or to give it back. (A message that has come in part has
        used its credit for proton, and is not there.)"""
        return self.alive and (bool(self._parts) or bool(LIB.pn_link_draining(self.pointer)))

    @property
    def idle(self) -> bool:
        """Whether nothing depends on the link."""
        return not self.arrived and not self.open_deliveries and not self.credit

    def flow(self, credit: int) -> None:
        """Lets the broker send so many more."""
        LIB.pn_link_flow(self.pointer, credit)

    def drain(self) -> None:
        """The broker sends what it has at once, and gives the rest of the credit back."""
        LIB.pn_link_drain(self.pointer, 0)

    def give_back(self) -> None:
        """Releases the messages that nobody has taken."""
        while self.arrived:
            self.settle(self.arrived.popleft(), None, RELEASED)

    def delivery_event(self, delivery: Pointer) -> None:
        """As Link says."""
        if LIB.pn_link_current(self.pointer) != delivery:
            return
        if LIB.pn_delivery_aborted(delivery):
            self._parts.clear()
            LIB.pn_link_advance(self.pointer)
            LIB.pn_delivery_settle(delivery)
            return
        pending = LIB.pn_delivery_pending(delivery)
        octets = receive(self.pointer, pending) if pending else b""
        if LIB.pn_delivery_partial(delivery):
            self._parts.append(octets)
            return
        if self._parts:
            octets = b"".join((*self._parts, octets))
            self._parts.clear()
        LIB.pn_link_advance(self.pointer)
        arrived = Arrived(self, octets)
        if LIB.pn_delivery_settled(delivery):
            LIB.pn_delivery_settle(delivery)
        else:
            arrived.pointer = delivery
            self.open_deliveries.add(arrived)
        self.arrived.append(arrived)

    def settle(self, arrived: Arrived, state: tuple[int, bytes] | None, code: int = 0) -> None:
        """Tells an outcome, one that proton knows by its code or one with fields, and settles."""
        delivery, arrived.pointer = arrived.pointer, None
        self.open_deliveries.discard(arrived)
        if delivery is None:
            return
        if state is not None:
            set_state(delivery, *state)
        elif code:
            LIB.pn_delivery_update(delivery, code)
        LIB.pn_delivery_settle(delivery)

    def gone(self) -> None:
        """As Link says."""
        for arrived in self.open_deliveries:
            arrived.pointer = None
        self.open_deliveries.clear()
        self.arrived.clear()
        self._parts.clear()


class Taker(Receiver):
    """Takes messages that come settled, by the thousand: their octets are all that is kept of them. What a branch took
    and gives back does not count as delivered in vain: that a batch failed says nothing of any one of its messages."""

    def __init__(self, core: Core, address: str, *, browse: bool = False, name: str) -> None:
        self._taken: list[bytes] = []
        super().__init__(core, address, settled=True, browse=browse, name=name)

    def _terminus(self, source: Pointer) -> None:
        del source  # proton's has no default outcome
        self.core.say_default_outcome(self.name, _RELEASED)

    def delivery_event(self, delivery: Pointer) -> None:
        """As Link says."""
        if LIB.pn_delivery_partial(delivery) or LIB.pn_delivery_aborted(delivery) or self._parts:
            super().delivery_event(delivery)
            self._taken.extend(arrived.octets for arrived in self.arrived)
            self.arrived.clear()
            return
        link = self.pointer
        if LIB.pn_link_current(link) == delivery:
            self._taken.append(receive(link, LIB.pn_delivery_pending(delivery)))
            LIB.pn_link_advance(link)
            LIB.pn_delivery_settle(delivery)

    def take(self) -> list[bytes]:
        """What has come since it was last asked."""
        taken, self._taken = self._taken, []
        return taken

    @property
    def idle(self) -> bool:
        """As Receiver says."""
        return super().idle and not self._taken

    def gone(self) -> None:
        """As Link says."""
        super().gone()
        self._taken = []
