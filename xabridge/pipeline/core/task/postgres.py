"""PostgreSQL as the database of a sink: a `xabridge.pipeline.core.task.databases.Database`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from xa import XaError
from xabridge.pipeline.core.retry import OUTAGE_CODES
from xabridge.pipeline.core.task import once_postgres
from xabridge.pipeline.core.task.databases import DatabaseFault
from xabridge.pipeline.core.task.staging_table import PostgresStaging, upsert
from xabridge.pipeline.core.task.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.task.databases import OnceTable
    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import TableTarget

_IN_THE_WAY: Final = (
    psycopg.errors.LockNotAvailable,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


class Postgres:
    """PostgreSQL."""

    errors: tuple[type[Exception], ...] = (psycopg.Error,)
    once: OnceTable = once_postgres.TABLE

    def fault(self, error: Exception) -> DatabaseFault:
        if isinstance(error, XaError):
            return DatabaseFault(outage=error.code in OUTAGE_CODES)
        state = getattr(error, "sqlstate", None)
        refused = (state or "")[:2] in {"22", "23", "44"} or state == "P0001"
        of_rows = refused or isinstance(error, psycopg.DataError)  # psycopg itself refuses a NUL
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        outage = lost and (state is None or state[:2] in {"08", "53"} or state[:3] == "57P")
        return DatabaseFault(of_rows, outage, isinstance(error, _IN_THE_WAY))

    def writer(self, resource: Resource, target: TableTarget, orphans: Callable[[], int]) -> TableWriter:
        return TableWriter(resource.rm.session(resource.rmid).psycopg, target, orphans)

    def staging(self, url: str, gtrid: bytes, place: int, attempt: str) -> PostgresStaging:
        return PostgresStaging(url, gtrid, place, attempt)

    def prepared(self, resource: Resource, xid: Xid) -> None:
        """A prepared transaction belongs to no connection."""

    def before_upsert(self, resource: Resource, url: str, gtrid: bytes, pipeline: bytes) -> None:
        """The branch deletes what is staged by itself."""

    def upsert(self, resource: Resource, gtrid: bytes, staged: Sequence[StagedRows], pipeline: bytes) -> None:
        upsert(resource.rm.session(resource.rmid).psycopg, gtrid, staged, pipeline)


DATABASE: Final = Postgres()
