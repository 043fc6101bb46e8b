"""Consumers: handlers that run over a queue, in a transaction per message or per batch. See `tm.consumer.consumer`."""

from tm.consumer.consumer import Consumer
from tm.consumer.settings import ConsumerSettings
from tm.consumer.states import ConsumerState
from tm.consumer.statistics import Health, MessageCounts

__all__ = ["Consumer", "ConsumerSettings", "ConsumerState", "Health", "MessageCounts"]
