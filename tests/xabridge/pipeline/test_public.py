"""These tests pin the public names of the package, and check that it can be imported without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xabridge import pipeline

PUBLIC = """
BatchRefused EpochGone PipelineError PipelineTaken backfill epoch infer_schema register run_jobs session
"""

WITHOUT = """
import sys

import pytest
sys.modules["pyspark"] = sys.modules["pyarrow"] = None
import xabridge.pipeline, xabridge.pipeline.core.driver.sink_coordinator, xabridge.pipeline.core.task.sink_task
import xabridge.pipeline.core.ledger.status, xabridge.pipeline.options
"""


def test_the_public_names() -> None:
    assert sorted(pipeline.__all__) == sorted(PUBLIC.split())
    assert all(hasattr(pipeline, name) for name in pipeline.__all__)


def test_it_is_imported_without_spark() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("format_", ["amqp_format", "xa_format"])
def test_what_plans_loads_neither_clients_nor_the_orm(format_: str) -> None:
    pytest.importorskip("pyspark")
    code = f"import sys, xabridge.pipeline.spark.{format_}; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "xabridge.pipeline.core.driver.source_planner" in told or "xabridge.pipeline.spark.xa_format" in told
    assert not {"sqlalchemy.orm", "psycopg", "rm_amqp.resource", "rm_db.postgres", "rm_db.decider"} & set(told)


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:15002")
    with pytest.raises(pipeline.PipelineError, match="a pipeline needs a driver of its own"):
        pipeline.session("remote")
