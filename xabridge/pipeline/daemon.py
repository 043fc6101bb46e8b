"""The process that Spark forks its Python workers from, with the core and what it needs imported: once, and not in each
of them. `xabridge.pipeline.session` sets it; elsewhere: spark.python.daemon.module=xabridge.pipeline.daemon.

Nothing that starts threads may be imported here (pyarrow, numpy): they would not be there in the workers.
"""

from __future__ import annotations

import sqlalchemy.dialects.postgresql.psycopg
from pyspark.daemon import manager

import xabridge.pipeline.core.driver
import xabridge.pipeline.core.task

__all__ = ["sqlalchemy", "xabridge"]

if __name__ == "__main__":
    manager()
