"""Script: failures that a test plans, for the n-th call of a verb from now on, counted over all clients.

A step replaces the answer, breaks the connection around the request, or both. A replaced answer has the effect on the
branch that this code has in the state tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from xa.codes import Code

if TYPE_CHECKING:
    from xa.xid import Xid


class NetworkFault(Enum):
    """What becomes of a request and its reply on their way."""

    ARRIVES = "both arrive"
    REQUEST_LOST = "the connection is lost before the request arrives: no effect"
    REPLY_LOST = "the connection is lost after the effect"
    IN_FLIGHT = "the connection is lost; the request arrives when `store.deliver` says so, or never"
    DELAYED = "with TMASYNC: the request arrives at `store.deliver`, or when `complete` waits for it"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One planned deviation; `answer` None leaves the answer to the resource manager."""

    answer: Code | None = None
    fate: NetworkFault = NetworkFault.ARRIVES


PLAIN: Final = PlannedFault()
"""No deviation."""

VERBS: Final = frozenset(
    {"open", "close", "start", "end", "prepare", "commit", "rollback", "recover", "forget", "work", "outcomes"}
)
"""The operations that can be scripted: the verbs, `work`, any operation of a session, and `outcomes`."""
DECIDER_VERBS: Final = frozenset({"decide", "settle", "decisions", "end_decisions", "hold", "owners"})
_DELAYABLE: Final = frozenset({"prepare", "commit", "rollback", "forget"})


@dataclass(slots=True)
class _Plan:
    step: PlannedFault
    xid: Xid | None
    skip: int
    times: int


class FaultScript:
    """The plans of one store, by verb. While there are none, clients don't ask."""

    __slots__ = ("plans",)

    def __init__(self) -> None:
        self.plans: dict[str, list[_Plan]] = {}

    def plan(
        self,
        verb: str,
        answer: Code | None = None,
        fate: NetworkFault = NetworkFault.ARRIVES,
        *,
        nth: int = 1,
        times: int = 1,
        xid: Xid | None = None,
    ) -> None:
        """Plans that from the `nth` call of `verb` on, `times` calls go this way. With `xid` only calls for that
        branch count. Where several plans match a call, the earliest planned takes it."""
        if verb not in VERBS | DECIDER_VERBS:
            raise ValueError(f"{verb!r} can't be scripted; there are {', '.join(sorted(VERBS | DECIDER_VERBS))}")
        if nth < 1 or times < 1:
            raise ValueError(f"nth and times count from 1, not {nth} and {times}")
        if fate is NetworkFault.DELAYED and verb not in _DELAYABLE:
            raise ValueError(f"{verb} can't be delayed, only {', '.join(sorted(_DELAYABLE))}")
        if answer is Code.XAER_RMFAIL:
            raise ValueError("XAER_RMFAIL is a fate: REQUEST_LOST, REPLY_LOST or IN_FLIGHT")
        if answer is None and fate is NetworkFault.ARRIVES:
            raise ValueError("a step changes the answer or the request's fate")
        self.plans.setdefault(verb, []).append(_Plan(PlannedFault(answer, fate), xid, nth - 1, times))

    def take(self, verb: str, xid: Xid | None = None) -> PlannedFault:
        """The step for this call of `verb`, which is thereby used up."""
        taken = PLAIN
        plans = self.plans.get(verb, ())
        for plan in tuple(plans):
            if plan.xid is not None and plan.xid != xid:
                continue
            if plan.skip:
                plan.skip -= 1
            elif taken is PLAIN:
                taken = plan.step
                plan.times -= 1
                if not plan.times:
                    self.plans[verb].remove(plan)
                    if not self.plans[verb]:
                        del self.plans[verb]
        return taken

    def clear(self) -> None:
        """Drops every plan."""
        self.plans.clear()

    def pending(self) -> list[tuple[str, PlannedFault]]:
        """The planned faults that have not happened yet."""
        return [(verb, plan.step) for verb, plans in self.plans.items() for plan in plans]
