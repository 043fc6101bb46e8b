"""The tables of a SqlLog, and the databases that can hold them.

    xabridge_schema      one row: the version of these tables
    xabridge_node        a row for each node id
        node             primary key
        log_id           8 octets, random: the log's identity, made with the row
        epoch            how often the node was taken: the incarnation of who has it now
        holder           who that is, for people
        lease_until      until when it is sure not to be taken by another (seconds since 1970, the database's clock)
    xabridge_gtrid       a row for each global transaction that was begun, decided or aborted, until it is purged
        gtrid            primary key
        node, epoch      whose it is, and under which epoch it got its state
        state            active, committed, aborted or done: `tm.log.sql_states`
        record           of a committed or done one, the DECISION record (`tm.log.records`)
        changed_at       when it got its state
    xabridge_heuristic   a row for each heuristic outcome that was noted and not dropped
        node, branch     primary key; `branch_key`
        record           the HEURISTIC record
        changed_at       when it was noted
    xabridge_incarnation a row for each incarnation that was noted (`tm.log.incarnations`)
        node, incarnation   primary key
        epoch            under which it was noted
        standing         open, whole or cut
    xabridge_place       a row for each node
        node             primary key
        counted          up to which epoch a gtrid has the epoch for its incarnation: 0, unless the tables had version 1
        place            by what the database was known from a copy when the node was taken; "" where it has nothing

Version 1 had neither of the last two tables; who opens such a log for writing makes them.

PostgreSQL is taken when it forces what it commits, SQLite with its write-ahead log and synchronous = FULL.
Either is used with autocommit: each change is one statement, and durable when the statement returns.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    create_engine,
    event,
    inspect,
    literal,
    literal_column,
    select,
    text,
    true,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from tm.log.decision import LogError, LogMissing
from tm.log.files import file_identity
from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import URL

VERSION: Final = 2
COUNTING: Final = 1
"""The version whose incarnations were epochs."""

METADATA: Final = MetaData()
SCHEMA: Final = Table("xabridge_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))
NODE: Final = Table(
    "xabridge_node",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("log_id", LargeBinary(8), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(255), nullable=False),
    Column("lease_until", Double, nullable=False),
)
GTRIDS: Final = Table(
    "xabridge_gtrid",
    METADATA,
    Column("gtrid", LargeBinary(64), primary_key=True),
    Column("node", String(32), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("state", String(9), nullable=False),
    Column("record", LargeBinary),
    Column("changed_at", Double, nullable=False),
    Index("xabridge_gtrid_state", "node", "state", "changed_at"),
)
HEURISTICS: Final = Table(
    "xabridge_heuristic",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("branch", LargeBinary, primary_key=True),
    Column("record", LargeBinary, nullable=False),
    Column("changed_at", Double, nullable=False),
)
INCARNATIONS: Final = Table(
    "xabridge_incarnation",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("incarnation", LargeBinary(8), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("standing", String(5), nullable=False),
)
PLACE: Final = Table(
    "xabridge_place",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("counted", BigInteger, nullable=False),
    Column("place", String(64), nullable=False),
)

_WAIT_S: Final = 30.0
"""How long SQLite's file may be in other hands."""

_CREATING: Final = 0x78616272
"""Key of the PostgreSQL advisory lock under which the tables are made: "xabr"."""

_REFUSED: Final = "42"
"""What SQLSTATEs of a missing right or function begin with."""

_SYSTEM_IDENTIFIER: Final = text("SELECT system_identifier FROM pg_control_system()")

_SECONDS_1970: Final = {
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)",
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
}


class Database:
    """A database that can hold a log. `clock` stands in for the database's own."""

    def __init__(self, url: str, clock: Callable[[], float] | None = None) -> None:
        self._url = database_url(url)
        self._clock = clock
        self.engine = make_engine(self._url)
        self._one_at_a_time = threading.Lock()

    def __str__(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Whether one connection at a time can write."""
        return self.engine.dialect.name == "sqlite"

    def now(self) -> ColumnElement[float]:
        """The present time, in a statement."""
        if self._clock is not None:
            return bindparam("now", type_=Double, callable_=self._clock, unique=True)
        return literal_column(_SECONDS_1970[self.engine.dialect.name], Double)

    def writing(self) -> AbstractContextManager[object]:
        """Around a change: in SQLite, where one waits for the other anyway, threads do it here, without polling."""
        return self._one_at_a_time if self.is_sqlite else nullcontext()

    def insert(self, table: Table) -> Any:
        """An INSERT that can have an ON CONFLICT."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    def prepare(self, *beside: MetaData) -> None:
        """Makes the tables where they are missing, and those that stand `beside` them, and checks them. LogError: they
        can't hold a log."""
        with self.engine.connect() as connection:
            if not self.is_sqlite:
                _check_forces(connection, self)
        engine = self.engine.execution_options(isolation_level="SERIALIZABLE" if self.is_sqlite else "READ COMMITTED")
        with engine.begin() as connection:
            if self.is_sqlite:
                connection.execute(text("BEGIN IMMEDIATE"))
            else:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _CREATING})
            for tables in (METADATA, *beside):
                tables.create_all(connection)
            version = connection.execute(select(SCHEMA.c.version)).scalar()
            if version is None:
                connection.execute(SCHEMA.insert().values(version=VERSION))
            elif version == COUNTING:
                self._move_on(connection)
            self._check_tables(connection)

    def check(self) -> int:
        """Checks the tables and makes none; their version. LogMissing: there is no log here; LogError: they can't hold
        one."""
        with self.engine.connect() as connection:
            if not inspect(connection).has_table(SCHEMA.name):
                raise LogMissing(f"{self}: there is no decision log here")
            return self._check_tables(connection)

    def place(self) -> str:
        """By what this database is known from a copy of it; "" where it has nothing, or does not tell this user."""
        if self.is_sqlite:
            return file_identity(str(self._url.database)).hex()
        try:
            with self.engine.connect() as connection:
                return str(connection.execute(_SYSTEM_IDENTIFIER).scalar_one())
        except DBAPIError as error:
            if not str(getattr(error.orig, "sqlstate", "")).startswith(_REFUSED):
                raise
            return ""

    def _move_on(self, connection: Connection) -> None:
        """From version 1: what has an epoch for its incarnation was made under an epoch that is there by now."""
        names = ["node", "counted", "place"]
        counted = self.insert(PLACE).from_select(names, select(NODE.c.node, NODE.c.epoch, literal("")).where(true()))
        connection.execute(counted.on_conflict_do_nothing())
        connection.execute(SCHEMA.update().values(version=VERSION))

    def _check_tables(self, connection: Connection) -> int:
        versions = list(connection.execute(select(SCHEMA.c.version)).scalars())
        if len(versions) != 1 or versions[0] not in {COUNTING, VERSION}:
            raise LogError(
                f"{self}: the tables of the decision log have version {' and '.join(map(str, versions))}, "
                f"this program knows version {VERSION}"
            )
        inspector = inspect(connection)
        for table in METADATA.tables.values():
            if versions[0] == COUNTING and table in {INCARNATIONS, PLACE}:
                continue
            missing = {column.name for column in table.columns} - {
                column["name"] for column in inspector.get_columns(table.name)
            }
            if missing:
                raise LogError(f"{self}: table {table.name} lacks {', '.join(sorted(missing))}; it is not a log's")
        return int(versions[0])


def database_url(url: str) -> URL:
    """The URL with the driver that is used; ValueError for a database that can't hold a log."""
    shown = masked(url)
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # which may quote a part of the URL
        raise ValueError(f"log {shown!r} is no URL of a database, as postgresql://host:5432/name is") from None
    backend = parsed.get_backend_name()
    if backend in {"postgresql", "postgres"}:
        return parsed.set(drivername="postgresql+psycopg")
    if backend == "sqlite":
        if parsed.database in {None, "", ":memory:"}:
            raise ValueError(
                f"log {shown!r}: a database in memory keeps no decisions; name a file, sqlite:////var/lib/…"
            )
        return parsed.set(drivername="sqlite+pysqlite")
    raise ValueError(f"log {shown!r}: decisions can be kept in PostgreSQL or SQLite")


def make_engine(url: URL) -> Engine:
    """An engine whose connections commit each statement, notice that a network is gone, and force."""
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": _WAIT_S})
        event.listen(engine, "connect", _force_sqlite)
        return engine
    return create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=8,
        max_overflow=8,
        connect_args={
            "connect_timeout": 10,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
            "prepare_threshold": None,  # a pooler may give each statement another session
            "application_name": f"xabridge decision log on {socket.gethostname()}"[:63],
        },
    )


def _force_sqlite(connection: Any, _record: object) -> None:
    mode = _write_ahead(connection)
    connection.execute("PRAGMA synchronous = FULL")
    if mode != "wal":
        raise LogError(f"SQLite can't keep a write-ahead log there (journal mode {mode}): put the file on a local disk")


def _write_ahead(connection: sqlite3.Connection) -> str:
    """Asks for the write-ahead log, and tells the mode. Where several open a new file at once, SQLite refuses the
    change with "database is locked", and does not wait as it does elsewhere."""
    until = time.monotonic() + _WAIT_S
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.005)


def _check_forces(connection: Connection, database: Database) -> None:
    for setting in ("fsync", "synchronous_commit"):
        if connection.execute(text(f"SHOW {setting}")).scalar_one() == "off":
            raise LogError(
                f"{database}: {setting} is off, so what PostgreSQL commits may be lost. Turn it on for this user: "
                f"a decision that is lost leaves branches that nobody can resolve"
            )
