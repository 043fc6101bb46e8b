# Generated from rm_db/sessions/psycopg_async_connection.py: edit that one, and run `python -m tools.async_to_sync`.
"""PsycopgConnection: a branch's PostgreSQL connection, as a psycopg connection.

Each one is an object of its own over the branch's libpq connection. It is made for one association and is of no use
after it. So nothing that the application sets on it (row factory, adapters, handlers) reaches the next transaction, and
an object that was kept too long can't write into somebody else's transaction. What these objects share is psycopg's
knowledge of the statements that the server has prepared in this session.

Everything that psycopg does on a connection goes through its method `wait`. That is where the use of a connection is
refused, where the reply to BEGIN is collected, and where errors are noted for the vote.

Code for threads and code that awaits have one source: `tools/async_to_sync.py` generates `psycopg_connection.py` from
`psycopg_async_connection.py`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap

from rm_db.postgres.libpq import IDLE
from rm_db.server.steps import ConnectionLost
from rm_db.sessions.connection import ending_savepoint
from rm_db.sessions.executemany import Executemany
from rm_db.sessions.postgres_access import (
    ReservedMethods,
    access_mode_statement,
    deferrable_statement,
    isolation_statement,
    statement_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from psycopg import IsolationLevel
    from psycopg.abc import Params, PQGen, Query
    from psycopg.rows import Row

    from rm_db.postgres.libpq import LibpqConnection
    from rm_db.sessions.postgres_access import PostgresAccess

RV = TypeVar("RV")


class PsycopgCursor(Executemany, psycopg.Cursor["Row"]):
    """A psycopg cursor that leaves the transaction's end to the transaction manager."""

    _conn: PsycopgConnection

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        access = self._conn.access
        effects = access.admit(statement_text(query, self._conn))
        super().execute(query, params, prepare=prepare, binary=binary)  # type: ignore[arg-type, misc]  # either overload's
        if effects:
            access.done(effects, self.rowcount)
        return self

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        access = self._conn.access
        effects = access.admit(statement_text(query, self._conn))
        super().executemany(query, params_seq, returning=returning)
        access.done(effects, self.rowcount)

    def stream(
        self, query: Query, params: Params | None = None, *, binary: bool | None = None, size: int = 1
    ) -> Iterator[Row]:
        self._conn.access.admit(statement_text(query, self._conn))
        return super().stream(query, params, binary=binary, size=size)

    def copy(self, statement: Query, params: Params | None = None, **options: Any) -> Any:
        self._conn.access.admit(statement_text(statement, self._conn))
        return super().copy(statement, params, **options)


class Savepoint(psycopg.Transaction):
    """psycopg's transaction block, which is a savepoint here."""

    _conn: PsycopgConnection

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        with ending_savepoint(self._conn.access):
            return super().__exit__(exc_type, exc_val, exc_tb)


class PsycopgConnection(ReservedMethods, psycopg.Connection[Any]):
    """A psycopg connection in the middle of a branch's transaction. Commit, rollback, close and autocommit are
    refused. `adapters` are used instead of psycopg's own, where they are given."""

    def __init__(
        self, access: PostgresAccess, connection: LibpqConnection, adapters: AdaptersMap | None = None
    ) -> None:
        super().__init__(connection.pgconn)
        if adapters is not None:
            self._adapters = AdaptersMap(adapters)
        # what psycopg knows of the session's prepared statements lives as long as the session, not as this object
        self._prepared = connection.psycopg_connection._prepared  # noqa: SLF001 — psycopg has no other way to share it
        self.access = access
        self.lock = access.statement_lock  # type: ignore[assignment]  # psycopg only enters and leaves it
        self.cursor_factory = PsycopgCursor

    @property
    def closed(self) -> bool:
        """True once the association has ended."""
        return self.access.is_over or super().closed

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        access = self.access
        connection = access.enter()
        try:
            if connection.owed or connection.status == IDLE:
                access.ensure_begun(connection, self)
            result = super().wait(gen, *args, **kwargs)
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
        # a cursor with a name is refused here and not at its first statement, after which psycopg would complain of a
        # cursor that could not be closed
        if args or "name" in options:
            self.access.statement_lock.check()
        return super().cursor(*args, **options)

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """A pipeline, between whose statements none of another thread or task comes."""
        with self.access.hold(), super().pipeline() as pipeline:
            yield pipeline

    @contextmanager
    def transaction(self, savepoint_name: str | None = None, force_rollback: bool = False) -> Iterator[Savepoint]:
        """Makes a savepoint, as psycopg does inside of a transaction."""
        savepoint = Savepoint(self, savepoint_name, force_rollback)
        if self._pipeline:
            with self.pipeline(), savepoint, self.pipeline():
                yield savepoint
        else:
            with savepoint:
                yield savepoint

    # --- settings of the transaction ------------------------------------------------------------------------------

    def set_autocommit(self, value: bool) -> None:
        """Refused."""
        if value:
            self.access.refuse("autocommit")

    def set_isolation_level(self, value: IsolationLevel | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            self.execute(isolation_statement(value))

    def set_read_only(self, value: bool | None) -> None:
        """Of this transaction."""
        if value is not None:
            self.execute(access_mode_statement(read_only=value))

    def set_deferrable(self, value: bool | None) -> None:
        """Of this transaction, before its first statement."""
        if value is not None:
            self.execute(deferrable_statement(deferrable=value))

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.access.refuse("leaving `with` on the connection, which commits and closes it,")
