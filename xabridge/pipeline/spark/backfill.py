"""backfill(): writes rows that a pipeline has missed, and leaves out those that it has written.

The rows of a backfill may come from anywhere: files, a table, an archive. What a live query has written is known by the
option `once`, which both have, with the same table (`xabridge.pipeline.core.task.once_table`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.driver.open_pipeline import pipeline_errors
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.options import sink_options
from xabridge.pipeline.spark.once_shuffle import shuffled
from xabridge.pipeline.spark.running_query import use_session
from xabridge.pipeline.spark.task_writer import layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from xabridge.pipeline.core import Settings


def backfill(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Writes those of `rows` that were not written before, under one decision. If it is killed, do it again.
    PipelineError: the rows or the options do not fit, or the pipeline is that of a query."""
    use_session(rows.sparkSession)
    sink = sink_options(options)
    if sink.once is None:
        raise PipelineError(
            "backfill: set the options once and once_table, as the live query has them; otherwise rows that were "
            "written would be written again"
        )
    if rows.isStreaming:
        raise PipelineError("backfill: these rows are a stream: write it by writeStream, with the same options")
    layout(sink, {field.name: field.dataType.simpleString() for field in rows.schema.fields})
    _check_own(sink.settings)
    shuffled(rows, sink).write.format("xa").options(**options).mode("append").save()


def _check_own(settings: Settings) -> None:
    """PipelineError: the pipeline belongs to a streaming query, from which a job would take it away."""
    with pipeline_errors():
        _, ownership = LedgerOpener(settings.log, settings.pipeline, sleep=time.sleep).look("")
    if ownership.bound is not None:
        raise PipelineError(
            f"backfill: pipeline {settings.pipeline!r} belongs to query {ownership.bound.query}, and a backfill would "
            "take it away. Give the backfill a name of its own; it has the table of the option once_table in common "
            "with the query"
        )
