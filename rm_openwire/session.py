"""Session: an application's messages over OpenWire, under the branch that its thread of control is associated with.

The operations are those of `rm_amqp.session_contract.MessagingSession`. `receive` and `browse` take a selector besides,
in the language of JMS. `Session.aio` has the same operations for asyncio; each is carried out in a worker thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from rm_amqp.session_contract import AsyncMessagingSession
from xa import Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from rm_amqp.message import Encodable, Message
    from rm_openwire.branch import BranchWork
    from xa.driver import SessionContext


T = TypeVar("T")


class Session:
    """Messages, until the association ends.

    Raised: XaMisuse (XAER_PROTO: no association, or it has ended; XAER_INVAL: the message or the address can't be
    used), BranchRolledBack (the branch is rollback-only), ResourceUnavailable (the connection was lost, and the branch
    with it; open again).
    """

    def __init__(self, work: BranchWork, context: SessionContext[Any]) -> None:
        self._work: BranchWork | None = work
        self._context = context

    def expire(self) -> None:
        """The association has ended."""
        self._work = None

    @property
    def aio(self) -> AsyncSession:
        """The same, for asyncio."""
        return AsyncSession(self)

    def receive(self, address: str, timeout_s: float | None = None, *, selector: str | None = None) -> Message:
        """The next message; NoMessage where none comes in time (0: where there is none now). With a `selector` the next
        one that it selects."""
        return self._run(lambda work: work.receive(address, timeout_s, selector))

    def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        return self._run(lambda work: work.receive_batch(address, count, timeout_s))

    def send(self, address: str, message: Encodable) -> None:
        self._run(lambda work: work.send(address, message))

    def browse(self, address: str, *, selector: str | None = None) -> Iterator[Message]:
        """Every message that is available now, in their order, taking none."""
        return iter(self._run(lambda work: work.browse(address, selector)))

    def release(self, message: Message) -> None:
        self._run(lambda work: work.release(message))

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        """They go back with the branch's consumer, when the branch ends."""
        del stay
        self._run(lambda work: work.put_back(messages))

    def reject(self, message: Message) -> None:
        """Refuses a received message for good: it goes to the `dead_letter_queue` of the open string when the branch is
        committed. The brokers can't do that in a transaction."""
        self._run(lambda work: work.dead_letter(message, "", {}))

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        """Gives a received message back when the branch is committed. A `failed` one makes the broker count every
        message that the branch gives back to this queue as delivered in vain. An `undeliverable` one is rejected."""
        if undeliverable:
            self.reject(message)
        else:
            self._run(lambda work: work.release(message, counted=failed))

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        """The annotations become properties of the same names, because OpenWire has none."""
        self._run(lambda work: work.dead_letter(message, address, annotations))

    def excuse(self, messages: Sequence[Message] | None, reason: str = "", place: str = "") -> bool:
        """Tells that the received messages, all of them whatever is named, are not to be counted as delivered in vain,
        should the branch be rolled back before it is ended. False: it is counted if it is ended first, as by a
        commit."""
        del messages, reason, place
        self._run(lambda work: work.excuse(excused=True))
        return False

    def explain(self, message: Message, reason: str, place: str = "") -> None:
        """A received message has failed: a rollback is counted as ever. The brokers keep no reason."""
        del message, reason, place
        self._run(lambda work: work.excuse(excused=False))

    def _run(self, operation: Callable[[BranchWork], T]) -> T:
        work = self._work
        part = self._context.current()
        if work is None or part is None or part.branch.unit is not work:
            raise xa_error(Code.XAER_PROTO, "work: the association of this session has ended")
        try:
            return operation(work)
        except XaError as error:
            raise self._context.failed(error) from None


class AsyncSession(AsyncMessagingSession):
    """A session for asyncio."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._selecting = session

    async def receive(self, address: str, timeout_s: float | None = None, *, selector: str | None = None) -> Message:
        return await asyncio.to_thread(self._selecting.receive, address, timeout_s, selector=selector)

    async def browse(self, address: str, *, selector: str | None = None) -> AsyncIterator[Message]:
        for message in await asyncio.to_thread(lambda: list(self._selecting.browse(address, selector=selector))):
            yield message
