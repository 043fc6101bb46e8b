"""TableDescription: a Delta table as its log describes it now, and whether files may be appended to it.

Files are written here and named in the table's log, so nothing but this module checks what a table demands of its
writers. A table is refused if it demands more than files of the right types: columns that are computed or mapped to
other names, constraints, ids of rows. So is one whose transaction identifiers expire, because a commit that is repeated
after a crash is recognised by its identifier, however late.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from rm_delta.errors import ForkedProcess, RowsRefused, TableRefused, TableUnreadable, plain
from xa.fork import belongs_to_this_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

logger: Final = logging.getLogger("xabridge.rm_delta")

T = TypeVar("T")

FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""What a table may demand of writers. Of those that demand something of appended files, it is looked up whether the
table uses them."""
PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4)
"""A table that can't be read is loaded again after these pauses."""
_EXPIRY: Final = "delta.setTransactionRetentionDuration"
_MAPPING: Final = "delta.columnMapping.mode"
_CONSTRAINT: Final = "delta.constraints."
_OF_COLUMNS: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")
_PARTITIONS: Final = ("string", "byte", "short", "integer", "long", "date", "boolean")
"""Types of partition columns whose values are written here."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table as it is at some moment. `schema` is its JSON in the log; a table that is made anew has another `id`."""

    name: str
    id: str
    schema: str
    partitions: tuple[str, ...]

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The columns as the log has them."""
        found: list[dict[str, Any]] = json.loads(self.schema)["fields"]
        return found

    def check_unchanged(self, now: TableDescription) -> None:
        """TableRefused: files that were written for this description can't be appended to the table as it is `now`.
        New columns that may be null are allowed: the files' rows are null there."""
        if now.id != self.id:
            raise TableRefused(f"{self.name}: the table was replaced by another one after the rows were written")
        if now.partitions != self.partitions:
            raise TableRefused(f"{self.name}: its partition columns were changed after the rows were written")
        before = {field["name"]: field for field in self.fields}
        after = {field["name"]: field for field in now.fields}
        gone = ", ".join(name for name in before if name not in after)
        if gone:
            raise TableRefused(f"{self.name}: the column {gone} was removed after rows with it were written")
        for name, field in after.items():
            was = before.get(name)
            if was is None and not field["nullable"]:
                raise TableRefused(f"{self.name}: the new column {name} must have a value, and the rows have none")
            if was is not None and (was["type"] != field["type"] or (was["nullable"] and not field["nullable"])):
                raise TableRefused(f"{self.name}: the column {name} was changed after the rows were written")


def check_name(name: str) -> str:
    """The name of a table: its folder below the lake's, like sales/orders. TableRefused."""
    parts = PurePosixPath(name).parts
    if not parts or name != "/".join(parts) or any(part[0] in "._/" for part in parts):
        raise TableRefused(
            f"{name!r} is not the name of a table: write its folder below the lake's, like orders or sales/orders; no "
            "part of it may begin with . or _"
        )
    return name


class _Library:
    """The library in this process. Its threads do not survive a fork: used in a child after its parent has used it, it
    panics."""

    def __init__(self) -> None:
        self._used = False
        self._lost = False
        belongs_to_this_process(self)

    def forked(self) -> None:
        self._lost = self._used

    def check(self) -> None:
        """ForkedProcess: it can't be used here."""
        if self._lost:
            raise ForkedProcess(
                "this process was forked after its parent had used a Delta table, and the library for these does not "
                "survive that: fork before, or start the process with spawn"
            )

    def use(self) -> None:
        """Notes that it is used from here on. ForkedProcess."""
        self.check()
        self._used = True


LIBRARY: Final = _Library()


def read_table(root: Path, name: str, ask: Callable[[DeltaTable], T]) -> T:
    """What `ask` finds out about a table, of the library's. While others write the table, they may remove old parts of
    its log: then it is loaded again. TableRefused: there is none. TableUnreadable. ForkedProcess."""
    LIBRARY.use()
    folder = root / check_name(name)
    missing = f"{name}: there is no Delta table in {folder}; make it before"
    pauses = iter(PAUSES_S)
    while True:
        if not folder.is_dir():  # the library would make the folder
            raise TableRefused(missing)

        try:
            return ask(DeltaTable(folder))
        except TableNotFoundError as error:
            raise TableRefused(missing) from error
        except (DeltaError, FileNotFoundError) as error:
            pause_s = next(pauses, None)
            if pause_s is None:
                raise TableUnreadable(f"{name}: the table can't be read: {plain(error)}") from error
            logger.info("%s: the table can't be read, and is loaded again: %s", name, plain(error))
            time.sleep(pause_s)


def describe(name: str, table: DeltaTable) -> TableDescription:
    """The table as it is now. TableRefused: it demands what is not done here."""
    metadata, protocol, schema = table.metadata(), table.protocol(), table.schema().to_json()
    demanded = sorted(set(protocol.writer_features or ()) - FEATURES)
    configuration = metadata.configuration
    if demanded:
        raise TableRefused(f"{name}: the table demands {', '.join(demanded)} of its writers, which is not done here")
    if configuration.get(_MAPPING, "none") != "none":
        raise TableRefused(f"{name}: the table maps its columns to other names ({_MAPPING}), which is not done here")
    constraints = ", ".join(key for key in configuration if key.startswith(_CONSTRAINT))
    if constraints:
        raise TableRefused(f"{name}: the table has constraints ({constraints}), which are not checked here")
    if _EXPIRY in configuration:
        raise TableRefused(
            f"{name}: the table has {_EXPIRY}, so that it may forget that a transaction is committed, and a "
            "commit that is repeated after a crash would append the rows twice: remove the property"
        )

    for field in json.loads(schema)["fields"]:
        special = [key for key in field["metadata"] if key.startswith(_OF_COLUMNS)]
        if special:
            raise TableRefused(f"{name}: the column {field['name']} has {', '.join(special)}, which is not done here")
        if field["name"] in metadata.partition_columns and field["type"] not in _PARTITIONS:
            raise TableRefused(
                f"{name}: the table is partitioned by {field['name']}, which is {field['type']}; partition columns may "
                f"be {', '.join(_PARTITIONS)}"
            )
    return TableDescription(name, str(metadata.id), schema, tuple(metadata.partition_columns))


def describe_now(root: Path, name: str) -> TableDescription:
    """The table in the log now. TableRefused, TableUnreadable."""
    return read_table(root, name, lambda table: describe(name, table))


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The table's columns as Arrow types."""
    return pa.schema(table.schema().to_arrow())


def fitted(name: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the columns of the table, in their order; those that they lack are null. RowsRefused."""
    unknown = [column for column in rows.schema.names if column not in schema.names]
    if unknown:
        raise RowsRefused(f"{name}: the table has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")

    columns = []
    for field in schema:
        if field.name not in rows.schema.names:
            column = pa.chunked_array([pa.nulls(len(rows), field.type)])
        else:
            try:
                column = rows.column(field.name).cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise RowsRefused(f"{name}: the column {field.name} can't hold the rows: {plain(error)}") from error
        if not field.nullable and column.null_count:
            raise RowsRefused(f"{name}: the column {field.name} must have a value in every row")
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
