"""The driver's side of the sink of a pipeline: it plans the sink of each micro-batch, and commits or aborts it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tm.log import LogError
from tm.log.sql.gtrids import NodeTakenOver
from xa import LimitingPrepared, XaError
from xa.coroutines import drive
from xabridge.pipeline.core.driver.open_pipeline import OpenPipeline, pipeline_errors
from xabridge.pipeline.core.errors import PipelineError, PipelineTaken
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.refusals import not_bound
from xabridge.pipeline.core.ledger.rows import ResultRow
from xabridge.pipeline.core.protocol import batch_decision
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
    """The result of a micro-batch, for logs. `before`: it had been decided before, so that this attempt was discarded.
    `swept`: how many orphans were rolled back. `left`: how many branches are left to recovery."""

    gtrid: bytes
    before: bool
    branches: int
    rows: int
    messages: int
    swept: int
    left: int
    seconds: float


class SinkCoordinator:
    """Coordinates the sink of one pipeline. One is made where Spark plans the sink, and another one where it commits or
    aborts. It may be kept from batch to batch, because opening the log takes longer than deciding a small batch."""

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
        self._unfinished: frozenset[str] = frozenset()
        """The resources at which an earlier batch is not finished, as already logged."""

    def plan(self, *, streaming: bool = True) -> SinkPlan:
        """Plans the sink of the micro-batch that is being planned, and sweeps orphans. Its global transaction is the
        one that was planned last, or a new one for a batch that reads nothing new. With `streaming` the sink belongs to
        the query that the pipeline is bound to, otherwise to a job. PipelineTaken: the pipeline is not bound to a
        query."""
        with pipeline_errors():
            pipeline = self._opened(None, takes=not streaming)
            query = self._query(pipeline) if streaming else ""
            planned = drive(pipeline.planner(self._settings.outage_s).plan_sink(query))

        self._tell_unfinished(planned.unfinished)
        return SinkPlan(
            self._settings.pipeline,
            planned.gtrid,
            planned.epoch,
            pipeline.own.incarnation,
            self._settings.resources,
            decided=planned.decided,
            query=query,
            outage_s=self._settings.outage_s,
            deciders=self._settings.deciders,
            skipped=planned.skipped,
            unfinished=planned.unfinished,
        )

    def _tell_unfinished(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._unfinished:
                logger.warning(
                    "pipeline %s: an earlier batch is decided and not finished at %s%s: a batch that has work there is "
                    "decided after that",
                    self._settings.pipeline,
                    name,
                    "" if name in self._resources else ", which is not configured any more",
                )
        self._unfinished = frozenset(names)

    def _query(self, pipeline: OpenPipeline) -> str:
        bound = pipeline.ledger.bound()
        if bound is None or bound.incarnation != pipeline.own.incarnation:
            raise PipelineTaken(not_bound(self._settings.pipeline))
        return bound.query

    @staticmethod
    def checked(resources: Mapping[str, Resource], tasks: int, *, attempts: int = 2) -> None:
        """Checks the start of a query: PipelineError where a database can't prepare the branches of so many tasks. Each
        task may leave those of so many `attempts` that Spark did not accept, or runs at a time."""
        for name, resource in resources.items():
            rm = resource.rm
            if not isinstance(rm, LimitingPrepared):
                continue

            try:
                call_resource(resource, "open", lambda: None)
            except XaError as error:
                raise PipelineError(f"{name} can't be reached: {error}") from error
            most = rm.most_prepared()
            found = (
                f"{name}: max_prepared_transactions is {most}; {tasks} tasks, with the branches that failed "
                "attempts leave,"
            )
            if most < tasks:
                raise PipelineError(
                    f"{found} need {attempts * tasks}: raise it and start PostgreSQL again, or write with fewer tasks "
                    "(coalesce, spark.sql.shuffle.partitions), or by key, which needs one for all tasks"
                )
            if most < attempts * tasks:
                logger.warning("%s may need %d", found, attempts * tasks)

    def commit(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> BatchResult:
        """Decides the micro-batch, and finishes its sinks. BatchRefused: it is not decided. After the decision nothing
        is raised: recovery finishes the branches that can't be finished now. `batch` is None for a job without
        streaming."""
        began = time.perf_counter()
        present = [report for report in reports if report is not None]
        with pipeline_errors():
            pipeline = self._opened(plan.incarnation)
            outcome = drive(batch_decision.commit(pipeline.ports, pipeline.own, plan, batch, present, pipeline.names))
            pipeline.ledger.log.flush()

        decided = BatchResult(
            outcome.decision.gtrid,
            outcome.before,
            len(outcome.decision.branches),
            sum(report.rows for report in present),
            sum(report.messages for report in present),
            outcome.swept,
            outcome.left,
            time.perf_counter() - began,
        )
        if not decided.before:
            self._note(pipeline, plan, batch, present, decided, outcome.taken, began)
        logger.info("pipeline %s: %s", plan.pipeline, decided)
        return decided

    @staticmethod
    def _note(
        pipeline: OpenPipeline,
        plan: SinkPlan,
        batch: Batch | None,
        reports: Sequence[SinkReport],
        decided: BatchResult,
        taken: int | None,
        began: float,
    ) -> None:
        """Notes what the batch did, for people. It is decided, so nothing is raised."""
        forced = pipeline.log.forced_at or began
        result = ResultRow(
            plan.gtrid,
            plan.epoch,
            plan.query,
            None if batch is None else batch.number,
            time.time() - (time.perf_counter() - forced),
            taken,
            decided.rows,
            decided.messages,
            sum(report.octets for report in reports),
            decided.branches,
            decided.swept,
            decided.left,
            max((report.prepare_s for report in reports), default=0.0),
            forced - began,
            began + decided.seconds - forced,
        )

        try:
            pipeline.ledger.note_result(result)
        except (LogError, NodeTakenOver) as error:
            logger.warning("pipeline %s: what epoch %d did could not be noted: %s", plan.pipeline, plan.epoch, error)

    def abort(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> None:
        """Rolls the micro-batch back, unless it is decided. Spark calls this also right after a commit that raised. A
        task that failed has reported None. Only then may a message be to blame here, because a commit notes that
        itself."""
        del batch  # the log and the resource managers have all that is needed
        written = bool(reports) and None not in reports
        with pipeline_errors():
            pipeline = self._opened(plan.incarnation)
            drive(pipeline.ledger.row())  # a driver that has lost the pipeline is refused, with who has it
            if not drive(batch_decision.abort(pipeline.ports, plan, pipeline.names, written=written)):
                logger.warning(
                    "epoch %d of pipeline %s is not rolled back, because it is decided", plan.epoch, plan.pipeline
                )

    def close(self) -> None:
        """Closes the ledger."""
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
        """Whether the ledger that is open is the one that would be joined now. What was planned under its incarnation
        is refused by each change if that is over."""
        if incarnation is not None:
            return ledger.log.epoch == incarnation
        try:
            drive(ledger.row())
        except NodeTakenOver:
            return False
        return True
