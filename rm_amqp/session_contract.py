"""MessagingSession: the operations that the session of every messaging resource manager offers, whatever protocol its
broker speaks; AsyncMessagingSession: the same for asyncio; and NoMessage. This module needs no connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from rm_amqp.message import Encodable, Message


class NoMessage(TimeoutError):
    """No message came in time. Nothing has happened; the transaction goes on."""


class MessagingSession(Protocol):
    """The operations that the session of every messaging resource manager offers, under the branch of the calling
    thread of control."""

    def receive(self, address: str, timeout_s: float | None = None) -> Message:
        """The next message; NoMessage where none comes in time (0: where there is none now)."""
        ...

    def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        """The first message that comes in time, and what else there is at once, at most `count`; [] for none. Where
        there is one that can't be read, what stands before it; XAER_RMERR where it is the first."""
        ...

    def send(self, address: str, message: Encodable) -> None:
        """Sends a message. If the broker refuses it, the end or the prepare of the branch raises the error."""
        ...

    def browse(self, address: str) -> Iterator[Message]:
        """Every message that is available now, in their order, taking none."""
        ...

    def release(self, message: Message) -> None:
        """Gives a received message back when the branch is committed, as if it had not been received."""
        ...

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        """Received messages are as if they had not been received, whatever becomes of the branch: those that were
        received last, in their order. They are not counted as delivered, and they are available again at the latest
        when the branch has ended. Where the client can do so, they `stay` with it for the next transaction of the
        calling thread."""
        ...

    def reject(self, message: Message) -> None:
        """Refuses a received message for good when the branch is committed; the broker dead-letters it."""
        ...

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        """Gives a received message back when the branch is committed, with a delivery counted as `failed`, or not to
        be delivered here any more."""
        ...

    def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        """Sends a received message to an address, as it came but with `x-opt-dead-…` message annotations beside its own
        and no time to live, and takes it, when the branch is committed. Annotations that end in -ms are times,
        milliseconds since 1970."""
        ...


class AsyncMessagingSession:
    """The operations of a session that blocks, for asyncio: each one that waits does so in a worker thread."""

    def __init__(self, session: MessagingSession) -> None:
        self._session = session

    async def receive(self, address: str, timeout_s: float | None = None) -> Message:
        return await asyncio.to_thread(self._session.receive, address, timeout_s)

    async def receive_batch(self, address: str, count: int, timeout_s: float | None = None) -> list[Message]:
        return await asyncio.to_thread(self._session.receive_batch, address, count, timeout_s)

    async def send(self, address: str, message: Encodable) -> None:
        await asyncio.to_thread(self._session.send, address, message)

    async def browse(self, address: str) -> AsyncIterator[Message]:
        for message in await asyncio.to_thread(lambda: list(self._session.browse(address))):
            yield message

    async def dead_letter(self, message: Message, address: str, annotations: Mapping[str, str | int]) -> None:
        await asyncio.to_thread(self._session.dead_letter, message, address, annotations)

    def release(self, message: Message) -> None:
        self._session.release(message)

    def put_back(self, messages: Sequence[Message], *, stay: bool = True) -> None:
        self._session.put_back(messages, stay=stay)

    def reject(self, message: Message) -> None:
        self._session.reject(message)

    def modify(self, message: Message, *, failed: bool = True, undeliverable: bool = False) -> None:
        self._session.modify(message, failed=failed, undeliverable=undeliverable)
