"""DecidingResource: a resource manager that commits its work and the decision in one local transaction.

A global transaction may have one of them. The other branches are prepared first; then this one commits its own work
together with the decision, and that is the commit point. Nothing is forced in a log of the transaction manager's: this
resource is the decision log. It has an id of its own, which is part of the gtrid of each transaction whose decision it
keeps.

Its branch needs no prepare and is never in doubt: `prepare` answers XAER_PROTO, `commit` is taken with TMONEPHASE only
(when no other branch takes part, and no decision is needed), and `recover` finds nothing.

Several nodes may use one, and several processes of one node. Each decision belongs to the node and the incarnation in
its gtrid. Each transaction manager holds a lease here, from before its first gtrid until it is closed. Only the owner
ends a decision, or another process of the same node after the owner's lease has run out. A caller without a lease
gets the right decision too, because `settle` is final for every caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xa.resource_manager import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.codes import Code
    from xa.xid import Xid


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision to commit, as a deciding resource keeps it; `record` is the transaction manager's own."""

    gtrid: bytes
    record: bytes


@dataclass(frozen=True, slots=True)
class Owner:
    """A transaction manager, from its opening to its end, that begins transactions whose decisions are kept here."""

    node: str
    incarnation: bytes
    """8 octets, random."""
    process: str
    """The process: boot id, pid namespace, pid and start time (Linux); "" if these are unknown."""


@dataclass(frozen=True, slots=True)
class NotedIncarnation:
    """What a deciding resource has noted of an incarnation that begins, or has begun, transactions."""

    incarnation: bytes
    floor: int
    """The sequence below which its transactions are over everywhere; `xa.gtrid.OVER` if all are."""
    ceiling: int
    """The sequence that none of its transactions has reached by then."""
    noted_s: float
    """When that was noted: seconds since 1970, by the clock of this resource."""


class DecidingResource(ResourceManager, Protocol):
    """A resource manager that can be the one that decides. Codes that any verb may raise are those of
    `ResourceManager`."""

    @property
    def decider_id(self) -> bytes:
        """8 octets, random, made when the place of the decisions was made; known once open."""
        ...

    def hold(self, owner: Owner, lease_s: float, rmid: int, floor: int = 0, ceiling: int = 0) -> None:
        """Notes durably that `owner` is at work until `lease_s` from now, by the clock of this resource; that its
        transactions whose sequence is below `floor` are over everywhere; and that none reaches `ceiling`. Calling it
        again renews the lease, whether it has run out or not. 0: `owner` is not at work any more."""
        ...

    def incarnations(self, node: str, rmid: int) -> Sequence[NotedIncarnation]:
        """The incarnations of the owners of `node`, whether at work or not; where there are many, the latest ones of
        which something may be left. Nothing is presumed about one that is not among them."""
        ...

    def owners(self, rmid: int) -> Sequence[Owner]:
        """The owners, of every node, whose lease has not run out by the clock of this resource."""
        ...

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        """Commits the ended branch `xid` and the decision (xid.gtrid, record) in one local transaction.

        Precondition: the branch's association has ended (XAER_PROTO).
        XA_OK: both are durable; this is the commit point of the global transaction. The branch has ended.
        XA_RB*: neither is and never will be; the branch has ended. This is also the answer for a settled gtrid.
        XAER_NOTA: unknown xid; neither is and never will be.
        XAER_RMFAIL: unknown; `settle` returns the outcome, once the resource can be reached.
        """
        ...

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        """The final word on `gtrid`: its record if it was decided. Otherwise None, and from now on it can't be decided
        any more: a `decide` that is still on its way will fail.

        It waits for a transaction of that gtrid that is deciding at this moment. XA_RETRY: it has waited as long as it
        may.
        """
        ...

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        """A page of the decisions that have not ended, in the order of their gtrids, from behind `after`."""
        ...

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        """Lets the resource delete these decisions and tombstones: no branch of them is left anywhere, and no request
        about them can be on its way any more. This need not be durable: a crash may undo it."""
        ...
