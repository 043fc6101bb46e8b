"""Publisher: what a relay needs of a broker, and which one an open string is for.

amqp091://user:password@host:5672/vhost      RabbitMQ 3 and 4 over AMQP 0-9-1 (`xabridge.outbox.rabbitmq`)
amqp091s://…                                 the same with TLS
amqp://host, amqps://host                    any broker over AMQP 1.0, without transactions (`rm_amqp.plain_publisher`)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp import Message


class BrokerAway(Exception):
    """The broker can't be reached or used now; the message says why. Nothing is known of what it has not confirmed."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """One message on its way: `number` is its row's."""

    number: int
    destination: str
    message: Message


@dataclass(frozen=True, slots=True)
class Refusal:
    """The broker has refused a message. `final`: it would do so again, however often it is asked."""

    why: str
    final: bool = False


@dataclass(slots=True)
class PublishResult:
    """The results of messages, by their numbers. What is in neither is not confirmed: it may have arrived, or not.
    `away`: why the broker was lost meanwhile."""

    confirmed: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    away: str | None = None


class Publisher(Protocol):
    """One connection to a broker."""

    def open(self) -> None:
        """Connects, unless it is connected. BrokerAway: it can't be."""
        ...

    def send(self, messages: Sequence[OutgoingMessage], deadline: float) -> PublishResult:
        """Sends messages, and waits until each is confirmed or refused, the broker is lost, or `deadline` has come on
        the clock that the publisher was made with. It raises nothing of the broker's."""
        ...

    def keep_alive(self) -> None:
        """Called every few seconds while nothing is sent. BrokerAway: the connection is lost."""
        ...

    def close(self) -> None:
        """Closes the connection; `open` makes another one."""
        ...
