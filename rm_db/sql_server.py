"""SqlServer: a database of any kind, as SQLAlchemy reaches it; and what SQLite needs to be told.

SQLite: a transaction takes the write lock when it begins (BEGIN IMMEDIATE). One that takes it later can find that
its snapshot is old, and then no waiting helps. How its commits are forced is in `xa.sql.sqlite`, what MariaDB and MySQL
need in `xa.sql.mariadb`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from rm_db.sql_session import SqlConnection
from rm_db.statements import DEFINES, ENDS
from xa import Code, XaError, xa_error
from xa.sql import mariadb, sqlite

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, Engine

    from rm_db.address import Address

WAIT_OPTION: Final = "xabridge_wait_s"
"""Execution option: how long the transaction that begins next waits for SQLite's write lock."""

TABLE_CONNECTIONS: Final = 2
_OPENING_S: Final = 5.0
"""How long a new SQLite file may be in other hands."""

DECIDER_PREFIX: Final = "decider+"

_IN_MEMORY: Final = "a database in memory can't decide: nothing of it survives a crash"

_COMMITS_IMPLICITLY: Final = mariadb.DIALECTS | {"oracle"}
"""Where a statement of the data definition language commits what was done before it."""


def parse_url(address: Address) -> URL:
    """The database's URL; XAER_INVAL for one that is none, or names what can't decide."""
    try:
        url = make_url(address.url.removeprefix(DECIDER_PREFIX))
        dialect = url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    if dialect.is_async:
        raise xa_error(Code.XAER_INVAL, f"open: {url.drivername} is an asyncio driver; a synchronous one is needed")
    if dialect.name == "sqlite" and sqlite.is_in_memory(url):
        raise xa_error(Code.XAER_INVAL, f"open: {_IN_MEMORY}")
    return url


def any_dialect(scheme: str) -> type[Dialect]:
    """SQLAlchemy's dialect for URLs with this scheme. LookupError: there is none that can decide; it says why."""
    try:
        dialect = make_url(f"{scheme}://").get_dialect()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise LookupError(f"SQLAlchemy has no dialect for it: {error}") from None
    if dialect.is_async:
        raise LookupError(f"{scheme} is an asyncio driver; a synchronous one is needed")
    return dialect


def make_engine(url: URL, size: int, wait_s: float, **options: Any) -> Engine:
    """An engine with a bounded pool, whose connections are tested before they are used. XAER_INVAL: there can't be
    one."""
    try:
        engine = create_engine(
            url, pool_size=size, max_overflow=0, pool_timeout=wait_s, pool_pre_ping=True, pool_use_lifo=True, **options
        )
    except (ModuleNotFoundError, TypeError) as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _begin_explicitly)
        sqlite.force_commits(engine, _OPENING_S, _no_write_ahead_log)
        event.listen(engine, "begin", _Begin(wait_s))
    return engine


def guard(engine: Engine) -> None:
    """Refuses statements in a branch that would end its transaction."""
    forbidden = ENDS | DEFINES if engine.dialect.name in _COMMITS_IMPLICITLY else ENDS

    def admit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if isinstance(connection, SqlConnection):
            connection.admit(statement, forbidden)

    event.listen(engine, "before_cursor_execute", admit)


def _begin_explicitly(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # transactions begin where we say


def _no_write_ahead_log(mode: str) -> XaError:
    if mode == "memory":
        return xa_error(Code.XAER_INVAL, f"open: {_IN_MEMORY}")
    return xa_error(
        Code.XAER_INVAL,
        f"open: SQLite has no WAL mode here, only {mode}: its file system can't share memory between processes (a "
        "network's can't), or the URL's settings forbid it. Put the file on a local disk",
    )


class _Begin:
    """Begins a transaction on SQLite."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    def __call__(self, connection: Connection) -> None:
        if isinstance(connection, SqlConnection):
            return  # SQLAlchemy's bookkeeping only: the branch's transaction has begun
        wait_s = connection.get_execution_options().get(WAIT_OPTION, self._wait_s)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
