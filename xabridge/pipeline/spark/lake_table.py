"""A Delta table as the target of a sink: the check whether the columns of a query fit it, when the query starts."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from xa import XaError
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.secrets import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xabridge.pipeline.core import LakeTarget

_WIDER: Final[Mapping[str, frozenset[str]]] = {
    "tinyint": frozenset({"smallint", "int", "bigint"}),
    "smallint": frozenset({"int", "bigint"}),
    "int": frozenset({"bigint"}),
    "float": frozenset({"double"}),
}
"""Spark type → types of Delta that hold every value of it, besides its own."""


def check_lake_rows(target: LakeTarget, url: str, rows: Mapping[str, str]) -> None:
    """PipelineError: rows with these columns (name → Spark type) can't be appended to `target`."""
    where = f"table {target.resource}:{target.table}"
    known = _columns(target, url)
    for name, type_ in rows.items():
        if name not in known:
            close = get_close_matches(name, known, 1)
            meant = f" (did you mean {close[0]}?)" if close else ""
            raise PipelineError(
                f"{where}: it has no column {name!r}{meant}; it has {', '.join(known)}. Select what belongs there, or "
                "name it in the option columns"
            )
        held, _ = known[name]
        if held != type_ and held not in _WIDER.get(type_, ()) and not _is_wider_decimal(type_, held):
            raise PipelineError(f"{where}: the column {name} is {held}, and can't hold every {type_}; cast it")
    missing = [name for name, (_, needed) in known.items() if needed and name not in rows]
    if missing:
        raise PipelineError(f"{where}: {', '.join(missing)} must have a value, and the query gives none")


def _columns(target: LakeTarget, url: str) -> dict[str, tuple[str, bool]]:
    """The table's columns: Spark type, and whether a value is needed."""
    try:
        from rm_delta.errors import TableRefused  # noqa: PLC0415 — together with what needs the extra
        from rm_delta.resource_manager import lake_folder  # noqa: PLC0415
        from rm_delta.table import describe, open_table  # noqa: PLC0415
    except ImportError as error:
        raise PipelineError(
            f"resource {target.resource}: Delta tables need the extra delta: pip install 'xabridge[delta]' ({error})"
        ) from error

    try:
        folder = lake_folder(expanded(target.resource, url))
        described = describe(target.table, open_table(folder, target.table))
    except (TableRefused, XaError) as error:
        raise PipelineError(f"table {target.resource}:{target.table}: {error}") from error
    fields: list[Any] = StructType.fromJson(json.loads(described.schema)).fields
    return {field.name: (field.dataType.simpleString(), not field.nullable) for field in fields}


def _is_wider_decimal(spark: str, delta: str) -> bool:
    """Whether both are decimals, and the table's has as many digits before and after the point."""
    if not (spark.startswith("decimal(") and delta.startswith("decimal(")):
        return False
    (digits, places), (most, held) = (tuple(map(int, one[8:-1].split(","))) for one in (spark, delta))
    return held >= places and most - held >= digits - places
