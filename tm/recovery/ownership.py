"""This module decides to whom a global transaction belongs. Recovery and the commands use this one rule to find what
they may resolve, presume, settle and end. They leave everything else alone, even if nothing seems to be in the way.

A decision belongs to the node and the incarnation in its gtrid, in the log or decider that the gtrid names:

- Of another node, or in a log that is not open here: left alone, because only its own node knows whether more follows.
- In the log that is open here: ours, since one process at a time has it. That there is no decision means something only
  for incarnations of which the log knows everything (`tm.log.incarnations`).
- In a decider, where several processes of this node may be at work: ours, if it is of this manager's incarnation, or
  nobody holds a lease for that incarnation any more. Then it is settled first, so that a process which only seemed
  to be dead can't decide any more.
- Ours, and below the floor that its incarnation has noted in the log or the decider: it was finished before. Without a
  decision its branch can only be in an old copy of a resource's data, and the decision may have been forgotten since.
  The floors have to be read before the branch is found, because a transaction that is finished meanwhile is below a
  later floor.
- In a decider, with a counter for its incarnation: left alone, because no manager makes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from tm.log.incarnations import Incarnations
from xa import Gtrid, XaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tm.log import DecisionLog
    from tm.log.inspection import LogImage
    from tm.resources import Resource

AtWork: TypeAlias = "Mapping[str, frozenset[bytes] | XaError]"
"""Name of a decider → the incarnations under which other processes of this node are at work there, or what kept it from
telling them."""


Floors: TypeAlias = "Mapping[str, Mapping[bytes, int] | XaError]"
"""Name of a decider, or IN_LOG → incarnation → the sequence below which its transactions are over everywhere; or what
kept the decider from telling them."""

IN_LOG: Final = ""
"""Where the floors of the log stand among those of the deciders."""


class Claim(Enum):
    """The relation of a transaction to the manager that asks."""

    OURS = "to be resolved here"
    OTHERS = "another node's"
    ELSEWHERE = "of this node, and its decision lives elsewhere"
    FINISHED = "of this node, and finished before"
    AT_WORK = "another process of this node is working on it"
    UNKNOWN = "it is unknown now who is working on it"
    FOREIGN = "made by another product"


@dataclass(frozen=True, slots=True)
class Whose:
    """A claim, and in words why it is not ours."""

    claim: Claim
    why: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is to be resolved here."""
        return self.claim is Claim.OURS


_OURS = Whose(Claim.OURS)
_NO_FLOORS: Final[Mapping[bytes, int]] = MappingProxyType({})
FINISHED: Final = (
    "it was finished before, so this resource's data is older than its manager's notes: restored from a back-up, or a "
    "standby that had not caught up. Whether it was committed is not known any more: look at the other resources, "
    "and decide the same here"
)
"""Why a branch is left alone that was finished before."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who asks: `node`, with its log `log_id` (b"" without one), whose `incarnations` it knows; with `deciders`
    (decider id → resource name), where it begins transactions as the incarnation `own` (b"" where it begins none); and
    the `floors`, as they were before branches were looked for."""

    node: str
    log_id: bytes = b""
    incarnations: Incarnations = field(default_factory=Incarnations)
    deciders: Mapping[bytes, str] = field(default_factory=lambda: MappingProxyType({}))
    own: bytes = b""
    floors: Floors = field(default_factory=lambda: MappingProxyType({}))

    def whose(self, gtrid: bytes, at_work: AtWork = MappingProxyType({}), *, decided: bool = False) -> Whose:
        """Whose `gtrid` is; `decided`: a decision of it was found where it names, so that nothing is presumed."""
        try:
            read = Gtrid.decode(gtrid)
        except ValueError:
            return Whose(Claim.FOREIGN)
        log = read.log_id.hex()
        if read.node != self.node:
            return Whose(Claim.OTHERS, f"belongs to node {read.node}, log {log}")
        if read.log_id == self.log_id:
            why = None if decided else self.incarnations.why_not(read.incarnation)
            if why is not None:
                return Whose(Claim.ELSEWHERE, f"{why} (log {log})")
            return _OURS if decided else self._unless_over(read, IN_LOG)

        decider = self.deciders.get(read.log_id)
        if decider is None:
            return Whose(Claim.ELSEWHERE, f"its decision lives in log {log}, which is not open here")
        if isinstance(read.incarnation, int):
            return Whose(Claim.ELSEWHERE, f"its incarnation is the counter {read.incarnation}, which no manager has")
        if read.incarnation == self.own:
            return _OURS if decided else self._unless_over(read, decider)
        working = at_work.get(decider, frozenset())
        if isinstance(working, XaError):
            why = f"it is unknown who is working on it, because {decider} can't be asked: {working.message}"
            return Whose(Claim.UNKNOWN, why)
        if read.incarnation in working:
            return Whose(Claim.AT_WORK, f"another process of this node is working on it, as {decider} says")
        return _OURS if decided else self._unless_over(read, decider)

    def _unless_over(self, read: Gtrid, place: str) -> Whose:
        """Ours, unless its incarnation has noted there that it is over."""
        floors = self.floors.get(place, _NO_FLOORS)
        if isinstance(floors, XaError):
            why = f"it is unknown whether it was finished before, because {place} can't be asked: {floors.message}"
            return Whose(Claim.UNKNOWN, why)
        if not isinstance(read.incarnation, bytes) or read.sequence >= floors.get(read.incarnation, 0):
            return _OURS
        return Whose(Claim.FINISHED, FINISHED)


def ownership_of(
    node: str, log: DecisionLog | LogImage | None, resources: Mapping[str, Resource], own: bytes = b""
) -> Ownership:
    """Whose branches may be resolved with this log, and with those of the resources that decide and were opened, by who
    begins transactions there as the incarnation `own`."""
    deciders = {}
    for resource in resources.values():
        if resource.decides and resource.identity is not None:  # it was opened once, so that its id is known
            deciders[resource.decider.decider_id] = resource.name
    if log is None:
        return Ownership(node, deciders=deciders, own=own)
    return Ownership(node, log.log_id, log.incarnations, deciders, own)
