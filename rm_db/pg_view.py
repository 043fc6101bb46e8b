"""BranchView: a branch's PostgreSQL connection as a psycopg connection.

A view is an object of its own over the branch's libpq connection, made for one association and worthless after it.
So nothing that the application sets on it (row factory, adapters, handlers) reaches the next transaction, and a view
that was kept too long can't write into somebody else's. What views share is psycopg's knowledge of the statements
that the session has prepared.

Everything that psycopg does on a connection goes through its `wait`: that is where a view is refused, where the reply
to BEGIN is collected, and where errors are noted for the vote.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap

from rm_db.admission import ManagersOwn, access, deferral, isolation
from rm_db.alchemy import ending_savepoint
from rm_db.wire import IDLE, ConnectionLost, drive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType
    from typing import Self

    from psycopg import IsolationLevel
    from psycopg.abc import Params, PQGen, Query
    from psycopg.rows import Row

    from rm_db.admission import Admission
    from rm_db.wire import Wire

RV = TypeVar("RV")

BEGIN_S: Final = 60.0
"""How long the server may take to answer BEGIN."""


class BranchCursor(psycopg.Cursor["Row"]):
    """A psycopg cursor that leaves the transaction's end to the transaction manager."""

    _conn: BranchView

    def execute(
        self, query: Query, params: Params | None = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        """As psycopg's."""
        admission = self._conn.admission
        effects = admission.admit(query, self._conn)
        super().execute(query, params, prepare=prepare, binary=binary)  # type: ignore[arg-type, misc]  # either overload's
        if effects:
            admission.done(effects, self.rowcount)
        return self

    def executemany(self, query: Query, params_seq: Iterable[Params], *, returning: bool = False) -> None:
        """As psycopg's."""
        admission = self._conn.admission
        effects = admission.admit(query, self._conn)
        super().executemany(query, params_seq, returning=returning)
        admission.done(effects, self.rowcount)

    def stream(
        self, query: Query, params: Params | None = None, *, binary: bool | None = None, size: int = 1
    ) -> Iterator[Row]:
        """As psycopg's."""
        self._conn.admission.admit(query, self._conn)
        return super().stream(query, params, binary=binary, size=size)

    def copy(self, statement: Query, params: Params | None = None, **options: Any) -> Any:
        """As psycopg's."""
        self._conn.admission.admit(statement, self._conn)
        return super().copy(statement, params, **options)


class Savepoint(psycopg.Transaction):
    """psycopg's block of a transaction, which is a savepoint here."""

    _conn: BranchView

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> bool:
        with ending_savepoint(self._conn.admission):
            return super().__exit__(exc_type, exc_val, exc_tb)


class BranchView(ManagersOwn, psycopg.Connection[Any]):
    """A psycopg connection in the middle of a branch's transaction: no commit, rollback, close or autocommit."""

    def __init__(self, admission: Admission, wire: Wire, adapters: AdaptersMap | None = None) -> None:
        super().__init__(wire.pgconn)
        if adapters is not None:
            self._adapters = AdaptersMap(adapters)
        # what psycopg knows of the session's prepared statements lives as long as the session, not as this view
        self._prepared = wire.connection._prepared  # noqa: SLF001 — psycopg has no other way to share it
        self.admission = admission
        self.lock = admission.turn  # type: ignore[assignment]  # psycopg only enters and leaves it
        self.cursor_factory = BranchCursor

    @property
    def closed(self) -> bool:
        """True once the view is over."""
        return self.admission.is_over or super().closed

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's, as long as the view's association lasts."""
        admission = self.admission
        wire = admission.enter()
        try:
            if wire.owes or wire.status == IDLE:
                drive(admission.begun(wire), BEGIN_S)
            result = super().wait(gen, *args, **kwargs)
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

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """As psycopg's. Nobody else's statements come into it."""
        with self.admission.hold(), super().pipeline() as pipeline:
            yield pipeline

    @contextmanager
    def transaction(self, savepoint_name: str | None = None, force_rollback: bool = False) -> Iterator[Savepoint]:
        """As psycopg's: a savepoint."""
        savepoint = Savepoint(self, savepoint_name, force_rollback)
        if self._pipeline:
            with self.pipeline(), savepoint, self.pipeline():
                yield savepoint
        else:
            with savepoint:
                yield savepoint

    # --- settings of the transaction ------------------------------------------------------------------------------

    def _set_autocommit(self, value: bool) -> None:
        if value:
            self.admission.refuse("autocommit")

    def set_autocommit(self, value: bool) -> None:
        """Refused."""
        self._set_autocommit(value)

    def _set_isolation_level(self, value: IsolationLevel | None) -> None:
        if value is not None:
            self.execute(isolation(value))

    def set_isolation_level(self, value: IsolationLevel | None) -> None:
        """Of this transaction, before its first statement."""
        self._set_isolation_level(value)

    def _set_read_only(self, value: bool | None) -> None:
        if value is not None:
            self.execute(access(read_only=value))

    def set_read_only(self, value: bool | None) -> None:
        """Of this transaction."""
        self._set_read_only(value)

    def _set_deferrable(self, value: bool | None) -> None:
        if value is not None:
            self.execute(deferral(deferrable=value))

    def set_deferrable(self, value: bool | None) -> None:
        """Of this transaction, before its first statement."""
        self._set_deferrable(value)

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.admission.refuse("leaving `with` on the connection, which commits and closes it,")
