"""`python -m bench start` measures what a process spends on importing, in seconds of its processor time.

Each figure is the lowest of several fresh interpreters, because other load on the machine disturbs the lowest least.

xabridge_s         `import xabridge`, and the names that every application uses: TransactionManager, Message, RolledBack
postgres_s         the resource manager for postgresql://
amqp_s             the resource manager for amqp://
source_planner_s   what Spark imports of ours to plan a read: `xabridge.pipeline.spark.amqp_format`
sink_planner_s     what Spark imports of ours to plan a write: `xabridge.pipeline.spark.xa_format`

What Spark's own workers import anyway (pyspark, pyarrow) is imported before the clock of the planners starts. They are
left out where PySpark is not installed.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import Any, Final

SUMMARY: Final = "what importing the packages costs a process that starts"

_SPARK: Final = "import pyspark.sql.datasource, pyarrow"
_FIGURES: Final = {
    "xabridge_s": ("pass", "from xabridge import Message, RolledBack, TransactionManager"),
    "postgres_s": ("pass", "from rm_db import PostgresResource"),
    "amqp_s": ("pass", "from rm_amqp import AmqpResource"),
    "source_planner_s": (_SPARK, "import xabridge.pipeline.spark.amqp_format"),
    "sink_planner_s": (_SPARK, "import xabridge.pipeline.spark.xa_format"),
}
"""Figure → what is imported before the clock starts, and what is measured."""


def measure(*, quick: bool) -> dict[str, Any]:
    times = 3 if quick else 15
    return {
        name: min(_processor_s(before, measured) for _ in range(times))
        for name, (before, measured) in _FIGURES.items()
        if before != _SPARK or find_spec("pyspark") is not None
    }


def _processor_s(before: str, measured: str) -> float:
    """The processor time that `measured` takes in an interpreter that has carried out `before`."""
    code = f"import time\n{before}\nstart = time.process_time()\n{measured}\nprint(time.process_time() - start)"
    seconds = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout  # noqa: S603 — ours
    return round(float(seconds), 3)
