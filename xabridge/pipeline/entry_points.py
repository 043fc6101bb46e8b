"""The package's functions for Spark. What needs PySpark (`xabridge.pipeline.spark`) is imported when one of them is
called, so that a message says what is missing where PySpark or Java is not installed."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.queue_sample import sampled_bodies
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.java import check_spark, use_java
from xabridge.pipeline.json_inference import inferred_ddl, read_body
from xabridge.pipeline.options import source_options
from xabridge.pipeline.spark_master import chosen_master, is_local, submitted_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from xabridge.pipeline.spark.epoch import Epoch

logger: Final = logging.getLogger("xabridge.pipeline")

SAMPLE: Final = 1000
SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "xabridge.pipeline.spark.worker_daemon",
}
"""The settings of a session of ours that differ from Spark's defaults: it is a small one, on one machine."""


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session with the formats `amqp` and `xa`. An application that makes its own session calls `register`.
    Without a `master` it has that of `spark-submit` or of `spark-defaults.conf`, and otherwise runs in this process
    (`local[2,4]`). Its Spark UI shows each query on the page Structured Streaming; with a local master it listens on
    the loopback address only. `settings={"spark.ui.enabled": "false"}` switches it off. PipelineError: PySpark or Java
    is missing, or spark-submit has set another master."""
    if os.environ.get("SPARK_REMOTE"):
        raise PipelineError(
            "SPARK_REMOTE is set, so this would be a session of Spark Connect, whose driver is somewhere else: a "
            "pipeline needs a driver of its own. Unset it"
        )
    check_spark()
    use_java()
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 — only where it is wanted
    from pyspark.sql import SparkSession  # noqa: PLC0415 — as above

    submitted = submitted_settings()
    master = chosen_master(
        master, None if submitted is None else submitted.get("spark.master"), os.environ, Path(_find_spark_home())
    )
    if is_local(master):  # Spark's own default is every address, without a login
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # what is on PATH may be another Python

    builder = SparkSession.builder.appName(name).master(master)
    ours = {key: value for key, value in SETTINGS.items() if key not in (submitted or {})}
    for key, value in {**ours, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Makes the formats `amqp` and `xa` known to `spark`. A thread that writes `xa` without streaming calls it itself:
    Spark looks for formats in the session of the thread, and a new thread has none."""
    check_spark()
    from xabridge.pipeline.spark.registration import register as make_known  # noqa: PLC0415 — needs PySpark

    make_known(spark)


def epoch(spark: SparkSession, batch_id: int, options: Mapping[str, str]) -> Epoch:
    """The writes of one micro-batch of `foreachBatch`, under one decision: see `xabridge.pipeline.spark.epoch.Epoch`.
    `options` name the pipeline, its log and resources (`xabridge.pipeline.options.SHARED`)."""
    check_spark()
    from xabridge.pipeline.spark.epoch import epoch as begin  # noqa: PLC0415 — needs PySpark

    return begin(spark, batch_id, options)


def infer_schema(options: Mapping[str, str], sample: int = SAMPLE) -> str:
    """The columns of the JSON bodies that wait in the queues of a source, as DDL for its option `body_schema`: look at
    it, and write it down. `options` are those of the format `amqp`. At most `sample` messages are looked at, and none
    is taken. PipelineError: no body is a JSON object, or a field is of several kinds."""
    given = source_options({name: value for name, value in options.items() if name.lower() != "body_schema"})
    resources = Resources()
    try:
        bodies = sampled_bodies(given.settings, given.source, sample, resources)
    finally:
        resources.close()
    read = []
    for body in bodies:
        with suppress(ValueError):
            read.append(read_body(body))

    if not read:
        raise PipelineError(f"{given.source}: of {len(bodies)} messages that wait, none has a JSON object as its body")
    if len(read) < len(bodies):
        logger.warning("%s: %d of %d messages are no JSON objects", given.source, len(bodies) - len(read), len(bodies))
    try:
        return inferred_ddl(read)
    except ValueError as error:
        raise PipelineError(f"{given.source}: {error}: write body_schema by hand, or read the body as text") from error


def backfill(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Writes rows that a pipeline has missed, and none that it has written: see
    `xabridge.pipeline.spark.backfill.backfill`."""
    check_spark()
    from xabridge.pipeline.spark.backfill import backfill as write  # noqa: PLC0415 — needs PySpark

    write(rows, options)


def run_jobs(
    spark: SparkSession,
    source: Mapping[str, str],
    sink: Mapping[str, str],
    transform: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> int:
    """Jobs without streaming, one after the other: see `xabridge.pipeline.spark.jobs.run_jobs`."""
    check_spark()
    from xabridge.pipeline.spark.jobs import run_jobs as run  # noqa: PLC0415 — needs PySpark

    return run(spark, source, sink, transform)
