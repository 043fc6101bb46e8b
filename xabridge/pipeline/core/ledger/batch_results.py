"""BatchResults: what the batches of a running query did, read from the ledger for metrics and traces.

The process that commits notes it before Spark tells its listeners of the batch.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import SQLAlchemyError

from tm.log.sql.database import Database
from xabridge.pipeline.core.ledger.sql_ledger import read_results
from xabridge.pipeline.core.ledger.status import read_lags

if TYPE_CHECKING:
    from xabridge.pipeline.core.ledger.rows import ResultRow
    from xabridge.pipeline.core.ledger.status import LagStatus

logger: Final = logging.getLogger("xabridge.pipeline")

SOURCES: Final = 1000
"""The most sources of one query of which the lag is read."""


class BatchResults:
    """The results of one pipeline, over a connection that is kept."""

    def __init__(self, log: str, pipeline: str) -> None:
        self._database = Database(log)
        self._pipeline = pipeline

    def of(self, query: str, batch: int) -> tuple[ResultRow | None, tuple[LagStatus, ...]]:
        """What a batch did, and what waited when it was planned; None and nothing where that is not known."""
        try:
            found = read_results(self._database, self._pipeline, 1, (query, batch))
            if not found:
                return None, ()
            return found[0], read_lags(self._database, self._pipeline, SOURCES, found[0].gtrid)
        except SQLAlchemyError as error:
            logger.debug("what batch %d of query %s did can't be read: %s", batch, query, error)
            return None, ()

    def close(self) -> None:
        """Lets go of the database."""
        self._database.engine.dispose()
