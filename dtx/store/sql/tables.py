"""The tables of the SQL store.

  dtx_meta(name, value)                       the version of these tables, and how often the store was opened
  dtx_queue(number, name, settings)
  dtx_message(number, queue, position, size, delivery_count, expires_ms, due_ms, group_id)
  dtx_payload(message, data)                  of a message of at most CHUNK octets
  dtx_chunk(message, number, data)            pieces of a larger one
  dtx_share(message, payload)                 of a message that shares its payload with others: the number under which
                                              that is stored, in dtx_payload or dtx_chunk, and which no message has
  dtx_branch(number, format_id, gtrid, bqual, owner, prepared_ms, held, outcome, completed_ms)
                                              held: its messages (`dtx.store.contract.read_held_messages`)
  dtx_fence(gtrid, owner, fenced_ms)
  dtx_record(number, kind, text)              what else the broker remembers
  dtx_lease(epoch, holder, until_s)           one row, in PostgreSQL only: `dtx.store.sql.lease`. The epoch is that of
                                              dtx_meta (`openings`)

Facts and payloads are apart, so that a start reads facts only. A payload that is shared is there as long as dtx_share
has a row with its number: the rows are the count. A message stands in its queue if and only if its position is not
PENDING; a branch is prepared if and only if its outcome is NULL.

The version is looked at before anything else is read or made (`check_tables`); another one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    false,
    func,
    inspect,
    literal_column,
    select,
)

from dtx.store.contract import MOST_DELIVERIES, NUMBERS_PER_OPENING, StoreDamaged, StoreOfOtherVersion
from xa.format_version import version_refusal
from xa.sql.statements import missing_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import ColumnElement, Connection, Dialect

Row = TypeVar("Row", bound="Sequence[Any]")

VERSION: Final = 2
RESTORE: Final = "the store is damaged, restore it from a copy"
MOST_OPENINGS: Final = (1 << 63) // NUMBERS_PER_OPENING - 1
"""Numbers are of 63 bits."""
MOST_OCTETS: Final = 1 << 40
"""No message is larger."""
LATEST_MS: Final = 253_402_300_799_999
"""No time is after the end of the year 9999, and no delay is longer."""

METADATA: Final = MetaData()
_BOUNDS: Final = "bounds"
"""What a column is marked with whose numbers have bounds: the least, and the most or None."""
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # there only INTEGER is the key of the table itself


def _key(name: str) -> Column[int]:
    return Column(name, _NUMBER, primary_key=True, autoincrement=False, info={_BOUNDS: (0, None)})


def _number(name: str, most: int | None, *, least: int = 0, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, nullable=nullable, info={_BOUNDS: (least, most)})


META: Final = Table(
    "dtx_meta",
    METADATA,
    Column("name", String(32), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
QUEUE: Final = Table(
    "dtx_queue",
    METADATA,
    _key("number"),
    Column("name", Text, nullable=False),
    Column("settings", Text, nullable=False),
)
MESSAGE: Final = Table(
    "dtx_message",
    METADATA,
    _key("number"),
    _number("queue", None),
    _number("position", None),
    _number("size", MOST_OCTETS),
    _number("delivery_count", MOST_DELIVERIES),
    _number("expires_ms", LATEST_MS),
    _number("due_ms", 2 * LATEST_MS, least=-LATEST_MS),
    Column("group_id", Text, nullable=False),
)
PAYLOAD: Final = Table("dtx_payload", METADATA, _key("message"), Column("data", LargeBinary, nullable=False))
CHUNKS: Final = Table(
    "dtx_chunk", METADATA, _key("message"), _key("number"), Column("data", LargeBinary, nullable=False)
)
SHARE: Final = Table(
    "dtx_share",
    METADATA,
    _key("message"),
    _number("payload", None),
    Index("dtx_share_payload", "payload"),
)
BRANCH: Final = Table(
    "dtx_branch",
    METADATA,
    _key("number"),
    Column("format_id", Integer, nullable=False),
    Column("gtrid", LargeBinary, nullable=False),
    Column("bqual", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    _number("prepared_ms", LATEST_MS),
    Column("held", LargeBinary, nullable=False),
    Column("outcome", SmallInteger),
    _number("completed_ms", LATEST_MS, nullable=True),
)
RECORD: Final = Table(
    "dtx_record",
    METADATA,
    _key("number"),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
)
FENCE: Final = Table(
    "dtx_fence",
    METADATA,
    Column("gtrid", LargeBinary, primary_key=True),
    Column("owner", Text, nullable=False),
    _number("fenced_ms", LATEST_MS),
    sqlite_with_rowid=False,
)
LEASE: Final = Table(
    "dtx_lease",
    MetaData(),  # a store in a file has none
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String(255), nullable=False),
    Column("until_s", Double, nullable=False),
)


def check_tables(connection: Connection) -> bool:
    """Whether there is a store. StoreError: another version's; StoreDamaged: it lacks its version, or a part of its
    tables."""
    present = set(inspect(connection).get_table_names())
    if META.name not in present:
        if not present.isdisjoint(METADATA.tables):
            raise StoreDamaged(f"the store lacks the table {META.name}, which has its version: {RESTORE}")
        return False
    _check_columns(connection, META)
    refuse_other_version(connection.execute(select(META.c.value).where(META.c.name == "version")).scalar())

    for table in METADATA.sorted_tables:
        if table.name not in present:
            raise StoreDamaged(f"the store lacks the table {table.name}: {RESTORE}")
        _check_columns(connection, table)
    return True


def _check_columns(connection: Connection, table: Table) -> None:
    missing = missing_columns(connection, table)
    if missing:
        raise StoreDamaged(f"the table {table.name} of the store lacks {missing}: {RESTORE}")


def count_of_openings(connection: Connection) -> int:
    """How often the store was opened. StoreDamaged: it does not say so."""
    facts = {row.name: row.value for row in checked(connection.execute(select(META)).all(), META.columns)}
    return opening_number(facts.get("openings"))


def opening_number(noted: object) -> int:
    """The number of the latest opening, as META has it. StoreDamaged: that is none."""
    if not isinstance(noted, int) or not 0 <= noted < MOST_OPENINGS:
        raise StoreDamaged(f"the table {META.name} of the store does not say how often it was opened: {RESTORE}")
    return noted


def checked(rows: Sequence[Row], columns: Iterable[Column[Any]]) -> Sequence[Row]:
    """These rows, whose values are of these columns. StoreDamaged: one is not, as a file of SQLite takes any value in
    any column; or a number is beyond its bounds."""
    for column, values in zip(columns, zip(*rows, strict=True), strict=False):
        types = {column.type.python_type, type(None)} if column.nullable else {column.type.python_type}
        if not types.issuperset(map(type, values)):
            found = ", ".join(sorted({type(value).__name__ for value in values if type(value) not in types}))
            raise StoreDamaged(f"the table {column.table.name} of the store has {found} in {column.name}: {RESTORE}")
        numbers = [value for value in values if value is not None] if column.nullable else values
        if numbers and _BOUNDS in column.info:
            _check_bounds(column, numbers)
    return rows


def _check_bounds(column: Column[Any], values: Sequence[int]) -> None:
    least, most = column.info[_BOUNDS]
    found = min(values)
    if found >= least and most is not None:
        found = max(values)
    if found < least or (most is not None and found > most):
        raise StoreDamaged(f"the table {column.table.name} of the store has {found} in {column.name}: {RESTORE}")


def is_of_other_type(column: Column[Any], dialect: Dialect) -> ColumnElement[bool]:
    """Whether a value is not of the type of its column, which is octets or an integer: only SQLite takes such ones."""
    if dialect.name != "sqlite":
        return false()
    own = "blob" if column.type.python_type is bytes else "integer"
    return func.typeof(column) != literal_column(f"'{own}'")


def refuse_other_version(version: object) -> None:
    """StoreOfOtherVersion: a store of this version is not opened; StoreDamaged: it is none."""
    if not isinstance(version, int):
        raise StoreDamaged(f"the store has {version!r} for its version: {RESTORE}")
    refusal = version_refusal("the store", version, VERSION)
    if refusal is not None:
        raise StoreOfOtherVersion(refusal)
