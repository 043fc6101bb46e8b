"""Messages: AMQP messages by columns, as a source yields them and a sink takes them, and as Arrow wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Text = Sequence["str | None"]
Numbers = Sequence["int | None"]
Properties = Sequence["Mapping[str, Any] | None"]


@dataclass(frozen=True, slots=True)
class Messages:
    """Columns of equal length, one entry for each message; a column that is None has a null in every entry.

    `address` is the queue that a message came from; a sink does not read it, nor `delivery_count` and `annotations`.
    A body is octets, or text for one that is an AMQP string. A sink takes simple values of any type as properties. To
    a source, values of properties and annotations that are no text come as text (JSON for lists and maps); so do ids
    that are numbers, UUIDs or octets.
    """

    body: Sequence[bytes | str | None]
    address: Text | None = None
    message_id: Text | None = None
    correlation_id: Text | None = None
    subject: Text | None = None
    reply_to: Text | None = None
    content_type: Text | None = None
    group_id: Text | None = None
    creation_time_ms: Numbers | None = None
    delivery_count: Numbers | None = None
    priority: Numbers | None = None
    application_properties: Properties | None = None
    annotations: Properties | None = None
    bad: Sequence[tuple[bytes | None, str] | None] | None = None
    """Of a bad message that is kept: its body as it came, or all of its octets if nothing of it can be read, and the
    reason. Its `body` is None then."""

    def __len__(self) -> int:
        return len(self.body)
