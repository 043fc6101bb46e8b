"""FormerIncarnations: those of a node that begin no more transactions. When nothing of one is left, its floor is raised
above everything that it has begun: its process can't do that any more, and recovery has finished what it left behind.

A recovery pass tells which incarnations have ended, and of which of these nothing is left (`tm.recovery.report`):

 - An incarnation has ended if the log is open here and has noted it as whole, or if it holds no lease at its decider.
 - Nothing is left if the pass has scanned every configured resource, and met neither a branch nor a decision of it.

A request of its process to prepare may still be on its way, for LATE_S at most (`tm.sequences`). So the floor is raised
by a pass that began LATE_S after an earlier one in which the incarnation had ended. Meanwhile this process has to be
there; one that lives for less time raises nothing.

Several processes may do this at once. Whatever another one is doing about a branch that this pass has not met, there is
nothing left to do. A process that only seemed to be dead, because it stood still for longer than its lease and LATE_S,
may go on. At a decider it then notes its own floor again when it renews its lease. Should it prepare a branch before
that and die, people have to decide about the branch.

A resource that is not configured is not asked. If one comes back with a branch in doubt, people have to decide as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tm.sequences import LATE_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Former: TypeAlias = "Mapping[str, frozenset[bytes]]"
"""Name of a decider, or `tm.recovery.ownership.IN_LOG` → incarnations."""

MOST: Final = 20
"""So many floors are raised by one pass, which writes each of them."""


class FormerIncarnations:
    """Those of one node, as the passes of one manager have seen them."""

    def __init__(self, late_s: float = LATE_S) -> None:
        self._late_s = late_s
        self._ended_at: dict[tuple[str, bytes], float] = {}
        """When they had ended for certain."""

    def passed(self, began_at: float, now: float, ended: Former, left_nothing: Former) -> Iterator[tuple[str, bytes]]:
        """Notes what a pass, which began at `began_at`, says of the former incarnations whose floors are not raised
        yet. Those whose floor is to be raised now."""
        for place, incarnations in ended.items():
            known = {key: at for key, at in self._ended_at.items() if key[0] != place or key[1] in incarnations}
            self._ended_at = {(place, incarnation): now for incarnation in incarnations} | known

        over = [
            (place, incarnation)
            for place, incarnations in left_nothing.items()
            for incarnation in sorted(incarnations)
            if began_at >= self._ended_at.get((place, incarnation), now) + self._late_s
        ]
        yield from over[:MOST]
