"""Amqp10Publisher: a relay's broker over AMQP 1.0.

A destination is the address of a queue, as the broker has it; with `topic://` before it that of a topic. The broker is
asked for one of the two explicitly, because some make one where there is none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rm_amqp.errors import ConnectionLost, TimedOut
from rm_amqp.plain_publisher import Delivery, PlainPublisher
from xabridge.outbox.publisher import BrokerAway, PublishResult, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xabridge.outbox.publisher import OutgoingMessage


_TOPIC: Final = "topic://"


class Amqp10Publisher:
    """A `Publisher` for `amqp://` and `amqps://`."""

    def __init__(self, open_string: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher = PlainPublisher(open_string, clock)

    def open(self) -> None:
        try:
            self._publisher.open()
        except ConnectionLost as error:
            raise BrokerAway(str(error)) from None

    def send(self, messages: Sequence[OutgoingMessage], deadline: float) -> PublishResult:
        deliveries = [_delivery(message) for message in messages]
        sent = PublishResult()
        try:
            self._publisher.send(deliveries, deadline)
        except (ConnectionLost, TimedOut) as error:
            sent.away = str(error)
        for message, delivery in zip(messages, deliveries, strict=True):
            if delivery.confirmed:
                sent.confirmed.add(message.number)
            elif delivery.refusal is not None:
                sent.refused[message.number] = Refusal(delivery.refusal, final=delivery.final)
        return sent

    def keep_alive(self) -> None:
        try:
            self._publisher.keep_alive()
        except ConnectionLost as error:
            raise BrokerAway(str(error)) from None

    def close(self) -> None:
        self._publisher.close()


def _delivery(message: OutgoingMessage) -> Delivery:
    address = message.destination.removeprefix(_TOPIC)
    return Delivery(address, message.message.encode(), topic=address != message.destination)
