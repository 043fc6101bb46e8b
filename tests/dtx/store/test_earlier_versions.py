"""These tests open a store that an earlier version of the broker has made, with a branch in doubt, and let that version
open it again afterwards.

TABLES and the other statements are those that this version executed, with the columns that it knew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from dtx.store.contract import PENDING, StoredMessage
from xa import Xid
from xa.sql import postgres

if TYPE_CHECKING:
    from tests.dtx.store.stores import Place

XID: Final = Xid(7, b"gtrid", b"bqual")
OCTETS: Final = {"sqlite": "BLOB", "postgresql": "BYTEA"}
TABLES: Final = """
CREATE TABLE dtx_meta (name VARCHAR(32) NOT NULL PRIMARY KEY, value BIGINT NOT NULL);
CREATE TABLE dtx_queue (number {number} NOT NULL PRIMARY KEY, name TEXT NOT NULL, settings TEXT NOT NULL);
CREATE TABLE dtx_message (number {number} NOT NULL PRIMARY KEY, queue BIGINT NOT NULL, position BIGINT NOT NULL,
  size BIGINT NOT NULL, delivery_count BIGINT NOT NULL, expires_ms BIGINT NOT NULL);
CREATE TABLE dtx_payload (message {number} NOT NULL PRIMARY KEY, data {octets} NOT NULL);
CREATE TABLE dtx_chunk (message {number} NOT NULL, number {number} NOT NULL, data {octets} NOT NULL,
  PRIMARY KEY (message, number));
CREATE TABLE dtx_branch (number {number} NOT NULL PRIMARY KEY, format_id INTEGER NOT NULL, gtrid {octets} NOT NULL,
  bqual {octets} NOT NULL, owner TEXT NOT NULL, prepared_ms BIGINT NOT NULL, outcome SMALLINT, completed_ms BIGINT);
CREATE TABLE dtx_work (branch {number} NOT NULL, ordinal {number} NOT NULL, message BIGINT NOT NULL,
  outcome {octets}, PRIMARY KEY (branch, ordinal));
CREATE TABLE dtx_fence (gtrid {octets} NOT NULL PRIMARY KEY, owner TEXT NOT NULL, fenced_ms BIGINT NOT NULL);
INSERT INTO dtx_meta VALUES ('version', 1), ('openings', 3);
INSERT INTO dtx_queue VALUES (1, 'orders', '')
"""
POST: Final = """
INSERT INTO dtx_message (number, queue, position, size, delivery_count, expires_ms)
  VALUES (:number, 1, :position, 5, 0, 0);
INSERT INTO dtx_payload (message, data) VALUES (:number, :data)
"""
PREPARE: Final = """
INSERT INTO dtx_branch VALUES (20, 7, :gtrid, :bqual, 'me', 1, NULL, NULL);
INSERT INTO dtx_work VALUES (20, 0, 13, NULL), (20, 1, 11, :outcome)
"""
COMMIT: Final = """
UPDATE dtx_message SET queue = 1, position = :position, delivery_count = 0 WHERE number = :number;
DELETE FROM dtx_branch;
DELETE FROM dtx_work
"""
READ: Final = """
SELECT number, queue, position, size, delivery_count, expires_ms FROM dtx_message WHERE position != 0 ORDER BY position
"""


class Earlier:
    """The earlier version at work on a store, which nobody has open."""

    def __init__(self, place: Place) -> None:
        place.close()
        url = make_url(str(place.where))
        if url.get_backend_name() == "postgresql":
            url = url.set(drivername=postgres.DRIVER)
        self._engine = create_engine(url, poolclass=NullPool)

    def execute(self, statements: str, **values: Any) -> None:
        kind = self._engine.dialect.name
        number = "INTEGER" if kind == "sqlite" else "BIGINT"
        with self._engine.begin() as connection:
            for one in statements.split(";"):
                statement = text(one.format(number=number, octets=OCTETS[kind]))
                named = {name: values[name] for name in values if f":{name}" in one}
                connection.execute(statement, named)

    def messages(self) -> list[tuple[Any, ...]]:
        with self._engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(READ))]


def yesterday(place: Place) -> Earlier:
    """Two messages, and a branch in doubt that retires the first one and posts a third."""
    earlier = Earlier(place)
    earlier.execute(TABLES)
    for number, position in ((11, 11), (12, 12), (13, PENDING)):
        earlier.execute(POST, number=number, position=position, data=b"\0Sw@\0")
    earlier.execute(PREPARE, gtrid=XID.gtrid, bqual=XID.bqual, outcome=b"\0S$E")
    return earlier


def test_a_store_of_yesterday_is_opened_with_its_branch_in_doubt_and_opened_again_by_its_version(
    sql_place: Place,
) -> None:
    """Which sees messages and branches as before, and commits what this version has prepared; it knows no delay."""
    earlier = yesterday(sql_place)
    opened = sql_place.open()
    restored = opened.restored
    assert list(restored.messages()) == [StoredMessage(n, 1, n, 5, 0, 0) for n in (11, 12)]
    assert (restored.records, [queue.name for queue in restored.queues]) == ([], ["orders"])
    (branch,) = restored.branches
    assert (branch.xid, branch.outcome) == (XID, None)
    assert branch.enqueues == (StoredMessage(13, 1, PENDING, 5, 0, 0),)

    with opened.batch() as batch:
        batch.finish(20)
        batch.dequeue(11, 5)
        batch.place(13, 1, 30, 0)
        batch.enqueue(40, 1, PENDING, b"later", due_ms=-60_000, group="g")
        batch.prepare(50, Xid(7, b"other", b"b"), "me", 1, enqueues=[40])
        batch.enqueue(41, 1, 41, b"later", due_ms=10**13, group="g")
        batch.record(60, "audit", "who did what")

    sql_place.close()
    assert earlier.messages() == [(n, 1, p, 5, 0, 0) for n, p in ((12, 12), (13, 30), (41, 41))]
    earlier.execute(COMMIT, number=40, position=42)
    earlier.execute(POST, number=43, position=43, data=b"\0Sw@\0")
    restored = sql_place.open().restored
    assert list(restored.branches) == []
    assert [(facts.number, facts.due_ms, facts.group) for facts in restored.messages()] == [
        (12, 0, ""),
        (13, 0, ""),
        (41, 10**13, "g"),
        (40, -60_000, "g"),
        (43, 0, ""),
    ]
    assert [record.text for record in restored.records] == ["who did what"]
