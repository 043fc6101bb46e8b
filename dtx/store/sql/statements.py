"""The texts of the statements that the SQL store executes often.

A statement takes, and answers, many rows at once: sqlite3 lets other threads run at each row that it steps over, and a
busy event loop gives the interpreter back milliseconds later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, column, delete, func, insert, literal_column, select, update, values

from dtx.store.contract import PENDING
from dtx.store.sql.tables import BRANCH, CHUNKS, FENCE, MESSAGE, PAYLOAD, QUEUE, RECORD, SHARE, is_of_other_type

if TYPE_CHECKING:
    from sqlalchemy import Column, ColumnElement, Delete, Dialect, Insert, Select, Table, Update

ROWS: Final = 256
"""Rows of one statement at most."""
_KEY: Final = r"(?<= IN \()[^() ]+(?=\))"


class MultiRowStatement:
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


_OF_DIALECTS: Final[dict[str, Statements]] = {}


def statements_for(dialect: Dialect) -> Statements:
    """The store's statements, which are made once for each kind of database."""
    if dialect.name not in _OF_DIALECTS:
        _OF_DIALECTS[dialect.name] = Statements(dialect)
    return _OF_DIALECTS[dialect.name]


class Statements:
    """The store's SQL statements, for one dialect with positional parameters."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.insert_queues = self._insert(QUEUE, tail=" ON CONFLICT DO NOTHING")
        self.insert_messages = self._insert(MESSAGE)
        self.insert_payloads = self._insert(PAYLOAD)
        self.insert_chunks = self._insert(CHUNKS)
        self.insert_shares = self._insert(SHARE)
        self.insert_branches = self._insert(
            BRANCH, "number", "format_id", "gtrid", "bqual", "owner", "prepared_ms", "held"
        )
        self.insert_fences = self._insert(FENCE)
        self.insert_records = self._insert(RECORD)

        self.place = self._update(MESSAGE, "queue", "position", "delivery_count", "expires_ms", "due_ms")
        self.complete = self._update(BRANCH, "outcome", "completed_ms", "held")

        self.delete_messages = self._with_keys(delete(MESSAGE), MESSAGE.c.number)
        self.delete_payloads = self._with_keys(delete(PAYLOAD), PAYLOAD.c.message)
        self.delete_chunks = self._with_keys(delete(CHUNKS), CHUNKS.c.message)
        self.delete_branches = self._with_keys(delete(BRANCH), BRANCH.c.number)
        self.delete_records = self._with_keys(delete(RECORD), RECORD.c.number)
        self.delete_fences = self._with_keys(delete(FENCE), FENCE.c.gtrid)

        self.delete_shares = self._with_keys(delete(SHARE), SHARE.c.message)
        self.delete_unshared_payloads = self._unshared(PAYLOAD.c.message)
        self.delete_unshared_chunks = self._unshared(CHUNKS.c.message)

        standing = MESSAGE.c.position != literal_column(str(PENDING))
        self.delete_payloads_of_queues = self._of_queues(PAYLOAD.c.message, standing)
        self.delete_chunks_of_queues = self._of_queues(CHUNKS.c.message, standing)
        self.delete_messages_of_queues = self._with_keys(delete(MESSAGE).where(standing), MESSAGE.c.queue)
        self.delete_queues = self._with_keys(delete(QUEUE), QUEUE.c.number)
        self.delete_payloads_of_copies = self._of_copies(PAYLOAD.c.message)
        self.delete_chunks_of_copies = self._of_copies(CHUNKS.c.message)
        self.delete_shares_of_queues = self._of_queues(SHARE.c.message, standing)

        payload: tuple[ColumnElement[Any], ...] = (PAYLOAD.c.message, PAYLOAD.c.data)
        if dialect.name == "sqlite":  # one row, in which the messages and their payloads stand in one order
            payload = (func.group_concat(PAYLOAD.c.message), func.group_concat(func.hex(PAYLOAD.c.data)))
        payloads = select(*payload).where(~is_of_other_type(PAYLOAD.c.data, dialect))
        self.select_payloads = self._with_keys(payloads, PAYLOAD.c.message)
        self.select_chunk = select(CHUNKS.c.data).where(
            CHUNKS.c.message == bindparam("message"),
            CHUNKS.c.number == bindparam("number"),
            ~is_of_other_type(CHUNKS.c.data, dialect),
        )

    def _insert(self, table: Table, *columns: str, tail: str = "") -> MultiRowStatement:
        names = columns or tuple(table.columns.keys())
        statement = insert(table).values({name: bindparam(name) for name in names})
        return MultiRowStatement(statement, self._dialect, r"(?<=VALUES )\(.*\)", tail)

    def _update(self, table: Table, *columns: str) -> MultiRowStatement:
        """Rows of the key `number` and the new values of `columns`."""
        names = ("number", *columns)
        given = values(*(column(name) for name in names))
        new = given.data([tuple(bindparam(name) for name in names)]).cte("new")
        statement = update(table).where(table.c.number == new.c.number)
        return MultiRowStatement(
            statement.values({name: new.c[name] for name in columns}), self._dialect, r"(?<=VALUES )\([^()]+\)"
        )

    def _with_keys(self, statement: Delete | Select[Any], key: ColumnElement[int]) -> MultiRowStatement:
        return MultiRowStatement(statement.where(key.in_([bindparam("key")])), self._dialect, _KEY)

    def _unshared(self, key: Column[int]) -> MultiRowStatement:
        """Payloads with these numbers that no message shares any more."""
        free = ~select(SHARE.c.message).where(SHARE.c.payload == key).exists()
        return self._with_keys(delete(key.table).where(free), key)

    def _of_copies(self, key: Column[int]) -> str:
        """The payloads that only messages of one queue share, which is named twice."""

        def copies(name: str, *, others: bool) -> Select[Any]:
            share, message = SHARE.alias(f"{name}_share"), MESSAGE.alias(f"{name}_message")
            of_queue = message.c.queue == bindparam(name)
            both = share.join(message, message.c.number == share.c.message)
            chosen = select(share.c.payload).select_from(both).where(~of_queue if others else of_queue)
            return chosen.where(share.c.payload == key) if others else chosen

        free = ~copies("other", others=True).exists()
        statement = delete(key.table).where(key.in_(copies("own", others=False)), free)
        return str(statement.compile(dialect=self._dialect))

    def _of_queues(self, key: Column[int], standing: ColumnElement[bool]) -> MultiRowStatement:
        messages = select(MESSAGE.c.number).where(standing, MESSAGE.c.queue.in_([bindparam("key")]))
        return MultiRowStatement(delete(key.table).where(key.in_(messages)), self._dialect, _KEY)
