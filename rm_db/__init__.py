"""Database resource managers: PostgreSQL in two phases, and any SQLAlchemy database as the one that decides."""

from rm_db.deciding import DecidingDatabase, deciding_database
from rm_db.engines import take_part
from rm_db.postgres import PostgresResource, PreparedTransaction

__all__ = ["DecidingDatabase", "PostgresResource", "PreparedTransaction", "deciding_database", "take_part"]
