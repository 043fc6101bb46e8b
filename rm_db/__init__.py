"""Database resource managers: PostgreSQL, MariaDB and MySQL in two phases, and any SQLAlchemy database as the one that
decides.

A name is imported when it is first used: `postgresql://` needs nothing of the databases that decide.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rm_db.decider.resource_manager import DecidingDatabase, deciding_database
    from rm_db.mariadb.resource_manager import MariaResource
    from rm_db.postgres.prepared_transactions import PreparedTransaction
    from rm_db.postgres.resource_manager import PostgresResource
    from rm_db.sessions.connection import BranchConnection
    from rm_db.sessions.engine import take_part
    from rm_db.sessions.mariadb import MariaBranchConnection
    from rm_db.sessions.postgres import PostgresBranchConnection

__all__ = [
    "BranchConnection",
    "DecidingDatabase",
    "MariaBranchConnection",
    "MariaResource",
    "PostgresBranchConnection",
    "PostgresResource",
    "PreparedTransaction",
    "deciding_database",
    "take_part",
]

_HOME: Final = {
    "BranchConnection": "rm_db.sessions.connection",
    "DecidingDatabase": "rm_db.decider.resource_manager",
    "MariaBranchConnection": "rm_db.sessions.mariadb",
    "MariaResource": "rm_db.mariadb.resource_manager",
    "PostgresBranchConnection": "rm_db.sessions.postgres",
    "PostgresResource": "rm_db.postgres.resource_manager",
    "PreparedTransaction": "rm_db.postgres.prepared_transactions",
    "deciding_database": "rm_db.decider.resource_manager",
    "take_part": "rm_db.sessions.engine",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:  # not `xa.lazy_names`, because to import this package loads nothing else
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
