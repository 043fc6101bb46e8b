"""RecoveryPorts: what a recovery pass asks of the world, beside what a two-phase commit asks (`tm.two_phase.ports`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tm.two_phase.ports import OutcomePorts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tm.log import Decision, Heuristic
    from tm.recovery.ownership import AtWork, Ceilings, Floors
    from xa import XaError, Xid

Scanned: TypeAlias = "Mapping[str, Sequence[Xid] | XaError]"
"""Name of a resource → the branches in doubt that it tells, or the error that kept it from telling them."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions: in the log, and in each decider that could be reached; and which branches are noted as
    completed on their own (by xid: a resource may have got another name, or have two)."""

    logged: Mapping[bytes, Decision]
    by_decider: Mapping[str, Mapping[bytes, Decision]]
    heuristics: Mapping[Xid, Heuristic]

    def find(self, gtrid: bytes) -> Decision | None:
        """The decision of `gtrid`, wherever it lives."""
        found = self.logged.get(gtrid)
        for decided in self.by_decider.values():
            found = found or decided.get(gtrid)
        return found


class RecoveryPorts(OutcomePorts, Protocol):
    """The input of a recovery pass. LogError: the log can't be read, so that the pass is broken off."""

    async def read_floors(self) -> Floors:
        """Which transactions are over everywhere, as the log and each decider have noted it."""
        ...

    async def read_ceilings(self) -> Ceilings:
        """Which sequences no transaction has reached until now, as the log and each decider have noted it."""
        ...

    async def read_decisions(self) -> Decisions:
        """Every decision that has not ended."""
        ...

    async def scan(self) -> Scanned:
        """Reads the branches in doubt of each resource manager."""
        ...

    async def read_live(self) -> tuple[frozenset[bytes], AtWork, Decisions]:
        """The gtrids of the live transactions, who else is at work, and the decisions: read in this order."""
        ...

    async def settle(self, decider: str, gtrid: bytes) -> Decision | XaError | None:
        """The final word of the decider on a gtrid. None: rolled back for good."""
        ...
