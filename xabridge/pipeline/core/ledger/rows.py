"""The rows of the ledger as values, and the conclusions from several of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core.shards import PlannedRead
from xabridge.pipeline.core.xids import is_source, word

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tm.log import Branch

NOTHING: Final = PlannedRead()


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline; the fields are those of `xabridge.pipeline.core.ledger.schema`."""

    pipeline: str
    incarnation: int
    driver: str
    taken_at: float
    epoch: int
    forgotten: int
    gtrid: bytes | None
    again: int


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch; the fields are those of `xabridge.pipeline.core.ledger.schema`."""

    epoch: int
    gtrid: bytes
    tries: int
    read: PlannedRead = NOTHING
    previous: int = 0
    sunk: bool = False
    logged: bool = False
    finished: frozenset[str] = frozenset()
    planned_at: float = 0.0
    query: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True)
class PlannedEpochs:
    """The epochs that one global transaction has: one for each source that is read, or one that reads nothing. Empty
    once their rows are removed."""

    epochs: tuple[EpochRow, ...]

    @property
    def epoch(self) -> int:
        """The number of the epoch that messages to people name."""
        return self.epochs[0].epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The resources that are read, sorted."""
        return tuple(sorted({resource for row in self.epochs for resource in row.read.resources}))

    @property
    def skipped(self) -> tuple[str, ...]:
        """The resources that are away, and that no source reads, sorted."""
        away = {resource for row in self.epochs for resource, _ in row.read.skipped}
        return tuple(sorted(away - set(self.sources)))

    @property
    def sunk(self) -> bool:
        """Whether a sink of ours was planned."""
        return any(row.sunk for row in self.epochs)

    @property
    def logged(self) -> bool:
        """Whether Spark is known to have logged it, as of everything whose rows are removed."""
        return all(row.logged for row in self.epochs)

    @property
    def finished(self) -> frozenset[str]:
        """The words that say whose branches are finished."""
        return frozenset().union(*(row.finished for row in self.epochs))

    def as_logged(self) -> PlannedEpochs:
        """The same after Spark has logged it."""
        return PlannedEpochs(tuple(replace(row, logged=True) for row in self.epochs))


def due(branches: Collection[Branch], finished: Collection[str], *, logged: bool) -> list[Branch]:
    """Of the branches of a decision, those that are to be committed by now and that no word in `finished` names: sinks,
    and sources once Spark has logged the batch."""
    return [branch for branch in branches if word(branch) not in finished and (logged or not is_source(branch.xid))]


@dataclass(frozen=True, slots=True)
class Lag:
    """What waited when an epoch was planned: how many messages, and when the oldest was made, as far as its sender said
    so."""

    waiting: int
    oldest_at: float | None


@dataclass(frozen=True, slots=True)
class ResultRow:
    """What a batch did that was decided, for people.

    `batch` is None for a job without streaming. `taken`: how many messages it took from its sources; None where the
    broker could not be asked. `octets`: of the rows and messages that it wrote. `swept`: orphans that were rolled back.
    `unfinished`: branches that were left to recovery. `prepare_s`: of the slowest task. `decide_s`: from the call of
    the commit until the decision was durable, with rows by key and the check of every branch. `finish_s`: from there
    until the sinks were committed and orphans swept.
    """

    gtrid: bytes
    epoch: int
    query: str
    batch: int | None
    decided_at: float
    taken: int | None
    rows: int
    messages: int
    octets: int
    branches: int
    swept: int
    unfinished: int
    prepare_s: float
    decide_s: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The last micro-batch of a query."""

    batch: int
    gtrid: bytes
    offsets: str = ""


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The query that has a pipeline, as `xabridge.pipeline.core.ledger.schema` says."""

    query: str
    run: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class PipelineOwnership:
    """A pipeline's owner, as a query has to know it when it asks for the pipeline: the query that it is bound to; the
    last decided micro-batch of each query that ever wrote under its name; and the other pipelines that the asking query
    has."""

    bound: QueryRow | None
    decided: Mapping[str, BatchRow]
    elsewhere: tuple[str, ...] = ()
