"""DeltaSession: what the application works with in a transaction."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rm_delta.errors import ForkedProcess, RowsRefused, TableRefused, TableUnreadable, plain
from rm_delta.lake import TableWork
from rm_delta.table import arrow_schema, read_table
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from rm_delta.lake import Lake
    from rm_delta.parquet_files import TableFiles, WrittenFile
    from rm_delta.table import TableDescription
    from xa import XaError, Xid

    Rows: TypeAlias = pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]


class DeltaSession:
    """The transaction's rows for the tables of one lake. No one sees them before the transaction is committed, the
    transaction itself included. There is no commit here."""

    def __init__(self, work: BranchWork) -> None:
        self._work = work
        self._ended = False

    def append(self, table: str, rows: Rows) -> None:
        """Appends rows to a table: dicts, or what pyarrow has. Columns that they lack are null."""
        self._check()
        with self._work.lock:
            self._work.append(table, rows)

    def add(self, table: TableDescription, files: Iterable[WrittenFile]) -> None:
        """Appends files that `rm_delta.parquet_files.TableFiles` has written elsewhere, for this lake."""
        self._check()
        with self._work.lock:
            self._work.added.append(TableWork(table, tuple(files)))

    def schema(self, table: str) -> pa.Schema:
        """The columns of a table."""
        self._check()
        try:
            return read_table(self._work.lake.root, table, arrow_schema)
        except (TableRefused, ForkedProcess) as error:
            raise _refusal(error) from error

    def close(self) -> None:
        """The association has ended."""
        self._ended = True

    def _check(self) -> None:
        if self._ended:
            raise xa_error(Code.XAER_PROTO, "work: the association has ended")


def _refusal(error: Exception, xid: Xid | None = None) -> XaError:
    code = Code.XAER_INVAL
    if isinstance(error, TableUnreadable):
        code = Code.XA_RETRY
    elif isinstance(error, ForkedProcess):
        code = Code.XAER_PROTO
    return xa_error(code, str(error), xid)


def _table_of(table: str, rows: Rows, schema: pa.Schema) -> pa.Table:
    """The rows as a table of pyarrow's. RowsRefused."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    unknown = sorted({str(name) for row in rows for name in row if name not in schema.names})
    if unknown:
        raise RowsRefused(f"{table}: the table has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")
    names = [name for name in schema.names if any(name in row for row in rows)]
    try:
        return pa.Table.from_pylist(list(rows), pa.schema([schema.field(name).with_nullable(True) for name in names]))
    except (ValueError, TypeError, OverflowError) as error:  # ArrowInvalid and ArrowTypeError are two of these
        raise RowsRefused(f"{table}: the rows don't fit: {plain(error)}") from error


class BranchWork:
    """What one branch has written before it is prepared."""

    def __init__(self, lake: Lake, xid: Xid, folder: str) -> None:
        self.lake = lake
        self.xid = xid
        self.folder = folder
        self.lock = threading.RLock()
        """The transaction manager may roll back while the application writes."""
        self.added: list[TableWork] = []
        self._tables: dict[str, TableFiles] = {}
        self._gone = False

    def append(self, table: str, rows: Rows) -> None:
        """More rows. XAER_INVAL: they don't fit. XA_RETRY: the table can't be read now. None of them was written."""
        if self._gone:
            raise xa_error(Code.XA_RBROLLBACK, "work: the branch was rolled back", self.xid)
        try:
            files = self._tables.get(table)
            if files is None:
                files = self._tables[table] = self.lake.files(self.xid.gtrid, self.folder, table)
            files.write(_table_of(table, rows, files.schema))
        except (TableRefused, RowsRefused, ForkedProcess) as error:
            raise _refusal(error, self.xid) from error
        except OSError as error:
            raise xa_error(Code.XAER_RMERR, f"work: {table}: {error}", self.xid) from error

    def finish(self) -> None:
        """Completes and forces the files. OSError."""
        with self.lock:
            for files in self._tables.values():
                written = files.finish()
                if written:
                    self.added.append(TableWork(files.table, tuple(written)))

    def tables(self) -> list[TableWork]:
        """What the branch appends, each table once."""
        found: dict[TableDescription, list[WrittenFile]] = {}
        for work in self.added:
            if work.files:
                found.setdefault(work.table, []).extend(work.files)
        return [TableWork(table, tuple(files)) for table, files in found.items()]

    def remove(self) -> None:
        """Removes all of it."""
        with self.lock:
            self._gone = True
            for files in self._tables.values():
                files.abandon()
            self.lake.remove(self.xid.gtrid, self.folder)
