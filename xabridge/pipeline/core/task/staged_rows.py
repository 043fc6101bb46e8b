"""StagedRows: what an attempt says of the rows that it has staged for the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xabridge.pipeline.core.values import TableTarget


@dataclass(frozen=True, slots=True)
class StagedRows:
    """The rows that an attempt has staged for one target: so many rows with these columns."""

    target: TableTarget
    columns: tuple[str, ...]
    attempt: str
    place: int
    rows: int


def in_order(staged: Sequence[StagedRows]) -> list[StagedRows]:
    """The rows as they are to be written: table by table, and in each of them in the order of the tasks."""
    ordered = sorted(staged, key=lambda one: one.place)
    tables = list(dict.fromkeys(one.target.table for one in ordered))
    return sorted(ordered, key=lambda one: tables.index(one.target.table))


class StagedCounts:
    """How many rows an attempt has staged, by target and columns: each of these has a number of its own."""

    def __init__(self, place: int, attempt: str) -> None:
        self._place = place
        self._attempt = attempt
        self._counts: dict[tuple[TableTarget, tuple[str, ...]], int] = {}

    def begin(self, target: TableTarget, columns: Sequence[str]) -> tuple[str, int]:
        """The name under which rows for `target` are staged, and how many there are already."""
        kind = target, tuple(columns)
        rows = self._counts.setdefault(kind, 0)
        return f"{self._attempt}/{list(self._counts).index(kind)}", rows

    def set(self, target: TableTarget, columns: Sequence[str], rows: int) -> None:
        """Now there are so many."""
        self._counts[target, tuple(columns)] = rows

    def staged(self) -> tuple[StagedRows, ...]:
        """What was staged."""
        return tuple(
            StagedRows(target, columns, f"{self._attempt}/{number}", self._place, rows)
            for number, ((target, columns), rows) in enumerate(self._counts.items())
        )
