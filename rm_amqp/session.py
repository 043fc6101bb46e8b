"""Session: the resource manager's native interface: what an application consumes and produces messages with.

There is no commit here: the transaction manager owns outcomes. What was received is taken, and what was sent is made
available, when the branch is committed. When it is rolled back, what was sent never was, and what was received is
available again, in its old place, with its delivery-count raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from proton import Message, MessageException

from dtx.protocol.conditions import RefusedError
from dtx.protocol.messages import read_header, with_header, with_message_annotations
from dtx.protocol.values import Symbol, Timestamp, Ulong
from rm_amqp.aio import run_async
from rm_amqp.association import REJECT, RELEASE, modify
from rm_amqp.bulk import BROWSED
from rm_amqp.connected import refusal_error
from rm_amqp.loss import ConnectionLost, TimedOut
from rm_amqp.messages import decoded, encoded
from xa import ROLLBACK_CODES, Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from rm_amqp.association import Association, Held
    from rm_amqp.bulk import BulkChannel
    from rm_amqp.channel import Channel
    from rm_amqp.core import Steps
    from rm_amqp.links import Arrived, Receiver
    from rm_amqp.pool import Seat
    from rm_amqp.standing import Standing
    from rm_amqp.work import Workplace

T = TypeVar("T")
LATER_OCTETS: Final = 4096
"""What may be sent before it is written, where nothing else is to be written: the broker works meanwhile."""
_UNREADABLE: Final = (MessageException, ValueError, OverflowError, TypeError)
"""What proton raises for octets that are no message; but for the first: for values out of range, and for keys of maps
that Python can't have."""
_AS_TOLD: Final = ROLLBACK_CODES | {Code.XAER_PROTO, Code.XAER_INVAL, Code.XA_RETRY, Code.XAER_RMFAIL}


class NoMessage(TimeoutError):
    """No message came in time. Nothing has happened; the transaction goes on."""


def work_error(error: RefusedError) -> XaError:
    """What the broker refused of work: an address that it does not know is the caller's mistake."""
    refusal = error.refusal
    if refusal.code in _AS_TOLD:
        return refusal_error("work", refusal)
    code = Code.XAER_INVAL if refusal.code is Code.XAER_NOTA else Code.XAER_RMERR
    return xa_error(code, f"work: {refusal.description or refusal.condition} ({refusal.condition})", refusal.xid)


class Session:
    """Messages, under the branch that the thread of control is associated with when it calls.

    Raised: XaMisuse (XAER_PROTO: no association, another thread's session, or the association has ended; XAER_INVAL:
    no such queue, or the message is too large), BranchRolledBack (the branch is rollback-only), ResourceUnavailable
    (the connection was lost, and the branch with it; open again), ResourceError (the broker does not allow it),
    TryAgain (the broker takes no messages now). Outside of any transaction (only where the resource manager registers
    dynamically) a message is taken when `receive` returns, and the broker's when `send` does.
    """

    def __init__(self, workplace: Workplace, standing: Standing) -> None:
        self._workplace = workplace
        self._standing = standing
        self._later = 0

    @property
    def aio(self) -> AsyncSession:
        """The same, for asyncio."""
        return AsyncSession(self)

    # -- the application's
    def receive(self, address: str, timeout_s: float | None = None, *, acquire: bool = False) -> Message:
        """The next message; NoMessage where none comes in time (0: where there is none now).

        With `acquire` the broker sends it as part of the transaction, and has it back at once when that is rolled
        back; otherwise the message is acquired first, which allows to have messages sent ahead (`prefetch`).
        """
        return self._work(self._receive(address, timeout_s, acquire=acquire), later=True)

    def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        """The first message that comes in time, and what else there is at once, at most `count`; [] for none. Where
        there is one that can't be read, what stands before it; XAER_RMERR where it is the first."""
        return self._work(self._receive_batch(address, count, timeout_s), later=True)

    def send(self, address: str, message: Message) -> None:
        """Sends a message. What is wrong with it is told when the branch is ended, or prepared."""
        octets = encoded(message)
        self._later += len(octets)
        self._work(self._send(address, octets), later=self._later < LATER_OCTETS)
        if self._later >= LATER_OCTETS:
            self._later = 0

    def gather(self, address: str, count: int) -> list[bytes]:
        """What an address has now, at most `count` messages, as octets, taken by the branch: in the order in which a
        browse of the branch tells them. Nothing can be said of a single one. It is made for thousands."""
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"gather: count {count} is below 1")

        def steps(channel: BulkChannel, association: Association | None) -> Steps[list[bytes]]:
            return channel.gather(address, count, _branch_of(association), self._patience())

        return self._work(steps, later=True)

    def post(self, address: str, messages: Sequence[bytes]) -> None:
        """Sends encoded messages. What is wrong with one is told when the branch is ended, or prepared."""

        def steps(channel: BulkChannel, association: Association | None) -> Steps[None]:
            return channel.post(address, messages, _branch_of(association), self._patience())

        self._work(steps)

    def browse(self, address: str) -> Iterator[Message]:
        """Every message that is available now, in their order, taking none."""
        receiver = self._work(self._browser(address))
        while True:
            page = self._work(lambda channel, association: channel.browse(receiver, association, self._patience()))
            yield from (read(arrived.octets) for arrived in page)
            if len(page) < BROWSED:
                break
        self._work(_closing(receiver), later=True)

    def release(self, message: Message) -> None:
        """Gives a received message back when the branch is committed, as if it had not been received."""
        self._decide(message, RELEASE)

    def reject(self, message: Message) -> None:
        """Refuses a received message for good when the branch is committed; the broker dead-letters it."""
        self._decide(message, REJECT)

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        """Sends a received message to an address, as it came but with `x-opt-dead-…` message annotations beside its own
        and no time to live, and takes it, when the branch is committed. Annotations that end in -ms are times,
        milliseconds since 1970."""
        self._work(self._dead_letter(message, address, annotations), later=True)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        """Gives a received message back when the branch is committed, with a delivery counted as `failed`, or not to
        be delivered here any more."""
        self._decide(message, modify(failed=failed, undeliverable=undeliverable))

    # -- steps
    def _receive(self, address: str, timeout_s: float | None, *, acquire: bool) -> Operation[Message]:
        deadline = self._until(timeout_s)

        def steps(channel: Channel, association: Association | None) -> Steps[Message]:
            patience = max(deadline, self._patience())
            arrived = yield from channel.receive(address, association, deadline, patience, acquire=acquire)
            if arrived is None:
                raise NoMessage(f"no message from {address} in time")
            return _taken(channel, association, arrived)

        return steps

    def _receive_batch(self, address: str, count: int, timeout_s: float | None) -> Operation[list[Message]]:
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"receive_batch: count {count} is below 1")
        deadline = self._until(timeout_s)

        def steps(channel: Channel, association: Association | None) -> Steps[list[Message]]:
            patience = max(deadline, self._patience())
            batch = yield from channel.receive_batch(address, count, association, deadline, patience)
            taken: list[Message] = []
            for number, arrived in enumerate(batch):
                try:
                    taken.append(_taken(channel, association, arrived, first=not taken))
                except XaError:
                    arrived.link.arrived.extendleft(reversed(batch[number + bool(not taken) :]))
                    if not taken:
                        raise
                    break
            return taken

        return steps

    def _send(self, address: str, octets: bytes) -> Operation[None]:
        return lambda channel, association: channel.send(address, octets, association, self._patience())

    def _dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> Operation[None]:
        told: dict[Symbol, Any] = {
            Symbol(f"x-opt-dead-{name.removesuffix('-ms')}"): _annotation(name, value)
            for name, value in annotations.items()
        }

        def steps(channel: Channel, association: Association | None) -> Steps[None]:
            octets = _held(channel, association, message).arrived.octets
            octets = with_header(octets, read_header(octets), delivery_count=0, ttl_ms=None)
            yield from channel.send(address, with_message_annotations(octets, told), association, self._patience())

        return steps

    def _browser(self, address: str) -> Operation[Receiver]:
        return lambda channel, association: channel.browser(address, association, self._patience())

    def _decide(self, message: Message, outcome: bytes) -> None:
        def steps(channel: Channel, association: Association | None) -> Steps[None]:
            yield from ()
            _held(channel, association, message).outcome = outcome

        self._work(steps, later=True)

    # -- time
    def _until(self, timeout_s: float | None) -> float:
        settings, clock = self._workplace.settings, self._workplace.clock
        return clock() + (settings.timeout_s if timeout_s is None else timeout_s)

    def _patience(self) -> float:
        return self._until(None)

    # -- running
    def _work(self, operation: Operation[T], *, later: bool = False) -> T:
        """Runs an operation for the calling thread's branch."""
        workplace, standing = self._workplace, self._standing
        association = workplace.begin_work(standing)
        seat = workplace.seat(standing)
        try:
            return seat.line.run(operation(seat.channel, association), later=later and association is not None)
        except RefusedError as error:
            raise work_error(error) from None
        except (ConnectionLost, TimedOut) as why:
            raise workplace.lose_work(standing, why) from None
        finally:
            if association is None:
                workplace.end_work(standing)

    async def work_async(self, operation: Operation[T], *, later: bool = False) -> T:
        """The same, waiting in the event loop. Where the resource manager registers itself, or makes a connection,
        that is done first, in a worker thread."""
        workplace, standing = self._workplace, self._standing
        association = await workplace.begin_work_async(standing)
        seat: Seat = workplace.seat(standing)
        try:
            steps = operation(seat.channel, association)
            return await run_async(seat.line, steps, later=later and association is not None)
        except RefusedError as error:
            raise work_error(error) from None
        except (ConnectionLost, TimedOut) as why:
            raise workplace.lose_work(standing, why) from None
        finally:
            if association is None:
                workplace.end_work(standing)


class AsyncSession:
    """A session for asyncio: the same operations, waiting in the event loop."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def receive(self, address: str, timeout_s: float | None = None, *, acquire: bool = False) -> Message:
        """As Session says."""
        return await self._session.work_async(self._session._receive(address, timeout_s, acquire=acquire), later=True)  # noqa: SLF001

    async def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        """As Session says."""
        return await self._session.work_async(self._session._receive_batch(address, count, timeout_s))  # noqa: SLF001

    async def send(self, address: str, message: Message) -> None:
        """As Session says."""
        await self._session.work_async(self._session._send(address, encoded(message)))  # noqa: SLF001

    async def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        """As Session says."""
        await self._session.work_async(self._session._dead_letter(message, address, annotations))  # noqa: SLF001

    async def browse(self, address: str) -> AsyncIterator[Message]:
        """As Session says."""
        session = self._session
        receiver = await session.work_async(session._browser(address))  # noqa: SLF001
        while True:
            page = await session.work_async(
                lambda channel, association: channel.browse(receiver, association, session._patience())  # noqa: SLF001
            )
            for arrived in page:
                yield read(arrived.octets)
            if len(page) < BROWSED:
                break
        await session.work_async(_closing(receiver))

    def release(self, message: Message) -> None:
        """As Session says."""
        self._session.release(message)

    def reject(self, message: Message) -> None:
        """As Session says."""
        self._session.reject(message)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        """As Session says."""
        self._session.modify(message, failed=failed, undeliverable=undeliverable)


def read(octets: bytes) -> Message:
    """A message; XAER_RMERR for octets that are none."""
    try:
        return decoded(octets)
    except _UNREADABLE as error:
        raise xa_error(Code.XAER_RMERR, f"work: a message can't be decoded: {error}") from error


def _taken(channel: Channel, association: Association | None, arrived: Arrived, *, first: bool = True) -> Message:
    """The message is the application's. XAER_RMERR: nobody can read it; where it is the `first`, it is refused."""
    if association is None:
        channel.settle(arrived)
        return read(arrived.octets)
    try:
        message = read(arrived.octets)
    except XaError:
        if first:  # it is refused when the branch is committed
            association.hold(arrived, arrived)
            association.held[id(arrived)].outcome = REJECT
        raise
    association.hold(arrived, message)
    return message


def _annotation(name: str, value: str | int) -> Any:
    if isinstance(value, str):
        return value
    return Timestamp(value) if name.endswith("-ms") else Ulong(value)


def _held(channel: Channel, association: Association | None, message: Message) -> Held:
    """A message whose outcome is not told yet."""
    channel.check_work(association)
    held = association.held.get(id(message)) if association is not None else None
    if held is None:
        raise xa_error(Code.XAER_PROTO, "work: this message was not received here, or its outcome is told already")
    return held


def _branch_of(association: Association | None) -> Association:
    if association is None:
        raise xa_error(Code.XAER_PROTO, "work: in bulk it is done under a branch only")
    return association


def _closing(receiver: Receiver) -> Operation[None]:
    def steps(_channel: Channel, _association: Association | None) -> Steps[None]:
        yield from ()
        receiver.close()

    return steps


if TYPE_CHECKING:
    Operation = Callable[[BulkChannel, Association | None], Steps[T]]
