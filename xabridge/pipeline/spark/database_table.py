"""A table as the target of a sink: the check whether the columns of a query fit it.

The check is made when the query starts. What can't be stored, or would be refused at the first row, is an error that
names the column and says what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Protocol

from xabridge.pipeline.core import LakeTarget, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from xabridge.pipeline.core import TableTarget


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as people know it; whether a row needs a value for it; whether the database makes the value
    itself."""

    name: str
    type: str
    needed: bool
    made: bool


class DatabaseTable(Protocol):
    """A table as its database describes it."""

    @property
    def columns(self) -> Sequence[Column]:
        """Its columns."""
        ...

    @property
    def keys(self) -> Sequence[tuple[str, ...]]:
        """The columns of each unique constraint or index, sorted."""
        ...

    def holds(self, column: Column, spark: str) -> bool:
        """Whether the column holds every value of this Spark type."""
        ...

    def arrays(self, rows: Mapping[str, str]) -> frozenset[str]:
        """Those of these columns (name → Spark type) that are arrays in the database, too, and not stored as JSON."""
        ...

    def check_key(self, key: Sequence[str], rows: Mapping[str, str]) -> str:
        """Why rows with these columns can't be upserted by this key, which is one of `keys`; "": they can."""
        ...


def meant(name: str, known: Iterable[str]) -> str:
    """A question whether one of the known names was meant, in parentheses; "" for none. Names that differ in capitals
    are different columns here."""
    names = list(known)
    close = [one for one in names if one.casefold() == name.casefold()] or get_close_matches(name, names, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def check_rows(
    target: TableTarget | LakeTarget, table: DatabaseTable, rows: Mapping[str, str], option: str = "columns"
) -> None:
    """PipelineError: rows with these columns (name → Spark type) can't be written to `target`. `option` is the one that
    names them."""
    where = f"table {target.resource}:{target.table}"
    known = {column.name: column for column in table.columns}
    for name, type_ in rows.items():
        if name not in known:
            raise PipelineError(
                f"{where}: it has no column {name!r}{meant(name, known)}; it has {', '.join(known)}. Select what "
                f"belongs there, or name it in the option {option}"
            )
        if known[name].made:
            raise PipelineError(f"{where}: the database makes the column {name} itself; leave it out")
        if not table.holds(known[name], type_):
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
            raise PipelineError(
                f"{where}: the query has no column {name}{meant(name, rows)}, which is in the key: {', '.join(rows)}"
            )
    if tuple(sorted(target.key)) not in table.keys:
        keys = "; ".join(", ".join(key) for key in table.keys) or "none"
        raise PipelineError(
            f"{where}: no unique constraint has exactly the columns of key, {', '.join(target.key)} (there are: {keys})"
        )
    refused = table.check_key(target.key, rows)
    if refused:
        raise PipelineError(f"{where}: {refused}")
