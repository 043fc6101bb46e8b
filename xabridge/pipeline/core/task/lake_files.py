"""LakeFiles: the Parquet files that one attempt writes for Delta tables.

As rows by key, files are staged: no table's log names them until the driver has the reports of all tasks. It appends
the files of the reported attempts under one branch for each lake, so that a micro-batch is one version of a table,
however many tasks write. Files of attempts that Spark did not accept are removed with the next micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_delta.errors import ForkedProcess, RowsRefused, TableRefused, TableUnreadable
from xabridge.pipeline.core.errors import BatchRefused
from xabridge.pipeline.core.resources import call_resource, lake
from xabridge.pipeline.core.values import StagedFiles

if TYPE_CHECKING:
    from rm_delta.lake import Lake
    from rm_delta.parquet_files import TableFiles
    from tm.resources import Resource
    from xabridge.pipeline.core.values import LakeTarget


class LakeFiles:
    """The files of one attempt in one lake. `attempt` is random. XaError: the lake can't be opened."""

    def __init__(self, resource: Resource, gtrid: bytes, attempt: str) -> None:
        self._lake: Lake = call_resource(resource, "open", lambda: lake(resource).lake)
        self._gtrid = gtrid
        self._attempt = attempt
        self._tables: dict[LakeTarget, TableFiles] = {}

    def add(self, target: LakeTarget, rows: object) -> None:
        """More rows, as a table of pyarrow's. BatchRefused: they don't fit, or can't be written."""
        try:
            files = self._tables.get(target)
            if files is None:
                files = self._tables[target] = self._lake.files(self._gtrid, self._attempt, target.table)
            files.write(rows)
        except TableUnreadable as error:
            raise BatchRefused(f"{target.resource}: {error}", outage=True) from error
        except (TableRefused, RowsRefused, ForkedProcess) as error:
            raise BatchRefused(f"{target.resource}: {error}", of_rows=isinstance(error, RowsRefused)) from error
        except OSError as error:
            raise BatchRefused(f"{target.resource}: {target.table}: {error}", outage=True) from error

    def finish(self) -> tuple[StagedFiles, ...]:
        """Makes the files durable, and returns them. BatchRefused."""
        from rm_delta.lake import TableWork  # noqa: PLC0415 — loads pyarrow

        try:
            return tuple(
                StagedFiles(target, TableWork(files.table, tuple(files.finish())))
                for target, files in self._tables.items()
            )
        except OSError as error:
            raise BatchRefused(f"the files can't be written: {error}", outage=True) from error

    def remove(self) -> None:
        """Removes the files, which will not be appended."""
        for files in self._tables.values():
            files.abandon()
        self._lake.remove(self._gtrid, self._attempt)
