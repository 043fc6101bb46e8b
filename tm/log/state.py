"""The contents of a decision log at one moment: the decisions that have not ended, the heuristic outcomes noted, and
what is known of its incarnations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.log.contract import Decision, Heuristic
from tm.log.incarnations import Incarnations
from tm.log.records import (
    CarriedOut,
    Ceiling,
    DecisionEnded,
    Floor,
    IncarnationNoted,
    Record,
    branch_key,
    encode_carried_out,
    encode_ceiling,
    encode_decision,
    encode_floor,
    encode_heuristic,
    encode_noted,
)

if TYPE_CHECKING:
    from tm.log.incarnations import IncarnationState


class LogState:
    """The first two tables map to the record as it is kept, oldest first, so that a snapshot is a join."""

    __slots__ = ("carried_out", "ceilings", "decisions", "floors", "heuristics", "noted")

    def __init__(self) -> None:
        self.decisions: dict[bytes, bytes] = {}
        """gtrid → DECISION record."""
        self.heuristics: dict[bytes, bytes] = {}
        """`branch_key` → HEURISTIC record."""
        self.noted: dict[bytes, IncarnationState] = {}
        """Incarnation → what is known of it, oldest first."""
        self.floors: dict[bytes, int] = {}
        """Incarnation → the sequence below which its transactions are over."""
        self.ceilings: dict[bytes, int] = {}
        """Incarnation → the sequence that its transactions do not reach."""
        self.carried_out: dict[str, int] = {}
        """Resource → when the latest decision was made that was carried out there: milliseconds since 1970."""

    def apply(self, record: Record) -> None:
        """The state after `record`. What a record takes away need not be there: its END may have been lost
        behind a snapshot that knew of it."""
        if isinstance(record, Decision):
            self.decisions[record.gtrid] = encode_decision(record)
        elif isinstance(record, DecisionEnded):
            self.decisions.pop(record.gtrid, None)
        elif isinstance(record, Heuristic):
            self.heuristics[branch_key(record.branch)] = encode_heuristic(record)
        elif isinstance(record, IncarnationNoted):
            self.noted[record.incarnation] = record.standing
        elif isinstance(record, Floor):
            self.floors[record.incarnation] = record.sequence
        elif isinstance(record, Ceiling):
            self.ceilings[record.incarnation] = record.sequence
        elif isinstance(record, CarriedOut):
            self.carried_out[record.resource] = record.at_ms
        else:
            self.heuristics.pop(branch_key(record.branch), None)

    @property
    def incarnations(self) -> Incarnations:
        """The known incarnations."""
        return Incarnations(dict(self.noted), dict(self.floors), dict(self.ceilings))

    def records(self) -> list[bytes]:
        """Records that make this state out of nothing."""
        noted = [encode_noted(incarnation, standing) for incarnation, standing in self.noted.items()]
        floors = [encode_floor(one, floor) for one, floor in self.floors.items() if one in self.noted]
        ceilings = [encode_ceiling(one, ceiling) for one, ceiling in self.ceilings.items() if one in self.noted]
        carried_out = [encode_carried_out(name, at_ms) for name, at_ms in self.carried_out.items()]
        return [*noted, *floors, *ceilings, *carried_out, *self.decisions.values(), *self.heuristics.values()]
