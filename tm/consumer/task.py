"""Task: performs the rounds of one worker in an asyncio task, for handlers that are coroutine functions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tm.consumer.rounds import GiveBack, Handle, Pause, Receive, Refuse, rounds
from tm.consumer.worker import not_committed, unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.consumer.rounds import Effect
    from tm.consumer.worker import Crew
    from tm.transaction import Transaction


class Task:
    """One worker, in a task. Cancelled, it rolls back what it has in hand."""

    def __init__(self, number: int, crew: Crew, stopping: asyncio.Event) -> None:
        self._number = number
        self._crew = crew
        self._stopping = stopping
        self._transaction: Transaction

    async def run(self) -> None:
        """Until the consumer is to stop."""
        steps = rounds(self._crew.settings, self._crew.timeout_s, self._stopping.is_set)
        answer: Any = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return
            answer = await self._perform(effect)

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Pause):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), effect.seconds)
            return None
        if isinstance(effect, Receive):
            return await self._receive(effect)
        began = self._crew.tally.clock()
        error: Exception | None = None
        transaction = self._transaction
        try:
            async with transaction:
                await self._work(effect, transaction)
            error = not_committed(transaction)
        except Exception as raised:  # noqa: BLE001 — a handler of anybody's
            error = raised
        self._crew.told(self._number, effect, transaction, error, began)
        return error

    async def _receive(self, effect: Receive) -> Sequence[Any] | Exception:
        crew, settings = self._crew, self._crew.settings
        try:
            transaction = crew.manager.begin(settings.timeout_s, waits=True)
            try:
                for name in crew.tally.used if effect.check else ():
                    await transaction.aenlist(name)
                session = (await transaction.aenlist(settings.resource)).aio
                messages: Sequence[Any] = await session.receive_batch(settings.queue, effect.count, settings.idle_s)
            except BaseException as error:
                if isinstance(error, Exception) and unreadable(error, effect):
                    await transaction.acommit()
                else:
                    await transaction.arollback()
                raise
            if not messages:
                await transaction.arollback()
                crew.received(self._number, None)
                return ()
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's
            crew.failed_to_receive(self._number, error)
            return error
        self._transaction = transaction
        crew.received(self._number, transaction)
        return messages

    async def _work(self, effect: Handle | Refuse | GiveBack, transaction: Transaction) -> None:
        if not isinstance(effect, Handle):
            session = self._crew.session(transaction)
            for message in effect.messages:
                if isinstance(effect, GiveBack):
                    session.release(message)
                elif (letter := self._crew.dead_letter(message)).address:
                    await session.aio.dead_letter(message, *letter)
                else:
                    session.reject(message)
            return
        for call in self._crew.calls(effect.messages):
            await self._crew.handler(call, transaction)
