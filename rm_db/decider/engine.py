"""Databases of any kind, as SQLAlchemy reaches them.

`parse_url` checks the URL, and `make_engine` makes an engine with a bounded pool.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from rm_db.address import DECIDER_PREFIX
from rm_db.decider import sqlite
from xa import Code, xa_error
from xa.sql.sqlite import is_in_memory
from xa.sql.url import database_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from sqlalchemy import URL, Dialect, Engine

    from rm_db.address import Address

TABLE_CONNECTIONS: Final = 2
REPLY_S: Final = 60.0
MAX_REPLY: Final = 64 << 20


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


def make_engine(
    url: URL,
    size: int,
    wait_s: float,
    reply_s: float = REPLY_S,
    max_reply: int = MAX_REPLY,
    *,
    plain_without_tls: bool = False,
    **options: Any,
) -> Engine:
    """An engine with a bounded pool, whose connections are tested before they are used. XAER_INVAL: there can't be
    one. Over psycopg and PyMySQL a statement takes at most `reply_s`, and its reply has at most `max_reply` octets,
    unless it is the application's."""
    try:
        engine = create_engine(
            url, pool_size=size, max_overflow=0, pool_timeout=wait_s, pool_pre_ping=True, pool_use_lifo=True, **options
        )
    except (ModuleNotFoundError, TypeError) as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    if engine.dialect.name == "sqlite":
        sqlite.listen(engine, wait_s)
    if engine.dialect.driver == "pymysql":
        from xa.sql import pymysql_connection  # noqa: PLC0415 — PyMySQL is an extra

        if pymysql_connection.UNSAFE & url.query.keys():
            names = ", ".join(sorted(pymysql_connection.UNSAFE & url.query.keys()))
            raise xa_error(Code.XAER_INVAL, f"open: {names} can't be set: {pymysql_connection.WHY_UNSAFE}")
        pymysql_connection.bound(engine, reply_s, max_reply, plain_without_tls=plain_without_tls)
    elif engine.dialect.driver == "psycopg" and "creator" not in options:
        from xa.sql import psycopg_connection  # noqa: PLC0415 — loads psycopg, which others don't need

        psycopg_connection.bound(engine, reply_s, max_reply, plain_without_tls=plain_without_tls)
    return engine


def unlimited(driver: object) -> AbstractContextManager[None]:
    """Around statements of the application on this driver's connection: they may take as long as they like."""
    entered: Callable[[], AbstractContextManager[None]] = getattr(driver, "unlimited", nullcontext)
    return entered()
