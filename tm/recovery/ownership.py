"""Decides to whom a global transaction belongs. Recovery and the commands use this one rule to find what they may
resolve, presume, settle and end. They leave everything else alone, even if nothing seems to be in the way.

A decision belongs to the node and the incarnation in its gtrid, in the log or decider that the gtrid names:

- Of another node, or in a log that is not open here: left alone, because only its own node knows whether more follows.
- In the log that is open here: ours, since one process at a time has it. That there is no decision means something only
  for incarnations of which the log knows everything (`tm.log.incarnations`).
- In a decider, where several processes of this node may be at work: ours, if it is of this manager's incarnation, or
  no process holds a lease for that incarnation any more. Then it is settled first, so that a process which only seemed
  to be dead can't decide any more.
- Ours, and below the floor that its incarnation has noted in the log or the decider: it was finished before. Without a
  decision its branch can only be in an old copy of a resource's data, and the decision may have been forgotten since.
  The floors have to be read before the branch is found, because a transaction that is finished meanwhile is below a
  later floor.
- At or above the ceiling of its incarnation, or of an incarnation that is not noted there at all: left alone, because
  the log or decider is older than the branch. The ceilings have to be read after the branch is found, because they rise
  before a transaction begins.
- In a decider, with a counter for its incarnation: left alone, because no manager makes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from tm.log.incarnations import Incarnations
from xa import Gtrid, XaError
from xa.gtrid import OVER

if TYPE_CHECKING:
    from tm.log import DecisionLog
    from tm.log.inspection import LogImage
    from tm.resources import Resource

AtWork: TypeAlias = "Mapping[str, frozenset[bytes] | XaError]"
"""Name of a decider → the incarnations under which other processes of this node are at work there, or what kept it from
telling them."""


Floors: TypeAlias = "Mapping[str, Mapping[bytes, int] | XaError]"
"""Name of a decider, or IN_LOG → incarnation → the sequence below which its transactions are over everywhere; or what
kept the decider from telling them."""

Ceilings: TypeAlias = "Mapping[str, Mapping[bytes, int] | XaError]"
"""Name of a decider, or IN_LOG → incarnation → the sequence that none of its transactions reaches; or what kept the
decider from telling them. A place without an entry is not asked."""

IN_LOG: Final = ""
"""Where the floors and ceilings of the log stand among those of the deciders."""


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
class OwnershipClaim:
    """A claim, and in words why it is not ours."""

    claim: Claim
    why: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is to be resolved here."""
        return self.claim is Claim.OURS


_OURS = OwnershipClaim(Claim.OURS)
_NOTHING: Final[Mapping[bytes, int]] = MappingProxyType({})
FINISHED: Final = (
    "it was finished before, so this resource's data is older than its manager's notes: restored from a back-up, or a "
    "standby that had not caught up. Whether it was committed is not known any more: look at the other resources, "
    "and decide the same here"
)
"""Why a branch is left alone that was finished before."""
OVER_BEFORE: Final = (
    "nothing of its incarnation was left when recovery was done with it, so this resource's data is older: restored "
    "from a back-up, or a standby that had not caught up; or it was not configured then. Whether it was committed is "
    "not known any more: look at the other resources, and decide the same here"
)
"""The same of a branch whose process has died, and of which nothing was left."""
_OLD_COPY: Final = "an old copy, restored or a standby that had not caught up, which can't know what was decided since"
BEGUN_LATER: Final = f"incarnation {{incarnation}} began it later than {{place}} knows of: {{place}} is {_OLD_COPY}"
"""Why a branch is left alone that was begun when the log or the decider had another, newer content."""
NOT_NOTED: Final = (
    "it was made by incarnation {incarnation}, of which {place} has no note: nothing of it was left when recovery was "
    f"done with it, or {{place}} is {_OLD_COPY}"
)
"""The same for an incarnation that a decider does not know."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who asks: `node`, with its log `log_id` (b"" without one), whose `incarnations` it knows; with `deciders`
    (decider id → resource name), where it begins transactions as the incarnation `own` (b"" where it begins none); the
    `floors`, as they were before branches were looked for; and the `ceilings`, as they were then."""

    node: str
    log_id: bytes = b""
    incarnations: Incarnations = field(default_factory=Incarnations)
    deciders: Mapping[bytes, str] = field(default_factory=lambda: MappingProxyType({}))
    own: bytes = b""
    floors: Floors = field(default_factory=lambda: MappingProxyType({}))
    ceilings: Ceilings = field(default_factory=lambda: MappingProxyType({}))

    def whose(self, gtrid: bytes, at_work: AtWork = MappingProxyType({}), *, decided: bool = False) -> OwnershipClaim:
        """Whose `gtrid` is; `decided`: a decision of it was found where it names, so that nothing is presumed."""
        try:
            read = Gtrid.decode(gtrid)
        except ValueError:
            return OwnershipClaim(Claim.FOREIGN)
        log = read.log_id.hex()
        if read.node != self.node:
            return OwnershipClaim(Claim.OTHERS, f"belongs to node {read.node}, log {log}")
        if read.log_id == self.log_id:
            if decided:
                return _OURS
            why = self.incarnations.why_not(read.incarnation)
            if why is not None:
                return OwnershipClaim(Claim.ELSEWHERE, f"{why} (log {log})")
            return self._unless_bounded(read, IN_LOG)

        decider = self.deciders.get(read.log_id)
        if decider is None:
            return OwnershipClaim(Claim.ELSEWHERE, f"its decision lives in log {log}, which is not open here")
        if isinstance(read.incarnation, int):
            return OwnershipClaim(
                Claim.ELSEWHERE, f"its incarnation is the counter {read.incarnation}, which no manager has"
            )
        if read.incarnation == self.own:
            return _OURS if decided else self._unless_bounded(read, decider)
        working = at_work.get(decider, frozenset())
        if isinstance(working, XaError):
            why = f"it is unknown who is working on it, because {decider} can't be asked: {working.message}"
            return OwnershipClaim(Claim.UNKNOWN, why)
        if read.incarnation in working:
            return OwnershipClaim(Claim.AT_WORK, f"another process of this node is working on it, as {decider} says")
        return _OURS if decided else self._unless_bounded(read, decider)

    def _unless_bounded(self, read: Gtrid, place: str) -> OwnershipClaim:
        """Ours, unless what its incarnation has noted there says that it is over, or that the place is older."""
        floors, ceilings = self.floors.get(place, _NOTHING), self.ceilings.get(place)
        for bounds in (floors, ceilings):
            if isinstance(bounds, XaError):
                why = f"it is unknown whether it was finished before, because {place} can't be asked: {bounds.message}"
                return OwnershipClaim(Claim.UNKNOWN, why)
        assert isinstance(read.incarnation, bytes)  # noqa: S101 — as was looked at before

        if isinstance(ceilings, Mapping) and read.sequence >= ceilings.get(read.incarnation, 0):
            why = BEGUN_LATER if read.incarnation in ceilings or place == IN_LOG else NOT_NOTED
            return OwnershipClaim(
                Claim.ELSEWHERE, why.format(place=place or "this log", incarnation=read.incarnation.hex())
            )
        floor = floors.get(read.incarnation, 0) if isinstance(floors, Mapping) else 0
        if read.sequence >= floor:
            return _OURS
        return OwnershipClaim(Claim.FINISHED, OVER_BEFORE if floor == OVER else FINISHED)


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
