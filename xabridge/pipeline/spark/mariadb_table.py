"""MariaTable: a table of MariaDB or MySQL as the target of a sink, and rows as Python values.

What the server would change without an error is refused when the query starts: it cuts off digits behind the point of
numbers and fractions of seconds, and tables of other engines than InnoDB are changed at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pymysql

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.mariadb import DDL, make_table
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.pipeline.spark.database_table import Column
from xabridge.pipeline.spark.json_values import json_texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xabridge.pipeline.core import TableTarget

_TEXT: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_WHOLE: Final[Mapping[str, tuple[str, ...]]] = {
    "tinyint": _INTEGERS,
    "smallint": _INTEGERS[1:],
    "int": _INTEGERS[3:],
    "bigint": _INTEGERS[4:],
}
"""Spark's integer types → the types that hold every value of them, unless they are unsigned."""
_DIGITS: Final[Mapping[str, int]] = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
TYPES: Final[Mapping[str, frozenset[str]]] = {
    "float": frozenset({"float", "double"}),
    "double": frozenset({"double"}),
    "boolean": frozenset({"tinyint", "smallint", "int", "bigint"}),
    "binary": frozenset({"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}),
    "date": frozenset({"date", "datetime"}),
    "array": frozenset({"longtext", "json"}),
    "map": frozenset({"longtext", "json"}),
    "struct": frozenset({"longtext", "json"}),
}
"""Other Spark types (the name alone) → types that hold every value of them. Text types hold every one but binary. A
string may go into any column: the server reads it."""
_FRACTIONS: Final[Mapping[str, str]] = {"timestamp": "timestamp", "timestamp_ntz": "datetime"}
_MICROSECONDS: Final = 6
_NUMBERS: Final = re.compile(r"\d+")

_SETTINGS: Final = """
SELECT t.engine FROM information_schema.tables t
WHERE t.table_schema = {schema} AND t.table_name = {table} AND t.table_type = 'BASE TABLE'"""
_OTHERS: Final = """
SELECT t.table_name FROM information_schema.tables t
WHERE t.table_schema = {schema} AND lower(t.table_name) = lower({table}) ORDER BY t.table_name LIMIT 1"""
_COLUMNS: Final = """
SELECT column_name, column_type, is_nullable, column_default, extra FROM information_schema.columns
WHERE table_schema = {schema} AND table_name = {table} ORDER BY ordinal_position"""
_KEYS: Final = """
SELECT index_name, column_name, sub_part FROM information_schema.statistics
WHERE table_schema = {schema} AND table_name = {table} AND non_unique = 0 ORDER BY index_name, column_name"""


@dataclass(frozen=True, slots=True)
class MariaTable:
    """A table as the server describes it. `partial` are the columns of unique indexes over the beginnings of values.
    `optional` are the columns that are null, or have a number of the server's, in a row that gives no value for
    them."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, ...], ...]
    optional: frozenset[str]

    def holds(self, column: Column, spark: str) -> bool:
        kind = spark.partition("(")[0].partition("<")[0]
        name = re.split(r"[ (]", column.type, maxsplit=1)[0]
        sizes = [int(number) for number in _NUMBERS.findall(column.type.partition("(")[2].partition(")")[0])]
        if kind == "string" or (name in _TEXT and kind not in {"binary", "array", "map", "struct"}):
            return True
        if name == "decimal":
            digits, scale = _decimal(spark)
            return digits > 0 and sizes[1] >= scale and sizes[0] - sizes[1] >= digits - scale
        if kind in _WHOLE:
            return name in _WHOLE[kind] and "unsigned" not in column.type
        if kind in _FRACTIONS:
            return name == _FRACTIONS[kind] and sizes == [_MICROSECONDS]
        return name in TYPES.get(kind, frozenset())

    def arrays(self, rows: Mapping[str, str]) -> frozenset[str]:
        del rows  # MariaDB has no arrays
        return frozenset()

    def check_key(self, key: Sequence[str], rows: Mapping[str, str]) -> str:
        others = [*self.partial, *(other for other in self.keys if other != tuple(sorted(key)))]
        for other in others:
            if not any(name in self.optional and name not in rows for name in other):
                return (
                    f"it has another unique constraint ({', '.join(other)}), by which MariaDB would also find rows to "
                    "update: leave its columns out, or write into a table that has this key alone"
                )
        return ""


def _decimal(spark: str) -> tuple[int, int]:
    """The digits of a Spark type, and how many of them are behind the point; 0 for a type that has no such number."""
    if spark.startswith("decimal("):
        digits, scale = (int(number) for number in _NUMBERS.findall(spark))
        return digits, scale
    return _DIGITS.get(spark, 0), 0


def look_up(target: TableTarget, url: str) -> MariaTable:
    """The table of `target`; PipelineError: it is not there, or can't be written in two phases."""
    where = f"table {target.resource}:{target.table}"
    url = expanded(target.resource, url)
    *schema, table = [part.strip('"').replace('""', '"') for part in re.findall(r'"(?:[^"]|"")+"|[^."]+', target.table)]
    try:
        with connect(url) as connection, connection.cursor() as cursor:
            names = {
                "schema": connection.escape(schema[0]) if schema else "DATABASE()",
                "table": connection.escape(table),
            }
            cursor.execute(_SETTINGS.format(**names))
            engines = [engine for (engine,) in cursor.fetchall()]
            cursor.execute(_OTHERS.format(**names))
            others = [
                f". There is {name}: this server tells capitals in names of tables" for (name,) in cursor.fetchall()
            ]
            cursor.execute(_COLUMNS.format(**names))
            columns = cursor.fetchall()
            cursor.execute(_KEYS.format(**names))
            indexes: dict[str, list[tuple[str, int | None]]] = {}
            for index, name, part in cursor.fetchall():
                indexes.setdefault(index, []).append((name, part))
    except pymysql.MySQLError as error:
        raise PipelineError(f"{where}: its columns can't be read: {error}") from None

    if not engines:
        raise PipelineError(f"{where}: there is no such table in this database{''.join(others)}")
    if engines[0] != "InnoDB":
        raise PipelineError(f"{where}: its engine is {engines[0]}, which can't roll back; it has to be InnoDB")

    if target.key:
        _make_staging(target, url)
    whole = [all(part is None for _, part in index) for index in indexes.values()]
    names_of = [tuple(name for name, _ in index) for index in indexes.values()]
    return MariaTable(
        target.table,
        tuple(map(_column, columns)),
        tuple(names for names, is_whole in zip(names_of, whole, strict=True) if is_whole),
        tuple(names for names, is_whole in zip(names_of, whole, strict=True) if not is_whole),
        frozenset(row[0] for row in columns if _is_optional(row)),
    )


def _is_optional(row: Any) -> bool:
    _, _, nullable, default, extra = row
    return "auto_increment" in extra or (nullable == "YES" and default in {None, "NULL"})


def _column(row: Any) -> Column:
    name, type_, nullable, default, extra = row
    made = "GENERATED" in extra.upper() and "DEFAULT_GENERATED" not in extra.upper()
    needed = nullable == "NO" and default is None and "auto_increment" not in extra and not made
    return Column(name, type_, needed, made)


def _make_staging(target: TableTarget, url: str) -> None:
    try:
        with connect(url) as connection:
            make_table(connection)
    except pymysql.MySQLError as error:
        raise PipelineError(
            f"resource {target.resource}: rows by key first go into a table of this database, and this user can't "
            f"create it: {error}. Ask an administrator to create it, and to grant SELECT, INSERT and DELETE on it: "
            f"{DDL}"
        ) from None  # which may quote the server, and that a password


def rows_of(batch: pa.RecordBatch, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows of `batch` as Python values; nested ones as JSON."""
    return list(zip(*(_values(batch.column(name)) for name in columns), strict=True))


def _values(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return list(json_texts(array)) if pa.types.is_nested(array.type) else values
