"""PostgresTable: a table of PostgreSQL as the target of a sink, and rows as CSV."""

from __future__ import annotations

import io
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from pyarrow import csv

from rm_db.postgres.database import connect
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.staging_table import DDL, NAME, make_table
from xabridge.pipeline.spark.database_table import Column
from xabridge.pipeline.spark.json_values import json_texts

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from xabridge.pipeline.core import TableTarget

_TEXT: Final = frozenset({"text", "varchar", "bpchar", "citext"})
_JSON: Final = frozenset({"json", "jsonb"})
_INTEGERS: Final = frozenset({"int8", "numeric"})
_FLOATS: Final = frozenset({"float8", "numeric"})
TYPES: Final[Mapping[str, frozenset[str]]] = {
    "tinyint": _INTEGERS | _FLOATS | {"int2", "int4", "float4"},
    "smallint": _INTEGERS | _FLOATS | {"int2", "int4", "float4"},
    "int": _INTEGERS | _FLOATS | {"int4"},
    "bigint": _INTEGERS,
    "float": _FLOATS | {"float4"},
    "double": _FLOATS,
    "decimal": frozenset({"numeric"}),
    "boolean": frozenset({"bool"}),
    "binary": frozenset({"bytea"}),
    "date": frozenset({"date", "timestamp", "timestamptz"}),
    "timestamp": frozenset({"timestamptz"}),
    "timestamp_ntz": frozenset({"timestamp"}),
    "array": _JSON,  # and arrays of what holds the elements
    "map": _JSON,
    "struct": _JSON,
}
"""Spark type (its name alone) → types of PostgreSQL that hold every value of it; text types hold every one but binary.
A string may go into any column: PostgreSQL reads it."""

_COLUMNS: Final = """
SELECT a.attname, t.typname, a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '',
       a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_KEYS: Final = """
SELECT array_agg(a.attname::text ORDER BY a.attname)
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""

_OTHERS: Final = """
SELECT CASE WHEN array_length(parts, 1) = 1 AND pg_table_is_visible(c.oid) THEN quote_ident(c.relname)
            ELSE quote_ident(n.nspname) || '.' || quote_ident(c.relname) END,
       c.relname = parts[array_length(parts, 1)] AND array_length(parts, 1) = 1
FROM parse_ident(%(table)s) parts, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'v') AND lower(c.relname) = lower(parts[array_length(parts, 1)])
      AND n.nspname !~ '^(pg_|information_schema$)'
      AND (array_length(parts, 1) = 1 OR lower(n.nspname) = lower(parts[1]))
ORDER BY pg_table_is_visible(c.oid) DESC, n.nspname, c.relname LIMIT 1"""


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table as PostgreSQL describes it. `keys` are the columns of each unique constraint or index, sorted."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[str, ...], ...]

    def holds(self, column: Column, spark: str) -> bool:
        return _fits(spark, column.type)

    def arrays(self, rows: Mapping[str, str]) -> frozenset[str]:
        types = {column.name: column.type for column in self.columns}
        return frozenset(name for name, type_ in rows.items() if type_.startswith("array<") and types[name][0] == "_")

    def check_key(self, key: Sequence[str], rows: Mapping[str, str]) -> str:
        del key, rows  # ON CONFLICT names the constraint that counts
        return ""


def look_up(target: TableTarget, url: str) -> PostgresTable:
    """The table of `target`; PipelineError: it is not there, or the server prepares no transactions."""
    url = expanded(target.resource, url)
    try:
        with connect(url, autocommit=True) as connection:
            table = _described(target, connection)
            most = connection.execute("SELECT setting::int FROM pg_settings WHERE name = 'max_prepared_transactions'")
            prepared = most.fetchone()
    except psycopg.Error as error:
        raise PipelineError(f"table {target.resource}:{target.table}: its columns can't be read: {error}") from None

    if target.key:
        _make_staging(target, url)
    if prepared == (0,):
        raise PipelineError(
            f"resource {target.resource}: this PostgreSQL has max_prepared_transactions = 0, but a pipeline prepares a "
            "transaction in every task. Set it above the number of tasks, or above twice that with speculation; or, "
            f"where it can't be set and results are small, let it decide: decider = {target.resource}, with the log of "
            "the pipeline in this database"
        )
    return table


def look_up_deciding(target: TableTarget, url: str, log: str) -> PostgresTable:
    """The table of `target`, in the database that decides; PipelineError: it is not there, or the database of the log
    is another one, so that one transaction can't have both."""
    url = expanded(target.resource, url)
    _make_staging(target, url)
    where = f"table {target.resource}:{target.table}"
    log = f"postgresql://{log.partition('://')[2]}"  # without the name of SQLAlchemy's driver
    try:
        with (
            connect(url) as mine,
            connect(log) as deciding,
        ):
            key = secrets.randbits(62)
            mine.execute("SELECT pg_advisory_xact_lock(%s)", [key])  # such a lock is one database's
            free = deciding.execute("SELECT pg_try_advisory_xact_lock(%s)", [key]).fetchone()
            same = free == (False,) and _oids(target, mine) == _oids(target, deciding)
            table = _described(target, deciding) if same else None
    except psycopg.Error as error:
        raise PipelineError(f"{where}: its columns can't be read: {error}") from None

    if table is None:
        raise PipelineError(
            f"resource {target.resource} is to decide, but the log of the pipeline is in another database, or finds "
            f"other tables by the names {target.table} and {NAME}. Name this database for both, with the same "
            "search_path; or write in two phases, without the option decider"
        )
    return table


def _oids(target: TableTarget, connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
    return connection.execute("SELECT to_regclass(%s)::oid, to_regclass(%s)::oid", (target.table, NAME)).fetchone()


def _described(target: TableTarget, connection: psycopg.Connection[Any]) -> PostgresTable:
    columns = connection.execute(_COLUMNS, (target.table,)).fetchall()
    keys = connection.execute(_KEYS, (target.table,)).fetchall()
    if not columns:
        where = f"table {target.resource}:{target.table}"
        raise PipelineError(f"{where}: there is no such table in this database{_other(target, connection)}")
    return PostgresTable(
        target.table, tuple(Column(*column) for column in columns), tuple(tuple(key[0]) for key in keys)
    )


def _other(target: TableTarget, connection: psycopg.Connection[Any]) -> str:
    """Which table there is whose name differs in capitals, or that is in a schema that is not searched."""
    found = connection.execute(_OTHERS, {"table": target.table}).fetchone()
    if found is None:
        return ""
    name, same = found
    if same:
        return f". There is {name}, in a schema that is not in the search_path: write {target.resource}:{name}"
    return (
        f". There is {name}: capitals count, and PostgreSQL reads a name without quotes as one in small letters. Write "
        f"{target.resource}:{name}"
    )


def _make_staging(target: TableTarget, url: str) -> None:
    try:
        make_table(url)
    except psycopg.Error as error:
        raise PipelineError(
            f"resource {target.resource}: rows first go into a staging table of this database, and this user can't "
            f"create it: {error}. Ask an administrator to create it, and to grant SELECT, INSERT, UPDATE and DELETE on "
            f"it: {DDL}"
        ) from None  # which may quote the server, and that a password


def _fits(spark: str, postgres: str) -> bool:
    kind = spark.partition("(")[0].partition("<")[0]
    if kind == "string" or (postgres in _TEXT and kind != "binary"):
        return True
    if kind == "array" and postgres.startswith("_"):
        inner = spark[len("array<") : -1]
        return not inner.startswith(("array<", "map<", "struct<")) and _fits(inner, postgres[1:])
    return postgres in TYPES.get(kind, frozenset())


def csv_of(batch: pa.RecordBatch, columns: Sequence[str], arrays: Collection[str] = ()) -> bytes:
    """The rows of `batch` as PostgreSQL reads them (COPY … FORMAT csv): text is quoted, null is empty. `arrays` are
    columns that are arrays there too."""
    printed = [
        pa.array(list(map(_array_literal, batch.column(name).to_pylist())), pa.string())
        if name in arrays
        else _printable(batch.column(name))
        for name in columns
    ]
    octets = io.BytesIO()
    chosen = pa.RecordBatch.from_arrays(printed, names=list(columns))
    csv.write_csv(chosen, octets, csv.WriteOptions(include_header=False))
    return octets.getvalue()


def _printable(array: pa.Array) -> pa.Array:
    """The array; as text where `write_csv` can't write its type: octets in bytea's hexadecimal form, the others as
    JSON."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array(json_texts(array), pa.string())
    return array


def _array_literal(value: Sequence[Any] | None) -> str | None:
    """An array as PostgreSQL reads it."""
    return None if value is None else "{" + ",".join(map(_element, value)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
