"""This process is a Spark driver: it does what lines on its standard input ask for
(`tests.xabridge.pipeline.environment`).

python -m tests.xabridge.pipeline.spark_driver <descriptor of the answers> <settings as JSON>
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.xabridge.pipeline import faults, queries
from xabridge import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Answers until its input ends."""
    answers = os.fdopen(int(sys.argv[1]), "w")
    settings: dict[str, str] = json.loads(sys.argv[2])
    spark = pipeline.session("test", settings.pop("spark.master", "local[2,4]"), settings)
    if faults.VARIABLE in os.environ:
        spark.dataSource.register(faults.FaultySource)
        spark.dataSource.register(faults.FaultySink)
    spark.sparkContext.setLogLevel(os.environ.get("XABRIDGE_SPARK_LOG", "OFF"))
    jvm: Any = spark._jvm
    java = jvm.java.lang.ProcessHandle.current().pid()
    if faults.VARIABLE in os.environ:
        Path(os.environ[faults.VARIABLE], "pids").write_text(f"{java} {os.getpid()}")
    answer(answers, {"java": java})
    for line in sys.stdin:
        answer(answers, call_resource(spark, json.loads(line)))
    spark.stop()


def call_resource(spark: SparkSession, request: dict[str, Any]) -> dict[str, Any]:
    """What the function of that name returns, or how it failed."""
    try:
        return {"result": getattr(queries, request["function"])(spark, **request["arguments"])}
    except Exception as error:  # noqa: BLE001 — whatever it is, the test hears of it
        traceback.print_exc()  # into the driver's own file, beside what Spark says
        return {"error": f"{type(error).__name__}: {error}"}


def answer(answers: Any, value: dict[str, Any]) -> None:
    """One line."""
    answers.write(json.dumps(value, default=str) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
