"""This module reads the status of a pipeline for users. Reading it changes nothing and disturbs no other process."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import inspect, select
from sqlalchemy.exc import SQLAlchemyError

from tm.log import LogError, LogMissing
from tm.log.records import decode_decision
from tm.log.sql.database import Database
from tm.log.sql.node import read_node
from tm.log.sql.tables import GTRIDS
from xa import XaError, log_prefix
from xabridge.pipeline.core.ledger.schema import EPOCH, PIPELINE, QUERY, RESULT, SOURCE
from xabridge.pipeline.core.ledger.sql_ledger import read_pipeline, read_results
from xabridge.pipeline.core.resources import PROCESS, prepared_branches
from xabridge.pipeline.core.xids import epoch_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import ResultRow
    from xabridge.pipeline.core.resources import Resources


@dataclass(frozen=True, slots=True)
class EpochStatus:
    """A global transaction of the pipeline, as the log has it: the present one of its epoch, or an earlier one that was
    given up.

    `state`: active, committed, aborted or done. `logged`: Spark is known to have logged the epoch.
    """

    epoch: int
    gtrid: bytes
    incarnation: int
    state: str
    branches: int
    logged: bool
    changed_at: float


@dataclass(frozen=True, slots=True)
class LagStatus:
    """What waited for one source when an epoch was planned: how many messages, and for how long the oldest of them had
    been on its way, where its sender has set the creation time."""

    epoch: int
    gtrid: bytes
    source: str
    planned_at: float
    waiting: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """One pipeline. `query` is the streaming query that has it, `sources` what that reads, and in which processes;
    empty where there is none. `prepared` are the branches in doubt, by resource; None of a resource that can't be
    reached, with why in `unreachable`."""

    pipeline: str
    log_id: bytes
    incarnation: int
    driver: str
    query: str
    sources: tuple[tuple[str, str], ...]
    taken_at: float
    epochs: tuple[EpochStatus, ...]
    prepared: dict[str, tuple[Xid, ...] | None]
    unreachable: dict[str, str]
    results: tuple[ResultRow, ...] = ()
    """What the last batches did that were decided, newest first."""
    lags: tuple[LagStatus, ...] = ()
    """What waited when the last epochs were planned, newest first."""


@contextmanager
def _looking(log: str) -> Iterator[Database]:
    database = Database(log)
    try:
        database.check()
        if not inspect(database.engine).has_table(PIPELINE.name):
            raise LogMissing(f"{database}: no pipeline has its decisions in this log")
        yield database
    except SQLAlchemyError as error:
        raise LogError(f"{database}: the decision log can't be read: {error}") from error
    finally:
        database.engine.dispose()


def pipelines(log: str) -> tuple[str, ...]:
    """The pipelines that keep their decisions in `log`. LogMissing: there is none."""
    with _looking(log) as database, database.engine.connect() as connection:
        return tuple(connection.execute(select(PIPELINE.c.pipeline).order_by(PIPELINE.c.pipeline)).scalars())


def status(
    pipeline: str, log: str, resources: tuple[tuple[str, str], ...], *, last: int = 20, opened: Resources = PROCESS
) -> PipelineStatus:
    """The state of `pipeline`: its last epochs, newest first. LogMissing: there is none in `log`."""
    with _looking(log) as database:
        row, node = read_pipeline(database, pipeline), read_node(database, pipeline)
        if row is None or node is None:
            raise LogMissing(f"{database}: there is no pipeline {pipeline!r} here")
        epochs = _epochs(database, pipeline, last)
        query, sources = _query(database, pipeline)
        results, lags = _results(database, pipeline, last), _lags(database, pipeline, last)
    found: dict[str, tuple[Xid, ...] | None] = {}
    unreachable: dict[str, str] = {}
    for name, url in resources:
        try:
            xids = prepared_branches(opened.get(name, url), log_prefix(pipeline, node.log_id))
        except XaError as error:
            found[name], unreachable[name] = None, error.message
        else:
            found[name] = tuple(sorted(xids, key=lambda xid: (xid.gtrid, xid.bqual)))
    return PipelineStatus(
        pipeline,
        node.log_id,
        row.incarnation,
        row.driver,
        query,
        sources,
        row.taken_at,
        epochs,
        found,
        unreachable,
        results,
        lags,
    )


def _results(database: Database, pipeline: str, last: int) -> tuple[ResultRow, ...]:
    if not inspect(database.engine).has_table(RESULT.name):  # of before: nobody has started a query since
        return ()
    return read_results(database, pipeline, last)


def _lags(database: Database, pipeline: str, last: int) -> tuple[LagStatus, ...]:
    """What waited when the last epochs were planned, newest first."""
    if "waiting" not in {column["name"] for column in inspect(database.engine).get_columns(EPOCH.name)}:
        return ()
    return read_lags(database, pipeline, last)


def read_lags(database: Database, pipeline: str, last: int, gtrid: bytes | None = None) -> tuple[LagStatus, ...]:
    """What waited when the last epochs were planned, newest first; or those of this global transaction."""
    of_one = () if gtrid is None else (EPOCH.c.gtrid == gtrid,)
    asked = (
        select(EPOCH.c.epoch, EPOCH.c.gtrid, EPOCH.c.source, EPOCH.c.planned_at, EPOCH.c.waiting, EPOCH.c.oldest_at)
        .where(EPOCH.c.pipeline == pipeline, EPOCH.c.waiting.is_not(None), *of_one)
        .order_by(EPOCH.c.epoch.desc())
        .limit(last)
    )
    with database.engine.connect() as connection:
        return tuple(
            LagStatus(
                row.epoch,
                bytes(row.gtrid),
                row.source,
                row.planned_at,
                row.waiting,
                None if row.oldest_at is None else max(row.planned_at - row.oldest_at, 0.0),
            )
            for row in connection.execute(asked)
        )


def _query(database: Database, pipeline: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    if not inspect(database.engine).has_table(QUERY.name):  # of before: nobody has started a query since
        return "", ()
    reads = select(SOURCE.c.source, SOURCE.c.process).where(SOURCE.c.pipeline == pipeline).order_by(SOURCE.c.place)
    with database.engine.connect() as connection:
        query = connection.execute(select(QUERY.c.query).where(QUERY.c.pipeline == pipeline)).scalar()
        return query or "", tuple((row.source, row.process) for row in connection.execute(reads))


def _epochs(database: Database, pipeline: str, last: int) -> tuple[EpochStatus, ...]:
    gtrids = (
        select(GTRIDS.c.gtrid, GTRIDS.c.epoch, GTRIDS.c.state, GTRIDS.c.record, GTRIDS.c.changed_at)
        .where(GTRIDS.c.node == pipeline)
        .order_by(GTRIDS.c.changed_at.desc(), GTRIDS.c.gtrid.desc())
        .limit(last)
    )
    logged = select(EPOCH.c.epoch).where(EPOCH.c.pipeline == pipeline, EPOCH.c.logged.is_(True))
    with database.engine.connect() as connection:
        over = frozenset(connection.execute(logged).scalars())
        return tuple(
            EpochStatus(
                epoch_of(bytes(row.gtrid)),
                bytes(row.gtrid),
                row.epoch,
                row.state,
                len(decode_decision(row.record).branches) if row.record is not None else 0,
                epoch_of(bytes(row.gtrid)) in over,
                row.changed_at,
            )
            for row in connection.execute(gtrids)
        )
