"""MariaDB and MySQL as databases that keep decisions: what is different there.

InnoDB is the only engine of theirs that has transactions, so the tables for decisions are made with it. A reply to
COMMIT is durable with `innodb_flush_log_at_trx_commit = 1`, and, where the binary log is written, `sync_binlog = 1`:
after a crash InnoDB asks the binary log what was committed.

The transactions on the tables for decisions are READ COMMITTED, and delete by one key at a time. Under InnoDB's
default, REPEATABLE READ, a deletion also locks the gaps beside its rows, and with that the insertions of others. For a
list of keys InnoDB may read the whole table, and wait there for every transaction that is deciding.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from sqlalchemy import Connection, Engine

DIALECTS: Final = frozenset({"mysql", "mariadb"})
ISOLATION: Final = "READ COMMITTED"

_DURABILITY: Final = text("SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog")
_ENGINE: Final = text(
    "SELECT engine FROM information_schema.tables WHERE table_schema = :schema AND table_name = :table"
)


def lock_timeout(wait_s: float) -> str:
    """The statement that bounds how long the following ones wait for locks."""
    return f"SET SESSION innodb_lock_wait_timeout = {max(1, round(wait_s))}"


def weaknesses(connection: Connection) -> Iterator[tuple[str, str]]:
    """Settings of the server with which a crash of its machine can lose a decision, and what to do about each."""
    flush, log_bin, sync_binlog = connection.execute(_DURABILITY).one()
    if int(flush) != 1:
        yield f"innodb_flush_log_at_trx_commit is {flush}", "set it to 1"
    if int(log_bin) and int(sync_binlog) != 1:
        yield f"log_bin is on and sync_binlog is {sync_binlog}", "set sync_binlog to 1"


def kill_query(engine: Engine, driver: Any) -> None:
    """Ends the statement that a connection of the driver carries out, by another connection. Where that is not
    possible, the statement goes on."""
    thread_id = getattr(driver, "thread_id", None)
    if thread_id is None:
        return
    with suppress(SQLAlchemyError), engine.connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {int(thread_id())}")


def encode_password(settings: MutableMapping[str, Any]) -> None:
    """Encodes the password for PyMySQL, which would take Latin-1, where other clients take UTF-8."""
    for name in ("password", "passwd"):
        if isinstance(settings.get(name), str):
            settings[name] = settings[name].encode()


def other_engine(connection: Connection, schema: str, table: str) -> str | None:
    """The storage engine of a table, where it is another one than InnoDB."""
    engine = connection.execute(_ENGINE, {"schema": schema, "table": table}).scalar()
    return engine if isinstance(engine, str) and engine.upper() != "INNODB" else None
