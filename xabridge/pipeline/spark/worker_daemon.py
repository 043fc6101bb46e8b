"""The process from which Spark forks its Python workers. It imports the core and what the core needs once, so that no
worker has to. `xabridge.pipeline.entry_points` sets it; a session of your own sets
spark.python.daemon.module=xabridge.pipeline.spark.worker_daemon.

Nothing that starts threads may be imported here (pyarrow, numpy): they would not be there in the workers.
"""

from __future__ import annotations

import sqlalchemy.dialects.postgresql.psycopg
from pyspark.daemon import manager

import rm_amqp.resource
import rm_db.postgres.resource_manager
import xabridge.pipeline.core.driver.sink_coordinator
import xabridge.pipeline.core.driver.source_planner
import xabridge.pipeline.core.driver.upsert_branch
import xabridge.pipeline.core.task.sink_task
import xabridge.pipeline.core.task.source_task

__all__ = ["rm_amqp", "rm_db", "sqlalchemy", "xabridge"]

if __name__ == "__main__":
    manager()
