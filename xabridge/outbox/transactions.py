"""What an outbox and an inbox need of the connection or session that they are given: a transaction.

Where every statement commits itself (autocommit), a message would leave although the work beside it was not done, and
a message would count as handled before it is.

SQLAlchemy's ORM and asyncio are not imported for it, since not everybody has or needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

if TYPE_CHECKING:
    from sqlalchemy import Table


def check(where: Any, table: Table) -> None:
    """ValueError: each statement of the connection or session commits itself. A session may have several databases;
    `table` is in the one that is meant."""
    if not isinstance(where, Connection) and hasattr(where, "connection"):
        where = where.connection(bind_arguments={"clause": table})  # a session's
    if isinstance(where, Connection):
        _check(where)


async def check_async(where: Any, table: Table) -> None:
    """Does what `check` does, with an asyncio connection or session."""
    if hasattr(where, "sync_session"):
        where = await where.connection(bind_arguments={"clause": table})
    connection = getattr(where, "sync_connection", None)
    if isinstance(connection, Connection):
        _check(connection)


def _check(connection: Connection) -> None:
    if not getattr(connection, "takes_part", False) and _commits_itself(connection):
        raise ValueError(
            "the connection is in autocommit: each of its statements is committed at once, and outbox and inbox need "
            "the transaction of the work beside them. Use an engine without isolation_level='AUTOCOMMIT'"
        )


def _commits_itself(connection: Connection) -> bool:
    level = connection.get_execution_options().get(
        "isolation_level", getattr(connection.dialect, "_on_connect_isolation_level", None)
    )
    if level is not None:
        return str(level).upper() == "AUTOCOMMIT"
    driver: Any = connection.connection.dbapi_connection
    asked = getattr(driver, "get_autocommit", None)  # PyMySQL's kind of driver
    return bool(asked()) if asked is not None else getattr(driver, "autocommit", False) is True
