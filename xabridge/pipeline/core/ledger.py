"""Ledger: who has a pipeline, its epochs and its last batches, beside the decisions in its log.

It is opened by `xabridge.pipeline.core.entrance`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import delete, func, select, text, update

from tm.log.sql import retry
from tm.log.sql.gtrids import TakenOver
from tm.log.sql.states import GtridState
from tm.log.sql.tables import GTRIDS, NODE
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.isolation import Isolation
from xabridge.pipeline.core.tables import BATCH, EPOCH, ISOLATION, PIPELINE, QUERY, SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Executable

    from tm.log.sql import SqlLog
    from tm.log.sql.database import Database

T = TypeVar("T")

KEEP_S: Final = 24 * 3600.0
"""How long gtrids that are done are kept, for people."""
KEEP_EPOCHS: Final = 1000
"""How many epochs are kept, for people."""


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline, as `xabridge.pipeline.core.tables` says."""

    pipeline: str
    incarnation: int
    driver: str
    reader: str
    taken_at: float
    epoch: int
    forgotten: int
    gtrid: bytes | None
    again: int


@dataclass(frozen=True, slots=True)
class EpochRow:
    """An epoch, as `xabridge.pipeline.core.tables` says."""

    epoch: int
    gtrid: bytes
    tries: int
    source: str
    previous: int = 0
    sunk: bool = False
    logged: bool = False
    finished: frozenset[str] = frozenset()
    planned_at: float = 0.0
    query: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True)
class Planned:
    """What was planned under one global transaction: the epochs that it has now, one for each source that is read, or
    one that reads nothing. None of them: they are forgotten."""

    epochs: tuple[EpochRow, ...]

    @property
    def epoch(self) -> int:
        """The number that people are told."""
        return self.epochs[0].epoch

    @property
    def sources(self) -> tuple[str, ...]:
        """The resources that are read, sorted."""
        return tuple(sorted({row.source for row in self.epochs if row.source}))

    @property
    def sunk(self) -> bool:
        """Whether a sink of ours was planned."""
        return any(row.sunk for row in self.epochs)

    @property
    def logged(self) -> bool:
        """Whether Spark is known to have logged it; so it is with what is forgotten."""
        return all(row.logged for row in self.epochs)

    @property
    def finished(self) -> frozenset[str]:
        """Whose branches are finished."""
        return frozenset().union(*(row.finished for row in self.epochs))

    def as_logged(self) -> Planned:
        """The same, now that Spark has logged it."""
        return Planned(tuple(replace(row, logged=True) for row in self.epochs))


@dataclass(frozen=True, slots=True)
class BatchRow:
    """The last micro-batch of a query."""

    batch: int
    gtrid: bytes
    offsets: str = ""


@dataclass(frozen=True, slots=True)
class QueryRow:
    """The query that has a pipeline, as `xabridge.pipeline.core.tables` says."""

    query: str
    run: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a pipeline when a query asks for it: the query that has it, the last micro-batch of each query
    that ever wrote under its name (of those that are decided), and the other pipelines that this query has."""

    bound: QueryRow | None
    decided: Mapping[str, BatchRow]
    elsewhere: tuple[str, ...] = ()


class Ledger:
    """The ledger of one pipeline, under one incarnation. What it changes raises TakenOver once the pipeline was taken
    by another, LogStopped where the database can't be reached. Every change may be made again."""

    def __init__(self, database: Database, log: SqlLog, sleep: Callable[[float], None]) -> None:
        self.log = log
        self.pipeline = log.node
        self._database = database
        self._sleep = sleep

    def close(self) -> None:
        """Lets go of the log and the database."""
        self.log.close()
        self._database.engine.dispose()

    # --- what is told -------------------------------------------------------------------------------------------
    def standing(self) -> PipelineRow:
        """The pipeline's row. TakenOver: it is another one's."""
        row = self._told(lambda: read_pipeline(self._database, self.pipeline))
        if row is None or row.incarnation != self.log.epoch:
            raise TakenOver(taken(self.pipeline, row, f"this is incarnation {self.log.epoch}"))
        return row

    def epoch(self, epoch: int) -> EpochRow | None:
        """The row of an epoch."""
        found = self._epochs(EPOCH.c.epoch == epoch)
        return found[0] if found else None

    def planned(self, gtrid: bytes) -> Planned:
        """What this global transaction was planned for."""
        return Planned(tuple(self._epochs(EPOCH.c.gtrid == gtrid)))

    def later(self, query: str, place: int, epoch: int) -> Sequence[EpochRow]:
        """What the query's source at this place has read since this epoch."""
        return self._epochs(EPOCH.c.query == query, EPOCH.c.place == place, EPOCH.c.epoch > epoch, EPOCH.c.source != "")

    def waiting(self, query: str | None = None) -> Sequence[EpochRow]:
        """The epochs of this query (of any) that read something and that Spark is not known to have logged."""
        of_query = () if query is None else (EPOCH.c.query == query,)
        return self._epochs(EPOCH.c.logged.is_(False), EPOCH.c.source != "", *of_query)

    def known(self, query: str = "") -> Known:
        """What is known of the pipeline when this query asks. TakenOver: it is another one's."""
        found = self._told(lambda: read_known(self._database, self.pipeline, query))
        self.standing()  # after reading: nobody has changed it until here
        return found

    def unlogged(self, upto: int) -> Sequence[EpochRow]:
        """This epoch, and those that its checkpoint read before, as far as Spark is not known to have logged them;
        oldest first."""
        found: list[EpochRow] = []
        row = self.epoch(upto)
        while row is not None and not row.logged:
            found.append(row)
            row = self.epoch(row.previous)
        return found[::-1]

    def batch(self, query: str) -> BatchRow | None:
        """The last micro-batch of a query."""
        statement = select(BATCH).where(BATCH.c.pipeline == self.pipeline, BATCH.c.query == query)
        rows = self._told(lambda: self._rows(statement))
        return _batch_row(rows[0]) if rows else None

    def isolation(self) -> Isolation | None:
        """How the last try was planned, and whether it failed; None where nothing was ever suspected."""
        found = select(ISOLATION).where(ISOLATION.c.pipeline == self.pipeline)
        rows = self._told(lambda: self._rows(found))
        return _isolation_row(rows[0]) if rows else None

    # --- what is changed ----------------------------------------------------------------------------------------
    def allot(self) -> int:
        """The number of a new epoch. (One that is given and not used is missed by nobody.)"""

        def change(connection: Connection) -> int:
            more = self._row(epoch=PIPELINE.c.epoch + 1)
            return int(connection.execute(more.returning(PIPELINE.c.epoch)).scalar_one())

        return self._change("an epoch's number", change)

    def _row(self, **values: Any) -> Any:
        return update(PIPELINE).where(PIPELINE.c.pipeline == self.pipeline).values(**values)

    def plan(
        self, epoch: int, previous: int, gtrid: bytes, tries: int, source: str, query: str = "", place: int = 0
    ) -> None:
        """The epoch, which follows `previous`, goes by this global transaction from now on: the one planned last."""
        insert = self._database.insert(EPOCH).values(
            pipeline=self.pipeline,
            epoch=epoch,
            previous=previous,
            gtrid=gtrid,
            tries=tries,
            source=source,
            sunk=False,
            logged=False,
            finished="",
            planned_at=self._database.now(),
            query=query,
            place=place,
        )
        names = ("gtrid", "tries", "source", "sunk", "planned_at", "query", "place")
        row = insert.on_conflict_do_update(
            index_elements=[EPOCH.c.pipeline, EPOCH.c.epoch], set_={name: insert.excluded[name] for name in names}
        )
        self._changes("a plan", row, self._row(gtrid=gtrid, again=0))

    def plan_again(self, gtrid: bytes) -> None:
        """What was decided under this global transaction is read again."""
        self._changes("a plan", self._row(gtrid=gtrid, again=self.log.epoch))

    def replayed(self) -> None:
        """What was planned to be read again has been."""
        self._changes("the end of a replay", self._row(again=0))

    def sink(self, gtrid: bytes) -> None:
        """A sink of ours was planned for this global transaction."""
        self._changes("a sink's plan", update(EPOCH).where(EPOCH.c.gtrid == gtrid).values(sunk=True))

    def bind(self, query: str, batch: int, gtrid: bytes, offsets: str = "") -> None:
        """The query's last micro-batch is this one, decided if the global transaction is."""
        row = {"batch": batch, "gtrid": gtrid, "offsets": offsets}
        insert = self._database.insert(BATCH).values(pipeline=self.pipeline, query=query, **row)
        binding = insert.on_conflict_do_update(
            index_elements=[BATCH.c.pipeline, BATCH.c.query], set_={name: insert.excluded[name] for name in row}
        )
        self._changes("a batch", binding)

    def bind_query(self, query: str, run: str, sources: Sequence[str]) -> None:
        """The pipeline is this query's, in this start of it, which reads these sources."""
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

    def name_epochs(self, query: str, epochs: Collection[int]) -> None:
        """These epochs, of tables that did not say so, were read by this query."""
        naming = update(EPOCH).where(EPOCH.c.pipeline == self.pipeline, EPOCH.c.epoch.in_(epochs), EPOCH.c.query == "")
        self._changes("a query's epochs", naming.values(query=query))

    def claim(self, source: str, process: str) -> tuple[str, int]:
        """The query that reads this source now, and the source's place in it; from now on `process` plans it.
        PipelineTaken: the pipeline is not bound to a query that reads it, or another process plans it."""

        def change(connection: Connection) -> tuple[str, int]:
            row = connection.execute(select(QUERY).where(QUERY.c.pipeline == self.pipeline)).one_or_none()
            if row is None or row.incarnation != self.log.epoch:
                raise PipelineTaken(unannounced(self.pipeline))
            mine = (SOURCE.c.pipeline == self.pipeline, SOURCE.c.source == source)
            place = connection.execute(select(SOURCE.c.place, SOURCE.c.process).where(*mine)).one_or_none()
            if place is None:
                raise PipelineTaken(_read_by_another(self.pipeline, row.query, f"does not read {source}"))
            if place.process not in {"", process}:
                raise PipelineTaken(_read_by_another(self.pipeline, row.query, f"reads it in process {place.process}"))
            connection.execute(update(SOURCE).where(*mine).values(process=process))
            return row.query, place.place

        return self._change("a source's process", change)

    def logged(self, epochs: Collection[int]) -> None:
        """Spark has logged these epochs. The oldest rows go, of those that were logged before."""
        logging = update(EPOCH).where(EPOCH.c.pipeline == self.pipeline, EPOCH.c.epoch.in_(epochs)).values(logged=True)
        last = max(epochs, default=0) - KEEP_EPOCHS
        old = (EPOCH.c.pipeline == self.pipeline, EPOCH.c.epoch <= last, EPOCH.c.logged.is_(True))
        forgotten = select(func.max(EPOCH.c.epoch)).where(*old).scalar_subquery()
        noting = self._row(forgotten=forgotten).where(PIPELINE.c.forgotten < forgotten)
        self._changes("what Spark has logged", logging, *((noting, delete(EPOCH).where(*old)) if last > 0 else ()))

    def isolate(self, isolation: Isolation) -> None:
        """The next try is planned so."""
        self._changes("an isolation", self._isolating(isolation))

    def failed(self, gtrid: bytes, messages: int, place: int) -> None:
        """The try failed with so many messages of the source at `place`; unless it is excused already."""

        def change(connection: Connection) -> None:
            found = select(ISOLATION).where(ISOLATION.c.pipeline == self.pipeline)
            row = connection.execute(found).one_or_none()
            changed = (Isolation(b"") if row is None else _isolation_row(row)).after(gtrid, messages, place)
            connection.execute(self._isolating(changed))

        self._change("a failure", change)

    def _isolating(self, isolation: Isolation) -> Any:
        values = {
            "gtrid": isolation.gtrid,
            "suspects": isolation.suspects,
            "aside": isolation.aside,
            "failed": isolation.failed,
            "place": isolation.place,
        }
        insert = self._database.insert(ISOLATION).values(pipeline=self.pipeline, **values)
        return insert.on_conflict_do_update(
            index_elements=[ISOLATION.c.pipeline], set_={name: insert.excluded[name] for name in values}
        )

    def finished(self, gtrid: bytes, words: Collection[str]) -> frozenset[str]:
        """Notes whose branches of a global transaction are finished; all that are."""

        def change(connection: Connection) -> frozenset[str]:
            where = (EPOCH.c.pipeline == self.pipeline, EPOCH.c.gtrid == gtrid)
            known = connection.execute(select(EPOCH.c.finished).where(*where)).scalars()
            every = frozenset(words).union(*(finished.split() for finished in known))
            connection.execute(update(EPOCH).where(*where).values(finished=" ".join(sorted(every))))
            return every

        return self._change("what is finished", change)

    def purge(self, older_than_s: float = KEEP_S) -> int:
        """Removes gtrids that nobody asks for any more; how many."""
        needed = select(EPOCH.c.gtrid).where(
            EPOCH.c.pipeline == self.pipeline, EPOCH.c.logged.is_(False), EPOCH.c.source != ""
        )
        last = select(BATCH.c.gtrid).where(BATCH.c.pipeline == self.pipeline)
        keep = [
            bytes(row[0]) for row in (*self._told(lambda: self._rows(needed)), *self._told(lambda: self._rows(last)))
        ]
        return self.log.purge(older_than_s=older_than_s, keep=keep)

    # --- statements ---------------------------------------------------------------------------------------------
    def _epochs(self, *where: Any) -> Sequence[EpochRow]:
        statement = select(EPOCH).where(EPOCH.c.pipeline == self.pipeline, *where).order_by(EPOCH.c.epoch)
        return [_epoch_row(row) for row in self._told(lambda: self._rows(statement))]

    def _rows(self, statement: Any) -> Sequence[Any]:
        with self._database.engine.connect() as connection:
            return connection.execute(statement).all()

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

    def _told(self, action: Callable[[], T]) -> T:
        return retry.read(action, f"reading {self._database}", self._sleep)


@contextmanager
def changing(database: Database, pipeline: str, incarnation: int) -> Iterator[Connection]:
    """A transaction in which the pipeline's log is, and stays, under this incarnation. TakenOver: it is not."""
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
    """Keeps the pipeline from being taken until the transaction is over. TakenOver: it was."""
    held = select(NODE.c.epoch, NODE.c.holder).where(NODE.c.node == pipeline).with_for_update(read=True)
    row = connection.execute(held).one_or_none()
    if row is None or row.epoch != incarnation:
        raise TakenOver(
            f"pipeline {pipeline!r} was taken by {row.holder if row else 'nobody'} as incarnation "
            f"{row.epoch if row else 0}, this one is {incarnation}: it decides nothing any more; stop it"
        )


def read_known(database: Database, pipeline: str, query: str) -> Known:
    """What is known of a pipeline when this query asks for it."""
    asked = select(QUERY.c.query, QUERY.c.run, QUERY.c.incarnation).where(QUERY.c.pipeline == pipeline)
    states = (GtridState.COMMITTED.value, GtridState.DONE.value)
    batches = (
        select(BATCH)
        .join(GTRIDS, GTRIDS.c.gtrid == BATCH.c.gtrid)
        .where(BATCH.c.pipeline == pipeline, GTRIDS.c.state.in_(states))
    )
    others = select(QUERY.c.pipeline).where(QUERY.c.query == query, QUERY.c.pipeline != pipeline)
    with database.engine.connect() as connection:
        row = connection.execute(asked).one_or_none()
        elsewhere = tuple(connection.execute(others.order_by(QUERY.c.pipeline)).scalars())
        decided = {one.query: _batch_row(one) for one in connection.execute(batches)}
    return Known(None if row is None else QueryRow(*row), decided, elsewhere)


def unannounced(pipeline: str) -> str:
    """What a part of a query is told that its driver has said nothing of."""
    return (
        f"pipeline {pipeline!r} is not bound to this start of a query: its driver has not said which sources and which "
        "sink belong together. Call pipeline.register(spark) in the driver, with the session that starts the query, "
        "before it is started"
    )


def _read_by_another(pipeline: str, query: str, what: str) -> str:
    return (
        f"pipeline {pipeline!r} is read by another query of this driver ({query}), which {what}: stop that query "
        "first, or give this one a pipeline of its own"
    )


def _batch_row(row: Any) -> BatchRow:
    return BatchRow(row.batch, bytes(row.gtrid), row.offsets)


def _epoch_row(row: Any) -> EpochRow:
    return EpochRow(
        row.epoch,
        bytes(row.gtrid),
        row.tries,
        row.source,
        row.previous,
        bool(row.sunk),
        bool(row.logged),
        frozenset(row.finished.split()),
        row.planned_at,
        row.query,
        row.place,
    )


def _isolation_row(row: Any) -> Isolation:
    return Isolation(bytes(row.gtrid), row.suspects, row.aside, row.failed, row.place)


def read_pipeline(database: Database, pipeline: str) -> PipelineRow | None:
    """The row of a pipeline, if there is one."""
    with database.engine.connect() as connection:
        row = connection.execute(select(PIPELINE).where(PIPELINE.c.pipeline == pipeline)).one_or_none()
    return None if row is None else PipelineRow(*row)


def taken(pipeline: str, row: PipelineRow | None, why: str) -> str:
    """What whoever has lost the pipeline is told."""
    if row is None:
        return f"pipeline {pipeline!r} was removed from its log"
    at = datetime.fromtimestamp(row.taken_at, UTC).isoformat(sep=" ", timespec="seconds")
    return (
        f"pipeline {pipeline!r} was taken by driver {row.driver} at {at} (incarnation {row.incarnation}); {why}: it "
        "decides nothing any more. Run one driver for a pipeline: stop the other one, or give this one another name"
    )
