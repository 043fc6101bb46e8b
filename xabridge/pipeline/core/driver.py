"""The driver's side of a pipeline: `bind` gives it to a query that starts, `Reader` plans what is read, `Writer`
decides what was written.

The latter two are opened in whatever process Spark calls, as often as it likes: they join their driver
(`xabridge.pipeline.core.entrance`). Resource managers stay open in the process. One object is for one thread at a time.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rm_db import PostgresResource
from tm.log import LogError
from tm.log.sql.gtrids import TakenOver
from xa import XaError
from xabridge.pipeline.core import binding, deciding, planning
from xabridge.pipeline.core.entrance import Entrance
from xabridge.pipeline.core.errors import PipelineError, PipelineTaken
from xabridge.pipeline.core.finishing import resolve
from xabridge.pipeline.core.identity import process_id
from xabridge.pipeline.core.ledger import unannounced
from xabridge.pipeline.core.outages import Patience, is_away
from xabridge.pipeline.core.planning import Origin
from xabridge.pipeline.core.resources import PROCESS, asked, broker
from xabridge.pipeline.core.shell import Shell
from xabridge.pipeline.core.values import Offset, SinkPlan, SourcePartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tm.resources import Resource
    from xabridge.pipeline.core.ledger import Ledger
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import Batch, Query, Settings, SinkReport, Source

logger: Final = logging.getLogger("xabridge.pipeline")

PURGE_EVERY: Final = 100
"""Batches between two purges of what is done."""


@dataclass(frozen=True, slots=True)
class Decided:
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
    binds it to the query (`xabridge.pipeline.core.binding`). Before that nothing of the query is planned. `runs` tells
    whether a start of a query goes on in this driver.

    PipelineTaken: another query of this driver has it. PipelineError: the query can't have it; nobody was disturbed.
    """
    entrance = Entrance(settings.log, settings.pipeline, sleep=sleep)
    with _told():
        row, known = entrance.look(query.id)
        bound = known.bound
        if row is not None and bound is not None and row.driver == driver:
            if bound.run == query.run and bound.incarnation == row.incarnation:
                return
            if bound.run != query.run and runs(bound.query, bound.run):
                raise PipelineTaken(
                    f"pipeline {settings.pipeline!r} is read by another query of this driver ({bound.query}): stop "
                    "that query first, or give this one a pipeline of its own"
                )
        binding.check(settings.pipeline, query, known)
        ledger = entrance.take(driver)
        try:
            shell = Shell(ledger, resources.of(settings.resources), sleep)
            shell.run(binding.bind(shell.own, query, [str(source) for source in sources], shell.names))
            ledger.log.flush()
        finally:
            ledger.close()


class Reader:
    """A source of one pipeline: the process that plans.

    `driver` names the driver: the same in all of its processes, and never given to another (`identity.driver_id`).
    `streaming`: a source of the query that the pipeline was bound to (`bind`); this process plans it from now on.
    PipelineTaken: it is not bound to a query that reads this, or another process reads it. Else it is the source of a
    job without streaming, which takes the pipeline where its driver never had it.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        driver: str,
        *,
        streaming: bool = True,
        resources: Resources = PROCESS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._source = source
        settings.url(source.resource)
        entrance = Entrance(settings.log, settings.pipeline, sleep=sleep)
        with _told():
            ledger = entrance.join(driver, takes=not streaming)
            try:
                self._origin = Origin(*ledger.claim(str(source), process_id())) if streaming else Origin()
            except BaseException:
                ledger.close()
                raise
        self._shell = Shell(ledger, resources.of(settings.resources), sleep)
        self._logged = -1
        self._resolved = False
        self._limits: dict[int, int] = {}
        self._batches = 0
        self._planned_rows = 0

    def planned_rows(self) -> int:
        """How many messages were planned to be taken since this was last asked: fewer than they might be, where batches
        have failed."""
        rows, self._planned_rows = self._planned_rows, 0
        return rows

    def latest(self, start: Offset, limit: int | None = None) -> Offset:
        """How far the next micro-batch reads: `start` when there is nothing to read. Spark has logged `start`.
        `limit`: no more rows than that (Spark's read limit), remembered for `plan`."""
        self.logged(start)
        self._resolve()
        source = self._source
        with _told():
            epoch = self._shell.run(
                planning.latest(self._origin, start.epoch, source.resource, source.queues, self._settings.outage_s)
            )
            if epoch == start.epoch:  # who has lost the pipeline hears of it, and does not wait for messages for ever
                self._shell.ledger.standing()
        if limit is not None:
            self._limits = {epoch: limit}
        return Offset(epoch)

    def available(self) -> int:
        """How many messages there are to read now."""
        self._resolve()
        resource = self._shell.resources[self._source.resource]
        rm = broker(resource)
        patience = Patience(self._settings.outage_s)
        while True:
            try:
                return asked(
                    resource, "browse", lambda: sum(rm.count(one, resource.rmid) for one in self._source.queues)
                )
            except XaError as error:
                if not is_away(error) or not patience.wait():
                    raise PipelineError(f"{resource.name} can't be read: {error}") from error

    def _resolve(self) -> None:
        """What others have left over is finished, once: messages that it holds are there to be read again."""
        if self._resolved:
            return
        with _told():
            self._shell.run(resolve(self._shell.own, self._shell.names, None))
        self._resolved = True

    def plan(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        """The partitions of the epoch `end`, begun as a new global transaction, or of one that is decided, to be read
        again; [] when `start` is `end`. EpochGone, PipelineTaken."""
        if start == end:
            return []
        self.logged(start)
        source, shell = self._source, self._shell
        rows = min(source.rows, self._limits.get(end.epoch, source.rows))
        with _told():
            planned = shell.run(
                planning.plan(
                    shell.own,
                    self._origin,
                    start.epoch,
                    end.epoch,
                    source.resource,
                    source.partitions,
                    rows,
                    shell.names,
                    self._settings.outage_s,
                )
            )
            decided = self._decided(again=planned.again)
        count = len(planned.xids)
        self._planned_rows += planned.rows
        if planned.again:
            logger.info("epoch %d is decided: what it took is read again from %d branches", end.epoch, count)
        return [self._partition(end.epoch, index, planned, decided) for index in range(count)]

    def _decided(self, *, again: bool) -> int:
        """The batch up to which those of the query are decided; but for the last one, where that is read again."""
        last = self._shell.ledger.known().decided.get(self._origin.query)
        return -1 if last is None else last.batch - again

    def _partition(self, epoch: int, index: int, planned: planning.Reading, decided: int) -> SourcePartition:
        rows, count = planned.rows, len(planned.xids)
        share = 0 if planned.again else rows // count + (index < rows % count)
        source = self._source
        queues = source.queues[index % len(source.queues) :] + source.queues[: index % len(source.queues)]
        return SourcePartition(
            self._settings.pipeline,
            epoch,
            index,
            planned.xids[index],
            source.resource,
            self._settings.url(source.resource),
            queues,
            share,
            query=self._origin.query,
            decided=decided,
            aside=planned.aside,
            text=source.text,
            bad_records=source.bad_records,
            outage_s=self._settings.outage_s,
        )

    def plan_job(self) -> Sequence[SourcePartition]:
        """`latest` and `plan` for a job without streaming: an epoch of its own, whatever there is to read."""
        with _told():
            epoch: int = self._shell.run(planning.allot())
        return self.plan(Offset(), Offset(epoch))

    def logged(self, end: Offset) -> None:
        """Spark has logged every batch up to `end`: nothing of them will be read again. An epoch that was not decided
        (its sink is not ours) is decided now, with its source alone; source branches are finished."""
        if end.epoch == self._logged:
            return
        with _told():
            self._shell.run(planning.logged(end.epoch, self._shell.names))
            self._shell.ledger.log.flush()  # what has ended is nobody's work any more, in the other processes neither
            self._batches += 1
            if self._batches % PURGE_EVERY == 0:
                self._shell.ledger.purge()
        self._logged = end.epoch

    def close(self) -> None:
        """Lets go of the pipeline; nothing is lost by not calling it."""
        self._shell.ledger.close()


class Writer:
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
        self._entrance = Entrance(settings.log, settings.pipeline, sleep=sleep)
        self._resources = resources.of(settings.resources)
        self._sleep = sleep
        self._ledger: Ledger | None = None

    def plan(self, *, streaming: bool = True) -> SinkPlan:
        """The global transaction of the micro-batch that is being planned: the one that was planned last, or one of its
        own for a batch that reads nothing new. Sweeps orphans. `streaming`: for the query that the pipeline is bound
        to; else for a job. PipelineTaken: it is bound to none."""
        with _told():
            shell = self._shell(None, takes=not streaming)
            query = self._query(shell) if streaming else ""
            gtrid, epoch, decided = shell.run(planning.plan_sink(shell.own, query, shell.names))
        return SinkPlan(
            self._settings.pipeline,
            gtrid,
            epoch,
            shell.own.incarnation,
            self._settings.resources,
            decided=decided,
            query=query,
            outage_s=self._settings.outage_s,
        )

    def _query(self, shell: Shell) -> str:
        bound = shell.ledger.known().bound
        if bound is None or bound.incarnation != shell.own.incarnation:
            raise PipelineTaken(unannounced(self._settings.pipeline))
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
                asked(resource, "open", lambda: None)
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

    def commit(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> Decided:
        """Decides the micro-batch, and finishes its sinks. BatchRefused: it is not decided. Once it is, nothing is
        raised any more: what can't be finished now is left to recovery. `batch`: None for a job without streaming."""
        began = time.perf_counter()
        told = [report for report in reports if report is not None]
        with _told():
            shell = self._shell(plan.incarnation)
            outcome = shell.run(deciding.commit(shell.own, plan, batch, told, shell.names))
            shell.ledger.log.flush()
        decided = Decided(
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
        with _told():
            shell = self._shell(plan.incarnation)
            if not shell.run(deciding.abort(plan, shell.names, written=written)):
                logger.warning("epoch %d of pipeline %s is decided: it is not rolled back", plan.epoch, plan.pipeline)

    def close(self) -> None:
        """Closes what this process has open for it."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.close()

    def _shell(self, incarnation: int | None, *, takes: bool = False) -> Shell:
        """The shell under the driver's present incarnation, or under the one in which the batch was planned."""
        if self._ledger is not None and not self._still(self._ledger, incarnation):
            self.close()
        if self._ledger is None:
            self._ledger = self._entrance.join(self._driver, incarnation, takes=takes)
        return Shell(self._ledger, self._resources, self._sleep)

    def _still(self, ledger: Ledger, incarnation: int | None) -> bool:
        """Whether what was joined before is what would be joined now."""
        try:
            ledger.standing()
        except TakenOver:
            return False
        return incarnation is None or ledger.log.epoch == incarnation


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong with the log, as pipelines have it."""
    try:
        yield
    except TakenOver as error:
        raise PipelineTaken(str(error)) from error
    except LogError as error:
        raise PipelineError(f"the decision log: {error}") from error
