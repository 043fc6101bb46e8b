"""TaskWriter: writes the rows of a task into the table, as messages to the address, or both.

A `Layout` says which column goes where; it is made, and checked, when the query starts. A `TaskWriter` with its layout
is pickled to the tasks. It writes the rows of one attempt under branches of its own, which are prepared when it
returns.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core import Attempt, BatchRefused, PipelineError, SinkReport
from xabridge.pipeline.core.retry import Backoff
from xabridge.pipeline.spark.message_rows import COLUMNS, RECEIVED, SENT, messages_of
from xabridge.pipeline.spark.sharded_rows import by_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from xabridge.pipeline.core import AddressTarget, SinkPlan, TableTarget
    from xabridge.pipeline.core.task.sink_task import SinkTask
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.spark.postgres_table import PostgresTable


logger: Final = logging.getLogger("xabridge.pipeline")

KEYS: Final = ("string", "binary", "tinyint", "smallint", "int", "bigint")
"""The types of columns by which messages go to shards."""
KEPT: Final = 128 << 20
"""How many octets of a task's rows are kept at most."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows go. `columns` are those of the table; without an address no messages are sent."""

    table: TableTarget | None
    columns: tuple[str, ...]
    address: AddressTarget | None


def layout(options: SinkOptions, rows: Mapping[str, str], *, table: PostgresTable | None = None) -> Layout:
    """The layout of rows with these columns (name → Spark type). `table` is what the database says of the table, which
    is looked up otherwise. PipelineError: the rows don't fit."""
    columns: tuple[str, ...] = ()
    if options.address is not None:
        _check_messages(options.address, rows, alone=options.table is None)
    if options.table is not None:
        from xabridge.pipeline.spark.postgres_table import check_rows, look_up  # noqa: PLC0415 — loads psycopg

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
        table = table or look_up(options.table, options.settings.url(options.table.resource))
        check_rows(options.table, table, {name: rows[name] for name in columns})
    return Layout(options.table, columns, options.address)


def _check_messages(target: AddressTarget, rows: Mapping[str, str], *, alone: bool) -> None:
    where = f"address {target.resource}:{target.address}"
    if "body" not in rows:
        raise PipelineError(f"{where}: the query has no column body for the messages (it has {_list(rows)})")
    if target.shards and rows.get(target.key) not in KEYS:
        told = f"it is {rows[target.key]}" if target.key in rows else f"the query has {_list(rows)}"
        raise PipelineError(
            f"{where}: shard_key has to name a column with the key, of the type {', '.join(KEYS)}; {told}"
        )
    for name, type_ in rows.items():
        if name not in COLUMNS:
            if alone and name != target.key:
                raise PipelineError(
                    f"{where}: a message has no {name}; drop the column, or make it an application property: "
                    f"map('{name}', {name}) as application_properties. There are {', '.join(SENT)}"
                )
        elif name not in RECEIVED and type_ not in _accepted(name):
            raise PipelineError(f"{where}: the column {name} has to be {' or '.join(_accepted(name))}, not {type_}")


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
        if self.layout.table is not None:
            from xabridge.pipeline.spark.postgres_table import csv_of  # noqa: PLC0415 — loads psycopg

            octets = csv_of(batch, self.layout.columns)
            task.write_csv(self.layout.table, self.layout.columns, octets, len(batch))
        if self.layout.address is not None:
            for target, rows in by_shard(batch, self.layout.address):
                messages = messages_of(rows)
                if len(messages):
                    task.send(target, messages)
