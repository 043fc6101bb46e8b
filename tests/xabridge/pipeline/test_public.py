"""These tests pin the public names of the package, and check that it can be imported without Spark."""

from __future__ import annotations

import subprocess
import sys

from xabridge import pipeline

PUBLIC = """
BatchRefused EpochGone PipelineError PipelineTaken epoch register run_jobs session
"""

WITHOUT = """
import sys
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
