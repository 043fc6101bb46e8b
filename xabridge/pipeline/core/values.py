"""The values that driver and executors exchange, and that Spark keeps in its checkpoint: all of them can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from xabridge.pipeline.core.errors import EpochGone, PipelineError
from xabridge.shards import shard_queue

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from rm_delta.lake import TableWork
    from tm.log import Branch
    from xa import Xid
    from xabridge.pipeline.core.shards import Shard
    from xabridge.pipeline.core.task.staged_rows import StagedRows

    Staged: TypeAlias = "StagedRows | StagedFiles"

ROWS_PER_BATCH: Final = 100_000
OUTAGE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has read, as it stands in Spark's checkpoint: the number of an epoch. 0 is the beginning.

    A pipeline never gives a number twice, whatever becomes of checkpoints: an epoch is one set of messages, for good.
    """

    epoch: int = 0

    def as_json(self) -> dict[str, int]:
        """The form that Spark stores."""
        return {"epoch": self.epoch}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Offset:
        """The offset that Spark has stored; PipelineError for what is none."""
        epoch = stored.get("epoch")
        if set(stored) != {"epoch"} or isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise PipelineError(f"the checkpoint belongs to another source: {stored!r} is not an offset of a pipeline")
        return cls(epoch)


@dataclass(frozen=True, slots=True)
class Source:
    """A source: `shards`, one for each broker, whose queues may be patterns. It is read by `partitions` tasks, and by
    one for each broker at least; `rows` a batch at most in all."""

    shards: tuple[Shard, ...]
    partitions: int = 2
    rows: int = ROWS_PER_BATCH
    text: bool = False
    """Whether bodies have to be text."""
    bad_records: str = ""
    """`module:function`: is called with each message, and names the bad ones."""
    keep_bad: bool = False
    """Bad messages are rows, with the reason."""
    bad_address: str = ""
    """Bad messages are sent to this address of the broker, under the same decision."""
    octets: int = 0
    """So many octets of messages a batch has at most; 0: as many as its tasks can hold."""
    least: int = 0
    """A batch waits until there are so many messages."""
    delay_s: float = 0.0
    """But no longer than this; 0: without end."""
    by_queue: bool = False
    """Each queue is read by one task, so that its messages stay in order."""
    skips: bool = False
    """A broker that is away is skipped; otherwise it is waited for."""

    @property
    def resources(self) -> tuple[str, ...]:
        """The brokers."""
        return tuple(shard.resource for shard in self.shards)

    @property
    def is_uneven(self) -> bool:
        """Whether a task may take less than its share while others leave messages behind: each has its own queues."""
        return self.by_queue or len(self.shards) > 1

    def __str__(self) -> str:
        return "; ".join(map(str, self.shards))


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Rows go into `table` of the database `resource` (a name as SQL has it: `public.revenue`). With `key` (columns
    of a unique constraint) a row replaces the one that is there; `update` is the SET clause to do so with instead
    (`total = revenue.total + excluded.total`)."""

    resource: str
    table: str
    key: tuple[str, ...] = ()
    update: str = ""
    lock_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class LakeTarget:
    """Rows are appended to the Delta table `table` of the lake `resource`."""

    key: ClassVar[tuple[str, ...]] = ()
    resource: str
    table: str


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The files that an attempt has written for one table of a lake. No log names them yet."""

    target: LakeTarget
    work: TableWork

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(file.rows for file in self.work.files)


@dataclass(frozen=True, slots=True)
class AddressTarget:
    """Messages go to `address` of the broker `resource`; or, by the column `key`, to the queues of so many shards
    (`xabridge.shards`). The shards are here and at `others` in turn: broker and address of each."""

    resource: str
    address: str
    key: str = ""
    shards: int = 0
    others: tuple[tuple[str, str], ...] = ()

    def shard(self, shard: int) -> AddressTarget:
        """The queue of a shard."""
        places = ((self.resource, self.address), *self.others)
        resource, address = places[shard % len(places)]
        return AddressTarget(resource, shard_queue(address, shard))


@dataclass(frozen=True, slots=True)
class OnceSettings:
    """Rows are written once: `column` identifies a row, and the table `values` has the values of the rows that were
    written (a key and an update it has none)."""

    column: str
    values: TableTarget


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that every part of one pipeline knows. `log` is the URL of a `SqlLog`, on the driver's side;
    `resources` name → open string, of every resource manager that this part uses, as executors are to open it.
    `deciders` name → open string, of databases that are the log's: rows are written there with the decision."""

    pipeline: str
    log: str = field(repr=False)
    resources: tuple[tuple[str, str], ...] = field(repr=False)
    deciders: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    adopt: str = ""
    """The query whose pipeline a new one takes over."""
    outage_s: float = OUTAGE_S
    """How long a broker or a database may be away before a batch fails."""

    def url(self, resource: str) -> str:
        """The open string of `resource`; PipelineError for one that is not configured."""
        for name, url in self.resources:
            if name == resource:
                return url
        known = ", ".join(name for name, _ in self.resources) or "none"
        raise PipelineError(f"pipeline {self.pipeline}: there is no resource {resource!r} (configured: {known})")

    def decides(self, resource: str) -> bool:
        """Whether rows for this resource are written with the decision."""
        return any(name == resource for name, _ in self.deciders)

    def table_url(self, resource: str) -> str:
        """The open string of a database, also of one that decides; PipelineError as `url`."""
        return dict(self.deciders).get(resource) or self.url(resource)


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """One task's part of an epoch: what to do is said by the branch `xid`, which is the same in each attempt.

    `share` is how many messages it may take; 0: none, the epoch is decided, and what the branch holds is read again.
    `query` is the query that reads (empty for a job without streaming); its batches up to `decided` are decided, but
    for one that is read again.
    """

    pipeline: str
    epoch: int
    index: int
    xid: Xid
    resource: str
    url: str = field(repr=False)
    queues: tuple[str, ...]
    share: int
    query: str = ""
    decided: int = -1
    aside: int = 0
    """So many of the messages that it takes are set aside: `xabridge.pipeline.core.protocol.isolation`."""
    text: bool = False
    bad_records: str = ""
    keep_bad: bool = False
    bad_address: str = ""
    outage_s: float = OUTAGE_S
    octets: int = 0
    """So many octets it takes at most; 0: as many as a task can hold."""

    def check(self, query: str, batch: int | None) -> None:
        """For a task of this query and batch, before it takes anything ("" and None: Spark says nothing of them).
        PipelineError: what was planned for another one is not its own. EpochGone: the batch is decided."""
        if self.query and query and query != self.query:
            raise PipelineError(
                f"pipeline {self.pipeline!r}: epoch {self.epoch} was planned for query {self.query}, but query {query} "
                "reads it. A pipeline belongs to one query: give this one a pipeline of its own"
            )
        if query and not self.query:
            raise PipelineError(
                f"pipeline {self.pipeline!r} is read by a batch job inside of streaming query {query}, whose decision "
                "would not contain it: read it by spark.readStream, as a source of the query"
            )
        if self.query and batch is not None and batch <= self.decided:
            raise EpochGone(
                f"batch {batch} of query {self.query} would take new messages, but it is decided (the last decided "
                f"batch is {self.decided}): the checkpoint is older than what was decided. Restore the newest one"
            )


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The plan for the tasks of one micro-batch's sink, and for its commit. Where `decided`, the batch was decided
    before: tasks read their rows and write nothing. `query` is the query that writes; empty for a job without
    streaming."""

    pipeline: str
    gtrid: bytes
    epoch: int
    incarnation: int
    resources: tuple[tuple[str, str], ...] = field(repr=False)
    decided: bool = False
    query: str = ""
    outage_s: float = OUTAGE_S
    deciders: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    skipped: tuple[str, ...] = ()
    """Brokers that the batch does not read, because they were away when it was planned."""
    unfinished: tuple[str, ...] = ()
    """Resources where an earlier batch was not finished when this one was planned."""

    def check(self, query: str) -> None:
        """For a task of this query ("": of none), before it writes. PipelineError: it was planned for another one."""
        if query == self.query:
            return
        if not self.query:
            raise PipelineError(
                f"pipeline {self.pipeline!r} is written by a batch job inside of streaming query {query}, whose "
                "decision would not contain it: in foreachBatch, write by pipeline.epoch"
            )
        raise PipelineError(
            f"pipeline {self.pipeline!r} was planned for query {self.query}, but query {query or 'none'} writes. A "
            "pipeline belongs to one query: give this one a pipeline of its own"
        )

    def url(self, resource: str) -> str:
        """The open string of `resource`; PipelineError for one that is not configured."""
        return self._settings.url(resource)

    def decides(self, resource: str) -> bool:
        """Whether rows for this resource are written with the decision."""
        return self._settings.decides(resource)

    def table_url(self, resource: str) -> str:
        """The open string of a database, also of one that decides; PipelineError as `url`."""
        return self._settings.table_url(resource)

    @property
    def _settings(self) -> Settings:
        return Settings(self.pipeline, "", self.resources, self.deciders)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt of which task writes: what Spark's TaskContext says (`task` is taskAttemptId)."""

    partition: int
    task: int


@dataclass(frozen=True, slots=True)
class SinkReport:
    """A task's report to the driver when its branches are prepared: the task's WriterCommitMessage."""

    partition: int
    task: int
    gtrid: bytes
    branches: tuple[Branch, ...]
    rows: int = 0
    messages: int = 0
    prepare_s: float = 0.0
    staged: tuple[Staged, ...] = ()
    """Rows by key, which the driver upserts, and files, which it appends."""
    octets: int = 0
    """Of the rows and the messages that it wrote."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as Spark names it: `query` is the id that stands in the checkpoint (the local property
    `sql.streaming.queryId`), `number` the batch id. None of a batch is both: a job without streaming. `offsets` is a
    digest of what the checkpoint says that it reads, where that is known."""

    query: str
    number: int
    offsets: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """A start of a streaming query, as Spark tells of it: its id, which stands in its checkpoint; the id of this start;
    and the last micro-batch that the checkpoint has planned (-1: none). `adopt` is the id of the query whose pipeline
    it takes over with a new checkpoint. `foreign` are the streams that it reads besides our sources: how far they were
    read stands in the checkpoint only."""

    id: str
    run: str
    planned: int = -1
    adopt: str = ""
    foreign: tuple[str, ...] = ()
