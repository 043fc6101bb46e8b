"""Exactly-once pipelines on Spark Structured Streaming.

What needs PySpark is imported when it is first used, so that everything else works without it.
"""

from xabridge.pipeline.core import BatchRefused, EpochGone, PipelineError, PipelineTaken
from xabridge.pipeline.entry_points import backfill, epoch, infer_schema, register, run_jobs, session

__all__ = [
    "BatchRefused",
    "EpochGone",
    "PipelineError",
    "PipelineTaken",
    "backfill",
    "epoch",
    "infer_schema",
    "register",
    "run_jobs",
    "session",
]
