"""Tx: a transaction as the handlers of an App have it: it sends what has a type, and calls back after its commit."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from tm import ProtocolMisuse, Transaction, Verdict
from xabridge.app.codec import JSON, Codecs, MessageFields

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm import Outcome


class PendingSends:
    """What one transaction sends with `await tx.asend(…)`, until it is sent.

    A coroutine that is not awaited does nothing, and Python only warns, at some later time. Without the check here such
    a transaction would commit without its message. A task that is not done at the commit would lose it, too.
    """

    def __init__(self) -> None:
        self._undone: dict[int, Send] = {}

    def add(self, address: str, steps: Coroutine[Any, Any, None]) -> Send:
        """A send to `address` whose work is `steps`."""
        send = Send(self, address, steps)
        self._undone[id(send)] = send
        return send

    def done(self, send: Send) -> None:
        """A send is over, however it went."""
        self._undone.pop(id(send), None)

    def check(self) -> None:
        """Checks, for a commit, that every send is done; else ProtocolMisuse."""
        undone, self._undone = list(self._undone.values()), {}
        if not undone:
            return
        forgotten = [send for send in undone if not send.has_begun]
        for send in forgotten:
            with suppress(ValueError):  # its task begins at this moment, in another thread
                send.close()  # it has its error here; Python need not warn
                send.is_closed = True
        addresses = ", ".join(sorted({repr(send.address) for send in forgotten or undone}))
        if forgotten:
            raise ProtocolMisuse(f"asend to {addresses} was not awaited: write `await tx.asend(…)`")
        raise ProtocolMisuse(f"asend to {addresses} is not done: await its task before the transaction ends")


class Send(Coroutine[Any, Any, None]):
    """The coroutine of one send, which tells when it is over."""

    def __init__(self, sends: PendingSends, address: str, steps: Coroutine[Any, Any, None]) -> None:
        self.address = address
        self.has_begun = False
        self.is_closed = False
        """Whether the transaction has ended before it began."""
        self._sends = sends
        self._steps = steps

    def send(self, value: Any) -> Any:
        if self.is_closed:
            raise ProtocolMisuse(f"the transaction ended before the task of asend to {self.address!r} began: await it")
        self.has_begun = True
        try:
            return self._steps.send(value)
        except BaseException:
            self._sends.done(self)
            raise

    def throw(self, *error: Any) -> Any:
        self.has_begun = True
        try:
            return self._steps.throw(*error)
        except BaseException:
            self._sends.done(self)
            raise

    def close(self) -> None:
        self._steps.close()
        self._sends.done(self)

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self.send(None)


logger = logging.getLogger("xabridge.app")


class Tx(Transaction):
    """A transaction. An application that wants the types of its resources subclasses it:

    class Shop(Tx):
        shop: Database
        broker: Broker
    """

    codecs: ClassVar[Codecs] = Codecs()
    """How bodies are written and read; an App with codecs of its own has those here."""
    _sends: PendingSends | None = None
    """Where it sends with `asend`: what is not sent yet."""

    def send(
        self,
        address: str,
        value: Any,
        *,
        resource: str = "broker",
        content_type: str = JSON,
        **more: Unpack[MessageFields],
    ) -> None:
        """Sends a model, a dataclass or a plain value as a message, or a Message as it is. It leaves when the
        transaction commits. `more` are fields of the message: `id="o-7", priority=9`."""
        self[resource].send(address, self.codecs.message(value, content_type, **more))

    def asend(
        self,
        address: str,
        value: Any,
        *,
        resource: str = "broker",
        content_type: str = JSON,
        **more: Unpack[MessageFields],
    ) -> Coroutine[Any, Any, None]:
        """`send` for tasks, which await it. A transaction with one that is not awaited, or that is not done at the
        commit, is rolled back."""
        if self._sends is None:
            sends = PendingSends()
            self.register_synchronization(before=sends.check)
            self._sends = sends
        return self._sends.add(address, self._asend(address, value, resource, content_type, more))

    async def _asend(self, address: str, value: Any, resource: str, content_type: str, more: MessageFields) -> None:
        session = await self.aenlist(resource)
        await session.aio.send(address, self.codecs.message(value, content_type, **more))

    def after_commit(self, call: Callable[..., object], /, *arguments: Any, **named: Any) -> None:
        """Calls `call` when the transaction is committed, and not otherwise: for what no transaction can take back, as
        an e-mail. It is called at most once: a process that dies in between does not call it, nor does one that does
        not know the outcome yet. What it raises is logged. What must happen is sent as a message instead."""

        def after(outcome: Outcome) -> None:
            if outcome.verdict is Verdict.COMMITTED:
                call(*arguments, **named)

        self.register_synchronization(after=after)
