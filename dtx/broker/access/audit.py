"""Audit: who has done what, from where, when, and with which outcome.

An entry is a record of the store. There are two kinds:

- A *change* has an entry of its own, which is written in the batch of the change: either both are durable, or neither.
  A change that takes several batches has one entry, which each of them replaces. One that the store did not take is
  entered as failed. The store keeps the last MOST of these.
- What anybody can cause as often as they like is *summed*: sign-ins, requests that were refused, messages that were
  read. A sum counts what one user did from one network within PERIOD_S. Each group of sums keeps its last MOST_SUMS,
  and begins at most MOST_BEGUN in a period; what is more is summed per user, whatever the network. So a stranger who
  fails a million times costs one entry, and pushes out no change. Names that are no user's are not kept: one of them
  may be a password in the wrong field.

Sums and failures are written every WRITE_S seconds, at most MOST_WRITTEN at once; a crash loses what is younger. The
log `xabridge.broker.audit` gets a line for all that is written.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dtx.store.contract import Batch
from xa.printable import printable
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.store.contract import NotStored, Restored

LOG: Final = logging.getLogger("xabridge.broker.audit")
KIND: Final = "audit"
MOST: Final = 10_000
MOST_SUMS: Final = 2_000
MOST_BEGUN: Final = 200
PERIOD_S: Final = 3600.0
WRITE_S: Final = 10.0
MOST_WRITTEN: Final = 100
MOST_WHY: Final = 300
SIGN_IN: Final = "sign-in"
MANY_NETWORKS: Final = "many networks"


class Outcome(Enum):
    """How it ended."""

    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something: the user, the address of the connection, and that of the browser, if the peer is a console
    that says for whom it asks."""

    who: str
    address: str = ""
    browser: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """An entry. Of a sum, `when_ms` is the last time and `first_ms` the first one; `count` is 0 for a change."""

    when_ms: int
    who: str
    what: str
    outcome: Outcome
    address: str = ""
    browser: str = ""
    why: str = ""
    first_ms: int = 0
    count: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        found = {name: value for name, value in asdict(self).items() if value or name == "when_ms"}
        return json.dumps({**found, "outcome": self.outcome.value}, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> AuditEntry:
        """The entry of a record."""
        found = json.loads(text)
        for name in ("when_ms", "first_ms", "count"):
            found[name] = int(found.get(name, 0))
        for name in ("who", "what", "address", "browser", "why"):
            found[name] = str(found.get(name, ""))
        return cls(**found | {"outcome": Outcome(found["outcome"]), "about": dict(found.get("about", {}))})

    @property
    def group(self) -> str:
        """Those of a group push out only each other."""
        if not self.count:
            return "change"
        return f"{SIGN_IN if self.what == SIGN_IN else 'request'} {self.outcome.value}"


class Audit:
    """The entries, by their numbers."""

    def __init__(self, resource: TransactionalResource) -> None:
        self._resource = resource
        self._groups: dict[str, OrderedDict[int, AuditEntry]] = {}
        self._open: dict[tuple[str, ...], int] = {}
        """The sums of this period: by what they have in common, their numbers."""
        self._begun: dict[str, int] = {}
        """How many sums each group has begun in this period."""
        self._period_ends = 0.0
        self._unwritten: dict[int, None] = {}
        """Entries that are not in the store yet, or not as they are now."""
        self._writes = False

    def restore(self, restored: Restored) -> None:
        """Takes the entries from the store."""
        for record in restored.records:
            if record.kind == KIND:
                entry = AuditEntry.parse(record.text)
                self._entries(entry.group)[record.number] = entry

    def _entries(self, group: str) -> OrderedDict[int, AuditEntry]:
        return self._groups.setdefault(group, OrderedDict())

    # -- changes
    def write(self, batch: Batch, actor: Actor, what: str, details: dict[str, Any], number: int = 0) -> int:
        """Writes an entry into the batch of the change that it tells; in place of the one with this `number`, where
        that is given. The entry's number. Call `failed` if the batch will never be durable."""
        resource = self._resource
        number = number or resource.number()
        now_ms = resource.clock.wall_ms()
        entry = AuditEntry(now_ms, actor.who, what, Outcome.DONE, actor.address, actor.browser, about=dict(details))
        self._put(batch, number, entry)
        return number

    def failed(self, number: int, why: str, **details: Any) -> None:
        """The store did not take the batch of this entry, whose `details` are these now."""
        changes = self._entries("change")
        entry = changes.get(number)
        if entry is not None:
            why, known = why[:MOST_WHY], {**entry.about, **details}
            changes[number] = replace(entry, outcome=Outcome.FAILED, why=why, about=known)
            self._write_later(number)

    def _put(self, batch: Batch, number: int, entry: AuditEntry) -> None:
        """Has the batch write an entry, and drop the oldest ones of its group that are too many."""
        entries = self._entries(entry.group)
        entries[number] = entry
        text = str(entry)
        batch.record(number, KIND, text)
        while len(entries) > (MOST if entry.group == "change" else MOST_SUMS):
            oldest, _ = entries.popitem(last=False)
            self._unwritten.pop(oldest, None)
            batch.drop_record(oldest)

        queue, branch, connection = (entry.about.get(name) for name in ("queue", "xid", "connection"))
        LOG.info("%s", text, extra=about(queue=queue, branch=branch, connection=connection, user=entry.who))

    # -- sums
    def signed_in(self, user: str, network: str, outcome: Outcome, why: str = "", *, with_old: bool = False) -> None:
        """Somebody from this network has signed in, `with_old` with an old password, or was refused. `user` is "" for a
        name that no user has."""
        details = {"password": "old"} if with_old else {}
        self._count(Actor(user or "an unknown user", network), SIGN_IN, outcome, why, details)

    def asked(self, actor: Actor, what: str, outcome: Outcome, why: str, details: dict[str, Any]) -> None:
        """A request that was refused, or one that has read what is not for everybody."""
        self._count(actor, what, outcome, why, details)

    def _count(self, actor: Actor, what: str, outcome: Outcome, why: str, details: dict[str, Any]) -> None:
        now, now_ms = self._resource.clock.monotonic(), self._resource.clock.wall_ms()
        if now >= self._period_ends:
            self._period_ends = now + PERIOD_S
            self._open.clear()
            self._begun.clear()
        entry = AuditEntry(
            now_ms, actor.who, what, outcome, actor.address, actor.browser, printable(why, MOST_WHY), now_ms, 1, details
        )

        number, before = self._sum(entry)
        if before is None and self._begun.get(entry.group, 0) >= MOST_BEGUN:
            entry = replace(entry, address=MANY_NETWORKS, browser="", about={}, why="")
            number, before = self._sum(entry)
        if before is None:
            number = self._resource.number()
            self._open[_key(entry)] = number
            self._begun[entry.group] = self._begun.get(entry.group, 0) + 1
        else:
            entry = replace(before, when_ms=now_ms, count=before.count + 1)
        self._entries(entry.group)[number] = entry
        self._write_later(number)

    def _sum(self, entry: AuditEntry) -> tuple[int, AuditEntry | None]:
        """The sum of this period that an entry belongs to."""
        number = self._open.get(_key(entry), 0)
        return number, self._entries(entry.group).get(number)

    # -- later
    def _write_later(self, number: int) -> None:
        self._unwritten[number] = None
        if not self._writes:
            self._writes = True
            self._resource.after(WRITE_S, self._write_now)

    def _write_now(self) -> None:
        self._writes = False
        self.write_sums()
        if self._unwritten:
            self._write_later(next(iter(self._unwritten)))

    def write_sums(self) -> None:
        """Writes sums and failures that are not in the store yet, MOST_WRITTEN of them."""
        if not self._unwritten:
            return
        batch, numbers = Batch(), list(self._unwritten)[:MOST_WRITTEN]
        for number in numbers:
            found = (entries[number] for entries in self._groups.values() if number in entries)
            for entry in tuple(found):
                self._put(batch, number, entry)
            self._unwritten.pop(number, None)

        def written(error: NotStored | None) -> None:
            if error is not None:
                for number in numbers:
                    self._write_later(number)

        self._resource.submit(batch, written)

    # -- looking
    def newest(self, before: tuple[int, int] | None = None) -> list[tuple[int, AuditEntry]]:
        """The entries, the newest first by the time that is shown, of a sum its last; behind the one with this time and
        number, if `before` is given. They are sorted for each page, because sums move and clocks are put back."""
        every = (row for entries in self._groups.values() for row in entries.items())
        rows = [(entry.when_ms, number, entry) for number, entry in every]
        if before is not None:
            rows = [row for row in rows if row[:2] < before]
        rows.sort(reverse=True)  # no number is there twice, so that entries are not compared
        return [(number, entry) for _, number, entry in rows]


def _key(entry: AuditEntry) -> tuple[str, ...]:
    network_or_address = entry.address if entry.what == SIGN_IN else entry.address.rpartition(":")[0]
    return (entry.group, entry.who, entry.what, network_or_address, entry.browser, entry.why, str(entry.about))
