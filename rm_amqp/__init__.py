"""The AMQP resource manager client: `AmqpResource`, the session that it gives, and factories for entry points."""

from proton import Message

from rm_amqp.factories import dynamic, static
from rm_amqp.resource import AmqpResource
from rm_amqp.session import AsyncSession, NoMessage, Session
from rm_amqp.settings import Settings

__all__ = ["AmqpResource", "AsyncSession", "Message", "NoMessage", "Session", "Settings", "dynamic", "static"]
