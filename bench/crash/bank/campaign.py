"""A campaign of the bank consists of rounds: nodes work, die, are stopped and come back while the others recover; then
the auditor looks.

A round at a named point: 1. one process is armed for the point, and there are transfers for every process; 2. it stops
at the point, and the fault happens to it; 3. every other process recovers, twice; 4. the process comes back, or goes
on; 5. all processes work until everything is done; 6. all of them stop working and recover; 7. the audit.

A round of storm: faults happen at random times, at points and anywhere, and each process is away for a while of its
own. In the end all processes are back, work until everything is done (in half of the rounds), stop working and recover;
then the audit.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final

from bench.crash.bank.audit import Queues, compare
from bench.crash.bank.faults import TIMEOUT_S, setup_of, storm
from bench.crash.bank.transfers import TOTAL, some_transfers
from bench.crash.bank.worker import LEASE_S
from bench.crash.child import PATIENCE_S, ChildGone, Stuck
from bench.crash.stage import AGAIN_S, HELD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.crash.bank.audit import Audit
    from bench.crash.bank.faults import Fault, Gust
    from bench.crash.bank.site import Process, Site
    from bench.crash.bank.transfers import Decides, Setup, Transfer

KINDS: Final = ("money", "lost", "duplicated", "split", "misled", "disordered", "left")
"""What an audit can find. A round can also be stuck."""
PER_POINT: Final = 12
PER_STORM: Final = 150
GUSTS: Final = 6
AT_S: Final = 2.0
"""How long a storm waits until a process stands at its point."""
LOOK_S: Final = 0.05
REST_S: Final = 180.0
"""How long a process may take to finish what it has in hand, and to recover."""
SLACK_S: Final = 20.0
"""After everybody rests: within this, on a busy machine too, branches that were never prepared time out, prefetched
messages come back, and ends are written."""


@dataclass(slots=True)
class Tally:
    """What a campaign came to."""

    rounds: int = 0
    transfers: int = 0
    transactions: int = 0
    shared: int = 0
    by_fault: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    by_setup: Counter[str] = field(default_factory=Counter)
    """Rounds that were violated, by who decided."""
    violations: list[str] = field(default_factory=list)


class BankCampaign:
    """Rounds on a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.tally = Tally()
        self._away = site.auditor.absent()
        """Money that is in the queues of rounds before, or was lost in one, which was reported then."""
        self._replaced: list[Process] = []

    # --- named points ---------------------------------------------------------------------------------------
    def named(self, plan: Iterable[tuple[Setup, Iterable[Fault]]], seed: int = 1) -> None:
        """Each fault once."""
        for setup, faults in plan:
            for fault in faults:
                self.at_point(setup, fault, seed)

    def at_point(self, setup: Setup, fault: Fault, seed: int = 1) -> Audit:
        """One round."""
        site = self._site
        began = time.monotonic()
        site.man(setup)
        site.forget_outcomes()
        victim = site.processes[0]
        victim.child.tell("arm", 1, fault.point)
        queues, transfers = self._place(Random(f"{seed} {setup} {fault}"), PER_POINT)  # noqa: S311 — no secret
        site.work(queues)
        victim.child.wait("at")
        self.tally.by_fault[fault.fate] += 1
        self._strike(0, fault.fate)

        if fault.fate == "stopped" and setup.decider:
            threading.Event().wait(1.2 * LEASE_S)  # who lives is taken for dead
        elif fault.fate == "overdue":
            threading.Event().wait(TIMEOUT_S + 0.5)

        others = [process for process in site.processes[1:] if process.child.running]
        if fault.fate == "replaced":
            site.processes[0].child.wait("ready")
        for process in others:
            process.child.tell("recover")
        for process in others:
            process.child.wait("recovered")
        self._return(0)
        self._back(queues)
        self._drain(queues, f"{setup}: {fault}", setup.decides)
        audit = self._audit(setup, queues, transfers, f"{setup}: {fault}")
        print(f"  {setup}: {fault}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        return audit

    # --- storms ---------------------------------------------------------------------------------------------
    def storms(self, seed: int, rounds: int, first: int = 0) -> None:
        """So many rounds, as the seed says, from the `first` on."""
        for number in range(first, first + rounds):
            name = f"seed {seed}, bank {number}"
            try:
                self.storm(Random(f"{seed} bank {number}"), name)  # noqa: S311 — no secret
            except (Stuck, ChildGone) as error:
                self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        """A round that came to no end is one that is violated; the next one begins with new processes."""
        print(f"  VIOLATION {name}: stuck: {error}", file=sys.stderr)
        self.tally.rounds += 1
        self.tally.by_kind["stuck"] += 1
        self.tally.violations.append(f"{name}: stuck: {error}")
        for old in self._replaced:
            old.child.kill()
        self._replaced.clear()
        self._site.dismiss()
        self._site.revive()
        self._away = self._site.auditor.absent()

    def storm(self, dice: Random, name: str) -> Audit:
        """One round."""
        site, setup = self._site, setup_of(dice)
        began = time.monotonic()
        site.man(setup, failing=dice.choice((0, 20)))
        site.forget_outcomes()
        queues, transfers = self._place(dice, PER_STORM)
        site.work(queues)
        gusts = storm(dice, setup, GUSTS)
        self._blow(gusts, queues)
        self._back(queues)
        if dice.random() < 0.5:
            self._drain(queues, f"{name}: {setup}", setup.decides)
        audit = self._audit(setup, queues, transfers, f"{name}: {setup}: {', '.join(map(str, gusts))}")
        took = time.monotonic() - began
        print(f"  {name}: {setup}: {audit.done} of {len(transfers)} done: {took:.1f} s", file=sys.stderr)
        return audit

    def _blow(self, gusts: Iterable[Gust], queues: Queues) -> None:
        """All gusts, and the returns of those that were away, in the order of their times."""
        order = itertools.count()
        due: list[tuple[float, int, Callable[[], float | None]]] = []

        def later(after_s: float, what: Callable[[], float | None]) -> None:
            heapq.heappush(due, (after_s, next(order), what))

        def harm(gust: Gust) -> None:
            self.tally.by_fault[gust.action] += 1
            self._site.act(gust.action)

        def strike(gust: Gust) -> None:
            process = self._site.processes[gust.number]
            if not process.child.running or process.paused:
                return
            if gust.point:
                process.child.tell("arm", 1, gust.point)
                try:
                    process.child.listen("at", patience_s=AT_S)
                except ChildGone:
                    return
            self.tally.by_fault[gust.fate] += 1
            self._strike(gust.number, gust.fate)
            later(time.monotonic() + gust.absence_s, lambda: back(gust.number))

        def back(number: int) -> None:
            self._site.revive()
            self._return(number)
            self._site.work(queues)

        when = time.monotonic()
        for gust in gusts:
            when += gust.pause_s
            later(when, lambda gust=gust: harm(gust) if gust.action else strike(gust))  # type: ignore[misc]
        wake = threading.Event()
        while due:
            at, _, what = heapq.heappop(due)
            wake.wait(max(at - time.monotonic(), 0.0))
            what()

    # --- fates ----------------------------------------------------------------------------------------------
    def _strike(self, number: int, fate: str) -> None:
        site = self._site
        if fate == "killed":
            site.kill(number)
        elif fate in {"stopped", "overdue"}:
            site.pause(number)
        elif fate == "replaced":
            site.pause(number)
            self._replaced.append(site.replace(number))

    def _return(self, number: int) -> None:
        """Who was away is back."""
        site = self._site
        for old in self._replaced:
            if old.child.running and old.paused:
                old.child.go_on()
                old.paused = False
                old.child.tell("go")
        site.start(number)
        site.go_on(number)

    def _back(self, queues: Queues) -> None:
        """Everybody and everything is there, and works."""
        site = self._site
        site.revive()
        for number in range(len(site.processes)):
            self._return(number)
        site.work(queues)

    def _place(self, dice: Random, count: int) -> tuple[Queues, list[Transfer]]:
        site = self._site
        number = next(site.rounds)
        queues = Queues(f"transfers-{number}", f"credits-{number}", f"receipts-{number}")
        placed = site.auditor.order(queues.orders, some_transfers(dice, site.numbers, count))
        site.numbers += count
        return queues, placed

    def _drain(self, queues: Queues, what: str, decides: Decides) -> None:
        """Waits until every transfer is done, for as long as there are fewer and fewer to be done."""
        wake = threading.Event()
        fewest, deadline = math.inf, 0.0
        waiting = self._site.auditor.broker.waiting
        while left := 2 * waiting(queues.orders) + waiting(queues.credits):
            if left < fewest:
                fewest, deadline = left, time.monotonic() + PATIENCE_S
            if time.monotonic() > deadline:
                said = "\n".join(f"{each.child.errors()}\n{each.child.stacks()}" for each in self._site.processes)
                held = self._site.auditor.held(decides)
                raise Stuck(f"{what}: {left} transfers are not done:\n{held}\n{said}")
            wake.wait(LOOK_S)

    def _audit(self, setup: Setup, queues: Queues, transfers: list[Transfer], what: str) -> Audit:
        site = self._site
        for old in self._replaced:
            old.child.kill()
        self._replaced.clear()
        for process in site.processes:
            process.child.tell("rest")
        rested = [process.child.wait("rested", patience_s=REST_S) for process in site.processes]
        for process in site.processes:
            process.working = False
        first = min((transfer.number for transfer in transfers), default=0)
        deadline = time.monotonic() + HELD_S + SLACK_S
        while True:
            books = site.auditor.books(queues, first, setup.decides)
            outcomes = site.outcomes
            audit = compare(transfers, books, outcomes, away=self._away)
            if audit.right or time.monotonic() > deadline:
                break  # what is held by a branch that was never prepared comes back when its time is over
            threading.Event().wait(AGAIN_S)
            for process in site.processes:
                process.child.tell("recover")
            for process in site.processes:
                process.child.wait("recovered")

        audit.note("left", (said["left"] for said in rested if said["left"] and not audit.right), "recovery said")
        audit.note("left", (f"{said['decisions']}" for said in rested if said["decisions"]), "decisions in a log")
        self._away = TOTAL - sum(books.balances.values())
        self.tally.rounds += 1
        self.tally.transfers += audit.done
        self.tally.transactions += len(outcomes)
        self.tally.shared += audit.shared
        for kind in KINDS:
            self.tally.by_kind[kind] += getattr(audit, kind)
        if not audit.right:
            self.tally.by_setup[setup.decides] += 1
        self.tally.violations += [f"{what}: {detail}" for detail in audit.details]
        for detail in audit.details:
            print(f"  VIOLATION {what}: {detail}", file=sys.stderr)
        return audit

    def figures(self) -> dict[str, Any]:
        tally = self.tally
        return {
            "rounds": tally.rounds,
            "transfers": tally.transfers,
            "transactions": tally.transactions,
            "shared": tally.shared,
            "by_fault": dict(sorted(tally.by_fault.items())),
            **{kind: tally.by_kind[kind] for kind in (*KINDS, "stuck")},
            "violated": dict(sorted(tally.by_setup.items())),
            "violations": tally.violations,
        }
