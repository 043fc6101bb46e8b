"""Databases of any kind, as SQLAlchemy reaches them.

`parse_url` checks the URL, `make_engine` makes an engine with a bounded pool, and `guard` refuses statements that would
end a branch's transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from rm_db.address import DECIDER_PREFIX
from rm_db.decider import sqlite
from rm_db.decider.session import SqlBranchConnection
from rm_db.statements import DEFINES, ENDS
from xa import Code, xa_error
from xa.sql import mariadb
from xa.sql.sqlite import is_in_memory
from xa.sql.url import database_url

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Dialect, Engine

    from rm_db.address import Address

TABLE_CONNECTIONS: Final = 2
_COMMITS_IMPLICITLY: Final = mariadb.DIALECTS | {"oracle"}
"""Where a statement of the data definition language commits what was done before it."""


def parse_url(address: Address) -> URL:
    """The database's URL; XAER_INVAL for one that is none, or names what can't decide."""
    try:
        url = database_url(address.url.removeprefix(DECIDER_PREFIX))
        dialect = url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, ValueError) as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    if dialect.is_async:
        raise xa_error(Code.XAER_INVAL, f"open: {url.drivername} is an asyncio driver; a synchronous one is needed")
    if dialect.name == "sqlite" and is_in_memory(url):
        raise xa_error(Code.XAER_INVAL, f"open: {sqlite.IN_MEMORY}")
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
        sqlite.listen(engine, wait_s)
    if engine.dialect.name in mariadb.DIALECTS and engine.dialect.driver == "pymysql":
        event.listen(engine, "do_connect", lambda _dialect, _record, _args, given: mariadb.encode_password(given))
    return engine


def guard(engine: Engine) -> None:
    """Refuses statements in a branch that would end its transaction."""
    forbidden = ENDS | DEFINES if engine.dialect.name in _COMMITS_IMPLICITLY else ENDS

    def admit(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        if isinstance(connection, SqlBranchConnection):
            connection.admit(statement, forbidden)

    event.listen(engine, "before_cursor_execute", admit)
