"""Each class here is a process of the bank that wrongly treats something of another process or node as its own. The
auditor of the bank must notice every one of them.

python -m tests.crash.bank_mutants '{"mutant": NAME, …}'          otherwise as `bench.crash.bank.worker`
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from bench.crash.bank.transfers import WEST
from bench.crash.bank.worker import BankWorker, Station, run
from bench.crash.points import GatedLog, Wrapped
from tm import ResourceConfig
from tm.log import DecisionRefused
from xa import Gtrid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.log import Decision
    from tm.resources import Mode
    from xa import Xid


class Mistaken(BankWorker):
    """`wrong` goes around the resource that decides, or around WEST where a log does."""

    wrong: Callable[[Any, str], Any]

    def resource(self, name: str, url: str, mode: Mode = "two-phase") -> ResourceConfig:
        right = super().resource(name, url, mode)
        if mode != "decider" and not (name == WEST and self.station.log):
            return right
        factory: Any = right.factory
        node, wrong = self.station.node, type(self).wrong
        return ResourceConfig(url, mode, lambda registrar: wrong(factory(registrar), node))


class _OfNode(Wrapped):
    def __init__(self, rm: Any, node: str) -> None:
        super().__init__(rm)
        self.node = node


class _EndsAll(_OfNode):
    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Any:
        everybodys = self.rm.decisions(rmid, b"", count)
        others = [record.gtrid for record in everybodys if Gtrid.decode(record.gtrid).node != self.node]
        if others:
            self.rm.end_decisions(others, rmid)
        return self.rm.decisions(rmid, after, count)


class EndsDecisionsOfOthers(Mistaken):
    """It sees no branch of its own in a decision, and ends it."""

    wrong = _EndsAll


class _RollsAllBack(_OfNode):
    def recover(self, rmid: int, flags: int = 0, count: int = 0) -> Sequence[Xid]:
        found: Sequence[Xid] = self.rm.recover(rmid, flags, count)
        for xid in found:
            ours = Gtrid.of(xid)
            if ours is not None and ours.node != self.node:
                self.rm.rollback(xid, rmid)
        return found


class PresumesForOthers(Mistaken):
    """It has no decision on another node's branch, and rolls it back."""

    wrong = _RollsAllBack


class _NobodyIsAtWork(_OfNode):
    def owners(self, _rmid: int) -> Sequence[Any]:
        return ()


class IgnoresLeases(Mistaken):
    """It finishes what another process of its node is at work with."""

    wrong = _NobodyIsAtWork


class _LeavesNoTombstone(_OfNode):
    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        found = [record for record in self.rm.decisions(rmid, b"", 1000) if record.gtrid == gtrid]
        return found[0].record if found else None


class SettlesByLooking(Mistaken):
    """It takes what is not decided for what will not be."""

    wrong = _LeavesNoTombstone


class _DoesNotHear(GatedLog):
    def decide(self, decision: Decision) -> None:
        with suppress(DecisionRefused):
            super().decide(decision)


class GoesOnWhenRefused(Mistaken):
    """Its node was taken over, and it goes on as if it had decided."""

    wrong = _OfNode

    def log(self) -> Any:
        right = super().log()
        return _DoesNotHear(right.rm, self.gate.hit)


MUTANTS = {
    kind.__name__: kind
    for kind in (
        EndsDecisionsOfOthers,
        PresumesForOthers,
        IgnoresLeases,
        SettlesByLooking,
        GoesOnWhenRefused,
    )
}

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    run(MUTANTS[told.pop("mutant")], Station(**told))
