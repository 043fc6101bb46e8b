"""The tables of the outbox and the inbox, and what each database writes in its own way.

    xabridge_outbox        a row for each message that is to be sent. It is deleted when the broker has confirmed it

        id                 in the order in which the rows were put
        lane               0 to 15; messages with the same order_key are in the same lane
        order_key          messages with the same one leave in their order; NULL: without an order
        destination        where the message goes, as the relay's broker understands it
        message_id         the message's id, as text, for people
        message            the message, as AMQP 1.0 encodes it; octets: how many they are
        created            when it was put, in seconds since 1970
        attempts           how often the broker has refused it; retry_at: not before this time again
        state              "waiting", or "refused": set aside until somebody looks at it
        reason             what the broker said when it refused

    xabridge_outbox_lane   a row for each lane. A relay that works on a lane holds a lock on its row; where a database
                           can't skip locked rows, it writes there who it is, and until when (holder, until)

    xabridge_inbox         a row for each message that a consumer has handled

        digest             SHA-256 of the consumer's name and the message's id, hexadecimal. It sorts and compares the
                           same under every collation, where names and ids would not
        consumer           for people, as message_id
        received           when, in seconds since 1970

Each row of each table has the version of these tables. It is looked at before anything is made; and a program of
version 0.1.0 can't write into them, because its rows lack that column.

`Tables` has them as SQLAlchemy knows them. They may be part of an application's own metadata, so that its migrations
make them; otherwise `create` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Identity,
    Index,
    Insert,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Unicode,
    insert,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

from xa.format_version import lacks_version, version_refusal
from xa.sql import mariadb
from xa.sql.statements import missing_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Dialect, Engine


VERSION: Final = 2
LANES: Final = 16
"""How many relays can be at work at once."""
MAX_NAME: Final = 255
MAX_REASON: Final = 500
WAITING: Final = "waiting"
REFUSED: Final = "refused"

_OCTETS: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")  # a BLOB there ends at 64 KiB
_NUMBER: Final = BigInteger().with_variant(Integer(), "sqlite")  # only an INTEGER counts by itself there
_OPTIONS: Final[dict[str, Any]] = {
    f"{dialect}_{option}": value
    for dialect in mariadb.DIALECTS
    for option, value in (("engine", "InnoDB"), ("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""A server's default may be an engine without transactions, or a character set that lacks most characters."""
_TRIES: Final = 5


class TablesError(Exception):
    """The tables are not there, or not ours, and can't be made; the message says what to do."""


class Tables:
    """The three tables, in the database's default schema or in `schema`."""

    def __init__(self, metadata: MetaData | None = None, schema: str | None = None) -> None:
        self.metadata = metadata if metadata is not None else MetaData()
        place = schema if schema is not None else self.metadata.schema
        prefix = f"{place}." if place is not None else ""

        def known(name: str, make: Callable[[MetaData, str | None], Table]) -> Table:
            there = self.metadata.tables.get(f"{prefix}{name}")
            return there if there is not None else make(self.metadata, schema)

        self.outbox = known("xabridge_outbox", _outbox)
        self.lanes = known("xabridge_outbox_lane", _lanes)
        self.inbox = known("xabridge_inbox", _inbox)

    @property
    def all(self) -> tuple[Table, Table, Table]:
        """All tables, in the order in which they are made."""
        return self.lanes, self.outbox, self.inbox

    def create(self, engine: Engine, *, with_inbox: bool = True) -> None:
        """Makes what is missing; several processes may do so at once. Without `with_inbox` it is tried, too, but does
        not matter if the user has no right to make or to see the inbox. TablesError: it can't be made. SQLAlchemy's
        errors: the database is away."""
        with engine.connect():
            pass
        self._create_all(engine, (self.lanes, self.outbox))
        try:
            self._create_all(engine, (self.inbox,))
        except TablesError:
            if with_inbox:
                raise

    def _create_all(self, engine: Engine, tables: Sequence[Table]) -> None:
        for left in reversed(range(_TRIES)):
            try:
                for table in tables:
                    _check_version(engine, table)
                for table in tables:
                    self._create(engine, table)
                if self.lanes in tables:
                    with engine.connect() as connection:
                        self._fill(connection)
            except DBAPIError as error:  # somebody else makes it, or we may not
                if error.connection_invalidated:
                    raise

                if left == 0:
                    raise TablesError(
                        f"the tables of the outbox can't be made or used: {error.orig}. Ask an administrator to make "
                        "them, and to grant SELECT, INSERT, UPDATE and DELETE on them; `xabridge outbox create "
                        "--dry-run` prints the statements"
                    ) from error
            else:
                return

    @staticmethod
    def _create(engine: Engine, table: Table) -> None:
        with engine.connect() as connection:
            if not inspect(connection).has_table(table.name, schema=table.schema):
                table.create(connection)
                connection.commit()
                return
            missing = missing_columns(connection, table)
            if missing:
                raise TablesError(
                    f"the table {table.name} has no column {missing}: it is not ours. Rename it, or "
                    "choose another schema"
                )

    def _fill(self, connection: Connection) -> None:
        """The lanes are there."""
        present = set(connection.execute(select(self.lanes.c.lane)).scalars())
        connection.commit()
        for lane in set(range(LANES)) - present:
            try:
                connection.execute(self._lane(lane))
                connection.commit()
            except IntegrityError:  # somebody else has made it meanwhile
                connection.rollback()

    def statements(self, dialect: Dialect) -> Iterator[str]:
        """What `create` would execute, where nothing is there."""
        for table in self.all:
            yield str(CreateTable(table).compile(dialect=dialect)).strip()
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                yield str(CreateIndex(index).compile(dialect=dialect)).strip()
        for lane in range(LANES):
            yield str(self._lane(lane).compile(dialect=dialect, compile_kwargs={"literal_binds": True}))

    def _lane(self, lane: int) -> Insert:
        return insert(self.lanes).values(lane=lane, until=0.0, version=VERSION)


def _check_version(engine: Engine, table: Table) -> None:
    """TablesError: the table is there, and is another version's."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(table.name, schema=table.schema):
            return

        missing = missing_columns(connection, table)
        found = VERSION
        if not missing:
            found = connection.execute(select(table.c.version).limit(1)).scalar() or VERSION  # if there is a row
        refusal = version_refusal(f"the table {table.name}", None if missing == "version" else found, VERSION)
        if refusal is not None:
            raise TablesError(refusal)


def refuse_other_version(error: DBAPIError, table: Table) -> None:
    """For an `error` at a row of this version. TablesError: the table is one of version 0.1.0, which has no column for
    the version."""
    if lacks_version(error.orig):
        raise TablesError(str(version_refusal(f"the table {table.name}", None, VERSION))) from error


def _outbox(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "xabridge_outbox",
        metadata,
        Column("id", _NUMBER, Identity(), primary_key=True),
        Column("lane", SmallInteger, nullable=False),
        Column("order_key", Unicode(MAX_NAME)),
        Column("destination", Unicode(MAX_NAME), nullable=False),
        Column("message_id", Unicode(MAX_NAME), nullable=False),
        Column("message", _OCTETS, nullable=False),
        Column("octets", Integer, nullable=False),
        Column("created", Double, nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("retry_at", Double, nullable=False),
        Column("state", String(8), nullable=False),
        Column("reason", Unicode(MAX_REASON)),
        Column("version", SmallInteger, nullable=False),
        Index("xabridge_outbox_by_lane", "lane", "id"),
        Index("xabridge_outbox_tried", "attempts", "lane"),
        schema=schema,
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def _lanes(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "xabridge_outbox_lane",
        metadata,
        Column("lane", SmallInteger, primary_key=True, autoincrement=False),
        Column("holder", String(64)),
        Column("until", Double, nullable=False),
        Column("version", SmallInteger, nullable=False),
        schema=schema,
        **_OPTIONS,
    )


def _inbox(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        "xabridge_inbox",
        metadata,
        Column("digest", String(64), primary_key=True),
        Column("consumer", Unicode(MAX_NAME), nullable=False),
        Column("message_id", Unicode(MAX_NAME), nullable=False),
        Column("received", Double, nullable=False),
        Column("version", SmallInteger, nullable=False),
        Index("xabridge_inbox_by_age", "received"),
        schema=schema,
        **_OPTIONS,
    )


def check_transaction(where: Any, table: Table) -> None:
    """ValueError: each statement of the connection or session commits itself. A session may have several databases;
    `table` is in the one that is meant.

    Where every statement commits itself, a message would leave although the work beside it was not done, and a message
    would count as handled before it is. SQLAlchemy's ORM and asyncio are not imported here, since not everybody has or
    needs them.
    """
    if not isinstance(where, Connection) and hasattr(where, "connection"):
        where = where.connection(bind_arguments={"clause": table})  # a session's
    if isinstance(where, Connection):
        _check(where)


async def check_transaction_async(where: Any, table: Table) -> None:
    """Does what `check_transaction` does, with an asyncio connection or session."""
    if hasattr(where, "sync_session"):
        where = await where.connection(bind_arguments={"clause": table})
    connection = getattr(where, "sync_connection", None)
    if isinstance(connection, Connection):
        _check(connection)


def _check(connection: Connection) -> None:
    if not getattr(connection, "takes_part", False) and _commits_itself(connection):
        raise ValueError(
            "the connection is in autocommit: each of its statements is committed at once, and outbox and inbox need "
            "the transaction of the work beside them. Use an engine without isolation_level='AUTOCOMMIT'"
        )


def _commits_itself(connection: Connection) -> bool:
    level = connection.get_execution_options().get(
        "isolation_level", getattr(connection.dialect, "_on_connect_isolation_level", None)
    )
    if level is not None:
        return str(level).upper() == "AUTOCOMMIT"
    driver: Any = connection.connection.dbapi_connection
    asked = getattr(driver, "get_autocommit", None)  # PyMySQL's kind of driver
    return bool(asked()) if asked is not None else getattr(driver, "autocommit", False) is True
