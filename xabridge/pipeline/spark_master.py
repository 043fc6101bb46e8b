"""The master of a Spark session: the application's, spark-submit's, or our own default.

Under `spark-submit` the JVM runs before the application does, and has its settings: those of the command line and of
`spark-defaults.conf`. Otherwise the application's own settings start the JVM. These would hide the master of
`spark-defaults.conf`, so that the file is looked at first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT: Final = "local[2,4]"
LOCAL: Final = ("local", "local-cluster")
"""What the URL of a master begins with if everything runs on this machine."""
_UNSET: Final = "local[*]"
"""What spark-submit sets if it was given none."""
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable by which spark-submit names its JVM."""
_LINE: Final = re.compile(r"\s*spark\.master(?:\s*[=:]\s*|\s+)(\S+)\s*")


def chosen_master(given: str | None, submitted: str | None, environment: Mapping[str, str], home: Path) -> str:
    """The master of a session. `given` is what the application says, `submitted` what spark-submit has set (None: the
    application was not started by it), `home` Spark's folder. PipelineError: the two differ."""
    if submitted is None:
        return given or _of_defaults(environment, home) or DEFAULT
    if given and submitted not in (given, _UNSET):
        raise PipelineError(
            f"pipeline.session: the master is {given!r}, but spark-submit has set {submitted!r}: omit one of them"
        )
    return given or submitted


def _of_defaults(environment: Mapping[str, str], home: Path) -> str | None:
    """What `spark-defaults.conf` says."""
    folder = environment.get("SPARK_CONF_DIR")
    file = (Path(folder) if folder else home / "conf") / "spark-defaults.conf"
    if not file.is_file():
        return None
    found = [match[1] for match in map(_LINE.fullmatch, file.read_text(encoding="utf-8").splitlines()) if match]
    return found[-1] if found else None


def is_local(master: str) -> bool:
    """Whether everything runs on this machine."""
    return master.partition("[")[0] in LOCAL


def submitted_settings(environment: Mapping[str, str] = os.environ) -> Mapping[str, str] | None:
    """The settings that spark-submit has given to the JVM. None: it has not started this process."""
    if _SUBMITTED not in environment:
        return None
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 — only where it is wanted

    SparkContext._ensure_initialized()  # noqa: SLF001 — connects to the JVM, where SparkConf finds them
    return dict(SparkConf().getAll())
