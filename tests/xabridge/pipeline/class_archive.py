"""This module keeps an archive of the classes that a driver of Spark has loaded, for all later drivers, executors and
workers: they need not read and check them again, which takes a driver half of its start.

It is made by a driver of its own, once for each combination of Java and PySpark.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyspark

from xabridge.pipeline.java import find_java

ARCHIVES: Final = Path(__file__).parents[3] / ".cache" / "spark"
JARS: Final = Path(pyspark.__file__).parent / "jars"
OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For processes that live for seconds, in which it doesn't pay to compile and to verify what they run. The archive is
only taken by a Java that has the same."""

PROGRAM: Final = """
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

folder, options = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
settings = {"ui.enabled": "false", "sql.shuffle.partitions": "1", "local.dir": folder, "sql.warehouse.dir": folder}
for name, value in settings.items():
    builder = builder.config(f"spark.{name}", value)
spark = builder.getOrCreate()
double = f.udf(lambda number: 2 * number, "long")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load().select(double("value").alias("n"))
counted = rows.groupBy("n").count().writeStream.format("noop").outputMode("complete")
query = counted.option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="0 seconds").start()
while not query.recentProgress:
    query.awaitTermination(1)
query.stop()
spark.stop()
"""


def java_options() -> str:
    """The options of a Java of Spark's that lives for seconds."""
    home = find_java()
    parts = [str(home), str((home / "lib" / "modules").stat().st_mtime), str(JARS), OPTIONS, PROGRAM]
    parts += sorted(f"{jar.name} {jar.stat().st_mtime}" for jar in JARS.iterdir())
    folder = ARCHIVES / hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "classes.jsa"
    with (folder / ".lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(home, archive)
    return f"{OPTIONS} -XX:SharedArchiveFile={archive}"


def _make(home: Path, archive: Path) -> None:
    made = archive.with_suffix(".new")
    options = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
    with TemporaryDirectory() as own:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, own, options],
            env=os.environ | {"JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-6000:]
    made.rename(archive)
