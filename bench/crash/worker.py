"""The worker of the campaign: a process with a transaction manager and a `Consumer` over a queue.

    python -m bench.crash.worker '{"node": …}'          a `Station`, as JSON

It reads commands from stdin, line by line (`_listen`), and reports on stdout, as lines of JSON: `ready`, `at` a named
point, `report` (the outcome of a transaction that the application got), `rested` with what recovery did.
"""

from __future__ import annotations

import json
import logging
import queue
import random
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.crash.disk import Disk, Health
from bench.crash.points import DECIDER_VERBS, VERBS, Gate, GatedLog, hooked, tell
from rm_amqp import Message
from tm import Consumer, ResourceConfig, TransactionManager
from tm.log import FileLog
from tm.log.log_folder import PosixFiles
from tm.resources import find_factory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm import Transaction
    from tm.outcome import Outcome
    from tm.recovery import Report
    from tm.resources import Mode

BROKER: Final = "broker"
SECOND: Final = "second"
DATABASE: Final = "shop"
SEGMENT: Final = 8192
"""Small: the log moves to another segment, which a full disk keeps it from, after some 30 transactions."""
MOST_PASSES: Final = 100
PAUSE_S: Final = 0.02
NEVER: Final = 1_000_000
"""Deliveries before a message is given up: none is, whatever happens to it here."""


@dataclass(frozen=True, slots=True)
class Station:
    """What one worker is started with. Where `second` is empty, one broker has both queues. One transaction in
    `failing` is given up by its handler (0: none is). `stop` is a point that is armed before recovery runs."""

    node: str
    log: str
    broker: str
    second: str
    database: str
    mode: Mode = "two-phase"
    threads: int = 1
    batch: int = 1
    failing: int = 0
    seed: int = 1
    stop: str = ""


class Jumping:
    """A monotonic clock that an operator has set."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


class Teller:
    """Reports the outcome of each transaction that the application gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[bytes] = set()

    def opened(self, transaction: Transaction) -> None:
        """A handler works in it, perhaps not for the first time."""
        with self._lock:
            if transaction.gtrid in self._open:
                return
            self._open.add(transaction.gtrid)
        transaction.register_synchronization(after=self._ended)

    def _ended(self, outcome: Outcome) -> None:
        with self._lock:
            self._open.discard(outcome.gtrid)
        tell("report", gtrid=outcome.gtrid.hex(), verdict=outcome.verdict.value)


class GivenUp(Exception):
    """The handler does not want to; the transaction is rolled back."""


class Work:
    """The handler: an order is a row and an invoice, both with the transaction's gtrid."""

    def __init__(self, station: Station, gate: Gate, teller: Teller) -> None:
        self._station = station
        self._gate = gate
        self._teller = teller
        self._dice = random.Random(station.seed)  # noqa: S311 — no secret
        self.invoices = ""

    def __call__(self, message: Message, transaction: Transaction) -> None:
        self._gate.begin()
        self._teller.opened(transaction)
        self._gate.hit("after", "receive")
        body: Any = message.body
        number, attempt = int(body["number"]), transaction.gtrid.hex()
        transaction[DATABASE].exec_driver_sql(
            "INSERT INTO handled (number, attempt, queue) VALUES (%s, %s, %s)", (number, attempt, self.invoices)
        )
        where = SECOND if self._station.second else BROKER
        transaction[where].send(self.invoices, Message({"number": number, "attempt": attempt}))
        self._gate.hit("after", "work")
        failing = self._station.failing
        if failing and self._dice.randrange(failing) == 0:
            raise GivenUp(f"order {number} is given up, for once")


class CrashWorker:
    """The process. Subclasses (the tests' mutants) put something else in the place of a part."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.gate = Gate()
        self.clock = Jumping()
        self.disk = Disk(PosixFiles(station.log)) if station.log else None
        self.teller = Teller()
        self.work = Work(station, self.gate, self.teller)
        self.consumer: Consumer | None = None
        self._orders: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        if station.stop:
            self.gate.arm(station.stop, begun=True)

    def hook(self, name: str) -> Callable[[str, str], None]:
        """The points of one resource."""
        return lambda when, verb: self.gate.hit(when, f"{verb} {name}")

    def resource(self, name: str, url: str, mode: Mode = "two-phase") -> ResourceConfig:
        """A resource whose verbs are points."""
        made = find_factory(name, ResourceConfig(url, mode))
        verbs = VERBS + DECIDER_VERBS if mode == "decider" else VERBS
        return ResourceConfig(url, mode, lambda registrar: hooked(self.hook(name), verbs)(made(registrar)))

    def log(self) -> Any:
        """The decision log whose force is a point."""
        if self.disk is None:
            return None
        return GatedLog(
            FileLog(self.station.log, self.station.node, segment_size=SEGMENT, files=self.disk), self.gate.hit
        )

    def manager(self) -> TransactionManager:
        """The transaction manager."""
        station = self.station
        resources = {BROKER: self.resource(BROKER, station.broker)}
        if station.second:
            resources[SECOND] = self.resource(SECOND, station.second)
        resources[DATABASE] = self.resource(DATABASE, station.database, station.mode)
        return TransactionManager(
            station.node, self.log(), resources, timeout_s=30.0, recovery_interval_s=0.5, clock=self.clock
        )

    def run(self) -> None:
        """Until the command to quit, or a kill."""
        threading.Thread(target=self._listen, daemon=True).start()
        with self.manager() as manager:
            left = recover_all(manager)
            tell("ready", left=left)
            while (order := self._orders.get())[0] != "quit":
                if order[0] == "work":
                    self._begin(manager, order[1], order[2])
                else:
                    self._rest(manager)

    def _begin(self, manager: TransactionManager, orders: str, invoices: str) -> None:
        self.work.invoices = invoices
        self.consumer = Consumer(
            manager,
            orders,
            self.work,
            workers=self.station.threads,
            batch=self.station.batch,
            max_deliveries=NEVER,
            retry_first_s=0.01,
            retry_most_s=0.1,
            idle_s=0.1,
        )
        self.consumer.start()
        tell("working")

    def _rest(self, manager: TransactionManager) -> None:
        finished = True
        if self.consumer is not None:
            finished = self.consumer.stop()
            self.consumer = None
        tell("rested", left=recover_all(manager), finished=finished)

    # --- orders ---------------------------------------------------------------------------------------------
    def _listen(self) -> None:
        for line in sys.stdin:
            words = line.split()
            name, rest = words[0], words[1:]
            if name == "arm":
                self.gate.arm(" ".join(rest[1:]), int(rest[0]))
            elif name == "go":
                self.gate.go()
            elif name == "clock":
                self.clock.offset_s += float(rest[0])
            elif name == "disk":
                if self.disk is not None:  # the one that decides has its own
                    self.disk.health = Health(rest[0])
            else:
                self._orders.put(words)
        self._orders.put(["quit"])


def recover_all(manager: TransactionManager) -> str:
    """Recovers until nothing is in doubt; what is left, if it can't be."""
    report: Report | None = None
    for _ in range(MOST_PASSES):
        report = manager.recover()
        if report.clean and not report.ended and not report.undone and not _acted(report):
            return ""
        threading.Event().wait(PAUSE_S)
    return str(report)


def _acted(report: Report) -> bool:
    return any(finding.action.value in {"committed", "rolled back"} for finding in report.findings)


def run(kind: type[CrashWorker], station: Station) -> None:
    """Runs a worker until the command to quit, or a kill."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    kind(station).run()


if __name__ == "__main__":
    run(CrashWorker, Station(**json.loads(sys.argv[1])))
