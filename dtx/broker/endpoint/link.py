"""Link endpoints: what every link of a connection answers to, and the receiving ones.

`ReceivingLink` puts deliveries together, holds the peer to its credit and to the size of messages, and
gives each whole message to `message`, which answers by `accept`, `answer_state` or `refuse`. What is
refused for good closes the link as well, as the table FATAL says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Ulong
from dtx.broker.endpoint.engine import LIB, Pointer, receive, reject, remote_state, set_state, text
from dtx.broker.queues.outcomes import transactional_state
from dtx.protocol.conditions import Refusal, RefusedError
from dtx.protocol.replies import ACCEPTED, REJECTED, TRANSACTIONAL, error_octets
from xa import Code

if TYPE_CHECKING:
    from dtx.broker.endpoint.connection import BrokerConnection, Session
    from dtx.broker.transactions.contexts import TransactionalContext, WorkContext

FATAL: Final = frozenset({Condition.UNAUTHORIZED, Condition.INTERNAL_ERROR, Condition.NOT_FOUND})
"""Refusals of a message after which the link is closed; after others (resource limit) it goes on."""


class Link:
    """A link endpoint of ours."""

    controls = False
    """Whether it is a control link."""

    def __init__(self, connection: BrokerConnection, session: Session, pointer: Pointer) -> None:
        self.connection = connection
        self.session = session
        self.pointer = pointer
        self.name = text(LIB.pn_link_name(pointer))
        self.delivery_count = 0
        """How many deliveries came or went, and credit that was given back, as AMQP counts."""

    def opened(self) -> None:
        """The attach was answered."""

    def delivery_event(self, delivery: Pointer) -> None:
        """Something came for a delivery."""

    def flow_event(self) -> None:
        """The peer's credit changed."""

    def flow_properties(self, txn_id: Any) -> None:
        """The properties of a flow named this txn-id; None: no more. Most links have nothing to acquire."""
        if txn_id is not None:
            told = "this link supports no transactional acquisition"
            self.detach(Refusal(Condition.NOT_IMPLEMENTED, told, Code.XAER_INVAL))

    def continued(self, state: Any) -> None:
        """A frame that continues a delivery carried this state; None: none."""

    def transaction_ended(self, context: WorkContext) -> None:
        """A transaction is discharged, or lost."""

    def gone(self) -> None:
        """The link is closed, whoever closed it: nothing of proton's may be used any more."""

    def drain(self) -> None:
        """The peer wants the credit used up or back."""

    @property
    def sent_all(self) -> bool:
        """Whether no delivery waits in proton, for the peer's window. The credit may not be given back before that:
        proton tells of it at once, and what waits would never leave."""
        return not LIB.pn_link_queued(self.pointer)

    def detach(self, refusal: Refusal) -> None:
        """Closes the link with an error."""
        self.connection.detach(self, refusal)


class Awaited:
    """A delivery that is to be answered, or settled by the peer. Its pointer may belong to a later delivery
    once it is settled; this object doesn't."""

    __slots__ = ("pointer",)

    def __init__(self, pointer: Pointer) -> None:
        self.pointer = pointer


class ReceivingLink(Link, ABC):
    """Takes messages. `limit` bounds their size."""

    def __init__(
        self, connection: BrokerConnection, session: Session, pointer: Pointer, *, credit: int, limit: int
    ) -> None:
        super().__init__(connection, session, pointer)
        self.second = LIB.pn_link_remote_rcv_settle_mode(pointer) == LIB.PN_RCV_SECOND
        """Whether the receiver settles after the sender."""
        self._txns = connection.txns
        self._credit = credit
        self._left = 0
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._first_state: tuple[int, bytes | None] = (0, None)
        self._partial: TransactionalContext | None = None
        self._broken: Refusal | None = None
        self._unsettled: dict[Pointer, Awaited] = {}

    def opened(self) -> None:
        self._left = self._credit
        LIB.pn_link_flow(self.pointer, self._credit)

    def gone(self) -> None:
        if self._partial is not None:
            self._partial.end_partial()
            self._partial = None
        self._drop_parts()
        self._unsettled.clear()

    # -- frames
    def delivery_event(self, delivery: Pointer) -> None:
        pointer = self.pointer
        if LIB.pn_link_current(pointer) != delivery:
            if delivery in self._unsettled and LIB.pn_delivery_settled(delivery):
                del self._unsettled[delivery]
                LIB.pn_delivery_settle(delivery)
                self._replenish()
            return
        if LIB.pn_delivery_aborted(delivery):
            self._aborted(delivery)
            return
        pending = LIB.pn_delivery_pending(delivery)
        octets = receive(pointer, pending) if pending else b""
        if LIB.pn_delivery_partial(delivery):
            self._part(delivery, octets)
            return
        if self._parts:
            self._parts.append(octets)
            octets = b"".join(self._parts)
            self._drop_parts()
        self._complete(delivery, octets)

    def _part(self, delivery: Pointer, octets: bytes) -> None:
        if not self._parts:
            self._begin_partial(delivery)
        if octets or not self._parts:
            self._parts.append(octets)
        self._size += len(octets)
        connection = self.connection
        unstored = connection.container.resource.unstored
        connection.partial_octets += len(octets)
        unstored.octets += len(octets)
        if self._size > self._limit:
            told = f"a message has at most {self._limit} octets here"
            self.detach(Refusal(Condition.MESSAGE_SIZE, told, Code.XAER_INVAL))
        elif connection.partial_octets > connection.container.limits.partial_octets:
            told = f"{connection.partial_octets} octets of messages that are not complete"
            self.detach(Refusal(Condition.RESOURCE_LIMIT, told, Code.XAER_RMERR))
        elif unstored.octets > unstored.limit:
            told = f"{unstored.octets} octets of messages that are not complete, or whose transactions are open"
            self.detach(Refusal(Condition.RESOURCE_LIMIT, told, Code.XAER_RMERR))

    def _drop_parts(self) -> None:
        self.connection.partial_octets -= self._size
        self.connection.container.resource.unstored.octets -= self._size
        self._size = 0
        self._parts.clear()

    def _begin_partial(self, delivery: Pointer) -> None:
        self._broken = None
        code = LIB.pn_delivery_remote_state(delivery)
        fields = remote_state(delivery) if code == TRANSACTIONAL else None
        self._first_state = (code, fields)
        if code != TRANSACTIONAL:
            return
        try:
            txn_id, _ = self._txns.read(fields)
            context = self._txns.context(txn_id)
            context.begin_partial()
            self._partial = context
        except (RefusedError, WireError) as error:
            self._broken = refusal_of(error)

    def continued(self, state: Any) -> None:
        # Every frame of a delivery names the transaction that its first one names.
        code, fields = self._first_state
        if code != TRANSACTIONAL:
            if state is not None and type(state) is not int and _txn_id_of(state) is not None:
                self._broken = _mixed()
            return
        try:
            txn_id, _ = self._txns.read(fields)
        except WireError:
            return
        if _txn_id_of(state) != txn_id:
            self._broken = _mixed()

    def _aborted(self, delivery: Pointer) -> None:
        self._drop_parts()
        self._end_partial()
        LIB.pn_link_advance(self.pointer)
        self.delivery_count += 1
        self._left -= 1
        LIB.pn_delivery_settle(delivery)
        self._replenish()

    def _end_partial(self) -> None:
        if self._partial is not None:
            self._partial.end_partial()
            self._partial = None

    def _complete(self, delivery: Pointer, octets: bytes) -> None:
        LIB.pn_link_advance(self.pointer)
        self.delivery_count += 1
        self._left -= 1
        if self._left < 0:
            told = f"more was sent than the credit of {self._credit}"
            self.detach(Refusal(Condition.TRANSFER_LIMIT, told, Code.XAER_INVAL))
            return
        self._end_partial()
        settled = bool(LIB.pn_delivery_settled(delivery))
        broken, self._broken = self._broken, None
        self._first_state = (0, None)
        if len(octets) > self._limit:
            told = f"a message has at most {self._limit} octets here"
            self.detach(Refusal(Condition.MESSAGE_SIZE, told, Code.XAER_INVAL))
            return
        context: WorkContext | None = None
        if LIB.pn_delivery_remote_state(delivery) == TRANSACTIONAL:
            try:
                txn_id, _ = self._txns.read(remote_state(delivery))
                context = self._txns.context(txn_id)
            except (RefusedError, WireError) as error:
                broken = broken or refusal_of(error)
        if settled:
            LIB.pn_delivery_settle(delivery)
        if broken is not None:
            self._break(delivery, context, broken, settled=settled)
        else:
            self.message(delivery, octets, context, settled=settled)
        self._replenish()

    def _break(self, delivery: Pointer, context: WorkContext | None, refusal: Refusal, *, settled: bool) -> None:
        """The delivery's transaction is wrong: it is refused, and where nobody would hear that, the link
        is."""
        if context is not None:
            context.refuse_success(refusal)
        if settled:
            self.detach(refusal)
        else:
            self.refuse(delivery, refusal, None)

    def _replenish(self) -> None:
        """Gives credit anew, unless the peer leaves too much unsettled."""
        if (
            self._left * 2 < self._credit
            and self.connection.alive(self)
            and len(self._unsettled) < self.connection.container.limits.unsettled
        ):
            LIB.pn_link_flow(self.pointer, self._credit - self._left)
            self._left = self._credit

    # -- messages
    @abstractmethod
    def message(self, delivery: Pointer, octets: bytes, context: WorkContext | None, *, settled: bool) -> None:
        """A whole message came, under the transaction `context`, or none. One that was sent `settled` is
        settled already, and its delivery is not used any more."""

    def wait(self, delivery: Pointer) -> Awaited:
        """The delivery's answer comes later."""
        awaited = self._unsettled[delivery] = Awaited(delivery)
        return awaited

    def waits(self, awaited: Awaited) -> bool:
        """Whether somebody waits for the delivery's answer still."""
        return self._unsettled.get(awaited.pointer) is awaited

    def answer_state(self, delivery: Pointer, code: int, fields: bytes | None = None) -> None:
        """Tells the outcome, and settles unless the sender is to settle first."""
        set_state(delivery, code, fields)
        self._settle(delivery)

    def decided(self, awaited: Awaited, refusal: Refusal | None) -> None:
        """The transaction of a posted delivery that is not settled yet is over. Committed: its state is the
        outcome that was applied. Rolled back: the outcome that was told belongs to a transaction that is
        gone."""
        if refusal is None and self.waits(awaited):
            LIB.pn_delivery_update(awaited.pointer, ACCEPTED)
            self.connection.container.touch(self.connection)

    def accept(self, delivery: Pointer) -> None:
        """Tells that the message is taken."""
        LIB.pn_delivery_update(delivery, ACCEPTED)
        self._settle(delivery)

    def refuse(self, delivery: Pointer, refusal: Refusal, context: WorkContext | None) -> None:
        """Tells that the message is rejected, in the transaction under which it came."""
        if context is None:
            reject(delivery, REJECTED, refusal)
        else:
            error = Described(Ulong(REJECTED), [decode(error_octets(refusal))])
            set_state(delivery, TRANSACTIONAL, transactional_state(context.txn_id, encode(error)))
        self._settle(delivery)

    def _settle(self, delivery: Pointer) -> None:
        if self.second and not LIB.pn_delivery_settled(delivery):
            self._unsettled.setdefault(delivery, Awaited(delivery))
        else:
            self._unsettled.pop(delivery, None)
            LIB.pn_delivery_settle(delivery)
        self.connection.container.touch(self.connection)


def refusal_of(error: RefusedError | WireError) -> Refusal:
    """The refusal in an exception."""
    if isinstance(error, RefusedError):
        return error.refusal
    return Refusal(error.condition, str(error), Code.XAER_INVAL)


def _txn_id_of(state: Any) -> bytes | None:
    """The txn-id in a state as the frames show it."""
    if state is None or state.descriptor not in {TRANSACTIONAL, "amqp:transactional-state:list"}:
        return None
    value = state.value
    return bytes(value[0]) if value and isinstance(value[0], bytes) else None


def _mixed() -> Refusal:
    told = "the frames of one delivery name different transactions"
    return Refusal(Condition.ROLLBACK, told, Code.XA_RBPROTO)
