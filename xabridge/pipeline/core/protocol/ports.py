"""The ports of the pipeline's algorithms: all calls of the driver's side to its environment.

The algorithms (which query has the pipeline, what a micro-batch reads, its commit and abort, recovery) are coroutines
without I/O. They await the methods of these ports and nothing else:

- in a driver the ports block (`xabridge.pipeline.core.driver.open_pipeline`), so that a coroutine never suspends, and
  `drive` runs it to its end on the caller's thread;
- in a simulation each port call suspends the coroutine. So every call is a point where the process may die, and where
another process may act (`tests/simulation/pipeline`).

An error that an algorithm goes on with is an answer, in the type of the method. The ledger and the log raise LogError
when nothing can go on: NodeTakenOver, once another driver has the pipeline, and LogStopped, while the database can't be
reached. Every call may be made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from tm.log import Branch, Decision, Heuristic, LogError
    from tm.log.sql.gtrids import Entry
    from tm.log.sql.states import GtridState
    from tm.two_phase.ports import Answer
    from tm.two_phase.return_codes import Verb
    from xa import XaError, Xid
    from xabridge.pipeline.core.errors import BatchRefused
    from xabridge.pipeline.core.ledger.rows import BatchRow, EpochRow, PipelineOwnership, PipelineRow, PlannedEpochs
    from xabridge.pipeline.core.protocol.isolation import Isolation
    from xabridge.pipeline.core.shards import PlannedRead, Shard
    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import Staged

T = TypeVar("T")


class LedgerPort(Protocol):
    """The ledger of one pipeline, under one incarnation: who has the pipeline, its epochs, and the last micro-batch of
    each query."""

    # --- questions --------------------------------------------------------------------------------------------------
    async def row(self) -> PipelineRow:
        """The pipeline's own row. NodeTakenOver: another driver has the pipeline."""
        ...

    async def epoch(self, epoch: int) -> EpochRow | None:
        """The row of this epoch."""
        ...

    async def planned(self, gtrid: bytes) -> PlannedEpochs:
        """The epochs that were planned last under this global transaction."""
        ...

    async def later(self, query: str, place: int, epoch: int) -> Sequence[EpochRow]:
        """The epochs after this one that the query's source at this place has read."""
        ...

    async def waiting(self, query: str | None = None) -> Sequence[EpochRow]:
        """The epochs of this query (None: of any query) that read something and that Spark is not known to have
        logged."""
        ...

    async def known(self, query: str = "") -> PipelineOwnership:
        """The pipeline's record when this query asks for it. NodeTakenOver: another driver has the pipeline."""
        ...

    async def unlogged(self, upto: int) -> Sequence[EpochRow]:
        """This epoch, and those that its checkpoint read before it, as far as Spark is not known to have logged them;
        the oldest first."""
        ...

    async def last_batch(self, query: str) -> BatchRow | None:
        """The last micro-batch of this query."""
        ...

    async def isolation(self) -> Isolation | None:
        """How the last try was planned, and whether it failed; None: no message was ever suspected."""
        ...

    async def unfenced(self) -> Collection[tuple[str, bytes]]:
        """The global transactions, with the resource, that were planned to read there and are not known to be fenced
        there."""
        ...

    # --- changes ----------------------------------------------------------------------------------------------------
    async def allot(self) -> int:
        """Allots the number of a new epoch. A number that is never used does no harm."""
        ...

    async def plan(
        self,
        epoch: int,
        previous: int,
        gtrid: bytes,
        tries: int,
        read: PlannedRead,
        query: str = "",
        place: int = 0,
        fenced: Collection[tuple[str, bytes]] = (),
    ) -> None:
        """Gives the epoch, which follows `previous`, to this global transaction, which becomes the one
        that was planned last. It may read at the resources of its shards, until it is known to be fenced there. Those
        in `fenced` are."""
        ...

    async def plan_replay(self, gtrid: bytes) -> None:
        """Notes that what this global transaction decided is going to be read again."""
        ...

    async def end_replay(self) -> None:
        """Notes that what was planned to be read again has been read."""
        ...

    async def mark_sink(self, gtrid: bytes) -> None:
        """A sink of ours was planned for this global transaction."""
        ...

    async def bind_batch(self, query: str, batch: int, gtrid: bytes, offsets: str = "") -> None:
        """This is the query's last micro-batch. It is decided if the global transaction is."""
        ...

    async def bind_query(self, query: str, run: str, sources: Sequence[str]) -> None:
        """The pipeline belongs to this start of this query, which reads these sources."""
        ...

    async def mark_logged(self, epochs: Collection[int]) -> None:
        """Spark has logged these epochs."""
        ...

    async def set_isolation(self, isolation: Isolation) -> None:
        """The next try is planned like this."""
        ...

    async def note_failure(self, gtrid: bytes, messages: int, place: int = -1, shard: Shard | None = None) -> None:
        """The try failed with so many messages of this shard of the source at `place`, or EXCUSED: no message is to
        blame. What is excused stays excused."""
        ...

    async def mark_finished(self, gtrid: bytes, words: Collection[str]) -> frozenset[str]:
        """The branches of the global transaction that these words name are finished. Returns all such words."""
        ...


class LogPort(Protocol):
    """The pipeline's decision log."""

    async def begin(self, gtrid: bytes) -> LogError | None:
        """Begins a global transaction; or the refusal."""
        ...

    async def force(self, decision: Decision) -> LogError | None:
        """Makes the decision durable: the commit point; or the error. After LogStopped the outcome is unknown."""
        ...

    async def force_with_rows(self, decision: Decision, staged: Sequence[StagedRows]) -> LogError | BatchRefused | None:
        """The same, by a transaction of the log's database that also writes these rows: the decision is durable if and
        only if they are. BatchRefused: they could not be written, and nothing is decided."""
        ...

    async def abort(self, gtrid: bytes) -> GtridState:
        """Decides that the global transaction is aborted, unless it is decided already. The answer is final."""
        ...

    async def entry(self, gtrid: bytes) -> Entry | None:
        """The log's record of the global transaction."""
        ...

    async def decisions(self) -> Sequence[Decision]:
        """The decisions that have not ended."""
        ...

    async def end(self, decision: Decision) -> None:
        """Notes, lazily, that every branch of the decision is finished."""
        ...

    async def note(self, heuristic: Heuristic) -> LogError | None:
        """Makes a heuristic outcome durable; or the error."""
        ...


class BranchPort(Protocol):
    """The resource managers, by name. XaError as an answer: the resource manager could not be asked, or refused."""

    async def ask(self, verb: Verb, branches: Sequence[Branch]) -> list[Answer]:
        """Asks `verb` of every branch, overlapped; the answers are in the order of the branches."""
        ...

    async def prepared(self, resource: str) -> frozenset[Xid] | XaError:
        """The prepared branches of this pipeline's log."""
        ...

    async def fence(self, resource: str, gtrid: bytes) -> XaError | None:
        """Bars the global transaction there: no branch of it can be started or prepared from now on. A database has no
        fences, and answers None."""
        ...

    async def message_counts(self, resource: str, gtrid: bytes) -> Mapping[Xid, int] | XaError:
        """How many messages each prepared branch of the global transaction has taken."""
        ...

    async def write_staged(self, gtrid: bytes, staged: Sequence[Staged]) -> Sequence[Branch] | BatchRefused:
        """Upserts staged rows and appends staged files, under one branch for each database and each lake, and prepares
        these branches. After BatchRefused none of them is left."""
        ...

    async def has_messages(self, resource: str, queues: Sequence[str]) -> bool | XaError:
        """Whether one of the queues has a message."""
        ...

    async def count_messages(self, resource: str, queues: Sequence[str]) -> int | XaError:
        """How many messages the queues have."""
        ...

    async def queues(self, resource: str, patterns: Sequence[str]) -> Mapping[str, int] | XaError:
        """The queues that match one of the patterns, with how many messages each has; without queues for dead
        letters."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the driver's algorithms."""

    ledger: LedgerPort
    log: LogPort
    branches: BranchPort
    pause: Callable[[float], Coroutine[Any, Any, None]]
    """Waits for so many seconds."""
