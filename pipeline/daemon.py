"""The process that Spark forks its Python workers from, with the core and what it needs imported: once, and not in each
of them. `pipeline.session` sets it; elsewhere: spark.python.daemon.module=pipeline.daemon.

Nothing that starts threads may be imported here (pyarrow, numpy): they would not be there in the workers.
"""

from __future__ import annotations

import sqlalchemy.dialects.postgresql.psycopg
from pyspark.daemon import manager

import pipeline.core.driver
import pipeline.core.task

__all__ = ["pipeline", "sqlalchemy"]

if __name__ == "__main__":
    manager()
