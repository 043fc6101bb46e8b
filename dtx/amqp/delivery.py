"""Deliveries: messages on a link, until both ends have settled them.

An `OutgoingDelivery` is sent in as many transfers as the peer's frame size asks for, when its window allows.
The caller may add to it (`more`), abort it, say its state, and settle it. An `IncomingDelivery` comes in `Transferred`
events; the receiver says its state, and settles it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from dtx.amqp.states import DELIVERY, DeliveryState, DeliveryVerb
from xa.machine import advance

if TYPE_CHECKING:
    from dtx.amqp.link import ReceiverLink, SenderLink

WAITING: Final = DeliveryState.WAITING
PARTIAL: Final = DeliveryState.PARTIAL
UNSETTLED: Final = DeliveryState.UNSETTLED
SETTLED_THERE: Final = DeliveryState.SETTLED_THERE
SETTLED: Final = DeliveryState.SETTLED

TRANSFER_PART: Final = DELIVERY.column(DeliveryVerb.TRANSFER_PART)
TRANSFER: Final = DELIVERY.column(DeliveryVerb.TRANSFER)
TRANSFER_SETTLED: Final = DELIVERY.column(DeliveryVerb.TRANSFER_SETTLED)
ABORT: Final = DELIVERY.column(DeliveryVerb.ABORT)
SETTLE: Final = DELIVERY.column(DeliveryVerb.SETTLE)
RECEIVE_SETTLED: Final = DELIVERY.column(DeliveryVerb.RECEIVE_SETTLED)


class OutgoingDelivery:
    """A message that we send. It is made by `SenderLink.send`."""

    __slots__ = (
        "aborting",
        "format",
        "id",
        "link",
        "local_state",
        "more",
        "parts",
        "progress",
        "settles_at_end",
        "size",
        "start",
        "tag",
    )

    def __init__(
        self, link: SenderLink, tag: bytes, state: bytes | None, *, settled: bool, message_format: int
    ) -> None:
        self.link = link
        self.tag = tag
        self.format = message_format
        self.id = -1
        """The delivery-id, once the first transfer is made."""
        self.progress = WAITING
        self.local_state = state
        self.parts: deque[bytes] = deque()
        """What is not transferred yet, or only in part."""

        self.start = 0
        """How many octets of the first of `parts` are transferred."""
        self.size = 0
        """Octets in `parts` that are not transferred."""
        self.more = True
        """Whether the caller has more to add."""
        self.aborting = False
        self.settles_at_end = settled
        """Whether it is sent settled."""

    def add(self, octets: bytes, *, more: bool) -> None:
        """Adds to the message; without `more` it is complete."""
        if not self.more or self.progress is SETTLED:
            raise ValueError("the delivery is complete already")
        if octets:
            self.parts.append(octets)
            self.size += len(octets)
        self.more = more
        self.link.session.push(self, len(octets))

    def take(self, room: int) -> bytes:
        """At most `room` octets of what is not transferred yet."""
        parts = self.parts
        if len(parts) == 1 and self.size <= room and not self.start:
            self.size = 0
            return parts.popleft()

        taken: list[bytes] = []
        while parts and room:
            start = self.start
            part = parts[0][start : start + room]
            if start + len(part) == len(parts[0]):
                parts.popleft()
                self.start = 0
            else:
                self.start = start + len(part)
            taken.append(part)
            room -= len(part)
            self.size -= len(part)
        return b"".join(taken)

    def abort(self) -> None:
        """The message is not sent, or its receiver is to forget the part of it that was."""
        self.link.session.abort(self)

    def update(self, state: bytes | None, *, settled: bool) -> None:
        """Says the state of the delivery, encoded, and settles it where that is asked for and all of it is transferred;
        before that, `settle` ends it."""
        self.local_state = state
        if self.progress is UNSETTLED:
            self.link.session.dispose(self.id, state, receiver=False, settled=settled)
        if settled:
            self._forget()

    def settle(self) -> None:
        """Settles it; that is sent unless the peer has settled it first. One that is incomplete is aborted."""
        if self.progress is UNSETTLED:
            self.link.session.dispose(self.id, self.local_state, receiver=False, settled=True)
            self._forget()
        elif self.progress is SETTLED_THERE:
            self._forget()
        elif self.progress is not SETTLED:
            self.abort()

    def _forget(self) -> None:
        if self.progress is UNSETTLED or self.progress is SETTLED_THERE:
            self.progress = SETTLE[self.progress]
            self.link.session.outgoing.pop(self.id, None)
            self.link.unsettled.pop(self.id, None)

    def lose(self) -> None:
        """Its link is gone."""
        self.progress = advance(DELIVERY, self.progress, DeliveryVerb.LOSE)
        self.parts.clear()
        self.start = 0
        self.size = 0


class IncomingDelivery:
    """A message that the peer sends."""

    __slots__ = ("aborted", "format", "id", "link", "progress", "sent_settled", "settles_second", "tag")

    def __init__(self, link: ReceiverLink, number: int, tag: bytes, message_format: int) -> None:
        self.link = link
        self.id = number
        self.tag = tag
        self.format = message_format
        self.progress = WAITING
        self.sent_settled = False
        """Whether it was sent settled: then no state of it can be sent."""
        self.settles_second = False
        """Whether the receiver is to settle only when the sender has: the link's mode, or what the sender asks for."""
        self.aborted = False

    @property
    def complete(self) -> bool:
        """Whether all of it has come."""
        return self.progress is not PARTIAL and self.progress is not WAITING and not self.aborted

    @property
    def settled_by_peer(self) -> bool:
        """Whether the sender has settled it."""
        return self.sent_settled or self.progress is SETTLED_THERE

    def update(self, state: bytes | None, *, settled: bool) -> None:
        """Says the state of the delivery, encoded, and settles it where that is asked for. Without effect before all of
        it has come, and when it was settled before."""
        if self.progress is UNSETTLED:
            self.link.session.dispose(self.id, state, receiver=True, settled=settled)
        if settled:
            self._forget()

    def settle(self) -> None:
        """Settles it without a state; that is sent unless the peer has settled it first."""
        self.update(None, settled=True)

    def _forget(self) -> None:
        if self.progress is UNSETTLED or self.progress is SETTLED_THERE:
            self.progress = SETTLE[self.progress]
            self.link.drop(self.id)

    def lose(self) -> None:
        """Its link is gone."""
        self.progress = advance(DELIVERY, self.progress, DeliveryVerb.LOSE)
