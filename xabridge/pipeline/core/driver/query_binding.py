"""The start of a query: its driver takes the pipeline and binds it to the query."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from xa.coroutines import drive
from xabridge.pipeline.core.driver.open_pipeline import OpenPipeline, pipeline_errors
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.protocol import ownership
from xabridge.pipeline.core.resources import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import Query, Settings, Source

logger: Final = logging.getLogger("xabridge.pipeline")


def bind(
    settings: Settings,
    driver: str,
    query: Query,
    sources: Sequence[Source],
    *,
    runs: Callable[[str, str], bool] = lambda _query, _run: False,
    resources: Resources = PROCESS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Gives the pipeline to a query that starts: takes it for this driver, which fences off who had it before, and
    binds it to the query (`xabridge.pipeline.core.protocol.ownership`). Before that nothing of the query is planned.
    `runs` tells whether a start of a query goes on in this driver.

    PipelineTaken: another query of this driver has it. PipelineError: the query can't have it; no other is affected.
    """
    opener = LedgerOpener(settings.log, settings.pipeline, sleep=sleep)
    with pipeline_errors():
        row, known = opener.look(query.id)
        bound = known.bound
        if row is not None and bound is not None and row.driver == driver:
            if bound.run == query.run and bound.incarnation == row.incarnation:
                return
            if bound.run != query.run and runs(bound.query, bound.run):
                raise PipelineTaken(
                    f"pipeline {settings.pipeline!r} is read by another query of this driver ({bound.query}). Stop "
                    "that query first, or give this one a pipeline of its own"
                )

        ownership.check(settings.pipeline, query, known)
        ledger = opener.take(driver)
        try:
            pipeline = OpenPipeline(ledger, resources.of(settings.resources), sleep)
            drive(
                ownership.bind(pipeline.ports, pipeline.own, query, [str(source) for source in sources], pipeline.names)
            )
            ledger.log.flush()
        finally:
            ledger.close()
