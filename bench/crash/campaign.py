"""A campaign consists of rounds of load and faults; after each round the workers recover and an audit follows.

A round at a named point: 1. a worker is armed for the point and given orders; 2. it stops at the point; 3. the fault
happens; 4. the worker goes on, if it lives, until it has reported the transaction's outcome; 5. what was killed is
started again, and recovers; 6. the audit. Messages that are left in the queue stay there; each round has queues of its
own.

A round of storm: some workers run, groups of faults happen at random times, and repairs follow each group. At the end
everything is repaired, and the audit requires that every order is handled.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.crash.child import PATIENCE_S, Stuck
from bench.crash.faults import setup_of, storm
from bench.crash.stage import AGAIN_S, HELD_S

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.crash.faults import Fault, Setup
    from bench.crash.ledger import Audit
    from bench.crash.stage import Stage

PER_POINT: Final = 3
"""Transactions' worth of orders at a named point."""
PER_STORM: Final = 300
GUSTS: Final = 5
LOOK_S: Final = 0.05
FAILING: Final = 2


@dataclass(slots=True)
class Tally:
    """What a campaign came to."""

    rounds: int = 0
    faults: int = 0
    transactions: int = 0
    lost: int = 0
    duplicated: int = 0
    split: int = 0
    left_in_doubt: int = 0
    orders: int = 0
    by_action: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether no round was violated."""
        return not self.violations

    def add(self, what: str, audit: Audit, transactions: int) -> None:
        """One round more."""
        self.rounds += 1
        self.transactions += transactions
        self.orders += audit.done
        self.lost += audit.lost
        self.duplicated += audit.duplicated
        self.split += audit.split
        self.left_in_doubt += audit.left_in_doubt
        self.violations += [f"{what}: {detail}" for detail in audit.details]


class Campaign:
    """Rounds on a stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.tally = Tally()

    # --- named points ---------------------------------------------------------------------------------------
    def named(self, plan: Iterable[tuple[Setup, Iterable[Fault]]]) -> None:
        """Each fault once."""
        for setup, faults in plan:
            if setup.database == "mariadb" and self._stage.mariadb is None:
                continue
            for fault in faults:
                self.at_point(setup, fault)

    def at_point(self, setup: Setup, fault: Fault) -> Audit:
        """One round."""
        stage = self._stage
        began = time.monotonic()
        stage.man(setup, FAILING if "rollback" in fault.point else 0)
        stage.begin_round()
        worker = stage.workers[0]
        worker.tell("arm", fault.count, fault.point)
        orders, invoices, placed = self._work(PER_POINT * setup.batch * (4 if "rollback" in fault.point else 1))
        worker.wait("at")
        for action in fault.meanwhile:
            self._act(action)
        reported = len(stage.outcomes)
        if worker.running:
            worker.tell("go")
        for action in fault.meanwhile:
            if action.startswith("stop "):
                stage.killed_at_step(action.split()[1])

        if fault.afterwards or worker.running:
            if not fault.afterwards:
                stage.revive()
            if not stage.hear_of(reported + 1, PATIENCE_S):
                raise Stuck(f"{setup}: {fault}: no outcome of the transaction was reported\n{worker.errors()}")

        for action in fault.afterwards:
            self._act(action)
        stage.revive()
        if fault.again:
            worker.launch(stop=fault.again)
            worker.wait("at")
            worker.kill()
            self.tally.faults += 1
        audit = self._audit(setup, orders, invoices, placed, f"{setup}: {fault}")
        print(f"  {setup.mode}: {fault}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        return audit

    # --- storms ---------------------------------------------------------------------------------------------
    def storms(self, seed: int, rounds: int) -> None:
        """So many rounds, as the seed says."""
        for number in range(rounds):
            self.storm(Random(f"{seed} {number}"), f"seed {seed}, storm {number}")  # noqa: S311 — no secret

    def storm(self, dice: Random, name: str) -> Audit:
        """One round."""
        stage, setup = self._stage, setup_of(dice, mariadb=self._stage.mariadb is not None)
        began = time.monotonic()
        stage.man(setup, failing=dice.choice((0, 20)))
        stage.begin_round()
        orders, invoices, placed = self._work(PER_STORM * (3 if setup.batch > 1 else 1))
        wake = threading.Event()
        gusts = storm(dice, setup, GUSTS)
        for gust in gusts:
            wake.wait(gust.pause_s)
            for action in gust.actions:
                self._act(action, dice.randrange(setup.workers))
            if dice.random() < 0.7:
                wake.wait(dice.uniform(0.0, 0.3))
                self._repair(orders, invoices)

        self._repair(orders, invoices, wholly=True)
        self._drain(orders, f"{name}: {setup}")
        audit = self._audit(setup, orders, invoices, placed, f"{name}: {setup}: {gusts}")
        print(f"  {name}: {setup}: {audit.done} orders: {time.monotonic() - began:.1f} s", file=sys.stderr)
        return audit

    def _repair(self, orders: str, invoices: str, *, wholly: bool = False) -> None:
        stage = self._stage
        stage.revive()
        for number, worker in enumerate(stage.workers):
            if not worker.running or (wholly and number in stage.spoilt):
                worker.kill()
                worker.launch()
                worker.tell("work", orders, invoices)
                stage.spoilt.discard(number)
            elif wholly:
                worker.tell("disk", "well")
        if wholly:
            for broker in stage.brokers.values():
                broker.tell("disk", "well")

    def _drain(self, orders: str, what: str) -> None:
        """Waits until every order is handled, for as long as there are fewer and fewer of them."""
        wake = threading.Event()
        fewest, deadline = math.inf, 0.0
        while left := self._stage.ledger.waiting(orders):
            if left < fewest:
                fewest, deadline = left, time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                errors = "\n".join(f"{worker.errors()}\n{worker.stacks()}" for worker in self._stage.workers)
                raise Stuck(f"{what}: {left} orders are not handled:\n{errors}")
            wake.wait(LOOK_S)

    # --- both -----------------------------------------------------------------------------------------------
    def _act(self, action: str, number: int = 0) -> None:
        self._stage.act(action, number)
        self.tally.faults += 1
        self.tally.by_action[" ".join(action.split()[:2])] += 1

    def _work(self, count: int) -> tuple[str, str, list[int]]:
        """Workers at work on a queue with so many orders: (the queue, that of the invoices, the orders)."""
        number = next(self._stage.rounds)
        orders, invoices = f"orders-{number}", f"invoices-{number}"
        for worker in self._stage.workers:
            worker.tell("work", orders, invoices)
        for worker in self._stage.workers:
            worker.wait("working")
        placed = self._stage.ledger.place(orders, itertools.islice(self._stage.numbers, count))
        return orders, invoices, placed

    def _audit(self, setup: Setup, orders: str, invoices: str, placed: list[int], what: str) -> Audit:
        """Everybody rests, having recovered; then the audit."""
        stage = self._stage
        fresh = [worker for worker in stage.workers if not worker.running]
        for worker in stage.workers:
            if worker in fresh:
                worker.kill()
                worker.launch()
            else:
                worker.tell("rest")

        for worker in stage.workers:
            worker.wait("ready" if worker in fresh else "rested")
        deadline = time.monotonic() + HELD_S + 1
        audit = stage.ledger.audit(
            placed, orders, invoices, database=setup.database, second=setup.second, outcomes=stage.outcomes
        )
        while audit.lost and time.monotonic() < deadline:  # held by a branch that waits for its timeout?
            threading.Event().wait(AGAIN_S)
            audit = stage.ledger.audit(
                placed, orders, invoices, database=setup.database, second=setup.second, outcomes=stage.outcomes
            )
        self.tally.add(what, audit, len(stage.outcomes))
        for detail in audit.details:
            print(f"  VIOLATION {what}: {detail}", file=sys.stderr)
        return audit

    def figures(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "rounds": tally.rounds,
            "faults": tally.faults,
            "transactions": tally.transactions,
            "orders": tally.orders,
            "lost": tally.lost,
            "duplicated": tally.duplicated,
            "split": tally.split,
            "left_in_doubt": tally.left_in_doubt,
            "by_action": dict(sorted(tally.by_action.items())),
            "violations": tally.violations,
        }
