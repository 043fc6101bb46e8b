"""A relay, or a consumer, in a process of its own, which kills itself before or after its n-th step.

Steps are the statements and commits at the database, and what is asked of the broker: before each of them, and after.
The process exits with 0 if it came to its end before that step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import amqp
from sqlalchemy import Engine, event, text

from xabridge.outbox import Inbox, OutboxStore, OutgoingMessage, PublishResult, Relay
from xabridge.outbox.rabbitmq import RabbitPublisher


class Steps:
    """Counts, and kills."""

    def __init__(self, last: int) -> None:
        self._left = last

    def __call__(self, *_: object, **__: object) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, engine: Engine) -> None:
        """Every statement and commit."""
        for name in ("before_cursor_execute", "after_cursor_execute", "commit"):
            event.listen(engine, name, self)
        event.listen(engine, "checkin", self)  # behind a commit


class Killed(RabbitPublisher):
    """Stops before and after what is sent."""

    def __init__(self, url: str, step: Steps) -> None:
        super().__init__(url)
        self._step = step

    def send(self, messages: Sequence[OutgoingMessage], deadline: float) -> PublishResult:
        self._step()
        sent = super().send(messages, deadline)
        self._step()
        return sent


def relay(store: OutboxStore, broker: str, step: Steps) -> None:
    """One run of a relay."""
    work = Relay(store, Killed(broker, step))
    step.watch(store.engine)
    try:
        work.run_once()
    finally:
        work.close()


def consume(store: OutboxStore, broker: str, step: Steps) -> None:
    """Reads until the queue is empty: row and inbox in one transaction, then the acknowledgement."""
    step.watch(store.engine)
    inbox = Inbox("billing")
    address = broker.partition("@")[2].rstrip("/")
    with amqp.Connection(address, "guest", "guest") as connection:
        channel = connection.channel()
        while True:
            message: Any = channel.basic_get("orders")
            if message is None:
                store.close()
                return

            with store.engine.begin() as work:
                if inbox.is_new(work, message.properties["message_id"]):
                    work.execute(text("INSERT INTO billed (number) VALUES (:n)"), {"n": int(message.body)})
            step()
            channel.basic_ack(message.delivery_tag)
            step()


def main(what: str, database: str, broker: str, last: int) -> None:
    """What the process does: "relay", or "consume", which reads the queue "orders", with an inbox."""
    {"relay": relay, "consume": consume}[what](OutboxStore.at(database), broker, Steps(last))
