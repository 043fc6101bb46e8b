"""Database resource managers: PostgreSQL in two phases, and any SQLAlchemy database as the one that decides."""

from rm_db.decider.resource_manager import DecidingDatabase, deciding_database
from rm_db.postgres.prepared_transactions import PreparedTransaction
from rm_db.postgres.resource_manager import PostgresResource
from rm_db.sessions.connection import BranchConnection
from rm_db.sessions.engine import take_part
from rm_db.sessions.postgres import PostgresBranchConnection

__all__ = [
    "BranchConnection",
    "DecidingDatabase",
    "PostgresBranchConnection",
    "PostgresResource",
    "PreparedTransaction",
    "deciding_database",
    "take_part",
]
