"""AsyncBranchView: a branch's PostgreSQL connection as an asyncio psycopg connection.

It is what `BranchView` is, for code that awaits: whatever waits for the server lets the event loop go on. It never
waits for another thread or task: who finds one inside is refused.
"""

from __future__ import annotations

import select
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import psycopg
from psycopg.waiting import Wait

from rm_db.admission import ManagersOwn, access, deferral, isolation
from rm_db.alchemy import ending_savepoint
from rm_db.wire import IDLE, ConnectionLost, Steps

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType
    from typing import Self

    from psycopg import IsolationLevel
    from psycopg.abc import Params, PQGen, Query
    from psycopg.rows import Row

    from rm_db.admission import Admission
    from rm_db.wire import Wire

RV = TypeVar("RV")

_WAITS: Final = {select.POLLIN: Wait.R, select.POLLIN | select.POLLOUT: Wait.RW}


class AsyncBranchCursor(psycopg.AsyncCursor["Row"]):
    """A psycopg cursor that leaves the transaction's end to the transaction manager."""

    _conn: AsyncBranchView

    async def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        """As psycopg's."""
        admission = self._conn.admission
        effects = admission.admit(query, self._conn)
        await super().execute(query, params, prepare=prepare, binary=binary)  # type: ignore[arg-type, misc]  # either overload's
        admission.done(effects, self.rowcount)
        return self

    async def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        """As psycopg's."""
        admission = self._conn.admission
        effects = admission.admit(query, self._conn)
        await super().executemany(query, params_seq, returning=returning)
        admission.done(effects, self.rowcount)

    def stream(
        self, query: Query, params: Params | None = None, *, binary: bool | None = None, size: int = 1
    ) -> AsyncIterator[Row]:
        """As psycopg's."""
        self._conn.admission.admit(query, self._conn)
        return super().stream(query, params, binary=binary, size=size)

    def copy(self, statement: Query, params: Params | None = None, **options: Any) -> Any:
        """As psycopg's."""
        self._conn.admission.admit(statement, self._conn)
        return super().copy(statement, params, **options)


class AsyncSavepoint(psycopg.AsyncTransaction):
    """psycopg's block of a transaction, which is a savepoint here."""

    _conn: AsyncBranchView

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        with ending_savepoint(self._conn.admission):
            return await super().__aexit__(exc_type, exc_val, exc_tb)


class AsyncBranchView(ManagersOwn, psycopg.AsyncConnection[Any]):
    """An asyncio psycopg connection in the middle of a branch's transaction: no commit, rollback, close or
    autocommit."""

    def __init__(self, admission: Admission, wire: Wire) -> None:
        super().__init__(wire.pgconn)
        # what psycopg knows of the session's prepared statements lives as long as the session, not as this view
        self._prepared = wire.connection._prepared  # noqa: SLF001 — psycopg has no other way to share it
        self.admission = admission
        self.lock = admission.turn  # type: ignore[assignment]  # psycopg only enters and leaves it
        self.cursor_factory = AsyncBranchCursor

    @property
    def closed(self) -> bool:
        """True once the view is over."""
        return self.admission.is_over or super().closed

    async def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's, as long as the view's association lasts. Cancelled, it cancels the statement first."""
        admission = self.admission
        wire = admission.enter()
        try:
            if wire.owes or wire.status == IDLE:
                await super().wait(_for_psycopg(admission.begun(wire)), *args, **kwargs)
            result = await super().wait(gen, *args, **kwargs)
        except (psycopg.Error, ConnectionLost) as error:
            failure = admission.failed(error)
            if failure is error:
                raise
            raise failure from None
        finally:
            admission.leave(wire)
        if admission.work.failure is not None:
            admission.succeeded()
        return result

    def cursor(self, *args: Any, **options: Any) -> Any:
        """As psycopg's. One with a name is refused where its first statement would be: psycopg complains of a cursor
        that nobody could close."""
        if args or "name" in options:
            self.admission.turn.check()
        return super().cursor(*args, **options)

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[psycopg.AsyncPipeline]:
        """As psycopg's. Nobody else's statements come into it."""
        with self.admission.hold():
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
        """Refused."""
        if value:
            self.admission.refuse("autocommit")

    async def set_isolation_level(self, value: IsolationLevel | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            await self.execute(isolation(value))

    async def set_read_only(self, value: bool | None) -> None:
        """Of this transaction."""
        if value is not None:
            await self.execute(access(read_only=value))

    async def set_deferrable(self, value: bool | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            await self.execute(deferral(deferrable=value))

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    async def __aenter__(self) -> NoReturn:
        self.admission.refuse("leaving `async with` on the connection, which commits and closes it,")


def _for_psycopg(steps: Steps[None]) -> PQGen[None]:
    """Steps of ours, as a generator that psycopg waits for."""
    for wait in steps:
        while not (yield _WAITS[wait.events]):
            pass  # it looks around from time to time
