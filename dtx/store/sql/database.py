"""Database: where a SQL store lives, as the store's threads see it. `dtx.store.sql.sqlite` and `dtx.store.sql.postgres`
are the two kinds.

A database gives out connections. The one that writes is used through `Transactions`, and what is known of the disk
below it is its `DiskHeadroom`. How each of them is opened so that it is durable, and what errors mean, is in `xa.sql`.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dtx.store.contract import StoreAway, StoreBusy, StoreDamaged, StoreError, StoreFull, StoreLocked, StoreRefused
from xa.open_string import shown
from xa.sql.errors import ErrorKind, explained, kind_of
from xa.sql.url import database_url

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import URL, Connection

    from dtx.store.contract import NotStored, StoreStopped
    from dtx.store.sql.lease import Lease

OPENING_FAILURES: Final = (SQLAlchemyError, sqlite3.Error)
"""The exceptions that opening a database raises, through SQLAlchemy and below it, in SQLite's pragmas."""

ACCESS: Final = "Let this user read and write the store's file, those beside it and their folder"
LOCKED_MS: Final = 5000
"""How long the writing thread waits where somebody else has locked the database. The event loop does not wait."""


def store_url(url: str) -> URL:
    """The URL of a store, with its password. StoreError: it is none."""
    try:
        return database_url(url)
    except ValueError as error:
        raise StoreError(f"{shown(url)!r} is not the URL of a store: {error}") from None


class DiskHeadroom(Protocol):
    """The disk that a store is on, for the thread that writes."""

    @property
    def tight(self) -> bool:
        """Whether there is so little space that nothing is taken but what frees some."""
        ...

    def is_undone(self, error: Exception) -> bool:
        """Whether a commit that failed with `error` has certainly left no trace."""
        ...

    def has_room(self, octets: int) -> bool:
        """Whether what takes so much may be tried; otherwise it is refused as if the disk were full."""
        ...

    def written(self, octets: int, rows: int) -> None:
        """So much was made durable."""
        ...

    @property
    def log_is_long(self) -> bool:
        """Whether so much is in the database's log that a commit would soon have to shorten it."""
        ...

    def shorten_log(self) -> None:
        """Takes over what is in the log, so that no commit has to."""
        ...

    def make_room(self) -> bool:
        """There is no space: uses what was kept for this; whether there was any."""
        ...

    def keep_room(self, octets: int) -> None:
        """Keeps some space again, where there is, and makes room for what takes so much. To be called now and then
        while it is tight, or there is no room."""
        ...

    def tidy(self) -> bool:
        """Gives a part of the space that is not used any more back to the system; whether there may be more. To be
        called when there is nothing else to do."""
        ...


class UnknownHeadroom:
    """The space of another machine's disk: nothing is known of it here, so everything is tried."""

    tight: Final = False
    log_is_long: Final = False

    def is_undone(self, error: Exception) -> bool:  # noqa: ARG002 — the server does not tell it of any error
        return False

    def has_room(self, octets: int) -> bool:  # noqa: ARG002
        return True

    def written(self, octets: int, rows: int) -> None:
        pass

    def shorten_log(self) -> None:
        pass

    def make_room(self) -> bool:
        return False

    def keep_room(self, octets: int) -> None:
        pass

    def tidy(self) -> bool:
        return False


class Transactions:
    """Transactions on a connection's driver itself: every statement of a force is one of few texts, and
    SQLAlchemy's way with a statement would take longer than SQLite's."""

    prompt: ClassVar[bool] = False
    """Whether a small transaction takes no longer than this machine's disk does."""

    def __init__(self, connection: Connection) -> None:
        self._driver = connection.connection
        self.cursor = self._driver.cursor()
        self.failures: tuple[type[Exception], ...] = (SQLAlchemyError, connection.dialect.loaded_dbapi.Error)
        """The exceptions that these methods raise."""

    def begin(self, wait_ms: int) -> None:
        """Begins one; `wait_ms`: how long somebody else may have locked the database. PostgreSQL locks no database, and
        its driver begins at the first statement."""

    def execute(self, text: str, parameters: Sequence[Any]) -> None:
        """One statement."""
        self.cursor.execute(text, parameters)

    def commit(self) -> None:
        """Makes the transaction durable."""
        self._driver.commit()

    def rollback(self) -> None:
        """Leaves no trace of the transaction."""
        self._driver.rollback()


class Database(Protocol):
    """A database that this process has for itself."""

    def writer(self) -> Connection:
        """The connection that writes; where the lock is a session's, it is this one's."""
        ...

    def reader(self) -> Connection:
        """A further connection, that reads what was committed."""
        ...

    def take(self, writer: Connection) -> None:
        """Begins an opening, in the transaction in which the caller counts it: no other process can open the store
        until it ends. StoreLocked: another process has it."""
        ...

    def taken(self, writer: Connection, epoch: int) -> None:
        """Ends an opening, in the same transaction: it is the one with the number `epoch`."""
        ...

    def hold(self, epoch: int, lost: Callable[[StoreStopped], None]) -> Lease | None:
        """What the store is held by from now on, where this is for a time only; `lost` is called when it is lost."""
        ...

    def transactions(self, writer: Connection, epoch: int) -> tuple[Transactions, DiskHeadroom]:
        """Transactions on the connection that writes, which is used for nothing else from now on, and the space that
        they have. They fail where another opening than `epoch` is the latest one."""
        ...

    @property
    def octets(self) -> int | None:
        """The size of its files; None where they are another machine's."""
        ...

    def close(self) -> None:
        """Lets others open the database."""
        ...


_NOT_STORED: Final[dict[ErrorKind, tuple[type[NotStored], str]]] = {
    ErrorKind.FULL: (StoreFull, "no space in the store"),
    ErrorKind.DEADLOCK: (StoreBusy, "the store takes nothing now"),
    ErrorKind.SERIALIZATION: (StoreBusy, "the store takes nothing now"),
    ErrorKind.LOCKED: (StoreBusy, "the store takes nothing now"),
    ErrorKind.CANCELLED: (StoreBusy, "the store takes nothing now"),
    ErrorKind.EXHAUSTED: (StoreBusy, "the store takes nothing now"),
    ErrorKind.INVALID: (StoreRefused, "the store does not take it"),
}
"""The errors of statements that leave the connection as good as before. After any other one the store stops."""


def not_stored(error: Exception) -> NotStored | None:
    """The refusal after a failed statement, where its transaction can be rolled back and the store can go on."""
    found = _NOT_STORED.get(kind_of(error))
    if found is None:
        return None
    refusal, words = found
    return refusal(f"{words}: {error}")


AWAY: Final = frozenset({ErrorKind.LOST, ErrorKind.UNTOLD, ErrorKind.UNAVAILABLE, ErrorKind.EXHAUSTED})
"""So a server can't be opened that may be there again later. (psycopg notes no code where it gets no connection, also
where a password is wrong.)"""


def opening_error(error: Exception) -> StoreError:
    """What an error means that the database gave while a store was opened."""
    if kind_of(error) is ErrorKind.LOCKED:
        return StoreLocked(f"the store is in use: {explained(error)}")
    if kind_of(error) is ErrorKind.DAMAGED:
        return StoreDamaged(
            f"the store is not a database of xabridge, or damaged: {explained(error)}. `xabridge check` says which "
            "tables are"
        )
    refused = StoreAway if kind_of(error) in AWAY else StoreError
    return refused(f"the store can't be opened: {explained(error)}")


def close_all(connections: Sequence[Connection]) -> None:
    """Closes connections, those that broke too; what was not committed is rolled back."""
    for connection in connections:
        with suppress(DBAPIError):
            connection.close()
