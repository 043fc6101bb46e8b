"""TableFiles: rows as Parquet files for one table, which the table's log does not name yet.

A file has the rows of one partition. Its name is random, and it lies in a folder that belongs to one branch, or to one
attempt of a task; committing links it into the table's folder under the same name. (A table's log has the values of the
partition columns; that the path has them too is a habit, and not demanded.)
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from rm_delta.table import arrow_schema, describe, fitted, read_table
from xa.durable_files import force, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rm_delta.table import TableDescription

LONGEST: Final = 256 << 20
"""A file that has so many octets gets no more rows."""
OPEN: Final = 64
"""So many partitions have an open file at a time."""
SHORT: Final = 32
"""Texts up to so many characters stand in a file's statistics."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is complete and forced. `path` is relative to the lake's folder of unfinished work; the other fields
    are those of an `add` action in the table's log."""

    path: str
    size: int
    rows: int
    partition: tuple[tuple[str, str | None], ...]
    stats: str

    @property
    def name(self) -> str:
        """Its name in the table's folder."""
        return self.path.rpartition("/")[2]

    def as_json(self) -> dict[str, Any]:
        """What a manifest stores of it."""
        return {
            "path": self.path,
            "size": self.size,
            "rows": self.rows,
            "partition": dict(self.partition),
            "stats": self.stats,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """What was stored."""
        return cls(stored["path"], stored["size"], stored["rows"], tuple(stored["partition"].items()), stored["stats"])


class TableFiles:
    """The files of one table that one branch, or one attempt of a task, writes. OSError where the disk fails.

    `root` is the lake's folder, `work` its folder of unfinished work, and `folder` this writer's folder in it.
    TableRefused, RowsRefused.
    """

    def __init__(self, root: Path, work: Path, folder: str, name: str) -> None:
        self.table: TableDescription
        self.table, self.schema = read_table(root, name, lambda table: (describe(name, table), arrow_schema(table)))
        self._partitions = list(self.table.partitions)
        self._in_file = pa.schema([field for field in self.schema if field.name not in self._partitions])
        self._work = work
        self._folder = folder
        self._writing: dict[tuple[str | None, ...], _File] = {}
        self._written: list[WrittenFile] = []

    def write(self, rows: pa.Table) -> None:
        """More rows."""
        whole = fitted(self.table.name, rows, self.schema)
        for values, some in self._parted(whole) if len(whole) else ():
            file = self._writing.pop(values, None)
            if file is None:
                if len(self._writing) >= OPEN:
                    self._close(next(iter(self._writing)))
                make_folder(self._work / self._folder)
                file = _File(self._work / self._folder / f"part-{uuid4()}.parquet", self._in_file)
            self._writing[values] = file  # the one that was written last is the last one to be closed
            file.writer.write_table(some)
            if file.path.stat().st_size > LONGEST:
                self._close(values)

    def finish(self) -> list[WrittenFile]:
        """Completes the files and forces them, and their folder. Rows may come afterwards, for further files."""
        for values in list(self._writing):
            self._close(values)
        if self._written:
            force(self._work / self._folder)
        written, self._written = self._written, []
        return written

    def abandon(self) -> None:
        """Closes the files as they are."""
        writing, self._writing = self._writing, {}
        for file in writing.values():
            with suppress(OSError):  # the disk is full
                file.writer.close()

    def _parted(self, whole: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        """The rows by the values of the partition columns, as the log has these."""
        if not self._partitions:
            yield (), whole
            return
        columns = [whole.column(name).to_pylist() for name in self._partitions]
        keys = list(zip(*columns, strict=True))
        rest = whole.select(self._in_file.names)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        places = pa.array([numbers[key] for key in keys])
        for key, number in numbers.items():
            yield tuple(map(_partition_text, key)), rest.filter(pc.equal(places, number))

    def _close(self, values: tuple[str | None, ...]) -> None:
        file = self._writing.pop(values)
        file.writer.close()
        force(file.path)
        metadata = parquet.read_metadata(file.path)
        partition = tuple(zip(self._partitions, values, strict=True))
        self._written.append(
            WrittenFile(
                f"{self._folder}/{file.path.name}",
                file.path.stat().st_size,
                metadata.num_rows,
                partition,
                _statistics(metadata, self._in_file),
            )
        )


class _File:
    """A file that is being written."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.writer = parquet.ParquetWriter(os.fspath(path), schema, compression="snappy")


def _partition_text(value: Any) -> str | None:
    """A value as the log has it, in which an empty text is null."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _statistics(metadata: parquet.FileMetaData, schema: pa.Schema) -> str:
    """The statistics of a file: how many rows, and for columns of simple types how many nulls, and the least and the
    greatest value. Floats have none, because of NaN, nor have long texts."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for place in range(metadata.num_columns):
        name = metadata.schema.column(place).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue

        statistics = [group.column(place).statistics for group in groups]
        if not statistics or any(one is None or not one.has_null_count for one in statistics):
            continue
        nulls[name] = sum(one.null_count for one in statistics)
        bounds = [one for one in statistics if one.has_min_max]
        full = len(bounds) == sum(one.num_values > 0 for one in statistics)
        if bounds and full and (shown := _bounds(bounds, schema.field(name).type)) is not None:
            least[name], most[name] = shown
    found = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(found, ensure_ascii=False)


def _bounds(statistics: list[Any], type_: pa.DataType) -> tuple[Any, Any] | None:
    least, most = min(one.min for one in statistics), max(one.max for one in statistics)
    if pa.types.is_integer(type_):
        return least, most
    if pa.types.is_date(type_):
        return least.isoformat(), most.isoformat()
    if pa.types.is_string(type_) and max(len(least), len(most)) <= SHORT:
        return least, most
    return None
