"""The contract suite for deciders, over DecidingDatabase on PostgreSQL and on SQLite."""
