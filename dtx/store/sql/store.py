"""SqlStore: messages and branches in SQLite or PostgreSQL, by URL; one thread writes, another one reads.

What it is made of:

    database      where it lives: connections, transactions, the space of its disk; in `sqlite` or `postgres`
    tables        its tables; `statements` are the texts that it executes often
    writer        the thread that writes: group commit; `batches` carries a group out
    reader        the thread that reads payloads, and the cache of those that were stored last
    lease         what keeps other processes from a store in PostgreSQL, and this one from speaking after its time
    restoration   reading back, at a start, what is stored
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from dtx.store.contract import NUMBERS_PER_OPENING, Step, StoreError
from dtx.store.sql.database import OPENING_FAILURES, opening_error, store_url
from dtx.store.sql.lease import LEASE_S
from dtx.store.sql.postgres import PostgresDatabase
from dtx.store.sql.reader import PayloadCache, Reader
from dtx.store.sql.restoration import RestoredFromSql
from dtx.store.sql.sqlite import SqliteDatabase
from dtx.store.sql.statements import statements_for
from dtx.store.sql.tables import CHUNKS, MESSAGE, META, METADATA, SHARE, VERSION, check_tables, count_of_openings
from dtx.store.sql.writer import Writer
from xa.sql.errors import explained, is_of_one_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from dtx.store.contract import Batch, StoreStopped
    from dtx.store.sql.database import Database
    from dtx.store.sql.lease import Lease
    from dtx.store.sql.reader import ChunkFetched, Fetched
    from dtx.store.sql.writer import Submitted

LOG: Final = logging.getLogger("xabridge.broker")
CACHE_OCTETS: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Opened:
    """The parts of an open store."""

    database: Database
    writer: Writer
    reader: Reader
    lease: Lease | None


class SqlStore:
    """A `dtx.store.contract.MessageStore`. `hook` is called at each `Step`, on the thread that writes.

    What is submitted in a turn of the event loop is gathered: it is written together, and has one force. `soon` is
    given the call that hands it to the writing thread, to be called at the end of the turn. Who calls `write` at the
    end of each turn has no use for that: `write` forces on the event loop where this is quicker.

    In PostgreSQL the store is held by a lease of `lease_s` (`dtx.store.sql.lease`); `lost` is delivered when it is
    lost.
    """

    def __init__(
        self,
        url: str,
        deliver: Callable[[Callable[[], None]], object],
        hook: Callable[[Step], None] = lambda _: None,
        soon: Callable[[Callable[[], None]], object] = lambda call: call(),
        cache_octets: int = CACHE_OCTETS,
        *,
        lease_s: float = LEASE_S,
        lost: Callable[[StoreStopped], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._lease_s = lease_s
        self._lost = lost
        self._deliver = deliver
        self._hook = hook
        self._soon = soon
        self._gathered: list[Submitted] = []

        self._in_thread = 0
        """Batches that the writing thread has, or has written, and that are not answered."""
        self._cache = PayloadCache(cache_octets)
        self._opened: _Opened | None = None
        self.waiting_octets = 0
        self.first_number = 0
        self.groups = 0
        self.forced: Callable[[float, int], None] = _not_measured
        """Called after every force, in the thread that does it, if set before `open`: how long it took with what was
        written for it, and how many batches it made durable."""

    def open(self) -> RestoredFromSql:
        if self._opened is not None:
            raise StoreError("this store is open already")
        database = open_database(self._url, self._lease_s)

        try:
            connection = database.writer()
            epoch = _prepare_tables(connection, database)
            lease = database.hold(epoch, self._has_lost)
            self.first_number = epoch * NUMBERS_PER_OPENING
            restored = RestoredFromSql(database.reader(), self.first_number, opening_error)
            statements = statements_for(connection.dialect)
            reader = Reader(database.reader(), statements, self._deliver)
            writer = Writer(
                *database.transactions(connection, epoch), statements, self._hook, self._written, self.forced
            )
        except OPENING_FAILURES as error:
            database.close()
            raise opening_error(error) from None  # which may quote the server, and that a password
        except BaseException:
            database.close()
            raise
        self._opened = _Opened(database, writer, reader, lease)
        return restored

    def _has_lost(self, error: StoreStopped) -> None:
        """Called in the lease's thread."""
        self._deliver(lambda: self._lost(error))

    @property
    def may_tell(self) -> bool:
        """Whether no other process can have the store now. Otherwise nothing that is known of it may be sent: to be
        asked after something was found out, and before it is sent."""
        opened = self._opened
        return opened is not None and (opened.lease is None or opened.lease.lasts)

    @property
    def _open(self) -> _Opened:
        if self._opened is None:
            raise StoreError("this store is not open")
        return self._opened

    @property
    def promised(self) -> int:
        """Octets that are kept free for commits of prepared branches."""
        return 0 if self._opened is None else self._opened.writer.promised

    @promised.setter
    def promised(self, octets: int) -> None:
        if self._opened is not None:
            self._opened.writer.promised = octets

    def submit(self, batch: Batch, done: Callable[[StoreError | None], None]) -> None:
        if self._opened is None:
            raise StoreError("this store is not open")
        self.waiting_octets += batch.octets
        self._gathered.append((batch, done))
        if len(self._gathered) == 1:
            self._soon(self.hand_over)

    def hand_over(self) -> None:
        """Gives the writing thread what was submitted; on the event loop, and before `close` for the last time."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            self._in_thread += len(gathered)
            self._open.writer.submit(gathered)

    def write(self) -> None:
        """Has what was submitted written: at once where this is quick, else by the writing thread. On the event loop,
        and where completions may be called."""
        gathered = self._gathered
        if not gathered or self._opened is None:
            return
        if self._in_thread == 0:
            self._gathered = []
            if self._opened.writer.write_now(gathered, self._completed):
                return
            self._gathered = gathered
        self.hand_over()

    @property
    def waits(self) -> bool:
        """Whether there is something for `write` or `hand_over`."""
        return bool(self._gathered)

    @property
    def busy(self) -> bool:
        """Whether the writing thread has batches: there will be a completion."""
        return self._in_thread > 0

    @property
    def full(self) -> bool:
        """Whether it refuses what takes space, or did so within the last minute."""
        return self._opened is not None and self._opened.writer.full

    @property
    def octets(self) -> int | None:
        """The size of its files; None where they are another machine's."""
        return None if self._opened is None else self._opened.database.octets

    def maintain(self) -> None:
        """Keeps the database in order. To be called now and then, also when nothing is submitted."""
        if self._opened is not None:
            self._opened.writer.maintain()
            if self._opened.lease is not None:
                self._opened.lease.watch()

    def _written(self, group: list[Submitted], error: StoreError | None) -> None:
        """Called in the writing thread, once per group."""
        self._deliver(lambda: self._returned(group, error))

    def _returned(self, group: list[Submitted], error: StoreError | None) -> None:
        self._in_thread -= len(group)
        self._completed(group, error)

    def _completed(self, group: list[Submitted], error: StoreError | None) -> None:
        self.groups += 1
        for batch, done in group:
            self.waiting_octets -= batch.octets
            if error is None:
                self._cache.add(batch.payloads)
                for message in batch.dequeues:
                    self._cache.drop(message)
            done(error)

    def cached(self, message: int) -> bytes | None:
        return self._cache.get(message)

    def fetch(self, messages: Sequence[int], done: Fetched) -> None:
        self._open.reader.fetch(messages, done)

    def fetch_chunk(self, message: int, number: int, done: ChunkFetched) -> None:
        self._open.reader.fetch_chunk(message, number, done)

    def close(self) -> None:
        if self._opened is None:
            return
        opened, self._opened = self._opened, None
        opened.writer.close()
        opened.reader.close()
        opened.database.close()


def _not_measured(took_s: float, batches: int) -> None:
    """Does nothing."""


def open_database(url: str, lease_s: float = LEASE_S) -> Database:
    """The database of a URL: sqlite:///path or postgresql://user@host/name."""
    parsed = store_url(url)
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return SqliteDatabase(parsed)
    if kind == "postgresql":
        return PostgresDatabase(parsed, lease_s)
    raise StoreError(f"a store lives in sqlite or postgresql, not in {kind}")


def _drop_unfinished(connection: Connection) -> None:
    """Deletes pieces of messages that never came to be, those that can be read."""
    try:
        unused = CHUNKS.c.message.not_in(select(MESSAGE.c.number)), CHUNKS.c.message.not_in(select(SHARE.c.payload))
        with connection.begin_nested():
            connection.execute(delete(CHUNKS).where(*unused))
    except DBAPIError as error:
        if not is_of_one_place(error):
            raise
        LOG.warning("pieces of unfinished messages stay in the store: %s", explained(error))


def _prepare_tables(connection: Connection, database: Database) -> int:
    """Takes the store, makes the tables where there are none, drops what an earlier process left unfinished, and counts
    this opening; all in one transaction. Nothing is changed where it is another version's store."""
    with connection.begin():
        check_tables(connection)
        database.take(connection)
        if not check_tables(connection):  # somebody may have made it before we took it
            METADATA.create_all(connection, checkfirst=False)
            connection.execute(insert(META), [{"name": "version", "value": VERSION}, {"name": "openings", "value": 0}])
        openings = count_of_openings(connection) + 1
        connection.execute(update(META).where(META.c.name == "openings").values(value=openings))
        _drop_unfinished(connection)
        database.taken(connection, openings)
    return openings
