"""The AMQP resource managers, the message and the session that applications use, and factories by URL scheme."""

from rm_amqp.connections import Environment
from rm_amqp.decider.resource import DecidingBroker
from rm_amqp.factories import deciding, dynamic, static
from rm_amqp.message import Message
from rm_amqp.resource import AmqpResource
from rm_amqp.session import AsyncSession, MessagingSession, NoMessage, Session
from rm_amqp.settings import Settings

__all__ = [
    "AmqpResource",
    "AsyncSession",
    "DecidingBroker",
    "Environment",
    "Message",
    "MessagingSession",
    "NoMessage",
    "Session",
    "Settings",
    "deciding",
    "dynamic",
    "static",
]
