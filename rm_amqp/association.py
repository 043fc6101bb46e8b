"""Association: one thread of control's work for one branch, as the client keeps it.

A txn-id stands for it on the wire while it is at work. What was received is held until the end: only then the outcomes
are told, all in one write with the end, so that the application can change its mind until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dtx.protocol.encoding import encode
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED, RELEASED, TRANSACTIONAL
from dtx.protocol.values import Described, Ulong
from xa.tables import AssociationState

if TYPE_CHECKING:
    from rm_amqp.links import Answer, Arrived, Sender
    from xa import Xid

MAX_HELD: Final = 1000
"""Received messages whose outcome is not told yet; beyond it the oldest are told, for good."""


def _outcome(code: int, *fields: Any) -> bytes:
    return encode(Described(Ulong(code), list(fields)))


TAKE: Final = _outcome(ACCEPTED)
RELEASE: Final = _outcome(RELEASED)
REJECT: Final = _outcome(REJECTED)


def modify(*, failed: bool, undeliverable: bool) -> bytes:
    """The outcome modified, as it stands in a transactional-state."""
    return _outcome(MODIFIED, failed, undeliverable)


@dataclass(slots=True, eq=False)
class Held:
    """A message that was received: what the application has of it, and its outcome if the branch is committed."""

    arrived: Arrived
    message: Any
    outcome: bytes = TAKE


class Association:
    """One association. `state` moves by the table 6-2."""

    __slots__ = ("_fields", "held", "opening", "received", "senders", "state", "txn_id", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = AssociationState.T0
        self.held: dict[int, Held] = {}
        """By the identity of the message, in the order of their receipt."""
        self.received = False
        """Whether it ever held a message."""
        self.senders: set[Sender] = set()
        """What was sent through since it is at work."""
        self.opening: Answer | None = None
        """What came of a start that nobody waited for."""
        self.named(b"")

    def named(self, txn_id: bytes) -> None:
        """From now on its work goes by this txn-id."""
        self.txn_id = txn_id
        self._fields: dict[bytes, bytes] = {}

    def stateful(self, outcome: bytes = b"") -> tuple[int, bytes]:
        """The state of a delivery in its work: transactional-state(txn-id, outcome)."""
        fields = self._fields.get(outcome)
        if fields is None:
            octets = encode(self.txn_id) + outcome
            fields = bytes((0xC0, len(octets) + 1, 2 if outcome else 1)) + octets
            self._fields[outcome] = fields
        return TRANSACTIONAL, fields

    def hold(self, arrived: Arrived, message: Any) -> None:
        """The application has received this."""
        self.received = True
        self.held[id(message)] = Held(arrived, message)
        if len(self.held) > MAX_HELD:
            self.tell(MAX_HELD // 2)

    def tell(self, keep: int = 0) -> None:
        """Tells the outcomes of all but the latest `keep` messages, and settles: should the branch be rolled back,
        they are available again, and one more failed delivery is counted."""
        for number in list(self.held)[: len(self.held) - keep]:
            held = self.held.pop(number)
            held.arrived.link.settle(held.arrived, self.stateful(held.outcome))
