"""The AMQP resource managers, the message and the session that applications use, and factories by URL scheme.

A name is imported when it is first used: a module that only makes a `Message` needs no connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa.lazy_names import names_at_first_use

if TYPE_CHECKING:
    from rm_amqp.connections import Environment
    from rm_amqp.decider.resource import DecidingBroker, deciding
    from rm_amqp.message import Message
    from rm_amqp.resource import AmqpResource, dynamic, static
    from rm_amqp.session import AsyncSession, Session
    from rm_amqp.session_contract import MessagingSession, NoMessage
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

_HOME: Final = {
    "AmqpResource": "rm_amqp.resource",
    "AsyncSession": "rm_amqp.session",
    "DecidingBroker": "rm_amqp.decider.resource",
    "Environment": "rm_amqp.connections",
    "Message": "rm_amqp.message",
    "MessagingSession": "rm_amqp.session_contract",
    "NoMessage": "rm_amqp.session_contract",
    "Session": "rm_amqp.session",
    "Settings": "rm_amqp.settings",
    "deciding": "rm_amqp.decider.resource",
    "dynamic": "rm_amqp.resource",
    "static": "rm_amqp.resource",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = names_at_first_use(globals(), _HOME)
