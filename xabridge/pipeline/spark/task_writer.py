"""TaskWriter: writes the rows of a task into tables, as messages to addresses, or both.

A `SinkLayout` says which column goes where; it is made, and checked, when the query starts. A `TaskWriter` with its
layout is pickled to the tasks. It writes the rows of one attempt under branches of its own, which are prepared when it
returns."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core import Attempt, BatchRefused, LakeTarget, PipelineError, SinkReport
from xabridge.pipeline.core.resources import database_of
from xabridge.pipeline.core.retry import Backoff
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.databases import MARIADB, POSTGRES, scheme_of
from xabridge.pipeline.options import TableRows
from xabridge.pipeline.spark.message_rows import COLUMNS, RECEIVED, SENT, messages_of, with_body
from xabridge.pipeline.spark.routed_rows import by_shard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from xabridge.pipeline.core import AddressTarget, OnceSettings, Settings, SinkPlan, TableTarget
    from xabridge.pipeline.core.task.sink_task import SinkTask
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.routing import Routing
    from xabridge.pipeline.spark.database_table import DatabaseTable

logger: Final = logging.getLogger("xabridge.pipeline")

IDENTIFYING: Final = ("string", "tinyint", "smallint", "int", "bigint", "date")
"""Spark types whose values identify a row by their text."""
KEYS: Final = ("string", "binary", "tinyint", "smallint", "int", "bigint")
"""The types of columns by which messages go to shards."""
KEPT: Final = 128 << 20
"""How many octets of a task's rows are kept at most."""


@dataclass(frozen=True, slots=True)
class SinkLayout:
    """Where the rows go. Without addresses no messages are sent."""

    tables: Routing[TableRows]
    addresses: Routing[AddressTarget]
    once: OnceSettings | None = None
    """Which rows are left out because they were written before."""


def layout(options: SinkOptions, rows: Mapping[str, str]) -> SinkLayout:
    """The layout of rows with these columns (name → Spark type). PipelineError: they don't fit."""
    routes = []
    for option, column in (("table", options.tables.column), ("address", options.addresses.column)):
        if column:
            _check_route(f"{option}_column", column, rows)
            routes.append(column)
    for address in options.addresses.targets:
        _check_messages(address, rows, routes, alone=not options.tables)
    tables = [_table(options, one, rows, routes) for one in options.tables.targets]
    return SinkLayout(options.tables.with_targets(tables), options.addresses, _remembered(options, rows))


def _remembered(options: SinkOptions, rows: Mapping[str, str]) -> OnceSettings | None:
    """What identifies a row; its table is there afterwards."""
    once = options.once
    if once is None:
        return None
    if once.column not in rows:
        raise PipelineError(f"format xa, option once: the query has no column {once.column!r}; it has {_list(rows)}")
    if rows[once.column] not in IDENTIFYING:
        raise PipelineError(f"format xa, option once: {once.column} is {rows[once.column]}; cast it to string")
    _make_once_table(once.values, options.settings.url(once.values.resource))
    return once


def _make_once_table(target: TableTarget, url: str) -> None:
    url = expanded(target.resource, url)
    kind = database_of(target.resource, url)
    where = f"resource {target.resource}: the table {target.table} of the option once_table"
    statement = kind.once.statement(target.table)
    try:
        fits = kind.once.make(url, target.table)
    except kind.errors as error:
        raise PipelineError(
            f"{where} can't be made: {error}. Ask an administrator to create it, and to grant SELECT and INSERT on it: "
            f"{statement}"
        ) from error

    if not fits:
        raise PipelineError(
            f"{where} is there, but can't tell values exactly, each of them once. Name another table, or make it anew: "
            f"{statement}"
        )


def _check_route(option: str, column: str, rows: Mapping[str, str]) -> None:
    if column not in rows:
        raise PipelineError(f"format xa, option {option}: the query has no column {column!r}; it has {_list(rows)}")
    if not rows[column].startswith(("string", "varchar", "char")):
        raise PipelineError(f"format xa, option {option}: the column {column} has to be string, not {rows[column]}")


def _table(options: SinkOptions, one: TableRows, rows: Mapping[str, str], routes: Sequence[str]) -> TableRows:
    from xabridge.pipeline.spark.database_table import check_rows, meant  # noqa: PLC0415 — loads pyarrow

    target = one.target
    named = f"columns.{target.table}" if options.tables.column else "columns"
    for name in one.columns:
        if name not in rows:
            raise PipelineError(
                f"format xa, option {named}: the query has no column {name!r}{meant(name, rows)}; it has {_list(rows)}"
            )
    table = look_up(target, options.settings)
    has = {column.name for column in table.columns}
    columns = one.columns or tuple(
        name for name in rows if (name in has if name in routes else not options.addresses or name not in COLUMNS)
    )
    if not columns:
        raise PipelineError(
            f"format xa: every column of the query belongs to the message; set the option {named} for the table"
        )
    chosen = {name: rows[name] for name in columns}
    check_rows(target, table, chosen, named)
    return TableRows(target, columns, table.arrays(chosen))


def _check_messages(target: AddressTarget, rows: Mapping[str, str], routes: Sequence[str], *, alone: bool) -> None:
    where = f"address {target.resource}:{target.address}"
    if "body" not in rows:
        raise PipelineError(f"{where}: the query has no column body for the messages (it has {_list(rows)})")
    if target.shards and rows.get(target.key) not in KEYS:
        found = f"it is {rows[target.key]}" if target.key in rows else f"the query has {_list(rows)}"
        raise PipelineError(
            f"{where}: shard_key has to name a column with the key, of the type {', '.join(KEYS)}; {found}"
        )

    for name, type_ in rows.items():
        if name not in COLUMNS:
            if alone and name not in routes and name != target.key:
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

    layout: SinkLayout
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
                        once = self.layout.once
                        left = batch if once is None else first_ones(task, batch, once)
                        if len(left):
                            self._write(task, left)
                    return task.prepare()
            except BatchRefused as error:
                if not error.outage or not rows.again() or not backoff.wait():
                    raise
                logger.warning("writing partition %d again: %s", attempt.partition, error)

    def _write(self, task: SinkTask, batch: pa.RecordBatch) -> None:
        from xabridge.pipeline.spark.routed_rows import split  # noqa: PLC0415 — planners don't write

        for table, rows in split(self.layout.tables, batch, "table"):
            self._write_table(task, table, rows)
        if self.layout.addresses:
            for address, rows in split(self.layout.addresses, with_body(batch), "address"):
                for place, part in by_shard(rows, address):
                    task.send(place, messages_of(part))

    def _write_table(self, task: SinkTask, table: TableRows, rows: pa.RecordBatch) -> None:
        if isinstance(table.target, LakeTarget):
            import pyarrow as pa  # noqa: PLC0415 — planners don't write

            chosen = pa.Table.from_batches([rows.select(list(table.columns))])
            task.write_files(table.target, chosen, len(rows))
        elif scheme_of(self.plan.table_url(table.target.resource)) in MARIADB:
            from xabridge.pipeline.spark.mariadb_table import rows_of  # noqa: PLC0415 — loads PyMySQL

            task.write_rows(table.target, table.columns, rows_of(rows, table.columns))
        else:
            from xabridge.pipeline.spark.postgres_table import csv_of  # noqa: PLC0415 — loads psycopg

            octets = csv_of(rows, table.columns, table.arrays)
            task.write_csv(table.target, table.columns, octets, len(rows))


def first_ones(task: SinkTask, batch: pa.RecordBatch, once: OnceSettings) -> pa.RecordBatch:
    """The rows of `batch` that were not written before, one of each value. BatchRefused: a row has no value."""
    column = batch.column(once.column)
    if column.null_count:
        raise BatchRefused(f"{once.column} is null in {column.null_count} rows, and has to identify them", of_rows=True)
    values = [str(value) for value in column.to_pylist()]
    first = set(task.first_ones(once, values))
    places: list[int] = []
    for place, value in enumerate(values):
        if value in first:
            first.remove(value)
            places.append(place)
    return batch.take(places) if places else batch.slice(0, 0)  # Arrow can't take by no places


def look_up(target: TableTarget | LakeTarget, settings: Settings) -> DatabaseTable:
    """The table of `target`; PipelineError: it is not there, or the server can't take part as the settings say."""
    url = settings.table_url(target.resource)
    if isinstance(target, LakeTarget):
        from xabridge.pipeline.spark import lake_table  # noqa: PLC0415 — loads deltalake

        return lake_table.look_up(target, url)
    if settings.decides(target.resource):
        if scheme_of(url) not in POSTGRES or scheme_of(settings.log).partition("+")[0] not in POSTGRES:
            raise PipelineError(
                f"resource {target.resource}: rows are written together with the decision only in the PostgreSQL that "
                f"has the log, and this is {scheme_of(url)}, with a log in {scheme_of(settings.log)}"
            )
        from xabridge.pipeline.spark import postgres_table  # noqa: PLC0415 — loads psycopg

        return postgres_table.look_up_deciding(target, url, settings.log)
    if scheme_of(url) in MARIADB:
        from xabridge.pipeline.spark import mariadb_table  # noqa: PLC0415 — loads PyMySQL

        return mariadb_table.look_up(target, url)
    from xabridge.pipeline.spark import postgres_table  # noqa: PLC0415 — loads psycopg

    return postgres_table.look_up(target, url)
