"""Starts the bank's processes: a broker, a PostgreSQL with a database for each place and one for the SqlLog, and the
nodes.

The nodes reach broker and databases through proxies; the auditor does not.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.crash.bank.audit import Auditor
from bench.crash.bank.transfers import BROKER, EAST, PLACES, WEST
from bench.crash.child import Child
from bench.crash.nursery import Nursery
from bench.crash.proxy import HOST, Proxies, Proxy
from bench.crash.stage import BROKER as BROKER_PROCESS
from bench.crash.stage import OPTIONS
from xabridge.testing.ports import free_port
from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from bench.crash.bank.audit import Queues
    from bench.crash.bank.transfers import Setup

WORKER: Final = "bench.crash.bank.worker"
LOG: Final = "log"
POSTGRES: Final = "postgres"
SLOTS: Final = 2
"""Token queues: so few that the nodes meet at one."""


@dataclass(slots=True)
class Process:
    """One of a node's processes, and where it stands."""

    child: Child
    paused: bool = False
    working: bool = False


class Site:
    """Everything below `folder`. `worker` is the module that processes run, `more` its arguments besides a
    `Station`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(exist_ok=True)
        self.worker = WORKER
        self.more: dict[str, Any] = {}
        self._stack = ExitStack()
        self._nursery = Nursery()
        self._port = free_port()
        self.broker = Child(
            self._nursery,
            BROKER_PROCESS,
            {"port": self._port, "store": f"sqlite:///{folder}/broker.db"},
            folder / "broker.err",
            self._hear,
        )

        self._proxies: dict[str, Proxy] = {}
        self._databases: dict[str, str] = {}
        self._lock = threading.Lock()
        self._outcomes: dict[str, str] = {}
        self.rounds = itertools.count(1)
        self.numbers = 1
        """The next transfer."""
        self._generation = itertools.count(1)
        self._manned: object = None
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._nursery.close)
            self.postgres = EmbeddedPostgres(self._folder / "postgres")
            stack.callback(self.postgres.remove)
            proxies = stack.enter_context(Proxies())
            stack.callback(self.broker.kill)
            self.broker.launch()
            self.postgres.start()
            self._databases = {name: self.postgres.create_database(name) for name in (*PLACES, LOG)}

            self.broker.wait("ready")
            stack.callback(self.dismiss)
            self._proxies = {name: proxies.add(self.postgres.port) for name in self._databases}
            self._proxies[BROKER] = proxies.add(self._port)
            self.auditor = Auditor(
                f"amqp://{HOST}:{self._port}", {place: self._databases[place] for place in PLACES}, self._databases[LOG]
            )
            stack.callback(self.auditor.broker.close)
            self.auditor.open()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # --- processes ------------------------------------------------------------------------------------------
    def dismiss(self) -> None:
        """No process of any node is left."""
        for process in self.processes:
            process.child.kill()
        self.processes, self._manned = [], None

    def man(self, setup: Setup, failing: int = 0) -> None:
        """Starts the processes that `setup` names, and waits until they are ready; those that run already go on. Nodes
        of one setup keep their names and logs; another setup has nodes of its own."""
        wanted = (self.worker, self.more, setup, failing)
        if wanted != self._manned:
            self.dismiss()
            for node, number in itertools.product(range(setup.nodes), range(setup.processes)):
                self.processes.append(Process(self._child(setup, failing, node, number)))
            self._manned = wanted
        for process in self.processes:
            if not process.child.running:
                process.child.kill()
                process.child.launch()
                process.working = False
                process.child.wait("ready")

    def _child(self, setup: Setup, failing: int, node: int, number: int) -> Child:
        name = f"{setup.decides}-{node}"
        errors = self._folder / f"{name}-{number}-{next(self._generation)}.err"
        return Child(self._nursery, self.worker, self._station(setup, name, failing), errors, self._hear)

    def _station(self, setup: Setup, name: str, failing: int) -> dict[str, Any]:
        options = f"{OPTIONS}&slots={SLOTS}" if setup.decider == BROKER else OPTIONS
        ahead = f"&ahead=true&prefetch={setup.prefetch}" if setup.prefetch else ""
        log = {"file": str(self._folder / f"log-{name}"), "sql": self._through(LOG)}.get(setup.decides, "")
        return {
            "node": name,
            "decides": setup.decides,
            "log": log,
            "broker": f"amqp://{HOST}:{self._proxies[BROKER].port}/{options}{ahead}",
            "east": self._through(EAST),
            "west": self._through(WEST),
            "threads": setup.threads,
            "batch": setup.batch,
            "failing": failing,
            **self.more,
        }

    def _through(self, database: str) -> str:
        """The URL of a database, through its proxy."""
        return self._databases[database].replace(f":{self.postgres.port}/", f":{self._proxies[database].port}/")

    def kill(self, number: int) -> None:
        """kill -9 of one process."""
        process = self.processes[number]
        process.child.kill()
        process.paused = process.working = False

    def start(self, number: int) -> None:
        """Starts one that was killed; it is not waited for."""
        process = self.processes[number]
        if not process.child.running:
            process.child.kill()
            process.child.launch()
            process.working = False

    def pause(self, number: int) -> None:
        """SIGSTOP of one process, if it runs."""
        process = self.processes[number]
        if process.child.running:
            process.child.pause()
            process.paused = True

    def go_on(self, number: int) -> None:
        """SIGCONT, where it was paused, and a process that stands at a point goes on."""
        process = self.processes[number]
        if process.child.running:
            if process.paused:
                process.child.go_on()
                process.paused = False
            process.child.tell("arm", 0, "nothing")
            process.child.tell("go")

    def replace(self, number: int) -> Process:
        """Puts another process into the place of one, which goes on living; the old one."""
        old = self.processes[number]
        errors = self._folder / f"spare-{next(self._generation)}.err"
        child = Child(self._nursery, self.worker, old.child.arguments, errors, self._hear)
        child.launch()
        self.processes[number] = Process(child)
        return old

    def work(self, queues: Queues) -> None:
        """Everybody who runs works on these queues."""
        for process in self.processes:
            if process.child.running and not process.working:
                process.child.tell("work", *queues)
                process.working = True

    # --- reported outcomes ----------------------------------------------------------------------------------
    def _hear(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._outcomes[event["gtrid"]] = event["verdict"]

    def forget_outcomes(self) -> None:
        """Forgets the outcomes of the last round."""
        with self._lock:
            self._outcomes = {}

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each transaction, as it was reported."""
        with self._lock:
            return dict(self._outcomes)

    # --- the others -----------------------------------------------------------------------------------------
    def act(self, action: str) -> None:
        """`kill`, `cut` or `deaf`, and whom."""
        verb, what = action.split()
        if verb == "cut":
            self._proxies[what].cut()
        elif verb == "deaf":
            self._proxies[what].lose_reply()
        elif what == POSTGRES:
            self.postgres.kill()
        else:
            self.broker.kill()

    def revive(self) -> None:
        """Broker and databases run."""
        self.postgres.start()
        if not self.broker.running:
            self.broker.kill()
            self.broker.launch()
            self.broker.wait("ready")
