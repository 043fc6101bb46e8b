"""SqlLedger: the ledger of a pipeline in the database of its log.

It is opened by `xabridge.pipeline.core.ledger.opener`. The tables are in `xabridge.pipeline.core.ledger.schema`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import bindparam, delete, func, literal, select, text, true, update

from tm.log.sql import retry
from tm.log.sql.gtrids import NodeTakenOver
from tm.log.sql.states import GtridState
from tm.log.sql.tables import GTRIDS, NODE
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.ledger.refusals import not_bound, read_by_another, taken, taken_meanwhile
from xabridge.pipeline.core.ledger.rows import (
    BatchRow,
    EpochRow,
    Lag,
    PipelineOwnership,
    PipelineRow,
    PlannedEpochs,
    QueryRow,
    ResultRow,
)
from xabridge.pipeline.core.ledger.schema import BATCH, EPOCH, ISOLATION, PIPELINE, QUERY, RESULT, SOURCE, UNFENCED
from xabridge.pipeline.core.protocol.isolation import Isolation
from xabridge.pipeline.core.shards import PlannedRead, Shard, shard_as_text, shard_from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from sqlalchemy import Connection, Executable, Select

    from tm.log.sql import SqlLog
    from tm.log.sql.database import Database

T = TypeVar("T")

KEEP_S: Final = 24 * 3600.0
"""How long gtrids that are done are kept, for people."""
KEEP_EPOCHS: Final = 1000
"""How many epochs are kept, for people."""
KEEP_RESULTS: Final = 200
"""Of how many epochs the results are kept, for people."""
FORGET_EVERY: Final = 50
"""Old rows are removed by the first of so many changes."""


# --- questions, made once: making one takes longer than asking it -----------------------------------------------------
_MINE: Final = EPOCH.c.pipeline == bindparam("pipeline")
_NODE: Final = select(NODE.c.epoch).where(NODE.c.node == bindparam("pipeline")).with_for_update(read=True)
_READS: Final = EPOCH.c.source != ""
_ROW: Final = select(PIPELINE).where(PIPELINE.c.pipeline == bindparam("pipeline"))
_EPOCH: Final = select(EPOCH).where(_MINE, EPOCH.c.epoch == bindparam("epoch"))
_PLANNED: Final = select(EPOCH).where(_MINE, EPOCH.c.gtrid == bindparam("gtrid")).order_by(EPOCH.c.epoch)
_LATER: Final = (
    select(EPOCH)
    .where(_MINE, EPOCH.c.query == bindparam("query"), EPOCH.c.place == bindparam("place"))
    .where(EPOCH.c.epoch > bindparam("epoch"), _READS)
    .order_by(EPOCH.c.epoch)
)
_WAITING: Final = select(EPOCH).where(_MINE, EPOCH.c.logged.is_(False), _READS).order_by(EPOCH.c.epoch)
_WAITING_OF_QUERY: Final = _WAITING.where(EPOCH.c.query == bindparam("query"))
_LAST_BATCH: Final = select(BATCH).where(BATCH.c.pipeline == bindparam("pipeline"), BATCH.c.query == bindparam("query"))
_DECIDED_BATCHES: Final = (
    select(BATCH)
    .join(GTRIDS, GTRIDS.c.gtrid == BATCH.c.gtrid)
    .where(BATCH.c.pipeline == bindparam("pipeline"))
    .where(GTRIDS.c.state.in_((GtridState.COMMITTED.value, GtridState.DONE.value)))
)
_DECIDED_BATCH: Final = _DECIDED_BATCHES.where(BATCH.c.query == bindparam("query"))
_BOUND: Final = select(QUERY.c.query, QUERY.c.run, QUERY.c.incarnation).where(QUERY.c.pipeline == bindparam("pipeline"))
_ISOLATION: Final = select(ISOLATION).where(ISOLATION.c.pipeline == bindparam("pipeline"))
_UNFENCED: Final = select(UNFENCED.c.resource, UNFENCED.c.gtrid).where(UNFENCED.c.pipeline == bindparam("pipeline"))


class SqlLedger:
    """The ledger of one pipeline, under one incarnation, in the database of its log: a `LedgerPort` whose methods
    block, so that they never suspend a coroutine."""

    def __init__(self, database: Database, log: SqlLog, sleep: Callable[[float], None]) -> None:
        self.log = log
        self.pipeline = log.node
        self._database = database
        self._sleep = sleep
        self._turns = {"epochs": 0, "results": 0}
        self.ask_lag: Callable[[], Lag | None] = lambda: None
        """Tells what waits, as far as it is known. It is asked when a try is planned, and noted with it."""

    def close(self) -> None:
        """Lets go of the log and the database."""
        self.log.close()
        self._database.engine.dispose()

    # --- questions -------------------------------------------------------------------------------------------
    async def row(self) -> PipelineRow:
        row = self._read(lambda: read_pipeline(self._database, self.pipeline))
        if row is None or row.incarnation != self.log.epoch:
            raise NodeTakenOver(taken(self.pipeline, row, f"this process belongs to incarnation {self.log.epoch}"))
        return row

    async def epoch(self, epoch: int) -> EpochRow | None:
        found = self._epochs(_EPOCH, epoch=epoch)
        return found[0] if found else None

    async def planned(self, gtrid: bytes) -> PlannedEpochs:
        return PlannedEpochs(tuple(self._epochs(_PLANNED, gtrid=gtrid)))

    async def later(self, query: str, place: int, epoch: int) -> Sequence[EpochRow]:
        return self._epochs(_LATER, query=query, place=place, epoch=epoch)

    async def waiting(self, query: str | None = None) -> Sequence[EpochRow]:
        return self._epochs(_WAITING) if query is None else self._epochs(_WAITING_OF_QUERY, query=query)

    def bound(self) -> QueryRow | None:
        """The query that the pipeline is bound to."""
        rows = self._rows(_BOUND)
        return QueryRow(*rows[0]) if rows else None

    def decided_batch(self, query: str) -> BatchRow | None:
        """The last micro-batch of this query, if it is decided."""
        rows = self._rows(_DECIDED_BATCH, query=query)
        return _batch_row(rows[0]) if rows else None

    async def known(self, query: str = "") -> PipelineOwnership:
        found = self._read(lambda: read_ownership(self._database, self.pipeline, query))
        await self.row()  # after reading: nothing was changed until here
        return found

    async def unlogged(self, upto: int) -> Sequence[EpochRow]:
        found: list[EpochRow] = []
        row = await self.epoch(upto)
        while row is not None and not row.logged:
            found.append(row)
            row = await self.epoch(row.previous)
        return found[::-1]

    async def last_batch(self, query: str) -> BatchRow | None:
        rows = self._rows(_LAST_BATCH, query=query)
        return _batch_row(rows[0]) if rows else None

    async def isolation(self) -> Isolation | None:
        rows = self._rows(_ISOLATION)
        return _isolation_row(rows[0]) if rows else None

    async def unfenced(self) -> Collection[tuple[str, bytes]]:
        return sorted((row.resource, bytes(row.gtrid)) for row in self._rows(_UNFENCED))

    # --- changes ----------------------------------------------------------------------------------------
    async def allot(self) -> int:
        more = self._update(epoch=PIPELINE.c.epoch + 1).returning(PIPELINE.c.epoch)
        return int(self._change_one("an epoch's number", more)[0].epoch)

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
        lag = self.ask_lag()
        insert = self._database.insert(EPOCH).values(
            pipeline=self.pipeline,
            epoch=epoch,
            previous=previous,
            gtrid=gtrid,
            tries=tries,
            source=read.resources[0] if read.resources else "",
            shards=read.as_text(),
            sunk=False,
            logged=False,
            finished="",
            planned_at=self._database.now(),
            query=query,
            place=place,
            decided_at=None,
            logged_at=None,
            waiting=lag.waiting if lag is not None else None,
            oldest_at=lag.oldest_at if lag is not None else None,
        )

        names = (
            "gtrid", "tries", "source", "shards", "sunk", "planned_at", "query", "place", "decided_at", "logged_at",
            "waiting", "oldest_at",
        )  # fmt: skip
        row = insert.on_conflict_do_update(
            index_elements=[EPOCH.c.pipeline, EPOCH.c.epoch], set_={name: insert.excluded[name] for name in names}
        )
        over = [
            delete(UNFENCED).where(
                UNFENCED.c.pipeline == self.pipeline, UNFENCED.c.resource == resource, UNFENCED.c.gtrid == old
            )
            for resource, old in sorted(fenced)
        ]
        reads = [
            self._database.insert(UNFENCED)
            .values(pipeline=self.pipeline, resource=resource, gtrid=gtrid)
            .on_conflict_do_nothing()
            for resource in sorted({shard.resource for shard in read.shards})
        ]
        self._changes("a plan", row, self._update(gtrid=gtrid, again=0), *over, *reads)

    async def plan_replay(self, gtrid: bytes) -> None:
        replaying = self._update(gtrid=gtrid, again=self.log.epoch)
        self._change_one("a plan", replaying.returning(PIPELINE.c.pipeline))

    async def end_replay(self) -> None:
        self._change_one("the end of a replay", self._update(again=0).returning(PIPELINE.c.pipeline))

    async def mark_sink(self, gtrid: bytes) -> None:
        self._change_one("a sink's plan", self._update_epochs(gtrid).values(sunk=True).returning(EPOCH.c.epoch))

    async def bind_batch(self, query: str, batch: int, gtrid: bytes, offsets: str = "") -> None:
        row = {"query": query, "batch": batch, "gtrid": gtrid, "offsets": offsets}
        values = [literal(value, BATCH.c[name].type) for name, value in row.items()]
        held = select(NODE.c.node, *values).where(NODE.c.node == self.pipeline, NODE.c.epoch == self.log.epoch)
        insert = self._database.insert(BATCH).from_select(["pipeline", *row], held.with_for_update(read=True))
        binding = insert.on_conflict_do_update(
            index_elements=[BATCH.c.pipeline, BATCH.c.query], set_={name: insert.excluded[name] for name in row}
        )
        self._change_one("a batch", binding.returning(BATCH.c.batch))

    async def bind_query(self, query: str, run: str, sources: Sequence[str]) -> None:
        row = {"query": query, "run": run, "incarnation": self.log.epoch, "bound_at": self._database.now()}
        insert = self._database.insert(QUERY).values(pipeline=self.pipeline, **row)
        binding = insert.on_conflict_do_update(
            index_elements=[QUERY.c.pipeline], set_={name: insert.excluded[name] for name in row}
        )
        places = [
            SOURCE.insert().values(pipeline=self.pipeline, place=place, source=source, process="")
            for place, source in enumerate(sources)
        ]
        self._changes("a query", binding, delete(SOURCE).where(SOURCE.c.pipeline == self.pipeline), *places)

    def claim(self, source: str, process: str) -> tuple[str, int]:
        """Claims a source for `process`, which plans it from now on. Returns the query that reads it, and its place
        there. PipelineTaken: the pipeline is not bound to a query that reads it, or another process plans it."""

        def change(connection: Connection) -> tuple[str, int]:
            row = connection.execute(select(QUERY).where(QUERY.c.pipeline == self.pipeline)).one_or_none()
            if row is None or row.incarnation != self.log.epoch:
                raise PipelineTaken(not_bound(self.pipeline))
            mine = (SOURCE.c.pipeline == self.pipeline, SOURCE.c.source == source)
            place = connection.execute(select(SOURCE.c.place, SOURCE.c.process).where(*mine)).one_or_none()
            if place is None:
                raise PipelineTaken(read_by_another(self.pipeline, row.query, f"does not read {source}"))
            if place.process not in {"", process}:
                raise PipelineTaken(read_by_another(self.pipeline, row.query, f"reads it in process {place.process}"))
            connection.execute(update(SOURCE).where(*mine).values(process=process))
            return row.query, place.place

        return self._change("a source's process", change)

    async def mark_logged(self, epochs: Collection[int]) -> None:
        decided_at = (  # the log forgets it when the decision ends, which comes after this
            select(GTRIDS.c.changed_at)
            .where(GTRIDS.c.gtrid == EPOCH.c.gtrid, GTRIDS.c.state == GtridState.COMMITTED.value)
            .scalar_subquery()
        )
        times = {
            "decided_at": func.coalesce(EPOCH.c.decided_at, decided_at),
            "logged_at": func.coalesce(EPOCH.c.logged_at, self._database.now()),
        }
        these = update(EPOCH).where(EPOCH.c.pipeline == self.pipeline, EPOCH.c.epoch.in_(epochs), self._held)
        self._change_one("what Spark has logged", these.values(logged=True, **times).returning(EPOCH.c.epoch))
        if self._is_turn("epochs"):
            self._forget(max(epochs, default=0) - KEEP_EPOCHS)

    def _forget(self, last: int) -> None:
        """Removes the rows of epochs up to this one that Spark has logged."""
        if last <= 0:
            return
        old = (EPOCH.c.pipeline == self.pipeline, EPOCH.c.epoch <= last, EPOCH.c.logged.is_(True))
        forgotten = select(func.max(EPOCH.c.epoch)).where(*old).scalar_subquery()
        noting = self._update(forgotten=forgotten).where(PIPELINE.c.forgotten < forgotten)
        self._changes("what is forgotten", noting, delete(EPOCH).where(*old))

    async def set_isolation(self, isolation: Isolation) -> None:
        self._changes("an isolation", self._isolating(isolation))

    async def note_failure(self, gtrid: bytes, messages: int, place: int = -1, shard: Shard | None = None) -> None:

        def change(connection: Connection) -> None:
            row = connection.execute(_ISOLATION, {"pipeline": self.pipeline}).one_or_none()
            changed = (Isolation(b"") if row is None else _isolation_row(row)).after(gtrid, messages, place, shard)
            connection.execute(self._isolating(changed))

        self._change("a failure", change)

    def _isolating(self, isolation: Isolation) -> Any:
        values = {
            "gtrid": isolation.gtrid,
            "suspects": isolation.suspects,
            "aside": isolation.aside,
            "failed": isolation.failed,
            "place": isolation.place,
            "shard": shard_as_text(isolation.shard),
        }
        insert = self._database.insert(ISOLATION).values(pipeline=self.pipeline, **values)
        return insert.on_conflict_do_update(
            index_elements=[ISOLATION.c.pipeline], set_={name: insert.excluded[name] for name in values}
        )

    async def mark_finished(self, gtrid: bytes, words: Collection[str]) -> frozenset[str]:
        more = EPOCH.c.finished + "".join(f" {word}" for word in sorted(words))
        marking = self._update_epochs(gtrid).values(finished=more).returning(EPOCH.c.finished)
        known = self._change_one("what is finished", marking)
        return frozenset(words).union(*(row.finished.split() for row in known))

    def note_result(self, result: ResultRow) -> None:
        """Notes what a batch did. Nothing depends on it, so PostgreSQL need not force it to the disk."""
        values = asdict(result)
        insert = self._database.insert(RESULT)
        if self._database.is_sqlite:
            insert = insert.values(pipeline=self.pipeline, **values)
        else:
            named = {"pipeline": self.pipeline, **values}
            unforced = select(func.set_config("synchronous_commit", "off", true())).cte("unforced")
            row = select(*(literal(value, RESULT.c[name].type) for name, value in named.items())).select_from(unforced)
            insert = insert.from_select(list(named), row)

        noting = insert.on_conflict_do_update(
            index_elements=[RESULT.c.pipeline, RESULT.c.gtrid], set_={name: insert.excluded[name] for name in values}
        )
        self._change_one("a result", noting.returning(RESULT.c.epoch))
        if self._is_turn("results"):
            old = (RESULT.c.pipeline == self.pipeline, RESULT.c.epoch <= result.epoch - KEEP_RESULTS)
            self._changes("old results", delete(RESULT).where(*old))

    def _is_turn(self, what: str) -> bool:
        turn = self._turns[what]
        self._turns[what] = (turn + 1) % FORGET_EVERY
        return turn == 0

    def purge(self, older_than_s: float = KEEP_S) -> int:
        """Removes the gtrids that are not needed any more, and returns their number."""
        needed = select(EPOCH.c.gtrid).where(
            EPOCH.c.pipeline == self.pipeline, EPOCH.c.logged.is_(False), EPOCH.c.source != ""
        )
        last = select(BATCH.c.gtrid).where(BATCH.c.pipeline == self.pipeline)
        keep = [bytes(row[0]) for row in (*self._rows(needed), *self._rows(last))]
        return self.log.purge(older_than_s=older_than_s, keep=keep)

    # --- statements ---------------------------------------------------------------------------------------------
    @property
    def _held(self) -> Any:
        """The condition of a change of one statement: the pipeline is under this incarnation, and no process takes it
        until the change is durable."""
        node = select(NODE.c.epoch).where(NODE.c.node == self.pipeline).with_for_update(read=True)
        return node.scalar_subquery() == self.log.epoch

    def _update(self, **values: Any) -> Any:
        return update(PIPELINE).where(PIPELINE.c.pipeline == self.pipeline, self._held).values(**values)

    def _update_epochs(self, gtrid: bytes) -> Any:
        return update(EPOCH).where(EPOCH.c.pipeline == self.pipeline, EPOCH.c.gtrid == gtrid, self._held)

    def _epochs(self, asked: Select[Any], **values: Any) -> Sequence[EpochRow]:
        return [_epoch_row(row) for row in self._rows(asked, **values)]

    def _rows(self, asked: Select[Any], **values: Any) -> Sequence[Any]:
        def read() -> Sequence[Any]:
            with self._database.engine.connect() as connection:
                return connection.execute(asked, {"pipeline": self.pipeline, **values}).all()

        return self._read(read)

    def _change_one(self, what: str, statement: Executable) -> Sequence[Any]:
        """Makes a change of one statement, and returns the rows that it returns, one for each row that it changed.
        NodeTakenOver: it changed none, and the pipeline is under another incarnation."""

        def attempt() -> Sequence[Any]:
            with self._database.writing(), self._database.engine.connect() as connection:
                return connection.execute(statement).all()

        rows = retry.change(attempt, f"{what} in {self._database}", self._sleep)
        if not rows:
            self._changes(what)  # which changes nothing, but compares the incarnation
        return rows

    def _changes(self, what: str, *statements: Executable) -> None:
        def change(connection: Connection) -> None:
            for statement in statements:
                connection.execute(statement)

        self._change(what, change)

    def _change(self, what: str, change: Callable[[Connection], T]) -> T:
        def attempt() -> T:
            with changing(self._database, self.pipeline, self.log.epoch) as connection:
                return change(connection)

        return retry.change(attempt, f"{what} in {self._database}", self._sleep)

    def _read(self, action: Callable[[], T]) -> T:
        return retry.read(action, f"reading {self._database}", self._sleep)


@contextmanager
def changing(database: Database, pipeline: str, incarnation: int) -> Iterator[Connection]:
    """A transaction during which the pipeline stays under this incarnation. NodeTakenOver: it is under another one."""
    with database.writing(), database.engine.connect() as connection:
        connection.execute(text("BEGIN IMMEDIATE" if database.is_sqlite else "BEGIN"))
        try:
            _hold(connection, pipeline, incarnation)
            yield connection
        except BaseException:
            connection.execute(text("ROLLBACK"))
            raise
        connection.execute(text("COMMIT"))


def _hold(connection: Connection, pipeline: str, incarnation: int) -> None:
    """Locks the pipeline, so that no process takes it until the transaction is over. NodeTakenOver: another process has
    it."""
    row = connection.execute(_NODE, {"pipeline": pipeline}).one_or_none()
    if row is None or row.epoch != incarnation:
        raise NodeTakenOver(taken_meanwhile(pipeline, row.epoch if row else 0, incarnation))


def read_ownership(database: Database, pipeline: str, query: str) -> PipelineOwnership:
    """The pipeline's owner, as this query has to know it when it asks for the pipeline."""
    mine = {"pipeline": pipeline}
    others = select(QUERY.c.pipeline).where(QUERY.c.query == query, QUERY.c.pipeline != pipeline)
    with database.engine.connect() as connection:
        row = connection.execute(_BOUND, mine).one_or_none()
        elsewhere = tuple(connection.execute(others.order_by(QUERY.c.pipeline)).scalars())
        decided = {one.query: _batch_row(one) for one in connection.execute(_DECIDED_BATCHES, mine)}
    return PipelineOwnership(None if row is None else QueryRow(*row), decided, elsewhere)


def _batch_row(row: Any) -> BatchRow:
    return BatchRow(row.batch, bytes(row.gtrid), row.offsets)


def _epoch_row(row: Any) -> EpochRow:
    return EpochRow(
        row.epoch,
        bytes(row.gtrid),
        row.tries,
        PlannedRead.from_text(row.shards),
        row.previous,
        bool(row.sunk),
        bool(row.logged),
        frozenset(row.finished.split()),
        row.planned_at,
        row.query,
        row.place,
    )


def _isolation_row(row: Any) -> Isolation:
    return Isolation(bytes(row.gtrid), row.suspects, row.aside, row.failed, row.place, shard_from_text(row.shard))


def read_results(
    database: Database, pipeline: str, last: int, batch: tuple[str, int] | None = None
) -> tuple[ResultRow, ...]:
    """What the last batches did, newest first; or those of this batch of a query."""
    names = [RESULT.c[field.name] for field in fields(ResultRow)]
    of_one = () if batch is None else (RESULT.c.query == batch[0], RESULT.c.batch == batch[1])
    asked = select(*names).where(RESULT.c.pipeline == pipeline, *of_one).order_by(RESULT.c.epoch.desc()).limit(last)
    with database.engine.connect() as connection:
        return tuple(ResultRow(bytes(row[0]), *row[1:]) for row in connection.execute(asked))


def read_pipeline(database: Database, pipeline: str) -> PipelineRow | None:
    """The row of a pipeline; None where there is none."""
    with database.engine.connect() as connection:
        row = connection.execute(_ROW, {"pipeline": pipeline}).one_or_none()
    return None if row is None else PipelineRow(*row)
