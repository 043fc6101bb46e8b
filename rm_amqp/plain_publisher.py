"""PlainPublisher: sends messages over AMQP 1.0 without a transaction, many at a time, and says what became of each.

It needs nothing of the broker but AMQP 1.0: no coordinator, no capability. It has one connection, and a link for each
address, which is closed when the broker refuses it.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.protocol.replies import ACCEPTED, REJECTED
from rm_amqp.connection.connector import connect
from rm_amqp.connection.endpoint import Change, Endpoint, until
from rm_amqp.connection.links import ATTACHED, Sender
from rm_amqp.errors import Cause, ConnectionLost, TimedOut
from rm_amqp.settings import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_amqp.connection.connection import Connection
    from rm_amqp.connection.links import Answer
    from rm_amqp.settings import Broker, Settings

MAX_LINKS: Final = 64
CLOSE_S: Final = 2.0


@dataclass(slots=True)
class Delivery:
    """One message: its address and octets, and its result. `topic`: the address is one, and no queue. `confirmed`:
    the broker has it. `refusal`: why it has not, and `final` whether it would refuse it again. Neither: it is
    unknown."""

    address: str
    octets: bytes
    topic: bool = False
    confirmed: bool = False
    refusal: str | None = None
    final: bool = False

    def refuse(self, why: str, *, final: bool = False) -> None:
        """The broker has not taken it."""
        self.refusal, self.final = why, final


class PlainPublisher:
    """One connection to the broker at `open_string`, whose settings are those of `rm_amqp.settings`. `clock` is that of
    the deadlines."""

    def __init__(self, open_string: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings: Settings = parse(open_string)
        self._tls = self.settings.tls_context()
        self._container = f"xabridge-{uuid.uuid4()}"
        self._numbers = itertools.count(1)
        self._clock = clock
        self._connection: Connection | None = None
        self._senders: dict[tuple[str, str], Sender] = {}
        """By address and capability."""

    def open(self) -> None:
        """Connects, unless it is connected. ConnectionLost: it can't be."""
        connection = self._connection
        if connection is not None:
            connection.refresh()
            if connection.endpoint.lost is None and connection.endpoint.ended is None:
                return
            self.drop()
        deadline = self._clock() + self.settings.timeout_s
        self._connection = connect(self.settings, deadline, self._endpoint, self._clock)

    def _endpoint(self, broker: Broker) -> Endpoint:
        name = f"{self._container}-{next(self._numbers)}"
        return Endpoint(self.settings, broker, name, self._clock, os.urandom, self._tls)

    def send(self, deliveries: Sequence[Delivery], deadline: float) -> None:
        """Sends them, and waits until the broker has sent the outcome of each, at most until `deadline`.
        ConnectionLost, TimedOut: of those without an outcome it is unknown; the connection is given up."""
        connection = self._connection
        if connection is None:
            raise ConnectionLost(Cause.CLOSED, "the publisher is not open")
        try:
            connection.run(self._send(connection.endpoint, deliveries, deadline))
        except (ConnectionLost, TimedOut):
            self.drop()
            raise

    async def _send(self, endpoint: Endpoint, deliveries: Sequence[Delivery], deadline: float) -> None:
        sent: list[tuple[Delivery, Answer]] = []
        for delivery in deliveries:
            sender = await self._attached(endpoint, delivery, deadline)
            if sender is None:
                continue
            if 0 < sender.max_octets < len(delivery.octets):
                too_long = f"{len(delivery.octets)} octets; the broker takes at most {sender.max_octets}"
                delivery.refuse(f"the message has {too_long} for {delivery.address}", final=True)
                continue
            there = await until(endpoint, lambda: sender.credit > 0 or not sender.alive, deadline)  # noqa: B023 — called before the next turn
            if not there:
                raise TimedOut(f"the broker takes no messages for {delivery.address} now")
            if not sender.alive:
                self._forget(sender, delivery)
                continue
            sent.append((delivery, sender.send(delivery.octets)))

        for delivery, answer in sent:
            if not (await until(endpoint, lambda: answer.there, deadline)):  # noqa: B023 — as above
                _judge_all(sent)
                raise TimedOut(f"the broker did not confirm the message for {delivery.address} in time")
        _judge_all(sent)

    async def _attached(self, endpoint: Endpoint, delivery: Delivery, deadline: float) -> Sender | None:
        """A link to the delivery's address; None: the broker refuses it, and so the delivery."""
        # without the word, ActiveMQ Artemis makes a topic of an address that it does not know, and drops what is sent
        capability = "topic" if delivery.topic else "queue"
        sender = self._senders.get((delivery.address, capability))
        if sender is None or sender.state is not ATTACHED:
            while len(self._senders) >= MAX_LINKS:
                idle = next((known for known, one in self._senders.items() if one.idle), None)
                if idle is None:
                    await Change(endpoint, deadline)
                    endpoint.check()
                    continue
                self._senders.pop(idle).close()
            sender = Sender(endpoint, delivery.address, [capability])
            self._senders[delivery.address, capability] = sender
            if not (await until(endpoint, lambda: sender.answered, deadline)):
                raise TimedOut("the broker did not answer the attach in time")

        if sender.state is not ATTACHED:
            self._forget(sender, delivery)
            return None
        return sender

    def _forget(self, sender: Sender, delivery: Delivery) -> None:
        """The broker has closed the link, or never opened it."""
        self._senders = {known: one for known, one in self._senders.items() if one is not sender}
        why = sender.refusal
        reason = f"{why.description or why.condition} ({why.condition})" if why is not None else "no reason was given"
        delivery.refuse(f"the broker has no link to {sender.address}: {reason}")

    def keep_alive(self) -> None:
        """ConnectionLost: the connection is lost. Idle connections are kept alive by a thread of their own."""
        if self._connection is not None:
            self._connection.refresh()
            self._connection.endpoint.check()

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        self._senders.clear()
        if connection is not None:
            connection.close(self._clock() + CLOSE_S)

    def drop(self) -> None:
        """Gives the connection up without a word."""
        connection, self._connection = self._connection, None
        self._senders.clear()
        if connection is not None:
            connection.drop()


def _judge_all(sent: Sequence[tuple[Delivery, Answer]]) -> None:
    for delivery, answer in sent:
        if answer.there:
            _judge(delivery, answer)


def _judge(delivery: Delivery, answer: Answer) -> None:
    """Notes what the broker's outcome says."""
    refusal = answer.refusal

    if answer.code == ACCEPTED:
        delivery.confirmed = True
    elif answer.lost:
        if refusal is not None:  # the link was closed: perhaps because of this message, perhaps of another one
            final = refusal.condition == Condition.MESSAGE_SIZE
            delivery.refuse(f"{refusal.description or refusal.condition} ({refusal.condition})", final=final)
    elif answer.code == REJECTED:
        reason = (
            f"{refusal.description or refusal.condition} ({refusal.condition})" if refusal is not None else "rejected"
        )
        delivery.refuse(reason)
    else:  # released or modified: RabbitMQ says so of a message that no queue takes
        delivery.refuse(
            f"the broker gave the message for {delivery.address} back (outcome {answer.code:#x}): no queue takes it"
        )
