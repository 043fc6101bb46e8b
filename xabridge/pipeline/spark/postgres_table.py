"""PostgresTable: a table as the target of a sink, the check whether the columns of a query fit it, and rows as CSV.

The check is made when the query starts. What can't be stored, or would be refused at the first row, is an error that
names the column and says what to do.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from pyarrow import csv

from rm_db.address import Address
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task import once_table
from xabridge.pipeline.core.task.staging_table import DDL, make_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    "array": _JSON,
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column: the name of its type; whether a row needs a value for it; whether PostgreSQL makes the value itself."""

    name: str
    type: str
    needed: bool
    made: bool


@dataclass(frozen=True, slots=True)
class PostgresTable:
    """A table as PostgreSQL describes it. `keys` are the columns of each unique constraint or index, sorted."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[str, ...], ...]


def look_up(target: TableTarget, url: str) -> PostgresTable:
    """The table of `target`; PipelineError: it is not there, or the server can't take part."""
    try:
        with psycopg.connect(Address.parse(expanded(target.resource, url)).url, autocommit=True) as connection:
            columns = connection.execute(_COLUMNS, (target.table,)).fetchall()
            keys = connection.execute(_KEYS, (target.table,)).fetchall()
            most = connection.execute("SELECT setting::int FROM pg_settings WHERE name = 'max_prepared_transactions'")
            prepared = most.fetchone()
    except psycopg.Error as error:
        raise PipelineError(f"table {target.resource}:{target.table}: its columns can't be read: {error}") from error
    if target.key:
        _make_staging(target, expanded(target.resource, url))
    if prepared == (0,):
        raise PipelineError(
            f"resource {target.resource}: this PostgreSQL has max_prepared_transactions = 0, but a pipeline prepares a "
            "transaction in every task. Set it above the number of tasks, or above twice that with speculation"
        )
    if not columns:
        raise PipelineError(f"table {target.resource}:{target.table}: there is no such table in this database")
    return PostgresTable(
        target.table, tuple(Column(*column) for column in columns), tuple(tuple(key[0]) for key in keys)
    )


def _make_staging(target: TableTarget, url: str) -> None:
    try:
        make_table(url)
    except psycopg.Error as error:
        raise PipelineError(
            f"resource {target.resource}: rows by key first go into a table of this database, and this user can't "
            f"create it: {error}. Ask an administrator to create it, and to grant SELECT, INSERT, UPDATE and DELETE on "
            f"it: {DDL}"
        ) from error


def make_once_table(target: TableTarget, url: str) -> None:
    """Makes the table of the option once_table where it is missing. PipelineError: this user can't."""
    try:
        once_table.make_table(expanded(target.resource, url), target.table)
    except psycopg.Error as error:
        raise PipelineError(
            f"resource {target.resource}: the table {target.table} of the option once_table can't be made: {error}. "
            "Ask an administrator to create it, and to grant SELECT and INSERT on it: "
            f"{once_table.DDL.format(target.table)}"
        ) from error


def check_rows(target: TableTarget, table: PostgresTable, rows: Mapping[str, str]) -> None:
    """PipelineError: rows with these columns (name → Spark type) can't be written to `target`."""
    where = f"table {target.resource}:{target.table}"
    known = {column.name: column for column in table.columns}
    for name, type_ in rows.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise PipelineError(
                f"{where}: it has no column {name!r}{meant}; it has {', '.join(known)}. Select what belongs there, or "
                "name it in the option columns"
            )
        if known[name].made:
            raise PipelineError(f"{where}: PostgreSQL makes the column {name} itself; leave it out")
        if not _fits(type_, known[name].type):
            raise PipelineError(
                f"{where}: the column {name} is {known[name].type}, and can't hold every {type_}; cast it"
            )
    missing = [column.name for column in table.columns if column.needed and column.name not in rows]
    if missing:
        raise PipelineError(f"{where}: {', '.join(missing)} must have a value, and the query gives none")
    if not target.key:
        return
    for name in target.key:
        if name not in rows:
            raise PipelineError(f"{where}: the query has no column {name}, which is in the key: {', '.join(rows)}")
    if tuple(sorted(target.key)) not in table.keys:
        keys = "; ".join(", ".join(key) for key in table.keys) or "none"
        raise PipelineError(
            f"{where}: no unique constraint has exactly the columns of key, {', '.join(target.key)} (there are: {keys})"
        )


def _fits(spark: str, postgres: str) -> bool:
    kind = spark.partition("(")[0].partition("<")[0]
    if kind == "string" or (postgres in _TEXT and kind != "binary"):
        return True
    return postgres in TYPES.get(kind, frozenset())


def csv_of(batch: pa.RecordBatch, columns: Sequence[str]) -> bytes:
    """The rows of `batch` as PostgreSQL reads them (COPY … FORMAT csv): text is quoted, null is empty."""
    chosen = pa.RecordBatch.from_arrays([_printable(batch.column(name)) for name in columns], names=list(columns))
    octets = io.BytesIO()
    csv.write_csv(chosen, octets, csv.WriteOptions(include_header=False))
    return octets.getvalue()


def _printable(array: pa.Array) -> pa.Array:
    """The array; as text where `write_csv` can't write its type: octets in bytea's hexadecimal form, the others as
    JSON."""
    kind = array.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
    if pa.types.is_nested(kind):
        return pa.array([None if value is None else _json(value, kind) for value in array.to_pylist()], pa.string())
    return array


def _json(value: Any, kind: pa.DataType) -> str:
    return json.dumps(_plain(value, kind), default=str, ensure_ascii=False)  # dates, decimals


def _plain(value: Any, kind: pa.DataType) -> Any:
    """The value in types that JSON has. Arrow's maps are pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(_plain(key, kind.key_type)): _plain(one, kind.item_type) for key, one in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    if isinstance(value, bytes):  # as Spark's to_json has it
        return b64encode(value).decode("ascii")
    return value
