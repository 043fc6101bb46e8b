"""Database: a database that can hold a decision log, PostgreSQL or SQLite.

It is refused unless it forces what it commits (`xa.sql`). It is used with autocommit: each change is one statement, and
durable when the statement returns.
"""

from __future__ import annotations

import socket
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Connection,
    Double,
    Engine,
    MetaData,
    Table,
    bindparam,
    create_engine,
    inspect,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError

from tm.log.contract import LogDamaged, LogError, LogMissing, LogOfOtherVersion
from tm.log.log_folder import file_identity
from tm.log.sql.tables import METADATA, SCHEMA, VERSION
from xa.format_version import version_refusal
from xa.open_string import shown
from xa.printable import printable
from xa.sql import postgres, sqlite
from xa.sql.errors import ErrorKind, kind_of
from xa.sql.statements import SECONDS_1970, missing_columns, upsert
from xa.sql.url import database_url as read_url
from xa.sql.url import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import ColumnElement
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert
    from sqlalchemy.engine import URL

_WAIT_S: Final = 30.0
"""How long SQLite's file may be locked by others."""

CONNECT_S: Final = 10
"""How long PostgreSQL may take to let us in."""
REPLY_S: Final = 60.0
"""How long it may take to answer a statement."""

_CREATING: Final = 0x78616272
"""Key of the PostgreSQL advisory lock under which the tables are made: "xabr"."""

_SYSTEM_IDENTIFIER: Final = text("SELECT system_identifier FROM pg_control_system()")


class Database:
    """A database that can hold a log. `clock` stands in for the database's own; `engine` for one that writes."""

    def __init__(
        self,
        url: str,
        clock: Callable[[], float] | None = None,
        reply_s: float = REPLY_S,
        engine: Engine | None = None,
    ) -> None:
        self._url = database_url(url)
        self._clock = clock
        self.engine = engine if engine is not None else make_engine(self._url, reply_s)
        self._one_at_a_time = threading.Lock()

    def __str__(self) -> str:
        return shown_url(self._url)

    @property
    def is_sqlite(self) -> bool:
        """Whether one connection at a time can write."""
        return self.engine.dialect.name == "sqlite"

    def now(self) -> ColumnElement[float]:
        """The present time, in a statement."""
        if self._clock is not None:
            return bindparam("now", type_=Double, callable_=self._clock, unique=True)
        return literal_column(SECONDS_1970[self.engine.dialect.name], Double)

    def writing(self) -> AbstractContextManager[object]:
        """Around a change: in SQLite, where one waits for the other anyway, threads do it here, without polling."""
        return self._one_at_a_time if self.is_sqlite else nullcontext()

    def insert(self, table: Table) -> PostgresInsert | SqliteInsert:
        """An INSERT that can have an ON CONFLICT."""
        return upsert(self.engine.dialect.name, table)

    def prepare(self, *beside: MetaData) -> None:
        """Makes the tables where there are none, and those that stand `beside` them, and checks them. LogError: they
        can't hold a log, or are another version's, and nothing was changed."""
        if self.is_sqlite:
            self.check_file()
        self.check_forces()

        engine = self.engine.execution_options(isolation_level="SERIALIZABLE" if self.is_sqlite else "READ COMMITTED")
        with engine.begin() as connection:
            if self.is_sqlite:
                connection.execute(text("BEGIN IMMEDIATE"))
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATING})
            is_new = not self._is_there(connection)
            if is_new:
                METADATA.create_all(connection, checkfirst=False)
                connection.execute(SCHEMA.insert().values(version=VERSION))
            else:
                self._check_version(connection)
            for tables in beside:
                tables.create_all(connection)
            self._check_tables(connection)

    def check(self) -> None:
        """Checks the tables and makes none. LogMissing: there is no log here; LogError: they can't hold one, or are
        another version's."""
        with self.engine.connect() as connection:
            if not self._is_there(connection):
                raise LogMissing(f"{self}: there is no decision log here")
            self._check_version(connection)
            self._check_tables(connection)

    def check_file(self) -> None:
        """LogDamaged: SQLite's file is not what it was, as far as that shows before SQLite opens it. It would take an
        empty one for a new one, and delete its log. LogError: it can't be read."""
        path = Path(str(self._url.database)).absolute()
        log = path.with_name(path.name + "-wal")
        with readable(self):
            if not path.exists() or not path.stat().st_size:
                if log.exists() and log.stat().st_size:
                    raise LogDamaged(
                        f"{self}: the file is {'empty' if path.exists() else 'gone'}, but {log.name} beside it is of a "
                        "decision log that was in use: restore both from a copy"
                    )
                return
            damage = sqlite.visible_damage(path)
            if damage and damage == sqlite.visible_damage(path):  # not only because it is being written
                raise LogDamaged(f"{self}: the decision log is damaged: {damage}. Restore the log from a copy")

    def check_pages(self) -> None:
        """LogDamaged: a table of a file of SQLite is damaged, or does not fit to its index: then a row that is there
        would not be found. The tables of others in the file are theirs to check."""
        if not self.is_sqlite:
            return
        with self.engine.connect() as connection:
            for table in METADATA.tables:
                result = connection.execute(text(f"PRAGMA integrity_check({table})")).scalars().all()
                if result != ["ok"]:
                    raise LogDamaged(
                        f"{self}: the decision log is damaged in {table}: {printable(result[0], 200)}. Restore the log "
                        "from a copy"
                    )

    def check_version(self) -> None:
        """The part of `check` that looks at the version only, for a process whose tables another one has checked."""
        with self.engine.connect() as connection:
            self._check_version(connection)

    def place(self) -> str:
        """By what this database is known from a copy of it; "" where it has nothing, or does not tell this user."""
        if self.is_sqlite:
            return file_identity(sqlite.descriptor_of(str(self._url.database))).hex()
        try:
            with self.engine.connect() as connection:
                return str(connection.execute(_SYSTEM_IDENTIFIER).scalar_one())
        except DBAPIError as error:
            if kind_of(error) is not ErrorKind.DENIED:
                raise
            return ""

    def check_forces(self) -> None:
        """LogError: what is committed may be lost, as PostgreSQL is set."""
        if self.is_sqlite:
            return
        with self.engine.connect() as connection:
            for setting in postgres.settings_off(connection, "fsync", "synchronous_commit"):
                raise LogError(
                    f"{self}: {setting} is off, so what PostgreSQL commits may be lost. Turn it on for this user: "
                    f"a decision that is lost leaves branches that can't be resolved"
                )

    def _is_there(self, connection: Connection) -> bool:
        """Whether there is a decision log. LogDamaged: the table with its version is missing."""
        present = set(inspect(connection).get_table_names())
        if SCHEMA.name in present:
            return True
        if not present.isdisjoint(METADATA.tables):
            raise LogDamaged(
                f"{self}: the decision log lacks the table {SCHEMA.name}, which has its version. Restore it from a copy"
            )
        return False

    def _check_version(self, connection: Connection) -> None:
        versions = list(connection.execute(select(SCHEMA.c.version)).scalars())
        if len(versions) != 1 or not isinstance(versions[0], int):
            found = ", ".join(printable(str(version), 20) for version in versions) or "no version"
            raise LogDamaged(
                f"{self}: {SCHEMA.name} has {found}, where one version is expected. Restore it from a copy"
            )
        refusal = version_refusal(self, versions[0], VERSION)
        if refusal is not None:
            raise LogOfOtherVersion(refusal)

    def _check_tables(self, connection: Connection) -> None:
        present = set(inspect(connection).get_table_names())
        for table in METADATA.tables.values():
            if table.name not in present:
                raise LogDamaged(f"{self}: the decision log lacks the table {table.name}. Restore it from a copy")
            missing = missing_columns(connection, table)
            if missing:
                raise LogError(f"{self}: table {table.name} lacks {missing}; it is not a log's")


@contextmanager
def looked_at(url: str) -> Iterator[Database]:
    """The database, for a look that changes nothing. LogMissing: there is no file."""
    parsed = database_url(url)
    if parsed.get_backend_name() != "sqlite":
        yield Database(url)
        return
    database = Database(url)
    with readable(database):
        database.check_file()
        if not Path(str(parsed.database)).is_file():
            raise LogMissing(f"{shown_url(parsed)}: there is no decision log here")
        with sqlite.looked_at(parsed) as unchanged:
            database.engine = create_engine(unchanged, isolation_level="AUTOCOMMIT")
            sqlite.check_schemas(database.engine)
            yield database


@contextmanager
def readable(database: Database) -> Iterator[None]:
    """Around what touches the files of a log. LogError: this user may not, or the disk fails."""
    try:
        yield
    except OSError as error:
        raise LogError(
            f"{database}: the decision log can't be read: {error}. Let this user read and write its file, those beside "
            "it and their folder"
        ) from error


def database_url(url: str) -> URL:
    """The URL with the driver that is used; ValueError for a database that can't hold a log."""
    try:
        parsed = read_url(url)
    except ValueError as error:
        raise ValueError(f"log {shown(url)!r}: {error}") from None
    backend = parsed.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername=postgres.DRIVER)
    if backend == "sqlite":
        if sqlite.is_in_memory(parsed):
            raise ValueError(
                f"log {shown(url)!r}: a database in memory keeps no decisions; name a file, sqlite:////var/lib/…"
            )
        return parsed.set(drivername="sqlite+pysqlite")
    raise ValueError(f"log {shown(url)!r}: decisions can be kept in PostgreSQL or SQLite")


def make_engine(url: URL, reply_s: float) -> Engine:
    """An engine whose connections commit each statement, notice that a network or a server is gone, and force."""
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": _WAIT_S})
        sqlite.force_commits(engine, _WAIT_S, _no_write_ahead_log)
        return engine
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=8,
        max_overflow=8,
        connect_args={
            "connect_timeout": url.query.get("connect_timeout", CONNECT_S),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "prepare_threshold": None,  # a pooler may give each statement another session
            "application_name": f"xabridge decision log on {socket.gethostname()}"[:63],
        },
    )
    from xa.sql import psycopg_connection  # noqa: PLC0415 — loads psycopg, which a log in SQLite does not need

    return psycopg_connection.bound(engine, reply_s)


def _no_write_ahead_log(mode: str) -> LogError:
    return LogError(f"SQLite can't keep a write-ahead log there (journal mode {mode}): put the file on a local disk")


@contextmanager
def values_of(database: Database) -> Iterator[None]:
    """Around what makes values of rows. LogDamaged: one holds what no log wrote, so someone has changed it."""
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        why = printable(str(error), 200)
        raise LogDamaged(
            f"{database}: a row of the decision log is damaged: {why}. Restore the log from a copy"
        ) from error


def octets(value: object) -> bytes:
    """A value of a column of octets, in which SQLite keeps anything; TypeError for what is none."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"octets are expected, not {type(value).__name__}")
    return bytes(value)
