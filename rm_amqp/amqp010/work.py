"""One association's work over a channel, and what is received and sent under it.

The outcomes of received messages are sent with the end, in one write: only then is it part of the branch. So a client
that dies before the end loses nothing: the broker gives the messages back when its session is gone. Had it accepted
them earlier, they would stay in an unfinished branch that no recovery lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.messages import check_address
from rm_amqp.amqp010.session import ranges_of
from rm_amqp.amqp010.structs import (
    MessageAccept,
    MessageCancel,
    MessageFlow,
    MessageFlush,
    MessageRelease,
    MessageSetFlowMode,
    MessageSubscribe,
    MessageTransfer,
    QueueQuery,
    QueueQueryResult,
)
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_amqp.amqp010.channel import Channel
    from rm_amqp.amqp010.session import MessageContent, Session, Transfer
    from rm_amqp.amqp010.structs import Command
    from xa import Xid

EXPLICIT, NONE = 0, 1
PRE_ACQUIRED, NOT_ACQUIRED = 0, 1
CREDIT: Final = 0
MESSAGES, OCTETS = 0, 1
UNLIMITED: Final = 0xFFFFFFFF
BROWSED: Final = 100
"""Messages that a browse asks for at a time."""
MAX_RANGES: Final = 8000
"""Ranges that one command can name."""
GATHERED: Final = 65_536
"""Octets of messages that wait to be written."""


class Outcome(Enum):
    """What becomes of a received message when the work ends."""

    TAKE = "taken by the branch"
    RELEASE = "given back, as if it had not been received"
    FAIL = "given back, as delivered in vain"


@dataclass(slots=True)
class ReceivedMessage:
    """A message that was received."""

    transfer: Transfer
    message: object
    outcome: Outcome = Outcome.TAKE


@dataclass(slots=True, eq=False)
class Work:
    """The work of one association."""

    xid: Xid
    channel: Channel
    suspended: bool = False
    ended: bool = False
    held: dict[int, ReceivedMessage] = field(default_factory=dict)
    """By the identity of the application's message."""
    put_back: list[int] = field(default_factory=list)
    """The numbers of transfers that are given back as if they had not been received, also where the work failed."""
    sent: set[int] = field(default_factory=set)
    """The numbers of the transfers that are not known to be routed."""
    gathered: int = 0
    """Octets that wait to be written."""

    # --- receiving --------------------------------------------------------------------------------------------
    def receive(self, address: str, count: int, until: float, patience: float) -> list[Transfer]:
        """At most `count` messages: those that are there, else the first one that comes until then. `patience` is the
        time until which the broker has to answer."""
        channel = self.channel
        destination = self._subscription(address, patience)
        session = channel.session
        self._credit(destination, count)
        channel.wait_complete(channel.send(MessageFlush(destination), sync=True), patience)
        found = _taken(session, destination)
        if found or until <= channel.now():
            return found
        self._credit(destination, count)
        channel.wait_until(lambda session: any(_of(session, destination)), until)
        if sum(1 for _ in _of(session, destination)) < count:  # credit is left: nothing may come outside of a wait
            channel.wait_complete(channel.send(MessageFlush(destination), sync=True), patience)
        return _taken(session, destination)

    def _credit(self, destination: str, count: int) -> None:
        self.channel.send(MessageFlow(destination, OCTETS, UNLIMITED))
        self.channel.send(MessageFlow(destination, MESSAGES, count))

    def _subscription(self, address: str, patience: float) -> str:
        """The destination at which the messages of a queue arrive."""
        channel = self.channel
        destination = channel.receiving.get(address)
        if destination is None:
            self.check_queue(address, patience)
            destination = f"from-{len(channel.receiving)}"
            channel.send(MessageSubscribe(address, destination, EXPLICIT, PRE_ACQUIRED))
            channel.send(MessageSetFlowMode(destination, CREDIT))
            channel.receiving[address] = destination
        return destination

    def check_queue(self, address: str, patience: float, *, durable: bool = False) -> None:
        """XAER_INVAL: there is no such queue. XAER_RMERR: it should be durable, and is not."""
        check_address(address)
        channel = self.channel
        if address not in channel.addresses:
            found = channel.wait_result(channel.send(QueueQuery(address)), QueueQueryResult, patience)
            if found.queue is None:
                raise xa_error(Code.XAER_INVAL, f"work: the broker has no queue {address!r}; make it there first")
            channel.addresses[address] = found.durable
        if durable and not channel.addresses[address]:
            message = (
                f"work: the queue {address!r} is not durable: what is prepared would be lost when the broker restarts"
            )
            raise xa_error(Code.XAER_RMERR, message)

    def browse(self, address: str, patience: float) -> Iterator[list[Transfer]]:
        """The messages that are available, in pages."""
        self.check_queue(address, patience)
        channel, destination = self.channel, f"seen-{self.channel.session.next_number}"
        session = channel.session
        channel.send(MessageSubscribe(address, destination, NONE, NOT_ACQUIRED))
        channel.send(MessageSetFlowMode(destination, CREDIT))
        while True:
            self._credit(destination, BROWSED)
            channel.wait_complete(channel.send(MessageFlush(destination), sync=True), patience)
            page = _taken(session, destination)
            if len(page) < BROWSED:
                channel.wait_complete(channel.send(MessageCancel(destination), sync=True), patience)
                yield page
                return
            yield page

    # --- sending ----------------------------------------------------------------------------------------------
    def send(self, address: str, content: MessageContent, patience: float) -> None:
        """Sends a message. XA_RETRY: the broker takes none now."""
        self.check_queue(address, patience, durable=True)
        channel = self.channel
        if channel.session.blocked and not channel.wait_until(lambda session: not session.blocked, patience):
            raise xa_error(Code.XA_RETRY, f"work: the broker takes no messages for {address!r} now")
        self.sent.add(channel.send(MessageTransfer("", EXPLICIT, PRE_ACQUIRED), content))
        self.gathered += len(content.body)
        if self.gathered >= GATHERED:
            self.gathered = 0
            channel.flush(patience)

    # --- the end ----------------------------------------------------------------------------------------------
    def outcomes(self, *, fail: bool) -> Iterator[Command]:
        """What becomes of the received messages."""
        numbers: dict[Outcome, list[int]] = {outcome: [] for outcome in Outcome}
        numbers[Outcome.RELEASE], self.put_back = self.put_back, []
        for held in self.held.values():
            numbers[Outcome.FAIL if fail else held.outcome].append(held.transfer.number)
        for outcome, found in numbers.items():
            if not found:
                continue
            ranges = ranges_of(sorted(found))
            for at in range(0, len(ranges), MAX_RANGES):
                some = ranges[at : at + MAX_RANGES]
                if outcome is Outcome.TAKE:
                    yield MessageAccept(some)
                else:
                    yield MessageRelease(some, set_redelivered=outcome is Outcome.FAIL)
        self.held.clear()

    def unrouted(self) -> str:
        """Why the broker did not take what was sent; "" where it did."""
        rejected = self.channel.session.rejected
        reasons = [rejected.pop(number) for number in sorted(self.sent) if number in rejected]
        self.sent.clear()
        return reasons[0] if reasons else ""


def _of(session: Session, destination: str) -> Iterator[Transfer]:
    return (transfer for transfer in session.arrived if transfer.destination == destination)


def _taken(session: Session, destination: str) -> list[Transfer]:
    found = list(_of(session, destination))
    others = [transfer for transfer in session.arrived if transfer.destination != destination]
    session.arrived.clear()
    session.arrived.extend(others)
    return found
