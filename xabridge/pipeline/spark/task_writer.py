"""TaskWriter: writes the rows of a task into the table, as messages to the address, or both.

A `Layout` says which column goes where; it is made, and checked, when the query starts. A `TaskWriter` with its layout
is pickled to the tasks. It writes the rows of one attempt under branches of its own, which are prepared when it
returns.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from xabridge.pipeline.core import Attempt, BatchRefused, LakeTarget, PipelineError, SinkReport
from xabridge.pipeline.core.retry import Backoff
from xabridge.pipeline.spark.message_rows import COLUMNS, RECEIVED, SENT, messages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from xabridge.pipeline.core import AddressTarget, SinkPlan, TableTarget
    from xabridge.pipeline.core.task.sink_task import SinkTask
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.spark.postgres_table import PostgresTable


logger: Final = logging.getLogger("xabridge.pipeline")

KEPT: Final = 128 << 20
"""How many octets of a task's rows are kept at most."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows go. `columns` are those of the table, of which `arrays` are arrays there; without an address no
    messages are sent."""

    table: TableTarget | LakeTarget | None
    columns: tuple[str, ...]
    address: AddressTarget | None
    arrays: frozenset[str] = frozenset()


def layout(options: SinkOptions, rows: Mapping[str, str], *, table: PostgresTable | None = None) -> Layout:
    """The layout of rows with these columns (name → Spark type). `table` is what the database says of the table, which
    is looked up otherwise. PipelineError: the rows don't fit."""
    columns: tuple[str, ...] = ()
    arrays: frozenset[str] = frozenset()
    if options.address is not None:
        _check_messages(options.address, rows, alone=options.table is None)
    if options.table is not None:
        columns = options.columns or tuple(name for name in rows if options.address is None or name not in COLUMNS)
        for name in columns:
            if name not in rows:
                raise PipelineError(
                    f"format xa, option columns: the query has no column {name!r}; it has {_list(rows)}"
                )
        if not columns:
            raise PipelineError(
                "format xa: every column of the query belongs to the message; set the option columns for the table"
            )
        arrays = _check_table(
            options.table, options.settings.url(options.table.resource), table, _chosen(rows, columns)
        )
    return Layout(options.table, columns, options.address, arrays)


def _chosen(rows: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    return {name: rows[name] for name in columns}


def _check_table(
    target: TableTarget | LakeTarget, url: str, table: PostgresTable | None, rows: Mapping[str, str]
) -> frozenset[str]:
    """PipelineError: the rows don't fit. Returns the columns that are arrays of PostgreSQL."""
    if isinstance(target, LakeTarget):
        from xabridge.pipeline.spark.lake_table import check_lake_rows  # noqa: PLC0415 — loads deltalake

        check_lake_rows(target, url, rows)
        return frozenset()
    from xabridge.pipeline.spark.postgres_table import arrays_of, check_rows, look_up  # noqa: PLC0415 — loads psycopg

    found = table or look_up(target, url)
    check_rows(target, found, rows)
    return arrays_of(found, rows)


def _check_messages(target: AddressTarget, rows: Mapping[str, str], *, alone: bool) -> None:
    where = f"address {target.resource}:{target.address}"
    if "body" not in rows:
        raise PipelineError(f"{where}: the query has no column body for the messages (it has {_list(rows)})")
    for name, type_ in rows.items():
        if name not in COLUMNS:
            if alone:
                raise PipelineError(
                    f"{where}: a message has no {name}; drop the column, or make it an application property: "
                    f"map('{name}', {name}) as application_properties. There are {', '.join(SENT)}"
                )
        elif name == "application_properties":
            _check_properties(where, type_)
        elif name not in RECEIVED and type_ not in _accepted(name) and not (name == "body" and _is_nested(type_)):
            raise PipelineError(f"{where}: the column {name} has to be {' or '.join(_accepted(name))}, not {type_}")


def _check_properties(where: str, type_: str) -> None:
    """Application properties are a map or a struct of simple values."""
    inner = type_.partition("<")[2][:-1]
    if not (type_.startswith(("map<string,", "struct<")) and "<" not in inner and "interval" not in inner):
        raise PipelineError(
            f"{where}: the column application_properties has to be a map from string, or a struct, of simple values, "
            f"not {type_}; make text of what is nested, by to_json"
        )


def _is_nested(type_: str) -> bool:
    return type_.startswith(("struct<", "map<", "array<"))


def _accepted(name: str) -> tuple[str, ...]:
    """The Spark types that a message's column may have."""
    if name == "body":
        return ("binary", "string")
    if name == "priority":
        return ("int", "tinyint", "smallint", "bigint")
    return (COLUMNS[name],)


def _list(rows: Mapping[str, str]) -> str:
    return ", ".join(rows)


class _Rows:
    """The rows of a task. Spark yields them only once, so they are kept, as far as there is room, to be written again
    after an outage."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._kept: list[pa.RecordBatch] = []
        self._octets = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._kept
        for batch in self._batches:
            if not len(batch):
                continue
            self._octets += batch.nbytes
            if self._octets <= KEPT:
                self._kept.append(batch)
            else:
                self._kept.clear()
            yield batch

    def again(self) -> bool:
        """Whether all of them are kept, so that they can be read again from the first one."""
        return self._octets <= KEPT


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """Writes the rows of one attempt of one task."""

    layout: Layout
    plan: SinkPlan

    def write(self, batches: Iterable[pa.RecordBatch], attempt: Attempt) -> SinkReport:
        """Writes and prepares. Where the micro-batch is decided already, its rows are read and nothing is written: they
        have to be read because Spark computes its state from them."""
        if self.plan.decided:
            for _ in batches:
                pass
            return SinkReport(attempt.partition, attempt.task, self.plan.gtrid, ())
        from xabridge.pipeline.core.task.sink_task import SinkTask  # noqa: PLC0415 — loads psycopg; planners don't write

        backoff = Backoff(self.plan.outage_s)
        rows = _Rows(batches)
        while True:
            try:
                with SinkTask(self.plan, attempt) as task:
                    for batch in rows:
                        self._write(task, batch)
                    return task.prepare()
            except BatchRefused as error:
                if not error.outage or not rows.again() or not backoff.wait():
                    raise
                logger.warning("writing partition %d again: %s", attempt.partition, error)

    def _write(self, task: SinkTask, batch: pa.RecordBatch) -> None:
        if isinstance(self.layout.table, LakeTarget):
            table = pa.Table.from_batches([batch.select(list(self.layout.columns))])
            task.write_files(self.layout.table, table, len(batch))
        elif self.layout.table is not None:
            from xabridge.pipeline.spark.postgres_table import csv_of  # noqa: PLC0415 — loads psycopg

            octets = csv_of(batch, self.layout.columns, self.layout.arrays)
            task.write_csv(self.layout.table, self.layout.columns, octets, len(batch))
        if self.layout.address is not None:
            messages = messages_of(batch)
            if len(messages):
                task.send(self.layout.address, messages)
