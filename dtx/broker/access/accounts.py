"""Accounts: the users and rules that hold, and what management has changed of them.

The file of users and the section `[broker.permissions]` are what a broker begins with. What management says of a name
is a record of the store, and holds instead, at this start and at every later one: another verifier, another rule, or
that there is none. A name of which management has said nothing is as the files have it.

A user may have an old password beside the present one for a time. Both stand in the user's record, with the end of the
old one. When that has come, the old one is refused at once, and the record is written without it: so neither a restart
nor a clock that is set back later makes it valid again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.sasl.scram import Verifier
from dtx.broker.access.audit import Actor
from dtx.broker.access.credentials import OldPassword
from dtx.broker.access.permissions import rule_from, section_of
from dtx.store.contract import Batch
from xa.printable import printable
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.access.audit import Audit
    from dtx.broker.access.credentials import Credentials
    from dtx.broker.access.permissions import Permissions, Rule
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.store.contract import NotStored, Restored

LOG: Final = logging.getLogger("xabridge.broker")
USER: Final = "user"
RULE: Final = "rule"
"""The kinds of the records. Their text is a name, and a verifier or a rule, or null where there is none. In place of
the verifier there are two and the end of the old one, where a user has an old password."""
LOOK_S: Final = 1.0
"""How often it is looked whether an old password has ended, to write that down."""
ENDS_OLD: Final = "end-old-password"
"""What the audit log calls it."""
BROKER: Final = "the broker"
"""Who ends an old password when its time has come."""


@dataclass(frozen=True, slots=True)
class AccountChange:
    """A change that was written into a batch. Call `done` when the batch is durable: the change holds from then on.
    Call `undone` if it never will be."""

    done: Callable[[], None]
    undone: Callable[[], None]


class Accounts:
    """`credentials` is None where the broker has no file of users: then no one has a password. `open_by_others` says
    how many connections of a user have signed in with another password than the present one."""

    def __init__(
        self,
        resource: TransactionalResource,
        permissions: Permissions,
        credentials: Credentials | None,
        audit: Audit,
        open_by_others: Callable[[str], int],
    ) -> None:
        self.permissions = permissions
        self.credentials = credentials
        self._resource = resource
        self._audit = audit
        self._open_by_others = open_by_others
        self._records: dict[tuple[str, str], int] = {}
        """What management has said: by kind and name, the number of the record."""
        self._changing: set[str] = set()
        """The users with a change that is not durable yet."""
        self._ended: set[str] = set()
        """The users whose old password has ended, and stands in their record still."""
        self._looks = False

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
            self._apply_passwords(self.credentials, name, value)

    def _apply_passwords(self, credentials: Credentials, name: str, value: Any) -> None:
        if not isinstance(value, dict):
            credentials.set(name, None if value is None else Verifier.parse(value))
            return
        verifier, old = Verifier.parse(value["verifier"]), Verifier.parse(value["old"])
        ending = OldPassword.ending(old, int(value["kept_ms"]), int(value["until_ms"]), self._resource.clock)
        if ending.left_ms:
            credentials.set(name, verifier, ending)
        else:
            credentials.set(name, verifier)
            self._ended.add(name)

    def is_changing(self, user: str) -> bool:
        """Whether a change of this user is not durable yet. Another one has to wait: it begins with what holds."""
        return user in self._changing

    def write_user(
        self, batch: Batch, name: str, verifier: Verifier | None, old: OldPassword | None = None
    ) -> AccountChange:
        """Writes the verifier of a user, and the old password that is valid beside it; None: the user goes."""
        value: Any = None if verifier is None else str(verifier)
        if old is not None:
            value = {"verifier": value, "old": str(old.verifier), "kept_ms": old.kept_ms, "until_ms": old.until_ms}
        undo = self._write(batch, USER, name, value)
        self._changing.add(name)

        def done() -> None:
            self._changing.discard(name)
            self._ended.discard(name)
            if self.credentials is not None:
                self.credentials.set(name, verifier, old)
            self.look()

        def undone() -> None:
            self._changing.discard(name)
            undo()

        return AccountChange(done, undone)

    def write_rule(self, batch: Batch, name: str, rule: Rule | None) -> AccountChange:
        """Writes the new rule of a name; None: it goes."""
        undo = self._write(batch, RULE, name, None if rule is None else section_of(rule))
        return AccountChange(lambda: self.permissions.set(name, rule), undo)

    def _write(self, batch: Batch, kind: str, name: str, value: Any) -> Callable[[], None]:
        key = (kind, name)
        is_new = key not in self._records
        if is_new:
            self._records[key] = self._resource.number()
        batch.record(self._records[key], kind, json.dumps([name, value], ensure_ascii=False))

        def undo() -> None:
            if is_new:
                self._records.pop(key, None)

        return undo

    # -- old passwords
    def look(self) -> None:
        """Ends the old passwords whose time has come, and looks again as long as there are any."""
        credentials = self.credentials
        if credentials is None:
            return
        for name, old in credentials.old_passwords.items():
            if not old.left_ms:
                credentials.set(name, credentials.verifier(name))
                self._ended.add(name)
                self._warn(name)
        for name in sorted(self._ended - self._changing):
            self._write_end(credentials, name)
        if not self._looks and (self._ended or credentials.old_passwords):
            self._looks = True
            self._resource.after(LOOK_S, self._look_again)

    def _warn(self, user: str) -> None:
        count = self._open_by_others(user)
        if count:
            LOG.warning(
                "the old password of %s has ended; connections that signed in with it and are open still: %d. They are "
                "refused when they connect again",
                printable(user),
                count,
                extra=about(user=user),
            )

    def _look_again(self) -> None:
        self._looks = False
        self.look()

    def _write_end(self, credentials: Credentials, name: str) -> None:
        """Writes the user's record without the old password. If the store does not take it, `look` tries again."""
        batch = Batch()
        number = self._audit.write(
            batch, Actor(BROKER), ENDS_OLD, {"user": name, "connections": self._open_by_others(name)}
        )
        change = self.write_user(batch, name, credentials.verifier(name))

        def written(error: NotStored | None) -> None:
            if error is None:
                change.done()
            else:
                self._audit.failed(number, str(error))
                change.undone()

        self._resource.submit(batch, written)

    def origin(self, kind: str, name: str) -> str:
        """Where what holds for a name comes from: `store` or `file`."""
        return "store" if (kind, name) in self._records else "file"
