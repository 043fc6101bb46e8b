"""Accounts: the users and rules that hold, and what management has changed of them.

The file of users and the section `[broker.permissions]` are what a broker begins with. What management says of a name
is a record of the store, and holds instead, at this start and at every later one: another verifier, another rule, or
that there is none. A name of which management has said nothing is as the files have it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dtx.amqp.sasl.scram import Verifier
from dtx.broker.access.permissions import rule_from, section_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.access.credentials import Credentials
    from dtx.broker.access.permissions import Permissions, Rule
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.store.contract import Batch, Restored

Undo: TypeAlias = "Callable[[], None]"
USER: Final = "user"
RULE: Final = "rule"
"""The kinds of the records. Their text is a name, and a verifier or a rule, or null where there is none."""


class Accounts:
    """`credentials` is None where the broker has no file of users: then no one has a password."""

    def __init__(
        self, resource: TransactionalResource, permissions: Permissions, credentials: Credentials | None
    ) -> None:
        self.permissions = permissions
        self.credentials = credentials
        self._resource = resource
        self._records: dict[tuple[str, str], int] = {}
        """What management has said: by kind and name, the number of the record."""

    def restore(self, restored: Restored) -> None:
        """Has what management said hold."""
        for record in restored.records:
            if record.kind in (USER, RULE):
                name, value = json.loads(record.text)
                self._records[record.kind, name] = record.number
                self._apply(record.kind, name, value)

    def _apply(self, kind: str, name: str, value: Any) -> None:
        if kind == RULE:
            self.permissions.set(name, None if value is None else rule_from(name, value))
        elif self.credentials is not None:
            self.credentials.set(name, None if value is None else Verifier.parse(value))

    def write_user(self, batch: Batch, name: str, verifier: Verifier | None) -> Undo:
        """Writes a user's new verifier; None: the user goes. `credentials.set` has it hold when the batch is
        durable. What is returned is to be called if it never will be."""
        return self._write(batch, USER, name, None if verifier is None else str(verifier))

    def write_rule(self, batch: Batch, name: str, rule: Rule | None) -> Undo:
        """Writes the new rule of a name; None: it goes. `permissions.set` has it hold when the batch is durable.
        What is returned is to be called if it never will be."""
        return self._write(batch, RULE, name, None if rule is None else section_of(rule))

    def _write(self, batch: Batch, kind: str, name: str, value: Any) -> Undo:
        key = (kind, name)
        is_new = key not in self._records
        if is_new:
            self._records[key] = self._resource.number()
        batch.record(self._records[key], kind, json.dumps([name, value], ensure_ascii=False))

        def undo() -> None:
            if is_new:
                self._records.pop(key, None)

        return undo

    def origin(self, kind: str, name: str) -> str:
        """Where what holds for a name comes from: `store` or `file`."""
        return "store" if (kind, name) in self._records else "file"
