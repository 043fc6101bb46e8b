"""Lets code that has a SQLAlchemy `Engine` of its own take part in global transactions without being changed.

    take_part(engine, manager, "shop")                                     # where the engine is made; or in its URL:
    create_engine("postgresql+psycopg://…/shop?plugin=xabridge&xabridge_manager=app.wiring:manager&xabridge_resource=shop")

While the calling context is in a transaction of the manager, the engine hands out the branch's connection; otherwise it
hands out connections of its own pool. What the code considers its own transaction is a savepoint in the branch: its
commit leaves the outcome to the global transaction, and its rollback undoes the work since its last commit and nothing
else. An ORM `Session` on the engine behaves in the same way, because it works through connections.

An `AsyncEngine` takes part in the same way. Whenever it waits, also while it enlists, the event loop goes on.

This works for PostgreSQL through psycopg, which `postgresql://` resources and deciders use, and for MariaDB and MySQL
through PyMySQL, in two phases. Two connections of one
engine that are open at once in a transaction share the one connection of the branch, so their savepoints nest.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from sqlalchemy import CreateEnginePlugin, Engine
from sqlalchemy.pool import Pool
from sqlalchemy.util import await_only

from rm_db.sessions.connection import BorrowedConnection, ending_savepoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from sqlalchemy import URL
    from sqlalchemy.ext.asyncio import AsyncEngine
    from sqlalchemy.pool import PoolProxiedConnection

    from rm_db.sessions.connection import ConnectionAccess

_CAN_TAKE_PART: Final = frozenset({("postgresql", "psycopg"), ("mariadb", "pymysql"), ("mysql", "pymysql")})
"""Dialect and driver."""
_NUMBERS: Final = itertools.count(1)


class Transaction(Protocol):
    """The part of a transaction that `take_part` needs."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the resources that are enlisted."""
        ...

    def __getitem__(self, name: str) -> Any:
        """The native interface of a resource in it."""
        ...

    async def aenlist(self, name: str) -> Any:
        """The same for asyncio."""
        ...


class Manager(Protocol):
    """The part of the transaction manager that `take_part` needs."""

    def current_or_none(self) -> Transaction | None:
        """The calling context's transaction."""
        ...


class EngineBranch(Protocol):
    """A branch's SQLAlchemy connection in which engines can take part."""

    engine_driver: str
    """The driver that such an engine uses."""

    @property
    def access(self) -> ConnectionAccess:
        """The rules for the use of the branch's connection."""
        ...

    def driver_for(self, engine: Engine) -> Any:
        """A connection of the driver, as the dialect of `engine` needs it."""
        ...

    def execute_for_engine(self, connection: Any, statements: Sequence[str]) -> None:
        """Carries out statements on what `driver_for` has returned."""
        ...


class _ConnectionRecord:
    """SQLAlchemy notes here what to reset in a connection that returns to its pool. This connection never returns."""

    starttime = 0.0
    """A connection that broke is none of the pool's: those that the pool has made since stay valid."""

    def __init__(self) -> None:
        self.finalize_callback: list[Any] = []


class EngineConnection(BorrowedConnection):
    """The branch's connection, as an engine of the application hands it out. The work between two commits of that
    application code is one savepoint."""

    __slots__ = ("_branch", "_connection_record", "_savepoint")

    def __init__(self, branch: EngineBranch, engine: Engine) -> None:
        super().__init__(branch.driver_for(engine), branch.access)
        self._branch = branch
        self._connection_record = _ConnectionRecord()
        self._savepoint: str | None = None

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """A cursor of the driver, inside a savepoint."""
        if self._savepoint is None:
            name = f"xabridge_{next(_NUMBERS)}"  # its own name: another savepoint of ours may be open around it
            self._execute(f"SAVEPOINT {name}")
            self._savepoint = name
        return super().cursor(*args, **kwargs)

    def commit(self) -> None:
        """Keeps the work since the last commit. The transaction manager decides about it later."""
        name, self._savepoint = self._savepoint, None
        if name is not None:
            with ending_savepoint(self._access):
                self._execute(f"RELEASE SAVEPOINT {name}")

    def rollback(self) -> None:
        """Undoes the work since the last commit."""
        name, self._savepoint = self._savepoint, None
        if name is not None and not self._access.is_over:
            try:
                with ending_savepoint(self._access):
                    self._execute(f"ROLLBACK TO SAVEPOINT {name}", f"RELEASE SAVEPOINT {name}")
            except Exception as error:  # MariaDB goes on behind it, and would commit what was to be undone
                self._access.set_rollback_only(f"work could not be taken back: {error}")
                raise

    def close(self) -> None:
        """Undoes the work that was not committed, as a pool does."""
        self.rollback()

    def _close_special(self, transaction_reset: bool = False) -> None:  # noqa: ARG002 — SQLAlchemy's signature
        """SQLAlchemy's own connections call this instead of `close`, behind a rollback."""
        self.close()

    def _execute(self, *statements: str) -> None:
        self._branch.execute_for_engine(self.dbapi_connection, statements)


class BranchPool(Pool):
    """Hands out the branch's connection while there is a transaction, and otherwise the connections of `plain`, which
    is the pool that the engine had before."""

    takes_part = True
    """For `tm.zope`: a commit on this connection does not commit before the transaction manager does."""

    def __init__(self, plain: Pool, engine: Engine, manager: Manager, resource: str) -> None:
        # nothing of Pool's own is used: other attributes are those of the plain pool
        self._plain = plain
        self._engine = engine
        self._manager = manager
        self._resource = resource
        self._is_asyncio = engine.dialect.is_async
        self._lock = nullcontext() if self._is_asyncio else threading.Lock()  # a waiting task must not block others
        self._reached = False

    def connect(self) -> PoolProxiedConnection:
        transaction = self._manager.current_or_none()
        if transaction is None:
            return self._plain.connect()
        if not self._reached:
            with self._lock:
                self._plain.connect().close()  # the dialect asks the server at the first connection what it is
                self._reached = True

        if self._is_asyncio and self._resource not in transaction.resources:
            session = await_only(transaction.aenlist(self._resource))
        else:
            session = transaction[self._resource]
        if getattr(session, "engine_driver", None) != self._engine.dialect.driver:
            raise TypeError(
                f"{self._resource} is {type(session).__name__}: an engine of {self._engine.dialect.driver} takes part "
                "in PostgreSQL (psycopg), or in MariaDB and MySQL in two phases (pymysql) only"
            )
        return EngineConnection(session, self._engine)

    def dispose(self) -> None:
        self._plain.dispose()

    def recreate(self) -> Self:
        return type(self)(self._plain.recreate(), self._engine, self._manager, self._resource)

    def status(self) -> str:
        return self._plain.status()

    @property
    def dispatch(self) -> Any:  # type: ignore[override]  # an attribute there
        return self._plain.dispatch  # event handlers of the engine's pool are those of the plain one

    def __getattr__(self, name: str) -> Any:
        if name == "_plain":
            raise AttributeError(name)
        return getattr(self._plain, name)


def take_part(engine: Engine | AsyncEngine, manager: Manager, resource: str) -> None:
    """Makes `engine` the resource `resource` of `manager` wherever a transaction is active. Both have to reach
    the same database."""
    own = engine if isinstance(engine, Engine) else engine.sync_engine
    dialect = own.dialect
    if (dialect.name, dialect.driver) not in _CAN_TAKE_PART:
        raise ValueError(
            f"{dialect.name}+{dialect.driver} can't take part: make the engine with postgresql+psycopg:// or "
            f'mariadb+pymysql://, or work with the transaction\'s own connection, transaction["{resource}"]'
        )
    own.pool = BranchPool(own.pool, own, manager, resource)


class EnginePlugin(CreateEnginePlugin):
    """`plugin=xabridge` in an engine's URL. `xabridge_manager` says where the transaction manager is found at the first
    connection, as module:name; `xabridge_resource` is the resource's name there."""

    def __init__(self, url: URL, kwargs: dict[str, Any]) -> None:
        super().__init__(url, kwargs)
        settings = [url.query.get(name) for name in ("xabridge_manager", "xabridge_resource")]
        where, resource = settings
        if not (isinstance(where, str) and where.partition(":")[2] and isinstance(resource, str) and resource):
            raise ValueError(
                "plugin=xabridge needs xabridge_manager=module:name, where the transaction manager is, and "
                "xabridge_resource=…, the resource's name there, beside it in the URL"
            )
        self._manager = _Named(where)
        self._resource = resource

    def update_url(self, url: URL) -> URL:
        return url.difference_update_query(["xabridge_manager", "xabridge_resource"])

    def engine_created(self, engine: Engine) -> None:
        take_part(engine, self._manager, self._resource)


class _Named:
    """A manager that is looked up when it is first needed, because it may be made later than the engine."""

    def __init__(self, where: str) -> None:
        self._module, _, self._name = where.partition(":")

    @property
    def _manager(self) -> Manager:
        manager: Manager = getattr(import_module(self._module), self._name)
        return manager

    def current_or_none(self) -> Transaction | None:
        return self._manager.current_or_none()
