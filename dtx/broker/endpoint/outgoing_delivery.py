"""A message at a consumer: what is known of it until both sides have settled it, and how it is told on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.messages import read_header, with_header
from dtx.broker.queues.queue import State
from dtx.broker.transactions.contexts import WorkContext
from dtx.store.contract import CHUNK

FACTS: Final = 32
"""Octets that a header may add to a message."""

if TYPE_CHECKING:
    from dtx.amqp.delivery import OutgoingDelivery as Delivery
    from dtx.broker.endpoint.outgoing_link import OutgoingLink
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Entry
    from dtx.broker.transactions.contexts import TransactionalContext
    from dtx.broker.transactions.transactional_work import Retirement
    from dtx.protocol.conditions import Refusal


class OutgoingDelivery:
    """One message at a consumer. `delivery` is it in AMQP, once it is sent."""

    __slots__ = (
        "context",
        "decided",
        "default",
        "delivery",
        "ended",
        "entry",
        "gone",
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
        self.context: TransactionalContext | None = None
        self.retirement: Retirement | None = None
        self.ended: bytes | None = None
        """The txn-id of a transaction that it belonged to, and that was rolled back."""
        self.decided = False
        """Whether an outcome outside of transactions was applied."""
        self.gone = False

    @property
    def undecided(self) -> bool:
        """Whether the message can't have been retired yet: the store has to have its payload."""
        if self.retirement is not None:
            return self.retirement.outcome is None
        return not self.decided and (self.context is not None or not self.link.settles)

    def unload(self) -> None:
        """Its payload is no longer in memory for it, or it is sent."""
        if self.loaded:
            self.link.connection.unloaded(self.loaded)
            self.loaded = 0

    def give_back(self) -> None:
        """It was taken, and not sent: it goes back to its queue."""
        self.gone = True
        self.unload()
        if self.retirement is not None and isinstance(self.context, WorkContext):
            self.context.work.retired.pop(self.entry.number, None)
            self.context = self.retirement = None
        if self.entry.state is State.HELD:
            self.entry.queue.give_back(self.entry)

    def applied(self, outcome: Outcome) -> None:
        self.context = self.retirement = None
        self.link.finish(self, outcome)

    def refused(self, refusal: Refusal) -> None:
        self.link.refuse(self, refusal)

    def reverted(self) -> None:
        if isinstance(self.context, WorkContext):
            self.ended = self.context.txn_id
        self.context = self.retirement = None

    def withdrawn(self) -> None:
        self.context = self.retirement = None
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
        sent.link.resource.fetch_piece(sent.entry, number, lambda piece: self._told(number, piece))

    def _told(self, number: int, piece: bytes | None) -> None:
        sent, link = self._sent, self._sent.link
        if not link.open or sent.gone:
            return
        if piece is None:
            if sent.undecided:
                link.missing(sent)
            else:
                link.broken_off(sent)
            return
        if number == 0 and (sent.entry.count or sent.entry.expires_ms):
            piece = with_facts(sent.entry, piece, link.resource.now_ms)
        last = number + 1 == self._pieces
        if sent.delivery is None:
            link.begin(sent, piece, more=not last)
        else:
            sent.delivery.add(piece, more=not last)
            link.connection.container.touch(link.connection)
        if last:
            link.streamed(sent)
        else:
            link.connection.when_sent(link, lambda: self.ask(number + 1))


def size_with_facts(entry: Entry) -> int:
    """Octets that the message may have with the header that it has by now."""
    return entry.size + (FACTS if entry.count or entry.expires_ms else 0)


def with_facts(entry: Entry, octets: bytes, now_ms: int) -> bytes:
    """The message, or its first octets, with the header that it has by now."""
    header = read_header(octets)
    ttl_ms = header.ttl_ms
    if ttl_ms is not None and entry.expires_ms:
        ttl_ms = max(1, entry.expires_ms - now_ms)
    return with_header(octets, header, delivery_count=entry.count, ttl_ms=ttl_ms)
