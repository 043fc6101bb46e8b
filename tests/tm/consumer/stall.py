"""A stall is what a test of consumers needs: a queue of the embedded broker, a reference resource manager as the
database, and a manager over both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rm_amqp import Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.waiting import until
from tm import Consumer, ResourceConfig, Transaction, TransactionManager
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

PATIENCE_S = 30.0


class Until:
    """What workers tell."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.tell = self.told.append

    def count(self, many: int) -> None:
        """Returns when so many were told."""
        until(lambda: len(self.told) >= many)


class Stall:
    """The manager, its queue and its store."""

    def __init__(self, broker: EmbeddedBroker, queue: str, folder: Path, telemetry: Any = None) -> None:
        self.broker = broker
        self.queue = queue
        self.out = f"{queue}-out"
        self.folder = folder
        self.store = ReferenceStore("shop")

        self.manager = TransactionManager(
            "stall-1",
            f"file://{folder / 'log'}",
            {
                "broker": f"amqp://{broker.address}",
                "shop": ResourceConfig(self.store.url, factory=ReferenceFactory(self.store)),
            },
            recovery_interval_s=0.2,
            telemetry=telemetry,
        )
        self.until = Until()
        self.consumers: list[Consumer] = []

    def put(self, *bodies: Any) -> None:
        with self.manager.begin() as tx:
            for body in bodies:
                tx["broker"].send(self.queue, Message(body))

    def look(self, queue: str) -> list[Any]:
        with self.manager.begin() as tx:
            return [message.body for message in tx["broker"].browse(queue)]

    def letters(self) -> list[tuple[Any, dict[str, Any]]]:
        """Body and annotations of the dead letters."""
        with self.manager.begin() as tx:
            return [
                (
                    letter.body,
                    {str(name).removeprefix("x-opt-dead-"): told for name, told in letter.annotations.items()},
                )
                for letter in tx["broker"].browse(f"{self.queue}.dead")
            ]

    def consumer(self, handler: Callable[..., Any], **settings: Any) -> Consumer:
        """With short waits."""
        settings = {"idle_s": 0.01, "retry_first_s": 0.002, "retry_most_s": 0.01, **settings}
        consumer = Consumer(self.manager, self.queue, handler, **settings)
        self.consumers.append(consumer)
        return consumer

    def consume(self, handler: Callable[..., Any], many: int = 1, **settings: Any) -> Consumer:
        """A consumer that ran until so many messages were handled or dead-lettered, and is stopped."""
        with self.consumer(handler, **settings) as consumer:
            until(lambda: consumer.counts.handled + consumer.counts.dead_lettered >= many)
        return consumer


def in_tasks(handler: Callable[[Message, Transaction], None]) -> Callable[[Message, Transaction], Any]:
    """The same handler as a coroutine function, which a consumer runs in tasks."""

    async def handle(message: Message, tx: Transaction) -> None:
        handler(message, tx)

    return handle


KINDS = pytest.mark.parametrize("kind", [pytest.param(lambda handler: handler, id="threads"), in_tasks])
