"""The driver's side of the sink of a pipeline: it plans the sink of each micro-batch, and commits or aborts it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rm_db import PostgresResource
from tm.log.sql_gtrids import TakenOver
from xa import XaError
from xabridge.pipeline.core.driver.open_pipeline import OpenPipeline, pipeline_errors
from xabridge.pipeline.core.errors import PipelineError, PipelineTaken
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.refusals import not_bound
from xabridge.pipeline.core.protocol import batch_decision, epoch_plan
from xabridge.pipeline.core.protocol.ports import drive
from xabridge.pipeline.core.resources import PROCESS, call_resource
from xabridge.pipeline.core.values import SinkPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tm.resources import Resource
    from xabridge.pipeline.core.ledger.sql_ledger import SqlLedger
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import Batch, Settings, SinkReport

logger: Final = logging.getLogger("xabridge.pipeline")


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a micro-batch, for metrics and logs. `before`: it had been decided before, and this attempt was
    discarded. `swept`: orphans that were rolled back; `left`: branches that are left to recovery."""

    gtrid: bytes
    before: bool
    branches: int
    rows: int
    messages: int
    swept: int
    left: int
    seconds: float


class SinkCoordinator:
    """The sink of one pipeline: made where Spark plans the sink, and again where it commits or aborts. It may be kept
    from batch to batch: opening the log takes longer than deciding a small one."""

    def __init__(
        self,
        settings: Settings,
        driver: str,
        *,
        resources: Resources = PROCESS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._driver = driver
        self._opener = LedgerOpener(settings.log, settings.pipeline, sleep=sleep)
        self._resources = resources.of(settings.resources)
        self._sleep = sleep
        self._ledger: SqlLedger | None = None

    def plan(self, *, streaming: bool = True) -> SinkPlan:
        """The global transaction of the micro-batch that is being planned: the one that was planned last, or one of its
        own for a batch that reads nothing new. Sweeps orphans. `streaming`: for the query that the pipeline is bound
        to; else for a job. PipelineTaken: it is bound to none."""
        with pipeline_errors():
            pipeline = self._opened(None, takes=not streaming)
            query = self._query(pipeline) if streaming else ""
            gtrid, epoch, decided = drive(epoch_plan.plan_sink(pipeline.ports, pipeline.own, query, pipeline.names))
        return SinkPlan(
            self._settings.pipeline,
            gtrid,
            epoch,
            pipeline.own.incarnation,
            self._settings.resources,
            decided=decided,
            query=query,
            outage_s=self._settings.outage_s,
        )

    def _query(self, pipeline: OpenPipeline) -> str:
        bound = drive(pipeline.ledger.known()).bound
        if bound is None or bound.incarnation != pipeline.own.incarnation:
            raise PipelineTaken(not_bound(self._settings.pipeline))
        return bound.query

    @staticmethod
    def checked(resources: Mapping[str, Resource], tasks: int) -> None:
        """For the start: PipelineError where a database can't prepare the branches of so many tasks. What attempts may
        leave over needs as many again."""
        for name, resource in resources.items():
            rm = resource.rm
            if not isinstance(rm, PostgresResource):
                continue
            try:
                call_resource(resource, "open", lambda: None)
            except XaError as error:
                raise PipelineError(f"{name} can't be reached: {error}") from error
            told = f"{name}: max_prepared_transactions is {rm.max_prepared}; {tasks} tasks, and what they leave over"
            if rm.max_prepared < tasks:
                raise PipelineError(
                    f"{told}, need {2 * tasks}: raise it and start PostgreSQL again, or write with fewer tasks "
                    "(coalesce, spark.sql.shuffle.partitions) or by key, which needs one for all of them"
                )
            if rm.max_prepared < 2 * tasks:
                logger.warning("%s, may need %d", told, 2 * tasks)

    def commit(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> BatchResult:
        """Decides the micro-batch, and finishes its sinks. BatchRefused: it is not decided. Once it is, nothing is
        raised any more: what can't be finished now is left to recovery. `batch`: None for a job without streaming."""
        began = time.perf_counter()
        told = [report for report in reports if report is not None]
        with pipeline_errors():
            pipeline = self._opened(plan.incarnation)
            outcome = drive(batch_decision.commit(pipeline.ports, pipeline.own, plan, batch, told, pipeline.names))
            pipeline.ledger.log.flush()
        decided = BatchResult(
            outcome.decision.gtrid,
            outcome.before,
            len(outcome.decision.branches),
            sum(report.rows for report in told),
            sum(report.messages for report in told),
            outcome.swept,
            outcome.left,
            time.perf_counter() - began,
        )
        logger.info("pipeline %s: %s", plan.pipeline, decided)
        return decided

    def abort(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> None:
        """Rolls the micro-batch back, unless it is decided. Spark calls it right after a commit that raised, too. A
        task that failed has reported None: only then may a message be to blame, as a commit notes that itself."""
        del batch  # the log and the resource managers know better
        written = bool(reports) and None not in reports
        with pipeline_errors():
            pipeline = self._opened(plan.incarnation)
            if not drive(batch_decision.abort(pipeline.ports, plan, pipeline.names, written=written)):
                logger.warning("epoch %d of pipeline %s is decided: it is not rolled back", plan.epoch, plan.pipeline)

    def close(self) -> None:
        """Closes what this process has open for it."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def _opened(self, incarnation: int | None, *, takes: bool = False) -> OpenPipeline:
        """The pipeline under the driver's present incarnation, or under the one in which the batch was planned."""
        if self._ledger is not None and not self._still(self._ledger, incarnation):
            self.close()
        if self._ledger is None:
            self._ledger = self._opener.join(self._driver, incarnation, takes=takes)
        return OpenPipeline(self._ledger, self._resources, self._sleep)

    def _still(self, ledger: SqlLedger, incarnation: int | None) -> bool:
        """Whether what was joined before is what would be joined now."""
        try:
            drive(ledger.row())
        except TakenOver:
            return False
        return incarnation is None or ledger.log.epoch == incarnation
