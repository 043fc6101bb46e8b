"""A channel for local transactions, which every broker has whose coordinator follows the transactions chapter of AMQP.

The broker chooses the txn-id, and a discharge decides; no global-id is ever sent. One transaction at a time is open on
a channel, over one session, because that is what every such broker can do. Messages are sent unsettled, as durable
ones, and the work does not end before the broker has taken each of them: not every broker refuses the discharge of a
transaction in which a message that was sent settled went wrong.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.messages import read_header, with_header
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.protocol.capabilities import LOCAL
from dtx.protocol.commands import Declare
from dtx.protocol.conditions import Refusal, RefusedError, refused
from dtx.protocol.replies import ACCEPTED, DECLARED, MODIFIED, REJECTED, RELEASED, TRANSACTIONAL
from rm_amqp.channel.channel import coordinator_offers, unusable
from rm_amqp.channel.encoded_commands import control_message, whole_discharge
from rm_amqp.channel.message_links import MessageLinks
from rm_amqp.channel.nodes import Queues
from rm_amqp.channel.work import TAKE, Work
from rm_amqp.connection.endpoint import until
from rm_amqp.connection.links import Control
from rm_amqp.decider.token_queues import QUEUE, TokenQueues
from rm_amqp.errors import Cause, ConnectionLost, TimedOut
from xa import NULL_XID, Code

if TYPE_CHECKING:
    from rm_amqp.channel.nodes import Nodes
    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.channel.work import ReceivedMessage
    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.connection.links import Answer, ArrivedMessage, Sender
    from rm_amqp.settings import Settings
    from xa import Xid

_NAMES: Final = {
    ACCEPTED: frozenset({Ulong(ACCEPTED), Symbol("amqp:accepted:list")}),
    REJECTED: frozenset({Ulong(REJECTED), Symbol("amqp:rejected:list")}),
    RELEASED: frozenset({Ulong(RELEASED), Symbol("amqp:released:list")}),
    MODIFIED: frozenset({Ulong(MODIFIED), Symbol("amqp:modified:list")}),
}
"""The names of an outcome, by its code."""
ROLLED_BACK: Final = frozenset({Condition.ROLLBACK, Condition.TIMEOUT, Condition.UNKNOWN_ID})
"""With these a rejected discharge says, by the chapter, that nothing was committed."""


class LocalWork(Work):
    """The work of one local transaction. `refusal` is why a message that was sent in it was not taken."""

    takes_in_bulk: ClassVar[bool] = False
    """A broker that does not know transactional acquisition would give those messages away for good that it sends
    settled."""

    __slots__ = ("_posted", "refusal")

    def __init__(self, xid: Xid = NULL_XID) -> None:
        super().__init__(xid)
        self._posted: deque[tuple[Answer, bytes]] = deque()
        """The answers that are awaited, and the outcome in each."""
        self.refusal: Refusal | None = None

    def post(self, sender: Sender, octets: bytes) -> None:
        self.await_answer(sender.send(durable(bytes(octets)), self.delivery_state()))
        self.senders.add(sender)
        self.all_taken()

    def await_answer(self, answer: Answer, outcome: bytes = TAKE) -> None:
        """Notes a message or an outcome that was sent, and whose answer has not been read. `outcome`: what it says if
        all is well."""
        self._posted.append((answer, outcome))

    def tell(self, arrived: ArrivedMessage, outcome: bytes) -> None:
        """Tells what becomes of a message with the transaction."""
        answer = arrived.link.settle(arrived, self.delivery_state(outcome))
        if answer is not None:
            self.await_answer(answer, outcome)

    def give_back(self) -> None:
        """What was received and has no outcome yet is given back, outside of the transaction."""
        for held in self.held.values():
            held.arrived.link.settle(held.arrived, None, RELEASED)
        self.held.clear()

    def _settle(self, held: ReceivedMessage) -> None:
        self.tell(held.arrived, held.outcome)

    def all_taken(self) -> bool:
        """Reads what the broker says of the messages that were sent; whether it has said it of all."""
        while self._posted and self._posted[0][0].there:
            why = refusal_in(*self._posted.popleft())
            self.refusal = self.refusal or why
        return not self._posted


class LocalBranchWork(LocalWork):
    """The work of one association with a branch, over the branch's channel."""

    __slots__ = ()

    pooled: PooledChannel[LocalChannel]

    def __init__(self, xid: Xid, pooled: PooledChannel[LocalChannel]) -> None:
        super().__init__(xid)
        self.pooled = pooled


class LocalChannel:
    """One channel. It is made inside of steps, like everything that touches the engine."""

    def __init__(self, endpoint: Endpoint, settings: Settings, nodes: Nodes | None = None) -> None:
        self.endpoint = endpoint
        self.control = Control(endpoint, (LOCAL,))
        # on demand, some brokers make topics: what is sent before the first receiver would be lost
        self._nodes = nodes = nodes or Queues(QUEUE)
        self.messages = MessageLinks(endpoint, settings, self.control, nodes)
        self.tokens = TokenQueues(endpoint, settings.token_queue, nodes)

    async def verify(self, deadline: float) -> None:
        """ConnectionLost where the broker has no local transactions. One that names nothing is tried."""
        offered = await coordinator_offers(self.endpoint, self.control, deadline)
        if LOCAL in offered:
            return
        if offered:
            reason = "has no amqp:local-transactions, which the one that decides needs; it offers "
            raise unusable(self.endpoint, reason + ", ".join(offered))
        work = LocalWork()
        try:
            await self.declare(work, deadline)
            await self.discharge(work, deadline, fail=True)
        except RefusedError as error:
            why = f"{error.refusal.condition}: {error.refusal.description}"
            raise unusable(self.endpoint, f"declares no transaction ({why})") from None

    # -- transactions
    async def declare(self, work: LocalWork, deadline: float) -> None:
        """Begins a transaction. RefusedError: there is none."""
        self.messages.check()
        answer = self.control.send(control_message(Declare()))
        await self._answered(answer, deadline)
        txn_id = _items(answer.fields)[:1]
        if answer.code != DECLARED or not txn_id or not isinstance(txn_id[0], bytes):
            raise refused(Code.XAER_RMERR, "the coordinator answered declare with no txn-id")
        work.set_txn_id(txn_id[0])

    async def discharge(self, work: LocalWork, deadline: float, *, fail: bool) -> None:
        """Commits, or with `fail` rolls back; returns when the broker has said so. RefusedError: the broker says that
        it did not. ConnectionLost, TimedOut: it is unknown."""
        self.messages.check()
        answer = self.control.send(whole_discharge(work.txn_id, fail=fail))
        await self._answered(answer, deadline)
        if answer.code != ACCEPTED:
            raise ConnectionLost(Cause.LOST, f"the coordinator answered a discharge with outcome {answer.code:#x}")

    async def _answered(self, answer: Answer, deadline: float) -> None:
        if not (await until(self.endpoint, lambda: answer.there, deadline)):
            raise TimedOut("the coordinator did not answer in time")
        if answer.lost:  # a control link that was closed says nothing of what was asked before
            self.endpoint.check()
            raise ConnectionLost(Cause.LOST, f"the broker closed the control link ({answer.refusal})")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)

    # -- work
    async def finish(self, work: LocalWork, deadline: float) -> None:
        """Tells what became of the messages that were received, and waits until the broker has taken all that were
        sent. RefusedError: it did not take one."""
        self.messages.check()
        work.leave()
        self.messages.stop_acquiring()
        await self.messages.all_sent(work, deadline)
        if not (await until(self.endpoint, work.all_taken, deadline)):
            raise TimedOut("the broker did not say in time that it has taken every message")
        self.endpoint.check()
        if work.refusal is not None:
            raise RefusedError(work.refusal)

    async def undo(self, work: LocalWork, deadline: float) -> None:
        """Rolls back. Outcomes that were not sent yet are sent first, because the messages have no holder afterwards;
        where the broker confirms outcomes, a rolled back one would leave it locked, and it is given back."""
        self.messages.check()
        if self._nodes.confirms:
            work.give_back()
        work.leave()
        self.messages.stop_acquiring()
        await self.discharge(work, deadline, fail=True)


async def open_local(
    endpoint: Endpoint, settings: Settings, deadline: float, nodes: Nodes | None = None
) -> LocalChannel:
    """A channel over this connection, whose coordinator has local transactions."""
    channel = LocalChannel(endpoint, settings, nodes)
    await channel.verify(deadline)
    return channel


def durable(octets: bytes) -> bytes:
    """The message, marked as durable: what is committed outlives the broker's crash."""
    header = read_header(octets)
    if header.durable:
        return octets
    marked = replace(header, durable=True)
    return with_header(octets, marked, delivery_count=header.delivery_count, ttl_ms=header.ttl_ms)


def refusal_in(answer: Answer, expected: bytes = TAKE) -> Refusal | None:
    """Why a message that was sent in a transaction was not taken, or the outcome of one not `expected`; None where it
    was."""
    if answer.code == ACCEPTED and expected == TAKE:
        return None
    outcome: Any = None
    if answer.code == TRANSACTIONAL:
        outcome = (*_items(answer.fields), None, None)[1]
        if isinstance(outcome, Described) and outcome.descriptor in _NAMES[expected[2]]:
            return None
    if (why := answer.refusal or _error_in(outcome)) is not None:
        return why
    reason = f"its outcome is {outcome or hex(answer.code)}"
    return Refusal(Condition.INTERNAL_ERROR, f"a message was not taken: {reason}", Code.XAER_RMERR)


def _error_in(outcome: Any) -> Refusal | None:
    """The error in a rejected outcome; None where there is none."""
    if not isinstance(outcome, Described) or outcome.descriptor not in _NAMES[REJECTED]:
        return None
    error = outcome.value[0] if isinstance(outcome.value, list) and outcome.value else None
    if not isinstance(error, Described) or not isinstance(error.value, list):
        return None
    condition, description, info = (*error.value, None, None, None)[:3]
    text = description if isinstance(description, str) else None
    return Refusal.read(str(condition or ""), text, info if isinstance(info, dict) else None)


def _items(fields: bytes | None) -> list[Any]:
    """The fields of a delivery state."""
    try:
        value = decode(fields) if fields else None
    except DecodeError:
        return []
    return value if isinstance(value, list) else []
