"""LedgerOpener: opens the ledger of a pipeline, by taking the pipeline or by joining the driver that has it.

A driver that takes a pipeline takes the node of its log, and thereby fences off the driver that had it. A driver takes
the pipeline when it starts a streaming query. Its other processes join it by the driver's name. A process of a driver
that was fenced off is refused, and the message says who has the pipeline now. A job without streaming is not started by
anybody, so a driver that never had the pipeline takes it with its first process that joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tm.log import LogError, LogLocked
from tm.log.sql import SqlLog, retry
from tm.log.sql.database import Database
from tm.log.sql.gtrids import NodeTakenOver
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.ledger.refusals import not_bound, taken
from xabridge.pipeline.core.ledger.schema import DRIVER, METADATA, PIPELINE
from xabridge.pipeline.core.ledger.sql_ledger import SqlLedger, changing, read_ownership, read_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from xabridge.pipeline.core.ledger.rows import PipelineOwnership, PipelineRow


T = TypeVar("T")


class LedgerOpener:
    """Opens the ledgers of one pipeline."""

    def __init__(
        self,
        url: str,
        pipeline: str,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._url = url
        self._pipeline = pipeline
        self._sleep = sleep
        self._clock = clock

    def look(self, query: str) -> tuple[PipelineRow | None, PipelineOwnership]:
        """The row of the pipeline, and what is known of it when this query asks for it. Changes nothing."""

        def read(database: Database) -> tuple[PipelineRow | None, PipelineOwnership]:
            try:
                return read_pipeline(database, self._pipeline), read_ownership(database, self._pipeline, query)
            finally:
                database.engine.dispose()

        return self._open(read, joins=True)

    def take(self, driver: str) -> SqlLedger:
        """Takes the pipeline for `driver`. PipelineTaken: another driver took it at the same moment. LogError: the log
        can't be opened."""
        return self._open(lambda database: self._take(database, driver), joins=False)

    def join(self, driver: str, incarnation: int | None = None, *, takes: bool = False) -> SqlLedger:
        """The ledger under the driver's incarnation, which has to be `incarnation` where that is given. With `takes`, a
        driver that never had the pipeline takes it. PipelineTaken: another driver has it, or has had it since."""

        def enter(database: Database) -> SqlLedger:
            row = read_pipeline(database, self._pipeline)
            if row is None or row.driver != driver:
                if row is None and not takes:
                    raise PipelineTaken(not_bound(self._pipeline))
                if not takes or incarnation is not None or _has_had(database, self._pipeline, driver):
                    raise PipelineTaken(taken(self._pipeline, row, f"this process belongs to driver {driver}"))
                return self._take(database, driver)
            if incarnation is not None and row.incarnation != incarnation:
                raise PipelineTaken(taken(self._pipeline, row, f"this process belongs to incarnation {incarnation}"))
            try:
                log = SqlLog(database, self._pipeline, epoch=row.incarnation, sleep=self._sleep)
            except LogLocked as error:
                raise PipelineTaken(
                    f"another driver is just taking pipeline {self._pipeline!r}: {error.held}"
                ) from error

            return SqlLedger(database, log, self._sleep)

        return self._open(enter, joins=True)

    def _open(self, enter: Callable[[Database], T], *, joins: bool) -> T:
        # A process that joins checks the version of the tables only, which another process has made: `foreachBatch`
        # joins for every batch.
        database = Database(self._url, self._clock)
        try:
            if not joins or not _is_made(database):
                database.prepare(METADATA)
            return enter(database)
        except SQLAlchemyError as error:
            database.engine.dispose()
            raise LogError(f"{database}: the log of pipeline {self._pipeline!r} can't be opened: {error}") from None
        except BaseException:
            database.engine.dispose()
            raise

    def _take(self, database: Database, driver: str) -> SqlLedger:
        log = SqlLog(database, self._pipeline, take_over=True, keep_s=None, sleep=self._sleep)
        try:
            self._note(database, log.epoch, driver)
        except NodeTakenOver as error:
            log.close()
            raise PipelineTaken(str(error)) from error
        return SqlLedger(database, log, self._sleep)

    def _note(self, database: Database, incarnation: int, driver: str) -> None:
        who = {"incarnation": incarnation, "driver": driver, "taken_at": database.now()}
        taking = database.insert(PIPELINE).values(pipeline=self._pipeline, epoch=0, forgotten=0, again=0, **who)
        having = database.insert(DRIVER).values(pipeline=self._pipeline, driver=driver, incarnation=incarnation)

        def attempt() -> None:
            with changing(database, self._pipeline, incarnation) as connection:
                connection.execute(
                    taking.on_conflict_do_update(
                        index_elements=[PIPELINE.c.pipeline], set_={name: taking.excluded[name] for name in who}
                    )
                )
                connection.execute(
                    having.on_conflict_do_update(
                        index_elements=[DRIVER.c.pipeline, DRIVER.c.driver], set_={"incarnation": incarnation}
                    )
                )

        retry.change(attempt, f"taking pipeline {self._pipeline!r} in {database}", self._sleep)


def _is_made(database: Database) -> bool:
    """Whether the tables are there, all of which are made at once. LogError: they are another version's."""
    try:
        database.check_version()
        with database.engine.connect() as connection:
            connection.execute(select(PIPELINE).limit(0))
    except DBAPIError:
        return False
    return True


def _has_had(database: Database, pipeline: str, driver: str) -> bool:
    statement = select(DRIVER.c.incarnation).where(DRIVER.c.pipeline == pipeline, DRIVER.c.driver == driver)
    with database.engine.connect() as connection:
        return connection.execute(statement).first() is not None
