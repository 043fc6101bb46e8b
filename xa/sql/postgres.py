"""The settings of PostgreSQL under which a commit is durable when it is answered.

    fsync               the server forces its files; off, a crash of its machine may lose or damage anything
    full_page_writes    a page that was half written at a crash can be restored
    synchronous_commit  the answer to a commit comes after its force; each session and transaction may set it

The first two are the administrator's, so they are checked. The last one is ours to set: `force_commits` for a session,
`force_commit` for a transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

DRIVER: Final = "postgresql+psycopg"
"""The dialect and driver that this product uses for PostgreSQL."""

_FORCE: Final = text(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)
_LOCK_TIMEOUT: Final = text("SELECT set_config('lock_timeout', :wait, true)")


def settings_off(connection: Connection, *names: str) -> Iterator[str]:
    """Those of the settings `names` that are off."""
    for name in names:
        if connection.exec_driver_sql(f"SHOW {name}").scalar_one() == "off":
            yield name


def force_commits(connection: Connection) -> None:
    """What this session commits is durable when the commit is answered."""
    connection.exec_driver_sql("SET synchronous_commit = on")


def force_commit(connection: Connection) -> None:
    """The present transaction is durable when its commit is answered. Levels other than off stay: each of them waits at
    least for this server's disk."""
    connection.execute(_FORCE)


def limit_lock_waits(connection: Connection, wait_s: float) -> None:
    """The statements of the present transaction wait at most this long for each lock."""
    connection.execute(_LOCK_TIMEOUT, {"wait": f"{max(1, int(wait_s * 1000))}ms"})
