"""A message at a consumer: what is known of it until both sides have settled it, and how it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.messages import read_header, with_header
from dtx.broker.endpoint.states import DECIDE, END, ENDED, FREE, HOLD, REVERT
from dtx.broker.queues.entry import State
from dtx.store.contract import CHUNK

FACTS: Final = 32
"""Octets that a header may add to a message."""
NOTES: Final = 96
"""Octets that delivery annotations may add, but for the reason of a failure."""

if TYPE_CHECKING:
    from dtx.amqp.delivery import OutgoingDelivery as Delivery
    from dtx.broker.endpoint.outgoing_link import OutgoingLink
    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.transactions.contexts import WorkContext
    from dtx.broker.transactions.transactional_work import HeldMessage
    from dtx.protocol.conditions import Refusal


class OutgoingDelivery:
    """One message at a consumer. `delivery` is it in AMQP, once it is sent. It has a context and a retirement if and
    only if its custody is HELD."""

    __slots__ = (
        "context",
        "custody",
        "default",
        "delivery",
        "ended",
        "entry",
        "link",
        "loaded",
        "payload",
        "retirement",
    )

    def __init__(self, link: OutgoingLink, entry: Entry, default: Outcome) -> None:
        self.link = link
        self.entry = entry
        self.default = default
        self.payload: bytes | None = None
        self.loaded = 0
        """Octets that it takes in memory, read or being read, until they are sent."""
        self.delivery: Delivery | None = None
        self.custody = FREE
        self.context: WorkContext | None = None
        """The transaction that has it."""
        self.retirement: HeldMessage | None = None
        """What that transaction has of it."""
        self.ended: bytes | None = None
        """The txn-id of a transaction that it belonged to, and that was rolled back."""

    @property
    def undecided(self) -> bool:
        """Whether the message can't have been retired yet: the store has to have its payload."""
        if self.retirement is not None:
            return self.retirement.outcome is None
        return self.custody is FREE

    def unload(self) -> None:
        """Its payload is no longer in memory for it, or it is sent."""
        if self.loaded:
            self.link.room.unloaded(self.loaded)
            self.loaded = 0

    # -- custody
    def hold(self, context: WorkContext, retirement: HeldMessage) -> None:
        self.custody = HOLD[self.custody]
        self.context, self.retirement = context, retirement

    def decide(self) -> None:
        """It gets an outcome outside of transactions."""
        self.custody = DECIDE[self.custody]

    def end(self) -> None:
        """It is settled, or comes back to its queue: nothing that comes later counts."""
        self.custody = END[self.custody]
        self.context = self.retirement = None

    def give_back(self) -> None:
        """It was taken, and not sent: it goes back to its queue, and its transaction has it no more."""
        context = self.context
        self.end()
        self.unload()
        if context is not None:
            context.work.retired.pop(self.entry.number, None)
        if self.entry.state is State.HELD:
            self.entry.queue.give_back(self.entry)

    # -- what its transaction, or the store, tells
    def applied(self, outcome: Outcome) -> None:
        self.link.finish(self, outcome)

    def refused(self, refusal: Refusal) -> None:
        self.link.refuse(self, refusal)

    def reverted(self) -> None:
        self.custody = REVERT[self.custody]
        if self.context is not None:
            self.ended = self.context.txn_id
        self.context = self.retirement = None

    def withdrawn(self) -> None:
        self.link.withdraw(self)


class Stream:
    """A large message on its way to a consumer, piece by piece: the next one when the last one has left."""

    __slots__ = ("_pieces", "_sent")

    def __init__(self, sent: OutgoingDelivery) -> None:
        self._sent = sent
        self._pieces = (sent.entry.size + CHUNK - 1) // CHUNK

    def ask(self, number: int) -> None:
        """Reads a piece, and sends it."""
        sent = self._sent
        sent.link.resource.fetch_piece(sent.entry, number, lambda piece: self._arrived(number, piece))

    def _arrived(self, number: int, piece: bytes | None) -> None:
        sent, link = self._sent, self._sent.link
        if not link.is_attached or sent.custody is ENDED:
            return
        if piece is None:
            if sent.undecided:
                link.missing(sent)
            else:
                link.broken_off(sent)
            return
        last = number + 1 == self._pieces
        if sent.delivery is None:
            link.begin(sent, piece, more=not last)
        else:
            sent.delivery.add(piece, more=not last)
            link.container.touch(link.connection)

        if last:
            link.streamed(sent)
        else:
            link.room.when_sent(link, lambda: self.ask(number + 1))


def size_with_facts(entry: Entry) -> int:
    """Octets that the message may have with the header and the notes that it has by now."""
    return entry.size + (FACTS if entry.count or entry.expires_ms else 0) + (NOTES if entry.apart else 0)


def with_facts(entry: Entry, octets: bytes, now_ms: int) -> bytes:
    """The message, or its first octets, with the header that it has by now."""
    header = read_header(octets)
    ttl_ms = header.ttl_ms
    if ttl_ms is not None and entry.expires_ms:
        ttl_ms = max(1, entry.expires_ms - now_ms)
    return with_header(octets, header, delivery_count=entry.count, ttl_ms=ttl_ms)
