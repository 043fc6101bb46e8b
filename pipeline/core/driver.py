"""The driver's side of a pipeline: `Reader` plans what is read, `Writer` decides what was written.

Both are opened in whatever process Spark calls, as often as it likes: they take the pipeline for their driver or join
it (`pipeline.core.ledger`). A process keeps what it opened (`close_all` ends it). Calls of one object are made one
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipeline.core.values import Batch, Offset, Settings, SinkPlan, SinkReport, Source, SourcePartition


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a micro-batch, for metrics and logs. `before`: it had been decided before, and this attempt was
    discarded. `swept`: orphans that were rolled back."""

    gtrid: bytes
    before: bool
    branches: int
    rows: int
    messages: int
    swept: int
    decide_s: float
    finish_s: float


class Reader:
    """The source of one pipeline: the process that plans.

    `driver` names the driver: the same in all of its processes, and never given to another (`identity.driver_id`).
    `streaming`: the one long-lived reader of a query, which takes the pipeline and fences off who had it before.
    PipelineTaken: another query of this driver reads it now. Else (a job without streaming) it joins its driver.
    """

    def __init__(self, settings: Settings, source: Source, driver: str, *, streaming: bool = True) -> None:
        raise NotImplementedError

    def latest(self, start: Offset, limit: int | None = None) -> Offset:
        """How far the next micro-batch reads: `start` when there is nothing to read. Resolves what is left over.
        `limit`: no more rows than that (Spark's read limit), remembered for `plan`."""
        raise NotImplementedError

    def plan(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        """The partitions of the epoch `end`, begun as a new global transaction, or of one that is decided, to be read
        again; [] when `start` is `end`. EpochGone, PipelineTaken."""
        raise NotImplementedError

    def plan_job(self) -> Sequence[SourcePartition]:
        """`latest` and `plan` for a job without streaming: an epoch of its own, whatever there is to read."""
        raise NotImplementedError

    def logged(self, end: Offset) -> None:
        """Spark has logged every batch up to `end`: nothing of them will be read again. An epoch that was not decided
        (its sink is not ours) is decided now, with its source alone; source branches are finished."""
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of the pipeline; nothing is lost by not calling it."""
        raise NotImplementedError


class Writer:
    """The sink of one pipeline: made where Spark plans the sink, and again where it commits or aborts."""

    def __init__(self, settings: Settings, driver: str) -> None:
        raise NotImplementedError

    def plan(self) -> SinkPlan:
        """The global transaction of the micro-batch that is being planned: the epoch's that was planned last, or one
        of its own for a batch that reads nothing new. Sweeps orphans."""
        raise NotImplementedError

    def commit(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> Decided:
        """Decides the micro-batch, and finishes its sinks. BatchRefused: it is not decided. Once it is, nothing is
        raised any more: what can't be finished now is left to recovery. `batch`: None for a job without streaming."""
        raise NotImplementedError

    def abort(self, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport | None]) -> None:
        """Rolls the micro-batch back, unless it is decided. Spark calls it right after a commit that raised."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes what this process has open for it."""
        raise NotImplementedError
