"""Inbox: whether a message was handled before.

    inbox = Inbox("billing")

    with tm.begin() as tx:                       # or engine.begin()
        if inbox.is_new(tx["shop"], message.id):
            tx["shop"].execute(...)

`is_new` writes the message's id into the table `xabridge_inbox`, in the transaction that handles the message. If that
is committed, the message is handled, and every later copy is found to be old; if it is rolled back, neither is. While
another transaction handles the same message, `is_new` waits for its end.

The row has to be kept for as long as a copy may still come. `delete_old` deletes what is older.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from sqlalchemy import delete, insert, literal, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from xa.sql.statements import upsert
from xabridge.outbox.tables import (
    MAX_NAME,
    VERSION,
    Tables,
    check_transaction,
    check_transaction_async,
    refuse_other_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Engine, Executable
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

_AT_ONCE: Final = 1000
_RETURNS: Final = frozenset({"postgresql", "sqlite", "mssql"})
"""Databases in which one statement inserts the row where it is not there, and says so. In the others a savepoint undoes
the insertion that fails."""

MessageId = int | str | bytes | UUID


class Inbox:
    """The messages that one consumer has handled. `consumer` names it, for good: two consumers that handle the same
    message each have a name of their own, and all processes of one consumer have the same. `clock`: seconds since
    1970."""

    def __init__(self, consumer: str, tables: Tables | None = None, *, clock: Callable[[], float] = time.time) -> None:
        if not 0 < len(consumer) <= MAX_NAME:
            raise ValueError(f"a consumer's name has 1 to {MAX_NAME} characters")
        self.tables = tables if tables is not None else Tables()
        self._consumer = consumer
        self._clock = clock

    def is_new(self, where: Connection | Session, message_id: MessageId | None) -> bool:
        """Whether the consumer has not handled the message, in any transaction that is committed, or in this one. From
        now on it has, in this transaction. ValueError: there is no id, or `where` is in autocommit.
        TablesError: the table is another version's."""
        row = self._row(message_id)
        check_transaction(where, self.tables.inbox)
        try:
            return self._is_new(where, row)
        except DBAPIError as error:
            refuse_other_version(error, self.tables.inbox)
            raise

    def _is_new(self, where: Connection | Session, row: dict[str, Any]) -> bool:
        if self._dialect(where) in _RETURNS:
            return where.execute(self._insertion(self._dialect(where), row)).scalar() is not None
        if hasattr(where, "flush"):  # the savepoint does it too, and an error of the application's is no copy
            where.flush()
        try:
            with where.begin_nested():
                where.execute(insert(self.tables.inbox), row)
        except IntegrityError:
            return False
        return True

    async def is_new_async(self, where: AsyncConnection | AsyncSession, message_id: MessageId | None) -> bool:
        """Does what `is_new` does, with an asyncio connection or session."""
        row = self._row(message_id)
        await check_transaction_async(where, self.tables.inbox)
        try:
            return await self._is_new_async(where, row)
        except DBAPIError as error:
            refuse_other_version(error, self.tables.inbox)
            raise

    async def _is_new_async(self, where: AsyncConnection | AsyncSession, row: dict[str, Any]) -> bool:
        if self._dialect(where) in _RETURNS:
            return (await where.execute(self._insertion(self._dialect(where), row))).scalar() is not None
        if hasattr(where, "flush"):
            await where.flush()
        try:
            async with where.begin_nested():
                await where.execute(insert(self.tables.inbox), row)
        except IntegrityError:
            return False
        return True

    def delete_old(self, engine: Engine, older_than_s: float) -> int:
        """Deletes the rows of every consumer that are older than so many seconds, a thousand in a transaction; how many
        they were."""
        inbox = self.tables.inbox
        before = self._clock() - older_than_s
        deleted = 0
        while True:
            with engine.begin() as connection:
                oldest = select(inbox.c.digest).where(inbox.c.received < before).order_by(inbox.c.received)
                digests = list(connection.execute(oldest.limit(_AT_ONCE)).scalars())
                if digests:
                    connection.execute(delete(inbox).where(inbox.c.digest.in_(digests)))
            deleted += len(digests)
            if len(digests) < _AT_ONCE:
                return deleted

    def _dialect(self, where: Any) -> str:
        """The name of the dialect of a connection or session."""
        dialect = getattr(where, "dialect", None)
        return str((dialect if dialect is not None else where.get_bind(clause=self.tables.inbox).dialect).name)

    def _insertion(self, dialect: str, row: dict[str, Any]) -> Executable:
        """The statement, which returns the digest where it has inserted the row."""
        inbox = self.tables.inbox
        if dialect == "mssql":  # an error would end the transaction, where XACT_ABORT is on
            there = select(inbox.c.digest).where(inbox.c.digest == row["digest"])
            absent = ~there.with_hint(inbox, "WITH (UPDLOCK, HOLDLOCK)", "mssql").exists()
            values = select(*(literal(value).label(name) for name, value in row.items())).where(absent)
            return insert(inbox).from_select(list(row), values).returning(inbox.c.digest)
        return upsert(dialect, inbox).values(**row).on_conflict_do_nothing().returning(inbox.c.digest)

    def _row(self, message_id: MessageId | None) -> dict[str, Any]:
        if message_id is None or message_id in ("", b""):
            raise ValueError("the message has no id: its sender has to give it one that stays the same in every copy")
        # the kind of the id counts: 7 and "7" are two messages
        kind, octets = _octets(message_id)
        consumer = self._consumer.encode()
        digest = hashlib.sha256(b"%d:%s%s%s" % (len(consumer), consumer, kind, octets)).hexdigest()
        text = message_id.hex() if isinstance(message_id, bytes) else str(message_id)
        return {
            "digest": digest,
            "consumer": self._consumer,
            "message_id": text[:MAX_NAME].replace("\0", "\ufffd"),  # PostgreSQL has no NUL
            "received": self._clock(),
            "version": VERSION,
        }


def _octets(message_id: MessageId) -> tuple[bytes, bytes]:
    """What kind of id it is, and the id."""
    if isinstance(message_id, str):
        return b"s", message_id.encode()
    if isinstance(message_id, UUID):
        return b"u", message_id.bytes
    if isinstance(message_id, int):
        return b"i", b"%d" % message_id
    return b"b", bytes(message_id)
