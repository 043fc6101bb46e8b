"""The tables of the SQL store.

  dtx_meta(name, value)                       the version of these tables, and how often the store was opened
  dtx_queue(number, name, settings)
  dtx_message(number, queue, position, size, delivery_count, expires_ms, due_ms, group_id)
                                              stores of earlier versions lack the last two, which have defaults, so that
                                              such a version can open a store of this one
  dtx_payload(message, data)                  of a message of at most CHUNK octets
  dtx_chunk(message, number, data)            pieces of a larger one
  dtx_branch(number, format_id, gtrid, bqual, owner, prepared_ms, outcome, completed_ms)
  dtx_work(branch, ordinal, message, outcome) outcome NULL: the branch enqueues the message, else retires it
  dtx_fence(gtrid, owner, fenced_ms)
  dtx_record(number, kind, text)              what else the broker remembers; stores of earlier versions lack it
  dtx_lease(epoch, holder, until_s)           one row, in PostgreSQL only: `dtx.store.sql.lease`. The epoch is that of
                                              dtx_meta (`openings`) as long as no other version has opened the store

Facts and payloads are apart, so that a start reads facts only. A message stands in its queue if and only if
its position is not PENDING; a branch is prepared if and only if its outcome is NULL.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Integer, LargeBinary, MetaData, SmallInteger, String, Table, Text

VERSION: Final = 1

METADATA: Final = MetaData()
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
    Column("due_ms", BigInteger, nullable=False, server_default="0"),
    Column("group_id", Text, nullable=False, server_default=""),
)
ADDED: Final = (MESSAGE.c.due_ms, MESSAGE.c.group_id)
"""Columns that stores of earlier versions lack."""
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
    Column("fenced_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
LEASE: Final = Table(
    "dtx_lease",
    MetaData(),  # a store in a file has none
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String(255), nullable=False),
    Column("until_s", Double, nullable=False),
)
