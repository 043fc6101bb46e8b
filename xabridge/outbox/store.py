"""OutboxStore: the outbox as relays and operators see it.

Relays share the work by lanes. A relay locks some lanes, takes the first rows in them, sends, deletes what the broker
has confirmed, and lets go. The locks are rows of `xabridge_outbox_lane`:

- Where a database skips rows that others have locked, the relay holds them in one transaction, from the first row taken
  to the last one deleted. If the relay or its connection dies, the database lets go at once.
- SQLite has one lock for everything, which may not be held while a broker is asked; MySQL before 8.0.1 and MariaDB
  before 10.6 don't skip. There a relay writes its name and an end of its lease into the row, in a transaction of its
  own. If it dies, its lanes wait for that end.

The locks keep relays from sending what another one is sending; order does not depend on them. A relay begins with the
first row of each key, and sends none before its predecessor is confirmed. So even if two relays are at work on the
same rows, every message of a key arrives for the first time behind all its predecessors.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, delete, func, or_, select, update

from rm_db.address import Address
from rm_db.decider.engine import make_engine, parse_url
from rm_db.decider.sqlite import WAIT_OPTION
from xa.sql import mariadb
from xabridge.outbox.tables import MAX_REASON, REFUSED, WAITING, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import ColumnElement, Connection, Engine, Select

    from xabridge.outbox.publisher import PublishResult, Refusal

CONNECTIONS: Final = 2
WAIT_S: Final = 10.0
"""How long a statement waits for a connection, or for SQLite's lock."""
MAX_REPLY: Final = 1 << 30
"""Octets of the rows that the database may send for one statement."""
MAX_BATCH_OCTETS: Final = 16 << 20
"""A batch ends with the message that reaches this size."""
MAX_BACKOFF_S: Final = 300.0
_AT_ONCE: Final = 500
_DRIVERS: Final = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mariadb": "mariadb+pymysql",
    "mysql": "mysql+pymysql",
}
"""The schemes of our resources that name no driver."""
_SKIP_FROM: Final = {"mariadb": (10, 6, 0), "mysql": (8, 0, 1)}
_SKIPS: Final = frozenset({"postgresql", "oracle", "mssql"})


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row that a relay has taken."""

    id: int
    order_key: str | None
    destination: str
    message_id: str
    message: bytes
    created: float
    attempts: int


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A row as an operator sees it."""

    id: int
    state: str
    order_key: str | None
    destination: str
    message_id: str
    octets: int
    created: float
    attempts: int
    retry_at: float
    reason: str | None


@dataclass(frozen=True, slots=True)
class OutboxFigures:
    """The outbox in figures. `oldest_s`: how long the oldest message waits that was not refused for good."""

    waiting: int
    refused: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class RelayTurn:
    """What a relay has done in one turn."""

    sent: int = 0
    refused: int = 0
    set_aside: int = 0
    lag_s: float = 0.0
    away: str | None = None


class OutboxStore:
    """The outbox of one database."""

    def __init__(self, engine: Engine, tables: Tables | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.engine = engine
        self.tables = tables if tables is not None else Tables()
        self._clock = clock
        self._skips: bool | None = None

    @classmethod
    def at(cls, url: str, tables: Tables | None = None) -> OutboxStore:
        """The outbox of the database with this URL."""
        address = Address.parse(url)
        made = parse_url(address)
        made = made.set(drivername=_DRIVERS.get(made.drivername, made.drivername))
        dialect = made.get_dialect().name
        options: dict[str, Any] = {} if dialect == "sqlite" else {"isolation_level": "READ COMMITTED"}
        limits = (WAIT_S, address.reply_s, MAX_REPLY)
        clear = address.plain_without_tls
        return cls(make_engine(made, CONNECTIONS, *limits, plain_without_tls=clear, **options), tables)

    def open(self, *, with_inbox: bool = False) -> None:
        """Makes the tables where they are missing. A relay needs no inbox: it makes one if it may. TablesError: the
        outbox can't be used. SQLAlchemy's errors: the database is away."""
        self.tables.create(self.engine, with_inbox=with_inbox)

    def close(self) -> None:
        """Closes the connections."""
        self.engine.dispose()

    # --- relays ---------------------------------------------------------------------------------------------------

    def carry(
        self,
        send: Callable[[Sequence[ClaimedRow]], PublishResult],
        *,
        batch: int,
        max_attempts: int,
        holder: str,
        lease_s: float,
    ) -> RelayTurn:
        """One turn of a relay: takes rows, has them sent, deletes what was confirmed, and notes what was refused.
        `holder` and `lease_s` are for databases in which lanes are leased."""
        now = self._clock()
        if self._skips_locked():
            with self._transaction() as connection:
                lanes = self._lock(connection, now)
                taken = self._take(connection, lanes, now, batch) if lanes else []
                return self._note(connection, taken, send(taken), max_attempts) if taken else RelayTurn()
        with self._transaction() as connection:
            lanes = self._lease(connection, now, holder, lease_s)
            taken = self._take(connection, lanes, now, batch) if lanes else []

        carried = RelayTurn()
        try:
            if taken:
                sent = send(taken)
                with self._transaction() as connection:
                    carried = self._note(connection, taken, sent, max_attempts)
        finally:
            if lanes:
                with self._transaction() as connection:
                    self._release(connection, holder)
        return carried

    def _skips_locked(self) -> bool:
        """Whether the database skips rows that others have locked."""
        if self._skips is None:
            dialect = self.engine.dialect
            if dialect.name in mariadb.DIALECTS:
                with self.engine.connect():  # the first connection asks for the version
                    version: Any = dialect.server_version_info
                    is_mariadb = getattr(dialect, "is_mariadb", False)
                self._skips = tuple(version) >= _SKIP_FROM["mariadb" if is_mariadb else "mysql"]
            else:
                self._skips = dialect.name in _SKIPS
        return self._skips

    def _lock(self, connection: Connection, now: float) -> list[int]:
        """Locks half of the lanes in which something is to be sent, or the other half where others have locked these:
        relays that come at the same time share the lanes."""
        found: list[int] = list(connection.execute(self._busy_lanes(now)).scalars())
        random.shuffle(found)
        half = (len(found) + 1) // 2
        for some in (found[:half], found[half:]):
            if some:
                locked: list[int] = list(connection.execute(self._locking(some, skip=True)).scalars())
                if locked:
                    return locked
        return []

    def _locking(self, lanes: Sequence[int], *, skip: bool) -> Select[Any]:
        table = self.tables.lanes
        hint = "WITH (UPDLOCK, ROWLOCK, READPAST)" if skip else "WITH (UPDLOCK, ROWLOCK)"
        chosen = select(table.c.lane).where(table.c.lane.in_(lanes)).order_by(table.c.lane)
        return chosen.with_for_update(skip_locked=skip).with_hint(table, hint, "mssql")

    def _lease(self, connection: Connection, now: float, holder: str, lease_s: float) -> list[int]:
        """The same, with leases."""
        table = self.tables.lanes
        found = list(connection.execute(self._busy_lanes(now).where(table.c.until <= now)).scalars())
        random.shuffle(found)
        half = found[: (len(found) + 1) // 2]
        if not half:
            return []
        leased = update(table).where(table.c.lane.in_(half), table.c.until <= now)
        connection.execute(leased.values(holder=holder, until=now + lease_s))
        mine = select(table.c.lane).where(table.c.lane.in_(half), table.c.holder == holder, table.c.until > now)
        return list(connection.execute(mine).scalars())

    def _release(self, connection: Connection, holder: str) -> None:
        table = self.tables.lanes
        connection.execute(update(table).where(table.c.holder == holder).values(holder=None, until=0.0))

    def _busy_lanes(self, now: float) -> Select[Any]:
        """The lanes in which something is to be sent."""
        lanes, outbox = self.tables.lanes, self.tables.outbox
        there = select(outbox.c.id).where(outbox.c.lane == lanes.c.lane, self._is_due(now))
        return select(lanes.c.lane).where(there.with_hint(outbox, "WITH (READPAST)", "mssql").exists())

    def _is_due(self, now: float) -> ColumnElement[bool]:
        """Whether a row may be sent now: it waits, and so do the earlier ones of its key."""
        outbox = self.tables.outbox
        held = outbox.alias("held")
        keys_held = select(held.c.order_key).where(
            held.c.lane == outbox.c.lane,
            held.c.attempts > 0,
            held.c.order_key.is_not(None),
            or_(held.c.state == REFUSED, held.c.retry_at > now),
        )
        return and_(
            outbox.c.state == WAITING,
            outbox.c.retry_at <= now,
            or_(outbox.c.order_key.is_(None), outbox.c.order_key.not_in(keys_held)),
        )

    def _take(self, connection: Connection, lanes: Sequence[int], now: float, batch: int) -> list[ClaimedRow]:
        """The first rows of these lanes, at most `batch`, and as many as MAX_BATCH_OCTETS holds."""
        outbox = self.tables.outbox
        due = select(outbox.c.id, outbox.c.octets).where(outbox.c.lane.in_(lanes), self._is_due(now))
        due = due.order_by(outbox.c.id).limit(batch).with_hint(outbox, "WITH (READPAST)", "mssql")
        numbers: list[int] = []
        octets = 0
        for number, size in connection.execute(due):
            if numbers and octets + size > MAX_BATCH_OCTETS:
                break
            numbers.append(number)
            octets += size

        if not numbers:
            return []
        columns = outbox.c
        rows = connection.execute(
            select(
                columns.id, columns.order_key, columns.destination, columns.message_id, columns.message,
                columns.created, columns.attempts,
            ).where(columns.id.in_(numbers)).order_by(columns.id)
        )  # fmt: skip
        return [ClaimedRow(*row[:4], bytes(row[4]), *row[5:]) for row in rows]

    def _note(
        self, connection: Connection, taken: Sequence[ClaimedRow], sent: PublishResult, max_attempts: int
    ) -> RelayTurn:
        """Deletes the rows of confirmed messages, and notes what was refused."""
        outbox = self.tables.outbox
        numbers = [row.id for row in taken if row.id in sent.confirmed]
        if numbers:
            connection.execute(delete(outbox).where(outbox.c.id.in_(numbers)))
        set_aside = 0
        now = self._clock()
        for row in taken:
            refusal = sent.refused.get(row.id)
            if refusal is None:
                continue

            attempts = row.attempts + 1
            over = refusal.final or attempts >= max_attempts
            set_aside += over
            connection.execute(
                update(outbox)
                .where(outbox.c.id == row.id)
                .values(
                    attempts=attempts,
                    retry_at=now + min(2.0 ** (attempts - 1), MAX_BACKOFF_S),
                    state=REFUSED if over else WAITING,
                    reason=_short(refusal),
                )
            )
        lag_s = max((now - row.created for row in taken if row.id in sent.confirmed), default=0.0)
        return RelayTurn(len(numbers), len(sent.refused), set_aside, max(lag_s, 0.0), sent.away)

    # --- operators ------------------------------------------------------------------------------------------------

    def figures(self) -> OutboxFigures:
        """How many messages wait, and for how long."""
        outbox = self.tables.outbox
        counted = select(outbox.c.state, func.count(), func.min(outbox.c.created)).group_by(outbox.c.state)
        with self._transaction() as connection:
            found = {state: (count, oldest) for state, count, oldest in connection.execute(counted)}
        waiting, oldest = found.get(WAITING, (0, None))
        refused, _ = found.get(REFUSED, (0, None))
        return OutboxFigures(waiting, refused, max(self._clock() - oldest, 0.0) if oldest is not None else 0.0)

    def rows(self, *, state: str | None = None, limit: int = 100) -> list[OutboxRow]:
        """The first rows, in their order, of one state or of both."""
        outbox = self.tables.outbox
        wanted = self._kept().order_by(outbox.c.id).limit(limit)
        if state is not None:
            wanted = wanted.where(outbox.c.state == state)
        with self._transaction() as connection:
            return [OutboxRow(*row) for row in connection.execute(wanted)]

    def row(self, number: int) -> tuple[OutboxRow, bytes] | None:
        """One row, and its message's octets; None: there is none."""
        outbox = self.tables.outbox
        with self._transaction() as connection:
            found = connection.execute(self._kept().where(outbox.c.id == number)).one_or_none()
            octets = connection.execute(select(outbox.c.message).where(outbox.c.id == number)).scalar()
        return None if found is None or octets is None else (OutboxRow(*found), bytes(octets))

    def refused_ids(self) -> list[int]:
        """The ids of all rows that were refused for good."""
        outbox = self.tables.outbox
        with self._transaction() as connection:
            return list(
                connection.execute(
                    select(outbox.c.id).where(outbox.c.attempts > 0, outbox.c.state == REFUSED).order_by(outbox.c.id)
                ).scalars()
            )

    def retry(self, numbers: Sequence[int]) -> int:
        """Lets these rows be sent again, as if they had never been refused; how many there were."""
        outbox = self.tables.outbox
        again = update(outbox).values(attempts=0, retry_at=0.0, state=WAITING)
        return self._change(numbers, lambda some: again.where(outbox.c.id.in_(some)))

    def delete(self, numbers: Sequence[int]) -> int:
        """Deletes these rows, which are then never sent; how many there were."""
        outbox = self.tables.outbox
        return self._change(numbers, lambda some: delete(outbox).where(outbox.c.id.in_(some)))

    def _change(self, numbers: Sequence[int], statement: Callable[[Sequence[int]], Any]) -> int:
        """Changes rows while no relay works on their lanes."""
        outbox = self.tables.outbox
        changed = 0
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            with self._transaction() as connection:
                lanes = connection.execute(select(outbox.c.lane).where(outbox.c.id.in_(some)).distinct()).scalars()
                connection.execute(self._locking(list(lanes), skip=False))
                changed += connection.execute(statement(some)).rowcount
        return changed

    def _kept(self) -> Select[Any]:
        c = self.tables.outbox.c
        return select(
            c.id,
            c.state,
            c.order_key,
            c.destination,
            c.message_id,
            c.octets,
            c.created,
            c.attempts,
            c.retry_at,
            c.reason,
        )

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.engine.connect().execution_options(**{WAIT_OPTION: WAIT_S}) as connection, connection.begin():
            yield connection


def _short(refusal: Refusal) -> str:
    """The reason, as long as the column."""
    text = " ".join(refusal.why.split())
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"
