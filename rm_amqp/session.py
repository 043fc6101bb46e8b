"""Sessions, with which an application consumes and produces messages: the native interface of a messaging resource
manager.

There is no commit here: the transaction manager owns outcomes. What was received is taken, and what was sent is made
available, when the branch is committed. When it is rolled back, what was sent never was, and what was received is
available again, in its old place, with its delivery-count raised.

`Session` blocks; `Session.aio` has the same operations for asyncio.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from dtx.amqp.conditions import Condition
from dtx.amqp.messages import DELIVERY_DELAY, read_header, with_header, with_message_annotations
from dtx.amqp.values import Long, Symbol, Timestamp, Ulong
from dtx.protocol.capabilities import DELAYED_DELIVERY, FAILURE_REASONS, OUTCOMES_OF_ROLLBACK
from dtx.protocol.conditions import RefusedError
from rm_amqp.channel.message_links import BROWSED
from rm_amqp.channel.work import REJECT, RELEASE, modify
from rm_amqp.connection.event_loop import run_async
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut, lost_error, work_error
from rm_amqp.message import Message, encoded, is_delayed, read
from rm_amqp.session_contract import NoMessage
from xa import Code, XaError, xa_error
from xa.topics import source_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from dtx.amqp.values import Map, Value
    from rm_amqp.channel.channel import Channel
    from rm_amqp.channel.message_links import Browser, MessageLinks
    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.channel.work import ReceivedMessage, Work
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.connection.links import ArrivedMessage
    from rm_amqp.message import Encodable
    from xa import Xid
    from xa.driver import SessionContext

T = TypeVar("T")
LATER_OCTETS: Final = 4096
"""The most octets that wait to be written, where nothing else is to be written: the broker works meanwhile."""
RETRY_REASON: Final = "x-opt-retry-reason"
RETRY_PLACE: Final = "x-opt-retry-place"
RETRY_APART: Final = "x-opt-retry-apart"
RETRIED: Final = "x-opt-retry-"
TEXTS_OF_DEAD_LETTERS: Final = (1 << 20, 100, 0)
"""Characters of each text that goes with a dead letter: fewer, where the broker takes no message of that size."""
"""So begin the message annotations of a message that is put off. A dead letter that is sent again is a new message."""
REFUSED_AT_COMMIT: Final = "Catch this and commit, and the broker takes it for refused: it goes to the dead letters"
TOGETHER: Final = 32
"""Messages of a batch that are handed to the connection together."""


class ChannelSource(Protocol):
    """The source of deadlines for sessions, and of channels for work that belongs to no transaction."""

    def deadline(self, timeout_s: float | None = None) -> float:
        """The time, on the clock of connections, that is so many seconds from now; None: as settings say."""
        ...

    def borrowed(self) -> AbstractContextManager[PooledChannel[Channel]]:
        """A channel, for the length of a block."""
        ...


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of sessions, as steps. Each takes the links and the work that it is carried out with. `deadline`
    is that of a `ChannelSource`."""

    deadline: Callable[[float | None], float]

    def receive(self, address: str, timeout_s: float | None, *, acquire: bool) -> Operation[Message]:
        deadline = self.deadline(timeout_s)

        async def steps(links: MessageLinks, work: Work | None) -> Message:
            patience = max(deadline, self.deadline(None))
            arrived = await links.receive(address, work, deadline, patience, acquire=acquire)
            if arrived is None:
                raise NoMessage(f"no message from {address} in time")
            return _taken(links, work, arrived)

        return steps

    def receive_batch(self, address: str, count: int, timeout_s: float | None) -> Operation[list[Message]]:
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"receive_batch: count {count} is below 1")
        deadline = self.deadline(timeout_s)

        async def steps(links: MessageLinks, work: Work | None) -> list[Message]:
            patience = max(deadline, self.deadline(None))
            batch = await links.receive_batch(address, count, work, deadline, patience)
            taken: list[Message] = []
            for number, arrived in enumerate(batch):
                try:
                    taken.append(_taken(links, work, arrived, first=not taken))
                except XaError:
                    arrived.link.arrived.extendleft(reversed(batch[number + bool(not taken) :]))
                    if not taken:
                        raise
                    break
            return taken

        return steps

    def send(self, address: str, octets: bytes) -> Operation[None]:
        return lambda links, work: links.send(address, octets, work, self.deadline(None))

    @staticmethod
    def delayed(operation: Operation[None]) -> Operation[None]:
        """An operation that sends messages which are to be delivered later. XAER_INVAL: the broker does not do that."""

        def steps(links: MessageLinks, work: Work | None) -> Steps[None]:
            links.check_offered(DELAYED_DELIVERY)
            return operation(links, work)

        return steps

    def send_batch(self, address: str, messages: Sequence[bytes]) -> Operation[None]:
        async def steps(links: MessageLinks, work: Work | None) -> None:
            if work is not None:
                await links.post(address, messages, work, self.deadline(None))
                return
            for octets in messages:
                await links.send(address, octets, None, self.deadline(None))

        return steps

    def gather(self, address: str, count: int) -> Operation[list[bytes]]:
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"gather: count {count} is below 1")
        return lambda links, work: links.gather(address, count, _branch_of(work), self.deadline(None))

    def post(self, address: str, messages: Sequence[bytes]) -> Operation[None]:
        return lambda links, work: links.post(address, messages, _branch_of(work), self.deadline(None))

    def browser(self, address: str) -> Operation[Browser]:
        """What `browse` reads."""
        return lambda links, work: links.browser(address, work, self.deadline(None))

    def browse(self, receiver: Browser) -> Operation[list[ArrivedMessage]]:
        """The next messages; fewer than BROWSED at the end."""
        return lambda links, work: links.browse(receiver, work, self.deadline(None))

    @staticmethod
    def close(receiver: Browser) -> Operation[None]:
        """Gives it up."""

        async def steps(_links: MessageLinks, _work: Work | None) -> None:
            receiver.close()

        return steps

    @staticmethod
    def decide(message: Message, outcome: bytes) -> Operation[None]:
        """The outcome of a message, when the branch is committed."""

        async def steps(links: MessageLinks, work: Work | None) -> None:
            held = _held(links, work, message)
            links.check_outcome(outcome)
            held.outcome = outcome

        return steps

    @staticmethod
    def put_back(messages: Sequence[Message], *, stay: bool) -> Operation[None]:
        """Received messages are as if they had not been received. They stay with the channel, or go back to the broker
        before anything is received again."""

        async def steps(links: MessageLinks, work: Work | None) -> None:
            held = [_held(links, work, message) for message in messages]
            for one in reversed(held):
                del _branch_of(work).held[id(one.message)]
                one.arrived.link.arrived.appendleft(one.arrived)
            links.recall = links.recall or not stay

        return steps

    @staticmethod
    def explain(message: Message, reason: str, place: str) -> Operation[None]:
        """What a message has failed with, for a branch that is rolled back now."""

        async def steps(links: MessageLinks, work: Work | None) -> None:
            held = _held(links, work, message)
            notes: Map = {Symbol(RETRY_REASON): reason}
            if place:
                notes[Symbol(RETRY_PLACE)] = place
            modified = modify(failed=True, undeliverable=False, annotations=notes)
            if links.offers(OUTCOMES_OF_ROLLBACK):
                held.rolled_back = modified
            elif links.offers(FAILURE_REASONS):
                held.outcome = modified

        return steps

    @staticmethod
    def excuse(messages: Sequence[Message] | None, reason: str, place: str) -> Operation[bool]:
        """Messages that a rollback of the branch is not to count as delivered in vain."""

        async def steps(links: MessageLinks, work: Work | None) -> bool:
            if not links.offers(OUTCOMES_OF_ROLLBACK):
                return False
            notes: Map = {Symbol(RETRY_APART): True}
            if reason:
                notes[Symbol(RETRY_REASON)] = reason
            if reason and place:
                notes[Symbol(RETRY_PLACE)] = place

            modified = modify(failed=False, undeliverable=False, annotations=notes)
            if messages is None:
                links.check_work(work)
                excused = [held for held in _branch_of(work).held.values() if not held.rolled_back]
            else:
                excused = [_held(links, work, message) for message in messages]
            for held in excused:
                held.rolled_back = modified
            return True

        return steps

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> Operation[None]:
        async def steps(links: MessageLinks, work: Work | None) -> None:
            octets = _held(links, work, message).arrived.octets
            octets = with_header(octets, read_header(octets), delivery_count=0, ttl_ms=None)

            for most in TEXTS_OF_DEAD_LETTERS:
                noted: Map = {
                    Symbol(f"x-opt-dead-{name.removesuffix('-ms')}"): _annotation(name, _cut(name, value, most))
                    for name, value in annotations.items()
                }
                letter = with_message_annotations(octets, noted, without=RETRIED)
                try:
                    await links.send(address, letter, work, self.deadline(None))
                except RefusedError as error:
                    if error.refusal.condition != Condition.MESSAGE_SIZE or not most:
                        raise
                else:
                    return

        return steps

    def put_off(
        self, message: Message, address: str, delay_ms: int, annotations: Mapping[str, str | int]
    ) -> Operation[None]:
        noted: Map = {Symbol(name): _plain_annotation(value) for name, value in annotations.items()}
        noted[Symbol(DELIVERY_DELAY)] = Long(delay_ms)

        async def steps(links: MessageLinks, work: Work | None) -> None:
            octets = _held(links, work, message).arrived.octets
            header = read_header(octets)
            octets = with_header(octets, header, delivery_count=0, ttl_ms=header.ttl_ms)
            octets = with_message_annotations(octets, noted)
            await links.send(address, octets, work, self.deadline(None))

        return self.delayed(steps)


class Session:
    """Messages, under the branch that the thread of control is associated with when it calls.

    Raised: XaMisuse (XAER_PROTO: no association, another thread's session, or the association has ended; XAER_INVAL:
    no such queue, or the message is too large), BranchRolledBack (the branch is rollback-only), ResourceUnavailable
    (the connection was lost, and the branch with it; open again), ResourceError (the broker does not allow it),
    TryAgain (the broker takes no messages now). Outside of any transaction (only where the resource manager registers
    dynamically) a message is taken when `receive` returns, and the broker's when `send` does.
    """

    def __init__(self, channels: ChannelSource, context: SessionContext[Work]) -> None:
        self.operations = Operations(channels.deadline)
        self._channels = channels
        self._context = context
        self._later = 0
        """Octets that were sent, and may not be written yet."""

    @property
    def aio(self) -> AsyncSession:
        """The same, for asyncio."""
        return AsyncSession(self)

    # -- one message
    def receive(
        self, address: str, timeout_s: float | None = None, *, acquire: bool = False, subscription: str | None = None
    ) -> Message:
        """The next message; NoMessage where none comes in time (0: where there is none now). From a topic it comes by a
        `subscription`, which is made by the first one who names it, and lasts until somebody deletes it.

        With `acquire` the broker sends it as part of the transaction, and has it back at once when that is rolled
        back; otherwise the message is acquired first, so that messages can be sent ahead (`prefetch`).
        """
        if subscription is not None:
            address = _source_of(address, subscription)
        return self.run(self.operations.receive(address, timeout_s, acquire=acquire), later=True)

    def receive_batch(
        self, address: str, count: int, timeout_s: float | None = None, *, subscription: str | None = None
    ) -> list[Message]:
        if subscription is not None:
            address = _source_of(address, subscription)
        return self.run(self.operations.receive_batch(address, count, timeout_s), later=True)

    def send(self, address: str, message: Encodable) -> None:
        octets = encoded(message)
        operation = self.operations.send(address, octets)
        if is_delayed(message):
            operation = self.operations.delayed(operation)
        self.run(operation, later=self.leaves_later(len(octets)))

    def send_batch(self, address: str, messages: Iterable[Encodable]) -> None:
        """Sends messages, as `send` does one after the other, for less."""
        for some, delayed in self.portions(messages):
            later = self.leaves_later(sum(map(len, some)))
            operation = self.operations.send_batch(address, some)
            self.run(self.operations.delayed(operation) if delayed else operation, later=later)

    def portions(self, messages: Iterable[Encodable]) -> Iterator[tuple[list[bytes], bool]]:
        """The messages as octets, some at a time: the broker works on those before, while the next ones are encoded.
        And whether some of them are to be delivered later."""
        rest = iter(messages)
        while some := list(islice(rest, TOGETHER)):
            yield list(map(encoded, some)), any(map(is_delayed, some))

    def leaves_later(self, octets: int) -> bool:
        """Whether so many octets of messages may leave with the next call: few were sent since the last write."""
        self._later += octets
        if self._later < LATER_OCTETS:
            return True
        self._later = 0
        return False

    def browse(self, address: str) -> Iterator[Message]:
        receiver = self.run(self.operations.browser(address))
        while True:
            page = self.run(self.operations.browse(receiver))
            yield from (read(arrived.octets) for arrived in page)
            if len(page) < BROWSED:
                break
        self.run(self.operations.close(receiver), later=True)

    def release(self, message: Message) -> None:
        self.run(self.operations.decide(message, RELEASE), later=True)

    def reject(self, message: Message) -> None:
        self.run(self.operations.decide(message, REJECT), later=True)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        outcome = modify(failed=failed, undeliverable=undeliverable)
        self.run(self.operations.decide(message, outcome), later=True)

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        """They are kept by the client, as messages are that were prefetched. Without `stay`, and where the branch does
        not commit, they go back to the broker before anything is received again."""
        self.run(self.operations.put_back(messages, stay=stay), later=True)

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        self.run(self.operations.dead_letter(message, address, annotations), later=True)

    def put_off(self, message: Message, address: str, delay_ms: int, annotations: Mapping[str, str | int]) -> None:
        """Sends a received message to an address, as it came but with these message annotations beside its own, to be
        delivered so many milliseconds after the commit by the broker's clock, and takes it, when the branch is
        committed. A broker that does not say that it has messages for later is not asked."""
        self.run(self.operations.put_off(message, address, delay_ms, annotations), later=True)

    def explain(self, message: Message, reason: str, place: str = "") -> None:
        """Tells what a received message has failed with, before its branch is rolled back, and only then: the receiver
        that gets it next finds it among its `instructions`, as `x-opt-retry-reason`, and the place in the code as
        `x-opt-retry-place`. A broker that does not say that it can do so gets nothing."""
        self.run(self.operations.explain(message, reason, place), later=True)

    def excuse(self, messages: Sequence[Message] | None, reason: str = "", place: str = "") -> bool:
        """Tells that received messages are not to be counted as delivered in vain, should their branch be rolled back,
        until `explain` is called for one of them. None: all of which nothing was said. The next receiver of one finds
        among its `instructions` that it is to be handled alone (`x-opt-retry-apart`), and the reason. False: the broker
        can't do that, and counts them."""
        return self.run(self.operations.excuse(messages, reason, place), later=True)

    # -- in bulk
    def gather(self, address: str, count: int) -> list[bytes]:
        """The messages that an address has now, at most `count`, as octets, taken by the branch: in the order in which
        a browse of the branch tells them. Nothing can be said of a single one. It is made for thousands."""
        return self.run(self.operations.gather(address, count), later=True)

    def post(self, address: str, messages: Sequence[bytes]) -> None:
        """Sends encoded messages. If the broker refuses one, the end or the prepare of the branch raises the error."""
        self.run(self.operations.post(address, messages))

    # -- running
    def run(self, operation: Operation[T], *, later: bool = False) -> T:
        """Runs an operation for the calling thread's branch."""
        work = self._context.current() or self._context.register()
        if work is None:
            return self._run_outside(operation)
        pooled = work.pooled
        try:
            return pooled.connection.run(operation(pooled.channel.messages, work), later=later)
        except (RefusedError, ConnectionLost, TimedOut) as error:
            raise self._error(error, work.xid) from None

    def _run_outside(self, operation: Operation[T]) -> T:
        """Runs an operation that belongs to no transaction."""
        try:
            with self._channels.borrowed() as pooled:
                return pooled.connection.run(operation(pooled.channel.messages, None))
        except (RefusedError, ConnectionLost, TimedOut) as error:
            raise self._error(error) from None
        finally:
            self._context.unregister()

    async def run_async(self, operation: Operation[T], *, later: bool = False) -> T:
        """The same as `run`, waiting in the event loop. Where the resource manager registers itself, or makes a
        connection, that is done first, in a worker thread."""
        work = self._context.current() or await asyncio.to_thread(self._context.register)
        if work is None:
            return await self._run_outside_async(operation)
        pooled = work.pooled
        try:
            return await run_async(pooled.connection, operation(pooled.channel.messages, work), later=later)
        except (RefusedError, ConnectionLost, TimedOut) as error:
            raise self._error(error, work.xid) from None

    async def _run_outside_async(self, operation: Operation[T]) -> T:
        try:
            with ExitStack() as stack:
                pooled = await asyncio.to_thread(stack.enter_context, self._channels.borrowed())
                return await run_async(pooled.connection, operation(pooled.channel.messages, None))
        except (RefusedError, ConnectionLost, TimedOut) as error:
            raise self._error(error) from None
        finally:
            self._context.unregister()

    def _error(self, error: RefusedError | ConnectionLost | TimedOut, xid: Xid | None = None) -> XaError:
        """The result of work, as an XA code."""
        if isinstance(error, RefusedError):
            return work_error(error.refusal)
        if isinstance(error, AllInUse):
            return xa_error(Code.XA_RETRY, f"work: {error}")
        return self._context.failed(lost_error("work", error, xid))


def _source_of(address: str, subscription: str) -> str:
    try:
        return source_of(address, subscription)
    except ValueError as error:
        raise xa_error(Code.XAER_INVAL, f"receive: {error}") from None


class AsyncSession:
    """A session for asyncio: the same operations, waiting in the event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._operations = session.operations

    async def receive(
        self, address: str, timeout_s: float | None = None, *, acquire: bool = False, subscription: str | None = None
    ) -> Message:
        if subscription is not None:
            address = _source_of(address, subscription)
        operation = self._operations.receive(address, timeout_s, acquire=acquire)
        return await self._session.run_async(operation, later=True)

    async def receive_batch(
        self, address: str, count: int, timeout_s: float | None = None, *, subscription: str | None = None
    ) -> list[Message]:
        if subscription is not None:
            address = _source_of(address, subscription)
        return await self._session.run_async(self._operations.receive_batch(address, count, timeout_s), later=True)

    async def send(self, address: str, message: Encodable) -> None:
        octets = encoded(message)
        later = self._session.leaves_later(len(octets))
        operation = self._operations.send(address, octets)
        if is_delayed(message):
            operation = self._operations.delayed(operation)
        await self._session.run_async(operation, later=later)

    async def send_batch(self, address: str, messages: Iterable[Encodable]) -> None:
        for some, delayed in self._session.portions(messages):
            later = self._session.leaves_later(sum(map(len, some)))
            operation = self._operations.send_batch(address, some)
            await self._session.run_async(self._operations.delayed(operation) if delayed else operation, later=later)

    async def browse(self, address: str) -> AsyncIterator[Message]:
        receiver = await self._session.run_async(self._operations.browser(address))
        while True:
            page = await self._session.run_async(self._operations.browse(receiver))
            for arrived in page:
                yield read(arrived.octets)
            if len(page) < BROWSED:
                break
        await self._session.run_async(self._operations.close(receiver))

    async def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        await self._session.run_async(self._operations.dead_letter(message, address, annotations))

    async def put_off(
        self, message: Message, address: str, delay_ms: int, annotations: Mapping[str, str | int]
    ) -> None:
        await self._session.run_async(self._operations.put_off(message, address, delay_ms, annotations))

    def release(self, message: Message) -> None:
        self._session.release(message)

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        self._session.put_back(messages, stay=stay)

    def reject(self, message: Message) -> None:
        self._session.reject(message)

    def explain(self, message: Message, reason: str, place: str = "") -> None:
        self._session.explain(message, reason, place)

    def excuse(self, messages: Sequence[Message] | None, reason: str = "", place: str = "") -> bool:
        return self._session.excuse(messages, reason, place)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        self._session.modify(message, failed=failed, undeliverable=undeliverable)


def _taken(links: MessageLinks, work: Work | None, arrived: ArrivedMessage, *, first: bool = True) -> Message:
    """The message is the application's. XAER_RMERR: it can't be decoded; where it is the `first`, it is refused."""
    if work is None:
        links.settle(arrived)
        return read(arrived.octets)
    try:
        message = read(arrived.octets)
    except XaError as error:
        if first:  # it is refused when the branch is committed
            work.hold(arrived, arrived)
            work.held[id(arrived)].outcome = REJECT
            raise xa_error(error.code, f"{error.message}. {REFUSED_AT_COMMIT}") from error
        raise
    work.hold(arrived, message)
    return message


def _plain_annotation(value: str | int) -> Value:
    return value if isinstance(value, str) else Long(value)


def _annotation(name: str, value: str | int) -> str | Timestamp | Ulong:
    if isinstance(value, str):
        return value
    return Timestamp(value) if name.endswith("-ms") else Ulong(value)


def _cut(name: str, value: str | int, most: int) -> str | int:
    """A text of at most so many characters; the end of a place, which has line and function."""
    if isinstance(value, int) or len(value) <= most:
        return value
    return value[len(value) - most :] if name == "place" else value[:most]


def _held(links: MessageLinks, work: Work | None, message: Message) -> ReceivedMessage:
    """A message whose outcome is not sent yet."""
    links.check_work(work)
    held = work.held.get(id(message)) if work is not None else None
    if held is None:
        raise xa_error(Code.XAER_PROTO, "work: this message was not received here, or it is settled already")
    return held


def _branch_of(work: Work | None) -> Work:
    if work is None:
        raise xa_error(Code.XAER_PROTO, "work: in bulk it is done under a branch only")
    return work


if TYPE_CHECKING:
    Operation = Callable[[MessageLinks, Work | None], Steps[T]]
