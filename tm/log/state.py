"""What a decision log says at one moment: the decisions that have not ended, and the heuristic outcomes noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.log.decision import Decision, Heuristic
from tm.log.records import (
    End,
    Record,
    branch_key,
    decode_decision,
    decode_heuristic,
    encode_decision,
    encode_heuristic,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class LogState:
    """Both tables map to the record as it is kept, oldest first, so that a snapshot is a join."""

    __slots__ = ("decisions", "heuristics")

    def __init__(self) -> None:
        self.decisions: dict[bytes, bytes] = {}
        """gtrid → DECISION record."""
        self.heuristics: dict[bytes, bytes] = {}
        """`branch_key` → HEURISTIC record."""

    def apply(self, record: Record) -> None:
        """The state after `record`. What a record takes away need not be there: its END may have been lost
        behind a snapshot that knew of it."""
        if isinstance(record, Decision):
            self.decisions[record.gtrid] = encode_decision(record)
        elif isinstance(record, End):
            self.decisions.pop(record.gtrid, None)
        elif isinstance(record, Heuristic):
            self.heuristics[branch_key(record.branch)] = encode_heuristic(record)
        else:
            self.heuristics.pop(branch_key(record.branch), None)

    def records(self) -> list[bytes]:
        """Records that make this state out of nothing."""
        return [*self.decisions.values(), *self.heuristics.values()]


def decoded_decisions(records: Sequence[bytes]) -> tuple[Decision, ...]:
    """The decisions in DECISION records."""
    return tuple(decode_decision(record) for record in records)


def decoded_heuristics(records: Sequence[bytes]) -> tuple[Heuristic, ...]:
    """The outcomes in HEURISTIC records."""
    return tuple(decode_heuristic(record) for record in records)
