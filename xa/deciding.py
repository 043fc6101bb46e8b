"""DecidingResource: a resource manager that commits its work and the decision in one local transaction.

At most one takes part in a global transaction, the others are prepared before it decides. Nothing is forced in a
log of the transaction manager's: this resource is the decision log, with an id of its own that stands in the
gtrids whose decisions live here. Its branch needs no prepare and is never in doubt to others: `prepare` answers
XAER_PROTO, `commit` is taken with TMONEPHASE only (work without a decision, when nobody else takes part), and
`recover` finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from xa.resource import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.codes import Code
    from xa.xid import Xid


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision to commit, as a deciding resource keeps it; `record` is the transaction manager's own."""

    gtrid: bytes
    record: bytes


class DecidingResource(ResourceManager, Protocol):
    """What a resource manager offers that can be the one that decides. Codes that any verb may raise are
    those of `ResourceManager`."""

    @property
    def decider_id(self) -> bytes:
        """8 octets, random, made when the place of the decisions was made; known once open."""
        ...

    @property
    def incarnation(self) -> int:
        """How often this place was opened for deciding; new at each first `open`, durable before that returns."""
        ...

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        """Commits the ended branch `xid` and the decision (xid.gtrid, record) in one local transaction.

        Precondition: the branch's association has ended (XAER_PROTO).
        XA_OK: both are durable; this is the commit point of the global transaction. The branch is gone.
        XA_RB*: neither is and never will be; the branch is gone. So it is when the gtrid was settled before.
        XAER_NOTA: unknown xid; neither is and never will be.
        XAER_RMFAIL: unknown; `settle` tells, once the resource can be reached.
        """
        ...

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        """The final word on `gtrid`: its record when it was decided; otherwise None, and from now on it can't be
        decided any more: a `decide` that is still on its way anywhere will fail.

        A transaction of that gtrid that is deciding at this moment is waited for. XA_RETRY: not for longer.
        """
        ...

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        """A page of the decisions that have not ended, in the order of their gtrids, from behind `after`."""
        ...

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        """Lets the resource discard these decisions and tombstones: no branch of them is left anywhere, and
        nothing of them can be on its way any more. Lazy: it may be lost in a crash."""
        ...
