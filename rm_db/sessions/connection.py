"""BranchConnection: SQLAlchemy's Connection inside a branch's transaction. Its ORM session is in `rm_db.sessions.orm`.

Both are made for one association. Only the transaction manager may begin, commit, roll back, close or set autocommit;
savepoints are allowed. When SQLAlchemy itself rolls back, for example after a flush that failed, the branch becomes
rollback-only. It also does when the end of a savepoint is refused, because it is not known then whether the application
still wants the work in it; and when anything is refused that is the transaction manager's.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from sqlalchemy import text
from sqlalchemy.engine import Connection, RootTransaction
from sqlalchemy.pool import PoolProxiedConnection

from rm_db.sessions.errors import expired_error, refuse, unflushed_error
from xa import XaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Engine, NestedTransaction

    from rm_db.sessions.orm import BranchSession
    from xa import Xid


class ConnectionAccess(Protocol):
    """The methods of a branch that a SQLAlchemy connection over its connection needs."""

    @property
    def xid(self) -> Xid:
        """The branch."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the association has ended."""
        ...

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that has it."""
        ...

    def set_rollback_only(self, why: str) -> None:
        """Makes the branch rollback-only."""
        ...

    def note_lost(self, why: str) -> None:
        """Takes note that the connection is broken."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Around several statements that belong together: no statement of another thread or task comes between them.
        Waits, or refuses, as a single statement does."""
        ...

    def check(self) -> None:
        """Raises the XA_RB* for which the branch can only be rolled back, or XAER_RMFAIL."""
        ...


class BorrowedConnection(PoolProxiedConnection):
    """A driver's connection that SQLAlchemy may use, but neither commit nor return to a pool."""

    __slots__ = ("_access", "_info", "dbapi_connection")

    dbapi_connection: Any

    def __init__(self, connection: Any, access: ConnectionAccess) -> None:
        self.dbapi_connection = connection
        self._access = access
        self._info: dict[Any, Any] = {}

    @property
    def driver_connection(self) -> Any:  # type: ignore[override]  # an attribute there
        """The driver's own object."""
        connection = self.dbapi_connection
        return getattr(connection, "driver_connection", connection)

    @property
    def info(self) -> dict[Any, Any]:
        """A dictionary for SQLAlchemy's users, which lives as long as this object."""
        return self._info

    @property
    def record_info(self) -> None:
        return  # no pool of SQLAlchemy's keeps a record of this connection

    @property
    def is_valid(self) -> bool:
        """Whether the association lasts."""
        return not self._access.is_over

    @property
    def is_detached(self) -> bool:
        """True, because it is in no pool of SQLAlchemy's."""
        return True

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return self.dbapi_connection.cursor(*args, **kwargs)

    def commit(self) -> None:
        """Refused, whichever way SQLAlchemy came here."""
        refuse("commit()", self._access)

    def rollback(self) -> None:
        """SQLAlchemy gives the transaction up, after an error of its own, and the branch becomes rollback-only."""
        self._access.set_rollback_only("SQLAlchemy rolled the transaction back, after an error or on request")

    def invalidate(self, e: BaseException | None = None, soft: bool = False) -> None:  # noqa: ARG002 — SQLAlchemy's signature
        """SQLAlchemy considers the connection broken."""
        self._access.note_lost(
            f"the connection was invalidated: {e}" if e is not None else "the connection was invalidated"
        )

    def detach(self) -> None:
        refuse("detach()", self._access)

    def close(self) -> None:
        """Does nothing: the connection goes back to its pool when the branch ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dbapi_connection, name)


class BranchTransaction(RootTransaction):
    """SQLAlchemy's object for the transaction. It sends nothing to the database. Its rollback, which SQLAlchemy calls
    after an error, makes the branch rollback-only."""

    connection: BranchConnection

    def commit(self) -> None:
        self.connection.refuse("commit()")


class BranchConnection(Connection):
    """A SQLAlchemy connection in the middle of a branch's transaction. `orm` is an ORM session on it.

    It is made in two steps, between which much time can pass. The constructor sets our attributes, and `_connect` sets
    SQLAlchemy's. Neither touches those of the other, because the application may use the object in between."""

    takes_part = True
    """Whether what it does belongs to the branch; `rm_db.sessions.engine.BranchPool` has the same."""

    def __init__(self, access: ConnectionAccess) -> None:  # Connection's own constructor: _connect
        self._access = access
        self._orm: BranchSession | None = None

    def _connect(self, engine: Engine, borrowed: BorrowedConnection) -> None:
        """The second step. It can't fail."""
        had_events = self._has_events  # an event handler that was registered before this step
        super().__init__(engine, borrowed, _allow_revalidate=False)
        self._has_events = self._has_events or had_events
        BranchTransaction(self)

    @property
    def orm(self) -> BranchSession:
        """The ORM session on this connection. It is made at the first use, and flushed when the association ends."""
        if self._orm is None:
            from rm_db.sessions.orm import BranchSession  # noqa: PLC0415 — loads SQLAlchemy's ORM

            self._orm = BranchSession(self)
        return self._orm

    @property
    def closed(self) -> bool:
        """True once the association has ended."""
        return self._access.is_over or super().closed

    def finish(self) -> None:
        """Flushes the ORM session, for the resource manager."""
        if self._orm is not None:
            self._orm.flush()

    @property
    def holds_back(self) -> bool:
        """Whether there is an ORM session, so that `renew` may have to wait for the database."""
        return any(one._orm is not None for one in self._of_session())  # noqa: SLF001 — a connection like this one

    def renew(self) -> None:
        """For a consumer, between two messages that share the transaction: what the ORM session holds back is written,
        and the next message has a new one. Raises the XA_RB* for which the branch can only be rolled back, as after the
        error of a statement that was hidden, or the XAER_RMFAIL, as the end of the association would."""
        unflushed: XaError | None = None
        for connection in self._of_session():
            orm = connection._orm  # noqa: SLF001 — a connection like this one
            if orm is None:
                continue
            try:
                orm.flush()
                orm.expunge_all()
            except Exception as error:  # noqa: BLE001 — flushing runs the application's own code, and any of it may fail
                unflushed = unflushed_error(error, self._access.xid)
                unflushed.__cause__ = error
            connection._orm = None  # noqa: SLF001 — the same

        self._access.check()
        if unflushed is not None:
            raise unflushed

    def _of_session(self) -> Sequence[BranchConnection]:
        """The connections of its session: for threads, and for asyncio."""
        return (self,)

    def execution_options(self, **options: Any) -> Any:
        """`isolation_level` is that of this transaction, to be set before its first statement."""
        level = options.pop("isolation_level", None)
        if level is not None:
            if level.upper() == "AUTOCOMMIT":
                self.refuse("autocommit")
            self._set_isolation(level.replace("_", " "))
        return super().execution_options(**options) if options else self

    def _set_isolation(self, level: str) -> None:
        self.execute(text(f"SET TRANSACTION ISOLATION LEVEL {level}"))

    def begin(self) -> RootTransaction:
        """Refused: the transaction has begun. (SQLAlchemy begins its own bookkeeping anew after a rollback.)"""
        if self.get_transaction() is not None or self._access.is_over:
            self.refuse("begin()")
        return BranchTransaction(self)

    def begin_nested(self) -> NestedTransaction:
        """A savepoint."""
        if self._access.is_over:
            raise expired_error(self._access.xid)
        return super().begin_nested()

    def begin_twophase(self, xid: Any = None) -> NoReturn:  # noqa: ARG002 — SQLAlchemy's signature
        self.refuse("begin_twophase()")

    def commit(self) -> None:
        self.refuse("commit()")

    def rollback(self) -> None:
        self.refuse("rollback()")

    def close(self) -> None:
        self.refuse("close()")

    def detach(self) -> None:
        self.refuse("detach()")

    def invalidate(self, exception: BaseException | None = None) -> None:
        """The branch becomes rollback-only."""
        super().invalidate(exception)

    def refuse(self, what: str) -> NoReturn:
        """`what` is the transaction manager's."""
        refuse(what, self._access)

    def hold(self) -> AbstractContextManager[None]:
        """Holds the connection for the ORM session (`ConnectionAccess.hold`)."""
        return self._access.hold()

    def _release_savepoint_impl(self, name: str) -> None:
        with ending_savepoint(self._access):
            super()._release_savepoint_impl(name)

    def _rollback_to_savepoint_impl(self, name: str) -> None:
        with ending_savepoint(self._access):
            super()._rollback_to_savepoint_impl(name)


@contextmanager
def ending_savepoint(access: ConnectionAccess) -> Iterator[None]:
    """Around the end of a savepoint: where it is refused, the branch becomes rollback-only."""
    try:
        yield
    except XaError as refused:
        access.set_rollback_only(f"the end of a savepoint was refused: {refused.message}")
        raise
