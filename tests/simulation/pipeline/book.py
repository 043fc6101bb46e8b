"""Book: the ledger and the decision log as a model; tests/pipeline/core/test_ledger.py sees it do what they do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pipeline.core.errors import PipelineTaken
from pipeline.core.isolation import EXCUSED, Isolation
from pipeline.core.ledger import BatchRow, EpochRow, PipelineRow
from tm.log import DecisionRefused
from tm.log.sql_gtrids import Entry, TakenOver
from tm.log.sql_states import GtridState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tm.log import Decision

S = GtridState


@dataclass
class Book:
    """What is durable. Every operation is made under an incarnation."""

    log_id: bytes = b"log-id-8"
    incarnation: int = 0
    drivers: dict[str, int] = field(default_factory=dict)
    driver: str = ""
    epoch_number: int = 0
    current: bytes | None = None
    again_in: int = 0
    epochs: dict[int, EpochRow] = field(default_factory=dict)
    batches: dict[str, BatchRow] = field(default_factory=dict)
    gtrids: dict[bytes, Entry] = field(default_factory=dict)
    isolation: Isolation | None = None

    # --- who has it -----------------------------------------------------------------------------------------------
    def take(self, driver: str) -> int:
        """As Entrance.take."""
        self.incarnation += 1
        self.driver = driver
        self.drivers[driver] = self.incarnation
        return self.incarnation

    def join(self, driver: str, incarnation: int | None = None) -> int:
        """As Entrance.join."""
        if self.driver != driver:
            if incarnation is not None or driver in self.drivers:
                raise PipelineTaken("another driver has it")
            return self.take(driver)
        if incarnation is not None and incarnation != self.incarnation:
            raise PipelineTaken("planned under another incarnation")
        return self.incarnation

    def check(self, incarnation: int) -> None:
        """TakenOver: it is another one's."""
        if incarnation != self.incarnation:
            raise TakenOver("taken over")

    # --- what failed ----------------------------------------------------------------------------------------------
    def isolate(self, incarnation: int, isolation: Isolation | None) -> None:
        """As Ledger.isolate."""
        self.check(incarnation)
        self.isolation = isolation

    def failed(self, incarnation: int, gtrid: bytes, messages: int) -> None:
        """As Ledger.failed."""
        self.check(incarnation)
        known = self.isolation
        if known is None or known.gtrid != gtrid:
            known = Isolation(gtrid)
        if known.failed != EXCUSED:
            self.isolation = replace(known, failed=messages)

    # --- the ledger -----------------------------------------------------------------------------------------------
    def standing(self, incarnation: int) -> PipelineRow:
        """As Ledger."""
        self.check(incarnation)
        return PipelineRow(
            "p", self.incarnation, self.driver, "", 0.0, self.epoch_number, 0, self.current, self.again_in
        )

    def epoch(self, epoch: int) -> EpochRow | None:
        """As Ledger."""
        return self.epochs.get(epoch)

    def epoch_of(self, gtrid: bytes) -> EpochRow | None:
        """As Ledger."""
        return next((row for row in self.epochs.values() if row.gtrid == gtrid), None)

    def unlogged(self, upto: int) -> Sequence[EpochRow]:
        """As Ledger."""
        found = []
        row = self.epochs.get(upto)
        while row is not None and not row.logged:
            found.append(row)
            row = self.epochs.get(row.previous)
        return found[::-1]

    def batch(self, query: str) -> BatchRow | None:
        """As Ledger."""
        return self.batches.get(query)

    def allot(self, incarnation: int) -> int:
        """As Ledger."""
        self.check(incarnation)
        self.epoch_number += 1
        return self.epoch_number

    def plan(self, incarnation: int, epoch: int, previous: int, gtrid: bytes, tries: int, source: str) -> None:
        """As Ledger."""
        self.check(incarnation)
        known = self.epochs.get(epoch)
        if known is None:
            self.epochs[epoch] = EpochRow(epoch, gtrid, tries, source, previous)
        else:
            self.epochs[epoch] = replace(known, gtrid=gtrid, tries=tries, source=source, sunk=False)
        self.current, self.again_in = gtrid, 0

    def plan_again(self, incarnation: int, gtrid: bytes) -> None:
        """As Ledger."""
        self.check(incarnation)
        self.current, self.again_in = gtrid, incarnation

    def replayed(self, incarnation: int) -> None:
        """As Ledger."""
        self.check(incarnation)
        self.again_in = 0

    def sink(self, incarnation: int, gtrid: bytes) -> None:
        """As Ledger."""
        self.check(incarnation)
        row = self.epoch_of(gtrid)
        if row is not None:
            self.epochs[row.epoch] = replace(row, sunk=True)

    def bind(self, incarnation: int, query: str, batch: int, gtrid: bytes) -> None:
        """As Ledger."""
        self.check(incarnation)
        self.batches[query] = BatchRow(batch, gtrid)

    def logged(self, incarnation: int, epochs: Collection[int]) -> None:
        """As Ledger."""
        self.check(incarnation)
        for epoch in epochs:
            self.epochs[epoch] = replace(self.epochs[epoch], logged=True)

    def finished(self, incarnation: int, epoch: int, words: Collection[str]) -> frozenset[str]:
        """As Ledger."""
        self.check(incarnation)
        row = self.epochs[epoch]
        self.epochs[epoch] = replace(row, finished=row.finished | frozenset(words))
        return self.epochs[epoch].finished

    # --- the log --------------------------------------------------------------------------------------------------
    def begin(self, incarnation: int, gtrid: bytes) -> None:
        """As SqlLog."""
        self.check(incarnation)
        known = self.gtrids.setdefault(gtrid, Entry(gtrid, S.ACTIVE, incarnation, None))
        if known.state is not S.ACTIVE or known.incarnation != incarnation:
            raise DecisionRefused("known")

    def decide(self, incarnation: int, decision: Decision) -> None:
        """As SqlLog."""
        self.check(incarnation)
        entry = self.gtrids.get(decision.gtrid)
        if entry is not None and entry.decision == decision:
            return
        if entry is not None and entry.state is not S.ACTIVE:
            raise DecisionRefused(f"it is {entry.state.value}")
        self.gtrids[decision.gtrid] = Entry(decision.gtrid, S.COMMITTED, incarnation, decision)

    def abort(self, incarnation: int, gtrid: bytes) -> GtridState:
        """As SqlLog."""
        entry = self.gtrids.get(gtrid)
        self.check(incarnation)
        if entry is None or entry.state is S.ACTIVE:
            self.gtrids[gtrid] = Entry(gtrid, S.ABORTED, incarnation, None)
        return self.gtrids[gtrid].state

    def entry(self, gtrid: bytes) -> Entry | None:
        """As SqlLog."""
        return self.gtrids.get(gtrid)

    def decisions(self, incarnation: int) -> list[Decision]:
        """As SqlLog."""
        self.check(incarnation)
        return [entry.decision for entry in self.gtrids.values() if entry.state is S.COMMITTED and entry.decision]

    def end(self, gtrid: bytes) -> None:
        """As SqlLog."""
        entry = self.gtrids.get(gtrid)
        if entry is not None and entry.state is S.COMMITTED:
            self.gtrids[gtrid] = replace(entry, state=S.DONE)
