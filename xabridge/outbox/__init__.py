"""Messages by way of a table: for brokers that take part in no transaction, RabbitMQ above all.

`Outbox.put` writes a message into a table, in the transaction of the database. A `Relay`, in any process, sends what is
there after the transaction was committed. `Inbox` tells a consumer which messages it has handled before. So two
applications that use both exchange each message exactly once; others get it at least once, with an id that stays the
same.
"""

from xabridge.outbox.inbox import Inbox
from xabridge.outbox.outbox import Outbox, OutboxFull
from xabridge.outbox.publisher import BrokerAway, OutgoingMessage, Publisher, PublishResult, Refusal
from xabridge.outbox.relay import Relay, RelaySettings
from xabridge.outbox.store import OutboxFigures, OutboxRow, OutboxStore, RelayTurn
from xabridge.outbox.tables import Tables, TablesError

__all__ = [
    "BrokerAway",
    "Inbox",
    "Outbox",
    "OutboxFigures",
    "OutboxFull",
    "OutboxRow",
    "OutboxStore",
    "OutgoingMessage",
    "PublishResult",
    "Publisher",
    "Refusal",
    "Relay",
    "RelaySettings",
    "RelayTurn",
    "Tables",
    "TablesError",
]
