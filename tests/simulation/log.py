"""This module is a decision log in memory that survives crashes of its process, and loses what was not forced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tm.log import Branch, Decision, DecisionRefused, Heuristic, LogFull, LogStopped
from tm.log.incarnations import Incarnations, IncarnationState, succeeded, trusted


class Disk:
    """What is durable of one node's log, and the END records that a crash may lose. `taken` is how often it was taken,
    where it is the log in a database that another process may take from its holder."""

    def __init__(self, log_id: bytes) -> None:
        self.log_id = log_id
        self.noted: dict[bytes, IncarnationState] = {}
        self.floors: dict[bytes, int] = {}
        self.lazy_floors: dict[bytes, int] = {}
        self.ceilings: dict[bytes, int] = {}
        self.taken = 0
        self.is_copy = False
        self.decisions: dict[bytes, Decision] = {}
        self.lazily_ended: set[bytes] = set()
        self.heuristics: dict[Branch, Heuristic] = {}
        self.ever_decided: set[bytes] = set()

    def crash(self, random: Random, fate: Random) -> None:
        """The process dies: each unforced END is on the disk, or not; and so is the floor."""
        if fate.random() < 0.5:
            self.floors |= self.lazy_floors
        self.lazy_floors.clear()
        for gtrid in sorted(self.lazily_ended):
            if random.random() < 0.5:
                self.decisions.pop(gtrid, None)
        self.lazily_ended.clear()

    def copied(self, *, known: bool = True) -> Disk:
        """A copy, as it was made at this moment; `known`: it knows that it is one."""
        copy = Disk(self.log_id)
        copy.noted = dict(self.noted)
        copy.floors = dict(self.floors)
        copy.ceilings = dict(self.ceilings)
        copy.is_copy = known
        copy.decisions = dict(self.decisions)
        copy.heuristics = dict(self.heuristics)
        copy.ever_decided = self.ever_decided
        return copy


class SimulatedLog:
    """`tm.log.DecisionLog` over a Disk. `fault` makes the next force go wrong."""

    def __init__(self, disk: Disk, node: str, incarnation: bytes | None = None) -> None:
        self._disk = disk
        self.node = node
        self.incarnation = incarnation or (len(disk.noted) + 1).to_bytes(8, "big")
        disk.noted = {**succeeded(disk.noted, copied=disk.is_copy), self.incarnation: IncarnationState.OPEN}
        disk.is_copy = False
        self._incarnations = Incarnations(dict(disk.noted))
        disk.taken += 1
        self._taken = disk.taken
        self.log_id = disk.log_id
        self.fault: str | None = None
        self._stopped = False

    @property
    def incarnations(self) -> Incarnations:
        floors = self._disk.floors | self._disk.lazy_floors
        return replace(self._incarnations, floors=floors, ceilings=dict(self._disk.ceilings))

    def trust(self, incarnation: bytes) -> None:
        self._disk.noted[incarnation] = trusted(self.incarnations, incarnation)

    def held(self) -> bool:
        return not self._stopped and self._disk.taken == self._taken

    def decide(self, decision: Decision) -> None:
        if self._force():
            self._disk.decisions[decision.gtrid] = decision
            self._disk.ever_decided.add(decision.gtrid)
        if self._stopped:
            raise LogStopped("the force failed")

    def end(self, gtrid: bytes) -> None:
        if gtrid in self._disk.decisions and self._disk.taken == self._taken:
            self._disk.lazily_ended.add(gtrid)

    def note_floor(self, floor: int, incarnation: bytes = b"") -> None:
        if self._disk.taken == self._taken:
            self._disk.lazy_floors[incarnation or self.incarnation] = floor

    def note_ceiling(self, ceiling: int) -> None:
        if self._force():
            self._disk.ceilings[self.incarnation] = ceiling
        if self._stopped:
            raise LogStopped("the force failed")

    def note_heuristic(self, heuristic: Heuristic) -> None:
        if self._force():
            self._disk.heuristics[heuristic.branch] = heuristic
        if self._stopped:
            raise LogStopped("the force failed")

    def drop_heuristic(self, branch: Branch) -> None:
        self._check()
        self._disk.heuristics.pop(branch, None)

    def decision(self, gtrid: bytes) -> Decision | None:
        self._check()
        return None if gtrid in self._disk.lazily_ended else self._disk.decisions.get(gtrid)

    def decisions(self) -> Sequence[Decision]:
        self._check()
        return [d for gtrid, d in self._disk.decisions.items() if gtrid not in self._disk.lazily_ended]

    def heuristics(self) -> Sequence[Heuristic]:
        self._check()
        return list(self._disk.heuristics.values())

    def close(self) -> None:
        self._stopped = True

    def _force(self) -> bool:
        """Whether the record is durable."""
        if not self._stopped and self._disk.taken != self._taken:
            raise DecisionRefused("another process took the node")
        self._check()

        fault, self.fault = self.fault, None
        match fault:
            case "full":
                raise LogFull("no space left on device")
            case "refused":
                raise DecisionRefused("fenced")
            case "failed, durable":
                self._stopped = True
                return True
            case "failed, lost":
                self._stopped = True
                return False
        return True

    def _check(self) -> None:
        if self._stopped:
            raise LogStopped("the log stopped")
        if self._disk.taken != self._taken:
            raise LogStopped("another process took the node")
