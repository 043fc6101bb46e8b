"""BranchView: a branch's PostgreSQL connection as a psycopg connection.

A view is an object of its own over the branch's libpq connection, made for one association and worthless after it.
So nothing that the application sets on it (row factory, adapters, handlers) reaches the next transaction, and a view
that was kept too long can't write into somebody else's. What views share is psycopg's knowledge of the statements
that the session has prepared.

Everything that psycopg does on a connection goes through its `wait`: that is where a view is refused, where the reply
to BEGIN is collected, and where errors are noted for the vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap

from rm_db.refusal import managers, over
from rm_db.statements import ENDS, WRITES, classify
from rm_db.wire import IDLE, ConnectionLost, Steps, drive
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from psycopg import IsolationLevel
    from psycopg.abc import Params, PQGen, Query
    from psycopg.rows import Row

    from rm_db.wire import Wire
    from rm_db.work import PgWork
    from xa import Xid

RV = TypeVar("RV")

BEGIN_S: Final = 60.0
"""How long the server may take to answer BEGIN."""


class Admission:
    """Who may use a branch's connection: one view at a time, until its association ends."""

    __slots__ = ("_over", "work")

    def __init__(self, work: PgWork) -> None:
        self.work = work
        self._over = False

    @property
    def xid(self) -> Xid:
        """The branch."""
        return self.work.xid

    @property
    def is_over(self) -> bool:
        """Whether the association has ended."""
        return self._over

    def expire(self) -> None:
        """The association has ended."""
        self._over = True

    def doom(self, why: str) -> None:
        """Makes the branch rollback-only."""
        self.work.misused = self.work.misused or why

    def lose(self, why: str) -> None:
        """SQLAlchemy takes the connection for broken: what libpq thinks of it counts, and the work is not trusted."""
        self.doom(why)

    def enter(self, *, wait: bool) -> Wire:
        """Takes the connection for one operation of libpq's."""
        wire = self.work.wire
        if self._over or wire is None:
            raise over(self.work.xid)
        if not wire.lock.acquire(blocking=wait):
            raise xa_error(Code.XAER_PROTO, "another thread or task is in a statement of this branch", self.work.xid)
        if self._over or self.work.wire is not wire:
            wire.lock.release()
            raise over(self.work.xid)
        return wire

    def begun(self, wire: Wire) -> Steps[None]:
        """Makes sure that the transaction has begun, and goes on."""
        work = self.work
        if wire.owes:
            reply = yield from wire.collect()
            if reply.failure is not None:
                work.misused = f"BEGIN failed: {reply.failure}"
        if wire.status == IDLE and wire.alive:
            work.misused = work.misused or "a statement of the session has ended the transaction"
            raise xa_error(Code.XAER_PROTO, work.misused, work.xid)
        work.used = True

    def failed(self, error: psycopg.Error | ConnectionLost) -> psycopg.Error:
        """Notes what an operation raised; what to raise for it."""
        if isinstance(error, ConnectionLost):
            error = psycopg.OperationalError(str(error))
        self.work.failed(error)
        return error

    def succeeded(self) -> None:
        """An operation went well: if a savepoint was rolled back to, what failed before it is made good."""
        self.work.failure = None

    def leave(self, wire: Wire) -> None:
        """Lets go of the connection."""
        if wire.doomed:
            wire.close()
        wire.lock.release()

    def admit(self, query: Any, view: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> int:
        """What a query does (`rm_db.statements`); refuses one that would begin or end a transaction."""
        effects = classify(_text(query, view))
        if effects & ENDS:
            raise managers(f"{_text(query, view).strip()[:60]!r}", self.work.xid)
        self.work.effects |= effects
        return effects

    def done(self, effects: int, rowcount: int) -> None:
        """A query with these effects was carried out."""
        if effects & WRITES and rowcount > 0:
            self.work.wrote = True

    def refuse(self, what: str) -> NoReturn:
        """`what` is the transaction manager's."""
        if self._over:
            raise over(self.work.xid)
        raise managers(what, self.work.xid)


def _text(query: Any, view: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    """The words of a query, in any of the forms that psycopg takes."""
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode("latin-1")
    if isinstance(query, psycopg.sql.Composable):
        return query.as_string(view)
    return "".join(getattr(query, "strings", ()))  # a template string


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


class BranchView(psycopg.Connection[Any]):
    """A psycopg connection in the middle of a branch's transaction: no commit, rollback, close or autocommit."""

    def __init__(self, admission: Admission, wire: Wire, adapters: AdaptersMap | None = None) -> None:
        super().__init__(wire.pgconn)
        if adapters is not None:
            self._adapters = AdaptersMap(adapters)
        # what psycopg knows of the session's prepared statements lives as long as the session, not as this view
        self._prepared = wire.connection._prepared  # noqa: SLF001 — psycopg has no other way to share it
        self.admission = admission
        self.cursor_factory = BranchCursor

    def __del__(self, *_: object) -> None:
        """The connection is not this object's to close, nor to complain of."""

    @property
    def closed(self) -> bool:
        """True once the view is over."""
        return self.admission.is_over or super().closed

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """As psycopg's, as long as the view's association lasts."""
        admission = self.admission
        wire = admission.enter(wait=True)
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

    # --- settings of the transaction ------------------------------------------------------------------------------

    def _set_autocommit(self, value: bool) -> None:
        if value:
            self.admission.refuse("autocommit")

    def set_autocommit(self, value: bool) -> None:
        """Refused."""
        self._set_autocommit(value)

    def _set_isolation_level(self, value: IsolationLevel | None) -> None:
        if value is not None:
            name = psycopg.IsolationLevel(value).name.replace("_", " ")
            self.execute(f"SET TRANSACTION ISOLATION LEVEL {name}".encode("ascii"))

    def set_isolation_level(self, value: IsolationLevel | None) -> None:
        """Of this transaction, before its first statement."""
        self._set_isolation_level(value)

    def _set_read_only(self, value: bool | None) -> None:
        if value is not None:
            self.execute(b"SET TRANSACTION READ ONLY" if value else b"SET TRANSACTION READ WRITE")

    def set_read_only(self, value: bool | None) -> None:
        """Of this transaction."""
        self._set_read_only(value)

    def _set_deferrable(self, value: bool | None) -> None:
        if value is not None:
            self.execute(b"SET TRANSACTION DEFERRABLE" if value else b"SET TRANSACTION NOT DEFERRABLE")

    def set_deferrable(self, value: bool | None) -> None:
        """Of this transaction, before its first statement."""
        self._set_deferrable(value)

    # --- what belongs to the transaction manager ------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.admission.refuse("leaving `with` on the connection, which commits and closes it,")

    def commit(self) -> None:
        """Refused."""
        self.admission.refuse("commit()")

    def rollback(self) -> None:
        """Refused."""
        self.admission.refuse("rollback()")

    def close(self) -> None:
        """Refused."""
        self.admission.refuse("close()")

    def tpc_begin(self, xid: object) -> None:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_begin()")

    def tpc_prepare(self) -> None:
        """Refused."""
        self.admission.refuse("tpc_prepare()")

    def tpc_commit(self, xid: object = None) -> None:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_commit()")

    def tpc_rollback(self, xid: object = None) -> None:  # noqa: ARG002 — psycopg's signature
        """Refused."""
        self.admission.refuse("tpc_rollback()")
