"""The benchmark's Spark application: `python -m bench.pipelines.job MASTER`. Each line on stdin is a job, as JSON; its
answer, the batches that it took, is a line on stdout. One session runs them all, so that all use the same warm JVM.

Every job takes messages from a queue, makes a number and a text of each body, and writes a row and sends a message for
it: `exact` with the formats `amqp` and `xa`, `lean` and `proton` at least once (`bench.pipelines.at_least_once`) with
one or the other client. `spark` has a source that makes rows of nothing and a sink that drops them: it measures what
Spark itself needs for a batch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from xabridge.demo.pipeline.cluster import end
from xabridge.testing.broker import cpu_s

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

Kind = Literal["exact", "lean", "proton", "spark"]
TABLE: Final = "copied"
TRANSFORM: Final = ("CAST(substring(text, 1, 8) AS bigint) AS number", "upper(text) AS content", "upper(text) AS body")


@dataclass(frozen=True, slots=True)
class Job:
    """One run of a query, until everything there is was taken: `rows` a batch. `batches` counts for `spark` only. With
    `tasks` the rows are shuffled to so many tasks, which write them. With a `second` broker, which `exact` can have,
    half of the messages are there, and half of what is sent goes there."""

    kind: Kind
    queue: str
    target: str
    rows: int
    partitions: int
    broker: str
    database: str
    log: str
    checkpoint: str
    batches: int = 0
    tasks: int = 0
    second: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one: rows and milliseconds of each batch."""

    rows: tuple[int, ...]
    ms: tuple[int, ...]

    @property
    def rows_per_s(self) -> float:
        """Over all batches."""
        return sum(self.rows) / sum(self.ms) * 1000


def options_of(job: Job) -> tuple[str, dict[str, str], str, dict[str, str]]:
    """Format and options of its source, format and options of its sink."""
    source = {"queue": job.queue, "partitions": str(job.partitions)}
    if job.kind == "exact":
        resources = {"resource.broker": f"amqp://{job.broker}", "resource.shop": job.database}
        shared = {"pipeline": job.queue, "log": job.log, **resources}
        sink = {**shared, "table": TABLE, "columns": "number, content", "address": job.target}
        if job.second:
            for options in (source, shared, sink):
                options["resource.second"] = f"amqp://{job.second}"
            source["queue"] = f"broker:{job.queue}, second:{job.queue}"
            sink["address"] = f"broker:{job.target}, second:{job.target}"
            sink |= {"shards": "2", "shard_key": "number"}
        return "amqp", {**shared, **source, "maxRowsPerBatch": str(job.rows)}, "xa", sink

    if job.kind in ("lean", "proton"):
        plain = {"client": job.kind, "broker": job.broker}
        sink = {**plain, "database": job.database, "table": TABLE, "address": job.target}
        return "plain", {**source, **plain, "rows": str(job.rows)}, "plain", sink
    return "nothing", {**source, "rows": str(job.rows), "batches": str(job.batches)}, "nothing", {}


def run(spark: SparkSession, job: Job) -> Run:
    """Runs it to its end."""
    source, options, sink, sink_options = options_of(job)
    rows = spark.readStream.format(source).options(**options).load().selectExpr("CAST(body AS string) AS text")
    made = rows.selectExpr(*TRANSFORM)
    writing = (made.repartition(job.tasks) if job.tasks else made).writeStream.format(sink).options(**sink_options)
    query = writing.option("checkpointLocation", job.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    return Run(
        tuple(progress.numInputRows for progress in batches),
        tuple(progress.durationMs["triggerExecution"] for progress in batches),
    )


def main(master: str) -> None:
    """Until stdin ends."""
    from bench.pipelines.at_least_once import PlainSource  # noqa: PLC0415
    from bench.pipelines.nothing import Nothing  # noqa: PLC0415
    from xabridge import pipeline  # noqa: PLC0415

    spark = pipeline.session("xabridge-bench", master, {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    for source in (PlainSource, Nothing):
        spark.dataSource.register(source)
    for line in sys.stdin:
        print(json.dumps(asdict(run(spark, Job(**json.loads(line))))), flush=True)
    spark.stop()


class Spark:
    """The application in a process of its own, on `master`."""

    def __init__(self, folder: Path, master: str) -> None:
        self._errors = folder / "spark.err"
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603 — our own command
                [sys.executable, "-m", "bench.pipelines.job", master],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            )  # fmt: skip

    def run(self, job: Job) -> Run:
        """Runs a job; RuntimeError where it failed."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("Spark has no pipes")
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                figures: dict[str, Any] = json.loads(line)
                return Run(tuple(figures["rows"]), tuple(figures["ms"]))
        raise RuntimeError(f"{job} failed:\n{self._errors.read_text(errors='replace')[-4000:]}")

    def cpu_s(self) -> float:
        """The processor time of the application, its JVM and its Python workers."""
        return cpu_s(self._process.pid)

    def close(self) -> None:
        """Ends it, with its JVM."""
        end(self._process.pid)
        self._process.communicate()


if __name__ == "__main__":
    main(sys.argv[1])
