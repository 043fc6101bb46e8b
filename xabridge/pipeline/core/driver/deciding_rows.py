"""decide_with_rows(): a decision and the rows of the database that decides, in one local transaction.

The database is the log's own. Its transaction first moves the gtrid to "committed", which locks the log's row against
everybody who would abort it or take the pipeline, then writes the rows, and commits: that commit is the decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xabridge.pipeline.core.driver.upsert_branch import PAUSES_S
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.task.databases import StagedRowsLost
from xabridge.pipeline.core.task.postgres import DATABASE
from xabridge.pipeline.core.task.staging_table import upsert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.log import Decision
    from tm.log.sql import SqlLog
    from xabridge.pipeline.core.task.staged_rows import StagedRows


def decide_with_rows(
    log: SqlLog, decision: Decision, staged: Sequence[StagedRows], pipeline: bytes, sleep: Callable[[float], None]
) -> None:
    """Decides, and writes the rows that were staged. `pipeline` is the prefix of the log's gtrids. BatchRefused: the
    rows could not be written, and nothing is decided. LogError: as `SqlLog.decide`."""

    def write(connection: Any) -> None:
        upsert(connection, decision.gtrid, staged, pipeline)
        connection.cursor().execute("SET CONSTRAINTS ALL IMMEDIATE")  # what COMMIT would refuse is refused here

    names = ", ".join(sorted({one.target.table for one in staged}))
    for pause_s in (*PAUSES_S, None):
        try:
            log.decide_with(decision, write)
        except StagedRowsLost as error:
            raise BatchRefused(f"rows can't be written with the decision: {error}") from error
        except DATABASE.errors as error:
            fault = DATABASE.fault(error)
            if not fault.in_the_way or pause_s is None:
                message = f"rows of {names} can't be written with the decision: {error}"
                raise BatchRefused(message, of_rows=fault.of_rows, outage=fault.outage) from error
            sleep(pause_s)
        else:
            return
