"""`Book` is a model of the ledger and the decision log. Its methods are those of `SqlLedger`, `SqlLog` and
`LedgerOpener`; but for those in UNCHECKED, who calls them does a `check` of the incarnation first.
tests/xabridge/pipeline/core/test_ledger.py checks that both give the same answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tm.log import Decision, DecisionRefused
from tm.log.sql.gtrids import Entry, NodeTakenOver
from tm.log.sql.states import GtridState
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.ledger.rows import (
    BatchRow,
    EpochRow,
    PipelineOwnership,
    PipelineRow,
    PlannedEpochs,
    QueryRow,
)
from xabridge.pipeline.core.protocol.isolation import Isolation
from xabridge.pipeline.core.protocol.recovery import DECIDED
from xabridge.pipeline.core.shards import PlannedRead, Shard

S = GtridState
UNCHECKED = frozenset({"epoch", "planned", "later", "waiting", "unlogged", "last_batch", "entry", "unfenced"})
"""Operations that answer whoever asks, under any incarnation."""


@dataclass
class Book:
    """What is durable."""

    log_id: bytes = b"log-id-8"
    incarnation: int = 0
    drivers: dict[str, int] = field(default_factory=dict)
    driver: str = ""
    epoch_number: int = 0
    current: bytes | None = None
    again_in: int = 0
    epochs: dict[int, EpochRow] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)
    bound: QueryRow | None = None
    sources: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What the bound query reads → its place, and who plans it."""
    gtrids: dict[bytes, Entry] = field(default_factory=dict)
    decided: list[bytes] = field(default_factory=list)
    """What was decided, in this order."""
    isolation: Isolation | None = None
    may_read: set[tuple[str, bytes]] = field(default_factory=set)

    # --- who has it -----------------------------------------------------------------------------------------------
    def take(self, driver: str) -> int:
        self.incarnation += 1
        self.driver = driver
        self.drivers[driver] = self.incarnation
        return self.incarnation

    def join(self, driver: str, incarnation: int | None = None, *, takes: bool = False) -> int:
        if self.driver != driver:
            if not takes or incarnation is not None or driver in self.drivers:
                raise PipelineTaken("another driver has it")
            return self.take(driver)
        if incarnation is not None and incarnation != self.incarnation:
            raise PipelineTaken("planned under another incarnation")
        return self.incarnation

    def check(self, incarnation: int) -> None:
        """NodeTakenOver: it is another one's."""
        if incarnation != self.incarnation:
            raise NodeTakenOver("taken over")

    # --- what failed ----------------------------------------------------------------------------------------------
    def set_isolation(self, isolation: Isolation) -> None:
        self.isolation = isolation

    def note_failure(self, gtrid: bytes, messages: int, place: int = -1, shard: Shard | None = None) -> None:
        self.isolation = (self.isolation or Isolation(b"")).after(gtrid, messages, place, shard)

    # --- the ledger -----------------------------------------------------------------------------------------------
    def row(self) -> PipelineRow:
        return PipelineRow("p", self.incarnation, self.driver, 0.0, self.epoch_number, 0, self.current, self.again_in)

    def epoch(self, epoch: int) -> EpochRow | None:
        return self.epochs.get(epoch)

    def planned(self, gtrid: bytes) -> PlannedEpochs:
        return PlannedEpochs(tuple(row for row in self._sorted() if row.gtrid == gtrid))

    def later(self, query: str, place: int, epoch: int) -> Sequence[EpochRow]:
        return [
            row
            for row in self._sorted()
            if (row.query, row.place) == (query, place) and row.epoch > epoch and row.read.resources
        ]

    def waiting(self, query: str | None = None) -> Sequence[EpochRow]:
        return [row for row in self._sorted() if row.read.resources and not row.logged and query in {None, row.query}]

    def unfenced(self) -> list[tuple[str, bytes]]:
        return sorted(self.may_read)

    def _sorted(self) -> list[EpochRow]:
        return [self.epochs[epoch] for epoch in sorted(self.epochs)]

    def known(self, query: str = "") -> PipelineOwnership:
        """There is one pipeline, so that no query has another one."""
        del query
        decided = {
            query: row
            for query, row in self.batches.items()
            if row.gtrid in self.gtrids and self.gtrids[row.gtrid].state in DECIDED
        }
        return PipelineOwnership(self.bound, decided)

    def unlogged(self, upto: int) -> Sequence[EpochRow]:
        found = []
        row = self.epochs.get(upto)
        while row is not None and not row.logged:
            found.append(row)
            row = self.epochs.get(row.previous)
        return found[::-1]

    def last_batch(self, query: str) -> BatchRow | None:
        return self.batches.get(query)

    def allot(self) -> int:
        self.epoch_number += 1
        return self.epoch_number

    def plan(
        self,
        epoch: int,
        previous: int,
        gtrid: bytes,
        tries: int,
        read: PlannedRead,
        query: str = "",
        place: int = 0,
        fenced: Collection[tuple[str, bytes]] = (),
    ) -> None:
        known = self.epochs.get(epoch, EpochRow(epoch, gtrid, tries, read, previous))
        self.epochs[epoch] = replace(known, gtrid=gtrid, tries=tries, read=read, sunk=False, query=query, place=place)
        self.may_read -= set(fenced)
        self.may_read |= {(shard.resource, gtrid) for shard in read.shards}
        self.current, self.again_in = gtrid, 0

    def plan_replay(self, gtrid: bytes) -> None:
        self.current, self.again_in = gtrid, self.incarnation

    def end_replay(self) -> None:
        self.again_in = 0

    def mark_sink(self, gtrid: bytes) -> None:
        for row in self.planned(gtrid).epochs:
            self.epochs[row.epoch] = replace(row, sunk=True)

    def bind_batch(self, query: str, batch: int, gtrid: bytes, offsets: str = "") -> None:
        self.batches[query] = BatchRow(batch, gtrid, offsets)

    def bind_query(self, query: str, run: str, sources: Sequence[str]) -> None:
        self.bound = QueryRow(query, run, self.incarnation)
        self.sources = {source: (place, "") for place, source in enumerate(sources)}

    def claim(self, source: str, process: str) -> tuple[str, int]:
        if self.bound is None or self.bound.incarnation != self.incarnation or source not in self.sources:
            raise PipelineTaken("not bound")
        place, holder = self.sources[source]
        if holder not in {"", process}:
            raise PipelineTaken("another process reads it")
        self.sources[source] = place, process
        return self.bound.query, place

    def mark_logged(self, epochs: Collection[int]) -> None:
        for epoch in epochs:
            self.epochs[epoch] = replace(self.epochs[epoch], logged=True)

    def mark_finished(self, gtrid: bytes, words: Collection[str]) -> frozenset[str]:
        for row in self.planned(gtrid).epochs:
            self.epochs[row.epoch] = replace(row, finished=row.finished | frozenset(words))
        return self.planned(gtrid).finished | frozenset(words)

    # --- the log --------------------------------------------------------------------------------------------------
    def begin(self, gtrid: bytes) -> None:
        known = self.gtrids.setdefault(gtrid, Entry(gtrid, S.ACTIVE, self.incarnation, None))
        if known.state is not S.ACTIVE or known.incarnation != self.incarnation:
            raise DecisionRefused("known")

    def force(self, decision: Decision) -> None:
        entry = self.gtrids.get(decision.gtrid)
        if entry is not None and entry.decision == decision:
            return
        if entry is not None and entry.state is not S.ACTIVE:
            raise DecisionRefused(f"it is {entry.state.value}")
        self.gtrids[decision.gtrid] = Entry(decision.gtrid, S.COMMITTED, self.incarnation, decision)
        self.decided.append(decision.gtrid)

    def abort(self, gtrid: bytes) -> GtridState:
        entry = self.gtrids.get(gtrid)
        if entry is None or entry.state is S.ACTIVE:
            self.gtrids[gtrid] = Entry(gtrid, S.ABORTED, self.incarnation, None)
        return self.gtrids[gtrid].state

    def entry(self, gtrid: bytes) -> Entry | None:
        return self.gtrids.get(gtrid)

    def decisions(self) -> list[Decision]:
        return [entry.decision for entry in self.gtrids.values() if entry.state is S.COMMITTED and entry.decision]

    def end(self, gtrid: bytes) -> None:
        entry = self.gtrids.get(gtrid)
        if entry is not None and entry.state is S.COMMITTED:
            self.gtrids[gtrid] = replace(entry, state=S.DONE)
