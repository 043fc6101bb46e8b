"""The AMQP resource managers: `AmqpResource`, `DecidingBroker`, the session that they give, and factories."""

from proton import Message

from rm_amqp.deciding import DecidingBroker
from rm_amqp.factories import deciding, dynamic, static
from rm_amqp.resource import AmqpResource
from rm_amqp.session import AsyncSession, NoMessage, Session
from rm_amqp.settings import Settings

__all__ = [
    "AmqpResource",
    "AsyncSession",
    "DecidingBroker",
    "Message",
    "NoMessage",
    "Session",
    "Settings",
    "deciding",
    "dynamic",
    "static",
]
