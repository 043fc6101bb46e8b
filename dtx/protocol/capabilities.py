"""Capabilities of a coordinator, what a control link offers, and what a connection and its links offer."""

from __future__ import annotations

from typing import Final

LOCAL: Final = "amqp:local-transactions"
DISTRIBUTED: Final = "amqp:distributed-transactions"
MULTI_TXNS: Final = "amqp:multi-txns-per-ssn"
MULTI_SSNS: Final = "amqp:multi-ssns-per-txn"
END_AND_PREPARE: Final = "xabridge:end-and-prepare"
"""Ours: the resource takes `end` with `prepare`."""
DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
"""A message is kept back as long as its annotation says: the name under which Qpid JMS and ActiveMQ Artemis know it."""
FAILURE_REASONS: Final = "xabridge:failure-reasons"
"""Ours: what a message has failed with, `x-opt-retry-reason` in the outcome modified of a transaction that is rolled
back, goes with its next deliveries as a delivery annotation."""
OUTCOMES_OF_ROLLBACK: Final = "xabridge:outcomes-of-rollback"
"""Ours: a transactional-state may have a third field, the outcome of the message where the transaction is rolled back:
released, or modified without undeliverable-here. Without it a rollback counts as a delivery in vain. The annotation
`x-opt-retry-apart` of such a modified, true, goes with the next deliveries as a delivery annotation."""

TOPICS: Final = "xabridge:topics"
"""Ours: an address that begins with `topic:` is a topic, and one with a name behind `::` a subscription."""
SHARED_SUBSCRIPTIONS: Final = "SHARED-SUBS"
"""Several consumers may have one subscription: the name that the mapping of JMS has for it."""

CONTROL_OUTCOMES: Final = ("amqp:accepted:list", "amqp:rejected:list")
"""What the source of a control link tells as its outcomes: a refusal is then a rejected message and leaves
the link as it is. `declared` and `xa-result` come as well: they stand for success."""
