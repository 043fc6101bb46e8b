"""Audit: who has changed what, and when.

An entry is a record of the store, and is written in the batch of the change that it tells: either both are durable, or
neither. What takes several batches has one entry, which each of them replaces. The log `xabridge.broker.audit` gets the
same lines. The store keeps the last MOST entries.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.store.contract import Batch, Restored

LOG: Final = logging.getLogger("xabridge.broker.audit")
KIND: Final = "audit"
MOST: Final = 10_000


class Audit:
    """The entries, by their numbers."""

    def __init__(self, resource: TransactionalResource) -> None:
        self._resource = resource
        self._entries: OrderedDict[int, dict[str, Any]] = OrderedDict()

    def restore(self, restored: Restored) -> None:
        """Takes the entries from the store."""
        for record in restored.records:
            if record.kind == KIND:
                self._entries[record.number] = json.loads(record.text)

    def write(self, batch: Batch, who: str, what: str, details: dict[str, Any], number: int = 0) -> int:
        """Writes an entry into the batch of the change that it tells; in place of the one with this `number`, where
        that is given. The entry's number."""
        resource = self._resource
        entry = {"when": resource.clock.wall_ms(), "who": who, "what": what, **details}
        number = number or resource.number()
        self._entries[number] = entry
        text = json.dumps(entry, ensure_ascii=False)
        batch.record(number, KIND, text)
        while len(self._entries) > MOST:
            oldest, _ = self._entries.popitem(last=False)
            batch.drop_record(oldest)
        queue, branch = details.get("queue"), details.get("xid")
        LOG.info("%s", text, extra=about(queue=queue, branch=branch, connection=details.get("connection"), user=who))
        return number

    def forget(self, number: int) -> None:
        """The change was not made."""
        self._entries.pop(number, None)

    def newest(self, before: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The entries, the newest first, from the one in front of number `before` on; 0: all."""
        for number in reversed(self._entries):
            if not before or number < before:
                yield number, self._entries[number]
