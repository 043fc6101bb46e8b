"""The demo's pipeline, as an application that a process of its own runs: `python -m
xabridge.demo.pipeline.application`.

Orders come from a queue. Each becomes a row of `enriched`, adds to the `revenue` of its product and window, and is
alerted when it is large: three DataFrames under the one decision of their micro-batch. It prints lines of JSON on
stdout: `ready`, `batch` after each micro-batch, `stopped`. `xabridge.demo.pipeline.driver` starts and kills it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f

from xabridge import pipeline
from xabridge.demo.pipeline.driver import NAME
from xabridge.demo.pipeline.orders import ALERTS, LARGE_CENTS, ORDERS, WINDOW_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_S: Final = 0.05
FIELDS: Final = "number bigint, product string, cents bigint, placed bigint"


def start(spark: SparkSession, config: Path, checkpoint: Path, rows: int) -> StreamingQuery:
    """The query: `rows` orders a micro-batch at most."""
    options = {"pipeline": NAME, "config": str(config)}
    source = {**options, "queue": ORDERS, "body": "text", "maxRowsPerBatch": str(rows)}
    orders = (
        spark.readStream.format("amqp")
        .options(**source)
        .load()
        .selectExpr(f"from_json(body, '{FIELDS}') AS parsed")
        .selectExpr("parsed.number", "parsed.product", "parsed.cents", "timestamp_seconds(parsed.placed) AS placed")
    )

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        with pipeline.epoch(batch.sparkSession, number, options) as epoch:
            epoch.write(batch, table="enriched")
            grouped = batch.groupBy(f.window("placed", f"{WINDOW_S} seconds").alias("period"), "product")
            revenue = grouped.agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
            epoch.write(
                revenue.withColumn("period", f.col("period.start")),
                table="revenue",
                key="period, product",
                update="orders = revenue.orders + excluded.orders, cents = revenue.cents + excluded.cents",
            )
            large = batch.where(f"cents >= {LARGE_CENTS}")
            epoch.write(large.selectExpr("to_json(struct(number, product, cents)) AS body"), address=ALERTS)
        batch.unpersist()

    return orders.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m xabridge.demo.pipeline.application")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--master", required=True)
    arguments = parser.parse_args(argv)
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    spark = pipeline.session("xabridge-demo", arguments.master, {"spark.driver.host": "127.0.0.1"})
    spark.sparkContext.setLogLevel("ERROR")
    query = start(spark, arguments.config, arguments.checkpoint, arguments.rows)
    _tell("ready")
    seen = -1
    while not stopped.wait(LOOK_S) and query.isActive:
        progress = query.lastProgress
        if progress is not None and progress.batchId > seen and progress.numInputRows:
            seen = progress.batchId
            _tell("batch", batch=seen, rows=progress.numInputRows, ms=progress.durationMs.get("triggerExecution"))

    failure = query.exception()
    if failure is not None:
        print(failure, file=sys.stderr)
    query.stop()
    spark.stop()
    _tell("stopped")
    return 0 if failure is None else 1


def _tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
