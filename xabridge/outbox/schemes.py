"""Which publisher an open string is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xabridge.outbox.publisher import Publisher


def publisher_for(open_string: str) -> Publisher:
    """The publisher for this broker; it is loaded when it is needed. ValueError, XaMisuse: the open string is wrong."""
    scheme = open_string.partition("://")[0]
    if scheme in {"amqp091", "amqp091s"}:
        from xabridge.outbox.rabbitmq import RabbitPublisher  # noqa: PLC0415 — needs the extra `rabbitmq`

        return RabbitPublisher(open_string)
    if scheme in {"amqp", "amqps"}:
        from xabridge.outbox.amqp10 import Amqp10Publisher  # noqa: PLC0415 — loads proton

        return Amqp10Publisher(open_string)
    raise ValueError(
        f"{scheme[:20]!r} is no scheme of a relay's broker: amqp:// and amqps:// are AMQP 1.0, amqp091:// and "
        "amqp091s:// are RabbitMQ over AMQP 0-9-1"
    )
