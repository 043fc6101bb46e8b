"""QpidSession: the session of an application over AMQP 0-10, a `rm_amqp.MessagingSession`.

Received messages are taken, and sent ones made available, when the branch is committed. What is given back (`release`,
`modify`) is available again as soon as the work has ended, because AMQP 0-10 gives back outside of transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from rm_amqp.amqp010.channel import Refused
from rm_amqp.amqp010.messages import content_of, dead_letter_of, message_of
from rm_amqp.amqp010.work import Outcome, ReceivedMessage
from rm_amqp.errors import Cause, ConnectionLost, TimedOut, lost_error
from rm_amqp.session_contract import AsyncMessagingSession, NoMessage
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rm_amqp.amqp010.session import Transfer
    from rm_amqp.amqp010.work import Work
    from rm_amqp.message import Encodable, Message
    from xa.driver import SessionContext

T = TypeVar("T")


class QpidSession:
    """Messages, under the branch that the thread of control is associated with when it calls.

    Raised: XaMisuse (XAER_PROTO: no association, or it has ended; XAER_INVAL: no such queue, or a message that can't be
    sent), ResourceUnavailable (the connection was lost, or the broker refused what was asked, and the branch with it;
    open again), ResourceError (the queue is not durable, or a message can't be read), TryAgain (the broker takes no
    messages now).
    """

    def __init__(self, deadline: Callable[[float | None], float], context: SessionContext[Work]) -> None:
        self._deadline = deadline
        self._context = context

    @property
    def aio(self) -> AsyncMessagingSession:
        """The same, for asyncio."""
        return AsyncMessagingSession(self)

    def receive(self, address: str, timeout_s: float | None = None) -> Message:
        """The next message; NoMessage where none comes in time (0: where there is none now)."""
        found = self.receive_batch(address, 1, timeout_s)
        if not found:
            raise NoMessage(f"no message from {address} in time")
        return found[0]

    def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"receive_batch: count {count} is below 1")
        until, patience = self._deadline(timeout_s), self._deadline(None)

        def receive(work: Work) -> list[Message]:
            return _read(work, work.receive(address, count, until, max(until, patience)))

        return self._run(receive)

    def send(self, address: str, message: Encodable) -> None:
        content = content_of(message, address)
        self._run(lambda work: work.send(address, content, self._deadline(None)))

    def browse(self, address: str) -> Iterator[Message]:
        pages = self._run(lambda work: work.browse(address, self._deadline(None)))
        while True:
            page = self._run(lambda _: next(pages, None))
            if page is None:
                return
            yield from map(message_of, page)

    def release(self, message: Message) -> None:
        self._decide(message, Outcome.RELEASE)

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        """They go back when the work ends: this client keeps none."""
        del stay

        def put_back(work: Work) -> None:
            work.put_back += [_held(work, message).transfer.number for message in messages]
            for message in messages:
                del work.held[id(message)]

        self._run(put_back)

    def reject(self, message: Message) -> None:
        """Refused: this broker rejects outside of transactions, so that a message would be gone though the branch was
        rolled back."""
        self._run(lambda work: _held(work, message))
        why = "work: this broker has no rejection inside of a transaction; name a queue for dead letters, or take it"
        raise xa_error(Code.XAER_INVAL, why)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        if undeliverable:
            why = "work: AMQP 0-10 has no `undeliverable`; name a queue for dead letters, or release the message"
            raise xa_error(Code.XAER_INVAL, why)
        self._decide(message, Outcome.FAIL if failed else Outcome.RELEASE)

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        def dead_letter(work: Work) -> None:
            held = _held(work, message)
            work.send(address, dead_letter_of(held.transfer, address, annotations), self._deadline(None))
            held.outcome = Outcome.TAKE

        self._run(dead_letter)

    def _decide(self, message: Message, outcome: Outcome) -> None:
        def decide(work: Work) -> None:
            _held(work, message).outcome = outcome

        self._run(decide)

    def _run(self, operation: Callable[[Work], T]) -> T:
        """Runs an operation for the calling thread's branch."""
        work = self._context.current()
        if work is None:
            raise xa_error(Code.XAER_PROTO, "work: this resource manager does not register itself")

        try:
            with work.channel.lock:
                if work.ended or work.suspended:
                    raise xa_error(Code.XAER_PROTO, "work: the association has ended", work.xid)
                return operation(work)
        except (Refused, ConnectionLost, TimedOut) as why:
            if work.ended:  # by the manager, which does not wait for a thread that receives
                raise xa_error(Code.XA_RBROLLBACK, "work: the branch has been rolled back", work.xid) from None
            if isinstance(why, Refused):
                work.channel.drop()
                words = f"the broker refused ({why.code}: {why.description}) and ended the session"
                why = ConnectionLost(Cause.LOST, words)
            raise self._context.failed(lost_error("work", why, work.xid)) from None


def _read(work: Work, arrived: list[Transfer]) -> list[Message]:
    """The messages, which are the application's now."""
    found = list(map(message_of, arrived))
    for transfer, message in zip(arrived, found, strict=True):
        work.held[id(message)] = ReceivedMessage(transfer, message)
    return found


def _held(work: Work, message: Any) -> ReceivedMessage:
    """A message whose outcome is not sent yet."""
    held = work.held.get(id(message))
    if held is None:
        raise xa_error(Code.XAER_PROTO, "work: this message was not received here, or it is settled already")
    return held
