"""SqlStore: the message store in SQLite or PostgreSQL. Importing it loads SQLAlchemy."""

from dtx.store.sql.sqlite import compact
from dtx.store.sql.store import SqlStore

__all__ = ["SqlStore", "compact"]
