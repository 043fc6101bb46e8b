"""Tx: a transaction as the handlers of an App have it: it sends what has a type, and calls back after its commit."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar

from tm import Transaction, Verdict
from xabridge.app.codec import JSON, Codecs
from xabridge.app.sends import Sends

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tm import Outcome

logger = logging.getLogger("xabridge.app")


class Tx(Transaction):
    """A transaction. An application that wants the types of its resources subclasses it:

    class Shop(Tx):
        shop: Database
        broker: Broker
    """

    codecs: ClassVar[Codecs] = Codecs()
    """How bodies are written and read; an App with codecs of its own has those here."""
    _sends: Sends | None = None
    """Where it sends with `asend`: what is not sent yet."""

    def send(
        self, address: str, value: Any, *, resource: str = "broker", content_type: str = JSON, **more: Any
    ) -> None:
        """Sends a model, a dataclass or a plain value as a message, or a Message as it is. It leaves when the
        transaction commits. `more` are fields of the message: `id="o-7", priority=9`."""
        self[resource].send(address, self.codecs.message(value, content_type, **more))

    def asend(
        self, address: str, value: Any, *, resource: str = "broker", content_type: str = JSON, **more: Any
    ) -> Coroutine[Any, Any, None]:
        """`send` for tasks, which await it. A transaction with one that nobody awaits, or that is not done at the
        commit, is rolled back."""
        if self._sends is None:
            sends = Sends()
            self.register_synchronization(before=sends.check)
            self._sends = sends
        return self._sends.add(address, self._asend(address, value, resource, content_type, more))

    async def _asend(self, address: str, value: Any, resource: str, content_type: str, more: dict[str, Any]) -> None:
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
