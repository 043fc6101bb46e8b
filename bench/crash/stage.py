"""`Stage` has the processes of the campaign, and can harm each of them and bring it back.

There are two brokers, a PostgreSQL and, where it is installed, a MariaDB, each behind a proxy, and the workers. Workers
go through the proxies; the ledger does not.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from bench.crash.child import Child
from bench.crash.ledger import Ledger
from bench.crash.nursery import Nursery
from bench.crash.proxy import HOST, Proxies, Proxy
from bench.crash.worker import NEVER
from xabridge.testing.mariadb import MariaDB, installed
from xabridge.testing.ports import free_port
from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from bench.crash.faults import Database, Setup

WORKER: Final = "bench.crash.worker"
BROKER: Final = "bench.crash.broker"
HELD_S: Final = 2
"""A branch that was ended and never prepared, because its manager was killed between, holds its messages until the
broker's timeout for it; ten minutes by default."""
AGAIN_S: Final = 0.2
"""Between two audits, which take processor time from those that they wait for."""
OPTIONS: Final = f"?timeout=5&connect_timeout=5&branch_timeout={HELD_S}"
SPOILT: Final = frozenset({"broken", "refusing"})
"""A disk like this stops the log, which has to be opened anew: its worker is started again."""


class Stage:
    """Everything below `folder`. `worker` is the module that workers run, `more` their arguments besides a `Station`,
    and `deliveries` how often brokers deliver a message in vain."""

    def __init__(self, folder: Path, *, with_mariadb: bool = True, deliveries: int = NEVER) -> None:
        self._folder = folder
        self._folder.mkdir(exist_ok=True)
        self.worker = WORKER
        self.more: dict[str, Any] = {}
        self._stack = ExitStack()
        self._ports = {name: free_port() for name in ("broker", "second")}
        self._proxies: dict[str, Proxy] = {}
        self.spoilt: set[int] = set()
        self._lock = threading.Condition()
        self.rounds = itertools.count(1)
        """Rounds on this stage, of whatever campaign: each has queues, and orders, of its own."""
        self.numbers = itertools.count(1)
        self.outcomes: dict[str, str] = {}

        self.workers: list[Child] = []
        self._nursery = Nursery()
        self._shop: Database = "postgresql"
        self.mariadb = MariaDB(folder=folder / "mariadb") if with_mariadb and installed() else None
        self.brokers = {
            name: Child(
                self._nursery,
                BROKER,
                {"port": port, "store": f"sqlite:///{folder}/{name}.db", "deliveries": deliveries},
                folder / f"{name}.err",
                self._hear,
            )
            for name, port in self._ports.items()
        }

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._nursery.close)
            self.postgres = EmbeddedPostgres(self._folder / "postgres")
            stack.callback(self.postgres.remove)
            proxies = stack.enter_context(Proxies())
            for broker in self.brokers.values():
                stack.callback(broker.kill)
                broker.launch()

            self.postgres.start()
            self._databases = {"postgresql": self.postgres.create_database("shop")}
            self._shop_ports = {"postgresql": self.postgres.port}
            if self.mariadb is not None:
                stack.callback(self.mariadb.remove)
                self.mariadb.start()
                self._databases["mariadb"] = self.mariadb.create_database("mariadb")
                self._shop_ports["mariadb"] = self.mariadb.port

            for broker in self.brokers.values():
                broker.wait("ready")
            stack.callback(self._end_workers)
            self._proxies = {
                name: proxies.add(port) for name, port in (*self._ports.items(), *self._shop_ports.items())
            }
            self.ledger = Ledger(tuple(f"amqp://{HOST}:{port}" for port in self._ports.values()), self._databases)
            stack.callback(self.ledger.close)
            self.ledger.open()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()

    # --- workers --------------------------------------------------------------------------------------------
    def man(self, setup: Setup, failing: int = 0) -> None:
        """Starts the workers that `setup` names, and waits until they are ready; those that run already go on."""
        self._shop = setup.database
        wanted = [self._station(setup, number, failing) for number in range(setup.workers)]
        if [(worker.module, worker.arguments) for worker in self.workers] != [(self.worker, one) for one in wanted]:
            self._end_workers()
            self.workers = [
                Child(self._nursery, self.worker, station, self._folder / f"{station['node']}.err", self._hear)
                for station in wanted
            ]
        for number, worker in enumerate(self.workers):
            if not worker.running or number in self.spoilt:
                worker.kill()
                self.spoilt.discard(number)
                worker.launch()
                worker.wait("ready")

    def _station(self, setup: Setup, number: int, failing: int) -> dict[str, Any]:
        node = f"{setup.mode}-{setup.database}-{number}"
        urls = {name: f"amqp://{HOST}:{self._proxies[name].port}/{OPTIONS}" for name in self._ports}

        return {
            "node": node,
            "log": "" if setup.mode == "decider" else str(self._folder / f"log-{setup.database}-{number}"),
            "broker": urls["broker"],
            "second": urls["second"] if setup.second else "",
            "database": self._databases[setup.database].replace(
                f":{self._shop_ports[setup.database]}/", f":{self._proxies[setup.database].port}/"
            ),
            "mode": setup.mode,
            "threads": setup.threads,
            "batch": setup.batch,
            "failing": failing,
            **self.more,
        }

    def _hear(self, event: dict[str, Any]) -> None:
        with self._lock:
            self.outcomes[event["gtrid"]] = event["verdict"]
            self._lock.notify_all()

    def begin_round(self) -> None:
        """Forgets the outcomes so far."""
        with self._lock:
            self.outcomes = {}

    def hear_of(self, count: int, patience_s: float) -> bool:
        """Waits until the round's workers have reported so many outcomes; whether they have."""
        with self._lock:
            return self._lock.wait_for(lambda: len(self.outcomes) >= count, patience_s)

    # --- faults ---------------------------------------------------------------------------------------------
    def act(self, action: str, number: int = 0) -> None:
        """Carries out one action of a fault; where it is a worker's, on worker `number`."""
        verb, what, *rest = action.split(maxsplit=2)
        worker = self.workers[number]

        if verb == "kill":
            self._kill(what, worker)
        elif verb == "cut":
            self._proxy(what).cut()
        elif verb == "deaf":
            self._proxy(what).lose_reply()
        elif verb == "stop":
            _tell(self.brokers[what], "arm", 1, "at", rest[0])
        elif verb == "disk":
            _tell(worker, "disk", what)
            if what in SPOILT:
                self.spoilt.add(number)
        elif verb in {"slow", "fast"}:
            _tell(self.brokers[what], "disk", "slow" if verb == "slow" else "well")
        elif verb == "clock":
            _tell(worker if what == "worker" else self.brokers[what], "clock", rest[0])
        else:
            raise ValueError(f"{action!r} is no action")

    def _proxy(self, what: str) -> Proxy:
        return self._proxies[self._shop if what == "shop" else what]

    def _kill(self, what: str, worker: Child) -> None:
        if what == "worker":
            worker.kill()
        elif what == "shop" and self._shop == "mariadb" and self.mariadb is not None:
            self.mariadb.stop(immediate=True)
        elif what == "shop":
            self.postgres.kill()
        else:
            self.brokers[what].kill()

    def killed_at_step(self, what: str) -> None:
        """Waits until a broker that was armed is at its step, and kills it there."""
        self.brokers[what].wait("at")
        self.brokers[what].kill()

    def revive(self) -> None:
        """Brokers and database that do not run are started again."""
        down = [broker for broker in self.brokers.values() if not broker.running]
        for broker in down:
            broker.kill()
            broker.launch()
        self.postgres.start()
        if self.mariadb is not None:
            self.mariadb.start()
        for broker in down:
            broker.wait("ready")


def _tell(child: Child, *words: object) -> None:
    """Tells those that live; to the others it does not matter any more."""
    if child.running:
        child.tell(*words)
