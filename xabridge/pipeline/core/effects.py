"""What the driver's core asks of the world, beside what completion asks (`tm.effects`).

An error that the core goes on with is answered, not raised; what the ledger and the log raise (TakenOver, LogStopped)
is raised where the core asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tm.effects import Call, End, Force, Note, Pause

if TYPE_CHECKING:
    from collections.abc import Collection

    from xabridge.pipeline.core.isolation import Isolation
    from xabridge.pipeline.core.staged_rows import Staged


# --- the ledger --------------------------------------------------
@dataclass(frozen=True, slots=True)
class Standing:
    """Read the pipeline's row. Answer: PipelineRow."""


@dataclass(frozen=True, slots=True)
class FindEpoch:
    """Answer: the EpochRow of this number, or None."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FindPlanned:
    """Answer: Planned, the epochs that go by this global transaction now."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class FindLater:
    """Answer: the EpochRows that the query's source at this place has read since this epoch."""

    query: str
    place: int
    epoch: int


@dataclass(frozen=True, slots=True)
class FindWaiting:
    """Answer: the EpochRows of this query (of any: None) that read something and that Spark is not known to have
    logged."""

    query: str | None


@dataclass(frozen=True, slots=True)
class FindKnown:
    """Answer: Known, which query has the pipeline when this one asks for it, and the last decided batch of each."""

    query: str


@dataclass(frozen=True, slots=True)
class FindUnlogged:
    """Answer: the EpochRow of this number, and those that its checkpoint read before, as far as Spark is not known to
    have logged them."""

    upto: int


@dataclass(frozen=True, slots=True)
class FindBatch:
    """Answer: the BatchRow of this query, or None."""

    query: str


@dataclass(frozen=True, slots=True)
class Allot:
    """Give out the number of a new epoch. Answer: int."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The epoch goes by this global transaction, the last one that was planned. Answer: None."""

    epoch: int
    previous: int
    gtrid: bytes
    tries: int
    source: str
    query: str
    place: int


@dataclass(frozen=True, slots=True)
class PlanAgain:
    """What was decided under this global transaction is read again. Answer: None."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was planned to be read again has been. Answer: None."""


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink of ours was planned for this global transaction. Answer: None."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Bind:
    """The query's last micro-batch is this one, under this global transaction. Answer: None."""

    query: str
    batch: int
    gtrid: bytes
    offsets: str


@dataclass(frozen=True, slots=True)
class BindQuery:
    """The pipeline is this query's, in this start of it, which reads these sources. Answer: None."""

    query: str
    run: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NameEpochs:
    """These epochs were read by this query; tables of before did not say so. Answer: None."""

    query: str
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Log:
    """Spark has logged these epochs. Answer: None."""

    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The branches of a global transaction that these words name are finished. Answer: frozenset of all such words."""

    gtrid: bytes
    words: Collection[str]


@dataclass(frozen=True, slots=True)
class FindIsolation:
    """Answer: the Isolation, or None where nothing was ever suspected."""


@dataclass(frozen=True, slots=True)
class Isolate:
    """The next try is planned so. Answer: None."""

    isolation: Isolation


@dataclass(frozen=True, slots=True)
class Failed:
    """The try failed with so many messages of the source at `place`, or EXCUSED. Answer: None."""

    gtrid: bytes
    messages: int
    place: int = -1


# --- the log -----------------------------------------------------
@dataclass(frozen=True, slots=True)
class Begin:
    """Answer: None, or the DecisionRefused."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Abort:
    """The final word on a global transaction: nothing decides it any more, unless it is. Answer: GtridState."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """Answer: the log's Entry, or None."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Undone:
    """Answer: the Decisions that have not ended."""


# --- the resource managers ---------------------------------------
@dataclass(frozen=True, slots=True)
class Scan:
    """Answer: the frozenset of the prepared branches of this log at a resource, or the XaError that kept it from
    telling them."""

    resource: str


@dataclass(frozen=True, slots=True)
class Fence:
    """No branch of the global transaction can be started or prepared at the resource any more, where it has fences.
    Answer: None, or the XaError."""

    resource: str
    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Count:
    """Answer: how many messages each prepared branch of the global transaction has taken, by xid; or the XaError."""

    resource: str
    gtrid: bytes


@dataclass(frozen=True, slots=True)
class Upsert:
    """Upsert what tasks have staged, under a branch of each database, and prepare these. Answer: the Branches, or the
    BatchRefused that says why they could not be; then none is left."""

    gtrid: bytes
    staged: tuple[Staged, ...]


@dataclass(frozen=True, slots=True)
class HasMessages:
    """Answer: whether one of the queues has a message, or the XaError."""

    resource: str
    queues: tuple[str, ...]


Effect: TypeAlias = (
    Call
    | Force
    | Note
    | End
    | Pause
    | Standing
    | FindEpoch
    | FindPlanned
    | FindLater
    | FindWaiting
    | FindKnown
    | FindUnlogged
    | FindBatch
    | Allot
    | Plan
    | PlanAgain
    | Replayed
    | Sink
    | Bind
    | BindQuery
    | NameEpochs
    | Log
    | Finished
    | FindIsolation
    | Isolate
    | Failed
    | Begin
    | Abort
    | Look
    | Undone
    | Scan
    | Fence
    | Count
    | Upsert
    | HasMessages
)
