"""The tables of the SQL store, and the texts of the statements that it executes often.

  dtx_meta(name, value)                       the version of these tables, and how often the store was opened
  dtx_queue(number, name, settings)
  dtx_message(number, queue, position, size, delivery_count, expires_ms)
  dtx_payload(message, data)                  of a message of at most CHUNK octets
  dtx_chunk(message, number, data)            pieces of a larger one
  dtx_branch(number, format_id, gtrid, bqual, owner, prepared_ms, outcome, completed_ms)
  dtx_work(branch, ordinal, message, outcome) outcome NULL: the branch enqueues the message, else retires it
  dtx_fence(gtrid, owner, fenced_ms)

Facts and payloads are apart, so that a start reads facts only. A message stands in its queue if and only if
its position is not PENDING; a branch is prepared if and only if its outcome is NULL.

A statement takes, and answers, many rows at once: sqlite3 lets other threads run at each row that it steps
over, and a busy event loop gives the interpreter back milliseconds later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
    update,
    values,
)

from dtx.store.contract import PENDING

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Delete, Dialect, Insert, Select, Update

VERSION: Final = 1
ROWS: Final = 256
"""Rows of one statement at most."""

METADATA: Final = MetaData()
_KEY: Final = r"(?<= IN \()[^() ]+(?=\))"
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")  # there only INTEGER is the key of the table itself


def _key(name: str) -> Column[int]:
    return Column(name, _NUMBER, primary_key=True, autoincrement=False)


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
    Column("queue", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("delivery_count", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)
PAYLOAD: Final = Table("dtx_payload", METADATA, _key("message"), Column("data", LargeBinary, nullable=False))
CHUNKS: Final = Table(
    "dtx_chunk", METADATA, _key("message"), _key("number"), Column("data", LargeBinary, nullable=False)
)
BRANCH: Final = Table(
    "dtx_branch",
    METADATA,
    _key("number"),
    Column("format_id", Integer, nullable=False),
    Column("gtrid", LargeBinary, nullable=False),
    Column("bqual", LargeBinary, nullable=False),
    Column("owner", Text, nullable=False),
    Column("prepared_ms", BigInteger, nullable=False),
    Column("outcome", SmallInteger),
    Column("completed_ms", BigInteger),
)
WORK: Final = Table(
    "dtx_work",
    METADATA,
    _key("branch"),
    _key("ordinal"),
    Column("message", BigInteger, nullable=False),
    Column("outcome", LargeBinary),
    sqlite_with_rowid=False,
)
FENCE: Final = Table(
    "dtx_fence",
    METADATA,
    Column("gtrid", LargeBinary, primary_key=True),
    Column("owner", Text, nullable=False),
    Column("fenced_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)


class Many:
    """A statement for any number of rows: the dialect writes it for one, and `row` finds what is repeated."""

    def __init__(
        self, statement: Insert | Update | Delete | Select[Any], dialect: Dialect, row: str, tail: str = ""
    ) -> None:
        text = str(statement.compile(dialect=dialect)) + tail
        found = list(re.finditer(row, text))
        if len(found) != 1:
            raise ValueError(f"one row was expected in {text!r}")
        self._head, self._row, self._tail = text[: found[0].start()], found[0][0], text[found[0].end() :]
        self._texts: dict[int, str] = {}

    def text(self, count: int) -> str:
        """The statement for `count` rows."""
        text = self._texts.get(count)
        if text is None:
            text = self._texts[count] = self._head + ", ".join([self._row] * count) + self._tail
        return text


class Statements:
    """What the store executes, for one dialect with positional parameters."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.insert_queues = self._insert(QUEUE, tail=" ON CONFLICT DO NOTHING")
        self.insert_messages = self._insert(MESSAGE)
        self.insert_payloads = self._insert(PAYLOAD)
        self.insert_chunks = self._insert(CHUNKS)
        self.insert_branches = self._insert(BRANCH, "number", "format_id", "gtrid", "bqual", "owner", "prepared_ms")
        self.insert_work = self._insert(WORK)
        self.insert_fences = self._insert(FENCE)

        self.place = self._update(MESSAGE, "queue", "position", "delivery_count")
        self.complete = self._update(BRANCH, "outcome", "completed_ms")

        self.delete_messages = self._with_keys(delete(MESSAGE), MESSAGE.c.number)
        self.delete_payloads = self._with_keys(delete(PAYLOAD), PAYLOAD.c.message)
        self.delete_chunks = self._with_keys(delete(CHUNKS), CHUNKS.c.message)
        self.delete_branches = self._with_keys(delete(BRANCH), BRANCH.c.number)
        self.delete_work = self._with_keys(delete(WORK), WORK.c.branch)
        self.delete_fences = self._with_keys(delete(FENCE), FENCE.c.gtrid)

        standing = MESSAGE.c.position != literal_column(str(PENDING))
        self.delete_payloads_of_queues = self._of_queues(PAYLOAD.c.message, standing)
        self.delete_chunks_of_queues = self._of_queues(CHUNKS.c.message, standing)
        self.delete_messages_of_queues = self._with_keys(delete(MESSAGE).where(standing), MESSAGE.c.queue)
        self.delete_queues = self._with_keys(delete(QUEUE), QUEUE.c.number)

        payload: tuple[ColumnElement[Any], ...] = (PAYLOAD.c.message, PAYLOAD.c.data)
        if dialect.name == "sqlite":  # one row, in which the messages and their payloads stand in one order
            payload = (func.group_concat(PAYLOAD.c.message), func.group_concat(func.hex(PAYLOAD.c.data)))
        self.select_payloads = self._with_keys(select(*payload), PAYLOAD.c.message)

    def _insert(self, table: Table, *columns: str, tail: str = "") -> Many:
        names = columns or tuple(table.columns.keys())
        statement = insert(table).values({name: bindparam(name) for name in names})
        return Many(statement, self._dialect, r"(?<=VALUES )\(.*\)", tail)

    def _update(self, table: Table, *columns: str) -> Many:
        """Rows of the key `number` and the new values of `columns`."""
        names = ("number", *columns)
        given = values(*(column(name) for name in names))
        new = given.data([tuple(bindparam(name) for name in names)]).cte("new")
        statement = update(table).where(table.c.number == new.c.number)
        return Many(statement.values({name: new.c[name] for name in columns}), self._dialect, r"(?<=VALUES )\([^()]+\)")

    def _with_keys(self, statement: Delete | Select[Any], key: ColumnElement[int]) -> Many:
        return Many(statement.where(key.in_([bindparam("key")])), self._dialect, _KEY)

    def _of_queues(self, key: Column[int], standing: ColumnElement[bool]) -> Many:
        messages = select(MESSAGE.c.number).where(standing, MESSAGE.c.queue.in_([bindparam("key")]))
        return Many(delete(key.table).where(key.in_(messages)), self._dialect, _KEY)
