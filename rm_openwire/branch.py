"""BranchWork: the work of one branch that is not prepared, over a connection that it has to itself.

What is sent and acknowledged is numbered and answered, and `end` waits for every answer: no broker sees a prepare
while work of its branch is under way. That guards against faults of both brokers:

- Classic does not mark an XA branch as rollback-only when a message that needs no answer fails.
- Artemis lets commands that came later overtake a message that waits for memory, and while several messages are
  under way it may answer for one that it has not taken. So it is sent one message at a time; Classic is not waited for.
- Artemis sends a message whose branch it does not know (any more) outside of any transaction. So BEGIN is answered
  before the first message is sent; nothing is sent to a branch that is older than `branch_timeout`, which has to be
  less than Artemis' `transaction-timeout`; and no ROLLBACK is sent over another connection while work of the branch
  may be under way over a broken one (`AbandonedWork`).
- Classic begins a branch that another client has prepared without a word, and what is done then is done in that one.
  So it is asked for its branches in doubt together with BEGIN.
- Either ignores an acknowledgement for a consumer that is gone. So consumers are closed after the branch's last
  command. Messages are acknowledged one by one, in their order, as the kind of acknowledgement that Classic compares
  with what it has dispatched.

A branch with no work is unknown to the broker: it votes read-only. Consumers belong to the branch. When it ends they
are closed, which returns what was not acknowledged to the queue.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rm_amqp.session_contract import NoMessage
from rm_openwire.errors import ConnectionLost, Refused, rollback_code_of
from rm_openwire.messages import decoded_message, destination_of, encoded_message
from rm_openwire.primitives import decode_map, encode_map
from rm_openwire.session import Session
from rm_openwire.states import BEGINNING, ROLLED_BACK, Beginning, BeginningVerb
from rm_openwire.wire import (
    LAST_DELIVERED_NONE,
    LAST_DELIVERED_UNKNOWN,
    AckKind,
    ConsumerInfo,
    DataArrayResponse,
    IntegerResponse,
    MessageAck,
    MessagePull,
    ProducerInfo,
    RemoveInfo,
    TemporaryQueue,
    TemporaryTopic,
    Topic,
    TransactionInfo,
    TransactionKind,
    WireMessage,
    XATransactionId,
)
from xa import ROLLBACK_CODES, Code, XaError, xa_error
from xa.in_process_branches import UnitOfWork
from xa.machine import advance

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rm_amqp.message import Encodable, Message
    from rm_openwire.connection import Connection
    from rm_openwire.settings import Settings
    from rm_openwire.wire import Command, ConsumerId, Destination, MessageDispatch, Response
    from xa import Xid
    from xa.driver import Pending, SessionContext
    from xa.pool import ConnectionPool

logger = logging.getLogger("xabridge.rm_openwire")

MAX_UNANSWERED: Final = 500
"""Commands whose answers have not come. The next one waits: the broker's answers must not fill the connection."""
BROWSED: Final = 100
"""Messages that a browser is sent at a time."""
_APPLICATION_S: Final = 0.5
"""So long the manager waits for the application's thread, which has the connection while it waits for a message."""
PULLED_MS: Final = -1
"""A pull for a message that is there."""
SETTLE_S: Final = 0.2
"""With prefetched messages: how long at least a consumer waits for them."""
DEAD: Final = "x-opt-dead-"


def transaction_id(xid: Xid) -> XATransactionId:
    """An xid as OpenWire has it."""
    return XATransactionId(xid.format_id, xid.gtrid, xid.bqual)


def recovery(connection: Connection) -> TransactionInfo:
    """The question for the branches in doubt."""
    return TransactionInfo(connection_id=connection.connection_id, kind=TransactionKind.RECOVER.value)


def in_doubt(answer: Response) -> list[XATransactionId]:
    """The branches in doubt that the answer lists; ConnectionLost where it is none."""
    if not isinstance(answer, DataArrayResponse):
        raise ConnectionLost(f"the broker answered RECOVER with a {type(answer).__name__}")
    return [one for one in answer.data or () if isinstance(one, XATransactionId)]


@dataclass(eq=False, slots=True)
class Consumer:
    """A consumer of the branch. `pulls` are the messages that were asked for and have not come."""

    consumer_id: ConsumerId
    destination: Destination
    arrived: deque[MessageDispatch]
    pulls: int = 0
    last: int = LAST_DELIVERED_NONE
    """The broker's number of the last message that the application had."""
    counted: bool = False
    """Messages are given back that are to be counted as delivered in vain."""


@dataclass(eq=False, slots=True)
class UnacknowledgedMessage:
    """A message that the application has, and what is to become of it when the branch is committed. `before` is the
    broker's number of the message that the application had before it."""

    message: Message
    dispatch: MessageDispatch
    consumer: Consumer
    before: int
    settled: bool = field(default=False)

    @property
    def wire(self) -> WireMessage:
        """The message as it came."""
        assert self.dispatch.message is not None  # noqa: S101 — the caller has looked
        return self.dispatch.message


class AbandonedWork:
    """Branches whose connection was lost while work of theirs was under way. Until the broker must have noticed the
    loss they can't be rolled back over another connection, which might overtake the work. Classic rolls them back with
    the connection; Artemis keeps them, and the messages that they took, until they are rolled back here, or its
    `transaction-timeout` ends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._until: dict[Xid, float] = {}
        self._clock = clock

    def note(self, xid: Xid, wait_s: float) -> None:
        """The branch can't be rolled back for so long."""
        self._until[xid] = self._clock() + wait_s

    def left_s(self, xid: Xid) -> float:
        """The time for which it can't be rolled back yet."""
        return max(self._until.get(xid, 0.0) - self._clock(), 0.0)

    def due(self) -> list[Xid]:
        """Those that can be rolled back now, each returned once."""
        now = self._clock()
        found = [xid for xid, until in list(self._until.items()) if until <= now]
        for xid in found:
            self._until.pop(xid, None)
        return found


class BranchWork(UnitOfWork):
    """One branch's work, from its start until it is prepared, committed or rolled back."""

    def __init__(
        self, xid: Xid, pool: ConnectionPool[Connection], settings: Settings, left: AbandonedWork, *, wait: bool
    ) -> None:
        self.xid = xid
        self._pool = pool
        self._settings = settings
        self._left = left
        self._session: Session | None = None
        self._connection: Connection | None = pool.acquire(work=True, wait=wait)
        self._begun: int | None = None
        """The number of BEGIN, once it was sent."""
        self._looked: int | None = None
        """The number of the RECOVER beside it."""
        self._beginning = Beginning.UNSENT

        self._taken: XaError | None = None
        """The XAER_DUPID that prepare and commit come to: the xid is another's. What is sent is dropped."""
        self._began_at = 0.0
        self._unanswered: list[int] = []
        self._sending: int | None = None
        """The number of the last message, where its answer has to come before the next one is sent."""
        self._consumers: dict[tuple[str, str | None], Consumer] = {}
        self._received: dict[int, UnacknowledgedMessage] = {}
        self._fault: XaError | None = None
        self._doomed = False
        self._excused = False
        """Its rollback is not counted as a delivery in vain."""

    # --- as a unit --------------------------------------------------------------------------------------------
    def session(self, context: SessionContext[Any]) -> Session:
        if self._session is None:
            self._session = Session(self, context)
        return self._session

    def end(self, *, fail: bool) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.expire()
        connection = self._connection
        if connection is None:
            return
        if not connection.lock.acquire(timeout=_APPLICATION_S if fail else -1):
            return  # the application waits for a message; the rollback that follows cuts it off

        try:
            try:
                if not fail:
                    self._acknowledge()
                    self._collect()
                connection.check()
            except ConnectionLost as lost:
                raise self._lost("end", lost) from None
        finally:
            connection.lock.release()
        if self._fault is not None:
            raise self._fault

    def prepare(self, *, later: bool) -> Code | Pending:
        del later
        connection = self._own("prepare")
        if self._taken is not None:
            raise self._taken
        if self._beginning is Beginning.UNSENT:
            self._leave()
            return Code.XA_RDONLY

        with connection.lock:
            try:
                vote = self._ask(TransactionKind.PREPARE)
            except ConnectionLost as lost:
                raise self._lost("prepare", lost) from None
            except Refused as refused:
                raise self._voted_against(refused) from None
        self._leave()
        if isinstance(vote, IntegerResponse) and vote.result == Code.XA_RDONLY:
            return Code.XA_RDONLY
        if not isinstance(vote, IntegerResponse) or vote.result != Code.XA_OK:
            raise xa_error(Code.XAER_RMFAIL, f"prepare: the broker answered {vote}", self.xid)
        return Code.XA_OK

    def commit(self, *, later: bool) -> Code | Pending:
        del later
        connection = self._own("commit")
        if self._taken is not None:
            raise self._taken
        if self._beginning is not Beginning.UNSENT:
            with connection.lock:
                try:
                    self._ask(TransactionKind.COMMIT_ONE_PHASE)
                except ConnectionLost as lost:
                    raise self._lost("commit", lost) from None
                except Refused as refused:
                    raise self._not_committed(refused) from None
        self._leave()
        return Code.XA_OK

    def rollback(self, *, later: bool) -> Code | Pending:
        del later
        self._doomed = True
        connection = self._connection
        if connection is None:
            return Code.XA_OK
        if not connection.lock.acquire(timeout=_APPLICATION_S):  # the application waits for a message
            connection.cut("the branch is rolled back")
            connection.lock.acquire()
        try:
            if self._connection is not None:
                self._roll_back(connection)
        finally:
            connection.lock.release()
        return Code.XA_OK

    def abandon(self) -> None:
        if self._connection is not None:
            self._connection.cut("what was asked was interrupted")
        self.start_rollback()

    def _own(self, verb: str) -> Connection:
        if self._connection is None:
            raise xa_error(Code.XAER_RMFAIL, f"{verb}: the connection of the branch was given up", self.xid)
        return self._connection

    def _ask(self, kind: TransactionKind) -> Response:
        """Asks for something to be done with the branch."""
        return self._own(kind.name).ask(self._transaction(kind))

    def _transaction(self, kind: TransactionKind) -> TransactionInfo:
        connection = self._own(kind.name)
        return TransactionInfo(
            connection_id=connection.connection_id, transaction_id=transaction_id(self.xid), kind=kind.value
        )

    def _voted_against(self, refused: Refused) -> XaError:
        """The broker does not prepare the branch. It is rolled back, whatever the broker has done: a second prepare is
        never asked for, because Classic answers it as if the first had succeeded."""
        code = refused.code
        if code is Code.XAER_NOTA:
            logger.error(
                "%s: the broker did not know the branch any more when it was to be prepared; if this is Artemis, set "
                "branch_timeout below its transaction-timeout: messages may have been sent outside of the branch",
                self.xid,
            )
            self._leave(delivered=True)
            return xa_error(Code.XA_RBTIMEOUT, f"prepare: {refused}", self.xid)
        if code is Code.XAER_PROTO:  # another client prepared a branch of this xid
            self._learn(BeginningVerb.DOUBT)
        self._roll_back(self._own("prepare"))
        if code is None or code not in ROLLBACK_CODES:
            code = rollback_code_of(refused.cause)
        return xa_error(code, f"prepare: {refused}", self.xid)

    def _not_committed(self, refused: Refused) -> XaError:
        code = refused.code
        self._leave(delivered=True)
        if code is Code.XAER_NOTA:
            return xa_error(Code.XA_RBTIMEOUT, f"commit: the broker has rolled the branch back: {refused}", self.xid)
        if code in ROLLBACK_CODES and code is not None:
            return xa_error(code, f"commit: {refused}", self.xid)
        return xa_error(Code.XAER_RMFAIL, f"commit: what became of the branch is unknown: {refused}", self.xid)

    def _roll_back(self, connection: Connection) -> None:
        """Rolls back over its own connection, or where that is lost over another one."""
        if self._beginning not in ROLLED_BACK:
            self._leave(delivered=not self._excused)
            return

        try:
            connection.ask(self._transaction(TransactionKind.ROLLBACK))
        except Refused as refused:
            if refused.code is not Code.XAER_NOTA:
                logger.warning("%s: the broker could not roll it back: %s", self.xid, refused)
                connection.drop("its branch could not be rolled back")
        except ConnectionLost:
            pass
        lost = connection.lost is not None
        under_way = bool(self._unanswered)
        command = self._transaction(TransactionKind.ROLLBACK) if lost else None
        self._leave(delivered=not self._excused)
        if command is None:
            return
        if under_way:
            self._left.note(self.xid, 2 * self._settings.idle_timeout_s)
            return

        with contextlib.suppress(XaError, ConnectionLost, Refused):  # Classic has rolled it back with the connection
            other = self._pool.acquire(work=False)
            try:
                with other.lock:
                    other.ask(replace(command, connection_id=other.connection_id))
            finally:
                self._pool.release(other)

    def _lost(self, verb: str, lost: ConnectionLost) -> XaError:
        return xa_error(Code.XAER_RMFAIL, f"{verb}: {lost}", self.xid)

    def _leave(self, *, delivered: bool = False) -> None:
        """The branch's part is over: closes its consumers, and gives the connection back. With `delivered` its messages
        are counted as delivered in vain."""
        connection, self._connection = self._connection, None
        if connection is None:
            return

        with connection.lock, contextlib.suppress(ConnectionLost):
            for consumer in self._consumers.values():
                last = consumer.last if delivered else LAST_DELIVERED_NONE
                if consumer.counted and not delivered:
                    last = LAST_DELIVERED_UNKNOWN
                connection.endpoint.arrived.pop(consumer.consumer_id, None)
                connection.endpoint.send(RemoveInfo(object_id=consumer.consumer_id, last_delivered=last))
            if connection.lost is None:
                connection.flush()
        self._consumers.clear()
        self._received.clear()
        if self._unanswered or self._fault is not None:
            connection.drop("work of a branch failed on it")
        self._unanswered.clear()
        self._pool.release(connection)

    # --- work -------------------------------------------------------------------------------------------------
    def _working(self) -> Connection:
        """The connection, for work of the application's."""
        if self._doomed or self._connection is None:
            raise xa_error(Code.XA_RBROLLBACK, "work: the branch has been rolled back", self.xid)
        if self._fault is not None:
            raise self._fault
        if (
            self._beginning is not Beginning.UNSENT
            and time.monotonic() - self._began_at > self._settings.branch_timeout_s
        ):
            why = f"work: the branch is older than branch_timeout={self._settings.branch_timeout_s:g} s"
            self._fault = xa_error(Code.XA_RBTIMEOUT, why, self.xid)
            raise self._fault
        return self._connection

    def _begin(self, connection: Connection) -> None:
        """Sends BEGIN with the first work."""
        if self._begun is None:
            self._began_at = time.monotonic()
            self._learn(BeginningVerb.SEND)
            if connection.endpoint.is_classic:
                self._looked = connection.send(recovery(connection))
            self._begun = connection.send(self._transaction(TransactionKind.BEGIN))

    def _learn(self, verb: BeginningVerb) -> None:
        self._beginning = advance(BEGINNING, self._beginning, verb)

    def _await_begin(self, connection: Connection) -> None:
        """The broker has the branch. Work of a branch that it does not know would not be undone."""
        if self._beginning is Beginning.OURS or self._taken is not None:
            return
        self._begin(connection)
        assert self._begun is not None  # noqa: S101 — it was sent
        self._learn(BeginningVerb.AWAIT)

        try:
            listed = [] if self._looked is None else in_doubt(connection.wait(self._looked))
            connection.wait(self._begun)
        except Refused as refused:
            is_taken = refused.code is Code.XAER_DUPID
            why = f"work: the broker does not begin the branch: {refused}"
        else:
            is_taken = transaction_id(self.xid) in listed
            if not is_taken:
                self._learn(BeginningVerb.CONFIRM)
                return
            why = "work: another client has prepared a branch with this xid, and xids must be unique"
        if is_taken:
            self._learn(BeginningVerb.FIND_TAKEN)
            self._taken = xa_error(Code.XAER_DUPID, why, self.xid)
            return
        self._fault = xa_error(Code.XA_RBPROTO, why, self.xid)
        raise self._fault

    def _do(self, connection: Connection, command: Command) -> None:
        """Sends work whose answer is collected later."""
        if len(self._unanswered) >= MAX_UNANSWERED:
            self._collect()
        self._unanswered.append(connection.send(command))

    def _collect(self) -> None:
        """Waits for the answer to all work."""
        connection = self._own("end")
        if self._begun is not None:
            self._await_begin(connection)
        while self._unanswered:
            try:
                connection.wait(self._unanswered[0])
            except Refused as refused:
                if self._fault is None:
                    self._fault = self._work_refused(refused)
            self._unanswered.pop(0)
            if self._fault is not None:
                return  # which answers are still to come is not certain: Artemis may attribute them wrongly

    def _work_refused(self, refused: Refused) -> XaError:
        code = refused.code
        if code is None or code not in ROLLBACK_CODES:
            code = Code.XA_RBTIMEOUT if code is Code.XAER_NOTA else rollback_code_of(refused.cause)
        return xa_error(code, f"work: {refused}", self.xid)

    def send(self, address: str, message: Encodable) -> None:
        """Sends a message in the branch."""
        wire = encoded_message(message, time.time())
        connection = self._working()
        with connection.lock, self._losing("send"):
            if isinstance(destination := destination_of(address), (TemporaryQueue, TemporaryTopic)):
                self._look_for(connection, address, destination)
            self._send(connection, address, wire)

    def _look_for(self, connection: Connection, address: str, destination: Destination) -> None:
        """XAER_INVAL: this temporary queue is gone. A message to it would end the branch."""
        self._collect()
        if self._fault is not None:
            raise self._fault
        producer = connection.new_producer()
        try:
            connection.ask(ProducerInfo(producer_id=producer, destination=destination))
        except Refused as refused:
            raise xa_error(Code.XAER_INVAL, f"work: {address} can't be sent to: {refused}") from None
        connection.tell(RemoveInfo(object_id=producer))

    def _send(self, connection: Connection, address: str, wire: WireMessage) -> None:
        self._await_begin(connection)
        if self._taken is not None:
            return
        wire.producer_id, wire.destination = connection.producer_id, destination_of(address)
        wire.transaction_id = transaction_id(self.xid)
        wire.message_id = connection.new_message()
        if self._sending is not None and self._sending in self._unanswered:
            self._collect()
            if self._fault is not None:
                raise self._fault
        try:
            self._do(connection, wire)
            self._sending = None if connection.endpoint.is_classic else self._unanswered[-1]
        except ValueError as error:
            raise xa_error(Code.XAER_INVAL, f"work: the message can't be sent: {error}") from None

    def receive(self, address: str, timeout_s: float | None, selector: str | None) -> Message:
        """The next message; NoMessage."""
        connection = self._working()
        with connection.lock, self._losing("receive"):
            consumer = self._consumer(connection, address, selector)
            message = self._next(connection, consumer, self._patience(timeout_s))
        if message is None:
            raise NoMessage(f"no message from {address} in time")
        return message

    def receive_batch(self, address: str, count: int, timeout_s: float | None) -> list[Message]:
        """The first message that comes in time, and what else there is at once."""
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"receive_batch: count {count} is below 1")
        connection = self._working()
        with connection.lock, self._losing("receive"):
            consumer = self._consumer(connection, address, None)
            first = self._next(connection, consumer, self._patience(timeout_s))
            if first is None:
                return []
            messages = [first]
            self._pull(connection, consumer, count - 1 - len(consumer.arrived), PULLED_MS)
            while len(messages) < count:
                if not consumer.arrived and not consumer.pulls:
                    break
                dispatch = self._await(connection, consumer, self._settings.timeout_s)
                if dispatch is None or dispatch.message is None:
                    if consumer.pulls:
                        continue
                    break

                try:
                    messages.append(self._take(connection, consumer, dispatch))
                except XaError:
                    consumer.arrived.appendleft(dispatch)
                    break
        return messages

    def _patience(self, timeout_s: float | None) -> float:
        return self._settings.timeout_s if timeout_s is None else timeout_s

    def _consumer(self, connection: Connection, address: str, selector: str | None) -> Consumer:
        consumer = self._consumers.get((address, selector))
        if consumer is not None:
            return consumer
        destination = destination_of(address)
        if isinstance(destination, Topic):
            raise xa_error(Code.XAER_INVAL, f"work: {address} is a topic: a branch receives from queues only")

        self._begin(connection)
        info = ConsumerInfo(consumer_id=connection.new_consumer(), destination=destination, selector=selector)
        info.prefetch = self._settings.prefetch
        consumer = Consumer(_named(info), destination, connection.endpoint.add_consumer(info))
        try:
            connection.ask(info)
        except Refused as refused:
            connection.endpoint.arrived.pop(consumer.consumer_id, None)
            raise xa_error(Code.XAER_INVAL, f"work: {address} can't be received from: {refused}") from None
        self._consumers[address, selector] = consumer
        return consumer

    def _next(self, connection: Connection, consumer: Consumer, timeout_s: float) -> Message | None:
        """The next message, as the application's."""
        if not consumer.arrived and not self._settings.prefetch:
            self._pull(connection, consumer, 1 - consumer.pulls, PULLED_MS if timeout_s <= 0 else int(timeout_s * 1000))
        give_up = connection.deadline(max(timeout_s, SETTLE_S))

        while True:
            left_s = give_up - connection.deadline(0)
            if consumer.pulls:
                left_s = max(left_s, 0.0) + self._settings.timeout_s
            dispatch = self._await(connection, consumer, left_s)
            if dispatch is None:
                if consumer.pulls:
                    raise ConnectionLost("the broker does not answer in time")
                return None
            if dispatch.message is not None:
                return self._take(connection, consumer, dispatch, first=True)
            if not consumer.pulls and not self._settings.prefetch:
                return None

    def _pull(self, connection: Connection, consumer: Consumer, count: int, timeout_ms: int) -> None:
        """Asks for so many messages more."""
        if self._settings.prefetch:
            return
        for _ in range(count):
            connection.endpoint.send(
                MessagePull(consumer_id=consumer.consumer_id, destination=consumer.destination, timeout_ms=timeout_ms)
            )
            consumer.pulls += 1
        connection.flush()

    def _await(self, connection: Connection, consumer: Consumer, timeout_s: float) -> MessageDispatch | None:
        """What is dispatched next to the consumer; None: nothing, in time."""
        if not connection.wait_until(lambda: bool(consumer.arrived), connection.deadline(timeout_s)):
            return None
        consumer.pulls = max(consumer.pulls - 1, 0)
        return consumer.arrived.popleft()

    def _take(
        self, connection: Connection, consumer: Consumer, dispatch: MessageDispatch, *, first: bool = False
    ) -> Message:
        """The message is the application's, and is acknowledged when the branch ends."""
        wire, before = dispatch.message, consumer.last
        assert wire is not None  # noqa: S101 — the caller has looked
        if wire.message_id is not None:
            consumer.last = max(consumer.last, wire.message_id.broker_sequence)
        if self._settings.prefetch:
            self._widen(connection, consumer, wire)

        try:
            message = decoded_message(wire, dispatch.redeliveries)
        except XaError as error:
            if first:  # it is put away when the branch is committed
                self._put_away(connection, UnacknowledgedMessage(None, dispatch, consumer, before))  # type: ignore[arg-type]
                where = self._settings.dead_letter_queue
                raise xa_error(error.code, f"{error.message}. Catch this and commit, and it goes to {where}") from error
            raise
        self._received[id(message)] = UnacknowledgedMessage(message, dispatch, consumer, before)
        return message

    @staticmethod
    def _widen(connection: Connection, consumer: Consumer, wire: WireMessage) -> None:
        """The broker may send one more: this one is acknowledged only when the branch ends."""
        command = MessageAck(destination=consumer.destination, consumer_id=consumer.consumer_id, count=1)
        command.kind, command.first, command.last = AckKind.DELIVERED.value, wire.message_id, wire.message_id
        connection.tell(command)

    def _acknowledge(self) -> None:
        """Acknowledges, in their order, the messages that nothing else was said of."""
        waiting = [one for one in self._received.values() if not one.settled]
        if waiting:
            self._await_begin(self._own("end"))
        for received in waiting:
            self._settle(self._own("end"), received)

    def _settle(self, connection: Connection, received: UnacknowledgedMessage) -> None:
        """Takes a message, when the branch is committed."""
        received.settled = True
        name = received.wire.message_id
        self._await_begin(connection)
        if self._taken is not None:
            return

        self._do(
            connection,
            MessageAck(
                destination=received.consumer.destination,
                transaction_id=transaction_id(self.xid),
                consumer_id=received.consumer.consumer_id,
                kind=AckKind.STANDARD.value,
                first=name,
                last=name,
                count=1,
            ),
        )

    # --- outcomes ---------------------------------------------------------------------------------------------
    def release(self, message: Message, *, counted: bool = False) -> None:
        """Gives a received message back when the branch ends. `counted`: as delivered in vain, together with what else
        is given back to the queue."""
        received = self._held(message)
        received.settled = True
        received.consumer.counted = received.consumer.counted or counted

    def put_back(self, messages: Sequence[Message]) -> None:
        """Received messages, the last ones, are as if they had not been received: they are the next again for this
        branch, and go back when it ends."""
        for received in [self._held(message) for message in reversed(messages)]:
            del self._received[id(received.message)]
            received.consumer.arrived.appendleft(received.dispatch)
            received.consumer.last = received.before

    def excuse(self, *, excused: bool) -> None:
        """Whether the branch, which is rolled back before it is ended, is not to count its messages as delivered in
        vain. The brokers count those that were acknowledged, as `end` does, by themselves."""
        self._excused = excused

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        """Sends a received message to an address, and takes it."""
        received = self._held(message)
        connection = self._working()
        with connection.lock, self._losing("send"):
            self._put_away(connection, received, address, {DEAD + name: value for name, value in annotations.items()})

    def _put_away(
        self,
        connection: Connection,
        received: UnacknowledgedMessage,
        address: str | None = None,
        annotations: Mapping[str, str | int] | None = None,
    ) -> None:
        copy = replace(received.wire, expiration_ms=0, redeliveries=0, persistent=True, response_required=False)
        copy.original_destination, copy.target, copy.original_transaction_id = None, None, None
        if annotations:
            copy.properties = encode_map({**(decode_map(copy.properties) if copy.properties else {}), **annotations})
        self._send(connection, address or self._settings.dead_letter_queue, copy)
        self._settle(connection, received)

    def _held(self, message: Message) -> UnacknowledgedMessage:
        received = self._received.get(id(message))
        if received is None or received.message is not message or received.settled:
            raise xa_error(Code.XAER_PROTO, "work: this message was not received here, or it is settled already")
        return received

    # --- browsing ---------------------------------------------------------------------------------------------
    def browse(self, address: str, selector: str | None) -> list[Message]:
        """Every message that is available now."""
        connection = self._working()
        info = ConsumerInfo(browser=True, destination=destination_of(address), selector=selector, prefetch=BROWSED)
        with connection.lock, self._losing("browse"):
            info.consumer_id = connection.new_consumer()
            consumer = Consumer(info.consumer_id, destination_of(address), connection.endpoint.add_consumer(info))
            found: list[Message] = []
            try:
                connection.ask(info)
                while True:
                    dispatch = self._await(connection, consumer, self._settings.timeout_s)
                    if dispatch is None:
                        raise ConnectionLost("the broker does not end the browsing in time")
                    wire = dispatch.message
                    if wire is None:
                        break

                    with contextlib.suppress(XaError):
                        found.append(decoded_message(wire, dispatch.redeliveries))
                    connection.tell(
                        MessageAck(
                            destination=consumer.destination,
                            consumer_id=consumer.consumer_id,
                            kind=AckKind.STANDARD.value,
                            first=wire.message_id,
                            last=wire.message_id,
                            count=1,
                        )
                    )
            except Refused as refused:
                raise xa_error(Code.XAER_INVAL, f"work: {address} can't be browsed: {refused}") from None
            finally:
                connection.endpoint.arrived.pop(info.consumer_id, None)
            connection.tell(RemoveInfo(object_id=info.consumer_id))
        return found

    @contextlib.contextmanager
    def _losing(self, verb: str) -> Iterator[None]:
        """Raises the loss of the connection as an XA error."""
        try:
            yield
        except ConnectionLost as lost:
            if self._doomed:
                raise xa_error(Code.XA_RBROLLBACK, "work: the branch has been rolled back", self.xid) from None
            raise self._lost(verb, lost) from None


def _named(info: ConsumerInfo) -> ConsumerId:
    assert info.consumer_id is not None  # noqa: S101 — it was given one
    return info.consumer_id
