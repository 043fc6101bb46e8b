"""These tests pin the public names of the package, and check that it can be imported without Spark."""

from __future__ import annotations

import pytest

from tests.programs import check_exports, output_of
from xabridge import pipeline

PUBLIC = """
BatchRefused EpochGone PipelineError PipelineTaken backfill epoch infer_schema register run_jobs session
"""
IMPORTS = """
import sys

sys.modules["pyspark"] = sys.modules["pyarrow"] = None
import xabridge.pipeline, xabridge.pipeline.core.driver.sink_coordinator, xabridge.pipeline.core.ledger.status
import xabridge.pipeline.options
del sys.modules["pyspark"], sys.modules["pyarrow"]
import xabridge.pipeline.spark.amqp_format, xabridge.pipeline.spark.xa_format
print(*sys.modules)
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
import xabridge.pipeline.core.task.sink_task
"""


def test_the_public_names() -> None:
    check_exports(pipeline, PUBLIC)


@pytest.mark.slow
def test_it_is_imported_without_spark_and_what_plans_loads_neither_clients_nor_the_orm() -> None:
    told = set(output_of(IMPORTS).split())
    assert {"pyspark", "xabridge.pipeline.core.driver.source_planner", "xabridge.pipeline.spark.xa_format"} <= told
    assert not {"sqlalchemy.orm", "psycopg", "rm_amqp.resource", "rm_db.postgres", "rm_db.decider"} & told


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(pipeline.PipelineError, match="a pipeline needs a driver of its own"):
        pipeline.session("remote")
