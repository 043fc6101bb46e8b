"""PsycopgAsyncConnection: a branch's PostgreSQL connection as an asyncio psycopg connection.

It is what `PsycopgConnection` is, for code that awaits: whatever waits for the server lets the event loop go on. It
never waits for another thread or task: who finds one inside is refused.
"""

from __future__ import annotations

import select
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import psycopg
from psycopg.waiting import Wait

from rm_db.postgres.libpq import IDLE, ConnectionLost, Steps
from rm_db.sessions.access import ReservedMethods, access_mode_statement, deferrable_statement, isolation_statement
from rm_db.sessions.connection import ending_savepoint

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType
    from typing import Self

    from psycopg import IsolationLevel
    from psycopg.abc import Params, PQGen, Query
    from psycopg.rows import Row

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.sessions.access import PostgresAccess

RV = TypeVar("RV")

_WAITS: Final = {select.POLLIN: Wait.R, select.POLLIN | select.POLLOUT: Wait.RW}


class PsycopgAsyncCursor(psycopg.AsyncCursor["Row"]):
    """A psycopg cursor that leaves the transaction's end to the transaction manager."""

    _conn: PsycopgAsyncConnection

    async def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        access = self._conn.access
        effects = access.admit(query, self._conn)
        await super().execute(query, params, prepare=prepare, binary=binary)  # type: ignore[arg-type, misc]  # either overload's
        access.done(effects, self.rowcount)
        return self

    async def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        access = self._conn.access
        effects = access.admit(query, self._conn)
        await super().executemany(query, params_seq, returning=returning)
        access.done(effects, self.rowcount)

    def stream(
        self, query: Query, params: Params | None = None, *, binary: bool | None = None, size: int = 1
    ) -> AsyncIterator[Row]:
        self._conn.access.admit(query, self._conn)
        return super().stream(query, params, binary=binary, size=size)

    def copy(self, statement: Query, params: Params | None = None, **options: Any) -> Any:
        self._conn.access.admit(statement, self._conn)
        return super().copy(statement, params, **options)


class AsyncSavepoint(psycopg.AsyncTransaction):
    """psycopg's block of a transaction, which is a savepoint here."""

    _conn: PsycopgAsyncConnection

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        with ending_savepoint(self._conn.access):
            return await super().__aexit__(exc_type, exc_val, exc_tb)


class PsycopgAsyncConnection(ReservedMethods, psycopg.AsyncConnection[Any]):
    """An asyncio psycopg connection in the middle of a branch's transaction: no commit, rollback, close or
    autocommit."""

    def __init__(self, access: PostgresAccess, connection: LibpqConnection) -> None:
        super().__init__(connection.pgconn)
        # what psycopg knows of the session's prepared statements lives as long as the session, not as this view
        self._prepared = connection.psycopg_connection._prepared  # noqa: SLF001 — psycopg has no other way to share it
        self.access = access
        self.lock = access.statement_lock  # type: ignore[assignment]  # psycopg only enters and leaves it
        self.cursor_factory = PsycopgAsyncCursor

    @property
    def closed(self) -> bool:
        """True once the view is over."""
        return self.access.is_over or super().closed

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's, as long as the view's association lasts. Cancelled, it cancels the statement first."""
        access = self.access
        connection = access.enter()
        try:
            if connection.owes or connection.status == IDLE:
                await super().wait(_for_psycopg(access.begun(connection)), *args, **kwargs)
            result = await super().wait(gen, *args, **kwargs)
        except (psycopg.Error, ConnectionLost) as error:
            failure = access.failed(error)
            if failure is error:
                raise
            raise failure from None
        finally:
            access.leave(connection)
        if access.work.failure is not None:
            access.succeeded()
        return result

    def cursor(self, *args: Any, **options: Any) -> Any:
        """As psycopg's. One with a name is refused where its first statement would be: psycopg complains of a cursor
        that nobody could close."""
        if args or "name" in options:
            self.access.statement_lock.check()
        return super().cursor(*args, **options)

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        """As psycopg's. Nobody else's statements come into it."""
        with self.access.hold():
            async with super().pipeline() as pipeline:
                yield pipeline

    @asynccontextmanager
    async def transaction(
        self, savepoint_name: str | None = None, force_rollback: bool = False
    ) -> AsyncIterator[AsyncSavepoint]:
        """As psycopg's: a savepoint."""
        savepoint = AsyncSavepoint(self, savepoint_name, force_rollback)
        if self._pipeline:
            async with self.pipeline(), savepoint, self.pipeline():
                yield savepoint
        else:
            async with savepoint:
                yield savepoint

    # --- settings of the transaction ------------------------------------------------------------------------------

    async def set_autocommit(self, value: bool) -> None:
        if value:
            self.access.refuse("autocommit")

    async def set_isolation_level(self, value: IsolationLevel | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            await self.execute(isolation_statement(value))

    async def set_read_only(self, value: bool | None) -> None:
        """Of this transaction."""
        if value is not None:
            await self.execute(access_mode_statement(read_only=value))

    async def set_deferrable(self, value: bool | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            await self.execute(deferrable_statement(deferrable=value))

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    async def __aenter__(self) -> NoReturn:
        self.access.refuse("leaving `async with` on the connection, which commits and closes it,")


def _for_psycopg(steps: Steps[None]) -> PQGen[None]:
    """Steps of ours, as a generator that psycopg waits for."""
    for wait in steps:
        while not (yield _WAITS[wait.events]):
            pass  # it looks around from time to time
