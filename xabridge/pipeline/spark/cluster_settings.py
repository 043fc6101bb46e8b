"""The settings of the Spark application that a pipeline notices: which of them it refuses, and which only waste work.

Correctness does not depend on any of them: an executor may go at any time, and a task may run twice.

 - Speculation runs a slow task twice. Each copy prepares branches of its own, so databases have to prepare more. A copy
   of a task that reads waits for the first one, because only one of them can take the messages. With the option `once`
   a copy would wait for the rows of the first one until it fails, and a task that fails four times fails the batch.
 - Dynamic allocation ends executors that are idle for a minute, so the next batch waits until new ones and their Python
   processes have started.
 - Without reuse of Python workers each task starts a process, imports the clients, and connects to broker and database.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

logger: Final = logging.getLogger("xabridge.pipeline")

SPECULATION: Final = "spark.speculation"
ALLOCATION: Final = "spark.dynamicAllocation.enabled"
LEAST: Final = "spark.dynamicAllocation.minExecutors"
REUSE: Final = "spark.python.worker.reuse"


def is_on(settings: Mapping[str, str], name: str, default: str = "false") -> bool:
    """Whether a setting is true."""
    return settings.get(name, default).strip().lower() == "true"


def check_settings(settings: Mapping[str, str], *, once: bool) -> None:
    """Warns of settings that waste work. PipelineError: one of them can't be used with the option `once`."""
    if once and is_on(settings, SPECULATION):
        raise PipelineError(
            f"{SPECULATION} is true, and the option once is set: the copy of a slow task would wait for its rows until "
            "it fails, and with it the batch. Switch speculation off for this application"
        )
    for warning in _wasteful(settings):
        logger.warning("%s", warning)


def _wasteful(settings: Mapping[str, str]) -> Iterator[str]:
    if is_on(settings, SPECULATION):
        yield (
            f"{SPECULATION} is true: the copy of a task that reads can only wait for the first one, and each copy of a "
            "task that writes prepares branches of its own"
        )
    if is_on(settings, ALLOCATION) and settings.get(LEAST, "0").strip() == "0":
        yield (
            f"{ALLOCATION} is true, and {LEAST} is not set: executors that are idle for a minute end, and the next "
            "batch waits for new ones. Set it to what a batch needs"
        )
    if not is_on(settings, REUSE, "true"):
        yield f"{REUSE} is false: every task starts a Python process and connects to every broker and database anew"
