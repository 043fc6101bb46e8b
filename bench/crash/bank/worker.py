"""One process of the bank: a transaction manager, and a consumer for each of the two queues.

    python -m bench.crash.bank.worker '{"node": …}'          a `Station`, as JSON

It reads commands from stdin, line by line (`_listen`), and reports on stdout, as lines of JSON: `ready`, `at` a named
point, `report` (the outcome of a transaction that the application got), `recovered`, and `rested` with what recovery
left and how many decisions the log has.
"""

from __future__ import annotations

import json
import logging
import queue
import random
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.crash.bank.faults import TIMEOUT_S
from bench.crash.bank.transfers import BROKER, EAST, PLACES, WEST, Account, Decides, Transfer
from bench.crash.points import DECIDER_VERBS, VERBS, Gate, GatedLog, hooked, tell
from bench.crash.worker import NEVER, SEGMENT, GivenUp, Teller, recover_all
from rm_amqp import Message
from tm import Consumer, ResourceConfig, TransactionManager
from tm.log import FileLog, LogError
from tm.log.sql import SqlLog
from tm.recovery import lease
from tm.resources import find_factory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tm import Transaction
    from tm.resources import Mode

LEASE_S: Final = 1.5
"""Of a SqlLog, and at the one that decides: a process that is stopped for longer may be taken for dead."""
LOCK_WAIT: Final = "500ms"
"""How long a transfer waits for an account: two that wait for each other at two databases would wait for ever."""
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Station:
    """What one process is started with. `log` is a folder, a database's URL, or empty where a resource decides. One
    transaction in `failing` is given up by its handler (0: none is)."""

    node: str
    decides: Decides
    log: str
    broker: str
    east: str
    west: str
    threads: int = 1
    batch: int = 1
    failing: int = 0
    seed: int = 1


class Transfers:
    """The handlers of the two queues."""

    def __init__(self, station: Station, gate: Gate, teller: Teller) -> None:
        self._failing = station.failing
        self._gate = gate
        self._teller = teller
        self._dice = random.Random(station.seed)  # noqa: S311 — no secret
        self.credits = self.receipts = ""

    def order(self, message: Message, transaction: Transaction) -> None:
        """Takes the amount from its account, and brings or sends it to the other one."""
        attempt = self._begin(transaction)
        body: Any = message.body
        transfer = Transfer.of(body)
        moves = [(transfer.source, -transfer.amount)]
        if not transfer.posted:
            moves.append((transfer.target, transfer.amount))
        _move(transaction, transfer.number, moves)
        if transfer.posted:
            there = [transfer.target.place, transfer.target.number]
            credit = {"number": transfer.number, "target": there, "amount": transfer.amount, "attempt": attempt}
            transaction[BROKER].send(self.credits, Message(credit))
        else:
            transaction[BROKER].send(self.receipts, Message({"number": transfer.number, "attempt": attempt}))
        self._end()

    def credit(self, message: Message, transaction: Transaction) -> None:
        """Brings an amount that was sent to its account."""
        attempt = self._begin(transaction)
        body: Any = message.body
        place, number = body["target"]
        _move(transaction, int(body["number"]), [(Account(place, number), int(body["amount"]))])
        transaction[BROKER].send(self.receipts, Message({"number": body["number"], "attempt": attempt}))
        self._end()

    def _begin(self, transaction: Transaction) -> str:
        self._gate.begin()
        self._teller.opened(transaction)
        return transaction.gtrid.hex()

    def _end(self) -> None:
        self._gate.hit("after", "work")
        if self._failing and self._dice.randrange(self._failing) == 0:
            raise GivenUp("given up, for once")


def _move(transaction: Transaction, number: int, moves: Iterable[tuple[Account, int]]) -> None:
    """Everybody goes from east to west, and at a place in the order of the accounts."""
    attempt = transaction.gtrid.hex()
    for account, amount in sorted(moves, key=lambda move: (PLACES.index(move[0].place), move[0].number)):
        at = transaction[account.place].psycopg
        at.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        at.execute("UPDATE account SET balance = balance + %s WHERE number = %s", (amount, account.number))
        at.execute(
            "INSERT INTO entry (transfer, account, amount, attempt) VALUES (%s, %s, %s, %s)",
            (number, account.number, amount, attempt),
        )


class BankWorker:
    """The process. Subclasses (the tests' mutants) put something else in the place of a part."""

    def __init__(self, station: Station) -> None:
        self.station = station
        self.gate = Gate()
        self.transfers = Transfers(station, self.gate, Teller())
        self.consumers: list[Consumer] = []
        self._orders: queue.SimpleQueue[list[str]] = queue.SimpleQueue()

    def resource(self, name: str, url: str, mode: Mode = "two-phase") -> ResourceConfig:
        """A resource whose verbs are points."""
        made = find_factory(name, ResourceConfig(url, mode))
        verbs = VERBS + DECIDER_VERBS if mode == "decider" else VERBS
        hit = self.gate.hit

        def hook(when: str, verb: str) -> None:
            hit(when, f"{verb} {name}")

        return ResourceConfig(url, mode, lambda registrar: hooked(hook, verbs)(made(registrar)))

    def log(self) -> Any:
        """The decision log whose force is a point."""
        station = self.station
        if station.decides == "file":
            return GatedLog(FileLog(station.log, station.node, segment_size=SEGMENT), self.gate.hit)
        if station.decides != "sql":
            return None
        while True:
            try:
                return GatedLog(SqlLog(station.log, station.node, lease_s=LEASE_S), self.gate.hit)
            except LogError:  # the one before has it until its lease is over; or the database is starting
                threading.Event().wait(PAUSE_S)

    def manager(self) -> TransactionManager:
        """The transaction manager."""
        station = self.station
        urls = {BROKER: station.broker, EAST: station.east, WEST: station.west}
        decider = {"database": EAST, "token": BROKER}.get(station.decides)
        resources = {
            name: self.resource(name, url, "decider" if name == decider else "two-phase") for name, url in urls.items()
        }
        return TransactionManager(station.node, self.log(), resources, timeout_s=TIMEOUT_S, recovery_interval_s=0.3)

    def run(self) -> None:
        """Until the command to quit, or a kill."""
        threading.Thread(target=self._listen, daemon=True).start()
        with self.manager() as manager:
            tell("ready")
            doing: dict[str, Callable[..., None]] = {"work": self._begin, "recover": self._recover, "rest": self._rest}
            while (order := self._orders.get())[0] != "quit":
                doing[order[0]](manager, *order[1:])

    def _begin(self, manager: TransactionManager, orders: str, credits_: str, receipts: str) -> None:
        self.transfers.credits, self.transfers.receipts = credits_, receipts
        for name, handler in ((orders, self.transfers.order), (credits_, self.transfers.credit)):
            consumer = Consumer(
                manager,
                name,
                handler,
                workers=self.station.threads,
                batch=self.station.batch,
                max_deliveries=NEVER,
                retry_first_s=0.01,
                retry_most_s=0.1,
                idle_s=0.1,
            )
            consumer.start()
            self.consumers.append(consumer)

    @staticmethod
    def _recover(manager: TransactionManager) -> None:
        for _ in range(2):  # the first may only wake what had failed
            manager.recover()
        tell("recovered")

    def _rest(self, manager: TransactionManager) -> None:
        for consumer in self.consumers:
            consumer.stop()
        self.consumers = []
        left = recover_all(manager)
        own = manager.log is not None and self.station.decides == "file"  # the auditor can look at the others
        tell("rested", left=left, decisions=len(manager.log.decisions()) if own and manager.log else 0)

    def _listen(self) -> None:
        for line in sys.stdin:
            words = line.split()
            if words[0] == "arm":
                self.gate.arm(" ".join(words[2:]), int(words[1]))
            elif words[0] == "go":
                self.gate.go()
            else:
                self._orders.put(words)
        self._orders.put(["quit"])


def run(kind: type[BankWorker], station: Station) -> None:
    """Runs a process of the bank until the command to quit, or a kill."""
    vars(lease)["LEASE_S"] = LEASE_S  # the product's is longer than any process is stopped here
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    kind(station).run()


if __name__ == "__main__":
    run(BankWorker, Station(**json.loads(sys.argv[1])))
