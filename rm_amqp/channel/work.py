"""One thread of control's work for one branch, as the client keeps it: what an association is to the channel.

On the wire a txn-id stands for the work while it is active. What the application received is held here until the work
ends. Only then are the outcomes sent, all in one write with the end, so that the application can change its mind until
then.

    NEW --begin--> ACTIVE --leave--> LEAVING --suspend--> SUSPENDED --begin--> ACTIVE
    ACTIVE, LEAVING, SUSPENDED --end--> ENDED

An end may come from another thread than the one that works, when the time of a transaction is over: between what
became of the messages and the answer to the end, nothing more may be received.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Ulong
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED, RELEASED, TRANSACTIONAL
from xa.machine import Member

if TYPE_CHECKING:
    from dtx.amqp.values import Map, Value
    from rm_amqp.channel.channel import Channel
    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.connection.links import Answer, ArrivedMessage, Sender
    from xa import Xid

_LIST32: Final = struct.Struct(">BII")
MAX_HELD: Final = 1000
"""The most received messages whose outcome is not sent yet. Beyond it, the outcomes of the oldest are sent, and can't
be changed any more."""


def _outcome(code: int, *fields: Value) -> bytes:
    return encode(Described(Ulong(code), list(fields)))


TAKE: Final = _outcome(ACCEPTED)
RELEASE: Final = _outcome(RELEASED)
REJECT: Final = _outcome(REJECTED)


def modify(*, failed: bool, undeliverable: bool, annotations: Map | None = None) -> bytes:
    """The outcome modified, as it stands in a transactional-state."""
    return _outcome(MODIFIED, failed, undeliverable, *([] if annotations is None else [annotations]))


class WorkState(Member):
    """How far work is."""

    NEW = "not begun"
    ACTIVE = "active"
    LEAVING = "the outcomes of its messages are sent, its end is not known"
    SUSPENDED = "suspended"
    ENDED = "ended"


class WorkEvent(Member):
    """The events that move work."""

    BEGIN = "begun or resumed"
    LEAVE = "to be suspended or ended: the outcomes of its messages are sent"
    SUSPEND = "suspended"
    END = "ended, whatever the broker said of it"


ACTIVE, LEAVING, SUSPENDED, ENDED = WorkState.ACTIVE, WorkState.LEAVING, WorkState.SUSPENDED, WorkState.ENDED
WORK: Final[dict[tuple[WorkState, WorkEvent], WorkState]] = {
    (WorkState.NEW, WorkEvent.BEGIN): ACTIVE,
    (SUSPENDED, WorkEvent.BEGIN): ACTIVE,
    (ACTIVE, WorkEvent.LEAVE): LEAVING,
    (ACTIVE, WorkEvent.SUSPEND): SUSPENDED,  # of a local transaction, which is not informed
    (LEAVING, WorkEvent.SUSPEND): SUSPENDED,
    (ACTIVE, WorkEvent.END): ENDED,
    (LEAVING, WorkEvent.END): ENDED,
    (SUSPENDED, WorkEvent.LEAVE): LEAVING,  # of a local transaction, too
    (SUSPENDED, WorkEvent.END): ENDED,
    # a call that was interrupted is repeated
    (LEAVING, WorkEvent.LEAVE): LEAVING,
    (ENDED, WorkEvent.LEAVE): ENDED,
    (ENDED, WorkEvent.END): ENDED,
}
"""The transitions of work; there are no others."""


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """A message that was received: what the application has of it, and its outcomes."""

    arrived: ArrivedMessage
    message: object
    outcome: bytes = TAKE
    rolled_back: bytes = b""
    """Its outcome where the branch is rolled back, for a broker that offers this; without it, that counts as a delivery
    in vain."""


class Work:
    """The work of one association."""

    takes_in_bulk: ClassVar[bool] = True
    """Whether the broker acquires messages for the branch by itself, when it sends them."""

    __slots__ = (
        "_encoded_txn_id",
        "_fields",
        "failed",
        "held",
        "opening",
        "pooled",
        "received",
        "senders",
        "state",
        "txn_id",
        "unread",
        "xid",
    )

    pooled: PooledChannel[Channel]
    """The channel of its thread of control. (Transactions of our own, which no thread works in, have none.)"""

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = WorkState.NEW
        self.held: dict[int, ReceivedMessage] = {}
        """By the identity of the message, in the order of their receipt."""
        self.failed = False
        """Whether it was ended with failure, so that the branch is rolled back."""
        self.received = False
        """Whether it ever held a message."""
        self.senders: set[Sender] = set()
        """The links on which it has sent since it is active."""
        self.unread = ""
        """The address from which it took messages that were not received."""

        self.opening: Answer | None = None
        """The result of a start that no call has waited for."""
        self.txn_id = self._encoded_txn_id = b""
        self._fields: dict[bytes, bytes] = {}

    def move(self, event: WorkEvent) -> None:
        """Follows the table."""
        self.state = WORK[self.state, event]

    def set_txn_id(self, txn_id: bytes) -> None:
        """From now on it goes by this txn-id."""
        self.txn_id = txn_id
        self._encoded_txn_id = b"\xa0" + bytes((len(txn_id),)) + txn_id if len(txn_id) < 256 else encode(txn_id)
        self._fields = {}

    def delivery_state(self, outcome: bytes = b"", rolled_back: bytes = b"") -> tuple[int, bytes]:
        """The state of a delivery that belongs to it: transactional-state(txn-id, outcome), and as a third field the
        outcome where it is rolled back."""
        outcomes = outcome + rolled_back
        fields = self._fields.get(outcomes)
        if fields is None:
            octets = self._encoded_txn_id + outcomes
            count = 3 if rolled_back else 2 if outcome else 1
            if len(octets) < 255:
                fields = bytes((0xC0, len(octets) + 1, count)) + octets
            else:
                fields = _LIST32.pack(0xD0, len(octets) + 4, count) + octets
            self._fields[outcomes] = fields
        return TRANSACTIONAL, fields

    def post(self, sender: Sender, octets: bytes) -> None:
        """Sends a message. It is sent settled: the broker refuses the end of work in which such a message went
        wrong."""
        sender.send_settled(octets, self.delivery_state())
        self.senders.add(sender)

    def hold(self, arrived: ArrivedMessage, message: object) -> None:
        """The application has received this."""
        self.received = True
        self.held[id(message)] = ReceivedMessage(arrived, message)
        if len(self.held) > MAX_HELD:
            self._tell(MAX_HELD // 2)

    def leave(self) -> None:
        """Tells what became of its messages. From now on it receives nothing."""
        self.state = WORK[self.state, WorkEvent.LEAVE]
        if self.held:
            self._tell()

    def _tell(self, keep: int = 0) -> None:
        """Tells the outcomes of all but the latest `keep` messages, and settles: should the branch be rolled back,
        they are available again, and one more failed delivery is counted."""
        for number in list(self.held)[: len(self.held) - keep] if keep else list(self.held):
            held = self.held.pop(number)
            self._settle(held)

    def _settle(self, held: ReceivedMessage) -> None:
        held.arrived.link.settle(held.arrived, self.delivery_state(held.outcome, held.rolled_back))
