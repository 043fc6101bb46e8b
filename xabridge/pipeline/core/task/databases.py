"""What a sink needs of each kind of database: PostgreSQL, and MariaDB or MySQL.

`postgres` and `mariadb` have a `Database` each; `database_of` of `xabridge.pipeline.core.resources` chooses it by the
scheme of an open string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import OnceSettings, TableTarget

POSTGRES: Final = ("postgresql",)
MARIADB: Final = ("mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql")
SCHEMES: Final = (*POSTGRES, *MARIADB)


@dataclass(frozen=True, slots=True)
class DatabaseFault:
    """What an error of a database means. `of_rows`: a row can never be written. `outage`: the database could not be
    reached, or the connection was lost. `in_the_way`: another transaction has locked rows."""

    of_rows: bool = False
    outage: bool = False
    in_the_way: bool = False


class StagedRowsLost(Exception):
    """Rows that were reported are not staged any more: the server has crashed, or the batch was aborted."""


class RowWriter(Protocol):
    """Writes one table under one branch."""

    def rows(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows of Python values. BatchRefused: another transaction has locked rows for too long."""
        ...


class CsvWriter(RowWriter, Protocol):
    """The same, also for rows as CSV."""

    def csv(self, columns: Sequence[str], octets: bytes) -> None:
        """Rows in PostgreSQL's CSV form."""
        ...


class StagingTable(Protocol):
    """The rows that one attempt stages in one database."""

    def add(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """More rows for `target`. PipelineError: they have not every column of the key."""
        ...

    def commit(self) -> tuple[StagedRows, ...]:
        """Makes the rows durable, and returns what was staged."""
        ...

    def close(self) -> None:
        """Closes the connection. Uncommitted work is lost."""
        ...


class OnceTable(Protocol):
    """The tables of the rows that were written (`xabridge.pipeline.core.task.once_table`), in one kind of database. Its
    methods raise the `errors` of the kind, unless they say otherwise."""

    def statement(self, name: str) -> str:
        """The statement that makes the table."""
        ...

    def make(self, url: str, name: str) -> bool:
        """Makes the table where it is missing. False: it is there, but can't have every value once, or can't tell it
        from every other one."""
        ...

    def claim(
        self, resource: Resource, once: OnceSettings, values: Iterable[str], orphans: Callable[[], int]
    ) -> frozenset[str]:
        """Adds the values under the branch that is at work, and returns those that were not there. `orphans` rolls back
        what earlier attempts at this task have prepared, and returns how many branches these were. BatchRefused:
        another transaction holds one of them."""
        ...


class Database(Protocol):
    """One kind of database. Its methods raise `errors`, unless they say otherwise."""

    errors: tuple[type[Exception], ...]
    once: OnceTable

    def fault(self, error: Exception) -> DatabaseFault:
        """What one of `errors`, or an XaError, means."""
        ...

    def writer(self, resource: Resource, target: TableTarget, orphans: Callable[[], int]) -> RowWriter:
        """The writer of a table, under the branch that is at work. `orphans` rolls back the branches that earlier
        attempts have prepared, and returns how many these were."""
        ...

    def staging(self, url: str, gtrid: bytes, place: int, attempt: str) -> StagingTable:
        """The staging table for one attempt."""
        ...

    def prepared(self, resource: Resource, xid: Xid) -> None:
        """An attempt's branch is prepared, and another process will complete it."""
        ...

    def before_upsert(self, resource: Resource, url: str, gtrid: bytes, pipeline: bytes) -> None:
        """Called before the branch of `upsert` begins."""
        ...

    def upsert(self, resource: Resource, gtrid: bytes, staged: Sequence[StagedRows], pipeline: bytes) -> None:
        """Upserts what was staged, under the branch that is at work. `pipeline` is what its gtrids begin with.
        StagedRowsLost; PipelineError: the target has no such column."""
        ...


def scheme_of(url: str) -> str:
    """The scheme of an open string."""
    return url.partition("://")[0]
