"""This module has the queries of the tests, which run inside of the driver: each takes numbered messages and makes rows
or messages of them.

A message's body is its number; its application property `product` is one of seven, and `creation_time` is the number in
seconds, from a while after 1970 on.
"""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from xabridge import pipeline
from xabridge.pipeline.spark.registration import LISTENER


def numbered(rows: DataFrame) -> DataFrame:
    """Numbers, products and bodies."""
    number = f.col("body").cast("string").cast("long")
    return rows.select(
        number.alias("id"),
        f.concat(f.lit("v"), f.col("body").cast("string")).alias("text"),
        f.col("application_properties")["product"].alias("product"),
        "creation_time",
        "body",
    )


def copied(rows: DataFrame) -> DataFrame:
    """Each message is a row and a message."""
    return numbered(rows).select("id", "text", "body")


def newest(rows: DataFrame) -> DataFrame:
    """Each message is the state of its product, as a row and a message; and of another one, under the same id."""
    product = f.col("application_properties")["product"]
    products = f.explode(f.array(product, f.lit("same id"))).alias("product")
    return rows.select(products, f.col("body").cast("string").cast("long").alias("n"), "body", "message_id")


def copied_rows(rows: DataFrame) -> DataFrame:
    """Each message is a row."""
    return numbered(rows).select("id", "text")


def doubled(rows: DataFrame) -> DataFrame:
    """Each message is two rows: the stream is used twice."""
    return copied_rows(rows).union(copied_rows(rows))


def routed(rows: DataFrame) -> DataFrame:
    """Each message is a row of one of two tables, and a message at one of two addresses; one in three goes by the
    default."""
    numbers = numbered(rows).select("id", "text", "body")
    table = f.when(f.col("id") % 3 == 0, None).when(f.col("id") % 3 == 1, "maria:copies").otherwise("shop:rows")
    return numbers.withColumn("kind", table).withColumn("to", f.concat(f.lit("out"), f.col("id") % 2))


def totals(rows: DataFrame) -> DataFrame:
    """Sums and counts by product: a stateful query."""
    return numbered(rows).groupBy("product").agg(f.sum("id").alias("total"), f.count("*").alias("n"))


def poisoned(rows: DataFrame) -> DataFrame:
    """A function that fails on one message."""

    @f.udf("long")
    def checked(number: int) -> int:
        if number == 37:
            raise ValueError("poison")
        return number

    return copied_rows(rows).withColumn("id", checked("id"))


def windows(rows: DataFrame) -> DataFrame:
    """Counts of ten seconds each, when they are complete: what a batch without data writes."""
    late = numbered(rows).withWatermark("creation_time", "10 seconds")
    counted = late.groupBy(f.window("creation_time", "10 seconds")).agg(f.count("*").alias("n"))
    return counted.select(f.col("window.start").cast("long").alias("second"), "n")


def stream(
    spark: SparkSession,
    query: str,
    source: list[dict[str, str]],
    sink: dict[str, str],
    checkpoint: str,
    mode: str = "append",
    restarts: int = 0,
    **trigger: Any,
) -> dict[str, Any]:
    """Runs a query until it has read everything, of one source or of several, which are united; one that fails is
    started again, at most `restarts` times."""
    errors: list[str] = []
    how = trigger or {"availableNow": True}
    while True:
        try:
            read = [spark.readStream.format("amqp").options(**each).load() for each in source]
            rows = globals()[query](functools.reduce(DataFrame.union, read))
            writer = rows.writeStream.format("xa").options(**sink).outputMode(mode).trigger(**how)
            running = writer.option("checkpointLocation", checkpoint).start()
            running.awaitTermination()
        except (StreamingQueryException, pipeline.PipelineError) as error:  # the latter: it could not even be started
            errors.append(str(error))
            if len(errors) > restarts:
                raise

            if isinstance(error, pipeline.PipelineError):
                time.sleep(1.0)  # a database that was killed takes its time to recover
            continue
        return {"errors": errors, "batches": running.lastProgress and running.lastProgress["batchId"]}


def foreach(
    spark: SparkSession, source: dict[str, str], shared: dict[str, str], checkpoint: str, restarts: int = 0
) -> dict[str, Any]:
    """Three DataFrames of each micro-batch under one decision."""
    errors: list[str] = []

    def write(rows: DataFrame, batch_id: int) -> None:
        with pipeline.epoch(rows.sparkSession, batch_id, shared) as epoch:
            epoch.write(rows.select("id", "text"), table="shop:rows")
            epoch.write(
                rows.groupBy("product").agg(f.count("*").alias("n")),
                table="shop:counts",
                key="product",
                update="n = counts.n + excluded.n",
            )
            epoch.write(rows.select("body"), address="broker:out")

    while True:
        rows = numbered(spark.readStream.format("amqp").options(**source).load())
        running = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        try:
            running.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            errors.append(str(error))
            if len(errors) > restarts:
                raise
            continue
        return {"errors": errors}


def with_files(
    spark: SparkSession, folder: str, sink: dict[str, str], checkpoint: str, source: dict[str, str] | None = None
) -> None:
    """Each line of the files in a folder is a row, and so is each message, where a source of ours is read as well."""
    rows = spark.readStream.text(folder).selectExpr("CAST(value AS bigint) AS id", "concat('v', value) AS text")
    if source is not None:
        rows = rows.union(copied_rows(spark.readStream.format("amqp").options(**source).load()))
    writer = rows.writeStream.format("xa").options(**sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def jobs(spark: SparkSession, source: dict[str, str], sink: dict[str, str]) -> int:
    """Without streaming."""
    return pipeline.run_jobs(spark, source, sink, copied)


def newest_filled(spark: SparkSession, sink: dict[str, str], numbers: int) -> str:
    """A backfill of what `newest` makes of so many numbers, from nine partitions, by another thread; and how the
    pipeline of the live query is refused."""
    columns = "concat('p', id % 7) AS product", "id AS n", "CAST(CAST(id AS string) AS binary) AS body"
    rows = spark.range(0, numbers, numPartitions=9).selectExpr(*columns, "concat('m', id) AS message_id")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipeline.backfill, rows, {**sink, "pipeline": "backfill"}).result()
    try:
        pipeline.backfill(rows, sink)
    except pipeline.PipelineError as error:
        return str(error)
    return "it was not refused"


def built(spark: SparkSession, source: dict[str, str]) -> list[str]:
    """The columns of a source: what is wrong with its options is told here."""
    return spark.readStream.format("amqp").options(**source).load().columns


def taken(spark: SparkSession, source: dict[str, str]) -> list[dict[str, Any]]:
    """What a batch read shows; nothing is decided."""
    return [row.asDict(recursive=True) for row in spark.read.format("amqp").options(**source).load().collect()]


def into_lake(
    spark: SparkSession, schema: str, columns: str, source: dict[str, str], sink: dict[str, str], checkpoint: str
) -> None:
    """JSON bodies into a Delta table, and bad ones to an address, with the reason as a property."""
    rows = spark.readStream.format("amqp").options(**source, body_schema=schema, bad_column="oops").load()
    written = rows.where("oops IS NULL").selectExpr(*columns.split("; "), "CAST(NULL AS BINARY) AS body")
    bad = rows.where("oops IS NOT NULL").selectExpr(
        "oops.body AS body", "struct(oops.reason AS reason, delivery_count AS count) AS application_properties"
    )
    running = written.unionByName(bad, allowMissingColumns=True).where("kind IS NOT NULL OR body IS NOT NULL")
    writer = running.writeStream.format("xa").options(**sink).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def misused(spark: SparkSession, how: str, source: dict[str, str], shared: dict[str, str], checkpoint: str) -> str:
    """How a query fails that writes in `foreachBatch` what it must not."""

    def write(rows: DataFrame, batch_id: int) -> None:
        session = rows.sparkSession
        if how == "epoch of another pipeline":
            with pipeline.epoch(session, batch_id, {**shared, "pipeline": "another"}) as epoch:
                epoch.write(rows, table="shop:rows")
        if how == "two epochs":
            for _ in range(2):
                with pipeline.epoch(session, batch_id, shared) as epoch:
                    epoch.write(rows, table="shop:rows")
        if how == "job that writes":
            rows.write.format("xa").options(**shared, table="shop:rows").mode("append").save()
        if how == "job that reads":
            session.read.format("amqp").options(**source).load().collect()

    rows = copied_rows(spark.readStream.format("amqp").options(**source).load())
    if how == "job beside the stream":
        rows = rows.join(copied_rows(spark.read.format("amqp").options(**source).load()).select("id"), "id")
    running = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    if how == "unannounced":
        spark.streams.removeListener(getattr(spark, LISTENER))
    try:
        running.trigger(availableNow=True).start().awaitTermination()
    except StreamingQueryException as error:
        return str(error)
    finally:
        if how == "unannounced":
            spark.streams.addListener(getattr(spark, LISTENER))
    return "it was not refused"
