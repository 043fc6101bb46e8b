"""The factories that the entry points of the group `xabridge.resource_managers` name, by scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_amqp.decider.resource import DecidingBroker
from rm_amqp.resource import AmqpResource
from xa import TMREGISTER, TMUSEASYNC

if TYPE_CHECKING:
    from xa import Registrar


def static(registrar: Registrar) -> AmqpResource:
    """For `amqp://` and `amqps://`: the transaction manager starts and ends its work."""
    return AmqpResource(registrar)


def dynamic(registrar: Registrar) -> AmqpResource:
    """For `dynamic+amqp://` and `dynamic+amqps://`: it registers itself at the first work (TMREGISTER)."""
    return AmqpResource(registrar, TMREGISTER | TMUSEASYNC)


def deciding(registrar: Registrar) -> DecidingBroker:
    """For `decider+amqp://` and `decider+amqps://`: a broker with local transactions, as the one that decides."""
    return DecidingBroker(registrar)
