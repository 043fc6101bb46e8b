"""Report: what one recovery pass did, branch by branch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tm.log import Branch
    from tm.recovery.former import Former


class Action(Enum):
    """The action of a pass for one branch."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEURISTIC = "completed on its own, noted"
    FORGOTTEN = "completed on its own as decided, forgotten"
    PENDING = "still in doubt"
    STRANDED = "left in doubt"
    LEFT_ALONE = "left alone"
    GONE = "finished meanwhile"
    NOT_THERE = "not there any more"


@dataclass(frozen=True, slots=True)
class Finding:
    """One branch that a pass met: what was done about it, and why."""

    branch: Branch
    action: Action
    why: str


@dataclass(slots=True)
class Report:
    """The results of one pass. `ended` and `undone` are the gtrids whose decisions are, and are not, carried out
    everywhere; `unreachable` maps a resource's name to what kept the pass from it; `not_configured` the gtrid of an
    undone decision to the names in it that no resource has any more; `ended_incarnations` are those that begin no more
    transactions, and `left_nothing` those of them that have left nothing behind (`tm.recovery.former`)."""

    findings: list[Finding] = field(default_factory=list)
    ended: list[bytes] = field(default_factory=list)
    undone: list[bytes] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    not_configured: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    ended_incarnations: Former = field(default_factory=lambda: MappingProxyType({}), repr=False)
    left_nothing: Former = field(default_factory=lambda: MappingProxyType({}), repr=False)

    @property
    def clean(self) -> bool:
        """Whether every resource manager was reached, no branch of this node is in doubt, and none was completed on its
        own that is not forgotten."""
        return not self.unreachable and all(finding.action not in UNSOLVED for finding in self.findings)

    @property
    def is_worth_repeating(self) -> bool:
        """Whether a pass soon may do what this one could not."""
        return bool(self.unreachable) or any(finding.action is Action.PENDING for finding in self.findings)


UNSOLVED: Final = frozenset({Action.PENDING, Action.STRANDED, Action.HEURISTIC})
"""The actions behind which somebody has to do something, or recovery has."""
