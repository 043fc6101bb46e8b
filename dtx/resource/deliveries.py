"""A message at a consumer: what is known of it until both sides have settled it, and how it is told on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.protocol.messages import read_header, with_header
from dtx.protocol.replies import MODIFIED
from dtx.resource.contexts import Gathering
from dtx.resource.engine import LIB
from dtx.resource.outcomes import Outcome

if TYPE_CHECKING:
    from dtx.resource.consumers import OutgoingLink
    from dtx.resource.contexts import TransactionalContext
    from dtx.resource.engine import Pointer
    from dtx.resource.queues import Entry
    from dtx.resource.work import Retirement


class Sent:
    """One message at a consumer. `pointer` is proton's delivery once it is sent."""

    __slots__ = (
        "context",
        "decided",
        "default",
        "ended",
        "entry",
        "gone",
        "link",
        "loaded",
        "payload",
        "pointer",
        "retirement",
    )

    def __init__(self, link: OutgoingLink, entry: Entry, default: Outcome) -> None:
        self.link = link
        self.entry = entry
        self.default = default
        self.payload: bytes | None = None
        self.loaded = 0
        """Octets that it takes in memory, read or being read, until proton has them."""
        self.pointer: Pointer | None = None
        self.context: TransactionalContext | None = None
        self.retirement: Retirement | None = None
        self.ended: bytes | None = None
        """The txn-id of a transaction that it belonged to, and that was rolled back."""
        self.decided = False
        """Whether an outcome outside of transactions was applied."""
        self.gone = False

    def applied(self, outcome: Outcome) -> None:
        """As Held says."""
        self.context = self.retirement = None
        self.link.finish(self, outcome)

    def reverted(self) -> None:
        """As Held says."""
        if isinstance(self.context, Gathering):
            self.ended = self.context.txn_id
        self.context = self.retirement = None

    def withdrawn(self) -> None:
        """As Held says."""
        self.context = self.retirement = None
        self.link.withdraw(self)


def modified_outcome(delivery: Pointer) -> Outcome:
    """The outcome `modified` that the peer told for a delivery."""
    state = LIB.pn_delivery_remote(delivery)
    failed, undeliverable = LIB.pn_disposition_is_failed(state), LIB.pn_disposition_is_undeliverable(state)
    return Outcome(MODIFIED, bool(failed), bool(undeliverable))


def with_facts(entry: Entry, octets: bytes, now_ms: int) -> bytes:
    """The message, or its first octets, with the header that it has by now."""
    header = read_header(octets)
    ttl_ms = header.ttl_ms
    if ttl_ms is not None and entry.expires_ms:
        ttl_ms = max(1, entry.expires_ms - now_ms)
    return with_header(octets, header, delivery_count=entry.count, ttl_ms=ttl_ms)
