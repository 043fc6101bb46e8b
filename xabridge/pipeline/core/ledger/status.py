"""Reads the status of pipelines for users. Reading it changes nothing and disturbs no other process.

`look` does it in three steps, which the console makes one by one, because each place that is asked may hang:

1. `prefixes`: which pipelines the log has, and how the gtrids of each begin.
2. `prepared_at`: which branches of theirs are prepared at a resource.
3. `statuses`: the epochs, read behind the branches. So a branch is an orphan only if its epoch had been given up when
   the branch was seen, and not because its epoch began meanwhile.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, inspect, or_, select
from sqlalchemy.exc import SQLAlchemyError

from tm.log import LogError, LogMissing
from tm.log.records import decode_decision
from tm.log.sql.database import Database
from tm.log.sql.node import read_node
from tm.log.sql.states import GtridState
from tm.log.sql.tables import GTRIDS, NODE
from xa import XaError, log_prefix
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.ledger.rows import due
from xabridge.pipeline.core.ledger.schema import EPOCH, ISOLATION, PIPELINE, QUERY, SOURCE
from xabridge.pipeline.core.ledger.sql_ledger import read_pipeline, read_results
from xabridge.pipeline.core.resources import PROCESS, prepared_branches
from xabridge.pipeline.core.shards import PlannedRead
from xabridge.pipeline.core.xids import epoch_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import ResultRow
    from xabridge.pipeline.core.resources import Resources

WORK: Final = "work"
LOG: Final = "log"
FINISH: Final = "finish"
_WAITING: Final = frozenset({GtridState.ACTIVE.value, GtridState.COMMITTED.value})
_MOST_WAITING: Final = 1000
_LAG: Final = (
    EPOCH.c.epoch, EPOCH.c.gtrid, EPOCH.c.source, EPOCH.c.shards, EPOCH.c.planned_at, EPOCH.c.waiting,
    EPOCH.c.oldest_at, EPOCH.c.query, EPOCH.c.place,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """A global transaction of the pipeline, as the log has it: the present one of its epoch, or an earlier one that was
    given up.

    `state`: active, committed, aborted or done. `logged`: Spark is known to have logged the epoch. `planned_at`,
    `decided_at`, `logged_at`: when; None where the ledger does not have it, as of a try that was given up.
    `unfinished`: the resources where it is decided, and has branches that are due and not finished. `skipped`: brokers
    that were away when it was planned, each with the reason, which is "" where it is not known.
    """

    epoch: int
    gtrid: bytes
    incarnation: int
    state: str
    branches: int
    logged: bool
    changed_at: float
    planned_at: float | None = None
    decided_at: float | None = None
    logged_at: float | None = None
    unfinished: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def phases(self) -> dict[str, float]:
        """The seconds that each phase took, as far as they are known: `work` from the plan to the decision; `log` until
        the ledger knew that Spark has logged the batch, which is when Spark asks for the next one; `finish` until
        every branch was committed."""
        ended_at = self.changed_at if self.state == GtridState.DONE.value else None
        moments = (self.planned_at, self.decided_at, self.logged_at, ended_at)
        found: dict[str, float] = {}
        for phase, began_at, over_at in zip((WORK, LOG, FINISH), moments[:-1], moments[1:], strict=True):
            if began_at is not None and over_at is not None:
                found[phase] = max(over_at - began_at, 0.0)
        return found


@dataclass(frozen=True, slots=True)
class LagStatus:
    """What waited for one source when an epoch was planned: how many messages, and for how long the oldest of them had
    been on its way, where its sender has set the creation time. `source` is what the query reads there, as `sources` of
    PipelineStatus has it; of a job, and of an earlier query, only the brokers that the epoch was read from."""

    epoch: int
    gtrid: bytes
    source: str
    planned_at: float
    waiting: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline. `query` is the streaming query that has it, `sources` what that reads, and in which processes;
    empty where there is none. `epochs`: the last ones, the newest first, and all that are not finished. `suspects`: so
    many messages may make batches fail, and one of them is searched. `prepared` are the branches in doubt, by resource;
    None of a resource that can't be reached, with why in `unreachable`."""

    pipeline: str
    log_id: bytes
    incarnation: int
    driver: str
    query: str
    sources: tuple[tuple[str, str], ...]
    taken_at: float
    epochs: tuple[EpochStatus, ...]
    suspects: int
    prepared: dict[str, tuple[Xid, ...] | None]
    unreachable: dict[str, str]
    results: tuple[ResultRow, ...] = ()
    """What the last batches did that were decided, newest first."""
    lags: tuple[LagStatus, ...] = ()
    """What waited when the last epochs were planned, newest first."""


Scanned = dict[str, tuple["Xid", ...]]
"""The prepared branches at one resource, by pipeline."""


def look(
    log: str,
    resources: Sequence[tuple[str, str]],
    pipeline: str | None = None,
    *,
    last: int = 20,
    opened: Resources = PROCESS,
) -> tuple[PipelineStatus, ...]:
    """The state of every pipeline of `log`, or of `pipeline`. LogMissing: there is none in `log`."""
    known = prefixes(log)
    if pipeline is not None:
        if pipeline not in known:
            raise LogMissing(f"{Database(log)}: there is no pipeline {pipeline!r} here")
        known = {pipeline: known[pipeline]}
    scanned: dict[str, Scanned | str] = {}
    for name, url in resources:
        try:
            scanned[name] = prepared_at(opened.get(name, url), known)
        except XaError as error:
            scanned[name] = error.message
        except PipelineError as error:  # a variable of its open string is not set
            scanned[name] = str(error)
    return statuses(log, known, scanned, last=last)


def prefixes(log: str) -> dict[str, bytes]:
    """The pipelines that keep their decisions in `log`, and how their gtrids begin. LogMissing: there is none."""
    names = select(PIPELINE.c.pipeline, NODE.c.log_id).join(NODE, NODE.c.node == PIPELINE.c.pipeline)
    found: dict[str, bytes] = {}
    with _looking(log) as database, database.engine.connect() as connection:
        for row in connection.execute(names.order_by(PIPELINE.c.pipeline)):
            with suppress(ValueError):  # a name that no pipeline can have
                found[row.pipeline] = log_prefix(row.pipeline, bytes(row.log_id))
    return found


def prepared_at(resource: Resource, known: Mapping[str, bytes]) -> Scanned:
    """The prepared branches of these pipelines at a resource. XaError: it can't be reached."""
    return {
        pipeline: tuple(sorted(prepared_branches(resource, prefix), key=lambda xid: (xid.gtrid, xid.bqual)))
        for pipeline, prefix in known.items()
    }


def statuses(
    log: str, names: Collection[str], scanned: Mapping[str, Scanned | str], *, last: int = 20
) -> tuple[PipelineStatus, ...]:
    """The state of these pipelines. `scanned` has, for each resource, its branches in doubt, or why it can't be
    reached."""
    with _looking(log) as database:
        found = (_status(database, name, scanned, last) for name in names)
        return tuple(one for one in found if one is not None)


@contextmanager
def _looking(log: str) -> Iterator[Database]:
    database = Database(log)
    try:
        database.check()
        if not inspect(database.engine).has_table(PIPELINE.name):
            raise LogMissing(f"{database}: no pipeline has its decisions in this log")
        yield database
    except SQLAlchemyError as error:
        raise LogError(
            f"{database}: the decision log can't be read: {getattr(error, 'orig', None) or error}"
        ) from None  # which may quote the server, and that a password
    finally:
        database.engine.dispose()


def _status(
    database: Database, pipeline: str, scanned: Mapping[str, Scanned | str], last: int
) -> PipelineStatus | None:
    row, node = read_pipeline(database, pipeline), read_node(database, pipeline)
    if row is None or node is None:  # removed meanwhile
        return None

    found = {name: None if isinstance(answer, str) else answer.get(pipeline, ()) for name, answer in scanned.items()}
    gtrids = {xid.gtrid for xids in found.values() for xid in xids or ()}
    epochs = _epochs(database, pipeline, last, gtrids)
    over = {epoch.gtrid for epoch in epochs if epoch.state == GtridState.DONE.value}  # finished since they were seen
    prepared = {
        name: None if xids is None else tuple(xid for xid in xids if xid.gtrid not in over)
        for name, xids in found.items()
    }
    unreachable = {name: error for name, error in scanned.items() if isinstance(error, str)}
    query, sources = _query(database, pipeline)
    return PipelineStatus(
        pipeline, node.log_id, row.incarnation, row.driver, query, sources, row.taken_at, epochs,
        _suspects(database, pipeline), prepared, unreachable, read_results(database, pipeline, last),
        read_lags(database, pipeline, last),
    )  # fmt: skip


def read_lags(database: Database, pipeline: str, last: int, gtrid: bytes | None = None) -> tuple[LagStatus, ...]:
    """What waited when the last epochs were planned, newest first; or those of this global transaction."""
    of_one = () if gtrid is None else (EPOCH.c.gtrid == gtrid,)
    of_query = and_(QUERY.c.pipeline == EPOCH.c.pipeline, QUERY.c.query == EPOCH.c.query)
    of_place = and_(SOURCE.c.pipeline == QUERY.c.pipeline, SOURCE.c.place == EPOCH.c.place)
    asked = (
        select(*_LAG, SOURCE.c.source.label("reads"))
        .outerjoin(QUERY, of_query)
        .outerjoin(SOURCE, of_place)
        .where(EPOCH.c.pipeline == pipeline, EPOCH.c.waiting.is_not(None), *of_one)
        .order_by(EPOCH.c.epoch.desc())
        .limit(last)
    )

    with database.engine.connect() as connection:
        return tuple(
            LagStatus(
                row.epoch,
                bytes(row.gtrid),
                row.reads or ", ".join(PlannedRead.from_text(row.shards).resources),
                row.planned_at,
                row.waiting,
                None if row.oldest_at is None else max(row.planned_at - row.oldest_at, 0.0),
            )
            for row in connection.execute(asked)
        )


def _query(database: Database, pipeline: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    reads = select(SOURCE.c.source, SOURCE.c.process).where(SOURCE.c.pipeline == pipeline).order_by(SOURCE.c.place)
    with database.engine.connect() as connection:
        query = connection.execute(select(QUERY.c.query).where(QUERY.c.pipeline == pipeline)).scalar()
        return query or "", tuple((row.source, row.process) for row in connection.execute(reads))


def _suspects(database: Database, pipeline: str) -> int:
    with database.engine.connect() as connection:
        asked = select(ISOLATION.c.suspects).where(ISOLATION.c.pipeline == pipeline)
        return connection.execute(asked).scalar() or 0


def _epochs(database: Database, pipeline: str, last: int, gtrids: Collection[bytes]) -> tuple[EpochStatus, ...]:
    """The last ones, those that are not finished, and those of `gtrids`."""
    columns = (GTRIDS.c.gtrid, GTRIDS.c.epoch, GTRIDS.c.state, GTRIDS.c.record, GTRIDS.c.changed_at)
    newest = (GTRIDS.c.changed_at.desc(), GTRIDS.c.gtrid.desc())
    rows: dict[bytes, Any] = {}
    with database.engine.connect() as connection:
        for state in GtridState:  # each by the index, whatever the log keeps
            some = select(*columns).where(GTRIDS.c.node == pipeline, GTRIDS.c.state == state.value).order_by(*newest)
            count = _MOST_WAITING if state.value in _WAITING else last
            rows |= {bytes(row.gtrid): row for row in connection.execute(some.limit(count))}
        missing = sorted(set(gtrids) - rows.keys())
        if missing:
            some = select(*columns).where(GTRIDS.c.gtrid.in_(missing))
            rows |= {bytes(row.gtrid): row for row in connection.execute(some)}

    ordered = sorted(rows.values(), key=lambda row: (row.changed_at, bytes(row.gtrid)), reverse=True)
    kept = [
        row
        for number, row in enumerate(ordered)
        if number < last or row.state in _WAITING or bytes(row.gtrid) in gtrids
    ]
    planned = _planned(database, pipeline, [bytes(row.gtrid) for row in kept])
    return tuple(_epoch(row, planned) for row in kept)


def _planned(database: Database, pipeline: str, gtrids: Collection[bytes]) -> Sequence[Any]:
    """What the ledger has of the epochs that these have, or had."""
    epochs = {epoch_of(gtrid) for gtrid in gtrids}
    which = (EPOCH.c.pipeline == pipeline, or_(EPOCH.c.epoch.in_(epochs), EPOCH.c.gtrid.in_(gtrids)))
    columns: list[ColumnElement[Any]] = [
        EPOCH.c.epoch, EPOCH.c.gtrid, EPOCH.c.logged, EPOCH.c.finished, EPOCH.c.planned_at, EPOCH.c.decided_at,
        EPOCH.c.logged_at, EPOCH.c.shards,
    ]  # fmt: skip
    with database.engine.connect() as connection:
        return connection.execute(select(*columns).where(*which)).all()


def _epoch(row: Any, planned: Sequence[Any]) -> EpochStatus:
    gtrid = bytes(row.gtrid)
    epoch = epoch_of(gtrid)
    present = [one for one in planned if bytes(one.gtrid) == gtrid]
    decided_at = _latest(present, "decided_at")
    if decided_at is None and row.state == GtridState.COMMITTED.value:
        decided_at = row.changed_at
    branches = decode_decision(row.record).branches if row.record is not None else ()

    finished = {word for one in present for word in one.finished.split()}
    left = due(branches, finished, logged=all(one.logged for one in present))
    return EpochStatus(
        epoch,
        gtrid,
        row.epoch,
        row.state,
        len(branches),
        any(one.logged for one in planned if one.epoch == epoch),
        row.changed_at,
        min((one.planned_at for one in present), default=None),
        decided_at,
        _latest(present, "logged_at"),
        tuple(sorted({branch.resource for branch in left})) if row.state == GtridState.COMMITTED.value else (),
        tuple(sorted({name: why for one in present for name, why in _skipped(one)}.items())),
    )


def _skipped(row: Any) -> tuple[tuple[str, str], ...]:
    return PlannedRead.from_text(row.shards).skipped


def _latest(rows: Sequence[Any], name: str) -> float | None:
    return max((moment for row in rows if (moment := getattr(row, name)) is not None), default=None)
