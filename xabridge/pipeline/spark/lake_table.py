"""A Delta table as the target of a sink: what its log says of it when the query starts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from xa import XaError
from xa.extras import install_command
from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.spark.database_table import Column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xabridge.pipeline.core import LakeTarget

_WIDER: Final[Mapping[str, frozenset[str]]] = {
    "tinyint": frozenset({"smallint", "int", "bigint"}),
    "smallint": frozenset({"int", "bigint"}),
    "int": frozenset({"bigint"}),
    "float": frozenset({"double"}),
}
"""Spark type → types of Delta that hold every value of it, besides its own."""


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A `DatabaseTable`. It has no keys: rows are appended."""

    columns: tuple[Column, ...]
    keys: tuple[tuple[str, ...], ...] = ()

    def holds(self, column: Column, spark: str) -> bool:
        held = column.type
        return held == spark or held in _WIDER.get(spark, ()) or _is_wider_decimal(spark, held)

    def arrays(self, rows: Mapping[str, str]) -> frozenset[str]:
        del rows  # Arrow has them as they are
        return frozenset()

    def check_key(self, key: Sequence[str], rows: Mapping[str, str]) -> str:
        del key, rows
        return "to a Delta table rows are appended"


def look_up(target: LakeTarget, url: str) -> LakeTable:
    """The table of `target`; PipelineError: it is not there."""
    try:
        from rm_delta.errors import ForkedProcess, TableRefused  # noqa: PLC0415 — together with what needs the extra
        from rm_delta.resource_manager import lake_folder  # noqa: PLC0415
        from rm_delta.table import describe_now  # noqa: PLC0415
    except ImportError as error:
        raise PipelineError(
            f"resource {target.resource}: Delta tables need the extra delta: {install_command('delta')} ({error})"
        ) from error

    try:
        folder = lake_folder(expanded(target.resource, url))
        described = describe_now(folder, target.table)
    except (TableRefused, ForkedProcess, XaError) as error:
        raise PipelineError(f"table {target.resource}:{target.table}: {error}") from error
    fields: list[Any] = StructType.fromJson(json.loads(described.schema)).fields
    return LakeTable(
        tuple(
            Column(field.name, field.dataType.simpleString(), needed=not field.nullable, made=False) for field in fields
        )
    )


def _is_wider_decimal(spark: str, delta: str) -> bool:
    """Whether both are decimals, and the table's has as many digits before and after the point."""
    if not (spark.startswith("decimal(") and delta.startswith("decimal(")):
        return False
    (digits, places), (most, held) = (tuple(map(int, one[8:-1].split(","))) for one in (spark, delta))
    return held >= places and most - held >= digits - places
