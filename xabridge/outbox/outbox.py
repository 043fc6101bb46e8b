"""Outbox: messages that leave because a transaction of a database was committed.

    outbox = Outbox()

    with tm.begin() as tx:                       # or engine.begin(): a transaction manager is not needed for it
        tx["shop"].execute(...)
        outbox.put(tx["shop"], "orders", Message({"number": 7}), key="customer-3")

`put` writes a row into the table `xabridge_outbox`, in the transaction of the connection or session that it is given.
If the transaction is committed, a relay (`xabridge.outbox.relay`) sends the message, at least once; otherwise it never
was.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

from sqlalchemy import Insert, case, func, insert, select
from sqlalchemy.exc import DBAPIError

from rm_amqp.message import encoded
from xabridge.outbox.tables import (
    LANES,
    MAX_NAME,
    VERSION,
    WAITING,
    Tables,
    check_transaction,
    check_transaction_async,
    refuse_other_version,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from sqlalchemy import Select

    from rm_amqp import Message


class OutboxFull(Exception):
    """The outbox holds as many messages as it may. Nothing was written; the transaction goes on. Its owner decides."""


class SqlExecutor(Protocol):
    """A SQLAlchemy connection or session: `tx["shop"]`, `tx["shop"].orm`, or one of the application's own."""

    def execute(self, statement: Any, parameters: Any = None, /) -> Any:
        """Carries out a statement in its transaction."""
        ...


class AsyncSqlExecutor(Protocol):
    """The same for asyncio: `tx["shop"].asyncio`, or an AsyncConnection or AsyncSession of the application's own."""

    def execute(self, statement: Any, parameters: Any = None, /) -> Awaitable[Any]:
        """Carries out a statement in its transaction."""
        ...


class Outbox:
    """Fills the table. `limit`: how many messages may wait; a `put` beyond that raises OutboxFull. `clock`: seconds
    since 1970."""

    def __init__(
        self, tables: Tables | None = None, *, limit: int | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self.tables = tables if tables is not None else Tables()
        self._limit = limit
        self._clock = clock

    def put(self, where: SqlExecutor, destination: str, message: Message, *, key: str | None = None) -> str:
        """Writes a message into the outbox, in the transaction of `where`. Returns the message's id, which is a new one
        if it has none; it stays the same however often the message is sent.

        Messages with the same `key` leave in the order in which they were put: in one transaction, and in two if the
        second one put its message after the first one was committed.

        ValueError, XaMisuse: the message, its destination or its key can't be kept, or `where` is in autocommit.
        OutboxFull: see above. TablesError: the table is another version's."""
        rows = self._rows(destination, [message], key)
        check_transaction(where, self.tables.outbox)
        if self._limit is not None:
            self._check(where.execute(self._kept(1)).scalar_one(), 1)
        self._execute(where, rows[0])
        return str(rows[0]["message_id"])

    def put_all(
        self, where: SqlExecutor, destination: str, messages: Sequence[Message], *, key: str | None = None
    ) -> list[str]:
        """Writes many messages, as if each were put in turn; their ids."""
        rows = self._rows(destination, messages, key)
        check_transaction(where, self.tables.outbox)
        if self._limit is not None:
            self._check(where.execute(self._kept(len(rows))).scalar_one(), len(rows))
        if rows:
            self._execute(where, rows)
        return [str(row["message_id"]) for row in rows]

    async def put_async(
        self, where: AsyncSqlExecutor, destination: str, message: Message, *, key: str | None = None
    ) -> str:
        """Does what `put` does, with an asyncio connection or session."""
        return (await self.put_all_async(where, destination, [message], key=key))[0]

    async def put_all_async(
        self, where: AsyncSqlExecutor, destination: str, messages: Sequence[Message], *, key: str | None = None
    ) -> list[str]:
        """Does what `put_all` does, with an asyncio connection or session."""
        rows = self._rows(destination, messages, key)
        await check_transaction_async(where, self.tables.outbox)
        if self._limit is not None:
            self._check((await where.execute(self._kept(len(rows)))).scalar_one(), len(rows))
        if rows:
            try:
                await where.execute(self._insert(), rows)
            except DBAPIError as error:
                refuse_other_version(error, self.tables.outbox)
                raise
        return [str(row["message_id"]) for row in rows]

    def insertion(self, destination: str, message: Message, *, key: str | None = None) -> Insert:
        """The statement that `put` executes, to be executed in another way. It has no limit."""
        return self._insert().values(**self._rows(destination, [message], key)[0])

    def _execute(self, where: SqlExecutor, rows: Any) -> None:
        try:
            where.execute(self._insert(), rows)
        except DBAPIError as error:
            refuse_other_version(error, self.tables.outbox)
            raise

    def _insert(self) -> Insert:
        """The statement. It asks for nothing back, because that needs the right to read."""
        return insert(self.tables.outbox).inline()

    def _rows(self, destination: str, messages: Sequence[Message], key: str | None) -> list[dict[str, Any]]:
        for name, text in (("destination", destination), ("key", key)):
            if text is None and name == "key":
                continue
            if not isinstance(text, str):
                raise ValueError(f"the {name} is {text!r}: it has to be a text; use str(…)")  # noqa: TRY004 — as below
            if not 0 < len(text) <= MAX_NAME:
                raise ValueError(f"the {name} has {len(text)} characters; it may have 1 to {MAX_NAME}")
        now = self._clock()
        return [self._row(destination, message, key, now) for message in messages]

    @staticmethod
    def _row(destination: str, message: Message, key: str | None, now: float) -> dict[str, Any]:
        message_id = message.id if message.id is not None else str(uuid.uuid4())
        if not isinstance(message_id, str) or not 0 < len(message_id) <= MAX_NAME:
            raise ValueError(
                f"the message's id is {message_id!r}: in an outbox it is a text of 1 to {MAX_NAME} characters, because "
                "brokers differ in what else they take. Use str(…), or leave it out"
            )

        octets = encoded(replace(message, id=message_id, durable=True))
        return {
            "lane": crc32((key if key is not None else message_id).encode()) % LANES,
            "order_key": key,
            "destination": destination,
            "message_id": message_id,
            "message": octets,
            "octets": len(octets),
            "created": now,
            "attempts": 0,
            "retry_at": 0.0,
            "state": WAITING,
            "version": VERSION,
        }

    def _kept(self, more: int) -> Select[tuple[int]]:
        """How many rows there are; 0 where the first and the last id show that there is room for so many more, so that
        they need not be counted."""
        number = self.tables.outbox.c.id
        counted = select(func.count()).select_from(self.tables.outbox).scalar_subquery()
        at_most = func.max(number) - func.min(number) + 1
        return select(case((at_most > (self._limit or 0) - more, counted), else_=0))

    def _check(self, kept: int, more: int) -> None:
        if self._limit is not None and kept + more > self._limit:
            raise OutboxFull(
                f"{kept} messages are in the outbox, and at most {self._limit} may be: the relay does not run, or its "
                "broker takes nothing; `xabridge outbox status` says more"
            )
