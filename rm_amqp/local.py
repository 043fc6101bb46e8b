"""LocalChannel: a channel for local transactions, as every broker has them whose coordinator follows the chapter: a
txn-id that the broker chooses, and a discharge that decides. No global-id is ever sent.

One transaction at a time is open on a channel, over one session, which is what every such broker can do. Messages are
sent unsettled, as durable ones, and the work is not ended before the broker has taken each of them: not every broker
refuses the discharge of a transaction in which a message that was sent settled went wrong.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dtx.protocol.capabilities import LOCAL
from dtx.protocol.commands import Declare
from dtx.protocol.conditions import Condition, Refusal, RefusedError, refused
from dtx.protocol.decoding import DecodeError, decode
from dtx.protocol.messages import read_header, with_header
from dtx.protocol.replies import ACCEPTED, DECLARED, TRANSACTIONAL
from dtx.protocol.values import Described, Symbol, Ulong
from rm_amqp.association import Association
from rm_amqp.bulk import BulkChannel
from rm_amqp.core import until
from rm_amqp.loss import Cause, ConnectionLost, TimedOut
from rm_amqp.token_queues import QueueReceiver, QueueSender, TokenQueues
from rm_amqp.wire import whole_discharge
from xa import NULL_XID, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.core import Core, Steps
    from rm_amqp.links import Answer, Receiver, Sender
    from rm_amqp.settings import Settings
    from xa import Xid

_TAKEN: Final = frozenset({Ulong(ACCEPTED), Symbol("amqp:accepted:list")})
ROLLED_BACK: Final = frozenset({Condition.ROLLBACK, Condition.TIMEOUT, Condition.UNKNOWN_ID})
"""With these a rejected discharge says, by the chapter, that nothing was committed."""


def opened(core: Core, settings: Settings, deadline: float) -> Steps[LocalChannel]:
    """A channel over this connection, whose coordinator has local transactions."""
    channel = LocalChannel(core, settings)
    yield from channel.select(deadline)
    return channel


class LocalWork(Association):
    """The work of one local transaction. `refusal` is why a message that was sent in it was not taken."""

    __slots__ = ("posted", "refusal")

    def __init__(self, xid: Xid = NULL_XID) -> None:
        super().__init__(xid)
        self.posted: deque[Answer] = deque()
        self.refusal: Refusal | None = None

    def look(self) -> bool:
        """Reads what the broker says of the messages that were sent; whether it has said it of all."""
        while self.posted and self.posted[0].there:
            why = refusal_in(self.posted.popleft())
            self.refusal = self.refusal or why
        return not self.posted


class LocalChannel(BulkChannel):
    """One channel."""

    wanted: ClassVar[tuple[str, ...]] = (LOCAL,)
    sends: ClassVar[type[Sender]] = QueueSender  # on demand, some brokers make topics: what nobody has asked for yet
    receives: ClassVar[type[Receiver]] = QueueReceiver  # would be taken by nobody, and gone

    def __init__(self, core: Core, settings: Settings) -> None:
        super().__init__(core, settings)
        self.tokens = TokenQueues(core, settings.token_queue)

    # -- select
    def select(self, deadline: float) -> Steps[None]:
        """Verifies that the broker has local transactions. One that names nothing is tried."""
        yield from super().select(deadline)
        if LOCAL in self._control.offered:
            return
        work = LocalWork()
        try:
            yield from self.declare(work, deadline)
            yield from self.discharge(work, deadline, fail=True)
        except RefusedError as error:
            why = f"{error.refusal.condition}: {error.refusal.description}"
            raise self._unusable(f"the broker {self.core.peer or '?'} declares no transaction ({why})") from None

    def _verify(self, broker: str, offered: tuple[str, ...]) -> None:
        if offered and LOCAL not in offered:
            raise self._unusable(
                f"{broker} has no amqp:local-transactions, which the one that decides needs; it offers "
                f"{', '.join(offered)}"
            )

    # -- transactions
    def declare(self, work: LocalWork, deadline: float) -> Steps[None]:
        """Begins a transaction. RefusedError: there is none."""
        self.check()
        answer = self._tell(Declare())
        yield from self._outcome(answer, deadline)
        txn_id = _items(answer.fields)[:1]
        if answer.code != DECLARED or not txn_id or not isinstance(txn_id[0], bytes):
            raise refused(Code.XAER_RMERR, "the coordinator answered declare with no txn-id")
        work.named(txn_id[0])

    def discharge(self, work: LocalWork, deadline: float, *, fail: bool) -> Steps[None]:
        """Commits, or with `fail` rolls back; returns when the broker has said so. RefusedError: the broker says that
        it did not. ConnectionLost, TimedOut: nobody knows."""
        self.check()
        answer = self._control.send(whole_discharge(work.txn_id, fail=fail), settled=False)
        assert answer is not None  # noqa: S101 — it is not sent settled
        yield from self._outcome(answer, deadline)
        if answer.code != ACCEPTED:
            raise ConnectionLost(Cause.LOST, f"the coordinator answered a discharge with outcome {answer.code:#x}")

    def _outcome(self, answer: Answer, deadline: float) -> Steps[None]:
        if not (yield from until(self.core, lambda: answer.there, deadline)):
            raise TimedOut("the coordinator did not answer in time")
        if answer.lost:  # a control link that was closed says nothing of what was asked before
            self.core.check()
            raise ConnectionLost(Cause.LOST, f"the broker closed the control link ({answer.refusal})")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)

    # -- work
    def _post(self, sender: Sender, octets: bytes, association: Association) -> None:
        assert isinstance(association, LocalWork)  # noqa: S101 — the only kind that is begun here
        answer = sender.send(durable(bytes(octets)), association.stateful(), settled=False)
        assert answer is not None  # noqa: S101 — it is not sent settled
        association.posted.append(answer)
        association.senders.add(sender)
        association.look()

    def post(self, address: str, messages: Sequence[bytes], association: Association, deadline: float) -> Steps[None]:
        """As BulkChannel says."""
        for octets in messages:
            yield from self.send(address, octets, association, deadline)

    def gather(self, address: str, count: int, association: Association, patience: float) -> Steps[list[bytes]]:
        """As BulkChannel says. Messages are received one by one: a broker that does not know transactional acquisition
        would give those away for good that it sends settled."""
        found = yield from self.receive_batch(address, count, association, self.core.clock(), patience)
        for arrived in found:
            association.hold(arrived, arrived)
        return [arrived.octets for arrived in found]

    def finish(self, work: LocalWork, deadline: float) -> Steps[None]:
        """Tells what became of the messages that were received, and waits until the broker has taken all that were
        sent. RefusedError: it did not take one."""
        self.check()
        work.tell()
        self._stop_acquiring()
        yield from self._sent(work, deadline)
        if not (yield from until(self.core, work.look, deadline)):
            raise TimedOut("the broker did not say in time that it has taken every message")
        self.core.check()
        if work.refusal is not None:
            raise RefusedError(work.refusal)

    def undo(self, work: LocalWork, deadline: float) -> Steps[None]:
        """Rolls back. What was received and not told yet is told first: nobody holds it afterwards."""
        self.check()
        work.tell()
        self._stop_acquiring()
        yield from self.discharge(work, deadline, fail=True)


def durable(octets: bytes) -> bytes:
    """The message, marked as durable: what is committed outlives the broker's crash."""
    header = read_header(octets)
    if header.durable:
        return octets
    marked = replace(header, durable=True)
    return with_header(octets, marked, delivery_count=header.delivery_count, ttl_ms=header.ttl_ms)


def refusal_in(answer: Answer) -> Refusal | None:
    """Why a message that was sent in a transaction was not taken; None where it was."""
    if answer.code == ACCEPTED:
        return None
    outcome: Any = None
    if answer.code == TRANSACTIONAL:
        outcome = (*_items(answer.fields), None, None)[1]
        if isinstance(outcome, Described) and outcome.descriptor in _TAKEN:
            return None
    told = f"its outcome is {outcome or hex(answer.code)}"
    return answer.refusal or Refusal(Condition.INTERNAL_ERROR, f"a message was not taken: {told}", Code.XAER_RMERR)


def _items(fields: bytes | None) -> list[Any]:
    """The fields of a delivery state."""
    try:
        value = decode(fields) if fields else None
    except DecodeError:
        return []
    return value if isinstance(value, list) else []
